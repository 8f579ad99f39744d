"""Agents from outside: an OpenAI-compatible endpoint bound to an episode, behind which a policy samples."""

from tinker_actors.environments.outside.agent import HarnessAgent
from tinker_actors.environments.outside.binding import Difference
from tinker_actors.environments.outside.capture import Capture, Counts
from tinker_actors.environments.outside.harness import (
    CommandHarness,
    FunctionHarness,
    Harness,
    HarnessCall,
    check_harness,
    load_harness,
)
from tinker_actors.environments.outside.server import EndpointServer, check_served

__all__ = [
    "Capture",
    "CommandHarness",
    "Counts",
    "Difference",
    "EndpointServer",
    "FunctionHarness",
    "Harness",
    "HarnessAgent",
    "HarnessCall",
    "check_harness",
    "check_served",
    "load_harness",
]

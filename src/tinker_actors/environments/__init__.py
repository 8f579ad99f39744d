"""Environments and the agents that act in them. Nothing here loads torch: rollout workers import this room."""

from tinker_actors.environments.agents import Action, Agent, DemonstrationAgent, ScriptedAgent
from tinker_actors.environments.conversation import Conversation, Overflow, Prompt
from tinker_actors.environments.environment import Environment, Observation, Step
from tinker_actors.environments.live import LiveEnvironment, Outcome, WrongReturnError
from tinker_actors.environments.loading import (
    EnvironmentFactory,
    EnvironmentSpec,
    load_environment,
    shipped_environments,
)
from tinker_actors.environments.policy_agent import PolicyAgent, SamplesTokens
from tinker_actors.environments.rules import Forfeit, TurnOrder

__all__ = [
    "Action",
    "Agent",
    "Conversation",
    "DemonstrationAgent",
    "Environment",
    "EnvironmentFactory",
    "EnvironmentSpec",
    "Forfeit",
    "LiveEnvironment",
    "Observation",
    "Outcome",
    "Overflow",
    "PolicyAgent",
    "Prompt",
    "SamplesTokens",
    "ScriptedAgent",
    "Step",
    "TurnOrder",
    "WrongReturnError",
    "load_environment",
    "shipped_environments",
]

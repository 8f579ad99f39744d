"""Environments and the agents that act in them. Nothing here loads torch: rollout workers import this room."""

from tinker_actors.environments.agents import Action, Agent, DemonstrationAgent, ScriptedAgent
from tinker_actors.environments.conversation import Conversation, Overflow, Prompt
from tinker_actors.environments.environment import Environment, Isolation, Observation, Step
from tinker_actors.environments.instances import Instance, Instances, isolation_of
from tinker_actors.environments.live import LiveEnvironment, Playable
from tinker_actors.environments.loading import (
    EnvironmentFactory,
    EnvironmentSpec,
    load_environment,
    shipped_environments,
)
from tinker_actors.environments.policy_agent import PolicyAgent
from tinker_actors.environments.policy_seat import PolicySeat, SamplesTokens
from tinker_actors.environments.returns import Outcome, WrongReturnError
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
    "Instance",
    "Instances",
    "Isolation",
    "LiveEnvironment",
    "Observation",
    "Outcome",
    "Overflow",
    "Playable",
    "PolicyAgent",
    "PolicySeat",
    "Prompt",
    "SamplesTokens",
    "ScriptedAgent",
    "Step",
    "TurnOrder",
    "WrongReturnError",
    "isolation_of",
    "load_environment",
    "shipped_environments",
]

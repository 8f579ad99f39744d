"""Rollouts: planned as data, played by workers, collected into groups. Nothing here loads torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tinker_actors.lazy import lazy_names

if TYPE_CHECKING:
    from tinker_actors.rollouts.collecting import Collected, Retries, collect
    from tinker_actors.rollouts.events import CollectEvent, EpisodeRaised, EpisodesDone, WorkerBlocked, WorkerLost
    from tinker_actors.rollouts.filtering import collect_kept, rewards_vary
    from tinker_actors.rollouts.ledger import Ledger
    from tinker_actors.rollouts.lockstep import EpisodeSampler, Gate, cohorts_of
    from tinker_actors.rollouts.metrics import Staleness, rollout_metrics, staleness
    from tinker_actors.rollouts.outcomes import outcome, points, policy_metrics, seat_outcomes
    from tinker_actors.rollouts.plans import Assignment, LineUp, Rollout, RolloutPlan, plan_groups
    from tinker_actors.rollouts.seats import (
        DemonstrationSeat,
        HarnessSeat,
        PersonSeat,
        PolicySeat,
        ScriptedSeat,
        Seat,
        harness_of,
        script,
        scripted_agent,
    )
    from tinker_actors.rollouts.transcripts import transcript, transcript_text, transcripts_text
    from tinker_actors.rollouts.worker import RolloutWorker

_HOMES = {
    "Collected": "collecting",
    "Retries": "collecting",
    "collect": "collecting",
    "CollectEvent": "events",
    "EpisodeRaised": "events",
    "EpisodesDone": "events",
    "WorkerBlocked": "events",
    "WorkerLost": "events",
    "collect_kept": "filtering",
    "rewards_vary": "filtering",
    "Ledger": "ledger",
    "EpisodeSampler": "lockstep",
    "Gate": "lockstep",
    "cohorts_of": "lockstep",
    "Staleness": "metrics",
    "rollout_metrics": "metrics",
    "staleness": "metrics",
    "outcome": "outcomes",
    "points": "outcomes",
    "policy_metrics": "outcomes",
    "seat_outcomes": "outcomes",
    "Assignment": "plans",
    "LineUp": "plans",
    "Rollout": "plans",
    "RolloutPlan": "plans",
    "plan_groups": "plans",
    "DemonstrationSeat": "seats",
    "HarnessSeat": "seats",
    "PersonSeat": "seats",
    "PolicySeat": "seats",
    "harness_of": "seats",
    "ScriptedSeat": "seats",
    "Seat": "seats",
    "script": "seats",
    "scripted_agent": "seats",
    "transcript": "transcripts",
    "transcript_text": "transcripts",
    "transcripts_text": "transcripts",
    "RolloutWorker": "worker",
}

__all__ = [
    "Assignment",
    "CollectEvent",
    "Collected",
    "DemonstrationSeat",
    "EpisodeRaised",
    "EpisodeSampler",
    "EpisodesDone",
    "Gate",
    "HarnessSeat",
    "Ledger",
    "LineUp",
    "PersonSeat",
    "PolicySeat",
    "Retries",
    "Rollout",
    "RolloutPlan",
    "RolloutWorker",
    "ScriptedSeat",
    "Seat",
    "Staleness",
    "WorkerBlocked",
    "WorkerLost",
    "cohorts_of",
    "collect",
    "collect_kept",
    "harness_of",
    "outcome",
    "plan_groups",
    "points",
    "policy_metrics",
    "rewards_vary",
    "rollout_metrics",
    "script",
    "scripted_agent",
    "seat_outcomes",
    "staleness",
    "transcript",
    "transcript_text",
    "transcripts_text",
]

__getattr__ = lazy_names(__name__, _HOMES)

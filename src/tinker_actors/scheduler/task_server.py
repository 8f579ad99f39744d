"""The task server: runs one job from its configuration to its summary, or takes it up where it stopped."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from tinker_actors.actors import Mesh
from tinker_actors.data import Episode, Task
from tinker_actors.policies import Retention, SnapshotStore
from tinker_actors.rollouts import transcript, transcript_text
from tinker_actors.scheduler.checks import check_job, pool_size
from tinker_actors.scheduler.company import Company
from tinker_actors.scheduler.config import RunConfig
from tinker_actors.scheduler.crew import WORKER_RESTARTS, Crew, nodes_of
from tinker_actors.scheduler.evaluation import Evaluation, evaluate
from tinker_actors.scheduler.fruitless import Fruitless
from tinker_actors.scheduler.line_ups import Players
from tinker_actors.scheduler.observer import Phase, RunObserver, RunSummary
from tinker_actors.scheduler.rl import Learner, StepResult
from tinker_actors.scheduler.run_folder import PolicyState, RunFolder, RunState, write_atomically
from tinker_actors.scheduler.stopping import StopRequest
from tinker_actors.scheduler.versions import Version
from tinker_actors.telemetry import JsonlWriter, plot_rewards, read_jsonl
from tinker_actors.training import TrainsPolicies

_PLOT_EVERY = 2.0  # seconds


async def run_job(
    config: RunConfig, folder: RunFolder, observer: RunObserver, stop: StopRequest | None = None
) -> RunSummary:
    """Run an RL job in its folder. A folder with a saved state goes on from there.

    Args:
        config: What to run.
        folder: Made by `RunFolder.create`, or that of an interrupted run.
        observer: Told what happens.
        stop: How it is asked to save and stop before its end.

    Raises:
        RunError: The run can't go on; its last saved step stays usable.
        ConfigError: The environment or model can't be loaded.
    """
    state = folder.load_state()
    environment = check_job(config, state)
    pool = pool_size(config, environment)
    nodes = nodes_of(config, pool)
    players = Players.of(config, environment.environment.seats)
    observer.started(players.title(config), folder.root, config.trainer.steps, state.step if state else 0)
    observer.phase(Phase.START, 0, 0)
    folder.sweep()
    folder.forget_after(state.step if state else -1)
    with JsonlWriter(folder.metrics) as metrics, JsonlWriter(folder.rollouts) as rollouts:
        async with Mesh(nodes=nodes, name=config.name, restart=WORKER_RESTARTS) as mesh:
            crew = await Crew.assemble(mesh, config, folder, observer, environment)
            async with crew.watched():
                summary = await _Job(crew, players, metrics, rollouts, stop or StopRequest()).run(state)
    observer.phase(Phase.END, summary.steps, config.trainer.steps)
    observer.finished(summary, folder.root)
    return summary


class _Job:
    """The course of one run."""

    def __init__(
        self, crew: Crew, players: Players, metrics: JsonlWriter, rollouts: JsonlWriter, stop: StopRequest
    ) -> None:
        self._crew = crew
        self._players = players
        self._metrics = metrics
        self._rollouts = rollouts
        self._stop = stop
        self._store = SnapshotStore(crew.folder.policies)
        self._began = time.monotonic()
        self._spent = 0.0
        self._plotted = 0.0
        self._shown: Task | None = None  # whose episode is shown before and after training
        self._fruitless = Fruitless()

    async def run(self, state: RunState | None) -> RunSummary:
        """From the start, or from a saved state, to the end."""
        first: Evaluation | None = None
        if state is None:
            company = await Company.begin(self._crew, self._players)
            state, first = await self._first_state(company)
        else:
            self._spent = state.seconds
            company = await Company.resume(self._crew, self._players, state)
        learner = Learner(self._crew, company)
        learner.saved = state.handles
        async with learner.ahead():
            state, evaluation = await self._steps(learner, company, state)
        if evaluation is None and state.step == 0:  # of nothing but evaluations: the first is the last
            evaluation = first
        if evaluation is None:
            evaluation = await self._evaluate(company, learner.version, state.step)
        example = evaluation.of_task(self._shown) if self._shown else evaluation.episodes[0]
        self._crew.observer.transcript("after", _text(example))
        return await self._finish(state, evaluation)

    async def _first_state(self, company: Company) -> tuple[RunState, Evaluation]:
        """Evaluate and save what RL begins with."""
        version = company.versions[0]
        evaluation = await self._evaluate(company, version, 0)
        example = evaluation.worst()
        self._shown = example.task
        self._crew.observer.transcript("before", _text(example))
        state = RunState(
            step=0,
            base_model=company.base_model,
            eval_before=evaluation.reward,
            seconds=0.0,
            versions=(version,),
            frozen=company.frozen,
        )
        return await self._save(company.trainer, 0, state, {}), evaluation

    async def _steps(self, learner: Learner, company: Company, state: RunState) -> tuple[RunState, Evaluation | None]:
        """Step after step; the state that was saved last, and the evaluation after the last step if it was due."""
        config = self._crew.config
        evaluation: Evaluation | None = None
        for step in range(state.step + 1, config.trainer.steps + 1):
            result = await learner.step(step)
            self._record(result)
            due = config.evaluation.every and step % config.evaluation.every == 0
            evaluation = await self._evaluate(company, result.version, step) if due else None
            reached = self._reached(evaluation)
            stopping = self._stop.asked
            if reached or stopping or step == config.trainer.steps or step % config.checkpoints.every == 0:
                state = await self._save(
                    company.trainer, step, replace(state, versions=learner.bound), learner.baselines
                )
                learner.saved = state.handles
            await self._plot_now_and_then()
            if reached:
                self._crew.observer.note(f"evaluation.stop_at is reached after step {step}: training ends here")
                break
            if stopping and step < config.trainer.steps:
                await self._stop.halt()
        return state, evaluation

    async def _evaluate(self, company: Company, version: Version, step: int) -> Evaluation:
        evaluation = await evaluate(self._crew, company.casting, version, step=step)
        self._metrics.write(
            {
                "step": step,
                "kind": "evaluation",
                "reward": evaluation.reward,
                "episodes": len(evaluation.episodes),
                "failed": evaluation.failed,
                "snapshots": dict(version.snapshots),
                "players": self._players.described(),
                **evaluation.metrics,
            }
        )
        return evaluation

    async def _save(
        self, trainer: TrainsPolicies, step: int, state: RunState, baselines: Mapping[str, Mapping[str, float]]
    ) -> RunState:
        config = self._crew.config
        self._crew.observer.phase(Phase.SAVE, step, config.trainer.steps)
        try:
            policies = {
                policy: PolicyState(
                    checkpoint=await trainer.save(policy, f"step-{step:06d}"), baselines=baselines.get(policy, {})
                )
                for policy in config.learners()
            }
            saved = replace(state, step=step, policies=policies, seconds=self._seconds())
            self._crew.folder.save_state(saved)
        except Exception as error:  # passed on, with what is safe
            if state.policies:
                error.add_note(
                    f"the state after step {step} could not be saved in {self._crew.folder.root}; that after step "
                    f"{state.step} is whole: --resume goes on from there"
                )
            raise
        for policy in policies:
            self._store.expire(policy, Retention(keep_last=config.checkpoints.keep), kind="weights")
        return saved

    def _record(self, result: StepResult) -> None:
        self._metrics.write({"step": result.step, "kind": "step", **result.metrics})
        valid = [episode for episode in result.episodes if not episode.end.is_error]
        failed = [episode for episode in result.episodes if episode.end.is_error]
        shown = valid[: self._crew.config.rollouts.transcripts_per_step]
        for episode in (*shown, *failed):
            self._rollouts.write(
                transcript(episode, trainer_steps=result.trainer_steps, advantages=result.advantages, step=result.step)
            )
        self._crew.observer.step(result.step, result.metrics)
        if word := self._fruitless.after(result.metrics):
            self._crew.observer.note(word)
        if valid:
            self._crew.observer.transcript("latest", _text(valid[0]))

    def _reached(self, evaluation: Evaluation | None) -> bool:
        target = self._crew.config.evaluation.stop_at
        return evaluation is not None and target is not None and evaluation.reward >= target

    async def _plot_now_and_then(self) -> None:
        """Draw the curve where the last drawing is some seconds old; it takes a while, and steps may be short."""
        if time.monotonic() - self._plotted > _PLOT_EVERY:
            await asyncio.to_thread(self._plot)
            self._plotted = time.monotonic()

    def _plot(self) -> None:
        records = read_jsonl(self._crew.folder.metrics)

        def curve(kind: str, key: str = "reward") -> list[tuple[int, float]]:
            return [(record["step"], record[key]) for record in records if record["kind"] == kind and key in record]

        several = list(self._crew.config.policies) if len(self._crew.config.policies) > 1 else []
        keys = {policy: f"policy/{policy}/reward" for policy in several}
        plot_rewards(
            self._crew.folder.plot,
            title=self._crew.config.name,
            rewards=curve("step"),
            evaluations=curve("evaluation"),
            policies={policy: (curve("step", key), curve("evaluation", key)) for policy, key in keys.items()},
        )

    async def _finish(self, state: RunState, evaluation: Evaluation) -> RunSummary:
        found = read_jsonl(self._crew.folder.metrics)
        records = [record for record in found if record["kind"] == "step"]
        none: dict[str, Any] = {}  # a resumed run whose first records are lost
        first = next((record for record in found if record["kind"] == "evaluation"), none)
        if (others := first.get("players")) and others != self._players.described():
            each = ", ".join(f"{seat} {player}" for seat, player in others.items())
            self._crew.observer.note(
                f"the evaluation before training was played by others ({each}): its numbers don't compare"
            )
        summary = RunSummary(
            reward_first=records[0]["reward"] if records else None,
            reward_last=records[-1]["reward"] if records else None,
            eval_before=state.eval_before,
            eval_after=evaluation.reward,
            steps=state.step,
            seconds=round(self._seconds(), 2),
            more_before={name: first[name] for name in evaluation.metrics if name in first},
            more_after=evaluation.metrics,
        )
        await asyncio.to_thread(self._plot)
        plain = {name: value for name, value in asdict(summary).items() if value != {}}
        write_atomically(self._crew.folder.summary, json.dumps(plain, indent=1) + "\n")
        return summary

    def _seconds(self) -> float:
        return self._spent + time.monotonic() - self._began


def _text(episode: Episode) -> str:
    return transcript_text(transcript(episode))

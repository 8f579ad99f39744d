"""A job on its own event loop: what its observer hears, and what happens when an actor of it fails."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from tinker_actors.errors import ConfigError, PolicyError, RunError
from tinker_actors.policies import SnapshotStore
from tinker_actors.scheduler import Phase, RunConfig, RunFolder, RunSummary, check_job, load_config, run_job
from tinker_actors.training.engine import TrainingEngine

SMALL = [
    *("--environment.name", "number_guess", "--warmup.method", "lora", "--warmup.steps", "2"),
    *("--warmup.episodes-per-step", "4", "--rollouts.tasks-per-step", "2", "--rollouts.group-size", "4"),
    *("--rollouts.max-tokens", "2", "--rollouts.workers", "0", "--trainer.steps", "2", "--trainer.threads", "1"),
    *("--evaluation.episodes", "4", "--evaluation.every", "1"),
]


class Recorder:
    """Remembers what a run told."""

    def __init__(self) -> None:
        self.phases: list[Phase] = []
        self.steps: dict[int, Mapping[str, float]] = {}
        self.evaluations: list[tuple[int, float]] = []
        self.transcripts: list[str] = []
        self.notes: list[str] = []
        self.summary: RunSummary | None = None

    def started(self, title: str, folder: Path, total: int, resumed_at: int, unit: str = "step") -> None: ...

    def phase(self, phase: Phase, step: int, total: int) -> None:
        if not self.phases or self.phases[-1] is not phase:
            self.phases.append(phase)

    def progress(self, done: int, total: int) -> None: ...

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        self.steps[step] = metrics

    def evaluated(self, step: int, reward: float, *more: object) -> None:
        self.evaluations.append((step, reward))

    def transcript(self, label: str, text: str) -> None:
        self.transcripts.append(label)

    def note(self, text: str) -> None:
        self.notes.append(text)

    def finished(self, summary: RunSummary, folder: Path) -> None:
        self.summary = summary


def small(tmp_path: Path, *overrides: str) -> RunConfig:
    return load_config(None, [*SMALL, "--output", str(tmp_path / "run"), *overrides])


async def test_phases_follow_each_other_and_every_step_is_told(tmp_path: Path):
    config, observer = small(tmp_path), Recorder()
    summary = await run_job(config, RunFolder.create(config), observer)
    step = [Phase.ROLLOUT, Phase.UPDATE, Phase.PUBLISH, Phase.EVALUATION]
    assert observer.phases == [
        *(Phase.START, Phase.WARMUP, Phase.EVALUATION, Phase.SAVE),
        *(*step, *step),
        *(Phase.SAVE, Phase.END),
    ]
    assert sorted(observer.steps) == [1, 2]
    assert [at for at, _ in observer.evaluations] == [0, 1, 2]
    assert observer.transcripts == ["before", "latest", "latest", "after"]
    assert summary == observer.summary
    assert (summary.eval_before, summary.eval_after) == (observer.evaluations[0][1], observer.evaluations[-1][1])
    assert (summary.reward_first, summary.reward_last) == (observer.steps[1]["reward"], observer.steps[2]["reward"])


async def test_rollouts_are_on_policy_and_their_ratio_is_one(tmp_path: Path):
    (tmp_path / "chance.py").write_text(
        "from tinker_actors import Environment, Step\n"
        "class Chance(Environment):\n"
        "    def reset(self, seed): return 'go'\n"
        "    def step(self, action):\n"
        "        return Step(observation='on', reward=self.rng.random(), terminated=len(action) > 1)\n"
        "    def demonstrate(self): return 'a'\n"
    )
    environment = ("--environment.name", str(tmp_path / "chance.py"), "--rollouts.temperature", "1.3")
    config, observer = small(tmp_path, *environment), Recorder()
    await run_job(config, RunFolder.create(config), observer)
    for metrics in observer.steps.values():
        assert metrics["train_tokens"] == metrics["action_tokens"]
        assert metrics["staleness_max"] == 0.0
        assert metrics["train_ratio_max"] == pytest.approx(1.0, abs=1e-5)
        assert metrics["train_ratio_min"] == pytest.approx(1.0, abs=1e-5)


async def test_training_ends_when_an_evaluation_reaches_its_goal(tmp_path: Path):
    config, observer = small(tmp_path, "--evaluation.stop-at", "-1.0"), Recorder()
    summary = await run_job(config, RunFolder.create(config), observer)
    assert summary.steps == 1
    assert any("stop_at" in note for note in observer.notes)


async def test_the_learning_rate_rises_over_its_warmup_and_stays_when_resumed(tmp_path: Path):
    config = small(tmp_path, "--trainer.warmup-steps", "4", "--trainer.learning-rate", "0.004")
    folder = RunFolder.create(config)
    await run_job(config, folder, Recorder())
    observer = Recorder()
    await run_job(folder.load_config(("--trainer.steps", "5")), folder, observer)
    assert [observer.steps[step]["learning_rate"] for step in (3, 4, 5)] == pytest.approx([0.003, 0.004, 0.004])


async def test_a_run_with_a_base_model_of_its_own_goes_on_after_its_folder_was_moved(tmp_path: Path):
    config = small(tmp_path, "--warmup.method", "full", "--trainer.steps", "1")
    await run_job(config, RunFolder.create(config), Recorder())
    moved = RunFolder((tmp_path / "run").rename(tmp_path / "elsewhere"))
    (before,) = SnapshotStore(moved.policies).list("policy")[-1:]
    assert before.base_model == str(moved.base)
    observer = Recorder()
    await run_job(moved.load_config(("--trainer.steps", "2")), moved, observer)
    assert sorted(observer.steps) == [2]
    assert SnapshotStore(moved.policies).latest("policy").number > before.number


async def test_a_run_of_no_steps_evaluates_once_and_again_when_it_is_taken_up(tmp_path: Path):
    config, observer = small(tmp_path, "--warmup.method", "none", "--trainer.steps", "0"), Recorder()
    folder = RunFolder.create(config)
    summary = await run_job(config, folder, observer)
    assert observer.evaluations == [(0, summary.eval_before)]
    assert summary.eval_after == summary.eval_before
    await run_job(config, folder, observer)
    assert observer.evaluations == [(0, summary.eval_before)] * 2


async def test_a_folder_in_which_a_run_goes_on_takes_no_second_one(tmp_path: Path):
    config = small(tmp_path, "--warmup.method", "none", "--trainer.steps", "0")
    folder = RunFolder.create(config)
    with folder.held():
        with pytest.raises(RunError, match=r"run folder .*run is in use by a run that goes on"):
            await run_job(config, RunFolder(folder.root), Recorder())
        assert [path.name for path in folder.root.iterdir()] == ["config.toml"]
    await run_job(config, RunFolder(folder.root), Recorder())


async def test_a_trainer_that_raises_ends_the_job_at_once_with_its_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    raised: list[float] = []

    def explode(*_args: object, **_kwargs: object) -> None:
        raised.append(time.monotonic())
        raise ZeroDivisionError("in the trainer")

    monkeypatch.setattr(TrainingEngine, "forward_backward_many", explode)
    config = small(tmp_path)
    began = time.monotonic()
    with pytest.raises(ZeroDivisionError, match="in the trainer"):
        await run_job(config, RunFolder.create(config), Recorder())
    assert time.monotonic() - raised[0] < max(5.0, raised[0] - began)  # where all takes longer, so may the end
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_an_update_that_blows_up_is_refused_with_the_policy_and_step(tmp_path: Path):
    config = small(tmp_path, "--warmup.learning-rate", "1e30", "--warmup.steps", "4")
    with pytest.raises(PolicyError, match=r"policy 'policy' at step \d"):
        await run_job(config, RunFolder.create(config), Recorder())


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["--environment.options", "{low = 9, high = 1}"], "low is 9 and high is 1"),
        (["--model.chat-template", "{{"], "template"),
    ],
)
def test_what_a_job_names_is_tried_before_it_starts(tmp_path: Path, overrides: list[str], message: str):
    with pytest.raises(ValueError, match=message):
        check_job(small(tmp_path, *overrides))


async def test_environments_of_a_run_live_in_the_processes_that_it_gives_them(tmp_path: Path):
    (tmp_path / "where.py").write_text(
        "import os\n"
        "from tinker_actors import Environment, Step\n"
        "class Where(Environment):\n"
        "    def reset(self, seed): return 'go'\n"
        "    def step(self, action): return Step(terminated=True, metrics={f'pid-{os.getpid()}': 1.0})\n"
    )
    config = small(
        tmp_path,
        *("--environment.name", str(tmp_path / "where.py"), "--environment.isolation", "process"),
        *("--environment.pool", "2", "--warmup.method", "none", "--trainer.steps", "1"),
    )
    observer = Recorder()
    await run_job(config, RunFolder.create(config), observer)
    pids = {name for name in observer.steps[1] if "pid-" in name}
    assert len(pids) == 2
    assert not any(name.endswith(f"pid-{os.getpid()}") for name in pids)


async def test_episodes_that_fail_are_played_again_as_often_as_configured_and_counted(tmp_path: Path):
    (tmp_path / "flaky.py").write_text(
        "from pathlib import Path\n"
        "from tinker_actors import Environment, Step\n"
        "class Flaky(Environment):\n"
        "    def reset(self, seed):\n"
        "        self.tried = Path(__file__).with_name(f'{seed}-{self.rng.random()}')\n"
        "        return 'go'\n"
        "    def step(self, action):\n"
        "        if not self.evaluating and not self.tried.exists():\n"
        "            self.tried.touch()\n"
        "            raise OSError('not yet')\n"
        "        return Step(terminated=True)\n"
    )
    for retries, failed in (("1", 0.0), ("0", 8.0)):
        config = small(
            tmp_path,
            *("--environment.name", str(tmp_path / "flaky.py"), "--warmup.method", "none", "--trainer.steps", "1"),
            *("--rollouts.failed-retries", retries, "--seed", retries, "--output", str(tmp_path / retries)),
        )
        observer = Recorder()
        run = run_job(config, RunFolder.create(config), observer)
        if failed:
            with pytest.raises(RunError, match=r"all 8 episodes of step 1 failed: flaky: .*OSError: not yet"):
                await run
        else:
            await run
            assert observer.steps[1]["retried"] == 8.0


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["--environment.pool", "2"], "environment.pool is 2, but environment.isolation of number_guess is 'inline'"),
        (["--environment.isolation", "inline", "--environment.name", "{folder}/waits.py"], "its methods block"),
    ],
)
def test_an_isolation_that_can_not_work_is_refused(tmp_path: Path, overrides: list[str], message: str):
    (tmp_path / "waits.py").write_text(
        "from tinker_actors import Environment, Step\n"
        "class Waits(Environment):\n"
        "    blocking = True\n"
        "    def reset(self, seed): return 'go'\n"
        "    def step(self, action): return Step(terminated=True)\n"
    )
    with pytest.raises(ConfigError, match=message):
        check_job(small(tmp_path, *(part.replace("{folder}", str(tmp_path)) for part in overrides)))


def test_a_warmup_without_demonstrations_is_refused(tmp_path: Path):
    (tmp_path / "mute.py").write_text(
        "from tinker_actors import Environment, Step\n"
        "class Mute(Environment):\n"
        "    def reset(self, seed): return 'go'\n"
        "    def step(self, action): return Step(terminated=True)\n"
    )
    with pytest.raises(ConfigError, match=r"has no demonstrate\(\)"):
        check_job(small(tmp_path, "--environment.name", str(tmp_path / "mute.py")))

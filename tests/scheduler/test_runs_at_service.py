"""Whole runs that train and sample at a service: the numbers of runs that do both themselves."""

from __future__ import annotations

import asyncio
import itertools
import json
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse
from tests.gateway.gateways import in_a_thread
from tests.scheduler.silent_observer import Silent

from tinker_actors.console.sample import sample_command
from tinker_actors.errors import ConfigError
from tinker_actors.gateway.caller import Caller
from tinker_actors.gateway.refusals import RefusalError
from tinker_actors.gateway.runtime import ServedModel
from tinker_actors.scheduler import RunFolder, check_job, load_config, run_job
from tinker_actors.telemetry import read_jsonl

pytest.importorskip("tinker")

pytestmark = pytest.mark.sdk

GAME = """
from tinker_actors import Environment, Step

class Early(Environment):
    def reset(self, seed): return "go"
    def step(self, action):
        return Step(reward=sum(letter in "abcdefgh" for letter in action) / 4, terminated=True)
    def demonstrate(self): return self.rng.choice(["ab", "xy"])
"""
SMALL = [
    *("--policy.rank", "4", "--warmup.method", "lora", "--warmup.steps", "2", "--warmup.episodes-per-step", "8"),
    *("--rollouts.tasks-per-step", "1", "--rollouts.group-size", "16", "--rollouts.max-tokens", "4"),
    *("--rollouts.workers", "0", "--trainer.steps", "6", "--trainer.learning-rate", "2e-2", "--trainer.threads", "1"),
    *("--evaluation.episodes", "4", "--evaluation.every", "0", "--checkpoints.every", "2"),
    *("--checkpoints.keep-snapshots", "1", "--checkpoints.keep", "1"),
]


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TINKER_API_KEY", "tml-none")


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, str]]:
    model = ServedModel(name="tiny-llama", sampler={"kv_memory": 2**24})
    with in_a_thread(tmp_path_factory.mktemp("service"), model) as gateway_and_url:
        yield gateway_and_url


def remote(url: str) -> list[str]:
    return ["--trainer.backend", "tinker", "--trainer.tinker.url", url, "--sampler.backend", "tinker"]


def configured(root: Path, name: str, *more: str) -> Any:
    game = root / "early.py"
    game.write_text(GAME)
    return load_config(None, [*SMALL, "--environment.name", str(game), "--output", str(root / name), *more])


class Stopped(Silent):
    """Ends the run in the middle of its work, as a kill would."""

    def __init__(self, *, after: int) -> None:
        super().__init__()
        self._after = after

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        super().step(step, metrics)
        if step == self._after:
            raise RuntimeError("killed")


def nobody(connection: HTTPConnection) -> Caller:
    raise RefusalError(401, "no such key", code="unauthorized")


async def play(config: Any, observer: Silent | None = None) -> Silent:
    observer = observer or Silent()
    folder = RunFolder(Path(config.output))
    await run_job(config, folder if folder.config.exists() else RunFolder.create(config), observer)  # type: ignore[arg-type]
    return observer


def stored(url: str) -> list[str]:
    """The paths of all that the service keeps."""
    answer = httpx.get(f"{url}/api/v1/checkpoints", params={"limit": 500}, headers={"X-API-Key": "tml-none"})
    return [checkpoint["tinker_path"] for checkpoint in answer.json()["checkpoints"]]


def told(step: Mapping[str, float]) -> dict[str, float]:
    """What a step's numbers say of learning, not of time."""
    return {name: value for name, value in step.items() if not name.startswith(("seconds", "at_", "tokens_per"))}


async def test_a_run_at_a_service_learns_as_one_that_trains_itself(
    tmp_path: Path, service: tuple[Any, str], capsys: pytest.CaptureFixture[str]
):
    _, url = service
    here = await play(configured(tmp_path, "here", "--kl.coefficient", "0.01"))
    there = await play(configured(tmp_path, "there", "--kl.coefficient", "0.01", *remote(url)))
    assert here.steps[-1]["reward"] > here.steps[0]["reward"] + 0.2
    for ours, theirs in zip(here.steps, there.steps, strict=True):
        assert told(theirs) == pytest.approx(told(ours), rel=5e-3, abs=1e-5)
    # and nothing else is left there than what is in the run's store
    kept = {
        json.loads(path.read_text())["path"] for path in (tmp_path / "there" / "policies").glob("*/*/*/service.json")
    }
    session = next(iter(kept)).split("/")[2].partition(":")[0]
    assert {path for path in stored(url) if session in path} == kept
    options = {"image": [], "samples": 2, "max_tokens": 4, "temperature": 0.0, "top_p": 1.0, "top_k": -1, "seed": 1}
    asked = Namespace(**options, run=str(tmp_path / "there"), prompt="go", snapshot=None, system=None)
    assert await asyncio.to_thread(sample_command, asked) == 0
    said = capsys.readouterr().out.split()
    assert len(said) == 2
    assert set(said[0]) <= set("abcdefgh")


async def test_a_run_that_stopped_goes_on_at_the_service_as_if_it_had_not(tmp_path: Path, service: tuple[Any, str]):
    _, url = service
    short = ("--trainer.steps", "4", *remote(url))
    whole = await play(configured(tmp_path, "whole", *short))
    stopped = Stopped(after=3)
    with pytest.raises(RuntimeError, match="killed"):
        await play(configured(tmp_path, "parts", *short), observer=stopped)
    rest = await play(configured(tmp_path, "parts", *short))
    assert len(rest.steps) == 2  # the state after step 2 was the last one
    for ours, theirs in zip(whole.steps, [*stopped.steps[:2], *rest.steps], strict=True):
        assert told(theirs) == pytest.approx(told(ours), rel=5e-3, abs=1e-5)
    written = [record["step"] for record in read_jsonl(tmp_path / "parts/metrics.jsonl") if record["kind"] == "step"]
    assert written == [1, 2, 3, 4]


class Faulty:
    """Fails every third request of a kind: by turns in place of the answer to it, and before the service sees it."""

    def __init__(self, app: Any) -> None:
        self._app, self._statuses = app, itertools.cycle((429, 503, 500, 502, 408))
        self._asked: Counter[str] = Counter()
        self.failed: set[str] = set()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        route = scope["path"].removeprefix("/api/v1/").partition("/")[0]
        self._asked[route] += 1
        if self._asked[route] % 3:
            await self._app(scope, receive, send)
            return
        self.failed.add(route)
        if self._asked[route] % 2:
            await self._app(scope, receive, unheard)
        await JSONResponse({"detail": "a fault"}, next(self._statuses), {"retry-after-ms": "10"})(scope, receive, send)


async def unheard(message: Any) -> None: ...


async def test_a_run_at_a_service_that_often_fails_learns_what_it_learns_at_one_that_never_does(
    tmp_path: Path, service: tuple[Any, str]
):
    short = ("--trainer.steps", "2", "--rollouts.group-size", "8", "--evaluation.episodes", "2")
    whole = await play(configured(tmp_path, "whole", *short, *remote(service[1])))
    faulty: list[Faulty] = []

    def around(app: Any) -> Faulty:
        faulty.append(Faulty(app))
        return faulty[0]

    model = ServedModel(name="tiny-llama", sampler={"kv_memory": 2**24})
    with in_a_thread(tmp_path / "faulty", model, around=around) as (_, url):
        parts = await play(configured(tmp_path, "parts", *short, *remote(url)))
    for ours, theirs in zip(whole.steps, parts.steps, strict=True):
        assert told(theirs) == pytest.approx(told(ours), rel=5e-3, abs=1e-5)
    assert {"asample", "forward_backward", "optim_step", "retrieve_future"} <= faulty[0].failed


async def test_written_conversations_are_learned_at_a_service_as_here(tmp_path: Path, service: tuple[Any, str]):
    _, url = service
    data = tmp_path / "data.jsonl"
    rows = [[("user", f"say {word}"), ("assistant", word)] for word in ("one", "twofold", "three", "four", "a fifth")]
    data.write_text(
        "".join(
            json.dumps({"messages": [{"role": role, "content": text} for role, text in row]}) + "\n" for row in rows
        )
    )
    small = [
        *("--job", "sft", "--data.train", str(data), "--data.holdout", "0.2", "--batch.examples", "2"),
        *("--trainer.learning-rate", "1e-2", "--trainer.threads", "1", "--policy.targets", '["attention"]'),
        *("--trainer.epochs", "2", "--checkpoints.every", "2"),
    ]
    place = ["--trainer.backend", "tinker", "--trainer.tinker.url", url]
    found: list[Silent] = []
    for name, more in (("here", []), ("there", place)):
        found.append(await play(load_config(None, [*small, *more, "--output", str(tmp_path / name)])))
    here, there = found
    assert len(here.steps) == 4
    for ours, theirs in zip(here.steps, there.steps, strict=True):
        assert told(theirs) == pytest.approx(told(ours), rel=1e-4)
    summaries = [json.loads((tmp_path / name / "summary.json").read_text()) for name in ("here", "there")]
    assert summaries[1]["eval_after"] == pytest.approx(summaries[0]["eval_after"], rel=1e-4)
    assert summaries[0]["eval_after"] < summaries[0]["eval_before"]
    # and it goes on from what lies there
    longer = load_config(None, [*small, *place, "--output", str(tmp_path / "there"), "--trainer.epochs", "3"])
    assert len((await play(longer)).steps) == 2


def test_a_service_that_can_not_train_is_refused_in_one_line_before_anything_begins(
    tmp_path: Path, service: tuple[Any, str], monkeypatch: pytest.MonkeyPatch
):
    _, url = service
    for address, more, said in (
        ("http://127.0.0.1:1", (), "the Tinker service at http://127.0.0.1:1 can't be reached: "),
        (url, ("--model.name", "tiny-qwen3"), "has no base model 'tiny-qwen3', but tiny-llama; base_model says"),
        (f"{url}/dashboard", (), "is no Tinker service: "),
    ):
        with pytest.raises(ConfigError) as caught:
            check_job(configured(tmp_path, "run", *remote(address), *more))
        assert said in str(caught.value)
        assert "\n" not in str(caught.value)
    check_job(configured(tmp_path, "run", *remote(url)))
    with (
        in_a_thread(tmp_path / "keyed", ServedModel(name="tiny-llama"), admit=nobody) as (_, keyed),
        pytest.raises(ConfigError, match=r"refuses the key in TINKER_API_KEY \(401\)"),
    ):
        check_job(configured(tmp_path, "run", *remote(keyed)))
    monkeypatch.delenv("TINKER_API_KEY")
    with pytest.raises(ConfigError, match="'TINKER_API_KEY', which is not set"):
        check_job(configured(tmp_path, "run", *remote(url)))
    assert not (tmp_path / "run").exists()

"""Inference as a job: every prompt gets its replies, once, whatever interrupts it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tests.scheduler.sft_material import write

from tinker_actors.errors import ConfigError, DataError
from tinker_actors.models import load_tokenizer
from tinker_actors.scheduler import InferenceConfig, InferenceSummary, Phase, RunFolder, load_config, run_job
from tinker_actors.scheduler.demand import kind_of, need_of
from tinker_actors.scheduler.states import JobKind
from tinker_actors.scheduler.stopping import StopRequest

ROWS: list[Any] = [
    {"prompt": "one"},
    {"messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "two"}]},
    {"text": "three "},
    {"tokens": [5, 6, 7]},
    {"text": "x" * 2000},
    {"prompt": "six"},
    {"prompt": "seven"},
]


class Watching:
    """Stops or kills the run once so many prompts are answered."""

    def __init__(self, at: int = -1, stop: StopRequest | None = None) -> None:
        self._at, self._stop = at, stop

    def phase(self, phase: Phase, step: int, total: int) -> None:
        if phase is Phase.SAMPLE and step == self._at and self._stop is not None:
            self._stop.ask()

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


def made(root: Path, output: str, *overrides: str, rows: list[Any] = ROWS) -> InferenceConfig:
    path = write(root / "prompts.jsonl", rows)
    settings = (
        *("--job", "inference", "--model.name", "tiny-llama", "--model.context-length", "256"),
        *("--data.prompts", str(path), "--sampling.max-tokens", "3", "--sampling.at-once", "2"),
        *("--sampling.samples", "2", "--sampling.threads", "1", "--output", str(root / output)),
    )
    config = load_config(None, [*settings, *overrides])
    assert isinstance(config, InferenceConfig)
    return config


async def run(config: InferenceConfig, observer: Any = None, stop: StopRequest | None = None) -> RunFolder:
    folder = RunFolder(Path(config.output or ""))
    if not folder.config.exists():
        folder = RunFolder.create(config)
    await asyncio.create_task(run_job(config, folder, observer or Watching(), stop))
    return folder


def replies(folder: RunFolder) -> list[dict[str, Any]]:
    return [json.loads(line) for line in folder.replies.read_text().splitlines()]


async def test_every_prompt_gets_its_replies_with_tokens_and_logprobs_in_order(tmp_path: Path):
    config = made(tmp_path, "whole")
    folder = await run(config)
    found = replies(folder)
    assert [record["row"] for record in found] == list(range(len(ROWS)))
    assert "2000" in found[4]["error"] or "context" in found[4]["error"]
    assert found[3]["prompt"] == [5, 6, 7]
    for record in found[:4] + found[5:]:
        assert len(record["replies"]) == 2
        for reply in record["replies"]:
            assert 1 <= len(reply["tokens"]) == len(reply["logprobs"]) <= 3
            assert reply["end"] in ("stop", "length")
    summary = InferenceSummary(**json.loads(folder.summary.read_text()))
    assert (summary.prompts, summary.failed, summary.samples) == (7, 1, 12)
    assert (kind_of(config), need_of(config).cpu_workers) == (JobKind.INFERENCE, 1)


async def test_replies_to_messages_end_where_the_template_ends_a_turn(tmp_path: Path):
    template = "{% for m in messages %}{{ m.content }}{% if m.role == 'assistant' %}e{% endif %}{% endfor %}"
    chat, plain = [{"prompt": "one"}] * 4, [{"text": "one"}] * 4  # the same tokens
    changes = ("--model.chat-template", template, "--sampling.max-tokens", "120")
    found = replies(await run(made(tmp_path, "ends", *changes, rows=[*chat, *plain])))
    assert found[0]["prompt"] == found[4]["prompt"]
    (end,) = load_tokenizer("tiny-llama").encode("e")
    turns, texts = ([reply for record in part for reply in record["replies"]] for part in (found[:4], found[4:]))
    assert any(reply["tokens"][-1] == end for reply in turns)
    assert not any(end in reply["tokens"][:-1] or "e" in reply["text"] for reply in turns)
    assert any(end in reply["tokens"][:-1] for reply in texts)


@pytest.mark.parametrize("how", ["asked to stop", "killed within a line"])
async def test_an_interrupted_run_ends_with_what_an_uninterrupted_one_has(tmp_path: Path, how: str):
    whole = replies(await run(made(tmp_path, "whole")))
    config = made(tmp_path, "parts")
    if how == "asked to stop":
        stop = StopRequest()
        with pytest.raises(asyncio.CancelledError):
            await run(config, Watching(4, stop), stop)
        folder = RunFolder(tmp_path / "parts")
        assert stop.heeded
        assert len(replies(folder)) == 4
    else:
        folder = await run(config)
        lines = folder.replies.read_bytes().splitlines(keepends=True)
        folder.replies.write_bytes(b"".join(lines[:3]) + lines[3][:20])
    folder = await run(config)
    assert replies(folder) == whole


async def test_a_snapshot_of_another_run_answers_and_is_kept_to(tmp_path: Path):
    first = await run(made(tmp_path, "first"))  # its store holds a snapshot
    store = ("--sampling.store", str(first.policies), "--sampling.snapshot", "latest", "--sampling.policy", "base")
    second = await run(made(tmp_path, "second", *store))
    assert [r.get("replies") for r in replies(second)] == [r.get("replies") for r in replies(first)]
    whole_run = ("--sampling.store", str(first.root), *store[2:])
    with pytest.raises(ConfigError, match=r"policies there: policies; the store of that run is .*first/policies"):
        await run(made(tmp_path, "third", *whole_run))
    with pytest.raises(ConfigError, match="it would go on with"):
        await run(made(tmp_path, "second", *store, rows=[*ROWS, {"prompt": "more"}]))


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        (("--sampling.snapshot", "latest"), "both are needed"),
        (("--sampling.snapshot", "x", "--sampling.store", "s"), "no 'latest' or handle"),
        (("--sampling.top-k", "0"), "top_k is 0"),
        (("--trainer.steps", "3"), "unknown key trainer"),
    ],
)
def test_what_cannot_work_is_refused_by_its_key(tmp_path: Path, overrides: tuple[str, ...], named: str):
    with pytest.raises(ConfigError) as caught:
        made(tmp_path, "x", *overrides)
    assert named in str(caught.value)


HALF = "\ud83d"  # of a surrogate pair


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "a", "text": "b"},
        {},
        [1],
        {"tokens": [-1]},
        {"messages": []},
        {"text": HALF},
        {"prompt": f"a {HALF}"},
    ],
)
async def test_a_row_that_is_no_prompt_is_named(tmp_path: Path, row: Any):
    with pytest.raises(DataError, match=r"prompts\.jsonl:2"):
        await run(made(tmp_path, "bad", rows=[ROWS[0], row]))


async def test_messages_that_the_template_refuses_are_named_by_their_row(tmp_path: Path):
    template = (
        "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}{{ messages[0].content }}"
    )
    with pytest.raises(DataError, match=r"prompts\.jsonl:2: .*no system"):
        await run(made(tmp_path, "bad", "--model.chat-template", template, rows=ROWS[:2]))

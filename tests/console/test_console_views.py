"""Curves, log lines, the live screen and the report."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from tinker_actors.console.curve import draw_curve
from tinker_actors.console.live import LiveView
from tinker_actors.console.plain import PlainView
from tinker_actors.console.shown import policy_rows, step_line, step_numbers
from tinker_actors.scheduler.observer import Phase, RunObserver, RunSummary, SftSummary

METRICS = {"reward": 0.5, "tokens_per_second": 1234.0, "grad_norm": 0.25, "kl": 0.001, "seconds": 0.4}
SUMMARY = RunSummary(reward_first=0.4, reward_last=0.9, eval_before=0.45, eval_after=0.98, steps=2, seconds=12.3)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=300), st.integers(12, 120), st.integers(2, 12))
def test_a_curve_has_the_asked_size_and_names_its_range(values: list[float], width: int, height: int):
    rows = draw_curve(values, width=width, height=height)
    assert len(rows) == height
    assert len({len(row) for row in rows}) == 1
    assert rows[0].lstrip().startswith(f"{max(values):.2f} ┤")
    assert rows[-1].lstrip().startswith(f"{min(values):.2f} ┤")


def test_a_rising_curve_rises():
    rows = draw_curve([0.0, 0.5, 1.0], width=9, height=3)
    heights = [sum(row[column] != " " for row in rows) for column in range(6, 9)]
    assert heights == [1, 2, 3]


def test_no_values_draw_nothing():
    assert draw_curve([], width=40, height=4) == []


def play(view: RunObserver, folder: Path) -> None:
    view.started("demo", folder, 2, 0)
    view.phase(Phase.WARMUP, 1, 40)
    view.transcript("before", "user: guess\nassistant: [bold]7")
    view.evaluated(0, 0.45)
    for step in (1, 2):
        view.phase(Phase.ROLLOUT, step, 2)
        view.progress(3, 8)
        view.step(step, METRICS)
    view.note("worker 1 died and was started again")
    view.transcript("after", "user: guess\nassistant: 4")
    view.finished(SUMMARY, folder)


@pytest.mark.parametrize("kind", [PlainView, LiveView])
def test_a_run_shows_its_steps_notes_transcripts_and_files(kind: type[PlainView | LiveView], tmp_path: Path):
    (tmp_path / "metrics.jsonl").write_text("")
    console = Console(file=io.StringIO(), width=100, force_terminal=kind is LiveView)
    view = kind(console)
    if isinstance(view, LiveView):
        with view:
            play(view, tmp_path)
    else:
        play(view, tmp_path)
    output = console.file.getvalue()  # type: ignore[attr-defined]
    assert "assistant: [bold]7" in output
    assert "metrics.jsonl" in output
    assert "tinker-actors sample" in output
    if kind is PlainView:
        assert "step 2/2  reward 0.500  tokens/s 1234" in output
        assert "note: worker 1 died" in output
        assert "\x1b" not in output


def test_the_live_screen_holds_phase_step_curve_numbers_and_transcript(tmp_path: Path):
    view = LiveView(Console(file=io.StringIO(), width=90))
    view.started("demo", tmp_path, 60, 0)
    view.transcript("step", "user: guess\nassistant: 4")
    view.step(3, METRICS)
    view.step(4, METRICS | {"reward": 0.75})
    view.note("a worker died")
    view.phase(Phase.ROLLOUT, 5, 60)
    view.progress(10, 208)
    console = Console(file=io.StringIO(), width=90)
    console.print(view._render())
    screen = console.file.getvalue()  # type: ignore[attr-defined]
    for text in ("rollout 5/60", "episodes 10/208", "step 4/60", "0.75 ┤", "1234", "assistant: 4", "a worker died"):
        assert text in screen


@pytest.mark.parametrize("kind", [PlainView, LiveView])
def test_a_supervised_run_shows_its_losses_and_what_was_left_out(kind: type[PlainView | LiveView], tmp_path: Path):
    console = Console(file=io.StringIO(), width=100, force_terminal=kind is LiveView)
    view = kind(console)
    view.started("demo", tmp_path, 2, 0)
    view.evaluated(0, 4.9, "loss")
    for step in (1, 2):
        view.step(step, {"loss": 3.0 / step, "tokens_per_second": 99.0, "grad_norm": 1.0, "epoch": 0.5, "seconds": 0.1})
    best = "tinker://policy/sampler_weights/000002"
    losses = {"loss_first": 3.0, "loss_last": 1.5, "eval_before": 4.9, "eval_after": 1.7, "eval_best": 1.6}
    view.finished(SftSummary(**losses, best=best, steps=2, examples=32, tokens=99, skipped=3, seconds=1.0), tmp_path)
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    for shown in ("Loss per token by step", best, "32 examples, 99 tokens trained on, 3 lines left out"):
        assert shown in text
    assert "4.900" in text
    assert kind is LiveView or "step 2/2  loss 1.500  tokens/s 99  grad 1  epoch 0.50" in text


def two(first: float, second: float) -> dict[str, float]:
    """A step of two policies that play against each other."""
    games = {"win": 0.25, "draw": 0.25, "loss": 0.5}
    own = {
        f"policy/first/{name}": value for name, value in {"reward": first, "grad_norm": 0.1, "kl": 0.0, **games}.items()
    }
    other = {f"policy/second/{name}": value for name, value in {"reward": second, "grad_norm": 0.2, "kl": 0.0}.items()}
    return {**METRICS, **own, **other}


@pytest.mark.parametrize("kind", [PlainView, LiveView])
def test_each_of_several_policies_has_numbers_and_a_curve_of_its_own(kind: type[PlainView | LiveView], tmp_path: Path):
    console = Console(file=io.StringIO(), width=100, force_terminal=kind is LiveView)
    view = kind(console)
    view.started("demo (x policy first, o policy second)", tmp_path, 2, 0)
    evaluated = {
        "policy/first/reward": -0.5,
        "policy/second/reward": 0.5,
        "win/x": 0.25,
        "draw/x": 0.0,
        "loss/x": 0.75,
    }
    view.step(1, two(0.3, -0.3))
    view.step(2, two(0.4, -0.4))
    view.evaluated(2, 0.0, "reward", evaluated)
    if isinstance(view, LiveView):
        console.print(view._render())
        screen = console.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]
        assert "mean episode reward of first" in screen
        assert "mean episode reward of second" in screen
        assert re.search(r"first +0.400 +25 % won, 25 % drawn, 50 % lost +0.1", screen)
        assert re.search(r"second +-0.400 +0.2", screen)
        assert "evaluation: x 25 % won, 0 % drawn, 75 % lost" in screen
    summary = RunSummary(
        reward_first=0.0,
        reward_last=0.0,
        eval_before=0.0,
        eval_after=0.0,
        steps=2,
        seconds=1.0,
        more_before={**evaluated, "win/x": 0.0, "loss/x": 0.0, "draw/x": 1.0},
        more_after=evaluated,
    )
    view.finished(summary, tmp_path)
    shown = console.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]
    if isinstance(view, PlainView):
        assert "step 2/2  reward first 0.400, second -0.400  tokens/s" in shown
        assert "evaluation after step 2: reward 0.000; first -0.500; second 0.500; x 25 % won, 0 % drawn" in shown
        assert "games of x: no game was decided before; 25 % won, 0 % drawn, 75 % lost after" in shown
    assert "Mean episode reward of second by step" in shown


@pytest.mark.parametrize("kind", [PlainView, LiveView])
def test_a_run_that_answers_prompts_counts_prompts(kind: type[PlainView | LiveView], tmp_path: Path):
    console = Console(file=io.StringIO(), width=100, force_terminal=kind is LiveView)
    view = kind(console)
    view.started("answers", tmp_path, 7, 2, "prompt")
    view.phase(Phase.SAMPLE, 3, 7)
    if isinstance(view, LiveView):
        console.print(view._render())
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    for shown in ("7 prompts in", "going on after prompt 2") if kind is PlainView else ("prompt 3/7",):
        assert shown in text
    assert "step" not in text


@pytest.mark.parametrize(
    ("kl", "shown"), [(1.3e-13, "0"), (-4e-12, "0"), (0.0, "0"), (2.4e-9, "2.4e-09"), (0.0123, "0.012"), (-0.2, "-0.2")]
)
def test_a_kl_that_is_rounding_noise_reads_as_nought(kl: float, shown: str):
    own = {f"policy/{name}/{key}": value for name in ("a", "b") for key, value in {"reward": 0.5, "kl": kl}.items()}
    metrics = {**METRICS, **own, "kl": kl}
    assert f"kl {shown}  " in step_line(metrics)
    assert step_numbers(metrics, [])["kl"] == shown
    assert [row["kl"] for row in policy_rows(metrics)] == [shown, shown]

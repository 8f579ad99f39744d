"""What a finished run shows: transcripts before and after, the curve, and where everything was written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from textwrap import indent

from rich.console import Console
from rich.text import Text

from tinker_actors.console.curve import draw_curve
from tinker_actors.console.shown import by_policy, counted, outcomes
from tinker_actors.scheduler.observer import InferenceSummary, RunSummary, SftSummary, Summary


def print_report(
    console: Console,
    summary: Summary,
    folder: Path,
    values: Mapping[str, Sequence[float]],
    transcripts: Mapping[str, str],
) -> None:
    """Print a finished run's report.

    Args:
        console: Where to.
        summary: The result.
        folder: The run folder.
        values: What is drawn, a number per step, by the titles of the curves.
        transcripts: Episodes by label; "before" and "after" are shown.
    """
    for label in ("before", "after"):
        if label in transcripts:
            console.print(Text(f"\nAn episode {label} training", style="bold"))
            console.print(Text(indent(transcripts[label], "  ")), soft_wrap=True)
    for title, curve in values.items():
        console.print(Text(f"\n{title[0].upper()}{title[1:]} by step", style="bold"))
        for row in draw_curve(curve, width=min(console.width, 80), height=8 if len(values) == 1 else 5):
            console.print(Text(row), soft_wrap=True)
    console.print()
    for line in _result(summary):
        console.print(line, soft_wrap=True)
    console.print(Text(f"\nWritten to {folder}:"), soft_wrap=True)
    for path in sorted(folder.iterdir()):
        if not path.name.startswith("."):
            console.print(Text(f"  {path.name}{'/' if path.is_dir() else ''}"), soft_wrap=True)
    if not isinstance(summary, InferenceSummary):
        console.print(Text(f"\nTalk to the policy: tinker-actors sample {folder} --prompt '...'"), soft_wrap=True)


def _result(summary: Summary) -> Iterator[Text]:
    if isinstance(summary, InferenceSummary):
        failed = f", {summary.failed} of them without a reply" if summary.failed else ""
        yield Text(
            f"{counted(summary.prompts, 'prompt')}{failed}, {counted(summary.samples, 'reply')} by {summary.snapshot}"
        )
        yield Text(f"{counted(summary.tokens, 'token')} in {summary.seconds:.1f} s")
        return
    yield from _losses(summary) if isinstance(summary, SftSummary) else _rewards(summary)
    yield Text(f"{counted(summary.steps, 'step')} in {summary.seconds:.1f} s")


def _rewards(summary: RunSummary) -> Iterator[Text]:
    yield _before_and_after("evaluation ", summary.eval_before, summary.eval_after)
    if summary.reward_first is not None and summary.reward_last is not None:
        yield Text(f"reward      {summary.reward_first:.3f} at the first step, {summary.reward_last:.3f} at the last")
    before, after = by_policy(summary.more_before), by_policy(summary.more_after)
    for policy in before if len(before) > 1 else ():
        yield _before_and_after(f"  {policy}  ", before[policy]["reward"], after[policy]["reward"])
    games = outcomes(summary.more_before), outcomes(summary.more_after)
    for seat in dict.fromkeys((*games[0], *games[1])):
        was, now = (each.get(seat, "no game was decided") for each in games)
        yield Text(f"  games of {seat}: {was} before; {now} after")


def _losses(summary: SftSummary) -> Iterator[Text]:
    if summary.eval_before is not None and summary.eval_after is not None:
        yield _before_and_after("evaluation loss ", summary.eval_before, summary.eval_after)
        yield Text(f"best             {summary.eval_best:.3f}, kept as {summary.best}")
    if summary.loss_first is not None and summary.loss_last is not None:
        yield Text(f"training loss    {summary.loss_first:.3f} at the first step, {summary.loss_last:.3f} at the last")
    left_out = f", {counted(summary.skipped, 'line')} left out" if summary.skipped else ""
    yield Text(f"{counted(summary.examples, 'example')}, {counted(summary.tokens, 'token')} trained on{left_out}")


def _before_and_after(name: str, before: float, after: float) -> Text:
    return Text.assemble(f"{name} ", (f"{before:.3f}", "bold"), " before, ", (f"{after:.3f}", "bold green"), " after")

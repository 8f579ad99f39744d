"""What a finished run shows: transcripts before and after, the curve, and where everything was written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import indent

from rich.console import Console
from rich.text import Text

from tinker_actors.console.curve import draw_curve
from tinker_actors.scheduler.observer import RunSummary


def print_report(
    console: Console, summary: RunSummary, folder: Path, rewards: Sequence[float], transcripts: Mapping[str, str]
) -> None:
    """Print a finished run's report.

    Args:
        console: Where to.
        summary: The result.
        folder: The run folder.
        rewards: Mean episode reward per step.
        transcripts: Episodes by label; "before" and "after" are shown.
    """
    for label in ("before", "after"):
        if label in transcripts:
            console.print(Text(f"\nAn episode {label} training", style="bold"))
            console.print(Text(indent(transcripts[label], "  ")), soft_wrap=True)
    if rewards:
        console.print(Text("\nMean episode reward by step", style="bold"))
        for row in draw_curve(rewards, width=min(console.width, 80), height=8):
            console.print(Text(row), soft_wrap=True)
    console.print()
    console.print(Text.assemble("evaluation  ", (f"{summary.eval_before:.3f}", "bold"), " before, ",
                                (f"{summary.eval_after:.3f}", "bold green"), " after"))  # fmt: skip
    if summary.reward_first is not None and summary.reward_last is not None:
        console.print(
            Text(f"reward      {summary.reward_first:.3f} at the first step, {summary.reward_last:.3f} at the last")
        )
    console.print(Text(f"{summary.steps} steps in {summary.seconds:.1f} s"))
    console.print(Text(f"\nWritten to {folder}:"), soft_wrap=True)
    for path in sorted(folder.iterdir()):
        if not path.name.startswith("."):
            console.print(Text(f"  {path.name}{'/' if path.is_dir() else ''}"), soft_wrap=True)
    console.print(Text(f"\nTalk to the policy: tinker-actors sample {folder} --prompt '...'"), soft_wrap=True)

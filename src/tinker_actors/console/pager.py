"""Pages through episodes in a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from rich.console import Console
from rich.segment import Segment
from rich.text import Text

from tinker_actors.console.colouring import COLOURINGS
from tinker_actors.console.episode_view import Look, episode_view
from tinker_actors.console.keys import Keys

_HELP = (
    ("n p", "episode"),
    ("s", "seat"),
    ("c", "colours"),
    ("v", "values"),
    ("j k space b", "scroll"),
    ("q", "quit"),
)


class Pager:
    """Which episode is shown, how, and from which line on; `press` changes it, `draw` shows it.

    Args:
        console: The terminal.
        records: The episodes.
        look: How they are shown at first.
    """

    def __init__(self, console: Console, records: Sequence[Mapping[str, Any]], look: Look) -> None:
        self._console = console
        self._records = records
        self._seats = look.seats
        self._look = look
        self._at = self._top = 0
        self._lines: list[list[Segment]] = []

    def run(self) -> None:
        """Show episodes until `q`, the end of input, or Ctrl-C."""
        with self._console.screen(hide_cursor=True), Keys.pressed() as keys:
            self.draw()
            while (key := keys.next()) is not None and self.press(key):
                self.draw()

    def press(self, key: str) -> bool:
        """Do what a key asks for; False if that is to leave."""
        page = max(self._console.height - 3, 1)
        match key:
            case "q":
                return False
            case "n" | "right" | "\n":
                self._go(1)
            case "p" | "left":
                self._go(-1)
            case "s" | "\t":
                self._next_seat()
            case "c":
                at = COLOURINGS.index(self._look.colouring)
                self._look = replace(self._look, colouring=COLOURINGS[(at + 1) % len(COLOURINGS)])
            case "v":
                self._look = replace(self._look, values=not self._look.values)
            case "j" | "down":
                self._top += 1
            case "k" | "up":
                self._top -= 1
            case " " | "page down":
                self._top += page
            case "b" | "page up":
                self._top -= page
            case "g" | "home":
                self._top = 0
            case "G" | "end":
                self._top = len(self._lines)
            case _:
                pass
        return True

    def draw(self) -> None:
        """Show the present page and the line of keys below it."""
        console, height = self._console, max(self._console.height - 1, 1)
        options = console.options.update(width=console.width, height=None)
        self._lines = [
            line
            for block in episode_view(self._records[self._at], self._look)
            for line in console.render_lines(block, options, pad=True)
        ]
        self._top = max(0, min(self._top, len(self._lines) - height))
        shown = self._lines[self._top : self._top + height]
        shown += [[Segment(" " * console.width)]] * (height - len(shown))
        with console:  # one write: no flicker
            console.control(_home())
            for line in shown:
                console.print(_Line([*line, Segment.line()]), end="")
            console.print(self._status(height), end="", no_wrap=True, overflow="crop", crop=True)

    def _go(self, by: int) -> None:
        self._at = max(0, min(self._at + by, len(self._records) - 1))
        self._top = 0

    def _next_seat(self) -> None:
        names = self._seats or tuple(seat["seat"] for seat in self._records[self._at]["seats"])
        choices: list[tuple[str, ...] | None] = [self._seats, *((name,) for name in names)]
        at = choices.index(self._look.seats) if self._look.seats in choices else -1
        self._look = replace(self._look, seats=choices[(at + 1) % len(choices)])
        self._top = 0

    def _status(self, height: int) -> Text:
        below = len(self._lines) - self._top - height
        where = f" {self._at + 1}/{len(self._records)} " + (f"{below} more below " if below > 0 else "")
        text = Text(where, style="reverse")
        for keys, what in _HELP:
            text.append(f" {keys} ", "bold reverse").append(f"{what} ", "reverse")
        text.truncate(self._console.width)
        text.pad_right(max(self._console.width - text.cell_len, 0))
        text.stylize("reverse")
        return text


class _Line:
    """Segments that are printed as they are."""

    def __init__(self, segments: Sequence[Segment]) -> None:
        self._segments = segments

    def __rich_console__(self, *_: object) -> Sequence[Segment]:
        return self._segments


def _home() -> Any:
    from rich.control import Control

    return Control.home()

"""Where calls in plain text end, whatever brackets and quotes are open in them, and how long finding that takes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinker_actors.environments.tools import PlainFormat, Toolbox
from tinker_actors.environments.tools.closings import Closings


def move(steps: int, where: str = "up") -> str:
    return f"{steps} {where}"


def lines_run(call: Callable[[], object]) -> int:
    """How many lines of Python a call takes."""
    count = 0

    def traced(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        count += event == "line"
        return traced

    before = sys.gettrace()
    sys.settrace(traced)
    try:
        call()
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("text", ["move({})", "{}"])
@pytest.mark.parametrize("piece", ["[,", "move(", "move((),", "',"])
def test_twice_as_many_open_brackets_take_twice_as_long(text: str, piece: str):
    form, tools = PlainFormat("{name}({arguments})"), Toolbox([move]).tools
    few, many = (lines_run(lambda: form.read(text.format(piece * size), tools)) for size in (100, 200))  # noqa: B023
    assert many < 2.5 * few


@given(st.text("([{}])'\"\\,a", max_size=12), st.sampled_from([",", ")", "))", "'", "]a"]))
def test_every_place_has_the_end_that_a_look_from_there_alone_finds(text: str, close: str):
    closings = Closings(text, close)
    together = [closings.after(place) for place in range(len(text))]
    assert together == [Closings(text, close).after(place) for place in range(len(text))]

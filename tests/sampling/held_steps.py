"""Samplers of this process held up on purpose, so that no request is over before a test has done what it is to see.

A tiny model can end hundreds of tokens before a busy machine lets the test go on.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Mapping
from typing import Any

import pytest

from tinker_actors.sampling.engine import Engine
from tinker_actors.sampling.step import Steps


def hold_steps(patch: pytest.MonkeyPatch, at: Mapping[int, threading.Event]) -> None:
    """Let no step from each number on, counted from now, begin before its event is set, for a minute at most."""
    compute, numbers = Steps.run, itertools.count()

    def run(*args: Any) -> Any:
        number = next(numbers)
        for first, event in at.items():
            if number >= first:
                event.wait(60)
        return compute(*args)

    patch.setattr(Steps, "run", run)


def when_cancelled(patch: pytest.MonkeyPatch) -> threading.Event:
    """Set once a request that is under way is given up."""
    cancel, given_up = Engine.cancel, threading.Event()

    def cancelled(engine: Engine, ticket: Any) -> None:
        under_way = not ticket.closed
        cancel(engine, ticket)
        if under_way:
            given_up.set()

    patch.setattr(Engine, "cancel", cancelled)
    return given_up


def when_refreshed(patch: pytest.MonkeyPatch) -> threading.Event:
    """Set once other snapshots are asked for, which then come before the next step."""
    replace, asked = Engine.replace, threading.Event()

    def replaced(*args: Any) -> Any:
        future = replace(*args)
        asked.set()
        return future

    patch.setattr(Engine, "replace", replaced)
    return asked

"""Actors that the tests of the actor runtime spawn, importable from child processes without pytest."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import os
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from tinker_actors.actors import (
    Actor,
    ActorFailure,
    ActorRef,
    RestartPolicy,
    concurrent,
    deadline,
    wire,
)
from tinker_actors.actors.call import present


@wire
@dataclass(frozen=True, kw_only=True, slots=True)
class Parcel:
    weight: float
    labels: tuple[str, ...]


@wire
class Colour(enum.Enum):
    RED = 1
    BLUE = 2


class UnregisteredError(Exception):
    pass


@wire
class RegisteredError(Exception):
    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class Counter(Actor):
    def __init__(self, start: int = 0) -> None:
        self.n = start

    async def add(self, n: int) -> int:
        self.n += n
        return self.n

    async def value(self) -> int:
        return self.n

    async def count_to(self, n: int) -> AsyncIterator[int]:
        for i in range(1, n + 1):
            self.n = i
            yield i

    async def whoami(self) -> ActorRef:
        return self.ref

    async def pid(self) -> int:
        return os.getpid()

    async def value_or_object(self) -> Any:
        return self.n

    def sync(self) -> int:
        return 1

    async def _private(self) -> int:
        return 1


class Echo(Actor):
    async def echo(self, value: Any) -> Any:
        return value

    async def keywords(self, *args: Any, **kwargs: Any) -> Any:
        return [args, kwargs]

    async def zeros(self, n: int) -> bytes:
        return bytes(n)

    async def unsendable(self) -> Any:
        return object()

    async def value_or_object(self) -> Any:
        return object()


class Log(Actor):
    """Remembers what it was told, and can be held up."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.gate = asyncio.Event()

    async def note(self, what: str) -> None:
        self.events.append(what)

    async def read(self) -> list[str]:
        return list(self.events)

    async def leave(self) -> None:
        self.exit()

    async def relay(self, counter: Counter) -> None:
        await counter.add(1)

    @concurrent
    async def peek(self) -> list[str]:
        return list(self.events)

    @concurrent
    async def open(self) -> None:
        self.gate.set()

    @concurrent
    async def wait_for(self, what: str, times: int = 1) -> None:
        while self.events.count(what) < times:  # noqa: ASYNC110
            await asyncio.sleep(0.002)

    async def hold(self, name: str = "hold") -> str:
        self.events.append(f"{name} begins")
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.events.append(f"{name} cancelled")
            raise
        self.events.append(f"{name} ends")
        return name

    @concurrent
    async def hold_beside(self, name: str) -> str:
        return await self.hold(name)

    async def numbers(self) -> AsyncIterator[int]:
        try:
            i = 0
            while True:
                self.events.append(f"made {i}")
                yield i
                i += 1
        finally:
            self.events.append("stream closed")

    @concurrent
    async def numbers_beside(self) -> AsyncIterator[int]:
        try:
            i = 0
            while True:
                self.events.append(f"made {i}")
                yield i
                i += 1
        finally:
            self.events.append("stream closed")


class Stubborn(Actor):
    """Goes on until it may end, although it is cancelled."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.gate = asyncio.Event()

    @concurrent
    async def open(self) -> None:
        self.gate.set()

    async def go_on(self) -> None:
        await self.log.note("begins")
        while not self.gate.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await self.gate.wait()

    @concurrent
    async def answer(self) -> str:
        await self.go_on()
        return "late"

    @concurrent
    async def raises(self) -> None:
        await self.go_on()
        raise ValueError("late")

    @concurrent
    async def items(self) -> AsyncIterator[str]:
        await self.go_on()
        yield "late"

    async def use(self, other: Any, how: str) -> None:
        if how == "told":
            other.tell.answer()
        elif how == "items":
            await anext(other.stream.items())
        else:
            await getattr(other, how)()


class Fragile(Actor):
    """Fails in every way there is, and writes its life down in another actor."""

    def __init__(self, log: Log | None = None, name: str = "fragile") -> None:
        self.log = log
        self.name = name
        self.n = 0

    async def on_start(self) -> None:
        if self.log is not None:
            await self.log.note(f"{self.name} started")

    async def on_stop(self) -> None:
        if self.log is not None:
            await self.log.note(f"{self.name} stopped")

    async def add(self, n: int) -> int:
        self.n += n
        return self.n

    async def raises(self, message: str = "no") -> None:
        raise ValueError(message, 7)

    async def raises_unregistered(self) -> None:
        raise UnregisteredError("of a kind that nobody knows")

    async def raises_registered(self) -> None:
        raise RegisteredError("known", code=5)

    async def raises_group(self) -> None:
        raise ExceptionGroup("several", [ValueError("one"), KeyError("two")])

    async def breaks(self) -> None:
        raise ActorFailure("broken for good")

    async def exits(self) -> None:
        sys.exit(3)

    async def cancels_itself(self) -> None:
        raise asyncio.CancelledError

    async def stops_half_way(self, n: int) -> AsyncIterator[int]:
        for i in range(n):
            yield i
        raise ValueError("stream broke")

    async def leave(self) -> str:
        self.exit()
        return "leaving"

    async def stop_self(self) -> str:
        await self.mesh.stop(self.ref)
        return "stopping"

    async def pid(self) -> int:
        return os.getpid()

    async def sleep(self) -> None:
        if self.log is not None:
            await self.log.note(f"{self.name} sleeps")
        await asyncio.Event().wait()

    @concurrent
    async def sleep_beside(self) -> None:
        await asyncio.Event().wait()

    async def die(self) -> None:
        sys.stderr.write("the last words of this process\n")
        sys.stderr.flush()
        os.kill(os.getpid(), 9)

    async def block(self, seconds: float) -> str:
        time.sleep(seconds)  # noqa: ASYNC251
        return "done"


class BadStart(Actor):
    def __init__(self, where: str) -> None:
        self.where = where
        if where == "init":
            raise KeyError("init")

        if where == "init, of a kind that nobody knows":
            raise UnregisteredError
        if where == "init exits":
            sys.exit(1)
        if where == "init fails":
            raise ActorFailure("init fails")

    async def on_start(self) -> None:
        if self.where == "on_start":
            raise KeyError("on_start")
        if self.where == "on_start, of a kind that nobody knows":
            raise UnregisteredError
        if self.where == "on_start fails":
            raise ActorFailure("on_start fails")
        if self.where == "asks itself":
            await self.ref.ping()

    async def ping(self) -> str:
        return "pong"


class Chain(Actor):
    """Asks on along a route of refs."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()

    async def ping(self) -> str:
        return "pong"

    async def through(self, route: list[Any]) -> str:
        if not route:
            return "end"
        return await route[0].through(route[1:])

    async def time_left(self, route: list[Any]) -> float | None:
        """Seconds that the last actor on the route may take."""
        if route:
            return await route[0].time_left(route[1:])
        _, due, _ = present()
        return None if due is None else due - asyncio.get_running_loop().time()

    async def ask_self(self) -> Any:
        return await self.ref.ping()

    @concurrent
    async def beside(self) -> str:
        return "beside"

    async def ask_self_beside(self) -> Any:
        return await self.ref.beside()

    async def first_of(self, other: Any) -> Any:
        return [item async for item in other.stream.ask_back(self.ref)]

    async def ask_back(self, other: Any) -> AsyncIterator[str]:
        yield await other.ping()

    async def ask_later(self, log: Log) -> None:
        async def later() -> None:
            await self.gate.wait()
            await log.note(await self.ref.ping())

        self.task = asyncio.create_task(later())

    async def release(self) -> None:
        self.gate.set()

    async def with_deadline(self, other: Any, seconds: float) -> str:
        async with deadline(seconds):
            return await other.hold("nested")

    async def ask_all(self, others: list[Any]) -> Any:
        return await self.mesh.group(others).ask.ping()

    async def sum_of(self, others: list[Any]) -> int:
        return sum(await self.mesh.group(others).ask.value())

    async def hold_between(self, other: Any) -> AsyncIterator[int]:
        yield 1
        await other.hold()
        yield 2

    async def hold_other(self, other: Any) -> str:
        return await other.hold("nested")


class AsksBack(Actor):
    """Asks the actor that spawns it, while it starts."""

    def __init__(self, parent: Any) -> None:
        self.parent = parent

    async def on_start(self) -> None:
        await self.parent.lookup("x")


class EndsLater(Actor):
    """Ends by itself, or fails, some time after it was told to."""

    def __init__(self, how: str) -> None:
        self.how = how

    async def go(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        if self.how == "fail":
            raise ActorFailure("later")
        self.exit()


class Parent(Actor):
    """Spawns children on any node."""

    def __init__(self, log: Log | None = None) -> None:
        self.log = log
        self.child: Any = None

    async def spawn(self, node: int | None, restart: RestartPolicy | None = None, name: str | None = None) -> ActorRef:
        self.child = await self.mesh.spawn(Fragile, self.log, "child", node=node, restart=restart, name=name)
        return self.child

    async def spawn_one_that_asks_back(self, node: int | None) -> None:
        await self.mesh.spawn(AsksBack, self.ref, node=node)

    async def lookup(self, name: str) -> Any:
        return self.mesh.get(name)

    async def child_breaks(self) -> None:
        await self.child.breaks()

    async def watch_child(self) -> str:
        async for event in self.mesh.watch(self.child):
            return f"{type(event).__name__}: {event.reason!r}"
        return "nothing"

    async def fail(self) -> None:
        raise ActorFailure("the parent failed")

    async def on_stop(self) -> None:
        if self.log is not None:
            await self.log.note("parent stopped")

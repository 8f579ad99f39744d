"""Messages that find their actor idle are begun in the turn of whoever sent them; nothing else may show it."""

import asyncio
import contextvars
import time
from typing import Any

import pytest
from zoo import Counter, Fragile, Log

from tinker_actors.actors import (
    Actor,
    ActorDiedError,
    ActorStoppedError,
    AskCycleError,
    DeadlineExceeded,
    Group,
    Mesh,
    RestartPolicy,
    deadline,
    envelope,
)
from tinker_actors.actors.guest_serving import GuestServing
from tinker_actors.actors.inline import DEPTH

where = contextvars.ContextVar("where", default="nowhere")


class Curious(Actor):
    """Looks at what it runs in."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.notes: list[str] = []

    async def ping(self) -> str:
        return "pong"

    async def task_name(self) -> str:
        task = asyncio.current_task()
        assert task is not None
        return task.get_name()

    async def names_before_and_after_waiting(self) -> list[str]:
        before = await self.task_name()
        await asyncio.sleep(0)
        return [before, await self.task_name()]

    async def write_context(self) -> str:
        before = where.get()
        where.set("in the actor")
        return before

    async def time_out(self) -> str:
        try:
            async with asyncio.timeout(0.01):
                await self.gate.wait()
        except TimeoutError:
            return "in time"
        return "never"

    async def note(self, what: str, gate: "asyncio.Future[int] | None" = None) -> None:
        if gate is not None:
            await gate
        self.notes.append(what)

    async def read(self) -> list[str]:
        return self.notes

    async def wait_for_future(self, future: "asyncio.Future[int]") -> int:
        return await future

    async def bound_by(self, seconds: float) -> str:
        try:
            async with deadline(seconds):
                await self.gate.wait()
        except DeadlineExceeded:
            return "bounded"
        return "never"

    async def ask_along(self, others: list[Any]) -> int:
        return 1 + await others[0].ask_along(others[1:]) if others else 0

    async def ask_for_ever(self, other: Any) -> None:
        while True:
            await other.ping()

    async def cancel_own_task(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await self.gate.wait()


@pytest.fixture
async def curious() -> Any:
    async with Mesh() as mesh:
        actor = await mesh.spawn(Curious, name="curious")
        await actor.ping()  # from now on its task waits for messages
        yield actor


async def test_a_handler_runs_in_its_actors_task_before_and_after_it_waits(curious: Curious) -> None:
    own = asyncio.current_task()
    assert await curious.task_name() == "actor curious"
    assert await curious.names_before_and_after_waiting() == ["actor curious", "actor curious"]
    assert asyncio.current_task() is own


async def test_a_handler_sees_its_actors_context_not_the_senders(curious: Curious) -> None:
    where.set("at the sender")
    assert await curious.write_context() == "nowhere"
    assert await curious.write_context() == "in the actor"
    assert where.get() == "at the sender"


async def test_timeouts_begun_before_the_first_wait_cancel_the_handler_and_nobody_else(curious: Curious) -> None:
    assert await curious.time_out() == "in time"
    assert await curious.bound_by(0.01) == "bounded"
    assert await curious.ping() == "pong"


async def test_a_future_that_others_wait_for_too_can_be_the_first_wait(curious: Curious) -> None:
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def other() -> int:
        return await future

    ask = asyncio.create_task(curious.wait_for_future(future))
    beside = asyncio.create_task(other())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    asyncio.get_running_loop().call_later(0.01, future.set_result, 7)
    assert await asyncio.gather(ask, beside) == [7, 7]


async def test_an_ask_cancelled_in_the_turn_in_which_its_handler_began_cancels_the_handler() -> None:
    async with Mesh() as mesh:
        log = await mesh.spawn(Log)
        await log.read()
        ask = asyncio.create_task(log.hold())
        asyncio.get_running_loop().call_soon(ask.cancel)  # after the ask's first step, before the actor's task
        with pytest.raises(asyncio.CancelledError):
            await ask
        assert await log.read() == ["hold begins", "hold cancelled"]


async def test_a_killed_actor_cancels_the_handler_that_began_at_once() -> None:
    async with Mesh() as mesh:
        log = await mesh.spawn(Log)
        await log.read()
        ask = asyncio.create_task(log.hold())
        await asyncio.sleep(0)
        await mesh.stop(log, drain=False)
        with pytest.raises(ActorStoppedError):
            await ask


async def test_a_handler_that_cancels_its_task_ends_only_its_message(curious: Curious) -> None:
    with pytest.raises(Exception, match="cancelled itself"):
        await curious.cancel_own_task()
    assert await curious.ping() == "pong"


async def test_a_sender_that_never_waits_lets_the_loop_go_on(curious: Curious) -> None:
    async with Mesh() as mesh:
        others = [await mesh.spawn(Curious) for _ in range(2)]
        for other in others:
            await other.ping()

        async def ask_for_ever() -> None:
            while True:
                await curious.ping()

        direct = asyncio.create_task(ask_for_ever())
        nested = asyncio.create_task(others[0].ask_for_ever(others[1]))
        async with asyncio.timeout(60):
            for _ in range(100):
                await asyncio.sleep(0)
        for task in (direct, nested):
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task


async def test_asks_may_go_deeper_than_handlers_are_begun_within_each_other() -> None:
    async with Mesh() as mesh:
        actors = [await mesh.spawn(Curious) for _ in range(3 * DEPTH)]
        for actor in actors:
            await actor.ping()
        assert await actors[0].ask_along(actors[1:]) == len(actors) - 1


async def test_the_members_of_a_group_are_each_served_in_their_own_task_and_context() -> None:
    async with Mesh() as mesh:
        members = [await mesh.spawn(Curious, name=f"curious {i}") for i in range(3)]
        group = mesh.group(members)
        await group.ask.ping()
        where.set("at the sender")
        own = asyncio.current_task()
        assert await group.ask.task_name() == [f"actor curious {i}" for i in range(3)]
        assert await group.ask.write_context() == ["nowhere"] * 3
        assert await group.ask.write_context() == ["in the actor"] * 3
        assert where.get() == "at the sender"
        assert asyncio.current_task() is own


async def test_members_that_wait_and_members_that_do_not_answer_in_their_places() -> None:
    class Mixed(Actor):
        def __init__(self, number: int) -> None:
            self.number = number

        async def work(self) -> int:
            if self.number % 3 == 0:
                await asyncio.sleep(0)
            if self.number % 3 == 1:
                raise ValueError(self.number)
            return self.number

        async def ping(self) -> None: ...

    async with Mesh() as mesh:
        group = mesh.group([await mesh.spawn(Mixed, i) for i in range(30)])
        await group.ask.ping()
        for _ in range(2):
            outcomes = await group.settle.work()
            assert [each.args[0] if isinstance(each, ValueError) else each for each in outcomes] == list(range(30))
            assert [isinstance(each, ValueError) for each in outcomes] == [i % 3 == 1 for i in range(30)]
        answers = await group.quorum(11).work()
        assert list(answers.values()) == [0, 2, 5, 8, 11, 14, 17, 20, 23, 26, 29]


async def test_a_member_that_is_in_a_group_twice_gets_the_second_share_after_the_first(curious: Curious) -> None:
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    group = Group([curious, curious])
    asks = asyncio.create_task(group.ask.wait_for_future(future))
    await asyncio.sleep(0)
    assert curious.target.running is not None  # pyright: ignore
    assert len(curious.target.queue) == 1  # pyright: ignore
    future.set_result(3)
    assert await asks == [3, 3]


async def test_a_group_asked_from_a_handler_that_is_a_member_is_a_cycle() -> None:
    class Leader(Actor):
        async def ping(self) -> str:
            return "pong"

        async def ask(self, group: Any) -> list[Any]:
            return await group.settle.ping()

    async with Mesh() as mesh:
        leader, other = await mesh.spawn(Leader), await mesh.spawn(Leader)
        group = mesh.group([leader, other])
        await group.ask.ping()
        cycle, answer = await leader.ask(group)
        assert isinstance(cycle, AskCycleError)
        assert answer == "pong"


async def test_members_are_not_begun_once_an_earlier_one_has_used_up_the_deadline() -> None:
    class Blocking(Actor):
        def __init__(self) -> None:
            self.begun = 0

        async def block(self) -> int:
            self.begun += 1
            time.sleep(0.6)  # noqa: ASYNC251 - it is to block
            return self.begun

        async def read(self) -> int:
            return self.begun

    async with Mesh() as mesh:
        group = mesh.group([await mesh.spawn(Blocking) for _ in range(3)])
        await group.ask.read()
        first, *late = await group.options(timeout=0.5).settle.block()
        assert first == 1
        assert all(isinstance(each, DeadlineExceeded) for each in late)
        assert await group.ask.read() == [1, 0, 0]


async def test_handlers_are_timed_ever_less_often_up_to_one_in_61() -> None:
    async with Mesh() as mesh:
        counter = await mesh.spawn(Counter)
        for _ in range(100):
            await counter.add(1)
        assert counter.target.times.total == 5  # pyright: ignore
        for _ in range(61):
            await counter.add(1)
        assert counter.target.times.total == 6  # pyright: ignore


async def test_failures_and_exits_of_handlers_that_never_wait_end_the_actor() -> None:
    async with Mesh() as mesh:
        fragile = await mesh.spawn(Fragile, restart=RestartPolicy.on_failure(backoff=0.001))
        assert await fragile.add(1) == 1
        assert await fragile.add(1) == 2
        with pytest.raises(ActorDiedError):
            await fragile.breaks()
        assert await fragile.add(1) == 1  # a new incarnation
        with pytest.raises(ValueError, match="no"):
            await fragile.raises()
        assert await fragile.add(1) == 2
        assert await fragile.leave() == "leaving"
        with pytest.raises(ActorStoppedError):
            await fragile.add(1)


async def test_an_idle_actor_keeps_neither_arguments_nor_results_alive() -> None:
    import gc
    import weakref

    class Thing:
        pass

    class Keeper(Actor):
        async def swap(self, thing: Thing) -> Thing:
            return Thing()

        async def wait(self, for_what: list[asyncio.Future[Thing]]) -> Thing:
            return await for_what.pop()

    async with Mesh() as mesh:
        keeper = await mesh.spawn(Keeper)
        await keeper.swap(Thing())
        given = Thing()
        got = await keeper.swap(given)
        refs = [weakref.ref(given), weakref.ref(got)]
        del given, got
        waits_for: list[asyncio.Future[Thing]] = [asyncio.get_running_loop().create_future()]
        asyncio.get_running_loop().call_soon(waits_for[0].set_result, Thing())
        got = await keeper.wait(waits_for)
        refs.append(weakref.ref(got))
        del got
        await asyncio.sleep(0)  # the loop itself holds what it woke the actor's task with, until this turn's end
        await keeper.swap(Thing())
        gc.collect()
        assert [ref() for ref in refs] == [None, None, None]


async def test_order_holds_between_messages_that_began_at_once_and_those_that_waited(curious: Curious) -> None:
    gate: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    first = asyncio.create_task(curious.note("first", gate))
    await asyncio.sleep(0)
    others = [asyncio.create_task(curious.note(str(i))) for i in range(5)]
    await asyncio.sleep(0)
    gate.set_result(0)
    await asyncio.gather(first, *others, curious.note("last"))
    assert await curious.read() == ["first", "0", "1", "2", "3", "4", "last"]


async def test_many_senders_at_once_are_all_answered_exactly_once() -> None:
    async with Mesh() as mesh:
        counter = await mesh.spawn(Counter)
        values = await asyncio.gather(*(counter.options(timeout=60).add(1) for _ in range(2000)))
        assert sorted(values) == list(range(1, 2001))


async def test_an_ask_of_another_process_that_comes_after_its_deadline_is_not_begun() -> None:
    async with Mesh(nodes=2) as mesh:
        node = mesh._open()[1]
        log = await mesh.spawn(Log, node=0)
        await log.read()
        answer = node.exchange.by_index[1].serving.answer
        answer([envelope.ASK, 12345, log.address.id, "note", ["late"], None, -0.001])
        answer([envelope.ASK, 12346, log.address.id, "note", ["in time"], None, 5.0])
        assert await log.read() == ["in time"]


async def test_an_idle_actor_of_the_meshs_own_is_not_open_to_guests() -> None:
    async with Mesh(nodes=2) as mesh:
        node = mesh._open()[1]
        log = await mesh.spawn(Log, node=0)
        await log.read()
        node.cells[7] = node.cells[log.address.id]  # as if it were one of them
        guest = GuestServing(node, node.exchange.by_index[1])
        guest.answer([envelope.ASK, 12345, 7, "note", ["private"], None, None])
        guest.answer([envelope.ASK, 12346, log.address.id, "note", ["open"], None, None])
        del node.cells[7]
        assert await log.read() == ["open"]

"""Names, parents, and spawns that are given up."""

import asyncio
import gc
import weakref
from typing import Any

import pytest
from spawning_zoo import Spawner
from zoo import Counter, Fragile, Log

from tinker_actors.actors import Actor, ActorFailure, ActorStoppedError, Mesh, RestartPolicy


async def actors_on(mesh: Any) -> int:
    """Actors that live on node 1, whether or not the mesh knows them."""
    return len((await mesh._directory.agents[1].survey())[-1])


async def test_a_name_that_the_mesh_makes_up_is_free(mesh: Mesh) -> None:
    first: Any = await mesh.spawn(Counter)
    number = int(first.address.name.removeprefix("Counter-"))
    await mesh.spawn(Counter, name=f"Counter-{number + 1}")
    third: Any = await mesh.spawn(Counter)
    assert third.address.name == f"Counter-{number + 2}"


async def test_a_spawn_that_is_given_up_leaves_no_actor_however_far_it_came(pair: Mesh) -> None:
    """Also where the actor had started, and only the news of it was under way."""
    for turns in [*range(8), *range(8, 80, 8)]:
        task = asyncio.create_task(pair.spawn(Counter, node=1))
        for _ in range(turns):
            await asyncio.sleep(0.0001)
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            await pair.stop(task.result())
    async with asyncio.timeout(60.0):
        while await actors_on(pair):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_a_child_that_gives_up_a_spawn_leaves_no_actor_either(pair: Mesh) -> None:
    spawner = await pair.spawn(Spawner, node=2)
    for node in (0, 1, 2):
        for turns in [*range(8), *range(8, 80, 8)]:
            await spawner.spawn_and_cancel(node, turns)
    async with asyncio.timeout(60.0):
        while [actor.cls for actor in (await pair.describe()).actors] != ["Spawner"] or await actors_on(pair):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_an_actor_that_has_ended_spawns_no_more(mesh: Mesh) -> None:
    """Not through a task that outlives it: nothing would end its child."""
    spawner, log = await mesh.spawn(Spawner), await mesh.spawn(Log, node=0)
    await spawner.spawn_once_ended(log)
    await mesh.stop(spawner)
    async with asyncio.timeout(60.0):
        await log.wait_for("refused")


async def test_of_an_actor_that_has_ended_nothing_is_kept_but_how() -> None:
    class Held:
        pass

    class Holder(Actor):
        def __init__(self, held: Held) -> None:
            self.held = held

        async def fail(self) -> None:
            local = self.held
            raise ActorFailure(f"with {type(local).__name__}")

    async with Mesh() as mesh:
        kept: list[weakref.ref[Held]] = []

        async def spawn(restart: RestartPolicy | None = None) -> Holder:
            held = Held()
            kept.append(weakref.ref(held))
            return await mesh.spawn(Holder, held, restart=restart)

        stopped, failed = await spawn(), await spawn()
        await mesh.stop(stopped)
        for _ in range(2):
            with pytest.raises(Exception, match="with Held"):
                await failed.fail()
        with pytest.raises(ActorStoppedError):
            await stopped.fail()
        await asyncio.sleep(0)  # the loop itself holds the error with which it woke this task, until its turn ends
        gc.collect()
        assert [ref() for ref in kept] == [None, None]


async def test_an_incarnation_that_failed_is_free_to_go_before_the_next_is_made() -> None:
    """Two of those that fill a device would not fit."""
    alive: list[int] = []
    instances: weakref.WeakSet[Actor] = weakref.WeakSet()

    class Large(Actor):
        def __init__(self) -> None:
            gc.collect()
            alive.append(len(instances))
            instances.add(self)

        async def fail(self) -> None:
            raise ValueError

    async with Mesh() as mesh:
        large = await mesh.spawn(Large, restart=RestartPolicy.on_failure(backoff=0.0))
        events = mesh.watch(large)
        for _ in range(2):
            large.tell.fail()
            await anext(events)
    assert alive == [0, 0, 0]


async def test_a_reason_says_where_the_actor_failed_wherever_it_is(mesh: Mesh) -> None:
    fragile = await mesh.spawn(Fragile)
    events = mesh.watch(fragile)
    fragile.tell.raises()
    reason = (await anext(events)).reason
    assert isinstance(reason, ValueError)
    assert reason.args == ("no", 7)
    assert "in raises" in str(reason.__cause__)


def test_a_message_can_not_take_an_attribute_of_every_ref() -> None:
    with pytest.raises(TypeError, match="address"):

        class Shop(Actor):
            async def address(self) -> str:
                return "here"

    class Mixin:
        async def tell(self) -> None: ...

    with pytest.raises(TypeError, match="'tell' belongs to Actor"):

        class Teller(Mixin, Actor):  # type: ignore[misc]
            pass

    class Fine(Actor):
        address = "what is no message may be called so"

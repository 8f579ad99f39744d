"""Errors, restarts, escalation, watching and stopping."""

import asyncio

import pytest
from zoo import BadStart, Chain, Counter, Fragile, Log, Parent, RegisteredError

from tinker_actors.actors import (
    ActorDiedError,
    ActorStoppedError,
    AskCycleError,
    Mesh,
    RemoteError,
    Restarted,
    RestartPolicy,
    SpawnError,
    Terminated,
)


async def test_a_handlers_error_reaches_the_asker_and_the_actor_lives(mesh: Mesh) -> None:
    fragile = await mesh.spawn(Fragile)
    await fragile.add(1)
    with pytest.raises(ValueError, match="no") as caught:
        await fragile.raises()
    assert caught.value.args == ("no", 7)
    if mesh.nodes > 1:
        assert "in raises" in str(caught.value.__cause__)
    assert await fragile.add(1) == 2


async def test_registered_errors_arrive_as_themselves_and_others_as_remote_error(mesh: Mesh) -> None:
    fragile = await mesh.spawn(Fragile)
    with pytest.raises(RegisteredError, match="known") as registered:
        await fragile.raises_registered()
    assert registered.value.code == 5
    with pytest.raises(RemoteError) as foreign:
        await fragile.raises_unregistered()
    assert foreign.value.type_name == "zoo.UnregisteredError"
    assert foreign.value.message == "of a kind that nobody knows"
    assert "raises_unregistered" in foreign.value.traceback


async def test_an_exception_group_arrives_with_its_members(mesh: Mesh) -> None:
    fragile = await mesh.spawn(Fragile)
    with pytest.raises(ExceptionGroup) as caught:
        await fragile.raises_group()
    assert [type(error) for error in caught.value.exceptions] == [ValueError, KeyError]


async def test_a_handler_that_cancels_itself_fails_only_its_ask(mesh: Mesh) -> None:
    fragile = await mesh.spawn(Fragile)
    with pytest.raises(RemoteError, match="cancelled itself"):
        await fragile.cancels_itself()
    assert await fragile.add(1) == 1


async def test_a_tell_that_raises_fails_the_actor(mesh: Mesh) -> None:
    fragile = await mesh.spawn(Fragile, name="brittle")
    events = mesh.watch(fragile)
    fragile.tell.raises("in a tell")
    event = await anext(events)
    assert isinstance(event, Terminated)
    assert isinstance(event.reason, ValueError)
    with pytest.raises(StopAsyncIteration):
        await anext(events)
    with pytest.raises(ActorDiedError):
        await fragile.add(1)


async def test_actor_failure_fails_the_ask_and_restarts_from_the_constructor(mesh: Mesh) -> None:
    fragile = await mesh.spawn(Fragile, restart=RestartPolicy.on_failure(backoff=0.0))
    events = mesh.watch(fragile)
    await fragile.add(5)
    with pytest.raises(ActorDiedError, match="broken for good"):
        await fragile.breaks()
    assert await fragile.add(1) == 1
    event = await anext(events)
    assert isinstance(event, Restarted)
    assert event.incarnation == 2
    assert event.ref == fragile


async def test_an_ask_beside_a_tell_that_fails_the_actor_hears_of_the_actors_end(mesh: Mesh) -> None:
    fragile = await mesh.spawn(Fragile)
    asking = asyncio.ensure_future(fragile.sleep_beside())
    await asyncio.sleep(0)  # the ask is sent, and the tell right behind it
    fragile.tell.raises("in a tell")
    with pytest.raises(ActorDiedError, match="in a tell"):
        await asking


async def test_sys_exit_in_a_handler_ends_only_the_actor(mesh: Mesh) -> None:
    fragile = await mesh.spawn(Fragile)
    other = await mesh.spawn(Counter)
    with pytest.raises(ActorDiedError, match="SystemExit"):
        await fragile.exits()
    assert await other.add(1) == 1


async def test_a_restart_constructs_from_the_same_arguments_by_name_too(mesh: Mesh) -> None:
    log = await mesh.spawn(Log)
    fragile = await mesh.spawn(Fragile, log=log, restart=RestartPolicy.on_failure())
    with pytest.raises(ActorDiedError):
        await fragile.breaks()
    await fragile.add(1)
    assert await log.read() == ["fragile started", "fragile stopped", "fragile started"]


async def test_messages_that_wait_survive_a_restart(mesh: Mesh) -> None:
    fragile = await mesh.spawn(Fragile, restart=RestartPolicy.on_failure(backoff=0.0))
    fragile.tell.breaks()
    assert await asyncio.gather(*(fragile.add(1) for _ in range(3))) == [1, 2, 3]


async def test_beyond_its_intensity_an_actor_ends(mesh: Mesh) -> None:
    fragile = await mesh.spawn(Fragile, restart=RestartPolicy.on_failure(max_restarts=2, backoff=0.0))
    events = mesh.watch(fragile)
    for _ in range(3):
        with pytest.raises(ActorDiedError):
            await fragile.breaks()
    assert [type(event) async for event in events] == [Restarted, Restarted, Terminated]


async def test_back_off_doubles_up_to_its_limit() -> None:
    policy = RestartPolicy(backoff=1.0, backoff_max=5.0)
    assert [policy.delay(n) for n in range(5)] == [1.0, 2.0, 4.0, 5.0, 5.0]


async def test_an_actor_that_exits_is_restarted_only_under_always(mesh: Mesh) -> None:
    once = await mesh.spawn(Fragile, restart=RestartPolicy.on_failure(backoff=0.0))
    events = mesh.watch(once)
    assert await once.leave() == "leaving"
    event = await anext(events)
    assert isinstance(event, Terminated)
    assert event.reason is None
    always = await mesh.spawn(Fragile, restart=RestartPolicy.always(backoff=0.0))
    events = mesh.watch(always)
    await always.add(3)
    await always.leave()
    assert isinstance(await anext(events), Restarted)
    assert await always.add(1) == 1


async def test_an_actor_that_exits_ends_what_still_runs_and_waits(mesh: Mesh) -> None:
    log = await mesh.spawn(Log)
    beside = asyncio.create_task(log.hold_beside("a"))
    await log.wait_for("a begins")
    await log.leave()
    with pytest.raises(ActorStoppedError):
        await beside
    with pytest.raises(ActorStoppedError):
        await log.read()


async def test_on_stop_runs_once_for_every_incarnation(mesh: Mesh) -> None:
    log = await mesh.spawn(Log, node=0)
    fragile = await mesh.spawn(Fragile, log, restart=RestartPolicy.on_failure(backoff=0.0))
    with pytest.raises(ActorDiedError):
        await fragile.breaks()
    await fragile.add(1)
    await mesh.stop(fragile)
    assert await log.read() == ["fragile started", "fragile stopped"] * 2


async def test_a_start_that_raises_gives_its_error_to_the_spawner_and_frees_the_name(mesh: Mesh) -> None:
    for where in ("init", "on_start"):
        with pytest.raises(KeyError, match=where):
            await mesh.spawn(BadStart, where, name="bad", restart=RestartPolicy.always())
        with pytest.raises(RemoteError, match="UnregisteredError"):
            await mesh.spawn(BadStart, f"{where}, of a kind that nobody knows", name="bad")
    good = await mesh.spawn(BadStart, "nowhere", name="bad")
    assert await good.ping() == "pong"


@pytest.mark.parametrize("where", ["init exits", "init fails", "on_start fails"])
async def test_a_start_that_ends_itself_ends_nothing_else(mesh: Mesh, where: str) -> None:
    with pytest.raises(ActorDiedError, match="failed to start"):
        await mesh.spawn(BadStart, where)
    assert await (await mesh.spawn(BadStart, "nowhere")).ping() == "pong"


async def test_a_start_that_waits_for_itself_or_its_spawner_is_refused(mesh: Mesh) -> None:
    with pytest.raises(AskCycleError, match=r"eager\.on_start -> eager\.ping"):
        await mesh.spawn(BadStart, "asks itself", name="eager")
    parent = await mesh.spawn(Parent, name="parent")
    with pytest.raises(AskCycleError, match=r"parent\.spawn_one_that_asks_back -> AsksBack-\d+\.on_start -> parent"):
        await parent.spawn_one_that_asks_back(0)


async def test_a_taken_name_and_an_unknown_node_are_refused(mesh: Mesh) -> None:
    await mesh.spawn(Counter, name="c")
    with pytest.raises(SpawnError, match="taken"):
        await mesh.spawn(Counter, name="c")
    with pytest.raises(SpawnError, match="0 to"):
        await mesh.spawn(Counter, node=9)
    with pytest.raises(SpawnError, match="subclass"):
        await mesh.spawn(dict)  # type: ignore[type-var]


async def test_stop_drains_then_refuses(mesh: Mesh) -> None:
    log = await mesh.spawn(Log, node=0)
    fragile = await mesh.spawn(Fragile, log)
    asks = [asyncio.create_task(fragile.add(1)) for _ in range(20)]
    await asyncio.sleep(0)
    await mesh.stop(fragile)
    assert await asyncio.gather(*asks) == list(range(1, 21))
    assert (await log.read())[-1] == "fragile stopped"
    with pytest.raises(ActorStoppedError):
        await fragile.add(1)
    await mesh.stop(fragile)


async def test_stop_lets_the_present_message_end_and_serves_those_that_wait(mesh: Mesh) -> None:
    chain, log = await mesh.spawn(Chain), await mesh.spawn(Log, node=0)

    async def until(state: str, waiting: int) -> None:
        async with asyncio.timeout(60):
            while not any(  # noqa: ASYNC110
                (actor.name, actor.state, actor.mailbox) == (chain.address.name, state, waiting)
                for actor in (await mesh.describe()).actors
            ):
                await asyncio.sleep(0.001)

    held = asyncio.create_task(chain.hold_other(log))
    await log.wait_for("nested begins")
    asks = [asyncio.create_task(chain.ping()) for _ in range(3)]
    await until("running", 3)
    stopping = asyncio.create_task(mesh.stop(chain))
    await until("draining", 3)
    await log.open()
    assert await asyncio.gather(held, *asks) == ["nested", "pong", "pong", "pong"]
    await stopping


async def test_stop_without_drain_cancels_what_runs_and_fails_what_waits(mesh: Mesh) -> None:
    log = await mesh.spawn(Log)
    asks = [asyncio.create_task(log.hold(str(i))) for i in range(3)]
    await log.wait_for("0 begins")
    await mesh.stop(log, drain=False)
    results = await asyncio.gather(*asks, return_exceptions=True)
    assert [type(result) for result in results] == [ActorStoppedError] * 3


async def test_a_drain_that_takes_too_long_is_cut(mesh: Mesh) -> None:
    log = await mesh.spawn(Log)
    ask = asyncio.create_task(log.hold())
    await log.wait_for("hold begins")
    await mesh.stop(log, timeout=0.05)
    with pytest.raises(ActorStoppedError):
        await ask


async def test_an_actor_may_stop_itself(mesh: Mesh) -> None:
    fragile = await mesh.spawn(Fragile)
    events = mesh.watch(fragile)
    assert await fragile.stop_self() == "stopping"
    assert isinstance(await anext(events), Terminated)


async def test_watching_an_actor_that_has_ended_says_so_at_once(mesh: Mesh) -> None:
    counter = await mesh.spawn(Counter)
    await mesh.stop(counter)
    assert [type(event) async for event in mesh.watch(counter)] == [Terminated]


async def test_children_end_with_their_parent(mesh: Mesh) -> None:
    log = await mesh.spawn(Log, node=0)
    parent = await mesh.spawn(Parent, log)
    child = await parent.spawn(0)
    events = mesh.watch(child)
    await mesh.stop(parent)
    assert isinstance(await anext(events), Terminated)
    assert await log.read() == ["child started", "parent stopped", "child stopped"]


async def test_children_end_when_their_parent_restarts(mesh: Mesh) -> None:
    parent = await mesh.spawn(Parent, restart=RestartPolicy.on_failure(backoff=0.0))
    child = await parent.spawn(None, name="kid")
    with pytest.raises(ActorDiedError):
        await parent.fail()
    again = await parent.spawn(None, name="kid")
    assert again != child
    with pytest.raises((ActorDiedError, ActorStoppedError)):
        await child.add(1)


async def test_a_failure_beyond_the_policy_escalates_to_the_parent(mesh: Mesh) -> None:
    parent = await mesh.spawn(Parent)
    child = await parent.spawn(None, RestartPolicy.on_failure(max_restarts=0))
    events = mesh.watch(parent)
    child.tell.breaks()
    event = await anext(events)
    assert isinstance(event, Terminated)
    assert isinstance(event.reason, ActorDiedError)
    assert "beyond its restart policy" in str(event.reason)


async def test_a_child_with_policy_never_does_not_escalate(mesh: Mesh) -> None:
    parent = await mesh.spawn(Parent)
    child = await parent.spawn(None)
    child.tell.breaks()
    assert (await parent.watch_child()).startswith("Terminated: ActorFailure")
    assert await parent.spawn(None) != child


async def test_a_dropped_tell_is_counted(mesh: Mesh) -> None:
    counter = await mesh.spawn(Counter, node=0)
    await mesh.stop(counter)
    before = mesh.dead_letters
    counter.tell.add(1)
    assert mesh.dead_letters == before + 1

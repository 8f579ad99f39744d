"""Barriers: parties in several processes that go on together."""

import asyncio
from typing import Any

import pytest
from company_zoo import Walker

from tinker_actors.actors import (
    Barrier,
    BarrierBrokenError,
    BarrierError,
    DeadlineExceeded,
    Mesh,
    NodeDiedError,
    Restarted,
    RestartPolicy,
    concurrent,
)
from tinker_actors.actors.barrier import BarrierHub
from tinker_actors.actors.rendezvous import Rendezvous


async def walkers(mesh: Mesh, count: int) -> list[Walker]:
    """Actors on every node in turn."""
    return [await mesh.spawn(Walker, name=f"walker{i}", node=i % mesh.nodes) for i in range(count)]


async def arrived(barrier: Barrier, count: int) -> None:
    """Return once so many parties wait."""
    state = await barrier.state()
    while len(state.parties) - len(state.missing) < count:
        state = await barrier.state()


async def test_nobody_goes_on_until_all_have_arrived(mesh: Mesh) -> None:
    actors = await walkers(mesh, 4)
    barrier = await mesh.barrier([*actors, "program"])
    walks = [asyncio.create_task(walker.walk(barrier)) for walker in actors]
    await arrived(barrier, 4)
    assert (await barrier.state()).missing == ("program",)
    assert not any(walk.done() for walk in walks)
    assert await barrier.arrive("program") == 0
    assert await asyncio.gather(*walks) == [[0]] * 4


async def test_phases_follow_each_other_and_are_numbered(mesh: Mesh) -> None:
    actors = await walkers(mesh, 6)
    barrier = await mesh.barrier(actors)
    assert await mesh.group(actors).ask.walk(barrier, 20) == [list(range(20))] * 6
    assert (await barrier.state()).phase == 20


async def test_an_actor_in_a_child_process_makes_a_barrier_and_gives_it_away(mesh: Mesh) -> None:
    actors = await walkers(mesh, 3)
    maker = await mesh.spawn(Walker)
    barrier = await maker.build([*actors, "program"])
    walks = [asyncio.create_task(walker.walk(barrier)) for walker in actors]
    assert await barrier.arrive("program") == 0
    await asyncio.gather(*walks)
    await mesh.stop(maker)
    with pytest.raises(BarrierBrokenError, match="is gone"):
        await barrier.arrive("program")


async def test_a_late_arrival_for_an_ended_phase_is_refused_and_breaks_nothing(mesh: Mesh) -> None:
    one, two = await walkers(mesh, 2)
    barrier = await mesh.barrier([one, two])
    await mesh.group([one, two]).ask.walk_beside(barrier, 0)
    with pytest.raises(BarrierError, match="walker0 arrived for phase 0, but phase 1 is going on"):
        await one.walk_beside(barrier, 0)
    assert await mesh.group([one, two]).ask.walk_beside(barrier, 1) == [1, 1]


async def test_strangers_and_second_arrivals_are_refused_and_the_others_go_on(mesh: Mesh) -> None:
    one, two, stranger = await walkers(mesh, 3)
    barrier = await mesh.barrier([one, two])
    with pytest.raises(BarrierError, match="is not a party"):
        await stranger.walk(barrier)
    first = asyncio.create_task(one.walk_beside(barrier))
    await arrived(barrier, 1)
    with pytest.raises(BarrierError, match="walker0 has arrived in phase 0 already"):
        await one.walk_beside(barrier)
    assert await two.walk_beside(barrier) == await first == 0


async def test_of_arrivals_in_one_turn_only_the_refused_ones_fail() -> None:
    async with Mesh() as mesh:
        barrier = await mesh.barrier(["a", "b"])
        outcomes = await asyncio.gather(
            barrier.arrive("a"), barrier.arrive("x"), barrier.arrive("b"), return_exceptions=True
        )
        assert outcomes[0] == outcomes[2] == 0
        assert isinstance(outcomes[1], BarrierError)


async def test_a_cancelled_waiter_wakes_all_others_with_the_cause(mesh: Mesh) -> None:
    actors = await walkers(mesh, 4)
    barrier = await mesh.barrier([*actors, "program"])
    walks = [asyncio.create_task(walker.walk(barrier)) for walker in actors]
    await arrived(barrier, 4)
    walks[1].cancel()
    for walk in (walks[0], walks[2], walks[3]):
        with pytest.raises(BarrierBrokenError, match="walker1 was cancelled while it waited") as caught:
            await walk
        assert caught.value.phase == 0
    with pytest.raises(BarrierBrokenError, match="phase 0: walker1"):
        await barrier.arrive("program")


async def test_a_cancellation_that_reaches_the_hub_after_the_phase_has_ended_breaks_nothing(mesh: Mesh) -> None:
    (one,) = await walkers(mesh, 1)
    barrier = await mesh.barrier([one, "a"])
    await asyncio.gather(one.walk(barrier), barrier.arrive("a"))
    hub: Any = barrier.ref
    await hub.withdraw((0, 1, 0), "a", "was cancelled while it waited")  # the batch that has just been released
    assert await asyncio.gather(one.walk(barrier), barrier.arrive("a")) == [[1], 1]


async def test_a_waiters_own_deadline_breaks_the_barrier_for_the_others(mesh: Mesh) -> None:
    one, two = await walkers(mesh, 2)
    barrier = await mesh.barrier([one, two, "never"])
    patient = asyncio.create_task(one.walk(barrier))
    await arrived(barrier, 1)
    with pytest.raises(DeadlineExceeded):
        await two.walk_beside(barrier, timeout=0.05)
    with pytest.raises(BarrierBrokenError, match="walker1 waited until its deadline"):
        await patient


async def test_the_barriers_timeout_names_who_is_late(mesh: Mesh) -> None:
    (one,) = await walkers(mesh, 1)
    barrier = await mesh.barrier([one, "a", "b"], timeout=0.05)
    with pytest.raises(BarrierBrokenError, match=r"a, b did not arrive within 0.05 s of the first"):
        await one.walk(barrier)


async def test_the_timeout_of_a_phase_ends_with_it() -> None:
    meeting = Rendezvous[str]("ab", timeout=0.05)
    first = meeting.arrive("a")
    meeting.arrive("b")
    assert await first == 0
    passed = asyncio.Event()
    asyncio.get_running_loop().call_later(0.1, passed.set)  # after whatever alarm there might still be
    await passed.wait()
    assert meeting.broken is None


async def test_a_party_that_ends_wakes_all_waiters_with_its_error(mesh: Mesh) -> None:
    one, two = await walkers(mesh, 2)
    barrier = await mesh.barrier([one, two])
    walk = asyncio.create_task(one.walk(barrier))
    await arrived(barrier, 1)
    two.tell.fail()
    with pytest.raises(BarrierBrokenError, match="walker1 died: ActorFailure: the walker failed") as caught:
        await walk
    assert isinstance(caught.value.reason, Exception)


async def test_a_party_that_has_ended_or_is_stopped_breaks_it_too(mesh: Mesh) -> None:
    one, two = await walkers(mesh, 2)
    await mesh.stop(one)
    with pytest.raises(BarrierBrokenError, match="walker0 was stopped"):
        await two.walk(await mesh.barrier([one, two]))


async def test_a_restart_breaks_only_a_phase_in_which_others_wait(mesh: Mesh) -> None:
    policy = RestartPolicy.on_failure(backoff=0.0)
    one, two = await mesh.spawn(Walker), await mesh.spawn(Walker, restart=policy, name="phoenix")
    barrier = await mesh.barrier([one, two])
    events = mesh.watch(two)
    two.tell.fail()
    await anext(events)
    assert await mesh.group([one, two]).ask.walk_beside(barrier) == [0, 0]
    walk = asyncio.create_task(one.walk(barrier))
    await arrived(barrier, 1)
    two.tell.fail()
    with pytest.raises(BarrierBrokenError, match="phoenix failed: ActorFailure"):
        await walk
    assert await barrier.reset() == 2
    await anext(events)
    assert await mesh.group([one, two]).ask.walk_beside(barrier) == [2, 2]


@pytest.mark.parametrize("restart", [None, RestartPolicy.on_failure()], ids=["never", "restarted"])
async def test_a_process_that_dies_wakes_every_waiter_at_once(pair: Mesh, restart: RestartPolicy | None) -> None:
    here, there = await pair.spawn(Walker, node=0), await pair.spawn(Walker, node=2)
    doomed = await pair.spawn(Walker, node=1, name="doomed", restart=restart)
    barrier = await pair.barrier([here, there, doomed])
    walks = [asyncio.create_task(walker.walk(barrier)) for walker in (here, there)]
    await arrived(barrier, 2)
    events = pair.watch(doomed)
    restarted = asyncio.create_task(anext(events)) if restart else None
    doomed.tell.die()
    for walk in walks:
        with pytest.raises(BarrierBrokenError, match=r"doomed .*NodeDiedError") as caught:
            await walk
        assert isinstance(caught.value.reason, NodeDiedError)
    if restarted is not None:
        assert not restarted.done()  # a new process takes longer to come up
        assert isinstance(await restarted, Restarted)


async def test_a_process_that_dies_with_waiters_in_it_wakes_the_others(pair: Mesh) -> None:
    here, doomed = await pair.spawn(Walker, node=0), await pair.spawn(Walker, node=1)
    barrier = await pair.barrier([here, doomed, "never"])
    walks = [asyncio.create_task(walker.walk_beside(barrier)) for walker in (here, doomed)]
    await arrived(barrier, 2)
    doomed.tell.die()
    with pytest.raises(BarrierBrokenError):
        await walks[0]
    with pytest.raises(NodeDiedError):
        await walks[1]


async def test_a_process_that_dies_with_one_in_it_that_waits_under_a_name_wakes_the_others(pair: Mesh) -> None:
    """Nothing else tells of its end: it is no actor."""
    here, doomed = await pair.spawn(Walker, node=0), await pair.spawn(Walker, node=1)
    barrier = await pair.barrier([here, "somebody", "never"])
    walks = [asyncio.create_task(here.walk_beside(barrier)), asyncio.create_task(doomed.walk_as("somebody", barrier))]
    await arrived(barrier, 2)
    doomed.tell.die()
    async with asyncio.timeout(60):
        with pytest.raises(BarrierBrokenError, match="somebody can't be reached any more"):
            await walks[0]
    with pytest.raises(NodeDiedError):
        await walks[1]


async def test_parties_join_and_leave_while_others_wait(mesh: Mesh) -> None:
    one, two, three = await walkers(mesh, 3)
    barrier = await mesh.barrier([one, "a", "b"])
    walk = asyncio.create_task(one.walk(barrier))
    await arrived(barrier, 1)
    await barrier.join(two)
    await barrier.leave("a")
    assert (await barrier.state()).missing == ("b", "walker1")
    other = asyncio.create_task(two.walk(barrier))
    await arrived(barrier, 2)
    await barrier.leave("b")
    assert await walk == await other == [0]
    with pytest.raises(BarrierError, match="walker1 is a party"):
        await barrier.join(two)
    with pytest.raises(BarrierError, match="not a party"):
        await barrier.leave(three)
    await barrier.leave(two)
    assert await one.walk(barrier) == [1]


async def test_who_has_left_may_end_without_breaking_it(mesh: Mesh) -> None:
    one, two = await walkers(mesh, 2)
    barrier = await mesh.barrier([one, two])
    await barrier.leave(two)
    await mesh.stop(two)
    assert await one.walk(barrier) == [0]


async def test_breaking_it_gives_the_cause_and_a_reset_mends_it(mesh: Mesh) -> None:
    one, two = await walkers(mesh, 2)
    barrier = await mesh.barrier([one, two])
    walk = asyncio.create_task(one.walk(barrier))
    await arrived(barrier, 1)
    await barrier.break_("no more of this", ValueError("because"))
    with pytest.raises(BarrierBrokenError, match="no more of this") as caught:
        await walk
    assert isinstance(caught.value.reason, ValueError)
    assert (await barrier.state()).broken == "phase 0: no more of this"
    await barrier.reset()
    assert await mesh.group([one, two]).ask.walk(barrier) == [[1], [1]]


async def test_stopping_the_barrier_wakes_its_waiters(mesh: Mesh) -> None:
    (one,) = await walkers(mesh, 1)
    barrier = await mesh.barrier([one, "never"], name="gate")
    walk = asyncio.create_task(one.walk(barrier))
    await arrived(barrier, 1)
    async with asyncio.timeout(60.0):
        await mesh.stop(barrier.ref)
        with pytest.raises(BarrierBrokenError, match="gate"):
            await walk


async def test_a_process_tells_of_all_its_arrivals_in_one_message(pair: Mesh, monkeypatch: pytest.MonkeyPatch) -> None:
    batches: list[int] = []
    arrive = BarrierHub.arrive

    @concurrent
    async def counted(self: BarrierHub, batch: Any, keys: list[int], phase: int | None) -> Any:
        batches.append(len(keys))
        return await arrive(self, batch, keys, phase)

    monkeypatch.setattr(BarrierHub, "arrive", counted)
    actors = [await pair.spawn(Walker, node=i % 3) for i in range(60)]
    barrier = await pair.barrier(actors)
    assert await pair.group(actors).ask.walk(barrier, 4) == [[0, 1, 2, 3]] * 60
    assert batches == [20] * 3 * 4

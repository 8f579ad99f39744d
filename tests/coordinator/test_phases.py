"""The global barrier between rollouts and updates."""

import asyncio

import pytest
from tests.coordinator.skipped_time import in_skipped_time

from tinker_actors.coordinator import Phase, PhaseBarrier, PhaseBrokenError
from tinker_actors.errors import ConfigError, RunError


async def settle():
    for _ in range(5):
        await asyncio.sleep(0)


async def test_nobody_updates_before_all_rollouts_are_in_nor_rolls_out_before_all_updates():
    barrier, quick_did, may_go_on = PhaseBarrier(["quick", "slow"], timeout=60), [], asyncio.Queue()
    phases = [(step, phase) for step in range(2) for phase in (Phase.ROLLOUT, Phase.UPDATE)]

    async def quick():
        for step, phase in phases:
            quick_did.append((step, phase))
            await barrier.finish("quick", phase, step)

    async def slow():
        for step, phase in phases:
            await may_go_on.get()
            await barrier.finish("slow", phase, step)

    async with asyncio.TaskGroup() as group:
        group.create_task(quick())
        group.create_task(slow())
        for number in range(len(phases)):
            await settle()
            assert quick_did == phases[: number + 1]
            assert barrier.state.waiting_for == ("slow",)
            may_go_on.put_nowait(None)
    assert (barrier.state.step, barrier.state.phase) == (2, Phase.ROLLOUT)


async def test_a_break_wakes_every_waiter_at_once_with_the_cause_and_stays():
    barrier = PhaseBarrier(["a", "b", "c"])
    waiting = [asyncio.create_task(barrier.finish(policy, Phase.ROLLOUT, 0)) for policy in "ab"]
    await settle()
    barrier.break_("trainer of 'c' died")
    barrier.break_("a later cause")
    for task in waiting:
        with pytest.raises(PhaseBrokenError, match="rollout phase of step 0: trainer of 'c' died"):
            await asyncio.wait_for(task, 60)
    with pytest.raises(PhaseBrokenError, match="trainer of 'c' died"):
        await barrier.finish("c", Phase.ROLLOUT, 0)
    assert barrier.state.broken == "rollout phase of step 0: trainer of 'c' died"


@in_skipped_time
async def test_a_party_that_does_not_come_breaks_it_in_time_by_name():
    barrier = PhaseBarrier(["a", "b"], timeout=0.02)
    with pytest.raises(PhaseBrokenError, match=r"policies \['b'\] did not finish within 0.02 s"):
        await asyncio.wait_for(barrier.finish("a", Phase.ROLLOUT, 0), 60)


@in_skipped_time
async def test_the_alarm_of_a_phase_does_not_go_off_in_the_next():
    barrier = PhaseBarrier(["a", "b"], timeout=0.05)
    await asyncio.gather(barrier.finish("a", Phase.ROLLOUT, 0), barrier.finish("b", Phase.ROLLOUT, 0))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.08):
            await asyncio.get_running_loop().create_future()
    assert barrier.state.broken is None


async def test_a_cancelled_waiter_wakes_the_others():
    barrier = PhaseBarrier(["a", "b", "c"])
    first, second = (asyncio.create_task(barrier.finish(policy, Phase.ROLLOUT, 0)) for policy in "ab")
    await settle()
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    with pytest.raises(PhaseBrokenError, match="policy 'a' was cancelled while it waited"):
        await asyncio.wait_for(second, 60)


async def test_a_break_that_nobody_waits_for_is_not_reported_as_forgotten():
    barrier = PhaseBarrier(["a"])
    barrier.break_("early")
    with pytest.raises(PhaseBrokenError, match="early"):
        await barrier.finish("a", Phase.ROLLOUT, 0)


async def test_steps_out_of_turn_are_refused():
    barrier = PhaseBarrier(["a", "b"])
    with pytest.raises(RunError, match="'z' is not a party"):
        await barrier.finish("z", Phase.ROLLOUT, 0)
    with pytest.raises(RunError, match="the rollout phase of step 0 is going on"):
        await barrier.finish("a", Phase.UPDATE, 0)
    waiting = asyncio.create_task(barrier.finish("a", Phase.ROLLOUT, 0))
    await settle()
    with pytest.raises(RunError, match="twice"):
        await barrier.finish("a", Phase.ROLLOUT, 0)
    await barrier.finish("b", Phase.ROLLOUT, 0)
    await waiting


@pytest.mark.parametrize("policies", [[], ["a", "a"]])
def test_a_barrier_needs_parties_each_once(policies):
    with pytest.raises(ConfigError, match="one or more, each once"):
        PhaseBarrier(policies)

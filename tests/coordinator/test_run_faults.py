"""The run's coordinator: policies of several processes, each of which ends in each phase by every means."""

import asyncio
import os
import signal

import pytest
from held_players import Mortal

from tinker_actors.actors import Mesh, RestartPolicy, concurrent
from tinker_actors.coordinator import Phase, PhaseBrokenError, PhaseState, RunCoordinator
from tinker_actors.errors import ActorError, RunError


class Trainer(Mortal):
    """A policy's loop: arrives at the barrier for its policy."""

    def __init__(self, policy):
        self.policy = policy

    @concurrent
    async def finish(self, coordinator, phase, step):
        await coordinator.finish(self.policy, phase, step)


async def crew(mesh, policies, *, nodes=None, restart=None, timeout=None):
    trainers = {
        policy: await mesh.spawn(Trainer, policy, node=(nodes or {}).get(policy, 0), restart=restart)
        for policy in policies
    }
    return trainers, await mesh.spawn(RunCoordinator, trainers, timeout=timeout, node=0)


async def until(coordinator, **wanted):
    """Wait until the coordinator's state has these values."""
    async with asyncio.timeout(60):
        while True:
            state = await coordinator.state()
            if all(getattr(state, name) == value for name, value in wanted.items()):
                return state


async def through(trainers, coordinator, phase, step):
    await asyncio.gather(*(trainer.finish(coordinator, phase, step) for trainer in trainers.values()))


async def to(phase, trainers, coordinator):
    if phase is Phase.UPDATE:
        await through(trainers, coordinator, Phase.ROLLOUT, 0)


async def broken(waiting):
    with pytest.raises(PhaseBrokenError) as caught:
        await asyncio.wait_for(waiting, 60)
    return str(caught.value).split("\n", 1)[0]


PHASES = [Phase.ROLLOUT, Phase.UPDATE]
MEANS = ["exception", "stop", "cancellation", "late"]


@pytest.mark.parametrize("phase", PHASES, ids=lambda phase: phase.value)
@pytest.mark.parametrize("means", MEANS)
async def test_a_policy_that_ends_wakes_every_waiter_and_the_others_go_on(means, phase):
    async with Mesh() as mesh:
        trainers, coordinator = await crew(mesh, "abc", timeout=0.2 if means == "late" else None)
        await to(phase, trainers, coordinator)
        waiting = asyncio.create_task(trainers["a"].finish(coordinator, phase, 0))
        other = asyncio.create_task(trainers["b"].finish(coordinator, phase, 0))
        if means != "late":  # where the alarm runs, the two may be past it before anyone looks
            await until(coordinator, waiting_for=("c",))
        if means == "exception":
            trainers["c"].tell.die()
        elif means == "stop":
            await mesh.stop(trainers["c"])
        elif means == "cancellation":
            other.cancel()
        line = await broken(waiting)
        assert line.startswith(f"{phase.value} phase of step 0: ")
        assert {
            "exception": "of policy 'c' died: ",
            "stop": "of policy 'c' was stopped",
            "cancellation": "policy 'b' was cancelled while it waited",
            "late": "policies ['c'] did not finish within 0.2 s",
        }[means] in line
        lost = "b" if means == "cancellation" else "c"
        await coordinator.leave(lost)
        await coordinator.mend()
        left = {policy: trainer for policy, trainer in trainers.items() if policy != lost}
        await through(left, coordinator, phase, 0)
        await until(coordinator, step=0 if phase is Phase.ROLLOUT else 1)
        assert (await coordinator.state()).broken is None
        await asyncio.gather(other, return_exceptions=True)


@pytest.mark.parametrize("phase", PHASES, ids=lambda phase: phase.value)
@pytest.mark.parametrize("means", ["stop", "exception"])
async def test_the_coordinators_own_end_wakes_every_waiter(means, phase):
    class Fails(RunCoordinator, Mortal):
        pass

    async with Mesh() as mesh:
        trainers = {policy: await mesh.spawn(Trainer, policy) for policy in "ab"}
        coordinator = await mesh.spawn(Fails, trainers)
        await to(phase, trainers, coordinator)
        waiting = asyncio.create_task(trainers["a"].finish(coordinator, phase, 0))
        await until(coordinator, waiting_for=("b",))
        if means == "stop":
            await mesh.stop(coordinator, drain=False)
        else:
            coordinator.tell.die()
        with pytest.raises((ActorError, PhaseBrokenError)):
            await asyncio.wait_for(waiting, 60)


async def killed(victim, phase):
    """A process is killed that holds the loop of a policy, which waits or works, or the coordinator."""
    async with Mesh(nodes=2) as mesh:
        nodes = {"waits": {"a": 1}, "works": {"c": 1}, "coordinator": {}}[victim]
        trainers = {policy: await mesh.spawn(Trainer, policy, node=nodes.get(policy, 0)) for policy in "abc"}
        coordinator = await mesh.spawn(RunCoordinator, trainers, node=int(victim == "coordinator"))
        await to(phase, trainers, coordinator)
        waiting = {policy: asyncio.create_task(trainers[policy].finish(coordinator, phase, 0)) for policy in "ab"}
        await until(coordinator, waiting_for=("c",))
        os.kill(mesh.pids[1], signal.SIGKILL)
        if victim == "coordinator":
            with pytest.raises(ActorError):
                await asyncio.wait_for(waiting["b"], 60)
            await asyncio.gather(*waiting.values(), return_exceptions=True)
            return
        line = await broken(waiting["b"])
        assert "policy 'a'" in line if victim == "waits" else "Trainer-3 of policy 'c' died: NodeDiedError" in line
        await asyncio.gather(*waiting.values(), return_exceptions=True)
        lost = "a" if victim == "waits" else "c"
        await coordinator.leave(lost)
        await coordinator.mend()
        await through({policy: trainers[policy] for policy in "abc" if policy != lost}, coordinator, phase, 0)
        await until(coordinator, broken=None)


@pytest.mark.parametrize("phase", PHASES, ids=lambda phase: phase.value)
async def test_a_killed_process_wakes_every_waiter_and_the_others_go_on(phase):
    await asyncio.gather(*(killed(victim, phase) for victim in ("waits", "works", "coordinator")))


async def test_a_policy_that_comes_back_takes_part_again():
    async with Mesh() as mesh:
        trainers, coordinator = await crew(mesh, "ab", restart=RestartPolicy.on_failure())
        trainers["b"].tell.die()
        async for _ in mesh.watch(trainers["b"]):
            break  # it was started again; nobody waited, so nothing broke
        await through(trainers, coordinator, Phase.ROLLOUT, 0)
        waiting = asyncio.create_task(trainers["a"].finish(coordinator, Phase.UPDATE, 0))
        await until(coordinator, waiting_for=("b",))
        trainers["b"].tell.die()
        assert "of policy 'b' failed: " in await broken(waiting)
        await coordinator.mend()
        await through(trainers, coordinator, Phase.UPDATE, 0)
        assert await coordinator.state() == PhaseState(step=1, phase=Phase.ROLLOUT, waiting_for=("a", "b"), broken=None)


async def test_only_what_is_broken_is_mended_and_somebody_must_be_left():
    async with Mesh() as mesh:
        coordinator = await mesh.spawn(RunCoordinator, {"a": None, "b": None}, step=3)
        with pytest.raises(RunError, match="the rollout phase of step 3 goes on"):
            await coordinator.mend()
        waiting = asyncio.create_task(coordinator.finish("a", Phase.ROLLOUT, 3))
        await until(coordinator, waiting_for=("b",))
        await coordinator.leave("b")
        await asyncio.wait_for(waiting, 60)
        with pytest.raises(RunError, match="last party"):
            await coordinator.leave("a")
        await coordinator.break_("enough")
        with pytest.raises(PhaseBrokenError, match="update phase of step 3: enough"):
            await coordinator.finish("a", Phase.UPDATE, 3)

import asyncio

import pytest

from tinker_actors.actors import Actor, ActorDiedError, ActorFailure, Mesh
from tinker_actors.errors import PolicyConflictError, PolicyError, UnknownPolicyError
from tinker_actors.policies import Origin, PolicyRegistry, Retention, Snapshot, SnapshotStore
from tinker_actors.policies.registry import NOTHING


def snapshot(number, policy="p"):
    return Snapshot(
        handle=f"tinker://{policy}/sampler_weights/{number:06d}",
        policy_id=policy,
        number=number,
        step=number,
        base_model="tiny-llama",
        kind="lora",
        path="somewhere",
        parent=None,
        created_at=0.0,
    )


async def test_the_last_announced_snapshot_is_the_latest():
    async with Mesh(nodes=1) as mesh:
        registry = await mesh.spawn(PolicyRegistry)
        for number in (1, 2, 5):
            await registry.announce(snapshot(number))
        await registry.announce(snapshot(5))
        await registry.announce(snapshot(1, "q"))
        assert await registry.latest("p") == snapshot(5)
        assert await registry.get("tinker://p/sampler_weights/000002") == snapshot(2)
        assert await registry.policies() == ("p", "q")
        with pytest.raises(PolicyError, match=r"000004 can't become the latest; .*000005"):
            await registry.announce(snapshot(4))
        assert await registry.latest("p") == snapshot(5)


async def test_the_unknown_is_an_error_before_and_after_others_exist():
    async with Mesh(nodes=1) as mesh:
        registry = await mesh.spawn(PolicyRegistry)
        with pytest.raises(UnknownPolicyError, match="'p'"):
            await registry.latest("p")
        await registry.announce(snapshot(1, "q"))
        with pytest.raises(UnknownPolicyError, match="'p'"):
            await registry.latest("p")
        with pytest.raises(UnknownPolicyError, match="000001"):
            await registry.get("tinker://p/sampler_weights/000001")


async def test_a_retired_snapshot_is_unknown_and_the_latest_cannot_be_retired():
    async with Mesh(nodes=1) as mesh:
        registry = await mesh.spawn(PolicyRegistry)
        await registry.announce(snapshot(1))
        await registry.announce(snapshot(2))
        await registry.retire(snapshot(1).handle)
        with pytest.raises(UnknownPolicyError):
            await registry.get(snapshot(1).handle)
        with pytest.raises(PolicyError, match="is the latest"):
            await registry.retire(snapshot(2).handle)


async def test_an_announcement_that_expects_another_latest_changes_nothing():
    async with Mesh(nodes=1) as mesh:
        registry = await mesh.spawn(PolicyRegistry)
        await registry.announce(snapshot(1), expected=NOTHING)
        await registry.announce(snapshot(2), expected=snapshot(1).handle)
        with pytest.raises(PolicyConflictError, match=r"000001 was expected to be it, but .*000002 is"):
            await registry.announce(snapshot(3), expected=snapshot(1).handle)
        with pytest.raises(PolicyConflictError, match="nothing was expected"):
            await registry.announce(snapshot(3), expected=NOTHING)
        with pytest.raises(PolicyConflictError, match="but nothing is"):
            await registry.announce(snapshot(1, "q"), expected=snapshot(1).handle)
        assert await registry.latest("p") == snapshot(2)
        assert await registry.policies() == ("p",)


async def test_of_writers_at_one_time_one_is_first():
    async with Mesh(nodes=1) as mesh:
        registry = await mesh.spawn(PolicyRegistry)
        await registry.announce(snapshot(1))
        tries = [registry.announce(snapshot(number), expected=snapshot(1).handle) for number in (2, 3, 4)]
        ends = await asyncio.gather(*tries, return_exceptions=True)
        assert sum(end is None for end in ends) == 1
        assert sum(isinstance(end, PolicyConflictError) for end in ends) == 2


@pytest.mark.parametrize("nodes", [1, 2])
async def test_subscribers_hear_the_latest_and_then_every_announcement(nodes):
    async with Mesh(nodes=nodes) as mesh:
        registry = await mesh.spawn(PolicyRegistry, node=nodes - 1)
        await registry.announce(snapshot(1))
        await registry.announce(snapshot(1, "q"))
        of_p, of_all = registry.stream.announcements("p"), registry.stream.announcements()
        assert await anext(of_p) == snapshot(1)
        assert {await anext(of_all), await anext(of_all)} == {snapshot(1), snapshot(1, "q")}
        await registry.announce(snapshot(2, "q"))
        await registry.announce(snapshot(2))
        assert await anext(of_p) == snapshot(2)
        assert await anext(of_all) == snapshot(2, "q")
        assert await anext(of_all) == snapshot(2)
        await of_p.aclose()
        await of_all.aclose()


async def test_a_reader_that_does_not_read_holds_nobody_up_and_gets_the_newest():
    async with Mesh(nodes=1) as mesh:
        registry = await mesh.spawn(PolicyRegistry)
        slow = registry.options(buffer=1).stream.announcements()
        await registry.announce(snapshot(1))
        assert await anext(slow) == snapshot(1)
        for number in range(2, 3000):
            await registry.announce(snapshot(number))
        numbers = [(await anext(slow)).number]
        while numbers[-1] < 2999:
            numbers.append((await anext(slow)).number)
        assert len(numbers) < 10
        await slow.aclose()


class Reader(Actor):
    def __init__(self, registry: PolicyRegistry) -> None:
        self._registry = registry

    async def use(self, *handles: str) -> None:
        await self._registry.lease(self.ref, handles)

    async def fall(self) -> None:
        raise ActorFailure("over")


def stored(store, policy="p"):
    return store.publish(policy, lambda folder: None, Origin(step=0, base_model="tiny-llama"))


async def test_what_somebody_uses_does_not_expire_until_they_say_so(tmp_path):
    store = SnapshotStore(tmp_path)
    async with Mesh(nodes=1) as mesh:
        registry = await mesh.spawn(PolicyRegistry, str(tmp_path))
        shots = [stored(store) for _ in range(4)]
        for shot in shots:
            await registry.announce(shot)
        one, two, three, four = (shot.handle for shot in shots)
        await registry.lease("somebody", [one, two])
        store.pin(three)
        assert await registry.in_use() == (one, two)
        assert await registry.expire("p", Retention(keep_last=1)) == ()
        with pytest.raises(PolicyError, match=r"in use by .*somebody"):
            await registry.retire(one)
        await registry.lease("somebody", [two])
        assert await registry.expire("p", Retention(keep_last=1)) == (one,)
        with pytest.raises(UnknownPolicyError, match="000001"):
            await registry.lease("somebody", [one])
        assert await registry.in_use() == (two,)
        await registry.lease("somebody", [])
        assert await registry.expire("p", Retention(keep_last=1)) == (two,)
        assert [shot.handle for shot in await registry.list("p")] == [three, four]
        assert [shot.handle for shot in store.list("p")] == [three, four]


async def test_a_snapshot_that_is_newer_than_the_announced_one_does_not_make_that_one_expire(tmp_path):
    store = SnapshotStore(tmp_path)
    async with Mesh(nodes=1) as mesh:
        registry = await mesh.spawn(PolicyRegistry, str(tmp_path))
        first = stored(store)
        await registry.announce(first)
        stored(store)
        assert await registry.expire("p", Retention(keep_last=1)) == ()
        assert await registry.latest("p") == first


@pytest.mark.parametrize("nodes", [1, 2])
async def test_what_a_dead_actor_used_is_free_again(tmp_path, nodes):
    store = SnapshotStore(tmp_path)
    async with Mesh(nodes=nodes) as mesh:
        registry = await mesh.spawn(PolicyRegistry, str(tmp_path), node=0)
        shots = [stored(store) for _ in range(3)]
        for shot in shots:
            await registry.announce(shot)
        stopped = await mesh.spawn(Reader, registry, node=nodes - 1)
        fallen = await mesh.spawn(Reader, registry, node=nodes - 1)
        await stopped.use(shots[0].handle)
        await fallen.use(shots[1].handle)
        assert len(await registry.in_use()) == 2
        await mesh.stop(stopped)
        with pytest.raises(ActorDiedError):
            await fallen.fall()
        async with asyncio.timeout(60):
            while await registry.in_use():
                pass  # the mesh tells the registry of the ends in its own time
        assert len(await registry.expire("p", Retention(keep_last=1))) == 2


async def test_a_deleted_policy_is_forgotten_unless_used():
    async with Mesh(nodes=1) as mesh:
        registry = await mesh.spawn(PolicyRegistry)
        await registry.announce(snapshot(1))
        await registry.lease("somebody", [snapshot(1).handle])
        with pytest.raises(PolicyError, match="in use"):
            await registry.forget("p")
        await registry.lease("somebody", [])
        await registry.forget("p")
        with pytest.raises(UnknownPolicyError):
            await registry.forget("p")
        with pytest.raises(PolicyError, match="no store"):
            await registry.expire("p", Retention(keep_last=1))

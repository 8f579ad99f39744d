import pytest

from tinker_actors.actors import Mesh
from tinker_actors.errors import PolicyError, UnknownPolicyError
from tinker_actors.policies import PolicyRegistry, Snapshot


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

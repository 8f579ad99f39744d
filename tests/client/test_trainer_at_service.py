"""The trainer actor over a service: what it says is what this package's trainer says, and what it keeps is there."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from tests.gateway.gateways import served

from tinker_actors.actors import Mesh
from tinker_actors.data import Datum, EpisodeEnd, ModelInput, Trajectory, rl_datums, turns_from_prompts
from tinker_actors.errors import ConfigError, NotInTrainingError, PolicyError, StoreError
from tinker_actors.gateway.gateway import Gateway
from tinker_actors.gateway.runtime import ServedModel
from tinker_actors.models import load_tokenizer
from tinker_actors.policies import PolicySpec, Snapshot, SnapshotStore
from tinker_actors.policies.at_service import path_at_service
from tinker_actors.policies.sealing import Manifest
from tinker_actors.sampling import InvalidRequestError, SamplingParams, SamplingRequest
from tinker_actors.sampling.backends import TinkerSampler, TinkerSettings
from tinker_actors.services.trainer import TinkerTrainer
from tinker_actors.services.trainer_settings import TinkerTrainerSettings
from tinker_actors.training import (
    Adam8bitParams,
    AdamParams,
    ForwardBackwardResult,
    LossConfig,
    Trainer,
    TrainsPolicies,
)

pytest.importorskip("tinker")

pytestmark = pytest.mark.sdk

MODEL = "tiny-llama"
TOKENIZER = load_tokenizer(MODEL)
SERVED = ServedModel(name=MODEL, sampler={"kv_memory": 2**24})
SPEC = PolicySpec(base_model=MODEL, rank=4, seed=3, name="p")
STEP = AdamParams(learning_rate=5e-3, grad_clip_norm=1.0)
LOSS = LossConfig(name="ppo")


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TINKER_API_KEY", "tml-none")


@asynccontextmanager
async def trainers(root: Path, **settings: object) -> AsyncIterator[tuple[Mesh, Trainer, TinkerTrainer, Gateway]]:
    """A trainer here, and one at a gateway on a socket."""
    async with served(root / "service", SERVED) as (gateway, url), Mesh() as mesh:
        here = await mesh.spawn(Trainer, base_model=MODEL, store=str(root / "here"))
        there = await spawn(mesh, url, root / "there", **settings)
        yield mesh, here, there, gateway


async def spawn(mesh: Mesh, url: str, store: Path, **settings: object) -> TinkerTrainer:
    return await mesh.spawn(
        TinkerTrainer, base_model=MODEL, store=str(store), settings=TinkerTrainerSettings(url=url, **settings)
    )


def played(*, scales: Sequence[float] = (1.0,), reference: bool = False) -> list[Datum]:
    """RL datums of a few trajectories of two turns each."""
    found: list[Datum] = []
    for number, text in enumerate(("left", "a river", "so it goes")):
        first, second = TOKENIZER.encode(text), TOKENIZER.encode("no")
        asked, more = TOKENIZER.encode("which?"), TOKENIZER.encode(" and?")
        turns = turns_from_prompts(
            [
                (asked, first, [-2.5 - 0.1 * place for place in range(len(first))]),
                ([*asked, *first, *more], second, [-3.0, -4.25]),
            ]
        )
        trajectory = Trajectory(seat="s", policy="p", turns=turns, end=EpisodeEnd.TERMINATED)
        found += rl_datums(trajectory, 0.75 * number - 0.5, scale=scales[number % len(scales)])
    if not reference:
        return found
    return [replace(datum, reference_logprobs=tuple(-3.0 * bit for bit in datum.mask or ())) for datum in found]


def written(text: str, *, scale: float = 1.0) -> Datum:
    tokens = TOKENIZER.encode(text)
    targets = tuple(tokens[1:])
    return Datum(model_input=ModelInput.of(tokens[:-1]), targets=targets, weights=(1.0,) * len(targets), scale=scale)


async def steps(
    trainer: TrainsPolicies, name: str, datums: Sequence[Datum], loss: LossConfig
) -> list[tuple[ForwardBackwardResult, float]]:
    """What two updates of a new policy say."""
    found: list[tuple[ForwardBackwardResult, float]] = []
    await trainer.create(replace(SPEC, name=name))
    for number in (1, 2):
        (result,) = await trainer.forward_backward_many([(name, datums, loss)])
        done = await trainer.optim_step(name, STEP)
        assert done.step == number
        found.append((result, done.grad_norm))
    return found


async def test_a_service_of_this_package_gives_the_bits_that_are_computed_here(tmp_path: Path):
    datums = played(reference=True)
    async with trainers(tmp_path) as (_, here, there, _):
        for loss in (
            LossConfig(name="importance_sampling"),
            LossConfig(name="ppo", clip_high=1.3),
            LossConfig(name="dro"),
            LossConfig(name="gspo"),
            LossConfig(name="truncated_is", ratio="sequence_mean"),
            LossConfig(name="cispo", kl_coefficient=0.1),
        ):
            ours, theirs = [await steps(trainer, loss.name, datums, loss) for trainer in (here, there)]
            assert theirs == ours
        # of entropies only the mean is told
        loss = LossConfig(name="ppo", entropy_coefficient=0.05)
        for (one, norm), (other, found) in zip(
            await steps(here, "e", datums, loss), await steps(there, "e", datums, loss), strict=True
        ):
            assert (other.logprobs, found) == (one.logprobs, norm)
            assert other.loss == pytest.approx(one.loss, rel=1e-12)
            assert other.metrics["entropy_mean"] == one.metrics["entropy_mean"]


def close(theirs: object, ours: object) -> None:
    for (other, found), (one, norm) in zip(theirs, ours, strict=True):  # type: ignore[call-overload]
        assert found == pytest.approx(norm, rel=2e-4)
        assert other.loss == pytest.approx(one.loss, rel=2e-4)
        for key in one.metrics.keys() & other.metrics.keys():
            assert other.metrics[key] == pytest.approx(one.metrics[key], rel=2e-3, abs=1e-5), key


async def test_scales_that_the_protocol_has_no_field_for_count_as_they_do_here(tmp_path: Path):
    mean, by_sequence = played(scales=(1 / 27,), reference=True), played(scales=(0.1, 0.5, 0.0625), reference=True)
    cases = [
        ("mean", mean, LossConfig(name="ppo")),
        ("mean_dro", mean, LossConfig(name="dro", beta=0.1)),
        ("mean_kl", mean, LossConfig(name="ppo", kl_coefficient=0.2, entropy_coefficient=0.1)),
        ("by_sequence", by_sequence, LossConfig(name="cispo")),
        ("by_sequence_kl", by_sequence, LossConfig(name="ppo", kl_coefficient=0.2, kl_estimator="k2")),
        ("written", [written("one", scale=0.25), written("and two", scale=2.0)], LossConfig(name="cross_entropy")),
    ]
    async with trainers(tmp_path) as (_, here, there, _):
        for name, datums, loss in cases:
            close(await steps(there, name, datums, loss), await steps(here, name, datums, loss))


async def test_at_a_service_without_extensions_the_losses_that_it_lacks_are_computed_here(tmp_path: Path):
    datums = played(scales=(0.5, 0.25), reference=True)
    async with trainers(tmp_path, takes_masks=False) as (_, here, there, _):
        for loss in (
            LossConfig(name="ppo"),
            LossConfig(name="dro"),
            LossConfig(name="gspo"),
            LossConfig(name="dual_clip_ppo"),
            LossConfig(name="masked_is"),
            LossConfig(name="importance_sampling", kl_coefficient=0.1),
        ):
            close(await steps(there, loss.name, datums, loss), await steps(here, loss.name, datums, loss))


async def test_what_is_saved_lies_at_the_service_and_goes_on_exactly(tmp_path: Path):
    datums = played()
    async with served(tmp_path / "service", SERVED) as (gateway, url), Mesh() as mesh:
        first = await spawn(mesh, url, tmp_path / "store")
        await steps(first, "p", datums, LOSS)
        state, snapshot = await first.save("p", "half"), await first.publish("p")
        assert (state, snapshot.handle, snapshot.step) == (
            "tinker://p/weights/half",
            "tinker://p/sampler_weights/000001",
            2,
        )
        store = SnapshotStore(tmp_path / "store")
        path = path_at_service(store, store.get(state))
        assert path is not None
        assert gateway.records.checkpoints.get(path) is not None
        assert [*store.manifest(snapshot.handle).files] == ["service.json"]
        after = await first.forward_backward("p", datums, LOSS)
        moved = await first.optim_step("p", STEP)
        await mesh.stop(first)

        again = await spawn(mesh, url, tmp_path / "store")
        assert await again.load(state) == "p"
        assert await again.forward_backward("p", datums, LOSS) == after
        assert await again.optim_step("p", STEP) == moved
        cold = await again.load(state, policy="cold", optimizer=False)
        assert (await again.forward(cold, datums, LOSS)).logprobs == after.logprobs
        await again.forward_backward(cold, datums, LOSS)
        assert (await again.optim_step(cold, STEP)).step == 1
        assert (await again.publish("p")).parent == state

        sampler = await mesh.spawn(
            TinkerSampler, base_model=MODEL, store=str(store.root), settings=TinkerSettings(url=url)
        )
        await sampler.refresh([snapshot.handle])
        prompt = tuple(TOKENIZER.encode("which?"))
        reply = await sampler.sample(
            SamplingRequest(prompt=prompt, snapshot=snapshot.handle, params=SamplingParams(max_tokens=2, seed=1))
        )
        assert (reply.snapshot, reply.snapshot_step) == (snapshot.handle, 2)

        store.delete(state)  # as retention does
        store.delete(snapshot.handle)
        assert gateway.records.checkpoints.get(path) is not None
        await again.publish("p")
        assert gateway.records.checkpoints.get(path) is None
        assert gateway.records.checkpoints.count("model_id = ?", path.split("/")[2]) == 0


async def test_a_name_that_is_taken_is_refused_before_anything_changes_at_the_service(tmp_path: Path):
    datums = played()
    async with trainers(tmp_path) as (_, _, there, _):
        policy = await there.create(SPEC)
        state = await there.save(policy, "half")
        before = await there.forward(policy, datums, LOSS)
        await there.forward_backward(policy, datums, LOSS)
        await there.optim_step(policy, STEP)
        with pytest.raises(PolicyError, match="tinker://p/weights/half exists"):
            await there.save(policy, "half")
        again = await there.load(state, policy="again")
        assert (await there.forward(again, datums, LOSS)).logprobs == before.logprobs


@pytest.mark.parametrize("name", ["checkpoint", "publish"])
async def test_what_the_store_does_not_take_stays_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str):
    store = getattr(SnapshotStore, name)

    def full(self: SnapshotStore, *arguments: object, **options: object) -> Snapshot:
        if self.root == tmp_path / "there":
            raise StoreError("the store can't be reached")
        return store(self, *arguments, **options)

    async with trainers(tmp_path) as (_, _, there, gateway):
        policy = await there.create(SPEC)
        monkeypatch.setattr(SnapshotStore, name, full)
        with pytest.raises(StoreError):
            await (there.publish(policy) if name == "publish" else there.save(policy, "half"))
        assert gateway.records.checkpoints.where() == []


async def test_a_publish_reads_no_manifest_of_what_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    read: list[Path | str] = []
    manifest = SnapshotStore.manifest

    def counted(self: SnapshotStore, handle: str) -> Manifest:
        read.append(self.root)
        return manifest(self, handle)

    async with served(tmp_path / "service", SERVED) as (_, url), Mesh() as mesh:
        there = await spawn(mesh, url, tmp_path / "there")
        policy = await there.create(SPEC)
        for _ in range(3):
            await there.publish(policy)
        monkeypatch.setattr(SnapshotStore, "manifest", counted)
        await there.publish(policy)
        assert tmp_path / "there" not in read


async def test_a_session_ends_although_its_store_can_not_be_read_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def gone(self: SnapshotStore, policy_id: str, kind: str) -> frozenset[str]:
        raise StoreError("the store can't be reached")

    async with served(tmp_path / "service", SERVED) as (gateway, url):
        async with Mesh() as mesh:
            there = await spawn(mesh, url, tmp_path / "there")
            await there.publish(await there.create(SPEC))
            monkeypatch.setattr(SnapshotStore, "handles", gone)
            with contextlib.suppress(StoreError):
                await mesh.stop(there)
        (session,) = gateway.records.sessions.where()
        assert session.ended_at is not None


async def test_what_a_service_can_not_be_asked_for_is_refused_by_name(tmp_path: Path):
    async with trainers(tmp_path) as (mesh, here, there, _):
        for given, said in (
            ({"kind": "full"}, "kind is 'full'"),
            ({"alpha": 16.0}, r"alpha is 16\.0; a Tinker service takes none and has 32\.0"),
            ({"value_head": True}, "value_head is true"),
            ({"target_modules": ("q_proj",)}, r"target_modules is \['q_proj'\]"),
        ):
            with pytest.raises(ConfigError, match=said):
                await there.create(replace(SPEC, **given))
        await there.create(SPEC)
        with pytest.raises(PolicyError, match="'p' is in training"):
            await there.create(SPEC)
        with pytest.raises(NotInTrainingError, match=r"policy 'q' is not in training here; \['p'\] are"):
            await there.forward_backward("q", played(), LOSS)
        with pytest.raises(InvalidRequestError, match="has no gradients"):
            await there.optim_step("p", STEP)
        await there.forward_backward("p", played(), LOSS)
        with pytest.raises(ConfigError, match="Adam8bitParams; a Tinker service takes AdamParams"):
            await there.optim_step("p", Adam8bitParams(learning_rate=1e-3))
        with pytest.raises(PolicyError, match="handle name is"):
            await there.save("p", "../x")
        await here.create(SPEC)
        local = await here.save("p", "local")
        with pytest.raises(PolicyError, match="was trained here; a Tinker service goes on only from what was"):
            await there.load(local, store=str(tmp_path / "here"))
        url = there_url = "http://127.0.0.1:1"
        with pytest.raises(ConfigError, match=f"at {there_url} can't be reached: "):
            await spawn(mesh, url, tmp_path / "none")

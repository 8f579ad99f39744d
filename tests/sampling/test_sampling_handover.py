"""Snapshots published in the sampler's own process, beside the same ones read from a store."""

import shutil
from pathlib import Path

import pytest
import torch
from sampling_harness import ask

from tinker_actors.data import EpisodeEnd, Trajectory, sft_datums, turns_from_prompts
from tinker_actors.models import load_base
from tinker_actors.policies import PolicySpec, SnapshotStore
from tinker_actors.policies.handover import handed_over
from tinker_actors.sampling.kv_pool import KVPool
from tinker_actors.sampling.networks import Rows
from tinker_actors.sampling.residents import Residents
from tinker_actors.sampling.runs import Span
from tinker_actors.training import AdamParams, LossConfig
from tinker_actors.training.engine import TrainingEngine

KINDS = pytest.mark.parametrize("kind", ["lora", "full"])


@pytest.fixture
def trainer(publisher, kind):
    engine = TrainingEngine("tiny-llama", publisher.store.root)
    engine.create(PolicySpec(base_model="tiny-llama", name="p", kind=kind, rank=4))
    train(engine)
    return engine


def train(engine):
    turns = turns_from_prompts([([5, 6, 7], [8, 9], [-0.5, -0.5])])
    datums = sft_datums(Trajectory(seat="a", policy="p", turns=turns, end=EpisodeEnd.TERMINATED))
    engine.forward_backward("p", datums, LossConfig(name="cross_entropy"))
    engine.optim_step("p", AdamParams(learning_rate=0.05, weight_decay=0.1))


def loaded(store, handle):
    residents = Residents(base=load_base("tiny-llama"), store=store)
    residents.replace([handle], residents.check([handle]))
    return residents


@torch.inference_mode()
def logits(residents, handle):
    resident = residents.pin(handle)
    network = resident.network
    rows = Rows(
        ids=[5, 6, 7, 8],
        positions=torch.arange(4),
        spans=[Span(start=0, size=32, held=0, count=4)],
        slots=[resident.slot] * 4,
        wanted=[3],
    )
    found = network.logits(rows, KVPool(network.kv_shape, 32, network.dtype))
    residents.unpin(resident)
    return found.clone()


def elsewhere(store, folder):
    """A copy of the store, of which nothing was published in this process."""
    shutil.copytree(store.root, folder)
    return SnapshotStore(folder)


@KINDS
def test_what_was_published_here_is_served_without_its_files_and_as_if_read_from_them(trainer, tmp_path, kind):
    snapshot = trainer.publish("p")
    read = loaded(elsewhere(trainer.store, tmp_path / "copy"), snapshot.handle)
    for weights in Path(snapshot.path).glob("*.safetensors"):
        weights.unlink()
    taken = loaded(trainer.store, snapshot.handle)
    assert torch.equal(logits(taken, snapshot.handle), logits(read, snapshot.handle))


@KINDS
def test_what_is_served_stays_as_it_was_published_while_the_policy_trains_on(trainer, kind):
    snapshot = trainer.publish("p")
    taken = loaded(trainer.store, snapshot.handle)
    before = logits(taken, snapshot.handle)
    train(trainer)
    later = trainer.publish("p")
    trainer.load(trainer.save("p", "x"))
    train(trainer)
    assert torch.equal(logits(taken, snapshot.handle), before)
    taken.replace([later.handle], taken.check([later.handle]))
    assert not torch.equal(logits(taken, later.handle), before)


@KINDS
def test_a_snapshot_that_nobody_holds_after_the_next_step_is_read_from_the_store(trainer, tmp_path, kind):
    snapshot = trainer.publish("p")
    assert handed_over(snapshot) is not None
    expected = logits(loaded(elsewhere(trainer.store, tmp_path / "copy"), snapshot.handle), snapshot.handle)
    train(trainer)
    assert handed_over(snapshot) is None
    assert torch.equal(logits(loaded(trainer.store, snapshot.handle), snapshot.handle), expected)


@pytest.mark.parametrize("kind", ["full"])
def test_full_weights_are_copied_only_when_the_policy_writes_to_what_is_served(trainer, kind):
    def places():
        return {name: value.data_ptr() for name, value in trainer._policies["p"].model.named_parameters()}

    alone = places()
    trainer.publish("p")
    train(trainer)
    assert places() == alone  # nobody held what was published
    taken = loaded(trainer.store, handle := trainer.publish("p").handle)
    resident = taken.pin(handle)
    assert {name: value.data_ptr() for name, value in resident.lent.parameters.items()} == alone
    train(trainer)
    assert not set(places().values()) & set(alone.values())
    moved = places()
    taken.unpin(resident)
    del resident
    taken.replace([], {})
    taken.collect()
    trainer.publish("p")
    train(trainer)
    assert places() == moved


@KINDS
def test_a_sampler_takes_over_what_a_trainer_in_its_process_published(trainer, harness, kind):
    engine = harness(context_length=64)
    snapshot = trainer.publish("p")
    for weights in Path(snapshot.path).glob("*.safetensors"):
        weights.unlink()
    engine.refresh(snapshot.handle)
    (reply,) = engine.serve([ask(snapshot.handle, "ask", max_tokens=4)])
    assert reply.snapshot == snapshot.handle

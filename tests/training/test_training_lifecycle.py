"""From creation by role to forks, snapshots that samplers serve, and exports for other programs."""

import asyncio
import json
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from tinker_actors.actors import Mesh
from tinker_actors.errors import ConfigError, PolicyError, UnknownPolicyError
from tinker_actors.kernels import NO_ADAPTER
from tinker_actors.models import load_base, save_model_directory
from tinker_actors.models.lora import MultiLoraModel
from tinker_actors.policies import PolicyRegistry, PolicySpec, Retention
from tinker_actors.sampling import Sampler, SamplingParams, SamplingRequest
from tinker_actors.training import Trainer
from tinker_actors.training.engine import TrainingEngine

TOKENS = torch.tensor([[5, 6, 7, 8, 9], [9, 8, 7, 6, 5]])
ROLES = [("attention",), ("mlp",), ("unembed",), ("attention", "mlp", "unembed")]
MODULES = {
    "attention": {"q_proj", "k_proj", "v_proj", "o_proj"},
    "mlp": {"gate_proj", "up_proj", "down_proj"},
    "unembed": {"lm_head"},
}


@torch.no_grad()
def logits_of(model):
    return model(input_ids=TOKENS).logits


def untied(folder):
    """A base whose head is not its embeddings."""
    model = load_base("tiny-llama").skeleton()
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone() * 1.5)
    model.config.tie_word_embeddings = False
    return str(save_model_directory(model, "tiny-llama", folder))


def trained(engine, make, name="p", **changes):
    policy = engine.create(make.spec(name, base_model=engine.base_model, **changes))
    make.train(engine, policy, 2)
    return policy


@pytest.mark.filterwarnings("ignore:.*tie_word_embeddings")
@pytest.mark.parametrize("roles", ROLES)
@pytest.mark.parametrize("tied", [True, False])
def test_roles_adapt_what_they_name_and_every_reader_agrees(make, tmp_path, roles, tied):
    base = "tiny-llama" if tied else untied(tmp_path / "base")
    engine = TrainingEngine(base, tmp_path / "store")
    before = {name: value.clone() for name, value in engine.base.model.state_dict().items()}
    policy = trained(engine, make, targets=roles)
    snapshot = engine.publish(policy)
    config = json.loads((Path(snapshot.path) / "adapter_config.json").read_text())
    assert set(config["target_modules"]) == set().union(*(MODULES[role] for role in roles))
    ours = logits_of(engine._policies[policy].model)
    assert not torch.equal(ours, logits_of(engine.base.model))
    plain = PeftModel.from_pretrained(load_base(base).skeleton(), snapshot.path)
    assert torch.equal(logits_of(plain), ours)
    lora = MultiLoraModel(load_base(base).skeleton())
    slot = lora.load(snapshot.path)
    with torch.no_grad(), lora.using([slot, NO_ADAPTER], tokens_per_row=TOKENS.shape[1]):
        served = lora.model(TOKENS).logits
        last = lora.model(TOKENS, logits_to_keep=1).logits
    torch.testing.assert_close(served[0], ours[0], rtol=0, atol=1e-5)
    assert torch.equal(served[1], logits_of(engine.base.model)[1])
    torch.testing.assert_close(last[:, 0], served[:, -1], rtol=0, atol=1e-6)
    merged = AutoModelForCausalLM.from_pretrained(engine.export_base(policy, tmp_path / "merged"))
    torch.testing.assert_close(logits_of(merged), ours, rtol=0, atol=2e-5)
    after = engine.base.model.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"targets": ("head",)}, "targets has 'head'; roles are attention, mlp, unembed"),
        ({"targets": ("mlp", "mlp")}, "each role is needed once"),
        ({"targets": ("mlp",), "target_modules": ("q_proj",)}, "one or the other"),
    ],
)
def test_roles_that_cannot_work_are_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        PolicySpec(base_model="tiny-llama", **changes)


@pytest.mark.parametrize("changes", [{"targets": ("attention", "unembed"), "rank": 2}, {"kind": "full"}])
def test_a_fork_starts_cold_from_a_snapshots_weights(engine, make, exact, changes):
    policy = trained(engine, make, **changes)
    snapshot = engine.publish(policy)
    weights = {name: value.clone() for name, value in engine._policies[policy].weights().items()}
    make.train(engine, policy, 1)
    before = exact.state(engine, policy)
    forked = engine.fork(snapshot.handle, policy="q")
    assert forked == "q"
    assert exact.same({name: value.clone() for name, value in engine._policies["q"].weights().items()}, weights)
    assert (engine._policies["q"].step, engine._policies["q"].spec.rank) == (0, engine._policies[policy].spec.rank)
    assert engine.publish("q").parent == snapshot.handle
    make.train(engine, "q", 1)
    assert exact.same(exact.state(engine, policy), before)
    with pytest.raises(PolicyError, match="'q' is in training here already"):
        engine.fork(snapshot.handle, policy="q")
    with pytest.raises(UnknownPolicyError, match="000009"):
        engine.fork("tinker://p/sampler_weights/000009")


def test_a_fork_of_a_checkpoint_is_that_of_the_snapshot(engine, make):
    policy = trained(engine, make)
    one, two = engine.fork(engine.save(policy, "x")), engine.fork(engine.publish(policy).handle)
    assert one != two
    first, second = engine._policies[one].weights(), engine._policies[two].weights()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_policies_live_in_a_store_elsewhere(make, tmp_path, monkeypatch):
    monkeypatch.setenv("TINKER_ACTORS_CACHE", str(tmp_path / "cache"))
    engine = TrainingEngine("tiny-llama", f"memory://{tmp_path.name}")
    policy = trained(engine, make)
    handle, snapshot = engine.save(policy, "x"), engine.publish(policy)
    ours = logits_of(engine._policies[policy].model)
    other = TrainingEngine("tiny-llama", f"memory://{tmp_path.name}")
    assert torch.equal(logits_of(other._policies[other.load(handle)].model), ours)
    assert torch.equal(logits_of(other._policies[other.fork(snapshot.handle)].model), ours)


async def test_what_was_just_published_can_be_sampled_or_says_why_not(tmp_path, make):  # A9
    async with Mesh(nodes=1) as mesh:
        store = str(tmp_path / "store")
        trainer = await mesh.spawn(Trainer, base_model="tiny-llama", store=store)
        sampler = await mesh.spawn(Sampler, base_model="tiny-llama", store=store)
        policy = await trainer.create(make.spec("p"))

        async def sample(handle):
            request = SamplingRequest(prompt=(5, 6), snapshot=handle, params=SamplingParams(max_tokens=2))
            return await sampler.options(timeout=20).sample(request)

        handle = await trainer.save(policy, "x")
        with pytest.raises(UnknownPolicyError, match="is not loaded"):
            await sample(handle)
        with pytest.raises(PolicyError, match="of kind weights; sampler_weights is needed"):
            await sampler.refresh([handle])
        snapshot = await trainer.publish(policy)
        with pytest.raises(UnknownPolicyError, match="is not loaded"):
            await sample(snapshot.handle)
        early = sample("tinker://p/sampler_weights/000002")
        later, missed = await asyncio.gather(trainer.publish(policy), early, return_exceptions=True)
        assert isinstance(missed, UnknownPolicyError)
        await sampler.refresh([later.handle])
        assert (await sample(later.handle)).snapshot == later.handle


async def test_a_hundred_policies_come_and_go_in_two_slots(tmp_path, make):  # A7
    engine = TrainingEngine("tiny-llama", tmp_path / "store")
    lora = MultiLoraModel(load_base("tiny-llama").skeleton(), capacity=2)
    async with Mesh(nodes=1) as mesh:
        registry = await mesh.spawn(PolicyRegistry, str(tmp_path / "store"))
        held = []
        for number in range(100):
            policy = engine.create(make.spec(f"p{number}", rank=2))
            snapshot = engine.publish(policy)
            await registry.announce(snapshot)
            held.append((policy, snapshot.handle, lora.load(snapshot.path)))
            if len(held) == 2:
                gone, handle, slot = held.pop(0)
                lora.unload(slot)
                engine.delete(gone)
                await registry.forget(gone)
                engine.store.delete(handle)
            assert lora.resident <= 2
        (last, handle, slot) = held.pop()
        lora.unload(slot)
        engine.delete(last)
        assert await registry.expire(last, Retention(keep_last=1)) == ()
        await registry.forget(last)
        engine.store.delete(handle)
        assert (lora.resident, engine.policies(), await registry.policies()) == (0, (), ())
        assert all(engine.store.list(policy) == () for policy in engine.store.policies())

"""bf16 bases: adapters and master weights stay fp32, and training is close to that in fp32."""

import pytest
import torch

from tinker_actors.policies import PolicySpec
from tinker_actors.training import AdamParams, LossConfig, TrainingEngine

LOSS = LossConfig(name="cross_entropy")


def spec_of(kind):
    return PolicySpec(base_model="tiny-llama", kind=kind, **({"rank": 8} if kind == "lora" else {}))


def trained(tmp_path, dtype, kind, datums, steps=6):
    """Losses of some steps, and the policy."""
    engine = TrainingEngine("tiny-llama", tmp_path / dtype, dtype)
    policy = engine.create(spec_of(kind))
    losses = []
    for _ in range(steps):
        losses.append(engine.forward_backward(policy, datums, LOSS).loss)
        engine.optim_step(policy, AdamParams(learning_rate=3e-3))
    return losses, engine._policies[policy]


@pytest.mark.parametrize("kind", ["lora", "full"])
def test_training_over_a_bf16_base_follows_fp32_with_fp32_weights_and_moments(tmp_path, make, kind):
    datums = make.batch(6, kind="sft")
    expected, _ = trained(tmp_path, "float32", kind, datums)
    found, policy = trained(tmp_path, "bfloat16", kind, datums)
    assert expected[-1] < 0.9 * expected[0]
    assert found == pytest.approx(expected, rel=0.01)
    assert found != expected
    for name, value in policy.state().items():
        assert not value.is_floating_point() or value.dtype == torch.float32, name


def test_a_full_policy_over_a_bf16_base_multiplies_in_bf16(tmp_path, make):
    engine = TrainingEngine("tiny-llama", tmp_path, "bfloat16")
    policy = engine.create(spec_of("full"))
    model, seen = engine._policies[policy].model, []
    layer = model.get_submodule("model.layers.0.mlp.up_proj")
    layer.register_forward_hook(lambda _, arguments, output: seen.append((layer.weight.dtype, output.dtype)))
    engine.forward_backward(policy, make.batch(2, kind="sft"), LOSS)
    assert set(seen) == {(torch.float32, torch.bfloat16)}


def test_steps_too_small_for_bf16_add_up_in_the_master_weights(tmp_path, make):
    engine = TrainingEngine("tiny-llama", tmp_path, "bfloat16")
    policy = engine.create(spec_of("full"))
    weight = engine._policies[policy].parameters["model.layers.0.mlp.up_proj.weight"]
    before = weight.detach().clone()
    for _ in range(4):
        engine.forward_backward(policy, make.batch(2, kind="sft"), LOSS)
        engine.optim_step(policy, AdamParams(learning_rate=1e-6))
    moved = (weight - before).abs()
    assert float((moved > 0).float().mean()) > 0.9
    assert float((weight.bfloat16() != before.bfloat16()).float().mean()) < 0.1


def test_checkpointing_and_shared_prompts_change_little_in_bf16(tmp_path, make):
    datums = make.batch(4, kind="sft")
    engine = TrainingEngine("tiny-llama", tmp_path, "bfloat16")
    found = []
    for settings in ({}, {"gradient_checkpointing": True}, {"share_prompts": False}):
        policy = engine.create(spec_of("full"))
        loss = LossConfig(name="cross_entropy", **settings)
        value = engine.forward_backward(policy, datums, loss).loss
        norm = engine.optim_step(policy, AdamParams(learning_rate=1e-3)).grad_norm
        found.append((value, norm))
    assert found[1] == found[0]
    assert found[2] == pytest.approx(found[0], rel=0.01)

import json
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

from tinker_actors.models import load_base
from tinker_actors.training.engine import TrainingEngine

TOKENS = torch.tensor([[5, 6, 7, 8, 9]])


@torch.no_grad()
def logits_of(model):
    return model(input_ids=TOKENS).logits


def trained(engine, make, **changes):
    policy = engine.create(make.spec("p", **changes))
    make.train(engine, policy, 2)
    return policy


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_snapshot_loads_in_plain_peft_with_the_same_logits(engine, make):
    snapshot = engine.publish(trained(engine, make, rank=4, alpha=16.0))
    config = json.loads((Path(snapshot.path) / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["base_model_name_or_path"]) == (4, 16.0, "tiny-llama")
    plain = PeftModel.from_pretrained(load_base("tiny-llama").skeleton(), snapshot.path)
    assert torch.equal(logits_of(plain), logits_of(engine._policies["p"].model))
    assert not torch.equal(logits_of(plain), logits_of(engine.base.model))


def test_a_full_snapshot_loads_in_plain_transformers_with_the_same_logits(engine, make):
    snapshot = engine.publish(trained(engine, make, kind="full"))
    assert snapshot.kind == "full"
    plain = AutoModelForCausalLM.from_pretrained(snapshot.path)
    torch.testing.assert_close(logits_of(plain), logits_of(engine._policies["p"].model), rtol=0, atol=1e-6)
    engine.store.verify(snapshot)


def test_numbers_rise_and_tell_step_and_lineage(engine, make):
    policy = engine.create(make.spec("p"))
    first = engine.publish(policy)
    make.train(engine, policy, 3)
    second = engine.publish(policy)
    assert [(found.number, found.step, found.parent) for found in (first, second)] == [
        (1, 0, None),
        (2, 3, first.handle),
    ]
    assert engine.store.latest("p") == second
    assert (second.base_model, second.kind) == ("tiny-llama", "lora")


def test_publishing_does_not_change_the_policy(engine, make, exact):
    policy = trained(engine, make)
    engine.forward_backward(policy, make.batch(), make.ppo)
    before = exact.state(engine, policy)
    engine.publish(policy)
    engine.save(policy, "x")
    engine.export_base(policy, engine.store.root / "export")
    assert exact.same(exact.state(engine, policy), before)


@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`:UserWarning")
@pytest.mark.parametrize("targets", [("lm_head",), ("embed_tokens",), ("embed_tokens", "lm_head", "q_proj")])
def test_an_export_of_adapted_embeddings_or_head_unties_them(engine, make, tmp_path, targets):
    assert engine.base.config.tie_word_embeddings
    policy = trained(engine, make, target_modules=targets)
    plain = AutoModelForCausalLM.from_pretrained(engine.export_base(policy, tmp_path / "merged"))
    torch.testing.assert_close(logits_of(plain), logits_of(engine._policies["p"].model), rtol=0, atol=2e-5)
    assert engine.base.model.lm_head.weight is engine.base.model.model.embed_tokens.weight


@pytest.mark.parametrize("kind", ["lora", "full"])
def test_an_export_is_a_base_of_its_own(engine, make, tmp_path, kind):
    policy = trained(engine, make, kind=kind)
    path = engine.export_base(policy, tmp_path / "warm")
    plain = AutoModelForCausalLM.from_pretrained(path)
    torch.testing.assert_close(logits_of(plain), logits_of(engine._policies["p"].model), rtol=0, atol=2e-5)
    assert AutoTokenizer.from_pretrained(path).decode([10, 11])
    again = TrainingEngine(path, tmp_path / "store")
    fresh = again.create(make.spec(base_model=path))
    old = engine.forward(policy, [make.sft([5, 6], [7, 8])], make.sft_loss)
    new = again.forward(fresh, [make.sft([5, 6], [7, 8])], make.sft_loss)
    assert new.logprobs[0] == pytest.approx(old.logprobs[0], abs=2e-5)

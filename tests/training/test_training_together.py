"""Several policies in one pass over the base: cases A3, A5 and A6, bit for bit."""

import pytest
import torch
from transformers import LlamaForCausalLM

from tinker_actors.errors import DataError, PolicyError, UnknownPolicyError
from tinker_actors.models import load_base
from tinker_actors.sampling.networks import Network
from tinker_actors.training import LossConfig
from tinker_actors.training.engine import TrainingEngine

LOSSES = {
    "small": LossConfig(name="ppo"),
    "wide": LossConfig(name="importance_sampling", micro_batch_tokens=30),
    "taught": LossConfig(name="cross_entropy"),
    "long": LossConfig(name="ppo", share_prompts=False, entropy_coefficient=0.01),
}


def populate(engine, make):
    """Policies of unlike rank, alpha and targets."""
    engine.create(make.spec("small", rank=4, alpha=32.0, seed=1))
    engine.create(make.spec("wide", rank=8, alpha=32.0, seed=2, target_modules=("q_proj", "v_proj")))
    engine.create(make.spec("taught", rank=16, alpha=8.0, seed=3))
    engine.create(make.spec("long", rank=1, seed=4, target_modules=("up_proj", "down_proj")))


def batch(make, name, step):
    count, longest = {"small": (6, 12), "wide": (1, 3), "taught": (9, 20), "long": (2, 60)}[name]
    kind = "sft" if name == "taught" else "rl"
    return make.batch(count, seed=10 * step + count, kind=kind, longest=longest)


@pytest.fixture
def other(tmp_path):
    return TrainingEngine("tiny-llama", tmp_path / "other")


@pytest.mark.parametrize("company", [("small", "wide"), ("long", "small", "wide", "taught")])
def test_a_policy_trains_in_company_as_it_does_alone_bit_for_bit(engine, other, make, exact, company):
    populate(engine, make)
    populate(other, make)
    for step in range(3):
        together = engine.forward_backward_many([(name, batch(make, name, step), LOSSES[name]) for name in company])
        for name, result in zip(company, together, strict=True):
            assert other.forward_backward(name, batch(make, name, step), LOSSES[name]) == result
            assert exact.same(exact.state(engine, name), exact.state(other, name))
        for name in company:
            engine.optim_step(name, make.adam)
            other.optim_step(name, make.adam)


def test_those_who_take_no_part_keep_weights_moments_and_pending_gradients(engine, make, exact):
    populate(engine, make)
    for name in LOSSES:
        engine.forward_backward(name, batch(make, name, 0), LOSSES[name])
        engine.optim_step(name, make.adam)
        engine.forward_backward(name, batch(make, name, 1), LOSSES[name])
    before = {name: exact.state(engine, name) for name in LOSSES}
    engine.forward_backward_many([(name, batch(make, name, 2), LOSSES[name]) for name in ("small", "wide")])
    engine.optim_step("small", make.adam)
    for name in ("taught", "long"):
        assert exact.same(exact.state(engine, name), before[name])
    assert not exact.same(exact.state(engine, "small"), before["small"])


def test_the_base_keeps_every_bit(engine, make):
    before = {name: value.clone() for name, value in engine.base.model.state_dict().items()}
    populate(engine, make)
    engine.forward_backward_many([(name, batch(make, name, 0), LOSSES[name]) for name in LOSSES])
    engine.optim_step("small", make.adam)
    assert all(torch.equal(value, before[name]) for name, value in engine.base.model.state_dict().items())


def test_a_policy_of_nan_spoils_nobody_else(engine, other, make, exact):
    populate(engine, make)
    populate(other, make)
    for parameter in engine._policies["wide"].parameters.values():
        parameter.data.fill_(torch.nan)
    engine.forward_backward_many([(name, batch(make, name, 0), LOSSES[name]) for name in LOSSES])
    for name in ("small", "taught", "long"):
        other.forward_backward(name, batch(make, name, 0), LOSSES[name])
        assert exact.same(exact.state(engine, name), exact.state(other, name))


@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`:UserWarning")
def test_policies_of_other_kinds_take_part(engine, other, make, exact):
    for home in (engine, other):
        home.create(make.spec("all", kind="full"))
        home.create(make.spec("words", target_modules=("embed_tokens", "q_proj")))
        home.create(make.spec("head", target_modules=("lm_head", "v_proj")))
        home.create(make.spec("small"))
    order = ("all", "words", "small", "head")
    results = engine.forward_backward_many([(name, make.batch(5, seed=3), make.ppo) for name in order])
    for name, result in zip(order, results, strict=True):
        assert other.forward_backward(name, make.batch(5, seed=3), make.ppo) == result
        assert exact.same(exact.state(engine, name), exact.state(other, name))


def test_giving_up_between_passes_leaves_everyone_as_before(engine, make, exact):
    populate(engine, make)
    engine.forward_backward("small", batch(make, "small", 0), LOSSES["small"])
    before = {name: exact.state(engine, name) for name in LOSSES}
    calls = []

    def proceed():
        calls.append(1)
        if len(calls) == 2:
            raise InterruptedError

    small = LossConfig(name="ppo", micro_batch_tokens=16)
    with pytest.raises(InterruptedError):
        engine.forward_backward_many(
            [(name, make.batch(6), small) for name in ("small", "wide", "long")], proceed=proceed
        )
    assert all(exact.same(exact.state(engine, name), before[name]) for name in LOSSES)


def test_what_cannot_be_computed_is_refused_before_anything_is(engine, make, exact):
    populate(engine, make)
    good = ("small", make.batch(2), make.ppo)
    before = exact.state(engine, "small")
    with pytest.raises(DataError, match="loss ppo needs mask"):
        engine.forward_backward_many([good, ("wide", [make.sft([5], [6])], make.ppo)])
    with pytest.raises(PolicyError, match=r"\['small'\] stand more than once"):
        engine.forward_backward_many([good, good])
    with pytest.raises(UnknownPolicyError, match="'nobody'"):
        engine.forward_backward_many([good, ("nobody", make.batch(2), make.ppo)])
    assert exact.same(exact.state(engine, "small"), before)


def test_passes_are_shared(engine, make, monkeypatch):
    populate(engine, make)
    calls = []
    original = LlamaForCausalLM.get_decoder
    monkeypatch.setattr(LlamaForCausalLM, "get_decoder", lambda model: calls.append(1) or original(model))
    engine.forward_backward_many([(name, make.batch(2), make.ppo) for name in ("small", "wide", "long")])
    assert len(calls) == 1


def test_trainer_and_sampler_hold_the_base_once(engine, make):
    populate(engine, make)
    sampler = Network(load_base("tiny-llama").skeleton())
    places = {parameter.data_ptr() for parameter in load_base("tiny-llama").model.parameters()}
    models = [engine._lora.model, sampler._model, *(policy.model for policy in engine._policies.values())]
    for model in models:
        frozen = [parameter for parameter in model.parameters() if not parameter.requires_grad]
        assert {parameter.data_ptr() for parameter in frozen} == places

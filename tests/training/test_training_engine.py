import dataclasses
import math

import pytest
import torch

from tinker_actors.data import EpisodeEnd, ModelInput, SamplingRecord, Trajectory, Turn, TurnEnd, rl_datums
from tinker_actors.errors import ConfigError, DataError, PolicyError, UnknownPolicyError
from tinker_actors.models import load_base
from tinker_actors.training import AdamParams, LossConfig
from tinker_actors.training.batching import MicroBatch
from tinker_actors.training.engine import TrainingEngine
from tinker_actors.training.scoring import score


def wake(engine, policy, scale=0.05):
    """Give a LoRA policy weights that differ from the base's, in both factors."""
    held = engine._policies[policy]
    generator = torch.Generator().manual_seed(7)
    for parameter in held.parameters.values():
        parameter.data += torch.randn(parameter.shape, generator=generator) * scale


def gradients(engine, policy):
    return torch.cat([value.flatten() for value in engine._policies[policy].gradients().values()])


class TwoLogits(torch.nn.Module):
    """Always answers the logits [2, 0]."""

    def __init__(self):
        super().__init__()
        self.head = torch.nn.Linear(1, 2, bias=False)
        self.head.weight.data = torch.tensor([[2.0], [0.0]])

    def get_output_embeddings(self):
        return self.head

    dtype = torch.float32

    def forward(self, input_ids, attention_mask, position_ids, use_cache):
        class Output:
            logits = self.head(torch.ones(*input_ids.shape, 1))

        return Output


def test_temperature_divides_the_logits():
    one = torch.tensor([0])
    batch = MicroBatch(
        tokens_BL=torch.tensor([[1]]),
        positions_BL=torch.tensor([[0]]),
        attention=None,
        rows_N=one,
        columns_N=one,
        targets_N=one,
        temperatures_N=torch.tensor([2.0]),
        slots_N=one,
    )
    logprobs, entropy, _ = score(TwoLogits(), batch)
    assert logprobs.tolist() == pytest.approx([-0.313262], abs=1e-6)
    p = 1 / (1 + math.exp(-1))
    assert entropy.tolist() == pytest.approx([-p * math.log(p) - (1 - p) * math.log(1 - p)], abs=1e-6)


@pytest.mark.parametrize("kind", ["lora", "full"])
def test_log_probs_equal_those_of_the_model_row_by_row(engine, make, kind):
    policy = engine.create(make.spec(kind=kind))
    wake(engine, policy)
    datums = make.batch(7)
    result = engine.forward(policy, datums, make.ppo)
    model = engine._policies[policy].model
    for datum, row in zip(datums, result.logprobs, strict=True):
        logits = model(input_ids=torch.tensor([datum.model_input.tokens])).logits[0]
        expected = torch.log_softmax(logits, -1)[range(len(datum)), list(datum.targets)] * torch.tensor(datum.mask)
        torch.testing.assert_close(torch.tensor(row), expected.detach(), rtol=0, atol=2e-6)
        assert [value != 0 for value in row] == [bit == 1 for bit in datum.mask]


def test_all_targets_can_be_scored_without_changing_the_loss(engine, make):
    policy = engine.create(make.spec())
    datum = make.sft([5, 6, 7], [8, 9])
    some = engine.forward(policy, [datum], make.sft_loss)
    every = engine.forward(policy, [datum], make.sft_loss, every_target=True)
    assert some.logprobs[0][:2] == (0.0, 0.0)
    assert all(value < 0 for value in every.logprobs[0])
    assert every.loss == pytest.approx(some.loss, rel=1e-6)
    assert every.metrics["tokens"] == some.metrics["tokens"] == 2


def sampled_trajectory(model, temperature, prompts=((5, 6, 7), (9,)), length=4):
    """Two turns sampled by hand, one token after the other, from the model itself."""
    generator = torch.Generator().manual_seed(3)
    held, turns = [], []
    for prompt in prompts:
        held += prompt
        action, logprobs = [], []
        for _ in range(length):
            logits = model(input_ids=torch.tensor([held])).logits[0, -1]
            row = torch.log_softmax(logits / temperature, -1)
            token = int(torch.multinomial(row.exp(), 1, generator=generator))
            held.append(token)
            action.append(token)
            logprobs.append(float(row[token]))
        record = SamplingRecord(snapshot_min="s", snapshot_max="s", snapshot_step=0, temperature=temperature)
        turns.append(
            Turn(
                observation=ModelInput.of(prompt),
                action=tuple(action),
                logprobs=tuple(logprobs),
                end=TurnEnd.LENGTH,
                sampling=record,
            )
        )
    return Trajectory(seat="agent", policy="p", turns=tuple(turns), end=EpisodeEnd.TERMINATED)


@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_without_an_update_between_the_ratio_is_1_on_every_token(engine, make, temperature):
    policy = engine.create(make.spec())
    wake(engine, policy)
    with torch.no_grad():
        trajectory = sampled_trajectory(engine._policies[policy].model, temperature)
    datums = [*rl_datums(trajectory, 1.0), make.rl([5] * 20, [6] * 20)]  # beside a longer row, so that it is padded
    result = engine.forward_backward(policy, datums, make.ppo)
    old = torch.tensor(datums[0].logprobs)
    assert (torch.tensor(result.logprobs[0]) - old).exp().sub(1).abs().max() < 1e-6


def test_no_observation_target_has_a_gradient_and_actions_become_likelier(engine, make):
    policy = engine.create(make.spec(kind="full"))
    model = engine._policies[policy].model
    trajectory = make.trajectory(([5, 6], [7, 8], None), ([5, 6, 7, 8, 9, 10], [11], None))
    (datum,) = rl_datums(trajectory, 1.0)
    assert datum.mask == (0, 1, 1, 0, 0, 1)
    seen = {}
    # Nothing but the head follows the last norm, so its gradient at a position is that of the target it predicts.
    hook = model.model.norm.register_full_backward_hook(lambda module, given, grad: seen.update(grad=grad[0][0]))
    before = engine.forward_backward(policy, [datum], LossConfig(name="importance_sampling"))
    hook.remove()
    assert not seen["grad"][6:].any()  # padding
    assert [bool(row.abs().sum() > 0) for row in seen["grad"][:6]] == [bit == 1 for bit in datum.mask]
    # With a large eps Adam's first step is proportional to the gradient, as in plain gradient descent.
    engine.optim_step(policy, AdamParams(learning_rate=0.1, eps=10.0, beta1=0.0, beta2=0.0))
    after = engine.forward(policy, [datum], LossConfig(name="importance_sampling"))
    assert sum(after.logprobs[0]) > sum(before.logprobs[0])


@pytest.mark.parametrize("kind", ["rl", "sft"])
@pytest.mark.parametrize("budget", [1, 30, 2048])
def test_the_split_changes_neither_result_nor_gradient(engine, make, kind, budget):
    name = "ppo" if kind == "rl" else "cross_entropy"
    datums = make.batch(8, kind=kind)
    found = []
    for tokens in (64, budget):
        policy = engine.create(make.spec())
        wake(engine, policy)
        found.append(
            (engine.forward_backward(policy, datums, LossConfig(name=name, micro_batch_tokens=tokens)), policy)
        )
    (left, a), (right, b) = found
    assert right.loss == pytest.approx(left.loss, rel=1e-5)
    assert right.metrics == pytest.approx(left.metrics, rel=1e-4, abs=1e-6)
    for one, other in zip(left.logprobs, right.logprobs, strict=True):
        assert other == pytest.approx(one, abs=2e-6)
    torch.testing.assert_close(gradients(engine, a), gradients(engine, b), rtol=1e-4, atol=1e-4)


def test_results_come_in_the_callers_order(engine, make):
    policy = engine.create(make.spec())
    datums = make.batch(8)
    whole = engine.forward(policy, datums, make.ppo).logprobs
    turned = engine.forward(policy, datums[::-1], make.ppo).logprobs
    for one, other in zip(whole, turned[::-1], strict=True):
        assert other == pytest.approx(one, abs=2e-6)


def test_gradients_add_up_over_calls_until_the_step(engine, make):
    apart, whole = engine.create(make.spec()), engine.create(make.spec())
    first, second = make.batch(3, seed=1), make.batch(3, seed=2)
    engine.forward_backward(apart, first, make.ppo)
    engine.forward_backward(apart, second, make.ppo)
    engine.forward_backward(whole, first + second, make.ppo)
    torch.testing.assert_close(gradients(engine, apart), gradients(engine, whole), rtol=1e-4, atol=1e-4)
    engine.optim_step(apart, make.adam)
    with pytest.raises(PolicyError, match="forward_backward comes before optim_step"):
        engine.optim_step(apart, make.adam)


def test_forward_leaves_gradients_alone(engine, make, exact):
    policy = engine.create(make.spec())
    engine.forward_backward(policy, make.batch(), make.ppo)
    before = exact.state(engine, policy)
    engine.forward(policy, make.batch(seed=9), make.ppo)
    assert exact.same(exact.state(engine, policy), before)


def test_a_pass_that_is_given_up_adds_no_gradient(engine, make, exact):
    policy = engine.create(make.spec())
    engine.forward_backward(policy, make.batch(), make.ppo)
    before = exact.state(engine, policy)
    calls = iter([None, None])

    def proceed():
        if next(calls, "stop") == "stop":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        engine.forward_backward(
            policy, make.batch(seed=1), LossConfig(name="ppo", micro_batch_tokens=1), proceed=proceed
        )
    assert exact.same(exact.state(engine, policy), before)


def test_a_batch_without_trained_tokens_is_zero_and_may_be_stepped(engine, make, exact):
    policy = engine.create(make.spec())
    before = engine._policies[policy].weights()
    before = {name: value.clone() for name, value in before.items()}
    result = engine.forward_backward(policy, [make.sft([5], [6, 7], weight=0.0)], make.sft_loss)
    assert (result.loss, result.logprobs) == (0.0, ((0.0, 0.0),))
    assert engine.optim_step(policy, make.adam).grad_norm == 0
    assert exact.same(engine._policies[policy].weights(), before)


def test_one_policys_steps_leave_the_other_bit_for_bit(engine, make, exact, tmp_path):
    a, b = engine.create(make.spec("a", seed=1)), engine.create(make.spec("b", seed=2, rank=8, alpha=16.0))
    make.train(engine, b, 2)
    engine.forward_backward(a, make.batch(seed=5), make.ppo)
    engine.forward_backward(b, make.batch(seed=6), make.ppo)
    before = exact.state(engine, b)
    engine.optim_step(a, make.adam)
    make.train(engine, a, 2)
    engine.create(make.spec("c"))
    engine.delete("c")
    assert exact.same(exact.state(engine, b), before)

    alone = TrainingEngine("tiny-llama", tmp_path / "other")
    alone.create(make.spec("a", seed=1))
    alone.forward_backward("a", make.batch(seed=5), make.ppo)
    alone.optim_step("a", make.adam)
    make.train(alone, "a", 2)
    assert exact.same(exact.state(engine, "a"), exact.state(alone, "a"))


@pytest.mark.parametrize("kind", ["lora", "full"])
def test_base_weights_stay_bit_identical(engine, make, kind):
    before = {name: value.clone() for name, value in engine.base.model.state_dict().items()}
    policy = engine.create(make.spec(kind=kind, target_modules="all-linear"))
    make.train(engine, policy, 2)
    engine.publish(policy)
    engine.export_base(policy, engine.store.root / "export")
    after = engine.base.model.state_dict()
    assert all(torch.equal(value, after[name]) for name, value in before.items())
    assert before.keys() == after.keys()
    assert load_base("tiny-llama") is engine.base


def test_policies_of_one_base_share_its_storage(engine, make):
    a, b = engine.create(make.spec()), engine.create(make.spec())
    weights = [
        engine._policies[name].model.model.layers[0].self_attn.q_proj.base_layer.weight.data_ptr() for name in (a, b)
    ]
    assert weights == [engine.base.model.model.layers[0].self_attn.q_proj.weight.data_ptr()] * 2


def test_the_same_spec_gives_the_same_weights_whatever_was_made_before(engine, make, exact):
    torch.manual_seed(1)
    first = engine.create(make.spec(seed=3))
    engine.create(make.spec(seed=4, rank=8))
    torch.manual_seed(2)
    again, other = engine.create(make.spec(seed=3)), engine.create(make.spec(seed=5))
    assert exact.same(exact.state(engine, first), exact.state(engine, again))
    assert not exact.same(exact.state(engine, first), exact.state(engine, other))


def test_making_a_policy_draws_nothing_from_the_processs_random_numbers(engine, make):
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    engine.create(make.spec())
    assert torch.equal(torch.rand(3), expected)


def test_ranks_and_alphas_scale_as_alpha_over_rank(engine, make):
    datum = make.sft([5, 6, 7], [8, 9])
    plain = engine.forward(engine.create(make.spec(kind="full")), [datum], make.sft_loss).logprobs
    for rank, scale in ((4, 8.0), (8, 4.0)):
        policy = engine.create(make.spec(rank=rank, alpha=32.0))
        assert engine.forward(policy, [datum], make.sft_loss).logprobs[0] == pytest.approx(plain[0], abs=1e-6)
        wake(engine, policy)
        held = engine._policies[policy]
        # The same by hand: the base's weights with scale * B @ A added.
        model = engine.base.skeleton()
        for name, module in model.named_modules():
            if f"{name}.lora_A.default.weight" in held.parameters:
                delta = (
                    held.parameters[f"{name}.lora_B.default.weight"] @ held.parameters[f"{name}.lora_A.default.weight"]
                )
                module.weight = torch.nn.Parameter(module.weight + scale * delta.detach(), requires_grad=False)
        logits = model(input_ids=torch.tensor([datum.model_input.tokens])).logits[0]
        expected = torch.log_softmax(logits, -1)[range(4), list(datum.targets)]
        got = engine.forward(policy, [datum], make.sft_loss).logprobs[0]
        assert got[2:] == pytest.approx(expected[2:].tolist(), abs=1e-5)


def test_a_learning_rate_of_zero_changes_no_weight(engine, make, exact):
    policy = engine.create(make.spec())
    make.train(engine, policy, 1)
    before = {name: value.clone() for name, value in engine._policies[policy].weights().items()}
    engine.forward_backward(policy, make.batch(seed=8), make.ppo)
    engine.optim_step(policy, AdamParams(learning_rate=0.0, weight_decay=0.1))
    assert exact.same(engine._policies[policy].weights(), before)


def test_weight_decay_is_decoupled_from_the_gradient(engine, make):
    policy = engine.create(make.spec(kind="full"))
    before = {name: value.clone() for name, value in engine._policies[policy].weights().items()}
    engine.forward_backward(policy, [make.sft([5], [6], weight=0.0)], make.sft_loss)
    engine.optim_step(policy, AdamParams(learning_rate=0.1, weight_decay=0.5))
    for name, value in engine._policies[policy].weights().items():
        torch.testing.assert_close(value, before[name] * 0.95)


def test_the_gradient_is_clipped_to_the_norm_asked_for(engine, make):
    clipped, scaled = engine.create(make.spec()), engine.create(make.spec())
    sgd = {"beta1": 0.0, "beta2": 0.0, "eps": 1e6, "learning_rate": 1e6}  # so the step is the gradient
    for policy, limit in ((clipped, 0.01), (scaled, None)):
        engine.forward_backward(policy, make.batch(), make.ppo)
        found = engine.optim_step(policy, AdamParams(**sgd, grad_clip_norm=limit))
    start = engine.create(make.spec())
    moved = [
        torch.cat(
            [
                (value - engine._policies[start].weights()[name]).flatten()
                for name, value in engine._policies[policy].weights().items()
            ]
        )
        for policy in (clipped, scaled)
    ]
    assert found.grad_norm > 0.1
    assert float(moved[0].norm()) == pytest.approx(0.01, rel=1e-3)
    torch.testing.assert_close(moved[0] / moved[0].norm(), moved[1] / moved[1].norm(), rtol=1e-3, atol=1e-4)


def test_a_gradient_that_is_not_finite_is_refused_and_dropped(engine, make, exact):
    policy = engine.create(make.spec())
    make.train(engine, policy, 1)
    before = exact.state(engine, policy)
    engine.forward_backward(policy, make.batch(seed=2), make.ppo)
    parameter = next(iter(engine._policies[policy].parameters.values()))
    parameter.grad[0, 0] = float("inf")
    with pytest.raises(PolicyError, match=r"at step 1: the gradient has norm inf.*in 1 of"):
        engine.optim_step(policy, make.adam)
    assert exact.same(exact.state(engine, policy), before)
    make.train(engine, policy, 1)


def test_the_padding_id_of_the_model_is_trained_like_any_token(engine, make):
    policy = engine.create(make.spec(kind="full"))
    pad = engine.base.config.pad_token_id
    assert pad is not None
    engine.forward_backward(policy, [make.sft([5, pad, 6], [7])], make.sft_loss)
    embedding = engine._policies[policy].model.get_input_embeddings()
    tied = embedding.weight is engine._policies[policy].model.get_output_embeddings().weight
    reached = embedding.weight.grad[pad].clone()
    if tied:  # leave out what comes through the head: it is there for every id
        engine.optim_step(policy, AdamParams(learning_rate=0.0))
        engine.forward_backward(policy, [make.sft([5, 8, 6], [7])], make.sft_loss)
        reached = reached - embedding.weight.grad[pad]
    assert reached.abs().max() > 1e-3


def test_a_datum_that_does_not_fit_is_refused_before_anything_is_computed(engine, make, exact):
    policy = engine.create(make.spec())
    before = exact.state(engine, policy)
    with pytest.raises(DataError, match="datum 1"):
        engine.forward_backward(policy, [make.rl([1], [2]), make.rl([1], [10**6])], make.ppo)
    assert exact.same(exact.state(engine, policy), before)


def test_names_and_bases_are_checked(engine, make):
    engine.create(make.spec("a"))
    with pytest.raises(PolicyError, match="'a' is in training here already"):
        engine.create(make.spec("a"))
    with pytest.raises(ConfigError, match="tiny-qwen3"):
        engine.create(make.spec(base_model="tiny-qwen3"))
    with pytest.raises(ConfigError, match=r"target_modules has 'w_proj'.*q_proj"):
        engine.create(make.spec(target_modules=("q_proj", "w_proj")))
    for call in (engine.publish, engine.delete, lambda policy: engine.save(policy, "x")):
        with pytest.raises(UnknownPolicyError, match="'nobody'"):
            call("nobody")
    engine.delete("a")
    assert engine.policies() == ()
    assert engine.create(make.spec("a")) == "a"


def test_adapters_over_a_bf16_base_are_fp32_and_learn(make, tmp_path):
    engine = TrainingEngine("tiny-llama", tmp_path, dtype="bfloat16")
    policy = engine.create(make.spec())
    held = engine._policies[policy]
    assert {value.dtype for value in held.parameters.values()} == {torch.float32}
    assert held.model.model.layers[0].self_attn.q_proj.base_layer.weight.dtype == torch.bfloat16
    batch = make.batch(kind="sft")
    before = engine.forward(policy, batch, make.sft_loss).loss
    for _ in range(3):
        engine.forward_backward(policy, batch, make.sft_loss)
        engine.optim_step(policy, make.adam)
    assert engine.forward(policy, batch, make.sft_loss).loss < 0.9 * before


def test_named_targets_alone_are_adapted(engine, make):
    policy = engine.create(make.spec(target_modules=("q_proj", "v_proj")))
    adapted = {name.split(".")[-4] for name in engine._policies[policy].parameters}
    assert adapted == {"q_proj", "v_proj"}


def test_info_tells_steps_and_pending_calls(engine, make):
    policy = engine.create(make.spec("a"))
    make.train(engine, policy, 2)
    engine.forward_backward(policy, make.batch(), make.ppo)
    snapshot = engine.publish(policy)
    (info,) = engine.policies()
    assert (info.policy_id, info.step, info.pending, info.snapshot) == ("a", 2, 1, snapshot.handle)
    assert dataclasses.replace(info, parameters=0).kind == "lora"

import pytest
import torch

from tinker_actors.errors import ConfigError, PolicyError
from tinker_actors.training import Adam8bitParams, AdamParams, MuonParams
from tinker_actors.training.adamw_8bit import SIGNED, UNSIGNED, dequantise, quantise
from tinker_actors.training.engine import TrainingEngine
from tinker_actors.training.schedules import scheduled

OPTIMIZERS = pytest.mark.parametrize("params", [AdamParams, Adam8bitParams, MuonParams])


def train(engine, make, policy, params, steps, first=0):
    for step in range(first, first + steps):
        engine.forward_backward(policy, make.batch(seed=step), make.ppo)
        engine.optim_step(policy, params(learning_rate=1e-2, weight_decay=0.01))


def weights_of(engine, policy):
    return {name: value.clone() for name, value in engine._policies[policy].weights().items()}


def is_matrix(name):
    return name.endswith("_proj.weight")


@OPTIMIZERS
def test_a_resumed_run_is_the_run_bit_for_bit_with_any_optimizer(engine, make, exact, params):
    engine.create(make.spec("p", kind="full"))
    train(engine, make, "p", params, 2)
    engine.forward_backward("p", make.batch(seed=50), make.ppo)
    handle = engine.save("p", "middle")
    saved = exact.state(engine, "p")
    train(engine, make, "p", params, 2, first=60)

    later = TrainingEngine("tiny-llama", engine.store.root)
    later.load(handle)
    assert exact.same(exact.state(later, "p"), saved)
    train(later, make, "p", params, 2, first=60)
    assert exact.same(exact.state(later, "p"), exact.state(engine, "p"))
    later.load(handle, policy="cold", optimizer=False)
    train(later, make, "cold", params, 2, first=60)
    assert not exact.same(later._policies["cold"].weights(), engine._policies["p"].weights())


@OPTIMIZERS
def test_a_learning_rate_of_zero_changes_no_weight_after_a_restart(engine, make, exact, params):
    engine.create(make.spec("p", kind="full"))
    train(engine, make, "p", params, 1)
    engine.load(engine.save("p", "x"))
    before = weights_of(engine, "p")
    engine.forward_backward("p", make.batch(seed=8), make.ppo)
    engine.optim_step("p", params(learning_rate=0.0, weight_decay=0.1))
    assert exact.same(engine._policies["p"].weights(), before)


def orthogonal(matrix):
    """Five quintic Newton-Schulz iterations in fp64 (Jordan et al. 2024)."""
    x = matrix.double() / matrix.double().norm()
    for _ in range(5):
        gram = x @ x.T
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x


def test_muon_moves_hidden_matrices_along_their_orthogonalised_gradient_and_all_else_by_adamw(engine, make):
    for policy in ("muon", "adamw"):
        engine.create(make.spec(policy, kind="full"))
        engine.forward_backward(policy, make.batch(), make.ppo)
    before = weights_of(engine, "muon")
    gradients = {name: value.clone() for name, value in engine._policies["muon"].gradients().items()}
    engine.optim_step("muon", MuonParams(learning_rate=1e-2))
    engine.optim_step("adamw", AdamParams(learning_rate=1e-2))
    by_adamw = weights_of(engine, "adamw")
    matrices = 0
    for name, after in weights_of(engine, "muon").items():
        if not is_matrix(name):
            assert torch.equal(after, by_adamw[name]), name
            continue
        matrices += 1
        moved = before[name] - after
        expected = 1e-2 * 0.2 * max(moved.shape) ** 0.5 * orthogonal(gradients[name])
        # torch iterates in bf16, which blurs small singular values
        assert float((moved - expected).norm() / expected.norm()) < 0.25, name
        plain = gradients[name] * (expected.norm() / gradients[name].norm())
        assert float((plain - expected).norm() / expected.norm()) > 0.5, name
        assert float(moved.norm()) == pytest.approx(float(expected.norm()), rel=0.05)
    assert matrices == 7 * engine.base.config.num_hidden_layers


def test_muon_is_refused_for_an_adapter_and_the_gradients_stay(engine, make, exact):
    engine.create(make.spec("p"))
    engine.forward_backward("p", make.batch(), make.ppo)
    before = exact.state(engine, "p")
    with pytest.raises(PolicyError, match=r"'p': muon .* kind 'full'"):
        engine.optim_step("p", MuonParams(learning_rate=1e-2))
    assert exact.same(exact.state(engine, "p"), before)
    engine.optim_step("p", make.adam)


def test_moments_of_one_optimizer_are_not_taken_for_another_s(engine, make, exact):
    engine.create(make.spec("p", kind="full"))
    train(engine, make, "p", AdamParams, 1)
    handle = engine.save("p", "x")
    engine.forward_backward("p", make.batch(seed=3), make.ppo)
    before = exact.state(engine, "p")
    with pytest.raises(PolicyError, match="moments are those of adamw, with which muon can't go on"):
        engine.optim_step("p", MuonParams(learning_rate=1e-2))
    assert exact.same(exact.state(engine, "p"), before)
    engine.load(handle, policy="cold", optimizer=False)
    train(engine, make, "cold", MuonParams, 1)


def test_moments_in_8_bits_take_a_quarter_of_the_memory_and_step_alike(engine, make):
    sizes, moved = {}, {}
    for params in (AdamParams, Adam8bitParams):
        policy = engine.create(make.spec(params.__name__, kind="full"))
        before = weights_of(engine, policy)
        train(engine, make, policy, params, 3)
        held = engine._policies[policy]
        large = {name for name, value in held.parameters.items() if value.numel() >= 4096}
        state = held.optimizer.state()
        sizes[params] = sum(value.nbytes for name, value in state.items() if name.split("/", 1)[1] in large)
        moved[params] = torch.cat([(value - before[name]).flatten() for name, value in held.weights().items()])
    assert sizes[Adam8bitParams] < 0.35 * sizes[AdamParams]
    likeness = torch.nn.functional.cosine_similarity(moved[AdamParams], moved[Adam8bitParams], dim=0)
    assert 0.95 < float(likeness) < 1 - 1e-6


def test_blockwise_moments_keep_their_size_and_never_lose_a_small_one():
    torch.manual_seed(0)
    values = torch.randn(3000) * 10.0 ** torch.empty(3000).uniform_(-4, 0)
    values[:256] = 0.0
    for book, exact in ((SIGNED, values), (UNSIGNED, values.abs())):
        codes, scales = quantise(exact, book)
        assert (codes.dtype, codes.numel(), scales.numel()) == (torch.uint8, 3000, 12)
        found = dequantise(codes, scales, book)
        assert torch.equal(found[:256], torch.zeros(256))
        large = exact.abs() > 0.1 * scales.repeat_interleave(256)[:3000]
        assert float(((found - exact).abs() / exact.abs())[large].max()) < 0.075
        again = quantise(found, book)
        assert torch.equal(again[0], codes)
        assert torch.equal(again[1], scales)
    rare = torch.zeros(256)
    rare[0], rare[1] = 1.0, 1e-12
    assert float(dequantise(*quantise(rare, UNSIGNED), UNSIGNED)[1]) > 0


@pytest.mark.parametrize("settings", [{"momentum": 1.0}, {"newton_schulz_steps": 0}, {"beta1": 1.0}])
def test_settings_of_muon_that_cannot_work_are_refused(settings):
    with pytest.raises(ConfigError, match=next(iter(settings))):
        MuonParams(**{"learning_rate": 1e-3, **settings})


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_a_schedule_falls_from_the_peak_to_its_final_share_and_depends_on_the_step_alone(schedule):
    rates = [scheduled(schedule, 2.0, step=step, total=10, warmup=2, floor=0.1) for step in range(1, 12)]
    assert rates[:3] == [1.0, 2.0, 2.0]
    assert rates[1:] == sorted(rates[1:], reverse=True)
    assert rates[10] == pytest.approx(0.2)
    middle = scheduled(schedule, 2.0, step=7, total=10, warmup=2, floor=0.1)
    assert middle == pytest.approx(1.1)

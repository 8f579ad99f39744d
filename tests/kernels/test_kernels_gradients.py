from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tinker_actors.kernels import NO_ADAPTER, KernelError, RowPlan, add_lora_residual, lora_residual

IN, OUT = 6, 5
RANKS = (1, 2, 4)
SCALES = [0.5, 2.0, 1.5]


def parts(rows: int, dtype: torch.dtype = torch.float64, seed: int = 0):
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(dtype).requires_grad_()

    return draw(rows, OUT), draw(rows, IN), [draw(rank, IN) for rank in RANKS], [draw(OUT, rank) for rank in RANKS]


@settings(max_examples=20, deadline=None)
@given(slots=st.lists(st.integers(NO_ADAPTER, 2), min_size=1, max_size=9))
def test_gradients_are_those_of_finite_differences(slots: list[int]) -> None:
    plan = RowPlan.build(slots)
    y, x, a, b = parts(len(slots))

    def residual(y, x, *weights):
        return lora_residual(y.clone(), x, plan, weights[:3], weights[3:], SCALES)

    assert torch.autograd.gradcheck(residual, (y, x, *a, *b))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_with_and_without_gradients_the_rows_are_the_same(dtype: torch.dtype) -> None:
    slots = [0, 0, NO_ADAPTER, 1, 2, 1]
    plan = RowPlan.build(slots)
    y, x, a, b = parts(len(slots), dtype)
    plain = y.detach().clone()
    with torch.no_grad():
        add_lora_residual(plain, x, plan, a, b, SCALES)
    assert torch.equal(lora_residual(y.clone(), x, plan, a, b, SCALES), plain)


def test_an_adapters_gradient_does_not_depend_on_who_shares_the_matrix() -> None:
    y, x, a, b = parts(40, torch.float32)
    found = []
    for slots in ([1] * 24 + [NO_ADAPTER] * 16, [1] * 24 + [0] * 9 + [2] * 7):
        out = lora_residual(y.clone(), x, RowPlan.build(slots), a, b, SCALES)
        found.append(torch.autograd.grad(out[:24].square().sum(), (a[1], b[1])))
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_a_gradient_of_nan_reaches_only_its_own_adapter() -> None:
    y, x, a, b = parts(6, torch.float32)
    out = lora_residual(y.clone(), x, RowPlan.build([0, 1, 0, 1, 2, 2]), a, b, SCALES)
    flaw = torch.ones(6, OUT)
    flaw[1] = torch.nan
    gradients = torch.autograd.grad(out, (a[0], b[0], a[1], b[1], a[2], b[2]), flaw)
    assert [bool(gradient.isfinite().all()) for gradient in gradients] == [True, True, False, False, True, True]


def test_adapters_that_are_not_trained_get_no_gradient_and_pass_it_on() -> None:
    y, x, a, b = parts(4, torch.float32)
    frozen = [weight.detach() for weight in (*a, *b)]
    out = lora_residual(y.clone(), x, RowPlan.build([0, 1, 2, 0]), frozen[:3], frozen[3:], SCALES)
    (gradient,) = torch.autograd.grad(out.sum(), x)
    assert gradient.abs().sum() > 0


def test_weights_of_the_wrong_shape_are_refused_in_training_too() -> None:
    y, x, a, b = parts(2, torch.float32)
    with pytest.raises(KernelError, match=r"slot 0: A \(1, 6\) and B \(5, 4\) do not fit"):
        lora_residual(y.clone(), x, RowPlan.build([0, 0]), [a[0]], [b[2]], [1.0])

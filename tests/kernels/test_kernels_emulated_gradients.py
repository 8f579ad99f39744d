"""The CUDA kernels of the backward pass, executed on the CPU through autograd, against float64."""
# ruff: noqa: N806 - tensor names end in their shape

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from emulator import SCHEDULES, Emulator, guarded, huge
from kernel_cases import DTYPES, Batch, batch, bits
from torch import Tensor

from tinker_actors.kernels import NO_ADAPTER, Path, Projection, RowPlan, lora_residuals
from tinker_actors.kernels.backend import kernels_on_cpu
from tinker_actors.kernels.source import PAIRS, Types

FLOATS, BF16 = Types("float", "float"), Types("ta_bf16", "ta_bf16")
every_pair = pytest.mark.parametrize("types", PAIRS, ids="{0.rows}-{0.weights}".format)


def leaves(given: Batch) -> list[Tensor]:
    """What gradients are wanted for: rows, outputs, and each adapter's A and B."""
    weights = [weight for of_one in (*given.a_slots, *given.b_slots) for weight in of_one if weight is not None]
    return [given.x_TI, *given.ys_TO, *weights]


def gradients(device: Emulator, given: Batch, wanted: Sequence[Tensor]) -> list[Tensor]:
    """By the kernels, of sum(dY * Y) with dY drawn by column, so that a row's does not depend on others."""
    tensors = leaves(given)
    for tensor in tensors:
        tensor.requires_grad_(any(tensor is one for one in wanted))
        tensor.grad = None
    with kernels_on_cpu(device):
        plan = RowPlan.build(given.slots)
        # outputs of the base projection are results, never leaves
        ys_TO = [y_TO * 1 for y_TO in given.ys_TO]
        outputs = lora_residuals(given.projections(ys_TO), given.x_TI, plan, path=Path.PREFILL)
        torch.autograd.backward(outputs, [out_grad(given, at) for at in range(len(outputs))])
    found = [tensor.grad for tensor in wanted]
    for tensor in tensors:
        tensor.requires_grad_(False)
    assert all(gradient is not None for gradient in found)
    return [gradient for gradient in found if gradient is not None]


def out_grad(given: Batch, at: int) -> Tensor:
    """dY of a projection: a function of the row's own content."""
    y_TO = given.ys_TO[at]
    return guarded((y_TO.double().sin() + 0.1).to(y_TO.dtype))


def check(given: Batch, found: Sequence[Tensor], wanted: Sequence[Tensor]) -> None:
    """Raises AssertionError where a gradient is further from float64 than its rounding and that of its sums allow."""
    expected = {id(tensor): torch.zeros_like(tensor, dtype=torch.float64) for tensor in wanted}
    sizes = {key: torch.zeros_like(value) for key, value in expected.items()}

    def add(tensor: Tensor | None, rows: slice | list[int], value: Tensor, size: Tensor) -> None:
        if id(tensor) in expected:
            expected[id(tensor)][rows] += value
            sizes[id(tensor)][rows] += size

    everything = slice(None)
    for at, y_TO in enumerate(given.ys_TO):
        dy_TO = out_grad(given, at).double()
        add(y_TO, everything, dy_TO, dy_TO.abs())
        for slot, (a_RI, b_OR) in enumerate(zip(given.a_slots[at], given.b_slots[at], strict=True)):
            rows = [row for row, its in enumerate(given.slots) if its == slot]
            if a_RI is None or b_OR is None or not rows:
                continue
            scale, a, b = given.scales[slot], a_RI.double(), b_OR.double()
            x, dy = given.x_TI[rows].double(), dy_TO[rows]
            ds, ds_size = scale * dy @ b, scale * dy.abs() @ b.abs()
            s, s_size = scale * x @ a.t(), scale * x.abs() @ a.abs().t()
            add(a_RI, everything, ds.t() @ x, ds_size.t() @ x.abs())
            add(b_OR, everything, dy.t() @ s, dy.abs().t() @ s_size)
            add(given.x_TI, rows, ds @ a, ds_size @ a.abs())
    slack = 1e-6 if given.x_TI.dtype == torch.float32 else 2e-5
    # the rows' gradient is rounded once for each projection
    roundings = len(given.ys_TO)
    for place, (tensor, gradient) in enumerate(zip(wanted, found, strict=True)):
        unit = torch.finfo(gradient.dtype).eps / 2 * (roundings if tensor is given.x_TI else 1)
        size = sizes[id(tensor)]
        excess = (gradient.double() - expected[id(tensor)]).abs() - slack * size
        bound = size if tensor is given.x_TI else expected[id(tensor)].abs()
        # halves below 2^-14 have fewer bits
        excess -= unit * bound * 1.01 + torch.finfo(gradient.dtype).tiny * unit
        assert (excess <= 0).all(), f"gradient {place}, of {tuple(tensor.shape)}: off by {excess.max().item()}"


@every_pair
def test_every_type_matches_float64_and_every_schedule_gives_the_same_bits(device: Emulator, types: Types) -> None:
    slots = [0, 1, NO_ADAPTER, 2, 0, 1] * 5
    given = batch(types, slots, [8, 3, 16], inputs=200, outputs=[140, 24])
    wanted = leaves(given)
    first = gradients(device, given, wanted)
    check(given, first, wanted)
    for name in ("ascending", "descending", "at random", "preempted", "by block, last first"):
        device.schedule = SCHEDULES[name]
        for one, other in zip(gradients(device, given, wanted), first, strict=True):
            assert torch.equal(bits(one), bits(other)), name
    assert {"mma_both_16", "sum_narrow", "mma_gradient_16", "sum_gradients"} <= set(device.launches)


@pytest.mark.parametrize("rank", [1, 15, 17, 33, 64, 65, 100, 128])
def test_ranks_up_to_128(device: Emulator, rank: int) -> None:
    types = PAIRS[rank % len(PAIRS)]
    given = batch(types, [0, 1, 1, NO_ADAPTER, 0] * 2, [rank, 5], inputs=72, outputs=[33], b_by_rank=rank % 2 == 0)
    wanted = leaves(given)
    check(given, gradients(device, given, wanted), wanted)


def test_gradients_over_more_rows_than_a_chunk_and_a_tile_have(device: Emulator) -> None:
    given = batch(BF16, [0] * 530 + [1] * 70, [8, 4], inputs=40, outputs=[24])
    wanted = leaves(given)
    check(given, gradients(device, given, wanted), wanted)


def test_gradients_of_wide_adapters_in_bf16(device: Emulator) -> None:
    # more ranks than one block of the backward kernels works on, and several blocks of columns
    given = batch(BF16, [1, 0] * 8, [100, 70], inputs=150, outputs=[136])
    wanted = leaves(given)
    check(given, gradients(device, given, wanted), wanted)


def test_only_what_is_wanted_gets_a_gradient(device: Emulator) -> None:
    given = batch(FLOATS, [0, 1, 0, NO_ADAPTER, 1], [4, 8], inputs=48, outputs=[40, 16])
    x_TI, a_RI, b_OR = given.x_TI, given.a_slots[0][1], given.b_slots[1][0]
    assert a_RI is not None
    assert b_OR is not None
    for wanted in ([x_TI], [a_RI], [b_OR], [a_RI, b_OR], [x_TI, b_OR]):
        check(given, gradients(device, given, wanted), wanted)


def test_strided_rows_and_weights(device: Emulator) -> None:
    given = batch(BF16, [1, 0, 1, NO_ADAPTER, 0, 0], [8, 16], inputs=48, outputs=[40], b_by_rank=True)
    straight = gradients(device, given, leaves(given))
    memory = torch.zeros(6 * 51, dtype=given.x_TI.dtype)
    given.x_TI = guarded(memory.as_strided((6, 48), (51, 1)).copy_(given.x_TI))
    for one, other in zip(gradients(device, given, leaves(given)), straight, strict=True):
        assert torch.equal(bits(one), bits(other))


@every_pair
def test_a_gradient_depends_on_the_adapters_own_rows_alone(device: Emulator, types: Types) -> None:
    slots = [0, 1, 2, 1, 0, NO_ADAPTER, 2, 2, 1] * 3
    given = batch(types, slots, [8, 3, 16], inputs=64, outputs=[48])
    together = gradients(device, given, leaves(given))
    by_tensor = dict(zip(map(id, leaves(given)), together, strict=True))
    for slot in range(3):
        rows = [row for row, its in enumerate(slots) if its == slot]
        alone = given.rows_of(rows)
        a_RI, b_OR = given.a_slots[0][slot], given.b_slots[0][slot]
        assert a_RI is not None
        assert b_OR is not None
        dx, da, db = gradients(device, alone, [alone.x_TI, a_RI, b_OR])
        assert torch.equal(bits(dx), bits(by_tensor[id(given.x_TI)][rows]))
        assert torch.equal(bits(da), bits(by_tensor[id(a_RI)]))
        assert torch.equal(bits(db), bits(by_tensor[id(b_OR)]))


@every_pair
def test_an_adapter_of_nan_spoils_its_own_gradients_only(device: Emulator, types: Types) -> None:
    given = batch(types, [0, 1, 1, NO_ADAPTER, 0], [8, 4], inputs=32, outputs=[24])
    wanted = leaves(given)
    healthy = gradients(device, given, wanted)
    a_RI, b_OR = given.a_slots[0][1], given.b_slots[0][1]
    assert a_RI is not None
    assert b_OR is not None
    a_RI.fill_(torch.nan)
    b_OR.fill_(torch.nan)
    sick = gradients(device, given, wanted)
    for tensor, before, now in zip(wanted, healthy, sick, strict=True):
        if tensor is a_RI or tensor is b_OR:
            assert now.isnan().all()
        elif tensor is given.x_TI:
            assert now[[1, 2]].isnan().all()
            assert torch.equal(bits(now[[0, 3, 4]]), bits(before[[0, 3, 4]]))
        else:
            assert torch.equal(bits(now), bits(before))


def test_rows_without_an_adapter_get_no_gradient_through_it(device: Emulator) -> None:
    given = batch(BF16, [0, NO_ADAPTER, 1, NO_ADAPTER], [4, 4], inputs=24, outputs=[16])
    (dx,) = gradients(device, given, [given.x_TI])
    assert (dx[[1, 3]] == 0).all()
    assert DTYPES["ta_bf16"] == dx.dtype


def test_offsets_beyond_32_bits(device: Emulator) -> None:
    # of rows and of the outputs' gradients, whose elements and bytes both pass 2^32
    rows, width, picked = 400_000, 40, [300_001, 399_999]
    small = batch(BF16, [0, 0], [8], inputs=width, outputs=[width])
    a_RI, b_OR = small.a_slots[0][0], small.b_slots[0][0]
    assert a_RI is not None
    assert b_OR is not None
    expected = gradients(device, small, [a_RI, b_OR])
    x_TI, dy_TO = (huge(rows, 12_288, torch.bfloat16)[:, :width] for _ in range(2))
    x_TI[picked], dy_TO[picked] = small.x_TI, out_grad(small, 0)
    slots = [NO_ADAPTER] * rows
    for row in picked:
        slots[row] = 0
    a, b = (weight.clone().requires_grad_() for weight in (a_RI, b_OR))
    projection = Projection(
        y_TO=torch.zeros(rows, width, dtype=torch.bfloat16), a_slots=[a], b_slots=[b], scales=small.scales
    )
    with kernels_on_cpu(device):
        (output,) = lora_residuals([projection], x_TI, RowPlan.build(slots), path=Path.PREFILL)
        output.backward(dy_TO)
    for weight, gradient in zip((a, b), expected, strict=True):
        assert weight.grad is not None
        assert torch.equal(bits(weight.grad), bits(gradient))

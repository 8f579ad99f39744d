"""What the host lays out for the kernels, and which way it takes."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch
from emulator import Emulator

from tinker_actors.kernels import KernelError, Path, RowPlan, lora_residual
from tinker_actors.kernels.backend import kernels_on_cpu
from tinker_actors.kernels.device_plan import DevicePlan
from tinker_actors.kernels.dispatch import choose_path
from tinker_actors.kernels.launcher import Launcher
from tinker_actors.kernels.residual import add_by_parts
from tinker_actors.kernels.tables import AdapterTable

CPU = torch.device("cpu")


def way(counts: list[int], rank: int = 16, *, same_dtype: bool = True, gradients: bool = False) -> Path:
    plan = RowPlan.build(np.repeat(np.arange(len(counts)), counts).tolist())
    return choose_path(plan, [rank] * len(counts), same_dtype=same_dtype, gradients=gradients)


def test_few_rows_go_the_way_of_decode_steps() -> None:
    assert way([256]) is Path.DECODE
    assert way([4] * 64) is Path.DECODE
    assert way([8] * 100) is Path.DECODE
    assert way([9] * 100) is Path.PREFILL


def test_gradients_never_take_the_decode_kernels() -> None:
    assert way([4] * 64, gradients=True) is Path.PREFILL


def test_long_segments_are_left_to_torch_where_it_need_not_copy_the_rows() -> None:
    assert way([1000]) is Path.PRODUCTS
    assert way([1000], same_dtype=False) is Path.PREFILL
    assert way([600, 700], rank=128) is Path.PRODUCTS
    assert way([600, 500], rank=128) is Path.PREFILL
    assert way([600, 700], rank=64) is Path.PREFILL
    assert way([100] * 8, rank=200) is Path.PRODUCTS


def test_a_reserved_plan_has_room_for_the_worst_split_into_tiles() -> None:
    plan = DevicePlan.reserve(rows=40, adapters=3, device=CPU)
    worst = 0
    for first in range(1, 39):
        for second in range(1, 40 - first):
            slots = [0] * first + [1] * second + [2] * (40 - first - second)
            worst = max(worst, len(list(RowPlan.build(slots).tiles(8))))
            plan.load(RowPlan.build(slots))
    assert plan.decode_tiles.count == worst


def test_a_plan_with_more_rows_than_room_is_refused() -> None:
    plan = DevicePlan.reserve(rows=4, adapters=2, device=CPU)
    with pytest.raises(KernelError, match="5 rows and 1 adapters was loaded where there is room for 4 rows and 2"):
        plan.load(RowPlan.build([0] * 5))
    with pytest.raises(KernelError, match="3 adapters"):
        plan.load(RowPlan.build([0, 1, 2]))


def test_one_reserved_launch_serves_steps_with_other_rows_adapters_and_ranks(device: Emulator) -> None:
    torch.manual_seed(0)
    plan = DevicePlan.reserve(rows=12, adapters=3, device=CPU)
    table = AdapterTable(slices=1, slots=3, dtype=torch.float32, device=CPU, max_rank=16)
    table.upload()
    launcher = Launcher(device, plan, table, torch.float32, CPU)
    scratch = launcher.scratch(600, decode=True)
    for slots, ranks in (
        ([0, 0, 2, -1], [4, 16, 1]),
        ([1] * 12, [3, 9, 16]),
        ([-1], [1, 1, 1]),
        ([2, 1, 0], [16, 2, 5]),
    ):
        a, b = [torch.randn(rank, 600) for rank in ranks], [torch.randn(50, rank) for rank in ranks]
        for slot in range(3):
            table.set(0, slot, a[slot], b[slot], 0.5)
        table.upload()
        rows = RowPlan.build(slots)
        plan.load(rows)
        x, y = torch.randn(12, 600), torch.randn(12, 50)
        fused, wanted = y.clone(), y.clone()
        launcher.fused([fused], x)
        grids = list(device.launches)
        launcher.decode([y], x, scratch)
        lora_residual(wanted[: len(slots)], x[: len(slots)], rows, a, b, [0.5] * 3)
        assert torch.equal(y, fused)
        torch.testing.assert_close(y, wanted, rtol=1e-5, atol=1e-4)
        assert grids[-1] == "decode_fused"


def test_an_adapter_that_was_cleared_adds_nothing(device: Emulator) -> None:
    plan = DevicePlan.of(RowPlan.build([0, 1]), CPU)
    table = AdapterTable(slices=1, slots=2, dtype=torch.float32, device=CPU, max_rank=2)
    for slot in (0, 1):
        table.set(0, slot, torch.ones(2, 8), torch.ones(4, 2), 1.0)
    table.clear(0)
    table.upload()
    y = torch.zeros(2, 4)
    Launcher(device, plan, table, torch.float32, CPU).decode([y], torch.ones(2, 8))
    assert y.tolist() == [[0.0] * 4, [16.0] * 4]


def test_a_table_refuses_what_is_not_its_own() -> None:
    table = AdapterTable(slices=1, slots=2, dtype=torch.bfloat16, device=CPU, max_rank=8)
    a, b = torch.zeros(8, 4, dtype=torch.bfloat16), torch.zeros(4, 8, dtype=torch.bfloat16)
    with pytest.raises(KernelError, match=r"A is torch\.float32"):
        table.set(0, 1, a.float(), b, 1.0)
    with pytest.raises(KernelError, match=r"slot 1: A \(8, 4\), B \(4, 7\)"):
        table.set(0, 1, a, b[:, :7], 1.0)
    with pytest.raises(KernelError, match=r"no kernels for torch\.float16 rows with torch\.bfloat16 weights"):
        table.types(torch.float16)
    with pytest.raises(KernelError, match="before its first upload"):
        table.address_of(0)
    with pytest.raises(KernelError, match="max_rank is 129"):
        AdapterTable(slices=1, slots=2, dtype=torch.bfloat16, device=CPU, max_rank=129)
    with pytest.raises(KernelError, match="4 projections"):
        AdapterTable(slices=4, slots=2, dtype=torch.bfloat16, device=CPU, max_rank=8)


def test_a_way_without_kernels_for_it_is_refused(device: Emulator) -> None:
    x, y, a, b = torch.zeros(2, 8), torch.zeros(2, 4), torch.zeros(200, 8), torch.zeros(4, 200)
    plan = RowPlan.build([0, 0])
    with kernels_on_cpu(device):
        with pytest.raises(KernelError, match=r"no prefill kernel .* ranks up to 200"):
            lora_residual(y, x, plan, [a], [b], [1.0], path=Path.PREFILL)
        with pytest.raises(KernelError, match="have no gradients"):
            lora_residual(y, x.requires_grad_(), plan, [a[:8]], [b[:, :8]], [1.0], path=Path.DECODE)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_products_of_two_parts_round_once(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x, y = torch.randn(40, 300).to(dtype), torch.randn(40, 60).to(dtype)
    a, b = (torch.randn(8, 300) / 17).to(dtype), torch.randn(60, 8).to(dtype)
    wanted = y.double() + 0.5 * (x.double() @ a.double().T) @ b.double().T
    add_by_parts(y, x, a, b, 0.5)
    # half a unit in the last place, and a little for sums in float32
    assert ((y.double() - wanted).abs() <= wanted.abs() * torch.finfo(dtype).eps * 0.5 + 1e-4).all()


def test_the_residual_needs_no_cupy() -> None:
    program = (
        "import sys; from torch import ones; from tinker_actors.kernels import RowPlan, lora_residual;"
        "lora_residual(ones(1, 4), ones(1, 8), RowPlan.build([0]), [ones(2, 8)], [ones(4, 2)], [1.0]);"
        "assert 'cupy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tinker_actors.kernels import NO_ADAPTER, KernelError, RowPlan, add_lora_residual

IN, OUT = 12, 10


def adapters(count: int, *, seed: int = 0) -> tuple[list[torch.Tensor], list[torch.Tensor], list[float]]:
    """Adapters of ranks 1, 2, 3, ... with scales 0.5, 1.0, ..."""
    generator = torch.Generator().manual_seed(seed)
    a = [torch.randn(rank + 1, IN, generator=generator) for rank in range(count)]
    b = [torch.randn(OUT, rank + 1, generator=generator) for rank in range(count)]
    return a, b, [0.5 * (index + 1) for index in range(count)]


def rows(count: int, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(count)
    x = torch.randn(count, IN, generator=generator).to(dtype)
    return torch.randn(count, OUT, generator=generator).to(dtype), x


def expected(y, x, slots, a, b, scales) -> torch.Tensor:
    """Row by row in float64."""
    out = y.double().clone()
    for row, slot in enumerate(slots):
        if slot >= 0:
            out[row] += scales[slot] * (b[slot].double() @ (a[slot].double() @ x[row].double()))
    return out


slot_lists = st.lists(st.integers(NO_ADAPTER, 4), max_size=24)


@settings(max_examples=80, deadline=None)
@given(slots=slot_lists)
def test_plan_groups_every_adapted_row_once_and_keeps_their_order(slots: list[int]) -> None:
    plan = RowPlan.build(slots)
    assert plan.rows == len(slots)
    assert sorted(plan.order.tolist()) == [row for row, slot in enumerate(slots) if slot >= 0]
    assert [slots[row] for row in plan.order] == [s.slot for s in plan.segments for _ in range(s.count)]
    for segment in plan.segments:
        own = plan.order[segment.first : segment.first + segment.count].tolist()
        assert own == sorted(own)
        consecutive = own == list(range(own[0], own[0] + len(own)))
        assert segment.start == (own[0] if consecutive else None)
    assert all((plan.inverse[row] == -1) == (slot < 0) for row, slot in enumerate(slots))
    assert (plan.inverse[plan.order] == np.arange(len(plan.order))).all()
    tiles = list(plan.tiles(3))
    assert all(0 < count <= 3 for _, _, count in tiles)
    covered = [(slot, place) for slot, first, count in tiles for place in range(first, first + count)]
    assert covered == [(slots[row], place) for place, row in enumerate(plan.order.tolist())]


def test_batch_rows_stand_for_several_tokens_each() -> None:
    assert RowPlan.build([1, 0], tokens_per_row=2).order.tolist() == [2, 3, 0, 1]
    assert RowPlan.build([1, NO_ADAPTER, 1], tokens_per_row=[1, 2, 3]).order.tolist() == [0, 3, 4, 5]
    with pytest.raises(KernelError, match="3 slots"):
        RowPlan.build([0, 1, 0], tokens_per_row=[1, 2])


@settings(max_examples=80, deadline=None)
@given(slots=slot_lists, dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float64]))
def test_residual_equals_each_row_by_itself_in_float64(slots: list[int], dtype: torch.dtype) -> None:
    a, b, scales = adapters(5)
    y, x = rows(len(slots), dtype)
    want = expected(y, x, slots, a, b, scales)
    before = y.clone()
    add_lora_residual(y, x, RowPlan.build(slots), a, b, scales)
    if dtype == torch.bfloat16:  # exact but for the one rounding at the end
        assert ((y.double() - want).abs() <= want.abs() * 2**-8 + 1e-5).all()
    else:
        torch.testing.assert_close(y.double(), want, rtol=1e-5, atol=1e-5)
    idle = [row for row, slot in enumerate(slots) if slot < 0]
    assert torch.equal(y[idle], before[idle])


def test_ranks_four_and_eight_with_alpha_32_scale_by_eight_and_four() -> None:  # case A5
    generator = torch.Generator().manual_seed(1)
    a = [torch.randn(r, IN, generator=generator) for r in (4, 8)]
    b = [torch.randn(OUT, r, generator=generator) for r in (4, 8)]
    scales = [32 / 4, 32 / 8]
    y, x = rows(6)
    mixed = y.clone()
    add_lora_residual(mixed, x, RowPlan.build([0, 1, 0, 1, 1, NO_ADAPTER]), a, b, scales)
    for slot, own in ((0, [0, 2]), (1, [1, 3, 4])):
        alone = y[own]
        add_lora_residual(alone, x[own], RowPlan.build([slot] * len(own)), a, b, scales)
        torch.testing.assert_close(mixed[own], alone, rtol=1e-5, atol=1e-5)
    assert torch.equal(mixed[5], y[5])


@pytest.mark.parametrize("slots", [[0, 1, 0, NO_ADAPTER, 1, 2], [0, 0, 1, 1, 2, NO_ADAPTER]])
def test_adapter_of_nan_touches_only_its_own_rows(slots: list[int]) -> None:
    a, b, scales = adapters(3)
    y, x = rows(6)
    clean, spoilt = y.clone(), y.clone()
    add_lora_residual(clean, x, RowPlan.build(slots), a, b, scales)
    a[1].fill_(float("nan"))
    b[1].fill_(float("inf"))
    add_lora_residual(spoilt, x, RowPlan.build(slots), a, b, scales)
    mine = [row for row, slot in enumerate(slots) if slot == 1]
    others = [row for row, slot in enumerate(slots) if slot != 1]
    assert spoilt[mine].isnan().all()
    assert torch.equal(spoilt[others], clean[others])


@pytest.mark.parametrize("slots", [[0] * 6, [1, 0, 1, NO_ADAPTER, 0, 1]])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_strided_rows_are_written_where_they_are(slots: list[int], dtype: torch.dtype) -> None:
    a, b, scales = adapters(2)
    y, x = rows(6, dtype)
    plain = y.clone()
    add_lora_residual(plain, x, RowPlan.build(slots), a, b, scales)
    wide = torch.full((6, 3 * OUT), 7.0, dtype=dtype)
    view = wide[:, OUT : 2 * OUT]
    view.copy_(y)
    add_lora_residual(view, x.t().contiguous().t(), RowPlan.build(slots), a, b, scales)
    torch.testing.assert_close(view, plain)
    assert (wide[:, :OUT] == 7).all()
    assert (wide[:, 2 * OUT :] == 7).all()
    columns = y.t().contiguous().t()
    add_lora_residual(columns, x, RowPlan.build(slots), a, b, scales)
    torch.testing.assert_close(columns, plain)


def test_slot_that_leaves_this_projection_alone_changes_nothing() -> None:
    a, b, scales = adapters(2)
    y, x = rows(4)
    before = y.clone()
    add_lora_residual(y, x, RowPlan.build([0, 1, 0, 1]), [None, a[1]], [None, b[1]], scales)
    assert torch.equal(y[[0, 2]], before[[0, 2]])
    assert not torch.equal(y[[1, 3]], before[[1, 3]])


def test_consecutive_rows_are_not_gathered(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, scales = adapters(2)
    y, x = rows(4)
    monkeypatch.setattr(torch.Tensor, "index_select", lambda *_: pytest.fail("gathered"))
    add_lora_residual(y, x, RowPlan.build([1, 1, 0, 0]), a, b, scales)
    add_lora_residual(y, x, RowPlan.build([0, 0, 0, 0]), a, b, scales)


@pytest.mark.parametrize(
    ("slots", "change", "said"),
    [
        ([0, 1, 0], {}, "3 rows"),
        ([0, 2, 0, 1], {}, "slot 2"),
        ([0, 1, 0, 1], {"b": [None, None]}, "only one of A and B"),
        ([0, 1, 0, 1], {"a": [torch.zeros(1, IN), torch.zeros(3, IN)]}, "do not fit"),
    ],
)
def test_what_does_not_fit_the_plan_is_refused(slots: list[int], change: dict, said: str) -> None:
    a, b, scales = adapters(2)
    y, x = rows(4)
    with pytest.raises(KernelError, match=said):
        add_lora_residual(y, x, RowPlan.build(slots), change.get("a", a), change.get("b", b), scales)


def test_planning_needs_no_torch() -> None:
    import subprocess
    import sys

    code = "import sys\nfrom tinker_actors.kernels import RowPlan\nRowPlan.build([0, 1])\nprint('torch' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "False"

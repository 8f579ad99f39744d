"""The CUDA kernels of the forward pass, executed on the CPU through the launcher that a GPU gets."""
# ruff: noqa: N806 - tensor names end in their shape

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from emulator import SCHEDULES, Emulator, guarded, huge
from kernel_cases import DTYPES, Batch, batch, bits, same_bits

from tinker_actors.kernels import NO_ADAPTER, Path, RowPlan
from tinker_actors.kernels.device_plan import DevicePlan
from tinker_actors.kernels.launcher import Launcher
from tinker_actors.kernels.source import PAIRS, Types
from tinker_actors.kernels.tables import AdapterTable

FLOATS, BF16 = Types("float", "float"), Types("ta_bf16", "ta_bf16")
WAYS = [Path.DECODE, Path.PREFILL]

name_of_types = "{0.rows}-{0.weights}".format
every_pair = pytest.mark.parametrize("types", PAIRS, ids=name_of_types)
both_ways = pytest.mark.parametrize("path", WAYS, ids=lambda path: path.value)


def mixed_slots(rows: int, slots: int, seed: int = 0) -> list[int]:
    """Rows in no order, some of them without an adapter."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(NO_ADAPTER, slots, (rows,), generator=generator).tolist()


@both_ways
@every_pair
def test_every_type_matches_float64_and_every_schedule_gives_the_same_bits(
    device: Emulator, types: Types, path: Path
) -> None:
    # pieces of 512 and tiles of 64 columns, each with a ragged end
    given = batch(types, mixed_slots(30, 4), [8, 16, 3, 1], inputs=1100, outputs=[150, 40])
    first = given.run(device, path)
    given.check(first, path)
    for schedule in SCHEDULES.values():
        device.schedule = schedule
        assert same_bits(given.run(device, path), first), schedule
    assert set(device.launches) == ({"decode_fused"} if path is Path.DECODE else {"mma_shrink_16", "mma_expand_16"})


@both_ways
def test_every_rank_from_1_to_128_in_one_batch(device: Emulator, path: Path) -> None:
    ranks = list(range(1, 129))
    for types, b_by_rank in [(FLOATS, False), (BF16, True)]:
        given = batch(types, list(reversed(range(128))), ranks, inputs=40, outputs=[24], b_by_rank=b_by_rank)
        given.check(given.run(device, path), path)


@both_ways
@pytest.mark.parametrize("rank", [1, 7, 8, 16, 17, 32, 33, 64, 65, 127, 128])
def test_each_bound_of_ranks_has_kernels_of_its_own(device: Emulator, path: Path, rank: int) -> None:
    given = batch(PAIRS[rank % len(PAIRS)], mixed_slots(9, 1), [rank], inputs=72, outputs=[70], b_by_rank=rank % 2 > 0)
    given.check(given.run(device, path), path)
    bound = next(bound for bound in (16, 32, 64, 128) if bound >= rank)
    assert device.launches[-1] == ("decode_fused" if path is Path.DECODE else f"mma_expand_{bound}")


@every_pair
def test_two_kernels_and_one_of_clusters_agree_in_every_bit(device: Emulator, types: Types) -> None:
    # more pieces than a cluster has blocks, more columns than one block has threads
    given = batch(types, mixed_slots(12, 3), [16, 5, 40], inputs=8 * 512 + 700, outputs=[300, 17, 130])
    fused = given.run(device, Path.DECODE)
    given.check(fused, Path.DECODE)
    device.has_clusters = False
    for schedule in ("by warp", "preempted"):
        device.schedule = SCHEDULES[schedule]
        assert same_bits(given.run(device, Path.DECODE), fused)
    assert device.launches[-2:] == ["decode_shrink", "decode_expand"]


@every_pair
def test_prefill_takes_more_than_one_tile_and_split(device: Emulator, types: Types) -> None:
    given = batch(types, [0] * 70 + [NO_ADAPTER] + [1] * 65 + [0] * 3, [4, 12], inputs=1100, outputs=[200])
    given.check(given.run(device, Path.PREFILL), Path.PREFILL)


@both_ways
@pytest.mark.parametrize("size", [1, 2, 3, 7, 9, 15, 17, 63, 65, 511, 513])
def test_ragged_widths(device: Emulator, path: Path, size: int) -> None:
    types = PAIRS[size % len(PAIRS)]
    for inputs, outputs in [(size, 24), (24, size)]:
        given = batch(types, [0, 1, 1, NO_ADAPTER, 0], [3, 8], inputs=inputs, outputs=[outputs])
        given.check(given.run(device, path), path)


@both_ways
@every_pair
def test_strided_rows_outputs_and_weights(device: Emulator, types: Types, path: Path) -> None:
    given = batch(types, mixed_slots(20, 3), [8, 5, 16], inputs=96, outputs=[72], b_by_rank=True)
    straight = given.run(device, path)
    given.check(straight, path)

    def spread(tensor: torch.Tensor, row: int, column: int = 1) -> torch.Tensor:
        memory = torch.zeros(tensor.shape[0] * row, dtype=tensor.dtype)
        return guarded(memory.as_strided(tensor.shape, (row, column)).copy_(tensor))

    def apart(weights: list[torch.Tensor | None], row: int) -> list[torch.Tensor | None]:
        return [None if weight is None else spread(weight, row) for weight in weights]

    slices = [
        replace(given, x_TI=spread(given.x_TI, 96 + 8), ys_TO=[spread(given.ys_TO[0], 72 + 16)]),
        replace(given, x_TI=spread(given.x_TI, 96 + 3), ys_TO=[spread(given.ys_TO[0], 72 + 1)]),
        replace(given, a_slots=[apart(given.a_slots[0], 96 + 5)], b_slots=[apart(given.b_slots[0], 24)]),
        replace(given, x_TI=spread(given.x_TI, 200, 2), ys_TO=[spread(given.ys_TO[0], 150, 2)]),
    ]
    for strided in slices:
        outputs = strided.run(device, path)
        assert same_bits(outputs, straight)
        row = outputs[0].stride(0)
        beside = outputs[0].as_strided((19, row - 72), (row, 1), outputs[0].storage_offset() + 72)
        assert outputs[0].stride(1) > 1 or beside.isnan().all()


@both_ways
@every_pair
def test_a_row_depends_on_itself_and_its_adapter_alone(device: Emulator, types: Types, path: Path) -> None:
    slots = mixed_slots(40, 4, seed=1)
    given = batch(types, slots, [16, 2, 9, 30], inputs=560, outputs=[90])
    (together,) = given.run(device, path)
    alone = [[row for row, its in enumerate(slots) if its == slot] for slot in range(4)]
    for rows in [*alone, list(range(39, -1, -3)), [5], list(range(0, 40, 2))]:
        (apart,) = given.rows_of(rows).run(device, path)
        assert torch.equal(bits(apart), bits(together[rows]))


@both_ways
@every_pair
def test_an_adapter_of_nan_spoils_its_own_rows_only(device: Emulator, types: Types, path: Path) -> None:
    slots = mixed_slots(24, 3, seed=2)
    given = batch(types, slots, [8, 4, 16], inputs=130, outputs=[70])
    (healthy,) = given.run(device, path)
    sick = given.a_slots[0][1], given.b_slots[0][1]
    for weight in sick:
        assert weight is not None
        weight.fill_(torch.nan)
    (output,) = given.run(device, path)
    spoiled = torch.tensor([slot == 1 for slot in slots])
    assert output[spoiled].isnan().all()
    assert torch.equal(bits(output[~spoiled]), bits(healthy[~spoiled]))


@both_ways
def test_rows_of_nan_and_infinity_spoil_no_other(device: Emulator, path: Path) -> None:
    given = batch(BF16, [0, 0, 1, NO_ADAPTER, 1, 0], [8, 8], inputs=64, outputs=[64])
    (healthy,) = given.run(device, path)
    given.x_TI[1].fill_(torch.nan)
    given.x_TI[3].fill_(torch.nan)
    given.x_TI[4, 7] = torch.inf
    (output,) = given.run(device, path)
    assert output[1].isnan().all()
    assert not output[4].isfinite().any()
    assert torch.equal(bits(output[[0, 2, 3, 5]]), bits(healthy[[0, 2, 3, 5]]))


@both_ways
def test_projections_that_an_adapter_leaves_alone_keep_every_bit(device: Emulator, path: Path) -> None:
    given = batch(BF16, mixed_slots(16, 3), [8, 4, 8], inputs=64, outputs=[40, 24, 32])
    given.a_slots[0][1] = given.b_slots[0][1] = None
    given.a_slots[2][0] = given.b_slots[2][0] = None
    outputs = given.run(device, path)
    given.check(outputs, path)
    assert len(device.launches) == (1 if path is Path.DECODE else 2)


@both_ways
def test_batches_without_rows_or_adapters_launch_nothing(device: Emulator, path: Path) -> None:
    for slots in ([], [NO_ADAPTER] * 5):
        given = batch(BF16, slots, [4], inputs=16, outputs=[8])
        assert same_bits(given.run(device, path), given.ys_TO)
    assert device.launches == []


def launcher_of(device: Emulator, given: Batch, plan: DevicePlan) -> Launcher:
    a_slots, b_slots = given.a_slots[0], given.b_slots[0]
    weights = [weight for weight in (*a_slots, *b_slots) if weight is not None]
    table = AdapterTable(slices=1, slots=len(a_slots), dtype=weights[0].dtype, device=torch.device("cpu"), max_rank=16)
    for slot, (a_RI, b_OR) in enumerate(zip(a_slots, b_slots, strict=True)):
        if a_RI is not None and b_OR is not None:
            table.set(0, slot, a_RI, b_OR, given.scales[slot])
    table.upload()
    return Launcher(device, plan, table, given.x_TI.dtype, torch.device("cpu"))


@pytest.mark.parametrize("way", ["fused", "decode", "prefill"])
def test_a_reserved_plan_serves_steps_of_other_sizes_through_unused_tiles(device: Emulator, way: str) -> None:
    reserved = DevicePlan.reserve(rows=80, adapters=3, device=torch.device("cpu"))
    for slots in (mixed_slots(80, 3), [], [2], [0] * 70, [NO_ADAPTER] * 4 + [1] * 9):
        given = batch(BF16, slots, [16, 8, 4], inputs=80, outputs=[48])
        reserved.load(RowPlan.build(slots))
        y_TO = guarded(given.ys_TO[0])
        getattr(launcher_of(device, given, reserved), way)([y_TO], given.x_TI)
        path = Path.PREFILL if way == "prefill" else Path.DECODE
        given.check([y_TO], path)
        if slots:
            assert same_bits([y_TO], given.run(device, path))


@both_ways
@pytest.mark.parametrize("types", [BF16, FLOATS], ids=name_of_types)
def test_offsets_beyond_32_bits(device: Emulator, types: Types, path: Path) -> None:
    # of rows and outputs, whose elements and bytes both pass 2^32, and of strided weights, from tile to tile too
    dtype, rows, inputs, width, stride = DTYPES[types.rows], 400_000, 64, 200, 12_288
    x_TI, y_TO = huge(rows, stride, dtype)[:, :inputs], huge(rows, stride, dtype)[:, :width]
    small = batch(types, [0, 0], [16], inputs=inputs, outputs=[width])
    picked = [300_001, rows - 1]
    x_TI[picked], y_TO[picked] = small.x_TI, small.ys_TO[0]
    a_RI, b_OR = small.a_slots[0][0], small.b_slots[0][0]
    assert a_RI is not None
    assert b_OR is not None
    far_a, far_b = huge(16, 300_000_000, a_RI.dtype)[:, :inputs], huge(width, 40_000_000, b_OR.dtype)[:, :16]
    far_a.copy_(a_RI)
    far_b.copy_(b_OR)
    slots = [NO_ADAPTER] * rows
    for row in picked:
        slots[row] = 0
    far = replace(small, slots=slots, x_TI=x_TI, ys_TO=[y_TO], a_slots=[[far_a]], b_slots=[[far_b]])
    reserved = DevicePlan.of(RowPlan.build(slots), torch.device("cpu"))
    launch = launcher_of(device, far, reserved)
    (launch.fused if path is Path.DECODE else launch.prefill)([y_TO], x_TI)
    assert torch.equal(bits(y_TO[picked]), bits(small.run(device, path)[0]))

"""The emulated machine itself: its operations compute what NVIDIA's PTX manual says, and what it forbids is refused."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from emulator import SCHEDULES, Emulator, FaultError, guarded

from tinker_actors.kernels.source import KERNELS, PAIRS, Kernel, Types, cuda_source

FLOATS = Types("float", "float")
MISTAKES = {
    1: "left|will not reach",
    2: "while others wait at line",
    3: "left|will not reach",
    4: "deadlock",
    5: "outside shared memory",
    6: "no tensor's",
    7: "wrote with no barrier",
    8: "wrote with no barrier",
    9: "read-only",
    12: "has left|may still read",
    13: "not aligned",
}


PROBES = {
    kernel.name: kernel
    for kernel in (
        Kernel(name="load_fragments", group="decode", parameters="PP", threads=32),
        Kernel(name="multiply_fragments", group="decode", parameters="PPP", threads=32),
        Kernel(name="round_floats", group="decode", parameters="PPPi", threads=32),
        Kernel(name="widen_halves", group="decode", parameters="PPi", threads=32),
        Kernel(name="misbehave", group="decode", parameters="iPP", threads=64, cluster=2),
    )
}


@pytest.fixture(scope="module")
def device() -> Emulator:
    text = (Path(__file__).parent / "emulator" / "probes.cuh").read_text().replace("#pragma once", "")
    return Emulator(kernels=PROBES, source=lambda *which: cuda_source(*which) + text)


def launch(device: Emulator, name: str, *arguments: object, blocks: int = 1, shared: int = 0) -> None:
    typed = [np.uint64(value.data_ptr()) if isinstance(value, torch.Tensor) else value for value in arguments]
    device.launch(PROBES[name], FLOATS, (blocks, 1, 1), shared, typed)


def misbehave(device: Emulator, mistake: int) -> torch.Tensor:
    given, out = guarded(torch.arange(64.0)), guarded(torch.zeros(128))
    launch(device, "misbehave", np.int32(mistake), out, given, blocks=2, shared=64 * 16)
    return out


def pairs(values: torch.Tensor) -> torch.Tensor:
    """Neighbours in one register, the first in the lower half."""
    bits = values.contiguous().view(torch.int16).to(torch.int64) & 0xFFFF
    return (bits[..., 0::2] | bits[..., 1::2] << 16).to(torch.uint32)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("mistake", MISTAKES)
def test_undefined_behaviour_is_a_fault_under_every_schedule(device: Emulator, mistake: int, schedule: str) -> None:
    device.schedule = SCHEDULES[schedule]
    with pytest.raises(FaultError, match=MISTAKES[mistake]):
        misbehave(device, mistake)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_threads_exchange_values_over_a_barrier(device: Emulator, schedule: str) -> None:
    device.schedule = SCHEDULES[schedule]
    assert misbehave(device, 0).tolist() == list(range(63, -1, -1)) * 2


def test_shared_memory_that_nobody_wrote_is_nan(device: Emulator) -> None:
    assert misbehave(device, 11).isnan().all()


def test_late_copies_are_not_there_before_they_are_waited_for(device: Emulator) -> None:
    device.schedule = SCHEDULES["ascending"]
    assert misbehave(device, 10).tolist() == ([0.0] * 16 + [4.0] * 16 + [8.0] * 16 + [12.0] * 16) * 2
    device.schedule = SCHEDULES["by warp"]
    assert misbehave(device, 10).isnan().all()


def test_matrices_load_into_the_lanes_that_the_manual_names(device: Emulator) -> None:
    matrix = guarded(torch.arange(256, dtype=torch.int16).view(16, 16))
    out = torch.zeros(32, 12, dtype=torch.int32)
    launch(device, "load_fragments", matrix, out, shared=16 * 48)
    # matrix i: rows 8 (i % 2) and columns 8 (i // 2) on; lane l holds row l // 4 and columns 2 (l % 4), + 1
    parts = [matrix[8 * (i % 2) :, 8 * (i // 2) :][:8, :8] for i in range(4)]
    straight = [pairs(part).flatten() for part in parts]
    transposed = [pairs(part.t()).flatten() for part in parts]
    expected = torch.stack([*straight, *transposed, *straight[:2], *transposed[:2]], dim=1)
    assert torch.equal(out.view(torch.uint32), expected)


def test_tensor_cores_multiply_fragments_as_the_manual_lays_them_out(device: Emulator) -> None:
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(16, 16, generator=generator).bfloat16()
    b = torch.randn(16, 8, generator=generator).bfloat16()
    d = torch.randn(16, 8, generator=generator)
    # lane l: rows l // 4 and + 8, terms 2 (l % 4) and + 8; b and d likewise
    left = torch.stack([pairs(a[8 * (i % 2) :, 8 * (i // 2) :][:8, :8]).flatten() for i in range(4)], dim=1)
    right = torch.stack([pairs(b.t()[:, 8 * i :][:, :8]).flatten() for i in range(2)], dim=1)
    sums = torch.cat([d[:8].reshape(32, 2), d[8:].reshape(32, 2)], dim=1).contiguous()
    launch(device, "multiply_fragments", left.contiguous(), right.contiguous(), sums)
    result = torch.cat([sums[:, :2].reshape(8, 8), sums[:, 2:].reshape(8, 8)])
    torch.testing.assert_close(result.double(), d.double() + a.double() @ b.double(), rtol=1e-6, atol=1e-6)


def test_every_half_widens_and_rounds_back(device: Emulator) -> None:
    halves = torch.arange(65536).to(torch.int32).to(torch.uint16).view(torch.float16)
    wide = torch.zeros(65536)
    launch(device, "widen_halves", halves, wide, np.int32(65536))
    assert torch.equal(wide.nan_to_num(123.0), halves.float().nan_to_num(123.0))


def test_floats_round_to_nearest_even(device: Emulator) -> None:
    generator = torch.Generator().manual_seed(0)
    exact = torch.arange(65536).to(torch.int32).to(torch.uint16).view(torch.float16).float()
    exact = exact[exact.isfinite()]
    ties = (exact[:-1] + exact[1:]) / 2
    bits = torch.randint(-(2**31), 2**31, (20000,), generator=generator).to(torch.int32).view(torch.float32)
    special = torch.tensor([65519.0, 65520.0, -65520.0, 1e30, torch.inf, -torch.inf, 2.0**-25, 2.0**-24, -0.0])
    floats = torch.cat([exact, ties, ties.nextafter(torch.tensor(1e9)), bits, bits * 2.0**-100, special])
    half, bf16 = torch.zeros(len(floats), dtype=torch.float16), torch.zeros(len(floats), dtype=torch.bfloat16)
    launch(device, "round_floats", floats, half, bf16, np.int32(len(floats)))
    for rounded, expected in [(half, floats.half()), (bf16, floats.bfloat16())]:
        assert torch.equal(rounded.isnan(), expected.isnan())
        numbers = ~expected.isnan()
        assert torch.equal(rounded[numbers].view(torch.int16), expected[numbers].view(torch.int16))


@pytest.mark.parametrize("types", PAIRS, ids=lambda types: f"{types.rows}-{types.weights}")
def test_kernels_take_the_arguments_that_the_launcher_is_told(types: Types) -> None:
    device = Emulator()
    for kernel in KERNELS.values():
        assert device.parameters(types, kernel.name) == kernel.parameters, kernel.name
        text = cuda_source(types, kernel.group)
        clustered = re.search(r"__cluster_dims__\(([^)]*)\)[^(]*\([^)]*\)\s*" + kernel.name + r"\(", text)
        assert (clustered is not None) == (kernel.cluster > 1), kernel.name


def test_arguments_of_another_type_are_refused(device: Emulator) -> None:
    good = [np.int32(0), torch.zeros(128), torch.zeros(64)]
    for place, bad in [(0, 0), (0, np.int64(0)), (1, np.int32(0)), (2, 1.0)]:
        arguments = [bad if at == place else value for at, value in enumerate(good)]
        with pytest.raises(FaultError, match=f"argument {place} is"):
            launch(device, "misbehave", *arguments, blocks=2, shared=1024)
    with pytest.raises(FaultError, match="takes 3 arguments, not 2"):
        launch(device, "misbehave", *good[:2], blocks=2, shared=1024)


def test_grids_and_shared_memory_that_no_gpu_takes_are_refused(device: Emulator) -> None:
    good = [np.int32(0), np.uint64(torch.zeros(128).data_ptr()), np.uint64(torch.zeros(64).data_ptr())]
    for grid, shared, message in [
        ((0, 1, 1), 1024, "grid"),
        ((2, 65536, 1), 1024, "grid"),
        ((2, 1, 1), 228 * 1024, "shared memory"),
        ((3, 1, 1), 1024, "in clusters of 2"),
    ]:
        with pytest.raises(FaultError, match=message):
            device.launch(PROBES["misbehave"], FLOATS, grid, shared, good)

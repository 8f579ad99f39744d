"""What the package gives CuPy and the driver, taken by stand-ins that are as strict and then run it in the emulator."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from emulator import Emulator

from tinker_actors.kernels import Path, Projection, RowPlan, backend, device_plan, lora_residuals
from tinker_actors.kernels.backend import CupyBackend, kernels_on_cpu
from tinker_actors.kernels.device_plan import PinnedRing
from tinker_actors.kernels.plan import KernelError
from tinker_actors.kernels.source import KERNELS, Types

STREAM = 4711
CPU = torch.device("cpu")


class FakeCupy:
    """The part of CuPy that is used, by its rules: NumPy's scalars, streams with `ptr`, shared memory asked for."""

    def __init__(self, emulator: Emulator) -> None:
        self.emulator = emulator
        self.compiled: list[tuple[str, tuple[str, ...]]] = []
        self.launched: list[str] = []
        self.streams: set[int] = set()
        self.shared = 0

    def module(self, *, code: str, options: tuple[str, ...]) -> SimpleNamespace:
        named = dict(re.findall(r"^#define (TA_ROW|TA_WEIGHT) (\w+)$", code, re.MULTILINE))
        types = Types(named["TA_ROW"], named["TA_WEIGHT"])
        self.compiled.append((f"{types.rows} {types.weights}", options))
        return SimpleNamespace(get_function=lambda name: FakeFunction(self, name, types))


class FakeFunction:
    def __init__(self, cupy: FakeCupy, name: str, types: Types) -> None:
        self._cupy, self._name, self._types = cupy, name, types
        self.max_dynamic_shared_size_bytes = 48 * 1024

    def __call__(
        self, grid: tuple[int, ...], block: tuple[int, ...], args: tuple[Any, ...], *, shared_mem: int, stream: Any
    ) -> None:
        assert all(isinstance(value, np.generic) for value in args), args  # a Python int would go as int64
        assert type(grid) is type(block) is type(args) is tuple
        assert min(grid) >= 1
        assert block == (KERNELS[self._name].threads, 1, 1)
        assert shared_mem <= self.max_dynamic_shared_size_bytes
        self._cupy.streams.add(stream.ptr)
        self._cupy.shared = max(self._cupy.shared, shared_mem)
        self._cupy.launched.append(self._name)
        self._cupy.emulator.launch(KERNELS[self._name], self._types, grid, shared_mem, args, CPU)  # pyright: ignore


class FakeDriver:
    capturing = False
    capability = (9, 0)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    made = FakeDriver()
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "device", lambda index: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: made.capturing)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: STREAM, raising=False)
    monkeypatch.setattr(backend, "_capability", lambda device: made.capability)
    return made


@pytest.fixture
def cupy(device: Emulator, driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCupy]:
    made = FakeCupy(device)
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(RawModule=made.module))
    with kernels_on_cpu(CupyBackend()):
        yield made


def residual(rows: int, inputs: int, path: Path, dtype: torch.dtype = torch.float32, rank: int = 8) -> torch.Tensor:
    """How far the residual through CuPy is from the products' one."""
    generator = torch.Generator().manual_seed(rows)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(dtype)

    x, y = random(rows, inputs), random(rows, 40)
    a, b = [random(rank, inputs) / inputs**0.5 for _ in range(2)], [random(40, rank) for _ in range(2)]
    slots = [row % 3 - 1 for row in range(rows)]
    wanted = y.float()
    for row, slot in enumerate(slots):
        if slot >= 0:
            wanted[row] += 0.5 * b[slot].float() @ (a[slot].float() @ x[row].float())
    projection = Projection(y_TO=y, a_slots=a, b_slots=b, scales=[0.5, 0.5])
    with torch.no_grad():
        (found,) = lora_residuals([projection], x, RowPlan.build(slots), path=path)
    return (found.float() - wanted).abs().max() / wanted.abs().max()


@pytest.mark.parametrize("capability", [(9, 0), (8, 0)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_cupy_gets_adds_the_residual(
    cupy: FakeCupy, driver: FakeDriver, capability: tuple[int, int], dtype: torch.dtype
) -> None:
    driver.capability = capability
    bound = 1e-5 if dtype == torch.float32 else 2**-7
    assert residual(12, 300, Path.DECODE, dtype) < bound
    assert residual(80, 300, Path.PREFILL, dtype) < bound
    decode = ["decode_fused"] if capability == (9, 0) else ["decode_shrink", "decode_expand"]
    assert cupy.launched == [*decode, "mma_shrink_16", "mma_expand_16"]
    assert cupy.streams == {STREAM}
    name = "float float" if dtype == torch.float32 else "ta_bf16 ta_bf16"
    assert cupy.compiled == [(name, ("-std=c++17", "-ftz=true"))] * 2  # decode and prefill, once each


def test_shared_memory_beyond_48_kib_is_asked_for_before_the_launch(cupy: FakeCupy) -> None:
    assert residual(80, 300, Path.PREFILL, rank=8) < 1e-5
    assert residual(80, 300, Path.PREFILL, rank=128) < 1e-5
    assert cupy.shared > 48 * 1024


def test_a_first_launch_while_a_graph_is_captured_is_refused_and_a_later_one_is_not(
    cupy: FakeCupy, driver: FakeDriver
) -> None:
    driver.capturing = True
    with pytest.raises(KernelError, match="run the same launch once before the capture"):
        residual(12, 300, Path.DECODE)
    driver.capturing = False
    residual(12, 300, Path.DECODE)
    driver.capturing = True
    assert residual(12, 300, Path.DECODE) < 1e-5


class FakeEvent:
    waits: ClassVar[list[object]] = []

    def record(self) -> None:
        self.recorded = True

    def synchronize(self) -> None:
        assert self.recorded
        self.waits.append(self)


@pytest.fixture
def ring(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> PinnedRing:
    """A ring for a GPU whose pinned memory is plain memory."""
    empty = torch.empty
    monkeypatch.setattr(device_plan.torch, "empty", lambda *size, pin_memory=False, **rest: empty(*size, **rest))
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    monkeypatch.setattr(FakeEvent, "waits", [])
    return PinnedRing(torch.device("cuda", 0))


def test_a_pinned_buffer_is_written_again_only_once_its_copy_was_made(ring: PinnedRing) -> None:
    target = torch.zeros(64, dtype=torch.int32)
    for number in range(4):
        ring.copy(np.full(64, number, dtype=np.int32), target)
        assert target.tolist() == [number] * 64
    assert not FakeEvent.waits
    ring.copy(np.full(64, 9, dtype=np.int32), target)
    assert len(FakeEvent.waits) == 1
    large = torch.zeros(5000, dtype=torch.int32)
    ring.copy(np.arange(5000, dtype=np.int32), large)  # a larger buffer takes the place of one that is done
    assert large.tolist() == list(range(5000))
    assert len(FakeEvent.waits) == 2


def test_nothing_is_copied_out_of_a_pinned_buffer_while_a_graph_is_captured(
    ring: PinnedRing, driver: FakeDriver
) -> None:
    driver.capturing = True
    with pytest.raises(KernelError, match="load it before"):
        ring.copy(np.zeros(4, dtype=np.int32), torch.zeros(4, dtype=torch.int32))

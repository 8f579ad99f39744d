"""The kernels against float64, against themselves, and in a captured CUDA graph."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from benchmarks.gpu.batches import Batch, error
from tinker_actors.kernels import Path, RowPlan, lora_residuals
from tinker_actors.kernels.backend import Backend, backend_for
from tinker_actors.kernels.device_plan import DevicePlan
from tinker_actors.kernels.launcher import Launcher
from tinker_actors.kernels.tables import AdapterTable

DTYPES = [
    (torch.float32, torch.float32),
    (torch.bfloat16, torch.bfloat16),
    (torch.bfloat16, torch.float32),
    (torch.float16, torch.float16),
    (torch.float16, torch.float32),
]
BOUNDS = {torch.float32: 1e-5, torch.bfloat16: 2**-8, torch.float16: 2**-11}
"""Largest error allowed, as a part of the largest value: one rounding where rows have 16 bits."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One check's outcome.

    Attributes:
        check: What was checked.
        shown: What it showed.
        good: Whether that is right.
    """

    check: str
    shown: str
    good: bool


def findings(device: torch.device, *, small: bool) -> Iterator[Finding]:
    """All checks, one after the other; `small` for tools that slow kernels down a hundredfold."""
    for dtypes in DTYPES:
        yield from _against_float64(device, dtypes, small)
        yield from _gradients(device, dtypes, small)
        yield from _alone_and_together(device, dtypes, small)
    yield from _sixty_four_bit_offsets(device, small)
    yield from _captured(device, small)


def _named(check: str, dtypes: tuple[torch.dtype, torch.dtype]) -> str:
    rows, weights = (str(dtype).removeprefix("torch.") for dtype in dtypes)
    return f"{check}, {rows} rows, {weights} adapters"


def _run(batch: Batch, path: Path) -> list[torch.Tensor]:
    with torch.no_grad():
        ys = [y.clone() for y in batch.ys]
        return lora_residuals(batch.projections(ys), batch.x, RowPlan.build(batch.slots), path=path)


def _against_float64(device: torch.device, dtypes: tuple[torch.dtype, torch.dtype], small: bool) -> Iterator[Finding]:
    for path, rows, ranks in (
        (Path.DECODE, 40, [8, 16, 1, 64, 33]),
        (Path.PREFILL, 90 if small else 1500, [8, 16, 1, 128, 33]),
    ):
        batch = Batch.build(rows, 600 if small else 4096, [136, 77] if small else [4096, 1000], ranks, dtypes, device)
        found, wanted = _run(batch, path), batch.wanted()
        worst = max(error(y, right) for y, right in zip(found, wanted, strict=True))
        idle = [row for row, slot in enumerate(batch.slots) if slot < 0]
        kept = all(torch.equal(y[idle], before[idle]) for y, before in zip(found, batch.ys, strict=True))
        good = worst <= BOUNDS[dtypes[0]] and kept
        yield Finding(check=_named(f"{path.value} against float64", dtypes), shown=f"error {worst:.1e}", good=good)


def _gradients(device: torch.device, dtypes: tuple[torch.dtype, torch.dtype], small: bool) -> Iterator[Finding]:
    shape = (90, 200, [136, 77], [8, 70, 3]) if small else (2000, 2048, [2048, 512], [16, 128, 5])
    batch = Batch.build(*shape, dtypes, device, seed=1)
    for leaf in batch.leaves():
        leaf.requires_grad_()
    exact = batch.exact()
    for side in (batch, exact):
        plan = RowPlan.build(side.slots)
        path = Path.PREFILL if side is batch else None
        outputs = lora_residuals(side.projections([y.detach().clone() for y in side.ys]), side.x, plan, path=path)
        torch.autograd.backward(outputs, [torch.ones_like(y) for y in outputs])
    pairs = [(a.grad, b.grad) for a, b in zip(batch.leaves(), exact.leaves(), strict=True)]
    worst = max(error(found, wanted) for found, wanted in pairs if found is not None and wanted is not None)
    good = worst <= 4 * BOUNDS[dtypes[0]] and all(found is not None for found, _ in pairs)
    yield Finding(check=_named("gradients against float64", dtypes), shown=f"error {worst:.1e}", good=good)


def _alone_and_together(
    device: torch.device, dtypes: tuple[torch.dtype, torch.dtype], small: bool
) -> Iterator[Finding]:
    batch = Batch.build(48, 600 if small else 4096, [136], [16, 8, 64], dtypes, device, seed=2)
    for path in (Path.DECODE, Path.PREFILL):
        together, again = _run(batch, path)[0], _run(batch, path)[0]
        rows = [row for row, slot in enumerate(batch.slots) if slot == 1][:3]
        alone = Batch(
            x=batch.x[rows],
            ys=[y[rows] for y in batch.ys],
            slots=[1] * len(rows),
            a=batch.a,
            b=batch.b,
            scales=batch.scales,
        )
        same = torch.equal(_run(alone, path)[0], together[rows]) and torch.equal(together, again)
        check = _named(f"{path.value}: rows alone as in a batch, twice the same", dtypes)
        yield Finding(check=check, shown="bit-equal" if same else "bits differ", good=same)


def _sixty_four_bit_offsets(device: torch.device, small: bool) -> Iterator[Finding]:
    if small or device.type != "cuda":
        return
    rows, width = 180_000, 12_288  # past 2**31 elements
    free, _ = torch.cuda.mem_get_info(device)
    if free < 4 * rows * width:  # the outputs, and a comparison of them
        yield Finding(check="offsets past 2**31", shown=f"left out: {free / 1e9:.0f} GB are free", good=True)
        return
    y = torch.zeros(rows, width, dtype=torch.bfloat16, device=device)
    x = torch.randn(rows, 64, dtype=torch.bfloat16, device=device)
    a = torch.randn(16, 64, dtype=torch.bfloat16, device=device)
    b = torch.randn(width, 16, dtype=torch.bfloat16, device=device)
    slots = [-1] * rows
    slots[-1] = 0
    wanted = (x[-1].double() @ a.double().T) @ b.double().T
    for path in (Path.DECODE, Path.PREFILL):
        y.zero_()
        batch = Batch(x=x, ys=[y], slots=slots, a=[[a]], b=[[b]], scales=[1.0])
        with torch.no_grad():
            lora_residuals(batch.projections([y]), x, RowPlan.build(slots), path=path)
        worst = error(y[-1], wanted.cpu())
        good = worst <= BOUNDS[torch.bfloat16] and not y[:-1].any().item()
        yield Finding(check=f"{path.value}: the last of {rows} rows of {width}", shown=f"error {worst:.1e}", good=good)


def _captured(device: torch.device, small: bool) -> Iterator[Finding]:
    """One launch, captured where there are graphs, for steps with other rows, other adapters and other ranks."""
    backend = backend_for(device)
    assert backend is not None
    for fused in (True, False):
        yield _replayed(device, backend, fused, small)


def _replayed(device: torch.device, backend: Backend, fused: bool, small: bool) -> Finding:
    dtypes = (torch.bfloat16, torch.bfloat16)
    rows, inputs, slots = 64, 600 if small else 4096, 8
    plan = DevicePlan.reserve(rows=rows, adapters=slots, device=device)
    table = AdapterTable(slices=1, slots=slots, dtype=dtypes[1], device=device, max_rank=64)
    table.upload()
    launcher = Launcher(backend, plan, table, dtypes[0], device)
    x = torch.zeros(rows, inputs, dtype=dtypes[0], device=device)
    y = torch.zeros(rows, 136, dtype=dtypes[0], device=device)
    scratch = launcher.scratch(inputs, decode=True)
    name = "decode_fused" if fused else "decode in two kernels"
    if fused and not launcher.can_fuse(inputs):
        return Finding(check=name, shown="left out: no clusters here", good=True)

    def launch() -> None:
        if fused:
            launcher.fused([y], x)
        else:
            launcher.decode([y], x, scratch)

    launch()  # compiles; what a capture must not do
    graph = None
    if device.type == "cuda" and not small:  # compute-sanitizer runs without torch's allocator, which captures need
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            launch()
    same = True
    for step in range(5):
        ranks = [1 + (7 * slot + 13 * step) % 64 for slot in range(1 + step * 7 // 4)]
        batch = Batch.build(rows, inputs, [136], ranks, dtypes, device, seed=step, idle=0.2 * step)
        for slot in range(slots):
            table.clear(slot)
            if slot < len(ranks):
                table.set(0, slot, batch.a[0][slot], batch.b[0][slot], batch.scales[slot])
        table.upload()
        plan.load(RowPlan.build(batch.slots))
        x.copy_(batch.x)
        y.copy_(batch.ys[0])
        graph.replay() if graph is not None else launch()
        same = same and torch.equal(y, _run(batch, Path.DECODE)[0])
    captured = "captured once" if graph is not None else "launched again"
    return Finding(
        check=f"{name}, {captured}, five steps of other adapters",
        shown="bit-equal to a call of its own" if same else "bits differ",
        good=same,
    )

"""How long the residual takes on this GPU: beside the floor of its memory traffic, and beside torch's own ways.

Every system is captured in a CUDA graph of several calls, each on weights and rows of its own so that caches hold none
of them, and the graph is replayed: what is shown is the GPU's time, without the host's.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tinker_actors.kernels import RowPlan
from tinker_actors.kernels.backend import backend_for
from tinker_actors.kernels.device_plan import DevicePlan
from tinker_actors.kernels.launcher import Launcher
from tinker_actors.kernels.source import MMA_SPLIT
from tinker_actors.kernels.tables import AdapterTable

BYTES_PER_SECOND = 4.3e12
"""Memory bandwidth that floors are worked out with: what was measured on an H200."""
_BEYOND_CACHES = 200e6
_ROUNDS = 15

Call = Callable[[], None]


@dataclass(frozen=True, kw_only=True)
class Case:
    """Rows spread evenly over adapters, sorted by adapter, bfloat16 throughout.

    Attributes:
        name: What it stands for.
        rows: Of the matrix.
        adapters: How many.
        rank: Of each.
        width: Inputs and outputs of each projection.
        slices: Projections that share the rows.
    """

    name: str
    rows: int
    adapters: int
    rank: int
    width: int = 4096
    slices: int = 1

    @property
    def floor(self) -> float:
        """Microseconds to read A, B, X and Y and write Y once."""
        weights = 2 * self.adapters * self.rank * self.width * self.slices
        rows = self.rows * self.width * (1 + 2 * self.slices)
        return 2 * (weights + rows) / BYTES_PER_SECOND * 1e6


@dataclass(frozen=True, kw_only=True)
class Timing:
    """One system in one case.

    Attributes:
        case: The case.
        system: Which.
        rounds: Microseconds of a call, by round; none where the system can't.
        why: Why it can't.
    """

    case: Case
    system: str
    rounds: tuple[float, ...] = ()
    why: str = ""


CASES = [
    *(
        Case(name="decode", rows=rows, adapters=adapters, rank=rank)
        for rank in (16, 64)
        for rows, adapters in ((1, 1), (8, 8), (64, 8), (64, 64), (256, 64))
    ),
    Case(name="decode, q k v", rows=64, adapters=8, rank=16, slices=3),
    Case(name="prefill", rows=8192, adapters=8, rank=16),
    Case(name="prefill", rows=8192, adapters=1, rank=16),
    Case(name="prefill", rows=8192, adapters=8, rank=64),
    Case(name="prefill", rows=8192, adapters=8, rank=128),
]
BACKWARD_CASES = [
    Case(name="backward", rows=8192, adapters=8, rank=16),
    Case(name="backward", rows=8192, adapters=8, rank=64),
]


class _Copy:
    """Tensors of one call."""

    def __init__(self, case: Case, device: torch.device) -> None:
        def random(*shape: int) -> Tensor:
            return torch.randn(*shape, dtype=torch.bfloat16, device=device)

        width, rank = case.width, case.rank
        self.x = random(case.rows, width)
        self.ys = [random(case.rows, width) for _ in range(case.slices)]
        self.a = random(case.slices, case.adapters, rank, width) / width**0.5
        self.b = random(case.slices, case.adapters, width, rank)
        self.table = AdapterTable(
            slices=case.slices, slots=case.adapters, dtype=torch.bfloat16, device=device, max_rank=rank
        )
        for at in range(case.slices):
            for slot in range(case.adapters):
                self.table.set(at, slot, self.a[at, slot], self.b[at, slot], 1.0)
        self.table.upload()


def timings(device: torch.device, cases: Sequence[Case] = CASES) -> Iterator[Timing]:
    """Forward passes of every case and system."""
    for case in cases:
        plan = _plan(case, device)
        copies = _copies(case, device)
        yield from _measured(case, "base product", [_base(case, copy, device) for copy in copies[:2]])
        pairs = list(zip((_launcher(plan, copy, device) for copy in copies), copies, strict=True))
        systems: dict[str, Callable[[], list[Call]]] = {
            "torch, two products each": lambda case=case, copies=copies: [_products(case, copy) for copy in copies],
            "torch, grouped_mm": lambda case=case, copies=copies: [_grouped(case, copy, device) for copy in copies],
        }
        if case.rows > 256:
            systems["mma pair"] = lambda pairs=pairs: [_prefill(*pair) for pair in pairs]
        else:
            systems["decode in two"] = lambda pairs=pairs: [_decode(*pair) for pair in pairs]
            if pairs[0][0].can_fuse(case.width):
                systems["decode_fused"] = lambda pairs=pairs: [_fused(*pair) for pair in pairs]
        for system, build in systems.items():
            yield from _measured(case, system, build())


def backward_timings(device: torch.device, cases: Sequence[Case] = BACKWARD_CASES) -> Iterator[Timing]:
    """The backward pass's kernels, each by itself."""
    for case in cases:
        copies = _copies(case, device)
        launchers = [_launcher(_plan(case, device), copy, device) for copy in copies]
        parts: dict[str, list[Call]] = {"dS and dB": [], "dA": [], "dX": []}
        for launcher, copy in zip(launchers, copies, strict=True):
            narrow = torch.randn(launcher.narrow_shape, dtype=torch.float32, device=device)
            chunks = launcher.gradient_scratch(case.width)
            partials = narrow.new_empty((1, -(-case.width // 128), *narrow.shape[1:]))
            parts["dS and dB"].append(
                lambda at=launcher, c=chunks, p=partials, n=narrow, v=copy: at.both(c, p, n, v.ys)
            )
            parts["dA"].append(lambda at=launcher, c=chunks, n=narrow, v=copy: at.gradient(c, n, [v.x]))
            parts["dX"].append(
                lambda at=launcher, n=narrow, v=copy: at.expand(
                    [v.x], n.unsqueeze(1), by_a=True, adds=False, scaled=True
                )
            )
        for part, calls in parts.items():
            yield from _measured(case, part, calls)


def _plan(case: Case, device: torch.device) -> DevicePlan:
    slots = [row * case.adapters // case.rows for row in range(case.rows)]
    return DevicePlan.of(RowPlan.build(slots), device)


def _copies(case: Case, device: torch.device) -> list[_Copy]:
    bytes_each = case.floor * 1e-6 * BYTES_PER_SECOND
    return [_Copy(case, device) for _ in range(max(2, min(16, int(_BEYOND_CACHES / bytes_each) + 1)))]


def _launcher(plan: DevicePlan, copy: _Copy, device: torch.device) -> Launcher:
    backend = backend_for(device)
    assert backend is not None
    return Launcher(backend, plan, copy.table, torch.bfloat16, device)


def _fused(launcher: Launcher, copy: _Copy) -> Call:
    return lambda: launcher.fused(copy.ys, copy.x)


def _decode(launcher: Launcher, copy: _Copy) -> Call:
    scratch = launcher.scratch(copy.x.shape[1], decode=True)
    return lambda: launcher.decode(copy.ys, copy.x, scratch)


def _prefill(launcher: Launcher, copy: _Copy) -> Call:
    scratch = launcher.scratch(copy.x.shape[1], decode=False)
    assert scratch.shape[1] == -(-copy.x.shape[1] // MMA_SPLIT)
    return lambda: launcher.prefill(copy.ys, copy.x, scratch)


def _base(case: Case, copy: _Copy, device: torch.device) -> Call:
    weight = torch.randn(case.width, case.width * case.slices, dtype=torch.bfloat16, device=device)

    def call() -> None:
        torch.mm(copy.x, weight)

    return call


def _products(case: Case, copy: _Copy) -> Call:
    bounds = [-(-slot * case.rows // case.adapters) for slot in range(case.adapters + 1)]

    def call() -> None:
        for at, y in enumerate(copy.ys):
            for slot, (first, last) in enumerate(itertools.pairwise(bounds)):
                narrow = copy.x[first:last] @ copy.a[at, slot].t()
                y[first:last].addmm_(narrow, copy.b[at, slot].t())

    return call


def _grouped(case: Case, copy: _Copy, device: torch.device) -> Call:
    ends = [-(-(slot + 1) * case.rows // case.adapters) for slot in range(case.adapters)]
    offsets = torch.tensor(ends, dtype=torch.int32, device=device)
    grouped = getattr(torch.nn.functional, "grouped_mm", None) or getattr(torch, "_grouped_mm")  # noqa: B009 - not exported

    def call() -> None:
        for at, y in enumerate(copy.ys):
            narrow = grouped(copy.x, copy.a[at].transpose(1, 2), offs=offsets)
            y.add_(grouped(narrow, copy.b[at].transpose(1, 2), offs=offsets))

    return call


def _measured(case: Case, system: str, calls: Sequence[Call]) -> Iterator[Timing]:
    try:
        yield Timing(case=case, system=system, rounds=_rounds(calls))
    except (RuntimeError, NotImplementedError) as failure:  # torch's ways take some shapes only
        yield Timing(case=case, system=system, why=str(failure).splitlines()[0][:80])


def _rounds(calls: Sequence[Call]) -> tuple[float, ...]:
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for call in calls:
            call()
    side.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        for call in calls:
            call()
    times: list[float] = []
    for _ in range(_ROUNDS):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / len(calls))
    return tuple(times)

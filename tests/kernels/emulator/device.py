"""Launches kernels on the emulated device, as CuPy would on a real one but with every argument's type checked."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from emulator import build
from tinker_actors.kernels.source import KERNELS, Kernel, Types, cuda_source

CPU = torch.device("cpu")
SHARED_LIMIT = 227 * 1024
"""Bytes of shared memory that a block of compute capability 9.0 can have."""
GRID_LIMIT = (2**31 - 1, 65535, 65535)


class FaultError(RuntimeError):
    """A kernel did what a GPU would not allow, or would give no certain result for."""


class _Schedule(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int) for name in ("unit", "order", "resident", "late_copies", "preempt_every")),
        ("seed", ctypes.c_uint),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Who runs when.

    Attributes:
        unit: Threads that run until none of them can go on, before the next do: 1, 32 (a warp), 128 (a block) ...;
            0 for all of a cluster.
        order: Of blocks and threads: 0 ascending, 1 descending, 2 at random, anew each time round.
        resident: Clusters, or single blocks, side by side.
        late_copies: Asynchronous copies arrive only when they are waited for, and spoil their target until then;
            else they arrive at once.
        preempt_every: About every how many accesses to global memory another thread runs; 0 for never.
        seed: For what is at random.
    """

    unit: int
    order: int = 0
    resident: int = 1
    late_copies: bool = True
    preempt_every: int = 0
    seed: int = 0


SCHEDULES = {
    "ascending": Schedule(unit=1, late_copies=False),
    "descending": Schedule(unit=1, order=1),
    "by warp": Schedule(unit=32),
    "by warp, descending": Schedule(unit=32, order=1, late_copies=False),
    "by block, last first": Schedule(unit=128, order=1, resident=3),
    "at random": Schedule(unit=1, order=2, resident=2, seed=1),
    "preempted": Schedule(unit=32, order=2, resident=3, preempt_every=20, seed=2),
}
"""Each brings out other mistakes: a missing barrier, a copy read early or overwritten, a race between blocks."""


class Emulator:
    """The emulated device, a `tinker_actors.kernels.backend.Backend` for CPU tensors.

    Attributes:
        has_clusters: Whether to pass for a GPU that has thread block clusters.
        schedule: What the next launches run under.
        launches: Names of the kernels launched so far.
    """

    def __init__(
        self, *, kernels: Mapping[str, Kernel] = KERNELS, source: Callable[[Types, str], str] = cuda_source
    ) -> None:
        """Build nothing yet: what is needed is built when it is needed.

        Args:
            kernels: Those that can be launched, by name.
            source: Gives the text of a group of kernels for a pair of types.
        """
        self._kernels = kernels
        self._source = source
        self._libraries: dict[tuple[Types, str], ctypes.CDLL] = {}
        self.has_clusters = True
        self.schedule = SCHEDULES["by warp"]
        self.launches: list[str] = []

    def parameters(self, types: Types, name: str) -> str:
        """A letter for each parameter that a kernel really has.

        Raises:
            FaultError: There is no such kernel.
        """
        found: bytes = self._library(types, name).emulator_parameters_of(name.encode())
        return found.decode()

    def clusters(self, device: torch.device) -> bool:
        """Whether kernels that need clusters run: as `has_clusters` says."""
        return self.has_clusters

    def launch(
        self,
        kernel: Kernel,
        types: Types,
        grid: Sequence[int],
        shared: int,
        arguments: Sequence[object],
        device: torch.device = CPU,
    ) -> None:
        """Run a kernel to its end.

        Args:
            kernel: Which.
            types: Of rows and weights.
            grid: Blocks along x, y and z.
            shared: Dynamic shared memory of a block, bytes.
            arguments: numpy scalars of exactly the parameters' types, pointers as uint64.
            device: Where the tensors are: the CPU.

        Raises:
            FaultError: No such kernel, arguments of other types, a grid that no GPU takes, or the kernel went
                wrong.
        """
        name = kernel.name
        if device.type != "cpu":
            raise FaultError(f"{name}: tensors on {device}")
        if len(grid) != 3 or not all(0 < count <= limit for count, limit in zip(grid, GRID_LIMIT, strict=True)):
            raise FaultError(f"{name}: grid {tuple(grid)}")
        if not 0 <= shared <= SHARED_LIMIT:
            raise FaultError(f"{name}: {shared} bytes of shared memory, where a block has {SHARED_LIMIT}")
        packed = pack(name, self.parameters(types, name), arguments)
        pointers = (ctypes.c_void_p * len(packed))(*(item.ctypes.data for item in packed))
        s = self.schedule
        schedule = _Schedule(s.unit, s.order, s.resident, s.late_copies, s.preempt_every, s.seed)
        message = ctypes.create_string_buffer(512)
        self.launches.append(name)
        went_well = self._library(types, name).emulator_run_kernel(
            name.encode(),
            (ctypes.c_uint * 3)(*grid),
            (ctypes.c_uint * 3)(kernel.threads, 1, 1),
            ctypes.c_size_t(shared),
            pointers,
            ctypes.byref(schedule),
            message,
            ctypes.c_size_t(len(message)),
        )
        if not went_well:
            raise FaultError(f"{name}: {message.value.decode()}")

    def _library(self, types: Types, name: str) -> ctypes.CDLL:
        if name not in self._kernels:
            raise FaultError(f"no kernel {name!r}")
        group = self._kernels[name].group
        if (types, group) not in self._libraries:
            own = [kernel for kernel in self._kernels.values() if kernel.group == group]
            library = ctypes.CDLL(str(build.library(self._source(types, group), own)))
            library.emulator_parameters_of.restype = ctypes.c_char_p
            self._libraries[types, group] = library
        return self._libraries[types, group]


_TYPES: dict[str, type[np.generic]] = {"P": np.uint64, "q": np.int64, "i": np.int32, "f": np.float32}


def pack(name: str, parameters: str, arguments: Sequence[object]) -> list[np.ndarray]:
    """Arguments as memory, one array of one number for each.

    Raises:
        FaultError: Too few or many, or one of another type than its parameter: a launch on a GPU would read
            whatever bytes lie there.
    """
    if len(parameters) != len(arguments):
        raise FaultError(f"{name} takes {len(parameters)} arguments, not {len(arguments)}")
    for place, (letter, argument) in enumerate(zip(parameters, arguments, strict=True)):
        if not isinstance(argument, _TYPES[letter]):
            raise FaultError(
                f"{name}: argument {place} is {argument!r}, a {type(argument).__name__}, not {_TYPES[letter].__name__}"
            )
    return [np.array([argument]) for argument in arguments]

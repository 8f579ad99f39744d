"""What runs the kernels: CuPy on a GPU, or for CPU tensors whatever a test puts in its place.

The launcher works out grids, shared memory and typed arguments; a backend only starts the kernel. CuPy is imported
when the first kernel starts, so everything else works without it.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import importlib.util
import logging
import threading
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import torch

from tinker_actors.kernels.plan import KernelError
from tinker_actors.kernels.source import Kernel, Types, cuda_source

_log = logging.getLogger(__name__)

OPTIONS = ("-std=c++17", "-ftz=true")
"""What the sources are compiled with."""

_SHARED_WITHOUT_ASKING = 48 * 1024


class Backend(Protocol):
    """Starts kernels."""

    def clusters(self, device: torch.device) -> bool:
        """Whether `decode_fused` runs there."""
        ...

    def launch(
        self,
        kernel: Kernel,
        types: Types,
        grid: tuple[int, int, int],
        shared: int,
        arguments: Sequence[np.generic],
        device: torch.device,
    ) -> None:
        """Start a kernel in order with the current stream's work.

        Args:
            kernel: Which.
            types: What the sources are compiled for.
            grid: Blocks along x, y and z, each at least 1.
            shared: Dynamic shared memory of a block, bytes.
            arguments: One per letter of `kernel.parameters`, of exactly that type; pointers are uint64.
            device: Where the tensors are that the pointers point to.
        """
        ...


class CupyBackend:
    """Compiles the sources at run time with NVRTC, a group of kernels and a pair of types at a time."""

    def __init__(self) -> None:
        self._modules: dict[tuple[Types, str], Any] = {}
        self._functions: dict[tuple[str, Types, int], Any] = {}
        self._granted: dict[tuple[str, Types, int], int] = {}
        self._lock = threading.Lock()

    def clusters(self, device: torch.device) -> bool:
        """Whether the GPU has thread block clusters: compute capability 9.0 or later."""
        return _capability(device) >= (9, 0)

    def launch(
        self,
        kernel: Kernel,
        types: Types,
        grid: tuple[int, int, int],
        shared: int,
        arguments: Sequence[np.generic],
        device: torch.device,
    ) -> None:
        """See `Backend.launch`. A kernel's first launch compiles it and must not be captured."""
        index = device.index if device.index is not None else torch.cuda.current_device()
        with torch.cuda.device(index):
            function = self._function(kernel, types, index, shared)
            # CuPy's own current stream is the thread's, and autograd's backward thread has another
            stream = _Stream(torch._C._cuda_getCurrentRawStream(index))
            function(grid, (kernel.threads, 1, 1), tuple(arguments), shared_mem=shared, stream=stream)

    def _function(self, kernel: Kernel, types: Types, index: int, shared: int) -> Any:
        key = (kernel.name, types, index)
        function = self._functions.get(key)
        if function is not None and shared <= self._granted[key]:
            return function
        if torch.cuda.is_current_stream_capturing():
            raise KernelError(
                f"{kernel.name} is launched for the first time, or with more shared memory than before, while a CUDA "
                "graph is captured; run the same launch once before the capture"
            )
        with self._lock:
            if function is None:
                import cupy

                module = self._modules.get((types, kernel.group))
                if module is None:
                    module = cupy.RawModule(code=cuda_source(types, kernel.group), options=OPTIONS)
                    self._modules[types, kernel.group] = module
                function = module.get_function(kernel.name)
            if shared > _SHARED_WITHOUT_ASKING:
                function.max_dynamic_shared_size_bytes = shared
            self._granted[key] = max(shared, _SHARED_WITHOUT_ASKING)
            self._functions[key] = function
        return function


class _Stream:
    """A stream as CuPy's launch takes it."""

    def __init__(self, ptr: int) -> None:
        self.ptr = ptr


@functools.cache
def _capability(device: torch.device) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device)


@functools.cache
def _cupy() -> CupyBackend | None:
    if importlib.util.find_spec("cupy") is None:
        _log.warning("CuPy is not installed: adapters run on plain torch products. pip install 'tinker-actors[gpu]'")
        return None
    return CupyBackend()


_FOR_CPU: contextvars.ContextVar[Backend | None] = contextvars.ContextVar("tinker_actors_cpu_kernels", default=None)


@contextlib.contextmanager
def kernels_on_cpu(backend: Backend) -> Iterator[None]:
    """Within, residuals of CPU tensors are computed by the GPU's kernels through this backend. For tests."""
    token = _FOR_CPU.set(backend)
    try:
        yield
    finally:
        _FOR_CPU.reset(token)


def backend_for(device: torch.device) -> Backend | None:
    """What runs the kernels there, or None where plain torch products are the way."""
    if device.type == "cuda":
        return _cupy()
    return _FOR_CPU.get() if device.type == "cpu" else None

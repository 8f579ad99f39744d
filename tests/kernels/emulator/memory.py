"""Tensors in memory of their own, placed so that kernels that read or write beside them are caught."""

from __future__ import annotations

import ctypes
import mmap

import torch
from torch import Tensor

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_MAP_NORESERVE = 0x4000


def guarded(values: Tensor) -> Tensor:
    """A copy with the same strides whose last element ends where a page begins that nobody may touch.

    What lies between strided elements is NaN, so reading it shows in the result.

    Raises:
        OSError: The system gives no such memory.
    """
    span = 1 + sum((size - 1) * stride for size, stride in zip(values.shape, values.stride(), strict=True))
    length = 0 if values.numel() == 0 else span * values.element_size()
    pages = -(-length // mmap.PAGESIZE) * mmap.PAGESIZE
    memory = mmap.mmap(-1, pages + mmap.PAGESIZE)
    flat = torch.frombuffer(memory, dtype=torch.uint8)
    if _libc.mprotect(flat.data_ptr() + pages, mmap.PAGESIZE, 0):
        raise OSError(ctypes.get_errno(), "mprotect")
    bytes_of_it = flat[pages - length : pages].view(values.dtype)
    if values.is_floating_point():
        bytes_of_it.fill_(torch.nan)
    placed = bytes_of_it.as_strided(values.shape, values.stride())
    return placed.copy_(values)


def huge(rows: int, columns: int, dtype: torch.dtype) -> Tensor:
    """Rows of zeros that take up address space but, until touched, no memory.

    Raises:
        OSError: The system gives no such address space.
    """
    size = rows * columns * torch.empty(0, dtype=dtype).element_size()
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE)
    return torch.frombuffer(memory, dtype=dtype).view(rows, columns)

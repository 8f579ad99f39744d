"""NumPy arrays and torch tensors as a small head and one buffer. Neither library is imported before one is read.

Tensors arrive on the CPU and without a gradient history. What is read from a frame lies in the frame's memory: arrays
read-only, tensors, which can't be read-only, in memory of this process's own or copy-on-write.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tinker_actors.actors.errors import CodecError
from tinker_actors.actors.leases import Loan

if TYPE_CHECKING:
    import numpy as np

KINDS = frozenset("biufcSUMm?")
"""The `dtype.kind`s that cross: numbers, booleans, fixed-size strings, dates. Objects and records don't."""

TENSOR_TYPES = frozenset({
    "bool", "uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64", "float16", "bfloat16", "float32",
    "float64", "complex64", "complex128", "float8_e4m3fn", "float8_e5m2",
})  # fmt: skip


_PLAIN = frozenset("?bBhHiIlLqQfd")  # the `dtype.char`s that a memoryview can read as bytes
_read: dict[str, Any] = {}  # dtypes by name
_READ_MOST = 256


def write_array(array: Any) -> tuple[list[Any], memoryview]:
    """[dtype, shape] and the elements in C order of an array that is of no subclass."""
    import numpy as np

    dtype = array.dtype
    if dtype.kind not in KINDS:
        raise CodecError(f"can't send an array of dtype {dtype}; numbers and text only")
    flat: Any = np.ascontiguousarray(array).reshape(-1)
    return [dtype.str, list(array.shape)], memoryview(flat.view(np.uint8) if flat.size else b"")


def is_plain(array: Any) -> bool:
    """Whether `memoryview(array).cast("B")` is what `write_array` gives, if the array is contiguous."""
    return array.dtype.char in _PLAIN and array.dtype.isnative and array.size > 0


def read_array(dtype: str, shape: list[int], buffer: Any) -> np.ndarray[Any, Any]:
    """The array over `buffer`, uncopied; read-only unless it is a `bytearray`."""
    kind = _read.get(dtype) or _dtype(dtype)
    if isinstance(buffer, Loan):
        return buffer.root.view(kind).reshape(shape)
    import numpy as np

    array = np.frombuffer(buffer, dtype=kind).reshape(shape)
    if not isinstance(buffer, bytearray):
        array.flags.writeable = False
    return array


def shared(buffer: Any) -> Any:
    """The memory to read in place."""
    return buffer.shared() if isinstance(buffer, Loan) else buffer


def write_scalar(scalar: Any) -> list[Any]:
    """[dtype, bytes] of a NumPy scalar."""
    if scalar.dtype.kind not in KINDS:
        raise CodecError(f"can't send a NumPy scalar of dtype {scalar.dtype}")
    return [scalar.dtype.str, scalar.tobytes()]


def read_scalar(dtype: str, data: bytes) -> Any:
    """The NumPy scalar."""
    import numpy as np

    return np.frombuffer(data, dtype=_dtype(dtype))[0]


def write_tensor(tensor: Any) -> tuple[list[Any], memoryview]:
    """[type name, shape] and the elements in C order, from whatever device they are on."""
    import torch

    name = str(tensor.dtype).removeprefix("torch.")
    if name not in TENSOR_TYPES or tensor.layout is not torch.strided:
        raise CodecError(f"can't send a tensor of dtype {tensor.dtype} and layout {tensor.layout}")
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    if not flat.numel():
        return [name, list(tensor.shape)], memoryview(b"")
    return [name, list(tensor.shape)], memoryview(flat.view(torch.uint8).numpy())


def read_tensor(name: str, shape: list[int], buffer: Any) -> Any:
    """The tensor over `buffer`, uncopied if the buffer is a loan or writable."""
    import torch

    if name not in TENSOR_TYPES:
        raise CodecError(f"unknown tensor type {name!r}")
    dtype: torch.dtype = getattr(torch, name)
    if isinstance(buffer, Loan):
        buffer = buffer.private()
    if memoryview(buffer).nbytes == 0:
        return torch.empty(0, dtype=dtype).reshape(shape)  # no shape may claim memory that did not come
    if memoryview(buffer).readonly:
        buffer = bytearray(buffer)
    return torch.frombuffer(buffer, dtype=dtype).reshape(shape)


def _dtype(name: str) -> np.dtype[Any]:
    import numpy as np

    dtype = np.dtype(name)
    if dtype.kind not in KINDS or dtype.itemsize == 0:
        raise CodecError(f"dtype {name!r} is not allowed in a message")
    if len(_read) < _READ_MOST:
        _read[name] = dtype
    return dtype

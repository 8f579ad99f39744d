"""Tensors as the Tinker API sends them, in protobuf or JSON, dense or sparse, as numpy arrays."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tinker.proto import tinker_public_pb2 as wire

from tinker_actors.errors import DataError

MOST_CELLS = 2**23
"""Elements that a sparse tensor may have once it is written out; a dense one is as large as its request."""

_KINDS = {
    wire.DTYPE_FLOAT32: np.dtype("<f4"),
    wire.DTYPE_INT64: np.dtype("<i8"),
    wire.DTYPE_INT32: np.dtype("<i4"),
    wire.DTYPE_BFLOAT16: np.dtype("<u2"),
}
_JSON_KINDS = {"float32": np.dtype("<f4"), "int64": np.dtype("<i8")}


def of_protobuf(tensor: wire.Tensor, where: str) -> NDArray[Any]:
    """A tensor as an array of fp32 or int64.

    Args:
        tensor: The message; what a sparse one doesn't list is 0.
        where: Names it in errors.

    Raises:
        DataError: Its parts don't fit together, or it is too large.
    """
    kind = _KINDS.get(tensor.dtype)
    if kind is None:
        raise DataError(
            f"{where} has dtype {tensor.dtype}; 1 (float32), 2 (int64), 3 (int32) or 4 (bfloat16) is needed"
        )
    shape = tuple(tensor.shape)
    if tensor.WhichOneof("encoding") != "sparse_csr":
        return _shaped(_widened(_numbers(tensor.dense, kind, where)), shape, where)
    parts = tensor.sparse_csr
    indices = [_numbers(part, np.dtype("<i8"), where) for part in (parts.crow_indices, parts.col_indices)]
    return _written_out(_widened(_numbers(parts.values, kind, where)), indices[0], indices[1], shape, where)


def of_json(tensor: Mapping[str, Any], where: str) -> NDArray[Any]:
    """As `of_protobuf`, from `{data, dtype, shape, sparse_crow_indices, sparse_col_indices}`."""
    kind = _JSON_KINDS.get(tensor.get("dtype", ""))
    if kind is None:
        raise DataError(f"{where} has dtype {tensor.get('dtype')!r}; float32 or int64 is needed")
    try:
        values = np.asarray(tensor.get("data"), dtype=kind).reshape(-1)
        crow, columns = (tensor.get(f"sparse_{name}_indices") for name in ("crow", "col"))
        shape = tuple(int(size) for size in tensor.get("shape") or ())
        if crow is None:
            return _shaped(values, shape, where)
        rows_and_columns = [np.asarray(part, dtype="<i8").reshape(-1) for part in (crow, columns)]
    except (TypeError, ValueError, OverflowError) as error:
        raise DataError(f"{where} is no tensor: {error}") from error
    return _written_out(values, rows_and_columns[0], rows_and_columns[1], shape, where)


def _numbers(content: bytes, kind: np.dtype[Any], where: str) -> NDArray[Any]:
    if len(content) % kind.itemsize:
        raise DataError(f"{where} has {len(content)} bytes; a multiple of {kind.itemsize} is needed")
    return np.frombuffer(content, dtype=kind)


def _widened(values: NDArray[Any]) -> NDArray[Any]:
    if values.dtype == np.uint16:  # bfloat16 is the upper half of fp32
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.int64) if values.dtype == np.int32 else values


def _shaped(values: NDArray[Any], shape: Sequence[int], where: str) -> NDArray[Any]:
    if not shape:
        return values
    # without elements a shape may still be beyond what an array can have
    vast = not values.size and math.prod(size or 1 for size in shape) > MOST_CELLS
    if min(shape) < 0 or math.prod(shape) != values.size or vast:
        raise DataError(f"{where} has shape {list(shape)}, but {values.size} elements")
    return values.reshape(shape)


def _written_out(
    values: NDArray[Any], crow: NDArray[Any], columns: NDArray[Any], shape: Sequence[int], where: str
) -> NDArray[Any]:
    if len(shape) != 2 or min(shape) < 0 or max(*shape, math.prod(shape)) > MOST_CELLS:
        raise DataError(
            f"{where} is sparse with shape {list(shape)}; two dimensions of at most {MOST_CELLS} elements are needed"
        )
    counts = np.diff(crow)
    whole = len(crow) == shape[0] + 1 and crow[0] == 0 and crow[-1] == len(columns) == len(values)
    if not whole or (counts < 0).any() or (len(columns) and not 0 <= columns.min() <= columns.max() < shape[1]):
        raise DataError(f"{where} is sparse with row and column indices that don't fit its shape {list(shape)}")
    written = np.zeros(tuple(shape), dtype=values.dtype)
    written[np.repeat(np.arange(shape[0]), counts), columns] = values
    return written

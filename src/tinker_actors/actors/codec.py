"""Values as msgpack, exactly: tuples stay tuples, arrays and tensors keep dtype and shape. No pickle anywhere.

What plain msgpack lacks travels as extension types, whose payload is msgpack again; `bytearray` and `memoryview`
arrive as `bytes`. Large arrays and bytes leave no copy in the message: their memory becomes a frame of its own, taken
in document order on both sides. The sender must not change such an array before the ask is answered, just as within
one process. Such arrays are read-only where they arrive.
"""

from __future__ import annotations

import dataclasses
import enum
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, cast

from tinker_actors.actors import arrays, buffers, failures, packing, tags
from tinker_actors.actors.errors import CodecError
from tinker_actors.actors.ref import ActorRef

DEPTH_LIMIT = 32  # nested extension values (tuples, dataclasses, ...); plain lists and dicts: 500
OUT_OF_BAND = buffers.LARGE  # bytes: arrays and bytes of this size and above travel as frames of their own
INTEGER_LIMIT = 4096  # bytes
KNOWN_HEADS = 64  # dtypes and shapes of large arrays that are kept as they stand in messages
HEAD_LIMIT = 128  # bytes of one
_ADVICE = "import its module in this process and decorate it with @wire"
Frame = Any  # an object with the buffer protocol; to be read also a Loan, or the error that came in its place


class Ext(enum.IntEnum):
    """The extension types."""

    TUPLE = 1
    DATACLASS = 2
    ENUM = 3
    ARRAY = 4
    SCALAR = 5
    TENSOR = 6
    REF = 7
    ERROR = 8
    SET = 9
    FROZENSET = 10
    INTEGER = 11
    BYTES = 12


class Refs(Protocol):
    """How refs leave and enter this process."""

    def export_ref(self, ref: ActorRef) -> list[Any]:
        """The plain data of a ref."""
        ...

    def import_ref(self, parts: list[Any]) -> ActorRef:
        """The ref that the data means here."""
        ...


class Codec:
    """Encodes and decodes values. Not to be shared between threads.

    Attributes:
        write: writes what holds nothing but lists of `buffers.PLAIN` values and small bytes, as `encode` would, at less
            cost, and tuples as if they were lists. Where it raises, `encode` says it better or finds another way.
        array_types: types of what `write_arrays` writes beside that.
    """

    def __init__(self, refs: Refs | None = None) -> None:
        self._refs = refs
        self._unicode_errors: str | None = None
        self._packers: list[packing.Packer] = [self._packer()]
        self.write: Callable[[Any], bytes] = packing.plain_encoder()
        self._write_with_arrays = packing.plain_encoder(self._stand_in)
        self._unpack = packing.unpacker(self._hook)
        self.array_types: set[type] = set()
        self._written: dict[tuple[Any, tuple[int, ...]], Any] = {}  # what stands for arrays that were sent before
        self._read: dict[bytes, tuple[str, list[int]]] = {}  # the same of those that came
        self._depth = 0
        self._lifting = False
        self._frames: list[Frame] | None = None
        self._incoming: Iterator[Frame] = iter(())
        self._writers: dict[type, Callable[[Any], Any]] = {
            tuple: lambda value: self._nest(Ext.TUPLE, list(value)),
            set: lambda value: self._nest(Ext.SET, list(value)),
            frozenset: lambda value: self._nest(Ext.FROZENSET, list(value)),
            int: self._write_integer,
            buffers.Lifted: lambda value: self._with_frame(Ext.BYTES, [], value.buffer),
            ActorRef: self._write_ref,
        }
        self._readers: dict[int, Callable[[bytes], Any]] = {
            Ext.TUPLE: lambda data: tuple(self._open(data)),
            Ext.DATACLASS: self._read_dataclass,
            Ext.ENUM: self._read_enum,
            Ext.ARRAY: self._read_array,
            Ext.SCALAR: lambda data: arrays.read_scalar(*self._open(data)),
            Ext.TENSOR: lambda data: arrays.read_tensor(*self._with_payload(data)),
            Ext.REF: self._read_ref,
            Ext.ERROR: lambda data: failures.put_together(self._open(data)),
            Ext.SET: lambda data: set(self._open(data)),
            Ext.FROZENSET: lambda data: frozenset(self._open(data)),
            Ext.BYTES: lambda data: bytes(arrays.shared(*self._with_payload(data))),
            Ext.INTEGER: _read_integer,
        }

    def encode(self, value: Any, frames: list[Frame] | None = None, *, look: bool = True) -> bytes:
        """`value` as msgpack. Large arrays and bytes are appended to `frames`; without it they are copied.

        Without `look` large bytes are found too, but only after having been written.

        Raises:
            CodecError: a type that is not registered, too deep, or out of msgpack's ranges.
        """
        self._frames = frames
        try:
            if look and frames is not None and buffers.has_large(value if value.__class__ is list else (value,)):
                return self._encode_lifted(value)
            data = self._packers[0].pack(value)
            if frames is not None and len(data) >= OUT_OF_BAND and buffers.holds_large(data):
                return self._encode_lifted(value)
            return data
        except buffers.Found:
            return self._encode_lifted(value)
        except UnicodeEncodeError:
            return self._encode_lone_surrogates(value)
        except CodecError:
            raise
        except (ValueError, TypeError, OverflowError, RecursionError) as error:
            raise CodecError(f"can't encode {type(value).__name__}: {error}") from error
        finally:
            self._frames = None
            self._depth = 0
            self._lifting = False

    def write_arrays(self, value: Any, frames: list[Frame]) -> bytes:
        """`write` for what also holds large arrays; it raises for those of a kind that `encode` has not written yet."""
        self._frames = frames
        try:
            return self._write_with_arrays(value)
        finally:
            self._frames = None

    def decode(self, data: bytes, frames: Sequence[Frame] = ()) -> Any:
        """The value that `encode` wrote.

        Raises:
            CodecError: malformed bytes, an unknown tag or too few or too many frames.
        """
        self._incoming = iter(frames)
        try:
            value = self._unpack(data)
        except CodecError:
            raise
        except Exception as error:  # constructors of user classes, and msgpack's many ways to say malformed
            raise CodecError(f"can't decode a message: {type(error).__name__}: {error}") from error
        finally:
            self._depth = 0
        if next(self._incoming, None) is not None:
            raise CodecError("a message came with more frames than it names")
        return value

    def _packer(self) -> packing.Packer:
        return packing.packer(self._default, self._unicode_errors)

    def _encode_lifted(self, value: Any) -> bytes:
        """A value with large bytes: they become frames, by a slower path."""
        self._lifting = True
        self._restart()
        try:
            return self._packers[0].pack(buffers.lift(value))
        except UnicodeEncodeError:
            return self._encode_lone_surrogates(value)
        except CodecError:
            raise
        except (ValueError, TypeError, OverflowError, RecursionError) as error:
            raise CodecError(f"can't encode {type(value).__name__}: {error}") from error

    def _restart(self) -> None:
        if self._frames is not None:
            self._frames.clear()
        self._depth = 0

    def _encode_lone_surrogates(self, value: Any) -> bytes:
        """Strings that are no valid text (file names, broken input) cross all the same, on a slower path."""
        self._lifting = self._frames is not None
        self._restart()
        kept = self._packers
        self._unicode_errors = "surrogatepass"
        self._packers = [self._packer()]
        try:
            return self._packers[0].pack(buffers.lift(value) if self._lifting else value)
        except CodecError:
            raise
        except (ValueError, TypeError, OverflowError, RecursionError) as error:
            raise CodecError(f"can't encode {type(value).__name__}: {error}") from error
        finally:
            self._unicode_errors = None
            self._packers = kept

    # Writing

    def _default(self, value: Any) -> Any:
        kind = value.__class__
        writer = self._writers.get(kind)
        if writer is None:
            writer = self._writers[kind] = self._writer_for(kind)
        return writer(value)

    def _nest(self, code: Ext, parts: list[Any]) -> Any:
        depth = self._depth = self._depth + 1
        if depth > DEPTH_LIMIT:
            raise CodecError(f"a value nests tuples or dataclasses deeper than {DEPTH_LIMIT}")
        packers = self._packers
        if depth == len(packers):
            packers.append(self._packer())
        if self._lifting:
            parts = buffers.lift(parts)
        elif (
            self._frames is not None
            and not buffers.CANDIDATES.isdisjoint(map(type, parts))
            and buffers.has_large(parts)
        ):
            raise buffers.Found
        data = packers[depth].pack(parts)
        if len(data) >= OUT_OF_BAND and self._frames is not None and not self._lifting and buffers.holds_large(data):
            raise buffers.Found
        self._depth = depth - 1
        return packing.Ext(code, data)

    def _writer_for(self, kind: Any) -> Callable[[Any], Any]:
        """How values of a type are written; looked up once a type."""
        if issubclass(kind, enum.Enum):
            tag = self._tag(kind)
            return lambda value: self._nest(Ext.ENUM, [tag, value.name])
        if issubclass(kind, BaseException):
            return lambda value: self._nest(Ext.ERROR, self._error_parts(value))
        if tags.is_dataclass(kind):
            tag = self._tag(kind)
            names = tuple(field.name for field in dataclasses.fields(kind))
            return lambda value: self._nest(Ext.DATACLASS, [tag, [getattr(value, name) for name in names]])
        if issubclass(kind, ActorRef):
            return self._write_ref
        numpy = sys.modules.get("numpy")
        if numpy is not None and issubclass(kind, numpy.ndarray):
            if kind is not numpy.ndarray:
                raise CodecError(f"can't send an array of {kind.__name__}: make it an ndarray without a subclass")
            return self._write_array
        if numpy is not None and issubclass(kind, numpy.generic):
            return lambda value: self._nest(Ext.SCALAR, arrays.write_scalar(value))
        torch = sys.modules.get("torch")
        if torch is not None and issubclass(kind, torch.Tensor):
            return lambda value: self._with_frame(Ext.TENSOR, *arrays.write_tensor(value))
        raise CodecError(
            f"{kind.__module__}.{kind.__qualname__} can't cross a process boundary: make it a dataclass or an enum and "
            "register it with @wire"
        )

    def _tag(self, kind: Any) -> str:
        tag = tags.tag_of(kind)
        if tag is None:
            raise CodecError(f"{kind.__module__}.{kind.__qualname__} is not registered: decorate it with @wire")
        return tag

    def _error_parts(self, error: BaseException) -> list[Any]:
        """An exception's parts, with whatever of its arguments and attributes can't cross as text."""
        tag, args, attributes, text = failures.take_apart(error)
        probe = Codec(self._refs)
        probe._depth = self._depth

        def plain(value: Any) -> Any:
            try:
                probe.encode(value)
            except CodecError:
                return repr(value)
            return value

        return [tag, [plain(arg) for arg in args], {key: plain(value) for key, value in attributes.items()}, text]

    def _with_frame(self, code: Ext, head: list[Any], buffer: memoryview) -> Any:
        if self._frames is not None and buffer.nbytes >= OUT_OF_BAND:
            self._frames.append(buffer)
            if self._depth < DEPTH_LIMIT:  # names and numbers need none of what `_nest` looks after
                return packing.Ext(code, self.write([*head, None]))
            return self._nest(code, [*head, None])
        return self._nest(code, [*head, bytes(buffer)])

    def _write_array(self, array: Any) -> Any:
        frames = self._frames
        known = None if frames is None else self._written.get((array.dtype, array.shape))
        if known is not None and frames is not None:
            # The short way: a process that has just been asleep runs everything at a fraction of its speed.
            view = memoryview(array)
            if view.c_contiguous:
                frames.append(view.cast("B"))
                return known
        written = self._with_frame(Ext.ARRAY, *arrays.write_array(array))
        if frames is not None and array.nbytes >= OUT_OF_BAND and self._depth < DEPTH_LIMIT and arrays.is_plain(array):
            if len(self._written) >= KNOWN_HEADS:
                self._written.clear()
            self._written[array.dtype, array.shape] = written
            self.array_types.add(array.__class__)
        return written

    def _stand_in(self, array: Any) -> packing.PlainExt:
        known = self._written[array.dtype, array.shape]
        assert self._frames is not None
        self._frames.append(memoryview(array).cast("B"))
        return packing.PlainExt(known.code, known.data)

    def _write_integer(self, value: int) -> Any:
        size = value.bit_length() // 8 + 1
        if size > INTEGER_LIMIT:
            raise CodecError(f"an integer of {size} bytes is too large to send, at most {INTEGER_LIMIT} are allowed")
        return packing.Ext(Ext.INTEGER, value.to_bytes(size, "big", signed=True))

    def _write_ref(self, ref: ActorRef) -> Any:
        if self._refs is None:
            raise CodecError("refs can only be sent through a mesh")
        return self._nest(Ext.REF, self._refs.export_ref(ref))

    # Reading

    def _hook(self, code: int, data: bytes) -> Any:
        reader = self._readers.get(code)
        if reader is None:
            raise CodecError(f"unknown extension type {code}")
        return reader(data)

    def _open(self, data: bytes) -> Any:
        self._depth += 1
        if self._depth > DEPTH_LIMIT:
            raise CodecError(f"a message nests extension values deeper than {DEPTH_LIMIT}")
        value = self._unpack(data)
        self._depth -= 1
        return value

    def _with_payload(self, data: bytes) -> list[Any]:
        *head, payload = self._open(data)
        if payload is None:
            return [*head, self._next_frame()]
        return [*head, bytearray(payload)]  # a copy of its own, so that the array is writable

    def _next_frame(self) -> Any:
        frame = next(self._incoming, None)
        if frame is None:
            raise CodecError("a message names a frame that did not come")
        if isinstance(frame, CodecError):
            raise frame
        return frame

    def _read_array(self, data: bytes) -> Any:
        known = self._read.get(data)
        if known is not None:
            return arrays.read_array(*known, self._next_frame())
        dtype, shape, buffer = self._with_payload(data)
        array = arrays.read_array(dtype, shape, buffer)
        if buffer.__class__ is not bytearray and len(data) <= HEAD_LIMIT:
            if len(self._read) >= KNOWN_HEADS:
                self._read.clear()
            self._read[data] = (dtype, shape)
        return array

    def _read_dataclass(self, data: bytes) -> Any:
        tag, values = self._open(data)
        kind: Any = tags.find(tags.checked(tag))
        if kind is None or not dataclasses.is_dataclass(kind):
            raise CodecError(
                f"no dataclass is registered here as {tag!r}: import its module and decorate it with @wire"
            )
        fields = dataclasses.fields(kind)
        if len(fields) != len(values):
            raise CodecError(f"{tag} has {len(fields)} fields here, {len(values)} were sent")
        pairs = list(zip(fields, values, strict=True))
        value = cast(Any, kind)(**{field.name: item for field, item in pairs if field.init})
        for field, item in pairs:
            if not field.init:
                object.__setattr__(value, field.name, item)
        return value

    def _read_enum(self, data: bytes) -> Any:
        tag, name = self._open(data)
        kind = tags.find(tags.checked(tag))
        if kind is None or not issubclass(kind, enum.Enum):
            raise CodecError(f"no enum is registered here as {tag!r}: {_ADVICE}")
        return kind[name]

    def _read_ref(self, data: bytes) -> ActorRef:
        if self._refs is None:
            raise CodecError("refs can only be read in a mesh")
        return self._refs.import_ref(self._open(data))


def _read_integer(data: bytes) -> int:
    if len(data) > INTEGER_LIMIT:
        raise CodecError(f"an integer of {len(data)} bytes; at most {INTEGER_LIMIT} are allowed")
    return int.from_bytes(data, "big", signed=True)

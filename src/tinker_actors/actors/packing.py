"""The msgpack libraries behind types, with the settings that every message uses.

`msgpack` reads everything and writes what needs its hooks. Nearly all envelopes hold nothing but plain values;
`msgspec` writes those, which takes 4 % off the processor time of an ask between processes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Protocol, cast

import msgpack  # pyright: ignore[reportMissingTypeStubs]
from msgspec import msgpack as plain

_msgpack: Any = msgpack


class Packer(Protocol):
    """An encoder that keeps its buffer between values."""

    def pack(self, value: Any, /) -> bytes:
        """`value` as msgpack."""
        ...


class Reader(Protocol):
    """A cursor over concatenated msgpack values."""

    def feed(self, data: bytes, /) -> None:
        """The bytes to read."""
        ...

    def read_array_header(self) -> int:
        """The length of the array that begins here."""
        ...

    def skip(self) -> None:
        """Pass over one value."""
        ...

    def unpack(self) -> Any:
        """The next value."""
        ...

    def tell(self) -> int:
        """Bytes read so far."""
        ...


Ext: Callable[[int, bytes], Any] = _msgpack.ExtType
PlainExt = plain.Ext


def packer(default: Callable[[Any], Any], unicode_errors: str | None) -> Packer:
    """An encoder that hands to `default` every value whose type is not exactly one of msgpack's own."""
    return cast(Packer, _msgpack.Packer(default=default, strict_types=True, unicode_errors=unicode_errors))


def plain_encoder(default: Callable[[Any], Any] | None = None) -> Callable[[Any], bytes]:
    """What writes plain values as a `packer` would, and tuples as arrays. `default` makes a `PlainExt` of all else.

    The function raises for integers of more than 64 bits and for strings that are no valid text.
    """
    return plain.Encoder(enc_hook=default).encode


def reader(ext_hook: Callable[[int, bytes], Any]) -> Reader:
    """A cursor."""
    # Without a limit of its own the buffer's would be 100 MB; the socket's limit holds already.
    return cast(
        Reader,
        _msgpack.Unpacker(
            ext_hook=ext_hook, strict_map_key=False, unicode_errors="surrogatepass", max_buffer_size=2**31 - 1
        ),
    )


pack = plain_encoder()
"""Writes plain data; `msgpack.packb` would take four times as long, most of it for a buffer of its own."""


def unpacker(ext_hook: Callable[[int, bytes], Any]) -> Callable[[bytes], Any]:
    """`unpack` with a hook, without a call of its own."""
    return functools.partial(_msgpack.unpackb, ext_hook=ext_hook, strict_map_key=False, unicode_errors="surrogatepass")


def unpack(data: bytes, ext_hook: Callable[[int, bytes], Any]) -> Any:
    """One value; any key a dict can have, and strings that are no valid text."""
    return _msgpack.unpackb(data, ext_hook=ext_hook, strict_map_key=False, unicode_errors="surrogatepass")

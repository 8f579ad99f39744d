"""Single key presses of a terminal, and changes of its size."""

from __future__ import annotations

import os
import select
import signal
import sys
import termios
import tty
from collections.abc import Generator
from contextlib import contextmanager

RESIZED = "resized"
_ESCAPED = {
    b"[A": "up",
    b"[B": "down",
    b"[C": "right",
    b"[D": "left",
    b"[5~": "page up",
    b"[6~": "page down",
    b"[H": "home",
    b"[F": "end",
    b"[Z": "back tab",
    b"OA": "up",
    b"OB": "down",
    b"OC": "right",
    b"OD": "left",
    b"OH": "home",
    b"OF": "end",
}
_ESCAPE_SECONDS = 0.05


class Keys:
    """Reads keys while `pressed` holds the terminal in its mode without lines and echo."""

    def __init__(self, terminal: int, resized: int) -> None:
        self._terminal = terminal
        self._resized = resized

    @classmethod
    @contextmanager
    def pressed(cls) -> Generator[Keys]:
        """Within it, keys come one by one; the terminal is as before afterwards, however it ends."""
        terminal = sys.stdin.fileno()
        before = termios.tcgetattr(terminal)
        reader, writer = os.pipe()
        old = signal.signal(signal.SIGWINCH, lambda *_: os.write(writer, b"."))
        try:
            tty.setcbreak(terminal)
            yield cls(terminal, reader)
        finally:
            termios.tcsetattr(terminal, termios.TCSADRAIN, before)
            signal.signal(signal.SIGWINCH, old)
            os.close(reader)
            os.close(writer)

    def next(self) -> str | None:
        """The next key: a character, a name such as `down`, `RESIZED`, or None at the end of input."""
        ready, _, _ = select.select([self._terminal, self._resized], [], [])
        if self._resized in ready:
            os.read(self._resized, 4096)
            return RESIZED
        first = os.read(self._terminal, 1)
        if not first or first == b"\x04":
            return None
        return self._escaped() if first == b"\x1b" else first.decode("latin-1")

    def _escaped(self) -> str:
        found = b""
        while len(found) < 8 and select.select([self._terminal], [], [], _ESCAPE_SECONDS)[0]:
            found += os.read(self._terminal, 1)
            if found in _ESCAPED:
                return _ESCAPED[found]
            if (found[-1:].isalpha() and found != b"O") or found[-1:] == b"~":
                break
        return "escape"

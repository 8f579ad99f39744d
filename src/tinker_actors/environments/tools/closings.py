"""Where arguments in plain text end: brackets and quotes in them are minded, in time linear in the text."""

from __future__ import annotations

_PAIRS = {"(": ")", "[": "]", "{": "}"}
_QUOTES = "'\""


class Closings:
    """Where, from any place in a text, the first `close` outside of brackets and quotes begins.

    Args:
        text: The text.
        close: What is looked for.
    """

    def __init__(self, text: str, close: str) -> None:
        self._text, self._close = text, close
        self._table: list[int] | None = None  # made once brackets or quotes stay open: each such look reads to the end

    def after(self, start: int) -> int | None:
        """Where it begins, from a place on; if there is none outside of brackets and quotes, the first at all."""
        end = _scan(self._text, start, self._close) if self._table is None else self._table[start]
        if end >= 0:
            return end
        if self._table is None:
            self._table = _table(self._text, self._close)
        found = self._text.find(self._close, start)
        return None if found < 0 else found


def split(inner: str) -> list[str]:
    """The parts between commas that are outside of brackets and quotes."""
    parts: list[str] = []
    text, place, last = f"{inner},", 0, len(inner.rstrip())
    commas = Closings(text, ",")
    while place < last:
        end = commas.after(place)
        assert end is not None  # the one that was added
        parts.append(text[place:end].strip())
        place = end + 1
    return parts


def _scan(text: str, start: int, close: str) -> int:
    """Where the first `close` outside of brackets and quotes begins; -1 if there is none."""
    open_brackets: list[str] = []
    quote, place = "", start
    while place < len(text):
        character = text[place]
        if quote:
            place += character == "\\"
            quote = "" if character == quote else quote
        elif not open_brackets and text.startswith(close, place):
            return place
        elif character in _QUOTES:
            quote = character
        elif character in _PAIRS:
            open_brackets.append(_PAIRS[character])
        elif open_brackets and character == open_brackets[-1]:
            open_brackets.pop()
        place += 1
    return -1


def _table(text: str, close: str) -> list[int]:
    """What `_scan` finds from every place, from the last place to the first: what follows a place is known by then."""
    size = len(text)
    found = [-1] * (size + 1)
    closers = {closer: [-1] * (size + 1) for closer in _PAIRS.values()}  # where a bracket that is open ends
    quotes = {quote: [-1] * (size + 2) for quote in _QUOTES}  # where a quote that is open ends
    for place in range(size - 1, -1, -1):
        character = text[place]
        for quote, ends in quotes.items():
            ends[place] = place if character == quote else ends[place + (2 if character == "\\" else 1)]
        if character in _QUOTES:
            follows = quotes[character][place + 1] + 1  # 0 where it stays open
        elif character in _PAIRS:
            follows = closers[_PAIRS[character]][place + 1] + 1
        else:
            follows = place + 1
        for closer, ends in closers.items():
            ends[place] = place if character == closer else ends[follows] if follows else -1
        found[place] = place if text.startswith(close, place) else found[follows] if follows else -1
    return found

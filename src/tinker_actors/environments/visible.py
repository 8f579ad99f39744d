"""Text of models and environments, made safe for a terminal."""

from __future__ import annotations

_SIGNS = {code: 0x2400 + code for code in range(0x20) if chr(code) not in "\n\t"} | {0x7F: 0x2421}
_SIGNS |= dict.fromkeys(range(0x80, 0xA0), 0xFFFD)


def visible(text: str) -> str:
    """The text with control characters as signs, so that none of it steers the terminal; lines and tabs stay.

    >>> visible("a\\x1b[31mb\\r")
    'a␛[31mb␍'
    """
    return text.translate(_SIGNS)

"""The text of a sample while it grows."""

from __future__ import annotations

from collections.abc import Collection

from tinker_actors.models.tokenizer import Tokenizer

_INCOMPLETE = "\ufffd"
"""What decoders give for bytes that don't form a character yet."""


class Unfolding:
    """Turns tokens into text one by one; what was given once never changes.

    Text is decoded in a window of the last few tokens that begins one step back, for decoders whose text of a token
    depends on the one before it. A character whose bytes are spread over tokens is waited for, and so is text in which
    a stop string may have begun.

    >>> from tinker_actors.models import load_tokenizer
    >>> tokenizer = load_tokenizer("tiny-llama")
    >>> unfolding = Unfolding(tokenizer, stops=("!!",), stop_ids=())
    >>> [unfolding.push(token) for token in tokenizer.encode("ab!c!!")]
    ['a', 'b', '', '!c', '', '']

    Args:
        tokenizer: The model's.
        stops: Strings before which the text ends.
        stop_ids: Tokens that end it and aren't part of it.
    """

    def __init__(self, tokenizer: Tokenizer, *, stops: Collection[str], stop_ids: Collection[int]) -> None:
        self._tokenizer, self._stops, self._stop_ids = tokenizer, tuple(stops), stop_ids
        self._tokens: list[int] = []
        self._written = 0  # tokens whose text was given
        self._held = ""  # text in which a stop string may have begun
        self._ended = False

    def push(self, token: int) -> str:
        """Add a token; the text that is settled now."""
        if self._ended or token in self._stop_ids:
            return ""
        self._tokens.append(token)
        before = self._tokenizer.decode(self._tokens[: self._written], skip_special=True)
        now = self._tokenizer.decode(self._tokens, skip_special=True)
        if now.endswith(_INCOMPLETE) or len(now) <= len(before):
            return ""
        self._tokens, self._written = self._tokens[self._written :], len(self._tokens) - self._written
        return self._settled(self._held + now[len(before) :])

    def _settled(self, text: str) -> str:
        ends = [place for place in (text.find(stop) for stop in self._stops) if place >= 0]
        if ends:
            self._ended, self._held = True, ""
            return text[: min(ends)]
        begun = max((_overlap(text, stop) for stop in self._stops), default=0)
        kept = len(text) - begun
        self._held = text[kept:]
        return text[:kept]


def _overlap(text: str, stop: str) -> int:
    """How much of a stop string's beginning the text ends with."""
    longest = min(len(stop) - 1, len(text))
    return next((size for size in range(longest, 0, -1) if text.endswith(stop[:size])), 0)

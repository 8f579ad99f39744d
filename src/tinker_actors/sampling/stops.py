"""When a sample ends by its text: incremental decoding and the search for stop strings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tinker_actors.models.tokenizer import Tokenizer
from tinker_actors.sampling.requests import SamplingParams

_INCOMPLETE = "�"
"""What decoders give for bytes that don't form a character yet."""


class Decoder(Protocol):
    """What turns ids into text."""

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`."""
        ...


class PlainText:
    """A tokenizer's text without its special tokens: an action's text as environments receive it."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`; special tokens leave nothing."""
        return self._tokenizer.decode(ids, skip_special=True)


def stop_ids_of(params: SamplingParams, tokenizer: Tokenizer) -> frozenset[int]:
    """The tokens that end a sample; a stop string that spells one special token stands for that token."""
    spelled = (tokenizer.token_id(string) for string in params.stop_strings)
    special = (token for token in spelled if token is not None and token in tokenizer.special_ids)
    return frozenset((*params.stop_tokens, *special, *(tokenizer.stop_ids if params.default_stops else ())))


class StopStrings:
    """Watches one sample's text for stop strings, token by token.

    Text is decoded in a window of the last few tokens, so the cost doesn't grow with the sample. A window begins one
    step back, for decoders whose text of a token depends on whether another one precedes it. Text that ends amid a
    character's bytes waits for the rest of them.
    """

    __slots__ = ("_decoder", "_reach", "_stops", "_tail", "_tokens", "_window", "_written")

    def __init__(self, decoder: Decoder, stops: tuple[str, ...]) -> None:
        self._decoder = decoder
        self._stops = stops
        self._reach = max(map(len, stops)) - 1
        self._tokens: list[int] = []
        self._window = 0  # first token of the window
        self._written = 0  # tokens whose text has been searched
        self._tail = ""  # the end of the searched text, as long as a stop string could begin in it

    def push(self, token: int) -> bool:
        """Add a sampled token; True if the text now holds a stop string."""
        self._tokens.append(token)
        before = self._decoder.decode(self._tokens[self._window : self._written])
        now = self._decoder.decode(self._tokens[self._window :])
        fresh = now[len(before) :]
        searched = self._tail + fresh
        if any(stop in searched for stop in self._stops):
            return True
        if fresh and not now.endswith(_INCOMPLETE):
            self._window, self._written = self._written, len(self._tokens)
            self._tail = searched[-self._reach :] if self._reach else ""
        return False


def cut_at_stop(text: str, stops: tuple[str, ...]) -> str:
    """The text before the first stop string in it; of those that begin at one place it makes no difference which."""
    places = [place for place in (text.find(stop) for stop in stops) if place >= 0]
    return text[: min(places)] if places else text

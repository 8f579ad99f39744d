"""From token ids to pieces of text that can be shown one by one, each whole characters and what its tokens carry."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

from tinker_actors.errors import ModelError
from tinker_actors.models.tokenizer import Tokenizer

_HALF = "\ufffd"
_MOST_BYTES = 4
"""Bytes, and so tokens, of one character at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Some text and the tokens that say it.

    Attributes:
        start: Position of its first token.
        stop: Position behind its last one.
        text: What they say.
        special: Whether it is a control token, or an image's positions.
    """

    start: int
    stop: int
    text: str
    special: bool = False


def pieces(tokenizer: Tokenizer, ids: Sequence[int], cuts: Sequence[int] = ()) -> list[Piece]:
    """The text of tokens, piece by piece.

    A piece is one token, or those that make one character together where a tokenizer spells it in bytes. The positions
    of an image are one piece. Together the pieces read as the whole sequence does.

    Args:
        tokenizer: Of the model.
        ids: The tokens.
        cuts: Positions over which no piece goes.
    """
    found: list[Piece] = []
    bounds = sorted({0, *cuts, len(ids)})
    for start, stop in pairwise(bounds):
        found += _between(tokenizer, ids, start, stop)
    return found


def _between(tokenizer: Tokenizer, ids: Sequence[int], start: int, stop: int) -> list[Piece]:
    placeholder = None if tokenizer.images is None else tokenizer.images.placeholder
    found: list[Piece] = []
    at = start
    for token, run in groupby(ids[start:stop]):
        length = len(list(run))
        if token == placeholder:
            found.append(Piece(start=at, stop=at + length, text=f"[image: {length} tokens]", special=True))
            at += length
            continue
        for place in range(at, at + length):
            if not (found and _continues(found[-1], place) and _joined(tokenizer, ids, found)):
                found.append(_single(tokenizer, ids, place))
        at += length
    return found


def _continues(last: Piece, place: int) -> bool:
    unfinished = not last.special and last.text.endswith(_HALF)
    return unfinished and place == last.stop and last.stop - last.start < _MOST_BYTES


def _joined(tokenizer: Tokenizer, ids: Sequence[int], found: list[Piece]) -> bool:
    """Let the next token go on with the last piece's character, if it does."""
    last = found[-1]
    stop = last.stop + 1
    if ids[last.stop] in tokenizer.special_ids:
        return False
    text = _text(tokenizer, ids, last.start, stop)
    if text != last.text and text.count(_HALF) >= last.text.count(_HALF):
        return False  # what came before was no beginning of a character
    found[-1] = Piece(start=last.start, stop=stop, text=text)
    return True


def _single(tokenizer: Tokenizer, ids: Sequence[int], place: int) -> Piece:
    token = ids[place]
    if token in tokenizer.special_ids:
        return Piece(start=place, stop=place + 1, text=tokenizer.token_text(token), special=True)
    try:
        tokenizer.token_text(token)
    except ModelError:  # a model's embedding has more rows than its vocabulary has tokens
        return Piece(start=place, stop=place + 1, text=f"[token {token}]", special=True)
    return Piece(start=place, stop=place + 1, text=_text(tokenizer, ids, place, place + 1))


def _text(tokenizer: Tokenizer, ids: Sequence[int], start: int, stop: int) -> str:
    """Text of some tokens as it reads behind the one before: some decoders drop a space at the very beginning."""
    if start == 0 or ids[start - 1] in tokenizer.special_ids:
        return tokenizer.decode(ids[start:stop])
    before = tokenizer.decode(ids[start - 1 : start])
    both = tokenizer.decode(ids[start - 1 : stop])
    added = both.removeprefix(before) if both.startswith(before) else ""
    return added or tokenizer.decode(ids[start:stop])

"""A seat's turns as the page shows them: token by token, each with what it carries."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from tinker_actors.models.pieces import Piece, pieces
from tinker_actors.models.tokenizer import Tokenizer

TURNS = 40
"""Turns in one answer."""


def seat_head(seat: Mapping[str, Any]) -> dict[str, Any]:
    """What is said of a seat above its turns."""
    advantages = [value for turn in seat["turns"] for value in turn.get("advantages") or ()]
    return {
        **{key: seat[key] for key in ("seat", "policy", "trainable", "reward", "prompt_tokens", "action_tokens")},
        "staleness": seat.get("staleness"),
        "turns": len(seat["turns"]),
        "advantage": [min(advantages), max(advantages)] if advantages else None,
    }


def shown_turns(seat: Mapping[str, Any], start: int, tokenizer: Tokenizer | None) -> list[dict[str, Any]]:
    """Some turns of a seat, from the one with the number `start`, counted from 0.

    Each has `observed` and `sampled`: pieces of text with the tokens that say them, or null where there are no tokens.
    An observed piece is `[text, ids, special]`; it is masked. A sampled one has `logprob` (of its tokens together, in
    nats) and `advantage` (their mean; null if it was not trained on) besides.
    """
    return [_turn(turn, tokenizer) for turn in seat["turns"][start : start + TURNS]]


def _turn(turn: Mapping[str, Any], tokenizer: Tokenizer | None) -> dict[str, Any]:
    kept = (
        *("messages", "text", "reward", "end", "observation_tokens", "action_tokens", "restarts"),
        *("snapshot", "snapshot_max", "snapshot_step", "temperature"),
    )
    observed = sampled = None
    ids = turn.get("action_ids")
    if tokenizer is not None and ids is not None and (ids or turn["observation_ids"]):
        before = turn["observation_ids"]
        every = [*before, *ids]
        found = pieces(tokenizer, every, cuts=[len(before)])
        observed = [_observed(piece, every) for piece in found if piece.start < len(before)]
        sampled = [_sampled(piece, every, len(before), turn) for piece in found if piece.start >= len(before)]
    return {
        **{key: turn[key] for key in kept},
        "observed": observed,
        "sampled": sampled,
        "left_out": ids is None and bool(turn["action_tokens"]) and "action_ids" in turn,
    }


def _observed(piece: Piece, ids: Sequence[int]) -> list[Any]:
    return [piece.text, ids[piece.start : piece.stop], piece.special]


def _sampled(piece: Piece, ids: Sequence[int], offset: int, turn: Mapping[str, Any]) -> list[Any]:
    own = slice(piece.start - offset, piece.stop - offset)
    logprobs, advantages = turn["logprobs"], turn["advantages"]
    return [
        *_observed(piece, ids),
        None if logprobs is None else math.fsum(logprobs[own]),
        None if advantages is None else fmean(advantages[own]),
    ]

"""Sampling only what a grammar allows, through the package llguidance (extra `grammar`)."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tinker_actors.models.tokenizer import Tokenizer
from tinker_actors.sampling.requests import InvalidRequestError


def json_schema(schema: Mapping[str, Any] | str) -> str:
    """The grammar of the JSON documents that fit a schema: what goes into `SamplingParams.grammar`.

    Raises:
        InvalidRequestError: It is no schema that can be followed.
    """
    llguidance = _package()
    try:
        return llguidance.LLMatcher.grammar_from_json_schema(schema if isinstance(schema, str) else json.dumps(schema))
    except ValueError as error:
        raise InvalidRequestError(f"the JSON schema can't be followed: {error}") from error


def regex(pattern: str) -> str:
    """The grammar of the texts that match a regular expression as a whole."""
    return _package().LLMatcher.grammar_from_regex(pattern)


def lark(text: str) -> str:
    """The grammar written in the package's variant of Lark."""
    return _package().LLMatcher.grammar_from_lark(text)


class Constraint:
    """Where one sample is in its grammar."""

    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher

    def allowed(self, size: int) -> Tensor:
        """Which tokens may come next, shape (size,)."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        mask = np.unpackbits(bits, bitorder="little")[:size]
        allowed = torch.zeros(size, dtype=torch.bool)
        allowed[: mask.shape[0]] = torch.from_numpy(mask.astype(bool))
        return allowed

    def advance(self, token: int) -> bool:
        """A token was drawn; whether nothing may follow."""
        self._matcher.consume_token(token)
        return bool(self._matcher.is_stopped())


class Grammars:
    """Grammars over one tokenizer. The package and its view of the vocabulary load on first use."""

    def __init__(self, tokenizer: Tokenizer, size: int) -> None:
        self._tokenizer, self._size = tokenizer, size

    def check(self, grammar: str) -> None:
        """Refuse what is no grammar.

        Raises:
            InvalidRequestError: It isn't one, or the package is missing.
        """
        if error := _package().LLMatcher.validate_grammar(grammar, self._words):
            raise InvalidRequestError(f"grammar can't be used: {error}")

    def begin(self, grammar: str) -> Constraint:
        """The beginning of a sample."""
        return Constraint(_package().LLMatcher(self._words, grammar))

    @functools.cached_property
    def _words(self) -> Any:
        llguidance = _package()
        tokenizer, eos = self._tokenizer, self._tokenizer.eos_id
        try:
            return llguidance.LLTokenizer(tokenizer.to_json(), n_vocab=self._size, eos_token=eos)
        except ValueError:  # a decoder that the package doesn't know: tokens by their texts
            return llguidance.LLTokenizer(llguidance.TokenizerWrapper(_Texts(tokenizer)), n_vocab=self._size)


class _Texts:
    """A vocabulary by the texts of its tokens, as the package reads one."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.eos_token_id, self.bos_token_id = tokenizer.eos_id, tokenizer.bos_id
        self.tokens = [tokenizer.token_text(token).encode() for token in range(tokenizer.vocab_size)]
        self.special_token_ids = sorted(tokenizer.special_ids)

    def __call__(self, text: str | bytes) -> list[int]:
        """The ids of a text."""
        return self._tokenizer.encode(text if isinstance(text, str) else text.decode(errors="replace"))


def _package() -> Any:
    try:
        import llguidance
    except ImportError:
        raise InvalidRequestError("a grammar needs the package llguidance: install tinker-actors[grammar]") from None
    return llguidance

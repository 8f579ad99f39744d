"""What a request may ask about its prompt beyond the log-prob of each token. Loads no torch.

For the prompt [1, 2, 3] there are two places: before 2 and before 3. Place i is that of the prompt's token i + 1.

>>> scoring = PromptScoring(tops=2, candidates=((), (7, 8)))
>>> scoring.width, scoring.first_place
(2, 1)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_WIDEST = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptScoring:
    """What is wanted at the places of a prompt. A prompt of n tokens has n - 1 places.

    Attributes:
        last: Log-probs and most likely tokens are wanted at the last so many places only; None for all.
        tops: How many of the most likely tokens, with their log-probs at temperature 1, in [0, 1000].
        candidates: For each place the token ids whose log-probs at temperature 1 are wanted there, at most 1000; empty
            if there are none at all.
        draws: How many tokens to draw at each place, independently, at the request's temperature and nothing else, in
            [0, 1000].
    """

    last: int | None = None
    tops: int = 0
    candidates: tuple[tuple[int, ...], ...] = ()
    draws: int = 0

    def wrong(self, places: int) -> tuple[str, object, str] | None:
        """The field, the value and what is needed, if this can't be asked of a prompt with so many places."""
        if self.last is not None and not (type(self.last) is int and 1 <= self.last <= places):
            return "last", self.last, f"None or an integer in [1, {places}], the prompt's places,"
        for name, count in (("tops", self.tops), ("draws", self.draws)):
            if not (type(count) is int and 0 <= count <= _WIDEST):
                return name, count, f"an integer in [0, {_WIDEST}]"
        if self.candidates and len(self.candidates) != places:
            return "candidates", f"for {len(self.candidates)} places", f"one tuple for each of the {places} places"
        for place, tokens in enumerate(self.candidates):
            if len(tokens) > _WIDEST or any(type(token) is not int or token < 0 for token in tokens):
                return f"candidates[{place}]", tokens, f"at most {_WIDEST} token ids >= 0"
        return None

    @property
    def width(self) -> int:
        """Numbers at the place with the most of them."""
        return max(self.tops, self.draws, *map(len, self.candidates), 0)

    @property
    def first_place(self) -> int | None:
        """The first place at which candidates or draws are wanted; None if there is none."""
        if self.draws:
            return 0
        return next((place for place, tokens in enumerate(self.candidates) if tokens), None)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PromptScores:
    """What was found at a prompt's places.

    Attributes:
        top_tokens: The most likely tokens, int32, shape (places wanted, tops), the most likely first.
        top_logprobs: Their natural log-probs, float32, of the same shape.
        candidate_logprobs: Of the candidates, place after place, float32, shape (all candidates,).
        drawn_tokens: int32, shape (all places, draws).
        drawn_logprobs: Natural log-probs of the drawn tokens at temperature 1, float32, of the same shape.
    """

    top_tokens: NDArray[np.int32]
    top_logprobs: NDArray[np.float32]
    candidate_logprobs: NDArray[np.float32]
    drawn_tokens: NDArray[np.int32]
    drawn_logprobs: NDArray[np.float32]

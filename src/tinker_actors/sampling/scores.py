"""Scoring tokens that were given: collects the numbers of a request as its prompt is computed part by part.

A row's logits are the distribution of the token after it, so row r is the prompt's place r.

Shape suffixes: T rows, V vocabulary, K numbers at a place.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tinker_actors.sampling.requests import SamplingParams, SamplingRequest
from tinker_actors.sampling.scoring import PromptScores, PromptScoring
from tinker_actors.sampling.selection import Selector, logprobs_of, row_keys

_DRAWS = 2**32
"""Index of the first draw at a place, as a sample's index: beyond those of samples."""


class Scores:
    """The scores of one request.

    Args:
        request: The request.
        seed: Of its draws.

    Attributes:
        first: The first row whose logits are wanted; None if none are.
        logprobs: Of the given tokens after that row, as far as they are known.
    """

    def __init__(self, request: SamplingRequest, seed: int) -> None:
        self._request, self._seed = request, seed
        self.first = request.scored_from
        self.logprobs: list[float] = []
        self._parts: dict[str, list[Tensor]] = {name: [] for name in ("tops", "top_logprobs", "candidates", "drawn")}
        self._draws: list[list[int]] = [[] for _ in range(request.scoring.draws)]

    @property
    def next(self) -> int:
        """The row that is to be scored next."""
        assert self.first is not None
        return self.first + len(self.logprobs)

    def add(self, logits_tv: Tensor, row: int, following: list[int]) -> None:
        """Score the given tokens that follow some rows.

        Args:
            logits_tv: Logits of the rows and perhaps more, shape (T, V).
            row: The first row.
            following: The token after each row.
        """
        request = self._request
        of_prompt = max(0, min(len(following), len(request.prompt) - row - 1))
        if of_prompt:
            self._add_places(logits_tv[:of_prompt], row)
            self.logprobs += logprobs_of(logits_tv[:of_prompt], following[:of_prompt])
        if of_prompt < len(following):
            temperature = 1.0 if request.params.greedy else request.params.temperature
            self.logprobs += logprobs_of(logits_tv[of_prompt : len(following)], following[of_prompt:], temperature)

    def prompt_logprobs(self) -> tuple[float, ...]:
        """Of the places that were wanted."""
        if not self._request.prompt_logprobs:
            return ()
        assert self.first is not None
        return tuple(self.logprobs[self._wanted - self.first : len(self._request.prompt) - 1 - self.first])

    def target_logprobs(self) -> tuple[float, ...]:
        """Of the targets."""
        if not self._request.targets:
            return ()
        assert self.first is not None
        return tuple(self.logprobs[len(self._request.prompt) - 1 - self.first :])

    def prompt_scores(self) -> PromptScores | None:
        """What else was asked about the prompt; None if nothing was."""
        scoring = self._request.scoring
        if not scoring.width:
            return None
        places = len(self._request.prompt) - 1
        drawn_dt = np.array(self._draws, dtype=np.int32).reshape(scoring.draws, places)
        return PromptScores(
            top_tokens=self._joined("tops", np.int32),
            top_logprobs=self._joined("top_logprobs", np.float32),
            candidate_logprobs=self._joined("candidates", np.float32).reshape(-1),
            drawn_tokens=np.ascontiguousarray(drawn_dt.T),
            drawn_logprobs=self._joined("drawn", np.float32),
        )

    @property
    def _wanted(self) -> int:
        """The first place whose log-prob and most likely tokens are wanted."""
        return first_wanted(self._request)

    def _add_places(self, logits_tv: Tensor, row: int) -> None:
        scoring: PromptScoring = self._request.scoring
        if not scoring.width:
            return
        logprobs_tv = logits_tv.float().log_softmax(-1)
        if scoring.tops and (skipped := max(0, self._wanted - row)) < len(logprobs_tv):
            found = logprobs_tv[skipped:].topk(min(scoring.tops, logprobs_tv.shape[1]))
            self._parts["tops"].append(found.indices)
            self._parts["top_logprobs"].append(found.values)
        candidates = scoring.candidates[row : row + len(logprobs_tv)]
        for place, tokens in enumerate(candidates):
            if tokens:
                self._parts["candidates"].append(logprobs_tv[place, torch.tensor(tokens, device=logits_tv.device)])
        if scoring.draws:
            self._draw(logits_tv, logprobs_tv, row)

    def _draw(self, logits_tv: Tensor, logprobs_tv: Tensor, row: int) -> None:
        count = len(logits_tv)
        params = [SamplingParams(temperature=self._request.params.temperature)] * count
        drawn: list[Tensor] = []
        for draw, tokens in enumerate(self._draws):
            keys = row_keys([self._seed] * count, [_DRAWS + draw] * count)
            selector = Selector.of(params, keys, logits_tv.device)
            found = selector.select(logits_tv, range(row, row + count)).tokens
            tokens += found
            drawn.append(logprobs_tv.gather(1, torch.tensor(found, device=logits_tv.device)[:, None]))
        self._parts["drawn"].append(torch.cat(drawn, 1))

    def _joined(self, name: str, dtype: type[np.number]) -> NDArray[Any]:
        parts = self._parts[name]
        return torch.cat(parts).cpu().numpy().astype(dtype) if parts else np.empty((0, 0), dtype)


def first_wanted(request: SamplingRequest) -> int:
    """The first place of a prompt whose log-prob and most likely tokens are wanted."""
    places = len(request.prompt) - 1
    return 0 if request.scoring.last is None else places - request.scoring.last

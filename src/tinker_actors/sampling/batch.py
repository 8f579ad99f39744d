"""One batch of samples under way: prefill each distinct prompt once, then one token per row and step.

Shape suffixes: U distinct prompts, B live rows, T new positions, K positions held so far and new, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import torch
from transformers import DynamicCache

from tinker_actors.data import ImageChunk, ModelInput
from tinker_actors.sampling.networks import Network
from tinker_actors.sampling.rows import Row
from tinker_actors.sampling.selection import Selector, row_keys

PromptKey: TypeAlias = tuple[int, tuple[int, ...], tuple[ImageChunk, ...]]
"""An adapter's slot, a prompt's ids and its images: what the prefill depends on."""


def prompt_key(row: Row) -> PromptKey:
    """What the prefill of a row depends on."""
    return row.slot, row.ticket.request.prompt, row.ticket.request.images


# Rows that are done still cost computation, and dropping them copies the cache: drop once an eighth is done.
_WORTH_SHRINKING = 7 / 8


class Batch:
    """Rows that were begun together on one network; rows leave when done and none join.

    A row that is done may be computed on until the batch shrinks, so the network must keep every slot of the batch
    until the batch ends.

    Attributes:
        live: How many rows still sample.
        prefilled: Prompt tokens that were computed, each distinct (adapter, prompt) once.
    """

    def __init__(self, network: Network, rows: Sequence[Row]) -> None:
        self._network = network
        self._rows: list[Row | None] = list(rows)  # None: done, though its place is still computed
        self._position = 0
        self._cache = DynamicCache(config=network.config)
        self.live = len(rows)
        self.prefilled = 0
        self._selector = self._new_selector()
        self._slots = [row.slot for row in rows]
        self._tokens_b = torch.empty(0, dtype=torch.int64)
        self._following_b1 = torch.empty(0, dtype=torch.int64)
        self._mask_bk: torch.Tensor | None = None

    def step(self) -> list[Row]:
        """Draw one token for every live row.

        Returns:
            The rows that this step finished. One that has no `end` failed: its logits were not finite.
        """
        with torch.inference_mode():
            logits_bv = self._prefill() if self._position == 0 else self._decode()
            tokens_b, logprobs_b = self._selector.select(logits_bv, self._position)
        self._tokens_b = tokens_b
        self._position += 1
        finished: list[Row] = []
        for place, (token, logprob) in enumerate(zip(tokens_b.tolist(), logprobs_b.tolist(), strict=True)):
            row = self._rows[place]
            if row is not None and row.take(token, logprob):
                self._rows[place] = None
                finished.append(row)
        self.live -= len(finished)
        return finished

    def drop_unwanted(self) -> int:
        """Give up the rows that nobody waits for; how many."""
        before = self.live
        for place, row in enumerate(self._rows):
            if row is not None and row.ticket.closed:
                self._rows[place] = None
                self.live -= 1
        return before - self.live

    def rows(self) -> list[Row]:
        """The rows that still sample."""
        return [row for row in self._rows if row is not None]

    def _prefill(self) -> torch.Tensor:
        rows = self.rows()
        places: dict[PromptKey, int] = {}
        place_b = [places.setdefault(prompt_key(row), len(places)) for row in rows]
        prompts = [prompt for _, prompt, _ in places]
        lengths = [len(prompt) for prompt in prompts]
        self.prefilled = sum(lengths)
        longest = max(lengths)
        ids_ut = torch.tensor([(0,) * (longest - len(prompt)) + prompt for prompt in prompts])
        lengths_u1 = torch.tensor(lengths)[:, None]
        positions_ut = torch.arange(longest) - (longest - lengths_u1)
        mask_ut = (positions_ut >= 0).long() if min(lengths) < longest else None
        inputs = [ModelInput.of(prompt, images) for _, prompt, images in places] if self._network.vision else []
        if self._network.vision is None:
            positions_ut, following_u1 = positions_ut.clamp(min=0), lengths_u1
        else:
            positions_ut, following_u1 = self._network.vision.positions(inputs, left=True)
        logits_uv = self._network.logits(
            ids_ut,
            mask=mask_ut,
            positions=positions_ut,
            cache=self._cache,
            slots=[slot for slot, _, _ in places],
            images=inputs,
        )
        if len(places) == len(rows):
            self._following_b1, self._mask_bk = following_u1, mask_ut
            return logits_uv
        index_b = torch.tensor(place_b)
        self._cache.batch_select_indices(index_b)
        self._following_b1 = following_u1[index_b]
        self._mask_bk = None if mask_ut is None else mask_ut[index_b]
        return logits_uv[index_b]

    def _decode(self) -> torch.Tensor:
        if self.live < len(self._rows) * _WORTH_SHRINKING:
            self._shrink()
        if self._mask_bk is not None:
            self._mask_bk = torch.cat([self._mask_bk, self._mask_bk.new_ones(len(self._rows), 1)], dim=1)
        return self._network.logits(
            self._tokens_b[:, None],
            mask=self._mask_bk,
            positions=self._following_b1 + (self._position - 1),
            cache=self._cache,
            slots=self._slots,
        )

    def _shrink(self) -> None:
        keep = [place for place, row in enumerate(self._rows) if row is not None]
        index_b = torch.tensor(keep)
        self._cache.batch_select_indices(index_b)
        self._tokens_b = self._tokens_b[index_b]
        self._following_b1 = self._following_b1[index_b]
        if self._mask_bk is not None:
            self._mask_bk = self._mask_bk[index_b]
        self._rows = [self._rows[place] for place in keep]
        self._selector = self._new_selector()
        self._slots = [self._slots[place] for place in keep]

    def _new_selector(self) -> Selector:
        rows = self.rows()
        keys_b = row_keys([row.ticket.seed for row in rows], [row.index for row in rows])
        return Selector.of([row.ticket.request.params for row in rows], keys_b, self._network.vocab_size)

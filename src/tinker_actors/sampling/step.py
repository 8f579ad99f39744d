"""One forward pass for the rows of one network, and what each row draws from it.

Shape suffixes: T rows of the step, W rows whose logits are wanted, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from tinker_actors.data import ModelInput
from tinker_actors.models.vision import Vision
from tinker_actors.sampling.networks import Network, Rows
from tinker_actors.sampling.rows import Row
from tinker_actors.sampling.runs import Span
from tinker_actors.sampling.schedule import Schedule, Work
from tinker_actors.sampling.selection import Drawn, Selector, row_keys


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a step gave.

    Attributes:
        rows: Rows that drew, in order.
        drawn: What they drew.
        scored: Rows whose last given token is scored, and that draw nothing.
        prefilled: Prompt tokens computed.
    """

    rows: list[Row]
    drawn: Drawn | None
    scored: list[Row]
    prefilled: int


class Steps:
    """Computes steps; keeps from one to the next what doesn't change between them."""

    def __init__(self) -> None:
        self._selector: Selector | None = None
        self._selected: tuple[int, ...] = ()

    def run(self, network: Network, works: Sequence[Work], schedule: Schedule) -> Outcome:
        """Compute, and draw for every row that all is known of."""
        memory = schedule.memory
        works = sorted(works, key=_place)
        with torch.inference_mode():
            rows, wanted, scoring = _rows_of(network, works)
            logits_wv = network.logits(rows, memory.pool)
            prefilled = sum(work.count for work in works if work.count > 1 or not work.row.drawn)
            places = {id(work.row): place for work, place in zip(works, wanted, strict=True)}
            for work, (first, count) in scoring.items():
                _score(work, logits_wv[first : first + count])
            drawing: list[Row] = []
            lines: list[int] = []
            scored: list[Row] = []
            for work in works:
                row, draws = work.row, work.draws
                assert row.stretch is not None
                memory.computed(row.stretch, work.count)
                if not draws:
                    continue
                if row.ticket.request.targets:
                    scored.append(row)
                    continue
                for taker in (row, *schedule.fork(row)):
                    drawing.append(taker)
                    lines.append(places[id(row)])
            drawn = self._draw(logits_wv, drawing, lines) if drawing else None
        return Outcome(rows=drawing, drawn=drawn, scored=scored, prefilled=prefilled)

    def _draw(self, logits_wv: torch.Tensor, rows: list[Row], lines: list[int]) -> Drawn:
        if lines != list(range(logits_wv.shape[0])):
            logits_wv = logits_wv.index_select(0, torch.tensor(lines, device=logits_wv.device))
        identity = tuple(map(id, rows))
        if self._selector is None or self._selected != identity:
            keys = row_keys([row.ticket.seed for row in rows], [row.index for row in rows])
            self._selector = Selector.of([row.ticket.request.params for row in rows], keys, logits_wv.device)
            self._selected = identity
        biased = any(row.ticket.request.params.biases for row in rows)
        size = logits_wv.shape[1]
        return self._selector.select(
            logits_wv,
            [row.drawn for row in rows],
            said=[(row.sequence[: row.given], row.tokens) for row in rows] if biased else (),
            allowed=[row.grammar.allowed(size) if row.grammar is not None else None for row in rows]
            if any(row.grammar is not None for row in rows)
            else (),
        )


def _place(work: Work) -> tuple[int, int, int]:
    """Rows that draw first, then prompts; equally many rows in order of their extents, for attention to join them."""
    assert work.row.stretch is not None
    return work.count, work.row.stretch.extent.size, work.row.stretch.extent.start


def _rows_of(network: Network, works: Sequence[Work]) -> tuple[Rows, list[int], dict[Work, tuple[int, int]]]:
    """The step's matrix; where each row's last logits are among the wanted ones; and those that are to be scored."""
    ids: list[int] = []
    slots: list[int] = []
    spans: list[Span] = []
    positions: list[torch.Tensor] = []
    plain: list[int] = []
    wanted: list[int] = []
    last: list[int] = []
    scoring: dict[Work, tuple[int, int]] = {}
    images: list[ModelInput] = []
    seeing = any(work.row.images and work.row.images[-1][0] >= work.row.given - work.row.pending for work in works)
    for work in works:
        row, count = work.row, work.count
        stretch = row.stretch
        assert stretch is not None
        held = stretch.held
        scores = row.ticket.scores
        scored = 0 if scores is None or held >= row.given else held + count - max(held, scores.next)
        if scored > 0:
            scoring[work] = (len(wanted), scored)
            wanted.extend(range(len(ids) + count - scored, len(ids) + count))
            last.append(len(wanted) - 1)
        elif work.draws:
            wanted.append(len(ids) + count - 1)
            last.append(len(wanted) - 1)
        else:
            last.append(-1)
        spans.append(Span(start=stretch.extent.start, size=stretch.extent.size, held=held, count=count))
        ids.extend(row.sequence[held : held + count])
        slots.extend([row.ticket.resident.row_slot] * count)
        if network.vision is None:
            plain.extend(range(held, held + count))
        else:
            positions.append(_positions(network.vision, row, held, count))
        if seeing:
            ahead = tuple(image for start, image in row.images if held <= start < held + count)
            images.append(ModelInput.of(tuple(row.sequence[held : held + count]), ahead))
    rows = Rows(
        ids=ids,
        positions=torch.cat(positions, -1) if positions else torch.tensor(plain),
        spans=spans,
        slots=slots,
        wanted=wanted,
        images=images,
    )
    return rows, last, scoring


def _positions(vision: Vision, row: Row, held: int, count: int) -> torch.Tensor:
    if row.positions is None:
        request = row.ticket.request
        given = ModelInput.of((*request.prompt, *request.targets), tuple(image for _, image in row.images))
        positions_31t, following = vision.positions([given])
        row.positions = torch.cat([positions_31t[:, 0], following.expand(3, 1)], -1)
    known = row.positions[:, held : min(held + count, row.given)]
    later = torch.arange(max(held, row.given), held + count) - row.given + row.positions[:, -1:]
    return torch.cat([known, later.expand(3, -1)], -1)


def _score(work: Work, logits_tv: torch.Tensor) -> None:
    """Score the given tokens that follow the last rows of some work."""
    row, scores = work.row, work.row.ticket.scores
    assert row.stretch is not None
    assert scores is not None
    end = row.stretch.held + work.count
    # what was scored already is computed anew after a pre-emption, or by another sample of the request
    following = row.sequence[scores.next + 1 : min(end + 1, row.given)]
    if following:
        scores.add(logits_tv[scores.next - end + len(logits_tv) :], scores.next, following)

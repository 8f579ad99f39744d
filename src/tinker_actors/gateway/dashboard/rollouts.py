"""The page's rollouts: a run's episodes by pages, and one of them by itself."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query
from starlette.responses import Response

from tinker_actors.errors import ModelError
from tinker_actors.gateway.caller import needs
from tinker_actors.gateway.dashboard.episodes import EpisodeIndexes, Order, Wanted, read_episode
from tinker_actors.gateway.dashboard.owned import Owned, OwnedJob
from tinker_actors.gateway.dashboard.turns import seat_head, shown_turns
from tinker_actors.gateway.refusals import RefusalError, not_found
from tinker_actors.gateway.writing import json_response
from tinker_actors.models.catalogue import load_tokenizer
from tinker_actors.models.tokenizer import Tokenizer

router = APIRouter(prefix="/dashboard/api/jobs/{job}/episodes", dependencies=[needs("read", "jobs")])

_indexes = EpisodeIndexes()


def _wanted(
    order: Order = "newest",
    step: Annotated[int | None, Query(ge=0)] = None,
    seat: Annotated[str | None, Query(max_length=200)] = None,
    policy: Annotated[str | None, Query(max_length=200)] = None,
    failed: bool = False,
) -> Wanted:
    return Wanted(order=order, step=step, seat=seat, policy=policy, failed=failed)


WantedOf = Annotated[Wanted, Depends(_wanted)]


@router.get("")
async def episodes(
    owned: OwnedJob,
    wanted: WantedOf,
    offset: Annotated[int, Query(ge=0)] = 0,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> Response:
    """A page of the run's episodes."""

    def answer() -> dict[str, Any]:
        entries = _indexes.entries(owned.run.rollouts)
        found = wanted.chosen(entries)
        return {
            "episodes": [
                {
                    **{key: getattr(entry, key) for key in _SHOWN},
                    "seats": [
                        {"seat": seat, "policy": policy, "reward": reward, "trainable": trainable}
                        for seat, policy, reward, trainable in entry.seats
                    ],
                }
                for entry in found[offset : offset + limit]
            ],
            "found": len(found),
            "all": len(entries),
            "steps": [min(steps), max(steps)] if (steps := [entry.step for entry in entries]) else None,
            "seats": sorted({seat for entry in entries for seat, *_ in entry.seats}),
            "policies": sorted({policy for entry in entries for _, policy, *_ in entry.seats if policy}),
        }

    return json_response(await asyncio.to_thread(answer))


_SHOWN = ("id", "step", "phase", "end", "failed", "reward", "turns", "tokens")


@router.get("/{episode:path}")
async def episode(
    owned: OwnedJob,
    wanted: WantedOf,
    episode: str,
    at: Annotated[int, Query(ge=0)] = 0,
    start: Annotated[int, Query(ge=0)] = 0,
) -> Response:
    """An episode: what is said of it, and turns of the seat number `at`, from the one with the number `start` on.

    `previous` and `next` are its neighbours in the order that is asked for.
    """
    return json_response(await asyncio.to_thread(_episode, owned, wanted, episode, at, start))


def _episode(owned: Owned, wanted: Wanted, episode: str, at: int, start: int) -> dict[str, Any]:
    path = owned.run.rollouts
    entries = _indexes.entries(path)
    entry = next((entry for entry in reversed(entries) if entry.id == episode), None)
    if entry is None:
        raise not_found("episode", episode)
    try:
        record = read_episode(path, entry)
    except LookupError:
        raise not_found("episode", episode) from None
    seats = record["seats"]
    if at >= max(len(seats), 1):
        raise RefusalError(400, f"at is {at}, but the episode has {len(seats)} seats", code="no_seat")
    heads = [seat_head(seat) for seat in seats]
    order = wanted.chosen(entries)
    place = next((number for number, other in enumerate(order) if other is entry), None)
    tokenizer, why = _tokenizer(owned)
    return {
        **{key: record.get(key) for key in ("id", "step", "environment", "task", "end", "error", "metrics")},
        "task": str(record["task"]),  # a number beyond what JavaScript can hold
        "job": owned.job.name,
        "phase": entry.phase,
        "seats": heads,
        "at": at,
        "start": start,
        "turns": shown_turns(seats[at], start, tokenizer) if seats else [],
        "largest_advantage": max((abs(bound) for head in heads for bound in head["advantage"] or ()), default=0.0),
        "no_tokens_because": why,
        "place": None if place is None else place + 1,
        "of": len(order),
        "previous": order[place - 1].id if place else None,
        "next": order[place + 1].id if place is not None and place + 1 < len(order) else None,
    }


def _tokenizer(owned: Owned) -> tuple[Tokenizer | None, str | None]:
    """Of the run's model, or why there is none."""
    name = str(owned.job.config.get("model", {}).get("name", ""))
    beside = Path(owned.job.directory) / name
    try:
        return load_tokenizer(str(beside) if "/" in name and beside.is_dir() else name), None
    except ModelError as error:
        return None, str(error)

"""Answers that clients come back for."""

from __future__ import annotations

import asyncio
import time
from collections import Counter

import pytest

from tinker_actors.actors import ActorDiedError
from tinker_actors.errors import DataError
from tinker_actors.gateway.caller import LOCAL, Caller
from tinker_actors.gateway.futures import Answer, Futures
from tinker_actors.gateway.refusals import RefusalError

OTHER = Caller(tenant="other", key="k", scopes=frozenset({"train"}))


def answered(futures: Futures, content: object = None, *, tenant: str = "local"):
    future = futures.open(tenant, "optim_step")
    futures.settle(future, Answer.of(content))
    return future


async def test_a_waiting_fetch_ends_when_the_answer_comes_and_not_before():
    futures = Futures()
    future = futures.open("local", "optim_step")
    assert not await future.settled(0.01)
    waiting = [asyncio.create_task(future.settled(30.0)) for _ in range(3)]
    await asyncio.sleep(0)
    assert not any(task.done() for task in waiting)
    futures.settle(future, Answer.of({"step": 1}))
    assert await asyncio.gather(*waiting) == [True, True, True]
    assert future.answer is not None
    assert future.answer.content == b'{"step":1}'


async def test_only_the_first_answer_counts():
    future = answered(futures := Futures(), 1)
    futures.settle(future, Answer.of(2))
    assert future.answer is not None
    assert future.answer.content == b"1"


async def test_what_is_not_known_and_what_is_another_tenants_look_the_same():
    future = answered(futures := Futures())
    assert futures.find(LOCAL, future.request_id) is future
    for caller, request_id in [(OTHER, future.request_id), (LOCAL, "nothing")]:
        with pytest.raises(RefusalError, match=f"{request_id!r} is not known") as refused:
            futures.find(caller, request_id)
        assert refused.value.status == 410


async def test_work_that_fails_answers_with_what_went_wrong_and_whose_fault_it_was(caplog: pytest.LogCaptureFixture):
    futures = Futures()

    async def work(error: Exception) -> Answer:
        raise error

    mine = futures.start("local", "forward_backward", work(DataError("advantages[2] is nan")))
    ours = futures.start("local", "optim_step", work(ActorDiedError("secret path")))
    assert await mine.settled(5)
    assert await ours.settled(5)
    assert mine.answer == Answer(content=b'{"error":"advantages[2] is nan","category":"user"}', failed=True)
    assert ours.answer is not None
    assert b'"category":"server"' in ours.answer.content
    assert b"secret" not in ours.answer.content
    assert "secret path" in caplog.text


async def test_work_that_is_cancelled_answers_so():
    futures = Futures()
    future = futures.start("local", "asample", asyncio.sleep(60))  # pyright: ignore[reportArgumentType]
    futures.cancel(future)
    assert await future.settled(5)
    assert future.answer is not None
    assert b"was cancelled" in future.answer.content


async def test_answers_that_were_fetched_go_first_when_memory_is_short():
    futures = Futures(limit=3000)
    old, read = answered(futures, "x" * 500), answered(futures, "y" * 500)
    futures.fetched(read)
    waiting = futures.open("local", "optim_step")
    for _ in range(8):
        answered(futures, "z" * 500)
    assert futures.bytes <= 3000
    assert futures.find(LOCAL, waiting.request_id) is waiting  # what is under way never goes
    for gone in (read, old):
        with pytest.raises(RefusalError):
            futures.find(LOCAL, gone.request_id)


async def test_when_memory_is_short_who_has_most_of_it_makes_room():
    futures = Futures(limit=12_000)
    few = [answered(futures, "x" * 500, tenant="few") for _ in range(2)]
    futures.fetched(few[0])
    for number in range(30):
        futures.fetched(answered(futures, "y" * 500, tenant="many"))
        answered(futures, "z" * 500, tenant=f"more-{number % 2}")
    assert futures.bytes <= 12_000
    kept = Counter(future.tenant for future in futures._all.values())
    assert kept["few"] == 2
    assert min(kept[tenant] for tenant in ("many", "more-0", "more-1")) >= 2
    for future in list(futures._all.values()):
        futures._drop(future)
    assert (futures.bytes, len(futures._of_tenants)) == (0, 0)


async def test_answers_go_when_their_time_is_over(monkeypatch: pytest.MonkeyPatch):
    futures = Futures(kept=100.0, kept_read=10.0)
    read, unread = answered(futures), answered(futures)
    futures.fetched(read)
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 11)
    futures.tidy()
    assert futures.find(LOCAL, unread.request_id) is unread
    with pytest.raises(RefusalError):
        futures.find(LOCAL, read.request_id)
    monkeypatch.setattr(time, "monotonic", lambda: now + 101)
    futures.tidy()
    assert (len(futures), futures.bytes) == (0, 0)


async def test_closing_ends_all_work():
    futures = Futures()
    future = futures.start("local", "asample", asyncio.sleep(60))  # pyright: ignore[reportArgumentType]
    await futures.close()
    assert future.answer is not None

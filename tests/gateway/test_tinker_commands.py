"""The order of one model's commands."""

from __future__ import annotations

import asyncio
import itertools
import random
from typing import Any, cast

import pytest

from tinker_actors.errors import DataError, NotInTrainingError
from tinker_actors.gateway.futures import Answer, Futures
from tinker_actors.gateway.refusals import RefusalError
from tinker_actors.gateway.tinker.commands import MOST_HELD, Command, CommandLog, Pass
from tinker_actors.gateway.tinker.executor import Executor, LiveModel
from tinker_actors.training.contract import ForwardBackwardResult, LossConfig
from tinker_actors.training.joint import SHARED_TOKENS, together


async def nothing() -> None: ...


def command(seq_id: int) -> Command:
    return Command(seq_id=seq_id, future=Futures().open("local", "optim_step"), work=nothing)  # pyright: ignore


def ready(log: CommandLog) -> list[int]:
    return [found.seq_id for found in log.ready]


def test_commands_become_ready_in_their_order_whatever_order_they_come_in():
    for order in itertools.permutations(range(5)):
        log = CommandLog()
        for seq_id in order:
            log.add(command(seq_id))
        assert ready(log) == [0, 1, 2, 3, 4]


def test_a_command_is_held_until_its_predecessor_is_there():
    log = CommandLog()
    log.add(command(0))
    log.add(command(2))
    assert (ready(log), log.next_id) == ([0], 3)
    assert log.gap is not None
    assert log.gap[0] == 1
    log.add(command(1))
    assert (ready(log), log.gap) == ([0, 1, 2], None)


def test_a_command_that_comes_again_has_the_request_id_of_the_first():
    log = CommandLog()
    first = command(0)
    assert log.repeated(0) is None
    log.add(first)
    held = command(5)
    log.add(held)
    assert (log.repeated(0), log.repeated(5)) == (first.future.request_id, held.future.request_id)


def test_what_never_came_is_given_up_and_refused_when_it_comes_after_all():
    log = CommandLog()
    for seq_id in (0, 2, 3):
        log.add(command(seq_id))
    assert [lost.seq_id for lost in log.skip_gap()] == [2, 3]
    log.add(command(4))
    assert ready(log) == [0, 4]
    with pytest.raises(RefusalError, match="seq_id is 1; the model's next command is 5"):
        log.repeated(1)


def test_passes_go_together_as_long_as_all_of_them_are_small():
    assert together([9, SHARED_TOKENS - 9, 1], int) == [9, SHARED_TOKENS - 9]
    assert together([9, SHARED_TOKENS, 1], int) == [9, 1]
    assert together([2 * SHARED_TOKENS, 1], int) == [2 * SHARED_TOKENS]


def test_no_more_commands_wait_than_may():
    log = CommandLog()
    for seq_id in range(MOST_HELD):
        log.add(command(seq_id))
    with pytest.raises(RefusalError) as refused:
        log.repeated(MOST_HELD)
    assert refused.value.status == 429


def test_every_command_runs_once_in_random_orders_with_repetitions():
    for seed in range(50):
        random_ = random.Random(seed)
        arrivals = [*range(20), *random_.choices(range(20), k=10)]
        random_.shuffle(arrivals)
        log, ran = CommandLog(), list[int]()
        for seq_id in arrivals:
            if log.repeated(seq_id) is None:
                log.add(command(seq_id))
            while log.ready and random_.random() < 0.5:
                ran.append(log.ready.popleft().seq_id)
        assert [*ran, *ready(log)] == list(range(20))


class Trains:
    """Stands for the ref of a trainer: remembers whose batches it was given."""

    def __init__(self) -> None:
        self.given: list[list[str]] = []

    async def forward_backward_many(self, batches: Any, *, every_target: bool) -> list[ForwardBackwardResult]:
        self.given.append([model for model, _, _ in batches])
        return [ForwardBackwardResult(loss=0.0, logprobs=(), metrics={}) for _ in batches]


async def test_a_pass_whose_answer_cannot_be_written_is_computed_no_second_time():
    trainer, futures = Trains(), Futures()
    executor = Executor(cast("Any", trainer), futures, lambda model: RefusalError(400, model, code="lost"))

    async def written(_: ForwardBackwardResult) -> Answer:
        return Answer(content=b"", media_type="application/json")

    async def not_written(_: ForwardBackwardResult) -> Answer:
        raise DataError("a log-prob can't be written")

    given = {}
    for name, answer in (("a", not_written), ("b", written)):
        model = executor.models[name] = LiveModel(name, tenant="local", session_id="s")
        given[name] = futures.open("local", "forward_backward")
        work = Pass(datums=(), loss=LossConfig(name="cross_entropy"), answer=answer)
        model.log.add(Command(seq_id=0, future=given[name], work=work))
    running = asyncio.create_task(executor.run())
    assert await given["a"].settled(10)
    assert await given["b"].settled(10)
    running.cancel()
    assert trainer.given == [["a", "b"]]
    assert b"can't be written" in given["a"].answer.content
    assert given["b"].answer.content == b""


async def test_commands_of_a_model_that_its_trainer_has_lost_are_all_told_so():
    futures = Futures()
    executor = Executor(
        cast("Any", Trains()), futures, lambda model: RefusalError(503, f"{model} is lost", code="lost")
    )

    async def step() -> Answer:
        raise NotInTrainingError("in whatever words")

    given = [futures.open("local", "optim_step") for _ in range(2)]
    model = executor.models["a"] = LiveModel("a", tenant="local", session_id="s")
    for seq_id, future in enumerate(given):
        model.log.add(Command(seq_id=seq_id, future=future, work=step))
    running = asyncio.create_task(executor.run())
    for future in given:
        assert await future.settled(10)
        assert b"a is lost" in future.answer.content
    running.cancel()
    assert model.lost is not None

"""Pykka: an actor is a thread."""

from __future__ import annotations

import pykka

from benchmarks.actor_peers import measure


class Counter(pykka.ThreadingActor):
    """The subject of the small asks."""

    def __init__(self) -> None:
        super().__init__()
        self.n = 0

    def on_receive(self, message: int) -> int:
        """A number in, a number out."""
        self.n += message
        return self.n


_counter: list[pykka.ActorRef[Counter]] = []


def _ref() -> pykka.ActorRef[Counter]:
    if not _counter:
        _counter.append(Counter.start())
    return _counter[0]


async def _p50(count: int) -> float:
    ref = _ref()
    return measure.p50_blocking(lambda: ref.ask(1), count)


async def _pipelined(count: int) -> float:
    ref = _ref()

    def wave() -> None:
        pykka.get_all([ref.ask(1, block=False) for _ in range(measure.WORKERS)])

    waves = max(1, count // measure.WORKERS)
    return 1e6 / measure.mean_blocking(wave, waves) * measure.WORKERS


async def _cpu(count: int) -> float:
    return await measure.cpu_per_operation(lambda: _pipelined(count), count)


async def _barrier(count: int) -> float:
    refs = [Counter.start() for _ in range(1000)]
    try:
        time = measure.p50_blocking(lambda: pykka.get_all([ref.ask(1, block=False) for ref in refs]), min(count, 3))
    finally:
        for ref in refs:
            ref.stop(block=False)
    return time / 1e3


async def stop() -> None:
    """End every actor."""
    pykka.ActorRegistry.stop_all()


CASES = {
    "ask_p50_local": _p50,
    "asks_pipelined_256_local": _pipelined,
    "cpu_per_ask_local": _cpu,
    "barrier_1000_local": _barrier,
}

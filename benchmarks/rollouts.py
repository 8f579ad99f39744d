"""Turns per second of many episodes at once, with their coordinators, against a loop written by hand.

    python -m benchmarks.rollouts [--quick] [--json FILE] [--rounds N] [--clock wall|processor]

`two_seat_turns_per_s`: 1,000 episodes at a time of a scripted game of two seats that act in turn, in one process; each
has a coordinator of its own, an actor. `asyncio_loop` is a loop without coordinators, checks, limits or failures that
yields the very same episodes, which is verified. `limited_turns_per_s` is the same with limits on turns and episodes,
as in every run. `stuck_turn_p99_ms`: the time that 99 of 100 turns take at most, beside one environment that never
answers on the event loop and one that never answers in its thread, against a run without them (`none_stuck`).

The systems take their turns in each round. On a machine with other work to do `--clock processor` counts processor
time, which moves less.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import statistics
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

from benchmarks import table
from tinker_actors.actors import Mesh
from tinker_actors.coordinator import EpisodeCoordinator, EpisodeLimits
from tinker_actors.data import Episode, EpisodeEnd, Message, ModelInput, Task, Trajectory, Turn, TurnEnd
from tinker_actors.environments import Agent, Environment, Step

EPISODES = 1000
TURNS = 50
TASK = Task(environment="Scripted", seed=1)
LIMITS = EpisodeLimits(turn_seconds=60.0, episode_seconds=300.0)
OURS, LOOP = "tinker_actors", "asyncio_loop"


class Scripted(Environment):
    """Two seats act in turn; who acts last wins."""

    seats = ("x", "o")
    max_turns = TURNS

    def reset(self, seed: int) -> dict[str, str]:
        """Let x begin."""
        self.moves = 0
        return {"x": "your move"}

    def step(self, actions: dict[str, str]) -> Step:
        """Let the other seat act."""
        self.moves += 1
        if self.moves == TURNS:
            return Step(reward={"x": -1.0, "o": 1.0}, terminated=True)
        return Step(observation={("x", "o")[self.moves % 2]: "your move"})


class Timed(Scripted):
    """Notes how long its turns take."""

    def __init__(self, seconds: list[float], clock: Callable[[], float]) -> None:
        self.seconds, self.clock = seconds, clock

    def reset(self, seed: int) -> dict[str, str]:
        """Begin to measure."""
        self.last = self.clock()
        return super().reset(seed)

    def step(self, actions: dict[str, str]) -> Step:
        """A turn has ended."""
        now = self.clock()
        self.seconds.append(now - self.last)
        self.last = now
        return super().step(actions)


class StuckOnTheLoop(Scripted):
    """Never answers."""

    async def reset(self, seed: int) -> dict[str, str]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Wait for ever."""
        return await asyncio.get_running_loop().create_future()


class StuckInItsThread(Scripted):
    """Never answers, and blocks its thread."""

    blocking = True
    released = threading.Event()

    def reset(self, seed: int) -> dict[str, str]:
        """Block until the measurement is over."""
        self.released.wait()
        return super().reset(seed)


class Mover(Agent):
    """Says its move in the next turn of the loop, as one whose answer comes from elsewhere."""

    async def act(self, messages: Sequence[Message]) -> str:
        """Wait, then answer."""
        await asyncio.sleep(0)
        return "move"


def main() -> None:
    """Measure all and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="three rounds")
    parser.add_argument("--json", type=Path, help="write the rows there")
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--clock", choices=("wall", "processor"), default="wall")
    options = parser.parse_args()
    clock = time.perf_counter if options.clock == "wall" else time.process_time
    rows, ratios = asyncio.run(measure(options.rounds or (3 if options.quick else 11), clock))
    print(table.render(rows, ratios))
    print(f"{EPISODES} episodes of {TURNS} turns, clock {options.clock}, load average {os.getloadavg()[0]:.1f}")
    if options.json:
        table.save(rows, options.json)


async def measure(
    rounds: int, clock: Callable[[], float], episodes: int = EPISODES
) -> tuple[list[table.Row], dict[tuple[str, str], float]]:
    """The rows of all cases, and ours / theirs by (case, system)."""
    async with Mesh(observe=False, blocked_loop=None) as mesh:
        if await coordinated(mesh, "same") != await by_hand("same"):
            raise AssertionError("the loop written by hand doesn't yield the episode that the coordinator does")

        async def limited(id: str) -> Episode:
            return await coordinated(mesh, id, limits=LIMITS)

        async def plain(id: str) -> Episode:
            return await coordinated(mesh, id)

        speeds: dict[tuple[str, str], list[float]] = {}
        for number in range(rounds + 1):
            for key, play in (
                (("two_seat_turns_per_s", OURS), plain),
                (("two_seat_turns_per_s", LOOP), by_hand),
                (("limited_turns_per_s", OURS), limited),
                (("limited_turns_per_s", LOOP), by_hand),
            ):
                speed = await _turns_per_second(play, clock, episodes)
                if number:  # the first round warms up
                    speeds.setdefault(key, []).append(speed)
        rows = [table.summarise(case, system, "turns/s", values) for (case, system), values in speeds.items()]
        ratios = {
            (case, LOOP): table.paired_ratio(speeds[case, OURS], speeds[case, LOOP])
            for case in ("two_seat_turns_per_s", "limited_turns_per_s")
        }
        times = await _stuck(mesh, rounds, clock, episodes)
    rows += [table.summarise("stuck_turn_p99_ms", system, "ms", values) for system, values in times.items()]
    ratios["stuck_turn_p99_ms", "none_stuck"] = table.paired_ratio(times[OURS], times["none_stuck"])
    return rows, ratios


async def coordinated(
    mesh: Mesh, id: str, *, limits: EpisodeLimits | None = None, environment: Environment | None = None
) -> Episode:
    """One episode with a coordinator of its own, which ends with it."""
    coordinator = await mesh.spawn(EpisodeCoordinator, node=0)
    try:
        return await coordinator.play(
            environment or Scripted(), {"x": Mover(), "o": Mover()}, task=TASK, id=id, limits=limits
        )
    finally:
        await mesh.stop(coordinator)


async def by_hand(id: str) -> Episode:
    """One episode as a script would play it that knows this game."""
    environment, agents = Scripted(), {"x": Mover(), "o": Mover()}
    turns: dict[str, list[Turn]] = {"x": [], "o": []}
    observations = environment.reset(TASK.seed)
    while True:
        ((seat, text),) = observations.items()
        messages = (Message(role="user", content=text),)
        answer = await agents[seat].act(messages)
        turns[seat].append(
            Turn(
                observation=ModelInput(),
                action=(),
                logprobs=None,
                end=TurnEnd.STOP,
                messages=messages,
                text=answer,
            )
        )
        step = environment.step({seat: answer})
        if step.reward:
            for winner, reward in cast("dict[str, float]", step.reward).items():
                turns[winner][-1] = replace(turns[winner][-1], reward=turns[winner][-1].reward + reward)
        if step.terminated:
            break
        observations = cast("dict[str, str]", step.observation)
    environment.close()
    trajectories = tuple(
        Trajectory(seat=seat, policy=None, turns=tuple(found), end=EpisodeEnd.TERMINATED, trainable=False)
        for seat, found in turns.items()
    )
    return Episode(id=id, task=TASK, end=EpisodeEnd.TERMINATED, trajectories=trajectories)


async def _turns_per_second(
    play: Callable[[str], Awaitable[Episode]], clock: Callable[[], float], episodes: int
) -> float:
    gc.collect()
    began = clock()
    await asyncio.gather(*(play(str(number)) for number in range(episodes)))
    return TURNS * episodes / (clock() - began)


async def _stuck(mesh: Mesh, rounds: int, clock: Callable[[], float], episodes: int) -> dict[str, list[float]]:
    """The 99th percentile of turn times in ms, by system and round."""
    found: dict[str, list[float]] = {OURS: [], "none_stuck": []}
    for number in range(rounds + 1):
        for system in (OURS, "none_stuck"):
            StuckInItsThread.released.clear()
            stuck = [
                asyncio.create_task(coordinated(mesh, f"stuck-{kind.__name__}", environment=kind()))
                for kind in ((StuckOnTheLoop, StuckInItsThread) if system == OURS else ())
            ]
            await asyncio.sleep(0)
            seconds: list[float] = []
            gc.collect()
            await asyncio.gather(
                *(coordinated(mesh, str(index), environment=Timed(seconds, clock)) for index in range(episodes))
            )
            StuckInItsThread.released.set()
            for task in stuck:
                task.cancel()
            await asyncio.gather(*stuck, return_exceptions=True)
            if number:
                found[system].append(1000 * statistics.quantiles(seconds, n=100)[98])
    return found


if __name__ == "__main__":
    main()

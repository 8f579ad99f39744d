"""Collecting from workers of which any may die, hang or come back; the workers here are scripted."""

import asyncio
from functools import partial

import pytest
from tests.coordinator.skipped_time import in_skipped_time

from tinker_actors.actors import ActorStoppedError, NodeDiedError
from tinker_actors.coordinator import EpisodeLimits, failed_episode
from tinker_actors.data import Episode, EpisodeEnd, Trajectory, Turn, TurnEnd
from tinker_actors.data.inputs import ModelInput
from tinker_actors.errors import ConfigError, RunError
from tinker_actors.rollouts import (
    EpisodesDone,
    Retries,
    WorkerBlocked,
    WorkerLost,
    collect,
    collect_kept,
    plan_groups,
    rewards_vary,
)

QUICK = Retries(respawn_seconds=0.3)


def plan(groups=4, size=2, *, step=0, limits=None, **more):
    return plan_groups(
        environment="e",
        run_seed=0,
        phase="train",
        step=step,
        groups=groups,
        group_size=size,
        seats={},
        limits=limits,
        **more,
    )


def played(rollout, reward=1.0):
    turn = Turn(observation=ModelInput.of([1]), action=(2,), logprobs=(-0.1,), end=TurnEnd.STOP, reward=reward)
    trajectory = Trajectory(seat="agent", policy="p", turns=(turn,), end=EpisodeEnd.TERMINATED)
    return Episode(id=rollout.id, task=rollout.task, end=EpisodeEnd.TERMINATED, trajectories=(trajectory,))


class Worker:
    """Answers like the ref of a rollout worker; plays at once, one episode per message."""

    def __init__(self):
        self.stream = self
        self.begun = asyncio.Event()
        self.batches = []
        self.closed = 0

    async def ready(self):
        return None

    async def run(self, assignment):
        self.batches.append([rollout.id for rollout in assignment.rollouts])
        self.begun.set()
        try:
            async for rollout in self.order(assignment.rollouts):
                yield (played(rollout),)
        finally:
            self.closed += 1

    async def order(self, rollouts):
        for rollout in rollouts:
            await asyncio.sleep(0)
            yield rollout


class Dying(Worker):
    """Dies in front of the rollouts named, the given number of times."""

    def __init__(self, *fatal, times=99, down=0):
        super().__init__()
        self.fatal, self.times, self.down = set(fatal), times, down
        self.unreachable = 0

    async def ready(self):
        if self.unreachable:
            self.unreachable -= 1
            raise NodeDiedError("node 1 is being started again")

    async def order(self, rollouts):
        assert not self.unreachable, "nothing may be sent to a worker that isn't back"
        for rollout in rollouts:
            await asyncio.sleep(0)
            if rollout.id in self.fatal and self.times:
                self.times -= 1
                self.unreachable = self.down
                raise NodeDiedError("node 1 was killed by signal 9", "last words\n")
            yield rollout


class Silent(Worker):
    """Says nothing until it is released; then delivers what it was asked for first."""

    def __init__(self):
        super().__init__()
        self.release = asyncio.Event()

    async def order(self, rollouts):
        await self.release.wait()
        for rollout in rollouts:
            yield rollout


def ids(collected):
    return [episode.id for episode in collected.episodes]


async def test_rollouts_are_shared_out_evenly_and_come_back_in_the_plans_order():
    workers, wanted = [Worker(), Worker(), Worker()], plan(groups=5, size=3)
    collected = await collect(workers, wanted)
    assert [len(worker.batches[0]) for worker in workers] == [5, 5, 5]
    assert ids(collected) == [rollout.id for rollout in wanted.rollouts]
    assert [group.task for group in collected.groups] == [group[0].task for group in wanted.groups]
    assert (collected.retried, collected.lost, collected.late, collected.failures) == (0, 0, 0, ())


async def test_only_what_a_dead_worker_owed_is_played_again():
    wanted = plan()
    all_ids = [rollout.id for rollout in wanted.rollouts]
    dying, other = Dying(all_ids[2], times=1), Worker()
    events = []
    collected = await collect([dying, other], wanted, retries=QUICK, on_event=events.append)
    assert ids(collected) == all_ids
    assert (collected.retried, collected.lost, collected.failures) == (2, 1, ())
    again = [name for worker in (dying, other) for batch in worker.batches[1:] for name in batch]
    assert sorted(again) == sorted(all_ids[2:4])
    (lost,) = [event for event in events if isinstance(event, WorkerLost)]
    assert (lost.unfinished, lost.cause) == (2, "NodeDiedError: node 1 was killed by signal 9")
    done = [event for event in events if isinstance(event, EpisodesDone)]
    assert [event.done for event in done] == list(range(1, 9))
    assert sorted(episode.id for event in done for episode in event.episodes) == sorted(all_ids)


async def test_a_lone_worker_gets_its_rollouts_back_once_it_answers_again():
    wanted = plan()
    worker = Dying(wanted.rollouts[3].id, times=2, down=2)
    collected = await collect([worker], wanted, retries=Retries(respawn_seconds=5))
    assert (len(collected.episodes), collected.failures, collected.lost) == (8, (), 2)


async def test_an_episode_that_kills_every_worker_fails_alone_and_by_name():
    wanted = plan(groups=16, size=2)
    fatal = wanted.rollouts[9].id
    collected = await collect([Dying(fatal), Dying(fatal)], wanted, retries=QUICK)
    (failed,) = collected.failures
    assert failed.id == fatal
    assert failed.error == (
        "e: worker lost in 3 of 3 attempts; last Dying: NodeDiedError: node 1 was killed by signal 9"
    )
    assert len(collected.complete) == 15


@in_skipped_time
async def test_a_silent_workers_rollouts_go_to_others_and_its_late_results_are_dropped_and_counted():
    silent, other, wanted = Silent(), Worker(), plan()

    def on_event(event):
        # the first attempt answers when its first retry is in
        if isinstance(event, EpisodesDone) and event.done == 5:
            silent.release.set()

    class Slow(Worker):
        async def order(self, rollouts):
            if len(self.batches) > 1:
                for _ in range(20):
                    await asyncio.sleep(0)
            async for rollout in super().order(rollouts):
                yield rollout

    other = Slow()
    collected = await collect([silent, other], wanted, retries=Retries(silence_seconds=0.3), on_event=on_event)
    assert ids(collected) == [rollout.id for rollout in wanted.rollouts]
    assert collected.failures == ()
    assert collected.late >= 1
    assert (collected.lost, collected.retried) == (1, 4)
    assert silent.closed >= 1


@in_skipped_time
async def test_workers_that_hang_for_ever_end_in_failed_episodes_in_bounded_time():
    wanted = plan(groups=1)
    retries = Retries(attempts=2, silence_seconds=0.03, respawn_seconds=0.1)
    collected = await asyncio.wait_for(collect([Silent(), Silent()], wanted, retries=retries), 60)
    assert len(collected.failures) == 2
    assert all("nothing came from it for 0.03 s" in episode.error for episode in collected.failures)


class Moving:
    """Stands for the ref of a gate at which something happens for a while."""

    def __init__(self, *idle: float) -> None:
        self.seconds = list(idle)

    async def idle(self, cohorts) -> float:
        return self.seconds.pop(0)


@in_skipped_time
async def test_a_worker_that_does_not_answer_is_told_of_long_before_it_is_given_up():
    class Blocked(Worker):
        release = asyncio.Event()

        async def ready(self):
            await asyncio.Event().wait()

        async def order(self, rollouts):
            await self.release.wait()
            for rollout in rollouts:
                yield rollout

    worker, events = Blocked(), []

    def on_event(event):
        events.append(event)
        worker.release.set()

    collected = await collect([worker], plan(), retries=Retries(blocked_seconds=0.02), on_event=on_event)
    assert events[0] == WorkerBlocked(worker="Blocked", seconds=0.01)
    assert (collected.lost, collected.retried) == (0, 0)


@in_skipped_time
async def test_a_worker_is_not_silent_while_something_happens_at_the_gate():
    wanted = plan(groups=1, gate=Moving(0.0, 0.01, 0.0, 0.05))
    retries = Retries(attempts=1, silence_seconds=0.03, respawn_seconds=0.1)
    collected = await asyncio.wait_for(collect([Silent()], wanted, retries=retries), 60)
    assert wanted.gate.seconds == []  # it was asked until nothing had happened for as long as a worker may be silent
    assert len(collected.failures) == 2


async def test_when_all_workers_are_gone_the_error_names_the_last_cause():
    class Gone(Worker):
        async def ready(self):
            raise ActorStoppedError("stopped")

        async def order(self, rollouts):
            raise NodeDiedError("killed")
            yield

    with pytest.raises(RunError, match=r"all 2 rollout workers are gone, .*Gone: NodeDiedError: killed; 8 of 8"):
        await asyncio.wait_for(collect([Gone(), Gone()], plan(), retries=QUICK), 60)


async def test_an_error_that_is_not_a_lost_worker_is_raised_and_stops_the_others():
    class Refuses(Worker):
        async def order(self, rollouts):
            raise ConfigError("seats don't fit")
            yield

    silent = Silent()
    with pytest.raises(ConfigError, match="seats don't fit"):
        await collect([silent, Refuses()], plan())
    assert silent.closed == 1


async def test_cancelling_stops_the_workers_streams():
    silent = Silent()
    task = asyncio.create_task(collect([silent], plan()))
    await silent.begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert silent.closed == 1


async def test_a_failed_episode_is_tried_again_only_as_often_as_asked():
    class Flaky(Worker):
        def __init__(self, failures):
            super().__init__()
            self.failures = failures

        async def run(self, assignment):
            for rollout in assignment.rollouts:
                if self.failures:
                    self.failures -= 1
                    yield (failed_episode(task=rollout.task, id=rollout.id, error="e: flaky"),)
                else:
                    yield (played(rollout),)

    assert len((await collect([Flaky(2)], plan())).failures) == 2
    collected = await collect([Flaky(2)], plan(), retries=Retries(failed=1))
    assert (collected.failures, collected.retried) == ((), 2)
    assert len((await collect([Flaky(99)], plan(), retries=Retries(failed=1))).failures) == 8


async def test_no_worker_is_refused():
    with pytest.raises(ConfigError, match="no rollout worker"):
        await collect([], plan())


@in_skipped_time
async def test_the_silence_allowed_follows_the_limit_on_episodes():
    silent = Silent()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await collect([silent], plan(limits=EpisodeLimits(episode_seconds=1.0)))
    assert len(silent.batches) == 1


class Rewards(Worker):
    """Gives the rewards of each group in turn."""

    def __init__(self, *by_task):
        super().__init__()
        self.by_task, self.tasks = by_task, {}

    async def run(self, assignment):
        for rollout in assignment.rollouts:
            index = self.tasks.setdefault(rollout.task, len(self.tasks))
            rewards = self.by_task[index % len(self.by_task)]
            yield (played(rollout, rewards[int(rollout.id.rsplit("-", 1)[1])]),)


async def test_groups_are_collected_until_enough_pass_the_filter():
    worker = Rewards((1.0, 1.0), (0.0, 1.0), (0.0, 0.0))
    collected = await collect_kept(
        partial(collect, [worker]), lambda number: plan(groups=3, step=number), wanted=2, max_rounds=4
    )
    assert len(collected.groups) == 2
    assert all(rewards_vary(group) for group in collected.groups)
    assert len(worker.tasks) == 6


async def test_rewards_that_never_vary_end_in_a_clear_error_after_bounded_rounds():
    worker = Rewards((1.0, 1.0))
    with pytest.raises(RunError, match=r"0 of 9 groups passed the filter 'rewards_vary' in 3 rounds, 2 are needed"):
        await collect_kept(
            partial(collect, [worker]), lambda number: plan(groups=3, step=number), wanted=2, max_rounds=3
        )


class Failing(Rewards):
    """Fails the episodes whose reward is None."""

    async def run(self, assignment):
        for rollout in assignment.rollouts:
            index = self.tasks.setdefault(rollout.task, len(self.tasks))
            reward = self.by_task[index % len(self.by_task)][int(rollout.id.rsplit("-", 1)[1])]
            if reward is None:
                yield (failed_episode(task=rollout.task, id=rollout.id, error="e: no such move"),)
            else:
                yield (played(rollout, reward),)


async def test_what_failed_in_groups_that_the_filter_dropped_is_counted_and_named():
    def keep_one(worker, max_rounds=4):
        return collect_kept(
            partial(collect, [worker]), lambda number: plan(groups=2, step=number), wanted=1, max_rounds=max_rounds
        )

    collected = await keep_one(Failing((None, 1.0), (None, 0.0), (0.0, 1.0), (1.0, None)))
    assert [group.failed for group in collected.groups] == [()]
    assert [episode.error for episode in collected.failures] == ["e: no such move"] * 3
    with pytest.raises(RunError, match=r"0 of 4 groups .* 4 episodes failed, such as: e: no such move"):
        await keep_one(Failing((None, 1.0)), max_rounds=2)
    worker = Failing((None, None))
    with pytest.raises(RunError, match="all 4 episodes of a round failed: e: no such move"):
        await keep_one(worker)
    assert len(worker.tasks) == 2


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("blocked_seconds", 0.0),
        ("blocked_seconds", -1.0),
        ("blocked_seconds", float("nan")),
        ("blocked_seconds", float("inf")),
        ("silence_seconds", 0.0),
        ("respawn_seconds", -2.0),
    ],
)
def test_retries_that_wait_for_no_length_of_time_are_refused(field, value):
    with pytest.raises(ConfigError, match=f"^{field} is {value}; a positive number of seconds is needed$"):
        Retries(**{field: value})

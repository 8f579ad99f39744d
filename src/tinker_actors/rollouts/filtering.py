"""Collecting until enough groups are worth training on, within a bound."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from tinker_actors.data import Episode, Group, all_equal
from tinker_actors.errors import ConfigError, RunError
from tinker_actors.rollouts.collecting import Collected
from tinker_actors.rollouts.plans import RolloutPlan


def rewards_vary(group: Group) -> bool:
    """Whether some trainable seat has different rewards within the group; else no advantage is other than zero.

    Episodes in which nothing was sampled for it don't count: no advantage is taken over them.
    """
    played = ([entry for entry in group.trajectories(seat) if entry.action_tokens] for seat in group.trainable_seats)
    return not all(all_equal([entry.reward for entry in entries]) for entries in played)


async def collect_kept(
    play: Callable[[RolloutPlan], Awaitable[Collected]],
    plan_round: Callable[[int], RolloutPlan],
    *,
    keep: Callable[[Group], bool] = rewards_vary,
    wanted: int,
    max_rounds: int,
) -> Collected:
    """Collect plan after plan until `wanted` groups pass a filter.

    Args:
        play: Collects a plan, such as `partial(collect, workers)`.
        plan_round: The plan of round 0, 1, ...; each with tasks of its own.
        keep: The filter.
        wanted: How many groups are needed; those beyond are dropped.
        max_rounds: How many plans are played at most.

    Returns:
        The first `wanted` groups that pass, in the order of the plans, with the counts of all rounds.

    Raises:
        RunError: Too few passed in `max_rounds` rounds, or all episodes of a round failed; names a failure if there is
            one.
    """
    if wanted < 1 or max_rounds < 1:
        raise ConfigError(f"wanted is {wanted} and max_rounds is {max_rounds}; at least 1 of each is needed")
    kept: list[Group] = []
    failed: list[Episode] = []  # in groups that aren't kept
    rounds: list[Collected] = []
    while len(kept) < wanted:
        if len(rounds) == max_rounds:
            seen = sum(len(each.groups) for each in rounds)
            causes = f"; {len(failed)} episodes failed, such as: {failed[0].error}" if failed else ""
            raise RunError(
                f"{len(kept)} of {seen} groups passed the filter {getattr(keep, '__name__', keep)!r} in {max_rounds} "
                f"rounds, {wanted} are needed; if rewards never differ within a group, there is nothing to learn from"
                f"{causes}"
            )
        played = await play(plan_round(len(rounds)))
        if not any(group.valid for group in played.groups):
            raise RunError(f"all {len(played.episodes)} episodes of a round failed: {played.failures[0].error}")
        rounds.append(played)
        for group in played.groups:
            if len(kept) < wanted and keep(group):
                kept.append(group)
            else:
                failed.extend(group.failed)
    return Collected(
        groups=tuple(kept),
        dropped_failures=tuple(failed),
        late=sum(each.late for each in rounds),
        retried=sum(each.retried for each in rounds),
        lost=sum(each.lost for each in rounds),
        seconds=sum(each.seconds for each in rounds),
    )

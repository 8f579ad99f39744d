"""Plans: ids, tasks and seeds."""

import pytest

from tinker_actors.errors import ConfigError
from tinker_actors.rollouts import RolloutPlan, plan_groups


def plan(**changes):
    settings = {"environment": "e", "run_seed": 0, "phase": "train", "step": 0, "groups": 3, "group_size": 4}
    return plan_groups(**{**settings, "seats": {}, **changes})


def test_ids_and_seeds_are_unique_over_steps_and_phases():
    rollouts = [
        rollout for phase in ("train", "eval") for step in range(3) for rollout in plan(phase=phase, step=step).rollouts
    ]
    assert len({rollout.id for rollout in rollouts}) == len(rollouts) == 72
    assert len({rollout.seed for rollout in rollouts}) == len(rollouts)
    assert len({rollout.task for rollout in rollouts}) == 18


def test_a_group_shares_its_task_and_not_its_luck():
    for group in plan().groups:
        assert len({rollout.task for rollout in group}) == 1
        assert len({rollout.seed for rollout in group}) == 4


def test_the_same_arguments_give_the_same_plan_and_another_run_seed_another():
    assert plan() == plan()
    assert {rollout.task for rollout in plan().rollouts}.isdisjoint(
        rollout.task for rollout in plan(run_seed=1).rollouts
    )


def test_evaluations_can_repeat_tasks_and_luck_at_every_step_under_new_ids():
    first, later = plan(same_every_step=True, step=0), plan(same_every_step=True, step=9)
    for one, other in zip(first.rollouts, later.rollouts, strict=True):
        assert (one.task, one.seed) == (other.task, other.seed)
        assert one.id != other.id


def test_given_tasks_are_used():
    assert [group[0].task.seed for group in plan(tasks=[7, 8, 9]).groups] == [7, 8, 9]


@pytest.mark.parametrize("changes", [{"groups": 0}, {"group_size": 0}, {"tasks": [1]}])
def test_numbers_that_do_not_fit_are_refused(changes):
    with pytest.raises(ConfigError, match="needed"):
        plan(**changes)


def test_a_plan_refuses_ids_twice_and_groups_of_mixed_tasks():
    first, second, _ = plan().groups
    with pytest.raises(ConfigError, match="rollout id 'train-0-0-0' stands twice"):
        RolloutPlan(groups=(first, first), line_ups=({},))
    with pytest.raises(ConfigError, match="mixes tasks"):
        RolloutPlan(groups=((first[0], second[0]),), line_ups=({},))

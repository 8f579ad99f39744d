"""Which examples each step learns from."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tinker_actors.scheduler.sft_config import BatchSection
from tinker_actors.scheduler.sft_plan import Cursor, DataPlan, held_out

BATCHES = st.one_of(
    st.builds(BatchSection, examples=st.integers(1, 7), accumulation=st.integers(1, 3)),
    st.builds(BatchSection, tokens=st.integers(1, 40), accumulation=st.integers(1, 3)),
)
PLANS = st.builds(
    lambda lengths, batch, epochs, seed, shuffle: DataPlan(lengths, range(len(lengths)), batch, epochs, seed, shuffle),
    st.lists(st.integers(1, 20), min_size=1, max_size=40),
    BATCHES,
    st.integers(1, 3),
    st.integers(0, 5),
    st.booleans(),
)


@given(PLANS)
def test_every_example_is_trained_once_an_epoch(plan: DataPlan):
    steps = list(plan.steps(Cursor()))
    assert len(steps) == plan.count(Cursor())
    for epoch in range(plan.epochs):
        trained = [example for step in steps if step.epoch == epoch for example in step.examples]
        assert sorted(trained) == list(plan.kept)
        assert plan.shuffle or trained == list(plan.kept)


@given(PLANS, st.integers(0, 50))
def test_a_plan_that_is_taken_up_goes_on_as_it_would_have(plan: DataPlan, done: int):
    steps = list(plan.steps(Cursor()))
    done = min(done, len(steps))
    cursor = steps[done - 1].after if done else Cursor()
    assert list(plan.steps(cursor)) == steps[done:]
    assert plan.count(cursor) == len(steps) - done


@given(PLANS)
def test_batches_keep_to_their_bound(plan: DataPlan):
    for step in plan.steps(Cursor()):
        assert len(step.batches) <= plan.batch.accumulation
        for batch in step.batches:
            assert plan.batch.examples is None or len(batch) <= plan.batch.examples
            tokens = sum(plan.lengths[example] for example in batch)
            assert plan.batch.tokens is None or tokens <= plan.batch.tokens or len(batch) == 1


def test_the_order_depends_on_the_seed_and_the_epoch():
    def order(seed: int) -> list[tuple[int, ...]]:
        plan = DataPlan([1] * 30, range(30), BatchSection(examples=30), 2, seed)
        return [step.examples for step in plan.steps(Cursor())]

    assert order(0) == order(0)
    assert len({*order(0), *order(1)}) == 4


def test_what_is_held_out_is_not_trained():
    kept, held = held_out(100, 0.1, seed=3)
    assert (len(kept), len(held)) == (90, 10)
    assert sorted(kept + held) == list(range(100))
    assert held_out(100, 0.1, seed=3) == (kept, held) != held_out(100, 0.1, seed=4)
    assert held_out(5, 0.0, seed=0) == ([0, 1, 2, 3, 4], [])
    assert len(held_out(2, 0.9, seed=0)[0]) == 1

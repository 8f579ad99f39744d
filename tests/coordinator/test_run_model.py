"""The phases of a run against their table in the docs, whatever the policies do in whatever order."""

import asyncio

import pytest
from documented import transitions
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from stepped_loop import SteppedLoop

from tinker_actors.coordinator import Phase, PhaseBarrier, PhaseBrokenError
from tinker_actors.errors import RunError

TABLE = transitions("A run")
TIMEOUT = 60.0


class Phases(RuleBasedStateMachine):
    """The model: who takes part, who has arrived, and in which state the table says that the run is."""

    @initialize(count=st.integers(1, 4), step=st.integers(0, 2))
    def begin(self, count, step):
        self.loop = SteppedLoop()
        self.parties, self.arrived, self.step = list("abcd"[:count]), set(), step
        self.state, self.before, self.waiters = "rollout", "rollout", []
        self.barrier = PhaseBarrier(self.parties, timeout=TIMEOUT, step=step)

    def moved(self, event, *, seconds=0.0):
        """What the table says of an event has happened, to the phase and to those that waited."""
        before, (after, told) = self.state, TABLE[self.state, event]
        self.loop.settle(seconds)
        self.state = self.before if after == "the phase that broke" else after
        if self.state != "broken":
            self.before = self.state
        if told == "all that waited go on":
            self.arrived = set()
            self.step += before == "update"
            assert all(waiter.exception() is None for waiter in self.taken())
        elif told == "all that waited get the cause":
            for waiter in self.taken():
                assert waiter.cancelled() or isinstance(waiter.exception(), PhaseBrokenError)
        return told

    def taken(self):
        """Those that waited, of whom all have heard by now."""
        waiters, self.waiters = self.waiters, []
        assert all(waiter.done() for waiter in waiters)
        return waiters

    def finish(self, policy, phase=None, step=None):
        phase = Phase(self.before) if phase is None else phase
        task = self.loop.create_task(self.barrier.finish(policy, phase, self.step if step is None else step))
        self.loop.settle()
        return task

    @property
    def missing(self):
        return [policy for policy in self.parties if policy not in self.arrived]

    @precondition(lambda self: self.missing)
    @rule(data=st.data())
    def a_policy_finishes(self, data):
        policy = data.draw(st.sampled_from(self.missing))
        task = self.finish(policy)
        if self.state == "broken":
            assert self.moved("a policy finishes, others don't yet") == "it gets the cause"
            with pytest.raises(PhaseBrokenError):
                task.result()
            return
        self.arrived.add(policy)
        self.waiters.append(task)
        self.moved("a policy finishes, others don't yet" if self.missing else "the last policy finishes")

    @precondition(lambda self: len(self.parties) > 1)
    @rule(data=st.data())
    def a_policy_leaves(self, data):
        policy = data.draw(st.sampled_from(self.parties))
        self.parties.remove(policy)
        self.arrived.discard(policy)
        self.barrier.leave(policy)
        last = not self.missing and self.state != "broken"
        self.moved("the last missing policy leaves" if last else "a policy leaves, others are missing")

    @precondition(lambda self: self.state != "broken")
    @rule(data=st.data())
    def an_actor_ends(self, data):
        self.barrier.break_(f"the actor of {data.draw(st.sampled_from(self.parties))} died")
        self.moved("a policy's actor ends")

    @precondition(lambda self: self.state != "broken" and self.waiters)
    @rule(data=st.data())
    def a_waiter_is_cancelled(self, data):
        data.draw(st.sampled_from(self.waiters)).cancel()
        self.moved("a policy that waits is cancelled")

    @precondition(lambda self: self.state != "broken" and self.waiters)
    @rule()
    def too_long(self):
        self.moved("the first has waited too long", seconds=TIMEOUT + 0.1)

    @precondition(lambda self: self.state != "broken")
    @rule(data=st.data())
    def out_of_turn(self, data):
        other = Phase.UPDATE if self.before == "rollout" else Phase.ROLLOUT
        wrong = [
            self.finish(data.draw(st.sampled_from(self.parties)), phase=other),
            self.finish(data.draw(st.sampled_from(self.parties)), step=self.step + 1),
            self.finish("stranger"),
            *(self.finish(policy) for policy in self.arrived),
        ]
        assert self.moved("a policy finishes out of turn") == "it gets a `RunError`"
        for task in wrong:
            assert isinstance(task.exception(), RunError)

    @precondition(lambda self: self.state == "broken")
    @rule()
    def it_is_mended(self):
        self.barrier.mend()
        self.arrived = set()
        self.moved("it is mended")

    @rule(seconds=st.floats(0, TIMEOUT / 8))
    def time_passes(self, seconds):
        if not self.waiters:
            self.loop.settle(seconds)

    @invariant()
    def it_stands_where_the_table_says(self):
        if not hasattr(self, "barrier"):
            return
        state = self.barrier.state
        assert (state.broken is not None) == (self.state == "broken")
        assert (state.phase.value, state.step) == (self.before, self.step)
        if self.state != "broken":
            assert list(state.waiting_for) == self.missing
            assert not any(waiter.done() for waiter in self.waiters)

    def teardown(self):
        if hasattr(self, "loop"):
            for waiter in self.waiters:
                waiter.cancel()
            self.loop.settle()
            assert all(isinstance(waiter, asyncio.Task) and waiter.done() for waiter in self.waiters)
            self.loop.close()


Phases.TestCase.settings = settings(max_examples=80, stateful_step_count=20, deadline=None)
TestPhases = Phases.TestCase

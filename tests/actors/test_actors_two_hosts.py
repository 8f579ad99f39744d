"""Two hosts with a network between them that can be cut, and one that is slow and lossy; with keys, as between any two.

The tests that are imported here are those of the semantic suite, run across the slow and lossy network.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import namespaces
import pytest
import pytest_asyncio
from guests import guest
from namespaces import HOSTS, Hosts
from shared_meshes import Shared
from test_actors_calls import (
    test_a_cycle_through_other_actors_is_refused,
    test_cancelling_an_ask_cancels_the_handler_and_the_actor_goes_on,
)
from test_actors_cycles import test_of_two_asks_that_cross_one_is_refused_and_the_other_answered
from test_actors_failure import (
    test_a_failure_beyond_the_policy_escalates_to_the_parent,
    test_a_handlers_error_reaches_the_asker_and_the_actor_lives,
    test_actor_failure_fails_the_ask_and_restarts_from_the_constructor,
    test_stop_drains_then_refuses,
)
from test_actors_messages import (
    test_a_slow_reader_slows_the_producer,
    test_a_tell_is_served_before_the_same_senders_next_ask,
    test_arrays_arrive_equal_and_small_ones_writable,
    test_messages_of_one_sender_are_served_in_order,
)
from zoo import Chain, Counter, Log

from tinker_actors.actors import DeadlineExceeded, Keys, Mesh, NodeUnreachableError
from tinker_actors.actors.keys import generate

__all__ = [
    "test_a_cycle_through_other_actors_is_refused",
    "test_a_failure_beyond_the_policy_escalates_to_the_parent",
    "test_a_handlers_error_reaches_the_asker_and_the_actor_lives",
    "test_a_slow_reader_slows_the_producer",
    "test_a_tell_is_served_before_the_same_senders_next_ask",
    "test_actor_failure_fails_the_ask_and_restarts_from_the_constructor",
    "test_arrays_arrive_equal_and_small_ones_writable",
    "test_cancelling_an_ask_cancels_the_handler_and_the_actor_goes_on",
    "test_messages_of_one_sender_are_served_in_order",
    "test_of_two_asks_that_cross_one_is_refused_and_the_other_answered",
    "test_stop_drains_then_refuses",
]

LISTEN = f"tcp://{HOSTS[0]}:0"
PING = 0.3


class Across(Shared):
    """Node 0 on one host, the other, where the actors are, behind 50 ms each way and 1 % loss."""

    def __init__(self, hosts: Hosts, keys: Path) -> None:
        super().__init__("across", {"listen": LISTEN, "keys": Keys.load(keys / "head.secret")})
        self._hosts = hosts
        self._options = "--import", "ring_zoo", "--keys", str(keys / "worker.secret")

    async def get(self) -> Mesh:
        if self.mesh is None:
            enter = self._stack.enter_async_context
            self._stack.enter_context(self._hosts.inside(0))
            self.mesh = await enter(Mesh(**self.options))
            await enter(guest(self.mesh, *self._options, prefix=self._hosts.prefix(1)))
        self._hosts.delay, self._hosts.loss = 0.05, 0.01
        return self.mesh

    async def clear(self) -> None:
        self._hosts.delay = self._hosts.loss = 0.0
        await super().clear()


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    hosts = namespaces.make()
    try:
        yield hosts
    finally:
        namespaces.remove(hosts)


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    keys = tmp_path_factory.mktemp("two-hosts") / "keys"
    generate(keys, ["head", "worker"])
    return keys


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_mesh(hosts: Hosts, keys: Path) -> AsyncIterator[Across]:
    across = Across(hosts, keys)
    yield across
    await across.close()


async def test_calls_during_a_cut_fail_typed_in_time_and_the_link_resumes_after_it(
    hosts: Hosts, keys: Path, shared_mesh: Across
) -> None:
    await shared_mesh.close()  # the others' mesh, which this cuts too
    with hosts.inside(0):
        async with (
            Mesh(nodes=2, listen=LISTEN, keys=Keys.load(keys / "head.secret"), ping=PING) as mesh,
            guest(mesh, "--keys", str(keys / "worker.secret"), count=3, prefix=hosts.prefix(1)),
        ):
            counter = await mesh.spawn(Counter, node=2)
            log = await mesh.spawn(Log, node=2)
            near = await mesh.spawn(Chain, node=1)
            home = await mesh.spawn(Log, node=0)
            far = await mesh.spawn(Chain, node=2)
            assert await counter.add(1) == 1
            for _ in range(2):
                begun = (await home.peek()).count("nested cancelled")
                held = [asyncio.create_task(log.hold())]
                await log.wait_for("hold begins", begun + 1)
                held.append(asyncio.create_task(near.hold_other(log)))
                back = asyncio.create_task(far.hold_other(home))
                await home.wait_for("nested begins", begun + 1)
                loop = asyncio.get_running_loop()
                began = loop.time()
                hosts.is_cut = True
                with pytest.raises((DeadlineExceeded, NodeUnreachableError)):
                    await counter.options(timeout=0.1).value()
                assert loop.time() - began < 2 * PING  # before the link counts as cut
                for task in (*held, back):
                    with pytest.raises(NodeUnreachableError):
                        await task
                assert loop.time() - began < 2.5 * PING + 0.1
                with pytest.raises(NodeUnreachableError):
                    await counter.value()
                hosts.is_cut = False
                async with asyncio.timeout(60):
                    while not await _answers(counter):  # noqa: ASYNC110
                        await asyncio.sleep(0.02)
                await log.wait_for("hold cancelled", begun + 1)
                await home.wait_for("nested cancelled", begun + 1)
            assert await counter.value() == 1


async def _answers(counter: Counter) -> bool:
    try:
        return await counter.value() == 1
    except NodeUnreachableError:
        return False

"""What is not believed: requests, reports and greetings that a node has no right to, or that mean nothing."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from zoo import Counter

from tinker_actors.actors import CodecError, Keys, Mesh, SpawnError, UnroutableError, envelope, location, packing
from tinker_actors.actors.control import CellEnded, ClassLocation
from tinker_actors.actors.guests import VERSION
from tinker_actors.actors.imports import Imports
from tinker_actors.actors.keys import generate
from tinker_actors.actors.worker import system_address

ANY = "tcp://127.0.0.1:0"


@pytest.fixture
async def host() -> AsyncIterator[Mesh]:
    async with Mesh(nodes=2, listen=ANY) as mesh:
        yield mesh


async def test_a_guest_reaches_the_meshs_own_actors_in_no_way(host: Mesh) -> None:
    node = host._open()[1]
    async with Mesh.join(host.url or "") as there:
        own: Any = there._open()[1].ref(system_address(node.mesh, 0))
        with pytest.raises(UnroutableError, match="may not ask"):
            await own.stop_children(1)
        with pytest.raises(UnroutableError, match="may not ask"):
            await there.group([own]).ask.stop_children(1)
        own.tell.give_up((0, 0, 0))
        async with asyncio.timeout(60):
            while not node.exchange.bad_messages:  # noqa: ASYNC110
                await asyncio.sleep(0.002)
        assert node.dead_letters == 0


async def test_a_guest_speaks_for_its_own_actors_only(host: Mesh) -> None:
    counter = await host.spawn(Counter, node=0, name="counter")
    async with Mesh.join(host.url or "") as there:
        registry: Any = there._registry
        registry.report(CellEnded(id=counter.address.id, reason=None))
        assert await there.get("counter").add(1) == 1
        assert host.get("counter") == counter


async def test_a_key_that_is_not_allowed_is_not_admitted_by_whoever_names_it(tmp_path: Path) -> None:
    generate(tmp_path, ["head"])
    async with Mesh(listen=ANY, keys=Keys.load(tmp_path / "head.secret")) as mesh:
        guests: Any = mesh._guests
        assert packing.unpack(guests._joined(packing.pack([VERSION, "x", "A" * 40])), lambda *_: None) == [
            0,
            f"the key {'A' * 40} is not allowed",
        ]


async def test_greetings_of_another_mesh_and_trace_contexts_that_are_none_are_refused(host: Mesh) -> None:
    exchange: Any = host._open()[1].exchange
    greeting = [envelope.HELLO, "another", 1, 1, exchange.url, None, 1, 0]
    with pytest.raises(CodecError, match="has not said hello"):
        exchange.intake._hello(b"1:1>0:1", greeting)
    ask = [envelope.ASK, 1, 0, "stop_children", [1], None, [None, [], 0, "nonsense"]]
    with pytest.raises(CodecError, match="traceparent"):
        exchange.by_index[1].serving.ask(ask)


def test_a_class_that_is_no_actor_is_not_started() -> None:
    with pytest.raises(SpawnError, match="zoo:Parcel is no Actor"):
        location.find(ClassLocation(module="zoo", qualname="Parcel", path=None))


def test_a_module_whose_name_only_begins_like_an_allowed_one_is_not_imported() -> None:
    imports = Imports(["company"])
    with pytest.raises(SpawnError, match="company_zoo may not be asked for"):
        imports.find(ClassLocation(module="company_zoo", qualname="Walker", path=None))
    assert Imports(["company_zoo"]).find(ClassLocation(module="company_zoo", qualname="Walker", path=None))

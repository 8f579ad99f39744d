"""Nodes in a Ray cluster. Ray itself is a stand-in whose tasks run in threads; `apart/test_ray.py` has the real one."""

import asyncio
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from zoo import Counter

from tinker_actors.actors import JoinError, Mesh, RayPlacement, SpawnError, on_ray
from tinker_actors.errors import ConfigError


class Ray:
    """The part of Ray's interface that a placement uses."""

    def __init__(self) -> None:
        self.util = SimpleNamespace(get_node_ip_address=lambda: "127.0.0.1")
        self.is_up = False
        self.options: list[dict[str, Any]] = []
        self.cancelled: list[Any] = []
        self.threads: list[threading.Thread] = []
        self.instead: Callable[..., None] | None = None

    def is_initialized(self) -> bool:
        return self.is_up

    def init(self, **_: Any) -> None:
        self.is_up = True

    def shutdown(self) -> None:
        self.is_up = False

    def cancel(self, node: Any, *, force: bool) -> None:
        assert force
        self.cancelled.append(node)

    def remote(self, **options: Any) -> Callable[[Callable[..., None]], Any]:
        def task(function: Callable[..., None], **more: Any) -> Any:
            def run(*args: Any) -> Any:
                self.options.append({**options, **more})
                ended: Future[None] = Future()

                def work() -> None:
                    try:
                        (self.instead or function)(*args)
                        ended.set_result(None)
                    except Exception as error:  # as a task's error reaches whoever waits for it
                        ended.set_exception(error)

                self.threads.append(threading.Thread(target=work, daemon=True))
                self.threads[-1].start()
                return SimpleNamespace(future=lambda: ended)

            return SimpleNamespace(options=lambda **named: task(function, **more, **named), remote=run)

        return task


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Ray:
    ray = Ray()
    monkeypatch.setitem(sys.modules, "ray", ray)
    return ray


async def test_all_other_nodes_are_tasks_that_end_with_the_mesh(ray: Ray) -> None:
    placement = RayPlacement(imports=["zoo"], num_gpus=1, retries=5)
    async with Mesh(nodes=3, placement=placement) as mesh:
        assert mesh.pids == {}
        counters = [await mesh.spawn(Counter, node=node) for node in (1, 2)]
        assert [await counter.add(2) for counter in counters] == [2, 2]
        described = await mesh.describe()
        assert len(described.nodes) == 3
        assert ray.options == [
            {"num_cpus": 1, "num_gpus": 1, "max_retries": 5, "name": name} for name in ("ray-1", "ray-2")
        ]
    for thread in ray.threads:
        thread.join(10)
        assert not thread.is_alive()
    assert not ray.is_up
    assert ray.cancelled == []
    with pytest.raises(ConfigError, match="has served a mesh already"):
        await placement.open()


async def test_a_cluster_that_the_program_uses_itself_goes_on(ray: Ray) -> None:
    ray.init()
    async with Mesh(nodes=2, placement=RayPlacement(imports=["zoo"])):
        pass
    assert ray.is_up


async def test_a_node_that_ends_while_it_starts_says_why(ray: Ray) -> None:
    def failing(*_: Any) -> None:
        raise ModuleNotFoundError("No module named 'app'")

    ray.instead = failing
    with pytest.raises(SpawnError, match="node ray-1 ended while it started: ModuleNotFoundError: No module named"):
        async with Mesh(nodes=2, placement=RayPlacement()):
            pass
    assert not ray.is_up


async def test_nodes_for_which_the_cluster_has_no_room_are_waited_for_and_then_cancelled(
    ray: Ray, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(on_ray, "LEAVE", 0.01)
    never = threading.Event()
    ray.instead = lambda *_: never.wait(60) and None
    with pytest.raises(JoinError, match="3 nodes did not come together"):
        async with Mesh(nodes=3, placement=RayPlacement(), start_timeout=0.2):
            pass
    assert len(ray.cancelled) == 2
    never.set()


async def test_a_cluster_that_cannot_be_reached_is_named(ray: Ray, monkeypatch: pytest.MonkeyPatch) -> None:
    def init(**_: Any) -> None:
        raise ConnectionError("nobody there")

    monkeypatch.setattr(ray, "init", init)
    with pytest.raises(SpawnError, match=r"no Ray cluster at 10\.0\.0\.1:6379: nobody there"):
        async with Mesh(nodes=2, placement=RayPlacement(address="10.0.0.1:6379")):
            pass


async def test_a_node_that_is_started_again_waits_until_its_former_self_is_gone() -> None:
    async with Mesh(listen="tcp://127.0.0.1:0") as mesh:
        url = mesh.url
        assert url is not None
        async with Mesh.join(url, name="ray-1"):
            later = asyncio.create_task(on_ray.be_a_node(url, None, "ray-1", ["zoo"], 30.0))
            with pytest.raises(JoinError, match="is in the mesh already"):
                await on_ray.be_a_node(url, None, "ray-1", ["zoo"], 0.0)
            assert not later.done()
        async with asyncio.timeout(60):
            while max(node.index for node in (await mesh.describe()).nodes) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        counter = await mesh.spawn(Counter, node=2)
        assert await counter.add(1) == 1
    await later


def test_what_does_not_fit_is_refused(ray: Ray, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="listens with keys of its own"):
        Mesh(nodes=2, listen="tcp://127.0.0.1:0", placement=RayPlacement())
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"pip install 'tinker-actors\[ray\]'"):
        RayPlacement()

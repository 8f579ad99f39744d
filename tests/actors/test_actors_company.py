"""Living with others: frameworks, running loops, several meshes, plain scripts."""

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.testclient import TestClient
from zoo import Chain, Counter

from tinker_actors.actors import AskCycleError, CodecError, Mesh


def make_app(nodes: int) -> Starlette:
    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with Mesh.test(nodes=nodes) as mesh:
            app.state.counter = await mesh.spawn(Counter, 5)
            yield

    async def add(request: Request) -> JSONResponse:
        return JSONResponse(await request.app.state.counter.add(int(request.path_params["n"])))

    return Starlette(routes=[Route("/add/{n:int}", add)], lifespan=lifespan)


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_mesh_lives_in_a_starlette_lifespan(nodes: int) -> None:
    for _ in range(2):  # the same process can start its application again
        with TestClient(make_app(nodes)) as client:
            assert [client.get("/add/1").json() for _ in range(3)] == [6, 7, 8]


def test_a_loop_that_already_runs_takes_one_mesh_after_another() -> None:
    """As in a notebook: each cell is a task of one loop, and a mesh may be entered in one and left in another."""

    async def start() -> Mesh:
        mesh = Mesh(nodes=2)
        await mesh.__aenter__()
        return mesh

    with asyncio.Runner() as runner:
        for _ in range(2):
            mesh = runner.run(start())
            counter = runner.run(mesh.spawn(Counter, 1))
            assert runner.run(counter.add(1)) == 2
            runner.run(mesh.__aexit__(None, None, None))


async def test_meshes_side_by_side_share_nothing() -> None:
    async with Mesh(nodes=2) as one, Mesh(nodes=2) as two, Mesh() as three:
        counters = [await mesh.spawn(Counter, i, name="counter") for i, mesh in enumerate((one, two, three))]
        assert [await counter.add(1) for counter in counters] == [1, 2, 3]
        assert len(set(counters)) == 3
        assert [mesh.get("counter") for mesh in (one, two, three)] == counters
        with pytest.raises(CodecError, match="another mesh; it can't be sent through this one"):
            await one.get("counter").add(two.get("counter"))
        await two.stop(counters[1])
        with pytest.raises(LookupError):
            two.get("counter")
        assert await counters[0].add(1) == 2


async def test_a_ref_of_another_mesh_that_was_sent_all_the_same_is_refused() -> None:
    async with Mesh() as one, Mesh() as two:
        assert one._node is not None
        assert two._node is not None
        data = one._node.codec.encode([await one.spawn(Counter)])
        assert one._node.codec.decode(data)
        with pytest.raises(CodecError, match="a ref of another mesh"):
            two._node.codec.decode(data)


async def test_an_actor_of_one_mesh_may_ask_one_of_another() -> None:
    """Both may well be the first of their meshes: that is no cycle. One that goes through both meshes is."""
    async with Mesh() as one, Mesh() as other:
        first, second = await one.spawn(Chain), await other.spawn(Chain)
        assert await first.through([second]) == "end"
        with pytest.raises(AskCycleError):
            await first.through([second, first])


def test_meshes_on_two_loops_in_two_threads_do_not_meet() -> None:
    async def work(start: int) -> list[int]:
        async with Mesh(nodes=2) as mesh:
            counter = await mesh.spawn(Counter, start)
            return [await counter.add(1) for _ in range(50)]

    async def both() -> list[list[int]]:
        return await asyncio.gather(*(asyncio.to_thread(asyncio.run, work(start)) for start in (0, 100)))

    assert asyncio.run(both()) == [list(range(1, 51)), list(range(101, 151))]


async def test_a_mesh_leaves_signals_loop_policy_and_logging_alone() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)]
    policy, handlers, environment = asyncio.get_event_loop_policy(), list(logging.root.handlers), dict(os.environ)
    async with Mesh(nodes=2) as mesh:
        await (await mesh.spawn(Counter)).add(1)
        assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)] == before
    assert asyncio.get_event_loop_policy() is policy
    assert logging.root.handlers == handlers
    assert dict(os.environ) == environment


async def test_a_mesh_may_be_entered_in_a_task_of_a_group_and_used_from_others() -> None:
    started: asyncio.Future[Mesh] = asyncio.get_running_loop().create_future()
    done = asyncio.Event()

    async def host() -> None:
        async with Mesh(nodes=2) as mesh:
            started.set_result(mesh)
            await done.wait()

    async with asyncio.TaskGroup() as group:
        group.create_task(host())
        counter = await (await started).spawn(Counter)
        assert await asyncio.gather(*(counter.add(1) for _ in range(5))) == [1, 2, 3, 4, 5]
        done.set()


def test_a_plain_script_without_a_guard_runs(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "import asyncio\n"
        "from tinker_actors.actors import Actor, Mesh\n"
        "class Adder(Actor):\n"
        "    async def add(self, a, b):\n"
        "        return a + b\n"
        "async def main():\n"
        "    async with Mesh(nodes=2) as mesh:\n"
        "        print(await (await mesh.spawn(Adder)).add(1, 2))\n"
        "asyncio.run(main())\n"
    )
    run = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=250, check=True
    )
    assert run.stdout == "3\n"


FORKS = """
import asyncio, atexit, multiprocessing, pathlib, time
from tinker_actors.actors import Actor, Mesh

class Adder(Actor):
    def __init__(self):
        self.sum = 0
    async def add(self, n):
        self.sum += n
        return self.sum
    async def at_exit(self, path):
        atexit.register(pathlib.Path(path).touch)

def forked(mesh, adder, said, stay):
    async def ask():
        await adder.add(1)
    async def spawn():
        await mesh.spawn(Adder)
    for use in (ask, spawn, lambda: adder.tell.add(1)):
        try:
            asyncio.run(coroutine) if (coroutine := use()) else None
        except Exception as error:
            said.put(f"{type(error).__name__}: {error}")
        else:
            said.put("nothing")
    stay.acquire()

async def main():
    context = multiprocessing.get_context("fork")
    said, stay = context.SimpleQueue(), context.Semaphore(0)
    async with Mesh(nodes=2) as mesh:
        adder = await mesh.spawn(Adder)
        await adder.at_exit("ended")
        process = context.Process(target=forked, args=(mesh, adder, said, stay))
        process.start()
        for _ in range(3):
            print(await asyncio.to_thread(said.get))
        print(await adder.add(1))
    print(pathlib.Path("ended").exists())
    stay.release()
    process.join()
    print(process.exitcode)

asyncio.run(main())
"""


def test_a_forked_process_is_told_that_the_mesh_is_not_its_own_and_holds_up_nobody(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(FORKS)
    run = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=250)
    refused = "UnroutableError: the mesh is in the process that this one was forked from"
    not_running = "UnroutableError: the mesh is not running: use it inside `async with`"
    expected = [refused, not_running, refused, "1", "True", "0"]
    assert run.stdout.splitlines() == expected, run.stderr

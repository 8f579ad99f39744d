"""What a type checker makes of refs."""

import json
import subprocess
import sys
from pathlib import Path

PROGRAM = """
from collections.abc import AsyncIterator

from tinker_actors.actors import Actor, Barrier, Group, Mesh


class Counter(Actor):
    def __init__(self, start: int = 0) -> None:
        self.n = start

    async def add(self, n: int) -> int:
        self.n += n
        return self.n

    async def count_to(self, n: int) -> AsyncIterator[int]:
        for i in range(n):
            yield i


class Holder(Actor):
    def __init__(self, counter: Counter) -> None:
        self.counter = counter

    async def held(self) -> Counter:
        return self.counter


async def main() -> None:
    async with Mesh(nodes=2) as mesh:
        reveal_type(mesh)  # Mesh
        counter = await mesh.spawn(Counter, 5, name="counter")
        reveal_type(counter)  # Counter
        reveal_type(await counter.add(1))  # int
        reveal_type(await counter.options(timeout=2.0).add(1))  # int
        async for item in counter.stream.count_to(3):
            reveal_type(item)  # int
        holder = await mesh.spawn(Holder, counter)
        reveal_type(await (await holder.held()).add(1))  # int
        counter.tell.add(1)
        group: Group = mesh.group([counter])
        barrier: Barrier = await mesh.barrier([counter, holder, "name"])
        reveal_type(await barrier.arrive(counter))  # int
        reveal_type(group.refs)  # tuple[ActorRef, ...]
        await counter.add("one")  # error: reportArgumentType
        await counter.multiply(2)  # error: reportAttributeAccessIssue
        await mesh.spawn(dict)  # error: reportArgumentType
        counter.options(patience=1)  # error: reportCallIssue
"""


def test_refs_have_the_types_of_their_actors(tmp_path: Path) -> None:
    source = Path(__file__).parents[2] / "src"
    (tmp_path / "program.py").write_text(PROGRAM)
    settings = {"typeCheckingMode": "standard", "extraPaths": [str(source)], "include": ["program.py"]}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    run = subprocess.run(
        [sys.executable, "-m", "basedpyright", "--outputjson", "--pythonpath", sys.executable],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    found: dict[int, str] = {}
    for item in json.loads(run.stdout)["generalDiagnostics"]:
        message = item["message"]
        revealed = message.rpartition(' is "')[2].rstrip('"') if item["severity"] == "information" else ""
        found[item["range"]["start"]["line"]] = revealed or f"error: {item['rule']}"
    lines = PROGRAM.split("\n")
    expected = {number: line.partition("  # ")[2] for number, line in enumerate(lines) if "  # " in line}
    assert found == expected

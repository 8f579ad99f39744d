"""The house: what a room may import. The plan is in CONTRIBUTING.md."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent / "src" / "tinker_actors"
FLOORS = (
    ("errors", "lazy", "telemetry", "own_settings"),
    ("actors", "data", "kernels"),
    ("policies", "models"),
    ("training", "sampling", "environments", "coordinator"),
    ("algorithms", "rollouts", "services"),
    ("scheduler",),
    ("gateway", "cli", "console", "client", "__main__"),
)
FLOOR_OF = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
KNOWS_NOTHING_OF = {
    "actors": {"data", "kernels"},
    "data": {"actors", "kernels", "telemetry"},
    "kernels": {"actors", "data"},
    "training": {"environments", "coordinator", "sampling"},
    "sampling": {"environments", "coordinator", "training"},
    "environments": {"training"},
    "coordinator": {"training"},
}


@cache
def imports() -> tuple[tuple[str, str, str], ...]:
    """Each import of one room by another: importer, imported, and the place; those for type checkers alone too."""
    return tuple(found())


def found() -> Iterator[tuple[str, str, str]]:
    for file in PACKAGE.rglob("*.py"):
        path = file.relative_to(PACKAGE)
        room = path.parts[0].removesuffix(".py")
        if room == "__init__":
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{path}:{node.lineno} imports relatively"
                whole = node.module == "tinker_actors"
                names = [f"tinker_actors.{alias.name}" for alias in node.names] if whole else [node.module or ""]
            for name in names:
                top, _, rest = name.partition(".")
                if top == "tinker_actors" and (other := rest.partition(".")[0]) != room:
                    yield room, other, f"{path}:{node.lineno}"


def test_every_room_has_a_floor():
    rooms = {entry.stem for entry in PACKAGE.iterdir() if entry.suffix == ".py" or (entry / "__init__.py").is_file()}
    assert rooms - {"__init__"} == set(FLOOR_OF)


def test_imports_go_down_only():
    assert [entry for entry in imports() if FLOOR_OF[entry[0]] < FLOOR_OF.get(entry[1], len(FLOORS))] == []


def test_rooms_import_each_other_in_no_circle():
    below: dict[str, set[str]] = {room: set() for room in FLOOR_OF}
    for room, other, _ in imports():
        below[room].add(other)
    while below:
        ground = {room for room, others in below.items() if not others & below.keys()}
        assert ground, f"rooms in circles: {below}"
        below = {room: others for room, others in below.items() if room not in ground}


def test_rooms_know_nothing_of_what_is_not_theirs():
    assert [entry for entry in imports() if entry[1] in KNOWS_NOTHING_OF.get(entry[0], ())] == []

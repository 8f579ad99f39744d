"""What is passed and means nothing is refused at once, by its name, with the value seen and what would be right."""

import math
from collections.abc import Callable
from typing import Any

import pytest
from zoo import Counter, Log

from tinker_actors.actors import Mesh, RestartPolicy, deadline
from tinker_actors.errors import ConfigError

NO_SECONDS = [math.nan, math.inf, "1", True]
NO_COUNT = ["2", 2.5, True, -1]

OF_A_MESH = [
    *[("nodes", value) for value in [*NO_COUNT, 0]],
    *[("max_message", value) for value in [*NO_COUNT, 0]],
    *[("shared_memory", value) for value in NO_COUNT],
    *[(name, value) for name in ("stop_timeout", "start_timeout", "ping", "patience") for value in [*NO_SECONDS, -1]],
    *[("busy_poll", value) for value in [*NO_SECONDS, -1, 0.02]],
    *[(name, value) for name in ("slow_handler", "blocked_loop", "ask_cycle") for value in [*NO_SECONDS, 0]],
    ("placement", "ray"),
    ("restart", "always"),
    ("env", {"A": 1}),
    ("env", "A=1"),
    ("loop", "trio"),
    ("keys", "keys/head.secret"),
    ("imports", "app"),  # whose letters would be prefixes
    ("imports", [1]),
    ("name", ""),
    ("name", "two\nlines"),
    ("name", "x" * 513),
]


@pytest.mark.parametrize(("name", "value"), OF_A_MESH)
def test_a_mesh_refuses_it(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"^{name}.* got "):
        Mesh(**{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [("timeout", 0), ("patience", "3"), ("imports", "app"), ("keys", "k"), ("name", 5), ("name", "x" * 513)],
)
def test_a_node_that_joins_refuses_it(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"^{name}.* got "):
        Mesh.join("tcp://127.0.0.1:1", **{name: value})


@pytest.mark.parametrize("value", [7000, "head:7000", "tcp://head", "tcp://head:99999"])
def test_an_address_is_one(value: Any) -> None:
    for make in (lambda: Mesh(listen=value), lambda: Mesh.join(value)):
        with pytest.raises(ConfigError, match=r"tcp://HOST:PORT.* got "):
            make()


@pytest.mark.parametrize("allow", ["leaks", ["leak"]])
def test_what_a_checked_mesh_allows_is_a_list_of_what_there_is(allow: Any) -> None:
    with pytest.raises(ConfigError, match=r"^allow .*leaks, failures, dead_letters; got "):
        Mesh.test(allow=allow)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("max_restarts", value) for value in NO_COUNT],
        *[(name, value) for name in ("within", "backoff", "backoff_max") for value in [*NO_SECONDS, -1]],
        ("within", 0),
        ("mode", "on_failure"),
        ("strategy", "all_for_one"),
    ],
)
def test_a_restart_policy_refuses_it(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"^{name} .* got "):
        RestartPolicy(**{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("mailbox", value) for value in [*NO_COUNT, 0]],
        *[("node", value) for value in ["1", 1.0, True]],
        *[("name", value) for value in ["", 5, "x" * 513, "red\x1b[31m"]],
        *[("restart", value) for value in ["always", 3]],
    ],
)
async def test_a_spawn_refuses_it_here_and_from_another_process(mesh: Mesh, name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"^{name} .* got "):
        await mesh.spawn(Counter, **{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("timeout", value) for value in NO_SECONDS],
        *[("buffer", value) for value in [*NO_COUNT, 0]],
        ("wait", "yes"),
    ],
)
async def test_options_refuse_it(mesh: Mesh, name: str, value: Any) -> None:
    counter = await mesh.spawn(Counter)
    with pytest.raises(ConfigError, match=rf"^{name} .* got "):
        counter.options(**{name: value})
    if name != "buffer":
        with pytest.raises(ConfigError, match=rf"^{name} .* got "):
            mesh.group([counter]).options(**{name: value})


CALLS: list[tuple[str, Callable[[Mesh, Any], Any]]] = [
    ("timeout", lambda mesh, log: mesh.stop(log, timeout=-1)),
    ("timeout", lambda mesh, log: mesh.barrier([log], timeout="soon")),  # type: ignore[arg-type]
    ("parties", lambda mesh, log: mesh.barrier("driver")),
    ("a party", lambda mesh, log: mesh.barrier([1])),  # type: ignore[list-item]
    ("count", lambda mesh, log: mesh.wait_for_nodes(0)),
    ("timeout", lambda mesh, log: mesh.wait_for_nodes(1, timeout=math.nan)),
    ("shape", lambda mesh, log: mesh.buffer((2, -1))),
    ("quorum", lambda mesh, log: mesh.group([log]).quorum(2)),
    ("deadline", lambda mesh, log: deadline("1")),  # type: ignore[arg-type]
]


@pytest.mark.parametrize("number", range(len(CALLS)))
async def test_a_call_refuses_it(number: int) -> None:
    name, call = CALLS[number]
    async with Mesh() as mesh:
        log = await mesh.spawn(Log)
        with pytest.raises(ConfigError, match=rf"^{name} .* got "):
            await call(mesh, log)


async def test_a_deadline_that_has_passed_already_is_no_mistake(mesh: Mesh) -> None:
    counter = await mesh.spawn(Counter)
    with pytest.raises(TimeoutError):
        await counter.options(timeout=-0.1).add(1)
    with pytest.raises(TimeoutError):
        async with deadline(-0.1):
            await counter.add(1)
    assert await counter.value() == 0

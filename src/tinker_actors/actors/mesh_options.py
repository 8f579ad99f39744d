"""What the arguments of a mesh, and of a node that joins one, must be."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, cast

from tinker_actors.actors.checks import check_count, check_name, check_seconds, check_type
from tinker_actors.actors.endpoint import Endpoint
from tinker_actors.actors.keys import Keys
from tinker_actors.actors.restart import RestartPolicy
from tinker_actors.errors import ConfigError

LONGEST_POLL = 0.01  # seconds


def check_times(stop_timeout: Any, start_timeout: Any, ping: Any, patience: Any, busy_poll: Any) -> None:
    """The arguments of these names, each in seconds."""
    check_seconds("stop_timeout", stop_timeout, least=0)
    check_seconds("start_timeout", start_timeout, above=0)
    check_seconds("ping", ping, above=0)
    check_seconds("patience", patience, above=0)
    if busy_poll is not None:
        check_seconds("busy_poll", busy_poll, least=0)
        if busy_poll > LONGEST_POLL:
            raise ConfigError(f"busy_poll is a time in seconds from 0 to {LONGEST_POLL}, got {busy_poll}")


def check_sizes(nodes: Any, max_message: Any, shared_memory: Any) -> None:
    """How many processes, and how many bytes."""
    check_count("nodes, this process included,", nodes, 1)
    check_count("max_message", max_message, 1)
    check_count("shared_memory", shared_memory, 0)


def check_processes(placement: Any, restart: Any, env: Any, loop: Any, name: Any) -> None:
    """Where and how the processes run."""
    if placement is not None and not callable(getattr(placement, "open", None)):
        raise ConfigError(f"placement is a Placement, such as RayPlacement(), or None; got {placement!r}")
    if restart is not None:
        check_type("restart", restart, RestartPolicy, "a RestartPolicy")
    if env is not None:
        check_type("env", env, Mapping, "a mapping of names to values")
        for item in env.items():
            if not all(isinstance(each, str) for each in item):
                raise ConfigError(f"env maps texts to texts; got {item[0]!r}: {item[1]!r}")
    if loop not in ("auto", "asyncio"):
        raise ConfigError(f"loop is 'auto' or 'asyncio'; got {loop!r}")
    if name is not None:
        check_name("name", name)


def check_imports(imports: Any) -> None:
    """Modules by prefix. One text is refused: its letters would be taken for prefixes."""
    if imports is None:
        return
    is_list = isinstance(imports, Collection) and not isinstance(imports, str)
    if not is_list or not all(isinstance(each, str) for each in cast("Collection[Any]", imports)):
        raise ConfigError(f"imports is a list of modules' names, such as ['app']; got {imports!r}")


def check_keys(keys: Any) -> None:
    """A host's own keys, and whom it allows."""
    if keys is not None:
        check_type("keys", keys, Keys, "what Keys.load gives")


def checked_endpoint(listen: Any, keys: Any, placement: Any) -> Endpoint | None:
    """Where to listen."""
    check_keys(keys)
    if placement is not None and (listen is not None or keys is not None):
        raise ConfigError("a mesh with a placement listens with keys of its own; leave listen and keys out")
    endpoint = None if listen is None else Endpoint.parse(listen)
    if endpoint is not None and keys is None and not endpoint.is_loopback:
        raise ConfigError(
            f"{listen} can be reached from other hosts: listening there needs keys (`keys=`, see "
            "`tinker-actors keys mesh`); without keys listen on 127.0.0.1"
        )
    return endpoint

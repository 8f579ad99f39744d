"""Finding an actor class again in another process of the same program."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import sys
from types import ModuleType
from typing import Any

from tinker_actors.actors import main_module
from tinker_actors.actors.actor import Actor
from tinker_actors.actors.control import ClassLocation
from tinker_actors.actors.errors import SpawnError


def locate(cls: type[Actor]) -> ClassLocation:
    """Where `cls` is defined.

    Raises:
        SpawnError: no other process can find it (a class inside a function, in a shell or in a notebook).
    """
    module = main_module.public_name(cls.__module__)
    if "<locals>" in cls.__qualname__:
        raise SpawnError(f"{module}.{cls.__qualname__} is defined inside a function; a child process can't import it")
    path: str | None = None
    if module == main_module.MAIN:
        script = main_module.describe()
        if script.module is None and script.path is None:
            raise SpawnError(
                f"{cls.__qualname__} is defined in an interactive session or with -c; a child process can't import it: "
                "put it into a file, or spawn it with node=0"
            )
    else:
        try:
            path = inspect.getfile(cls)
        except (TypeError, OSError):
            path = None
    return ClassLocation(module=module, qualname=cls.__qualname__, path=path and os.path.abspath(path))


def find(location: ClassLocation) -> type[Actor]:
    """The class at `location`, importing its module if need be.

    Raises:
        SpawnError: it can't be imported, or is no Actor.
    """
    module = main_module.load() if location.module == main_module.MAIN else _module(location)
    found: Any = module
    for part in location.qualname.split("."):
        found = getattr(found, part, None)
    if isinstance(found, type) and issubclass(found, Actor):
        return found
    error = SpawnError(f"{location.module}:{location.qualname} is {'not there' if found is None else 'no Actor'}")
    error.__cause__ = main_module.load_failure() if location.module == main_module.MAIN else None
    raise error


def _module(location: ClassLocation) -> ModuleType:
    loaded = sys.modules.get(location.module)
    if loaded is not None and _is_from(loaded, location.path):
        return loaded
    try:
        spec = importlib.util.find_spec(location.module)
    except (ImportError, ValueError):
        spec = None
    try:
        if spec is not None and (location.path is None or _same(spec.origin, location.path)):
            return importlib.import_module(location.module)
        if location.path is None:
            raise SpawnError(f"module {location.module} can't be found in the child process")
        return _load(location.module, location.path)
    except SpawnError:
        raise
    except Exception as error:  # the module's own top-level code
        raise SpawnError(f"module {location.module} can't be imported: {type(error).__name__}: {error}") from error


def _load(name: str, path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise SpawnError(f"{path} can't be imported as a module")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:  # a script may exit: half a module must not stay
        del sys.modules[name]
        raise
    return module


def _is_from(module: ModuleType, path: str | None) -> bool:
    return path is None or _same(getattr(module, "__file__", None), path)


def _same(origin: str | None, path: str) -> bool:
    return origin is not None and os.path.realpath(origin) == os.path.realpath(path)

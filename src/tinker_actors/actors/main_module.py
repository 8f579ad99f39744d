"""The program's own script in a child process: loaded when first needed, as a module of another name.

In the parent it is `__main__`. A child loads it only if a class in it is asked for, so a script whose actors live in
importable modules is never run twice. The script runs in the child while an event loop runs, so an unguarded
`asyncio.run(main())` at its end refuses to start; the classes defined above it are there all the same.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import sys
from dataclasses import dataclass
from types import ModuleType

MAIN = "__main__"
ALIAS = "__tinker_main__"

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class MainScript:
    """Where the parent's `__main__` came from."""

    module: str | None  # importable name, if it was run with `python -m`
    path: str | None  # the file, if it was run by path


def describe() -> MainScript:
    """The script of this process; of a child, its parent's."""
    if _script is not None:
        return _script
    main = sys.modules.get(MAIN)
    spec = getattr(main, "__spec__", None)
    path = getattr(main, "__file__", None)
    return MainScript(
        module=None if spec is None else spec.name,
        path=os.path.abspath(path) if path is not None and os.path.isfile(path) else None,
    )


_script: MainScript | None = None
_failure: BaseException | None = None


def adopt(script: MainScript) -> None:
    """In a child: remember the parent's script."""
    global _script
    _script = script


def public_name(module: str) -> str:
    """The name of a module as the parent knows it."""
    return MAIN if module == ALIAS else module


def load() -> ModuleType | None:
    """The program's script as a module, loaded at most once; None where there is none (a shell, a notebook, -c)."""
    global _failure
    if _script is None:
        return sys.modules.get(MAIN)
    loaded = sys.modules.get(ALIAS)
    if loaded is not None:
        return loaded
    if _script.module is not None:
        spec = importlib.util.find_spec(_script.module)
        spec = spec and importlib.util.spec_from_file_location(ALIAS, spec.origin)
    elif _script.path is not None:
        spec = importlib.util.spec_from_file_location(ALIAS, _script.path)
    else:
        return None
    if spec is None or spec.loader is None:
        return None
    module = importlib.util.module_from_spec(spec)
    if _script.module is not None:
        module.__package__ = _script.module.rpartition(".")[0]
    sys.modules[ALIAS] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # an unguarded main() can't run here; what stands above it is defined
        _failure = error
        logger.debug("the program's script ended with %r while it was loaded for its classes", error)
    return module


def load_failure() -> BaseException | None:
    """What the script raised while it was loaded, if anything."""
    return _failure

"""Names of a package that are looked up when first used (PEP 562), so that importing it loads nothing heavy."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_names(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """A package's module-level `__getattr__`.

    Args:
        package: The package, as its `__name__`.
        homes: For each name the module under the package that defines it; one beside the package begins with a dot.
    """

    def resolve(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(f".{homes[name]}", package), name)
        setattr(sys.modules[package], name, value)
        return value

    return resolve

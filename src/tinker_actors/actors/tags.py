"""Which classes may cross a process boundary: by registered tag, never by pickle.

Dataclasses, enums and exceptions under `tinker_actors.` cross by themselves. Others are registered with `@wire`, in
every process that reads them; in a class's home module that happens by importing it.
"""

from __future__ import annotations

import enum
import importlib
import sys
from collections.abc import Callable
from typing import Any, TypeVar, overload

from tinker_actors.actors import main_module
from tinker_actors.actors.errors import CodecError

T = TypeVar("T", bound=type)

PACKAGE = "tinker_actors"
TAG_LIMIT = 512  # characters

_classes: dict[str, type] = {}
_tags: dict[type, str] = {}


@overload
def wire(cls: T, /) -> T: ...
@overload
def wire(*, tag: str) -> Callable[[T], T]: ...
def wire(cls: Any = None, /, *, tag: str | None = None) -> Any:
    """Register a dataclass, an enum or an exception class; as `@wire` or `@wire(tag="shop:Order")`.

    The tag defaults to `module:QualName`. Registering another class under a tag replaces the first only if it is
    the same class loaded again.

    Raises:
        TypeError: the class is none of the three.
        ValueError: the tag belongs to another class.
    """

    def register(cls: type) -> type:
        if not _is_known(cls):
            raise TypeError(f"@wire takes a dataclass, an enum or an exception class, got {cls!r}")
        name = tag or default_tag(cls)
        other = _classes.get(name)
        if other is not None and other is not cls and default_tag(other) != default_tag(cls):
            raise ValueError(f"wire tag {name!r} belongs to {default_tag(other)}, it can't name {default_tag(cls)} too")
        _classes[name] = cls
        _tags[cls] = name
        return cls

    return register if cls is None else register(cls)


def default_tag(cls: type) -> str:
    """`module:QualName`, the same in the parent's `__main__` and in its copy in a child."""
    return f"{main_module.public_name(cls.__module__)}:{cls.__qualname__}"


def tag_of(cls: type) -> str | None:
    """The tag under which instances of `cls` travel, or None if they can't."""
    tag = _tags.get(cls)
    if tag is None and cls.__module__.partition(".")[0] == PACKAGE and _is_open(cls):
        tag = _tags[cls] = default_tag(cls)
        _classes[tag] = cls
    return tag


def checked(tag: Any) -> str:
    """What came as a tag, if it can be one.

    Raises:
        CodecError: it can't.
    """
    if not isinstance(tag, str) or len(tag) > TAG_LIMIT:
        raise CodecError(f"a class's tag is text of at most {TAG_LIMIT} characters")
    return tag


def find(tag: str) -> type | None:
    """The class that a tag names. Only modules of this package, and the program's own script, are imported for it."""
    cls = _classes.get(tag)
    if cls is not None:
        return cls
    module_name, _, qualname = tag.partition(":")
    if module_name == main_module.MAIN:
        main_module.load()
        return _classes.get(tag)
    if module_name.partition(".")[0] != PACKAGE or not qualname:
        return None
    try:
        found: Any = sys.modules.get(module_name) or importlib.import_module(module_name)
    except ImportError:
        return None
    for part in qualname.split("."):
        found = getattr(found, part, None)
    if isinstance(found, type) and found.__module__ == module_name and _is_open(found):
        _tags[found] = tag
        _classes[tag] = found
        return found
    return None


def _is_open(cls: type) -> bool:
    return "<locals>" not in cls.__qualname__ and _is_known(cls)


def _is_known(cls: type) -> bool:
    return is_dataclass(cls) or issubclass(cls, enum.Enum | Exception)


def is_dataclass(cls: Any) -> bool:
    """Whether a class is a dataclass."""
    return hasattr(cls, "__dataclass_fields__")

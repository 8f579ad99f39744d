"""Exceptions as data: which types cross as themselves, and how they are taken apart and put together.

Builtin exceptions, those of `tinker_actors` and those registered with `@wire` arrive as their own type, with the
remote traceback as `__cause__`. All others arrive as `RemoteError`, within one process too, so that a program means
the same on one node and on many.
"""

from __future__ import annotations

import asyncio
import builtins
import copy
import traceback
from typing import Any, TypeVar, cast

from tinker_actors.actors import tags
from tinker_actors.actors.errors import RemoteError, RemoteTraceback

E = TypeVar("E", bound=BaseException)

TEXT_LIMIT = 32_000  # characters of a traceback that travel


def is_portable(kind: type[BaseException]) -> bool:
    """Whether exceptions of this type arrive as themselves."""
    if not issubclass(kind, Exception) or issubclass(kind, StopIteration | StopAsyncIteration):
        return False
    return getattr(builtins, kind.__name__, None) is kind or tags.tag_of(kind) is not None


def portable(error: BaseException) -> Exception:
    """`error` itself if its type crosses, else the `RemoteError` that stands for it."""
    if is_portable(type(error)):
        return cast(Exception, error)
    if isinstance(error, asyncio.CancelledError):
        stand_in = RemoteError("asyncio.CancelledError", "the handler cancelled itself", text_of(error))
    else:
        stand_in = RemoteError(f"{type(error).__module__}.{type(error).__qualname__}", str(error), text_of(error))
    stand_in.__cause__ = error
    return stand_in


def text_of(error: BaseException) -> str:
    """The formatted traceback, causes and notes included; the middle is cut from a very long one."""
    text = "".join(traceback.format_exception(error))
    if len(text) > TEXT_LIMIT:
        half = TEXT_LIMIT // 2
        text = f"{text[:half]}\n... {len(text) - TEXT_LIMIT} characters left out ...\n{text[-half:]}"
    return text


def settled(error: BaseException) -> BaseException:
    """What is to be kept of why an actor failed: a copy without the frames that it came through, but with their text.

    Those hold the actor itself, and whatever its handlers worked on.
    """
    if error.__traceback__ is error.__cause__ is error.__context__ is None:
        return error
    kind: type[BaseException] = type(error)
    words, text = str(error), text_of(error)
    kept: BaseException
    try:
        if isinstance(error, BaseExceptionGroup):
            group = cast("BaseExceptionGroup[BaseException]", error)
            kept = group.derive([settled(member) for member in group.exceptions])
        elif kind.__module__ == "builtins":
            kept = copy.copy(error)
        else:
            kept = _bare(kind, list(error.args))
            vars(kept).update(vars(error))
    except Exception:  # a class that can't be copied
        kept = RemoteError(f"{kind.__module__}.{kind.__qualname__}", words, text)
    kept.__cause__ = RemoteTraceback(text)
    return kept


def take_apart(error: BaseException) -> list[Any]:
    """[tag, args, attributes, traceback text] of a portable error, or of its stand-in."""
    error = portable(error)
    kind = type(error)
    tag = tags.tag_of(kind) or f"builtins:{kind.__name__}"
    attributes = {key: value for key, value in vars(error).items() if not key.startswith("__")}
    cause = error.__cause__
    text = cause.text if isinstance(cause, RemoteTraceback) else text_of(error)
    # Some builtins (OSError's file name) need more than `args` to be made again; `__reduce__` knows what.
    made_from: Any = error.__reduce__()[1] if kind.__module__ == "builtins" else error.args
    return [tag, list(made_from), attributes, text]


def put_together(parts: list[Any]) -> Exception:
    """The exception that `take_apart` described; `RemoteError` where its class is not known here."""
    tag, args, attributes, text = parts
    kind = exception_class(tag)
    if kind is None:
        return RemoteError(tag, ", ".join(map(str, args)), text)
    try:
        # Builtins keep state that only their constructor sets; others may take other arguments than their `args`.
        error = kind(*args) if kind.__module__ == "builtins" else _bare(kind, args)
    except Exception:  # a constructor that its own args don't satisfy
        return RemoteError(tag, ", ".join(map(str, args)), text)
    if kind.__module__ != "builtins":
        error.args = tuple(args)
    for name, value in attributes.items():
        setattr(error, name, value)
    error.__cause__ = RemoteTraceback(text)
    return error


def exception_class(tag: str) -> type[Exception] | None:
    """The exception class that a tag names, or None."""
    home, _, name = tag.partition(":")
    kind = getattr(builtins, name, None) if home == "builtins" else tags.find(tag)
    return kind if isinstance(kind, type) and issubclass(kind, Exception) else None


def _bare(kind: type[E], args: list[Any]) -> E:
    """An instance whose `__init__` was not run; several builtin bases leave only one `__new__` that fits."""
    for base in kind.__mro__:
        if "__new__" in vars(base):
            try:
                return base.__new__(kind, *args)
            except TypeError:
                continue
    raise TypeError(f"{kind.__qualname__} can't be made from {args!r}")

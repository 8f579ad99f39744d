"""What the environments of all libraries have in common: how they are opened by name, seeded and told apart."""

from __future__ import annotations

import difflib
import importlib
import inspect
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Literal, Self

from tinker_actors.environments.environment import Environment, Isolation
from tinker_actors.errors import ConfigError


def required(package: str, extra: str) -> None:
    """Import a package of an extra.

    Raises:
        ConfigError: It isn't installed; names the extra.
    """
    try:
        importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.partition(".")[0] != package.partition(".")[0]:
            raise ConfigError(
                f"package {package!r} can't be imported, because it lacks {error.name!r}; what it needs comes with "
                f"pip install 'tinker-actors[{extra}]'"
            ) from error
        raise ConfigError(
            f"environments of this kind need the package {package!r}: pip install 'tinker-actors[{extra}]'"
        ) from error


def unknown(kind: str, name: str, known: Iterable[str]) -> ConfigError:
    """The error for a name that a library doesn't know, with what comes close."""
    close = difflib.get_close_matches(name, list(known), n=3)
    hint = f"did you mean {' or '.join(map(repr, close))}?" if close else "nothing that it knows comes close"
    return ConfigError(f"{kind} has no environment {name!r}; {hint}")


class LibraryEnvironment(Environment):
    """Wraps an environment of another library.

    Args:
        max_turns: How many steps an episode may take; None for what the library says, else 100.
        seeded_by: What the library's seed is derived from: the `task`, which the episodes of a group share, or the
            `episode`, whose luck is its own. The library draws both from the one seed that it takes.

    Attributes:
        library: What names of its environments begin with.
    """

    library: ClassVar[str]
    isolation: ClassVar[Isolation | None] = "thread"
    max_turns = 100

    def __init__(self, *, max_turns: int | None = None, seeded_by: Literal["task", "episode"] = "task") -> None:
        if seeded_by not in ("task", "episode"):
            raise ConfigError(f"option 'seeded_by' is {seeded_by!r}; 'task' or 'episode' is needed")
        self._by_task = seeded_by == "task"
        if max_turns is not None:
            self.max_turns = max_turns

    @classmethod
    @abstractmethod
    def opened(cls, target: str, arguments: Mapping[str, Any]) -> Any:
        """What the library makes of a name and arguments; the constructor of this class takes it.

        Raises:
            ConfigError: The library doesn't know the name.
        """

    @classmethod
    def named(cls, target: str, options: Mapping[str, Any]) -> type[Environment]:
        """A class for an environment of a given name, which takes the same options.

        Options that the constructor names are its own, the rest go to the library, as do those in `arguments`.

        Raises:
            ConfigError: The library doesn't know the name, or refuses what it is given.
        """
        source = f"{cls.library}:{target}"
        sample = cls._made(source, target, options)

        found_out = sample.found_out()

        def make(self: LibraryEnvironment, **given: Any) -> None:
            own, theirs = cls.parted(given)
            cls.__init__(self, cls.opened(target, theirs), **{**found_out, **own})  # pyright: ignore[reportCallIssue]

        body = {"__init__": make, "seats": sample.seats, "max_turns": sample.max_turns, "__module__": cls.__module__}
        sample.let_go()
        return type(source, (cls,), body)

    @classmethod
    def _made(cls, source: str, target: str, options: Mapping[str, Any]) -> Self:
        own, theirs = cls.parted(options)
        # The boundary to a library that makes an environment of a user's options: whatever it raises is about them.
        try:
            return cls(cls.opened(target, theirs), **own)  # pyright: ignore[reportCallIssue]
        except ConfigError:
            raise
        except Exception as error:  # of the library: any failure is named in one line
            given = f" with {dict(options)}" if options else ""
            raise ConfigError(
                f"environment {source!r} can't be made{given}: {type(error).__name__}: {error}"
            ) from error

    def found_out(self) -> Mapping[str, Any]:
        """Options that took a while to find out, for other instances to be made with."""
        return {}

    def let_go(self) -> None:
        """Release an instance that was made only to see what it is like."""
        self.close()

    @classmethod
    def parted(cls, options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Options of this class, and those of the library."""
        known = {
            name
            for base in cls.__mro__
            if "__init__" in vars(base) and base is not object
            for name, parameter in inspect.signature(base.__init__).parameters.items()
            if parameter.kind is parameter.KEYWORD_ONLY
        }
        own = {key: value for key, value in options.items() if key in known}
        theirs = {key: value for key, value in options.items() if key not in known and key != "arguments"}
        more = options.get("arguments", {})
        if not isinstance(more, Mapping):
            raise ConfigError(f"option 'arguments' is {more!r}; a table of arguments for the library is needed")
        return own, {**theirs, **more}

    def library_seed(self, seed: int) -> int:
        """The library's seed for a task, between 0 and 2^31 - 1."""
        return (seed if self._by_task else self.luck) & 0x7FFFFFFF

"""A mesh for tests: it fails at its end if the test left something unattended."""

from __future__ import annotations

import asyncio
import contextlib
import enum
from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from tinker_actors.actors.dead_letters import Lost
from tinker_actors.actors.mesh import Mesh
from tinker_actors.errors import ActorError, ConfigError

if TYPE_CHECKING:
    from tinker_actors.actors.directory import Directory

SHOWN = 10  # findings of a kind that are listed


class Unattended(enum.Enum):
    """What a checked mesh finds, and can be told to allow."""

    LEAKS = "leaks"  # an actor that did not end within `stop_timeout` of the block's end
    FAILURES = "failures"  # an actor that ended by a failure, while nobody watched it and no parent failed with it
    DEAD_LETTERS = "dead_letters"  # a tell that raised, or that reached nobody


class CheckedMesh(Mesh):
    """Made by `Mesh.test`; see there."""

    def __init__(self, *, allow: Iterable[Unattended | str] = (), stop_timeout: float = 1.0, **options: Any) -> None:
        super().__init__(stop_timeout=stop_timeout, **options)
        known = [what.value for what in Unattended]
        if isinstance(allow, str) or not all(item in known or isinstance(item, Unattended) for item in allow):
            raise ConfigError(f"allow is a list of any of {', '.join(known)}; got {allow!r}")
        self._allowed = {Unattended(item) for item in allow}
        self._failures: list[str] = []

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        assert self._directory is not None
        self._directory.unattended = lambda entry, reason: self._failures.append(
            f"{entry.ref.address.name}: {type(reason).__name__}: {reason}"
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        found: dict[Unattended, list[str]] = {}
        try:
            assert self._directory is not None
            found = await self._look(self._directory)
        finally:
            await super().__aexit__(kind, error, trace)
        lines = [
            f"{what.value}: {'; '.join(items[:SHOWN])}" + (f" and {len(items) - SHOWN} more" if items[SHOWN:] else "")
            for what, items in found.items()
            if items and what not in self._allowed
        ]
        if lines:
            text = "the test left unattended\n  " + "\n  ".join(lines)
            if error is None:
                raise AssertionError(text)
            error.add_note(text)

    async def _look(self, directory: Directory) -> dict[Unattended, list[str]]:
        before = await self._letters(directory)
        roots = [entry.ref for entry in reversed(directory.entries.values()) if entry.parent not in directory.entries]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._stop_timeout):
                await asyncio.gather(
                    *(directory.stop(ref, drain=True, timeout=None) for ref in roots), return_exceptions=True
                )
        leaks = [f"{entry.ref.address.name} was still busy" for entry in directory.entries.values() if entry.started]
        letters = await self._letters(directory)
        # What the mesh's own end refuses is nobody's mistake.
        letters[Lost.ENDED], letters[Lost.NODE_DIED] = before[Lost.ENDED], before[Lost.NODE_DIED]
        return {
            Unattended.LEAKS: leaks,
            Unattended.FAILURES: self._failures,
            Unattended.DEAD_LETTERS: [f"{count} {cause.value}" for cause, count in letters.items() if count],
        }

    async def _letters(self, directory: Directory) -> dict[Lost, int]:
        """The dead letters of all nodes, by cause."""
        total = directory.node.letters.by_cause
        for index, agent in directory.agents.items():
            asked: Any = agent
            if directory.node.exchange.is_linked(index):
                with contextlib.suppress(ActorError):
                    counts: dict[Lost, int] = await asked.options(timeout=self._stop_timeout).letters()
                    for cause, count in counts.items():
                        total[cause] += count
        return total

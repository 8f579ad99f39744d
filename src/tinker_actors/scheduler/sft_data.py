"""The examples of a supervised run: every line is checked before the first step, and none is held in memory."""

from __future__ import annotations

import json
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from tinker_actors.algorithms.chat_datums import Dropped, chat_datums, fitted, trained_tokens
from tinker_actors.data import Datum
from tinker_actors.data.chat_files import Joined
from tinker_actors.data.chat_rows import read_chat_row
from tinker_actors.errors import DataError, ModelError
from tinker_actors.models import ChatRenderer, load_renderer, load_tokenizer
from tinker_actors.scheduler.sections import ModelSection
from tinker_actors.scheduler.sft_config import DataSection

_SHOWN = 5  # bad lines in one message
_ENOUGH = 50  # bad lines after which no more are looked for


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """A line that is not learned from.

    Attributes:
        where: The file and line.
        kind: `bad`, or `too_long`.
        reason: What is wrong with it.
    """

    where: str
    kind: str
    reason: str


@dataclass(slots=True)
class Examples:
    """The usable rows of some sources, and how long each one is.

    Attributes:
        rows: For each example the row that it is.
        tokens: For each example the tokens that its datums read.
        trained: For each example the tokens that are trained.
        skipped: Rows that are no examples.
    """

    rows: array[int] = field(default_factory=lambda: array("q"))
    tokens: array[int] = field(default_factory=lambda: array("i"))
    trained: array[int] = field(default_factory=lambda: array("i"))
    skipped: list[Skipped] = field(default_factory=list[Skipped])

    def __len__(self) -> int:
        return len(self.rows)


class ChatData:
    """Reads rows as datums, always the same ones for the same row.

    Args:
        source: The rows.
        settings: What is made of them.
        model: Whose tokens they become.
        limit: Tokens of an example.
    """

    def __init__(self, source: Joined, settings: DataSection, model: ModelSection, limit: int) -> None:
        self.source = source
        self.examples = Examples()
        self._settings, self._model, self._limit = settings, model, limit
        self._tokenizer = load_tokenizer(model.name)
        self._renderers: dict[str, ChatRenderer] = {}
        self._hash = blake2b(digest_size=16)

    @property
    def digest(self) -> str:
        """Changes when any token that is trained on, or a token before it, changes."""
        return self._hash.hexdigest()

    def check(self, start: int, stop: int) -> None:
        """Look at the rows from `start` to before `stop`, each once and in order, and note which are examples.

        Raises:
            DataError: Bad lines were found in sufficient number, and they are not to be skipped.
        """
        examples = self.examples
        for row in range(start, stop):
            try:
                found = self._read(row)
            except (DataError, ModelError) as error:
                examples.skipped.append(Skipped(where=self.where(row), kind="bad", reason=str(error)))
                if self._settings.on_bad_line == "error" and len(examples.skipped) >= _ENOUGH:
                    self.refuse_bad_lines()
                continue
            if isinstance(found, Dropped):
                examples.skipped.append(Skipped(where=self.where(row), kind="too_long", reason=found.reason))
                continue
            examples.rows.append(row)
            examples.tokens.append(sum(len(datum) for datum in found))
            examples.trained.append(trained_tokens(found))
            for datum in found:
                self._hash.update(array("q", (*datum.model_input.tokens, -1, *datum.targets)).tobytes())
                self._hash.update(array("d", datum.weights or ()).tobytes())

    def refuse_bad_lines(self) -> None:
        """Raise if a line is bad and bad lines are not to be skipped.

        Raises:
            DataError: Names the first ones with what is wrong with each.
        """
        bad = [entry for entry in self.examples.skipped if entry.kind == "bad"]
        if not bad or self._settings.on_bad_line == "skip":
            return
        shown = "; ".join(f"{entry.where}: {entry.reason}" for entry in bad[:_SHOWN])
        more = f"; and {len(bad) - _SHOWN} more" if len(bad) > _SHOWN else ""
        raise DataError(f"{shown}{more} (data.on_bad_line = 'skip' would leave such lines out)")

    def datums(self, example: int) -> tuple[Datum, ...]:
        """An example's datums.

        Raises:
            DataError: The row has changed since it was checked.
        """
        row = self.examples.rows[example]
        try:
            found = self._read(row)
        except (DataError, ModelError) as error:
            raise DataError(f"{self.where(row)} changed while the run went on: {error}") from error
        if isinstance(found, Dropped) or trained_tokens(found) != self.examples.trained[example]:
            raise DataError(f"{self.where(row)} changed while the run went on: it has other tokens now")
        return found

    def where(self, row: int) -> str:
        """Names a row for people."""
        source, index = self.source.at(row)
        return source.where(index)

    def _read(self, row: int) -> tuple[Datum, ...] | Dropped:
        source, index = self.source.at(row)
        read = read_chat_row(source.row(index), folder=source.folder)
        datums = chat_datums(read, self._renderer(read.tools), train_on=self._settings.train_on)
        return fitted(datums, self._limit, self._settings.too_long)

    def _renderer(self, tools: Sequence[Mapping[str, Any]]) -> ChatRenderer:
        key = json.dumps(tools, sort_keys=True, default=str) if tools else ""
        if key not in self._renderers:
            if len(self._renderers) > 64:  # data in which every row has tools of its own
                self._renderers.clear()
            self._renderers[key] = load_renderer(self._tokenizer, self._model.chat_template, tools=tools)
        return self._renderers[key]

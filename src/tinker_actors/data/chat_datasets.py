"""Rows of HF data sets: saved folders, parquet files, or names on a hub. Needs the package `datasets`."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from typing import Any

from tinker_actors.data.chat_files import ChatSource, Joined, JsonlFile
from tinker_actors.errors import ConfigError, DataError

_SAVED = ("dataset_info.json", "dataset_dict.json")
_LINES = (".jsonl", ".json", ".ndjson")
_FILES = {".parquet": "parquet", ".arrow": "arrow"}
_ON_A_HUB = re.compile(r"[\w-][\w.-]*/[\w.-]+(:.+)?")


class DatasetRows:
    """A split of a data set, mapped from disk rather than held in memory."""

    def __init__(self, name: str, dataset: Any) -> None:
        self._name, self._dataset = name, dataset

    def __len__(self) -> int:
        return len(self._dataset)

    @property
    def folder(self) -> Path:
        """The data set's folder, where it has one."""
        path = Path(self._name)
        return path if path.is_dir() else path.parent

    def where(self, index: int) -> str:
        """The data set's name and the row's number, from 0 as `datasets` counts."""
        return f"{self._name}[{index}]"

    def row(self, index: int) -> object:
        """A row as a mapping.

        Raises:
            DataError: It can't be decoded.
        """
        try:
            return self._dataset[index]
        except Exception as error:  # whatever the library's decoders raise is that row's fault
            raise DataError(f"{type(error).__name__}: {error}") from error


def open_rows(names: tuple[str, ...], split: str) -> Joined:
    """The rows that names stand for, in order.

    Args:
        names: Paths of JSONL (`.jsonl`, `.json`, `.ndjson`), `.parquet` or `.arrow` files, folders that
            `Dataset.save_to_disk` wrote, or data sets on a hub: `organisation/name`, or `organisation/name:config`.
        split: Which split is taken where there are several.

    Raises:
        ConfigError: One can't be opened; says why.
    """
    return Joined([_open(name, split) for name in names])


def check_names(names: tuple[str, ...]) -> None:
    """Whether the files among the names are there.

    Raises:
        ConfigError: One isn't, or a name is neither a path's nor a data set's.
    """
    for name in names:
        path = Path(name)
        if path.suffix in (*_LINES, *_FILES) and not path.is_file():
            raise ConfigError(f"{name}: no such file")
        if not name or not (path.exists() or _ON_A_HUB.fullmatch(name)):
            raise ConfigError(f"{name!r}: no such file or folder, and data sets on a hub are named organisation/name")


def _open(name: str, split: str) -> ChatSource:
    path = Path(name)
    if path.suffix in _LINES:
        return JsonlFile(path)
    library = _library(name)
    try:
        if path.suffix in _FILES:
            found = library.load_dataset(_FILES[path.suffix], data_files=name, split="train")
        elif any((path / file).is_file() for file in _SAVED):
            found = library.load_from_disk(name)
        elif path.exists():
            raise ConfigError(
                f"{name}: neither a JSONL, parquet or arrow file nor a folder written by Dataset.save_to_disk"
            )
        else:
            hub, _, config = name.partition(":")
            found = library.load_dataset(hub, config or None, split=split)
    except ConfigError:
        raise
    except Exception as error:  # the boundary to the library, which raises many kinds
        raise ConfigError(f"data set {name!r} can't be loaded: {type(error).__name__}: {error}") from error
    if isinstance(found, library.DatasetDict):
        if split not in found:
            raise ConfigError(f"data set {name!r} has no split {split!r}; it has {', '.join(sorted(found))}")
        found = found[split]
    return DatasetRows(name, found)


def _library(name: str) -> Any:
    try:
        library: Any = import_module("datasets")
    except ImportError:
        raise ConfigError(
            f"{name!r} is no JSONL file, and other data needs the package datasets: "
            "pip install 'tinker-actors[datasets]'"
        ) from None
    library.disable_progress_bars()  # they would be drawn over whatever else is on the screen
    return library

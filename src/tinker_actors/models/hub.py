"""Models of a hub, where there is one: found quickly or refused with a reason, never waited for."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import TYPE_CHECKING

from tinker_actors.models.json_files import read_json
from tinker_actors.models.tokenizer import read_chat_template

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from tinker_actors.models.catalogue import ModelSpec

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_SMALL_FILES = ("*.json", "*.jinja")
_WEIGHTS = ("*.safetensors",)
_TIMEOUT_S = 5.0


def find(name: str) -> tuple[ModelSpec | None, str]:
    """Look for a hub id: in the local hub cache, then on the hub. Returns the spec, or None and why not."""
    if not _HUB_ID.fullmatch(name):
        return None, "a hub: the name is not of the form organisation/name"
    try:
        folder = _cached(name, _SMALL_FILES)
        if folder is None or _lacking(folder):
            folder = _download(name, _SMALL_FILES)
    except Exception as error:  # the client's and its HTTP library's errors share no base; each means "not from here"
        return None, f"the hub: {type(error).__name__}: {_first_line(error)}"
    if missing := _lacking(folder):
        return None, f"the hub: {name} has no {', '.join(missing)}"
    return _spec(name, folder), ""


def _lacking(folder: Path) -> list[str]:
    return [part for part in ("config.json", "tokenizer.json") if not (folder / part).is_file()]


def _spec(name: str, folder: Path) -> ModelSpec:
    from tinker_actors.models.catalogue import ModelSpec

    return ModelSpec(
        name=name,
        tokenizer_path=folder,
        chat_template=read_chat_template(folder),
        loader=functools.partial(_load, name),
        outliner=functools.partial(_outline, folder),
    )


def _outline(folder: Path) -> PreTrainedModel:
    from tinker_actors.models.base import outline_directory

    return outline_directory(folder)


def _load(name: str, dtype: str) -> PreTrainedModel:
    from tinker_actors.models.base import load_directory

    folder = _cached(name, (*_SMALL_FILES, *_WEIGHTS))
    if folder is None or not _has_weights(folder):
        folder = _download(name, (*_SMALL_FILES, *_WEIGHTS))
    return load_directory(folder, dtype)


def _has_weights(folder: Path) -> bool:
    """Whether all of the weights are there: a download that was cut short leaves some of a large model's files."""
    places = read_json(folder / "model.safetensors.index.json").get("weight_map", {})
    names = set(places.values())
    return all((folder / name).is_file() for name in names) if names else any(folder.glob("*.safetensors"))


def _cached(name: str, patterns: tuple[str, ...]) -> Path | None:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, allow_patterns=list(patterns), local_files_only=True))
    except LocalEntryNotFoundError:
        return None


def _download(name: str, patterns: tuple[str, ...]) -> Path:
    from huggingface_hub import HfApi, constants, snapshot_download

    if constants.HF_HUB_OFFLINE:
        raise ConnectionError("not in the local cache, and HF_HUB_OFFLINE forbids looking further")
    # One bounded request first: the download by itself would retry for minutes where no hub can be reached.
    HfApi().model_info(name, timeout=_TIMEOUT_S)
    return Path(snapshot_download(name, allow_patterns=list(patterns), etag_timeout=_TIMEOUT_S))


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else "no further reason given"

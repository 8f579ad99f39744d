"""Where converted weights and generated tokenizers live, and how a directory appears there: whole or not at all."""

from __future__ import annotations

import contextlib
import os
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path

CACHE_VARIABLE = "TINKER_ACTORS_CACHE"


def cache_dir() -> Path:
    """The cache folder: `TINKER_ACTORS_CACHE`, else `tinker_actors` under `XDG_CACHE_HOME` or `~/.cache`."""
    if own := os.environ.get(CACHE_VARIABLE):
        return Path(own).expanduser()
    xdg = os.environ.get("XDG_CACHE_HOME")
    return (Path(xdg) if xdg else Path.home() / ".cache") / "tinker_actors"


def build_directory(target: Path, fill: Callable[[Path], None]) -> Path:
    """Make `target` by filling a sibling folder and renaming it; a `target` that exists is kept.

    Several processes may build the same directory: the first to finish wins and the others use its result.

    Raises:
        OSError: The parent folder can't be written.
    """
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = target.parent / f".{target.name}-{uuid.uuid4().hex}"
    scratch.mkdir()
    try:
        fill(scratch)
        # A directory can't be renamed over one with files in it: then another process was first.
        with contextlib.suppress(OSError):
            scratch.rename(target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    if not target.is_dir():
        raise OSError(f"{target} could not be put in place")
    return target

"""The folder through which a vLLM server gets adapters: a new name and a new path for each time one is loaded.

Under a name or path that it knows, vLLM answers from prefixes that other weights computed.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tinker_actors.errors import PolicyError
from tinker_actors.models.catalogue import resolve
from tinker_actors.policies import Handle, Snapshot, SnapshotStore
from tinker_actors.sampling.backends.settings import VllmSettings

_FILES = ("adapter_config.json", "adapter_model.safetensors")


@dataclass(slots=True, kw_only=True, eq=False)
class Adapter:
    """An adapter as a server knows it.

    Attributes:
        folder: Its directory here.
        stem: What its names begin with.
        name: What the server calls it now; empty while it isn't loaded.
    """

    folder: Path
    stem: str
    name: str = ""


class AdapterFolder:
    """Puts adapters where a server reads them.

    Args:
        root: The folder.
        seen: What the server calls it.
        store: Where snapshots come from.
        base_model: Canonical name of the base model.
        settings: What the server can serve.
    """

    def __init__(self, root: Path, seen: str, *, store: SnapshotStore, base_model: str, settings: VllmSettings) -> None:
        self._root, self._seen, self._store = root, seen, store
        self._base_model, self._settings = base_model, settings
        self._mine = secrets.token_hex(4)  # others may use the folder and the server too
        self._number = 0

    def take(self, handle: str) -> tuple[Snapshot, Adapter]:
        """Check a snapshot and put its adapter into the folder; blocks.

        Raises:
            UnknownPolicyError: The store has no such snapshot.
            SnapshotCorruptError: Its files don't match its manifest.
            PolicyError: It is no LoRA snapshot of the base model, or has layers or a rank that the server can't serve.
        """
        snapshot = self._store.get(str(Handle.parse(handle, kind="sampler_weights")))
        if snapshot.kind != "lora":
            raise PolicyError(f"{handle} is of kind {snapshot.kind!r}; a vLLM server takes LoRA snapshots alone")
        if resolve(snapshot.base_model).name != self._base_model:
            raise PolicyError(f"{handle} is of base model {snapshot.base_model!r}; this is {self._base_model!r}")
        source = self._store.fetch(snapshot)
        self._check(handle, source)
        stem = f"{snapshot.policy_id}-{snapshot.number:06d}-{self._mine}"
        self._number += 1
        folder = self._root / f"{stem}-{self._number}"
        folder.mkdir(parents=True)
        for name in _FILES:
            _place(source / name, folder / name)
        return snapshot, Adapter(folder=folder, stem=stem)

    def fresh_name(self, adapter: Adapter) -> str:
        """A name that the server never heard."""
        self._number += 1
        return f"{adapter.stem}-{self._number}"

    def path(self, adapter: Adapter) -> str:
        """What the server calls its directory."""
        return f"{self._seen}/{adapter.folder.name}"

    def drop(self, adapter: Adapter) -> None:
        """Remove its directory: two links."""
        shutil.rmtree(adapter.folder, ignore_errors=True)

    def _check(self, handle: str, source: Path) -> None:
        from safetensors import safe_open

        config: dict[str, Any] = json.loads((source / "adapter_config.json").read_text(encoding="utf-8"))
        rank = max([int(config["r"]), *map(int, (config.get("rank_pattern") or {}).values())])
        if rank > self._settings.rank():
            raise PolicyError(
                f"{handle} has rank {rank}; the server serves at most max_lora_rank {self._settings.rank()}"
            )
        with safe_open(source / "adapter_model.safetensors", "pt") as weights:
            layers = {key.split(".lora_")[0].rpartition(".")[2] for key in weights.keys()}  # noqa: SIM118 - no mapping
        if others := sorted(layers - set(self._settings.target_modules)):
            raise PolicyError(
                f"{handle} adapts {', '.join(others)}; the server adapts target_modules "
                f"{', '.join(self._settings.target_modules)} and would leave the others out"
            )


def _place(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without links
        shutil.copyfile(source, target)

"""Weights to take elsewhere, encrypted with age (https://age-encryption.org/v1) to those who may read them."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tinker_actors.errors import ConfigError
from tinker_actors.policies import Snapshot, SnapshotStore

MOST_RECIPIENTS = 10

SUFFIX = ".age"
"""What every encrypted file's name ends with."""

_FIELD = "age_encryption_recipients"


class Encryption:
    """Encrypts files to some recipients, any of whom can read them.

    Args:
        recipients: Public keys: age's own (`age1...`), or SSH's (`ssh-ed25519 ...`, `ssh-rsa ...`).

    Raises:
        ConfigError: One is no public key, there are none or too many, or the package that encrypts isn't installed.
    """

    def __init__(self, recipients: Sequence[str]) -> None:
        if not 0 < len(recipients) <= MOST_RECIPIENTS:
            raise ConfigError(f"{_FIELD} has {len(recipients)} keys; 1 to {MOST_RECIPIENTS} are needed")
        try:
            self._age: Any = importlib.import_module("pyrage")
        except ImportError as error:
            raise ConfigError(
                f"{_FIELD} is set; the service encrypts nothing without pyrage: pip install 'tinker-actors[age]' there"
            ) from error
        self._recipients = [self._read(place, text.strip()) for place, text in enumerate(recipients)]

    def copy(self, store: SnapshotStore, handle: str, target: str) -> Snapshot:
        """Store an encrypted copy of a snapshot: each of its files, under its own name and `.age`.

        Args:
            store: Has the snapshot.
            handle: The snapshot's.
            target: The copy's, reserved for the same policy.

        Raises:
            StoreError: The store can't be reached.
        """
        source = store.get(handle)
        manifest, folder = store.manifest(handle), store.fetch(source)

        def write(into: Path) -> None:
            for name in manifest.files:
                encrypted = into / f"{name}{SUFFIX}"
                encrypted.parent.mkdir(parents=True, exist_ok=True)
                self._age.encrypt_file(str(folder / name), str(encrypted), self._recipients)

        return store.publish(source.policy_id, write, manifest.origin, handle=target)

    def _read(self, place: int, text: str) -> Any:
        kind = self._age.ssh if text.startswith("ssh-") else self._age.x25519
        try:
            return kind.Recipient.from_str(text)
        except (self._age.RecipientError, ValueError) as error:
            begins = text[:12]  # not more, lest somebody's secret key be told to a log
            raise ConfigError(
                f"{_FIELD}[{place}] begins with {begins!r}; a public key of age (age1...) or SSH (ssh-ed25519 or "
                "ssh-rsa) is needed"
            ) from error

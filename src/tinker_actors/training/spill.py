"""Policies in training, of which those that nobody uses may lie on disk."""

from __future__ import annotations

import tempfile
import weakref
from collections.abc import Collection, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import torch
from torch import Tensor

from tinker_actors.errors import PolicyError
from tinker_actors.training.policy import TrainedPolicy
from tinker_actors.training.residency import Residency


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """One tensor of a file: what it was, but for its bytes, which stand one tensor after the other."""

    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device


class SpillFile:
    """Tensors in a file that has no name, so that it ends with the process however that ends.

    Args:
        tensors: What it shall hold.
        folder: Where.

    Raises:
        OSError: They can't be written.
    """

    def __init__(self, tensors: Mapping[str, Tensor], folder: str | None) -> None:
        self._entries: dict[str, _Entry] = {}
        self._file: BinaryIO = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115
        self.close = weakref.finalize(self, self._file.close)
        """Free the disk; done at the latest when nobody holds the object."""
        try:
            for name, tensor in tensors.items():
                self._entries[name] = _Entry(
                    shape=tensor.shape, stride=tensor.stride(), dtype=tensor.dtype, device=tensor.device
                )
                self._file.write(_bytes(tensor.detach().cpu().contiguous()))
            self._file.flush()
        except OSError:
            self.close()
            raise

    def read(self) -> dict[str, Tensor]:
        """The tensors, bit for bit and laid out as they were.

        Raises:
            OSError: They can't be read.
        """
        self._file.seek(0)
        found: dict[str, Tensor] = {}
        for name, entry in self._entries.items():
            held = torch.empty(entry.shape, dtype=entry.dtype)
            if self._file.readinto(_bytes(held)) != held.nbytes:  # pyright: ignore[reportAttributeAccessIssue]
                raise OSError(f"the file of idle state ends within {name}")
            if held.stride() != entry.stride:
                held = torch.empty_strided(entry.shape, entry.stride, dtype=entry.dtype).copy_(held)
            found[name] = held.to(entry.device)
        return found


class Shelf(MutableMapping[str, TrainedPolicy]):
    """Policies by id, in order of creation. Looking one up brings it back to memory, with all its state as it was.

    Args:
        residency: What may be in memory.

    Raises:
        PolicyError: From lookups, `use` and `add`: state can't be written or read. It stays where it is then,
            and nothing was added.
    """

    def __init__(self, residency: Residency | None = None) -> None:
        self._limits = residency or Residency()
        self._policies: dict[str, TrainedPolicy] = {}
        self._spilled: dict[str, SpillFile] = {}
        self._recent: dict[str, None] = {}
        self._sizes: dict[str, int] = {}  # bytes of those that were not looked up since they were measured

    def __getitem__(self, policy_id: str) -> TrainedPolicy:
        policy = self._policies[policy_id]
        if policy_id in self._spilled:
            try:
                policy.take_state(self._spilled[policy_id].read())
            except OSError as error:
                raise PolicyError(f"the idle state of policy {policy_id!r} can't be read: {error}") from error
            self._spilled.pop(policy_id).close()
        self._touch(policy_id)
        return policy

    def __setitem__(self, policy_id: str, policy: TrainedPolicy) -> None:
        self._forget(policy_id)
        self._policies[policy_id] = policy
        self._touch(policy_id)

    def __delitem__(self, policy_id: str) -> None:
        del self._policies[policy_id]
        self._forget(policy_id)

    def __contains__(self, policy_id: object) -> bool:
        return policy_id in self._policies

    def __iter__(self) -> Iterator[str]:
        return iter(self._policies)

    def __len__(self) -> int:
        return len(self._policies)

    def held(self) -> tuple[TrainedPolicy, ...]:
        """All policies, without bringing any back."""
        return tuple(self._policies.values())

    def resident(self) -> tuple[str, ...]:
        """Ids of the policies in memory, the one used least recently first."""
        return tuple(policy_id for policy_id in self._recent if policy_id not in self._spilled)

    def use(self, policy_ids: Collection[str]) -> None:
        """Bring these back, and let others go to disk as far as the limits demand it."""
        for policy_id in policy_ids:
            if policy_id in self._policies:
                self[policy_id]
        self._make_room(policy_ids)
        for policy_id in policy_ids:  # the call that uses them changes what they hold
            self._sizes.pop(policy_id, None)

    def add(self, policy: TrainedPolicy) -> None:
        """Hold a policy too, in place of one of its id, and let others go to disk as far as the limits demand it."""
        self._make_room((policy.policy_id,), new=policy)
        self[policy.policy_id] = policy

    def close(self) -> None:
        """Forget all policies and free the disk."""
        for policy_id in tuple(self):
            del self[policy_id]

    def _make_room(self, kept: Collection[str], new: TrainedPolicy | None = None) -> None:
        resident = [policy_id for policy_id in self.resident() if new is None or policy_id != new.policy_id]
        most, room = self._limits.policies, self._limits.bytes
        count, held = len(resident), 0 if room is None else sum(map(self._size, resident))
        if new is not None:
            count, held = count + 1, held + (0 if room is None else new.nbytes())
        for policy_id in resident:
            if (most is None or count <= most) and (room is None or held <= room):
                break
            if policy_id not in kept:
                count, held = count - 1, held - self._size(policy_id)
                self._spill(policy_id)

    def _size(self, policy_id: str) -> int:
        if policy_id not in self._sizes:
            self._sizes[policy_id] = self._policies[policy_id].nbytes()
        return self._sizes[policy_id]

    def _touch(self, policy_id: str) -> None:
        """It is the one used last, and may change."""
        self._recent.pop(policy_id, None)
        self._recent[policy_id] = None
        self._sizes.pop(policy_id, None)

    def _spill(self, policy_id: str) -> None:
        policy = self._policies[policy_id]
        try:
            file = SpillFile(policy.state(), self._limits.folder)
        except OSError as error:
            folder = Path(self._limits.folder or tempfile.gettempdir())
            raise PolicyError(
                f"the state of idle policy {policy_id!r} ({policy.nbytes()} bytes) can't be written to {folder}: "
                f"{error}; make room there or raise the trainer's limits"
            ) from error
        policy.drop_state()
        self._spilled[policy_id] = file

    def _forget(self, policy_id: str) -> None:
        self._recent.pop(policy_id, None)
        self._sizes.pop(policy_id, None)
        if file := self._spilled.pop(policy_id, None):
            file.close()


def _bytes(tensor: Tensor) -> memoryview:
    """The bytes of a contiguous tensor on the CPU; writing to them writes to it."""
    return tensor.view(-1).view(torch.uint8).numpy().data

"""The snapshots that a sampler holds in memory: loaded at a refresh, kept while requests run on them."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tinker_actors.errors import PolicyError, UnknownPolicyError
from tinker_actors.models.adapters import Adapter
from tinker_actors.models.base import BaseModel, load_directory
from tinker_actors.models.catalogue import resolve
from tinker_actors.models.lent import LentWeights, lent_model
from tinker_actors.models.vision import Vision
from tinker_actors.policies import Handle, Snapshot, SnapshotStore
from tinker_actors.policies.handover import handed_over
from tinker_actors.sampling.lodging import Lodger, Lodging, bytes_of
from tinker_actors.sampling.metrics import Holding, Residence
from tinker_actors.sampling.networks import Network


@dataclass(slots=True, kw_only=True, eq=False)
class Resident(Lodger):
    """A snapshot that is served.

    Attributes:
        snapshot: The snapshot.
        network: What computes it.
        slot: Its adapter's place in the network, None while it has none; 0 for full weights.
        pins: Requests under way on it.
    """

    snapshot: Snapshot
    network: Network
    pins: int = 0

    @property
    def handle(self) -> str:
        """Names the snapshot."""
        return self.snapshot.handle

    @property
    def row_slot(self) -> int:
        """What its rows say in a step; only of one that has a place."""
        assert self.slot is not None
        return self.slot

    @property
    def step(self) -> int:
        """Update steps that the snapshot had behind it."""
        return self.snapshot.step


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """A snapshot whose files are right.

    Attributes:
        snapshot: The snapshot.
        adapter: The weights of an adapter, as read or as published in this process; None for full weights, and for an
            adapter that is read again when it is asked for.
        network: The loaded model of a full-weights snapshot; None for an adapter.
        lent: Weights that were published in this process, if they are.
    """

    snapshot: Snapshot
    adapter: Adapter | None
    network: Network | None
    lent: LentWeights | None = None


class Residents:
    """All snapshots served by one sampler, by handle.

    `check` may run in any thread; `replace` and `collect` must run in the thread that computes, between two steps.

    Args:
        base: The base model.
        store: Where the snapshots are.
        max_adapters: Adapters that have a place in the network at once; None for no limit.
        adapter_memory: Bytes of host memory for copies of adapters, where there is a limit.

    Attributes:
        lodging: Which adapters have a place.
    """

    def __init__(
        self, *, base: BaseModel, store: SnapshotStore, max_adapters: int | None = None, adapter_memory: int = 2**30
    ) -> None:
        self._base, self._store = base, store
        self._max_adapters, self._adapter_memory = max_adapters, adapter_memory
        own = not base.shared
        self._lora = Network(base.model if own else base.skeleton(), base.vision, owned=own)
        self.lodging = Lodging(self._lora, self._read_again, most=max_adapters, host_memory=adapter_memory)
        self._by_handle: dict[str, Resident] = {}
        self._leaving: list[Resident] = []
        self._lock = threading.Lock()

    @property
    def network(self) -> Network:
        """The base model with its adapters."""
        return self._lora

    @property
    def vision(self) -> Vision | None:
        """How the base model takes images; None if it reads none."""
        return self._base.vision

    @property
    def vocab_size(self) -> int:
        """Length of a row of logits, the same for every snapshot."""
        return self._lora.vocab_size

    def handles(self) -> tuple[str, ...]:
        """What is served now."""
        with self._lock:
            return tuple(self._by_handle)

    def serves(self, handle: str) -> bool:
        """Whether a snapshot is served now."""
        with self._lock:
            return handle in self._by_handle

    def holdings(self) -> dict[str, Holding]:
        """How what is served now is held, by handle."""
        with self._lock:
            return {handle: self._holding(resident) for handle, resident in self._by_handle.items()}

    def held(self) -> int:
        """How many snapshots there are, those that leave included."""
        with self._lock:
            return len(self._by_handle) + len(self._leaving)

    @property
    def leave(self) -> bool:
        """Whether `collect` may have something to do."""
        return bool(self._leaving)

    def pin(self, handle: str) -> Resident:
        """The resident of a handle, kept until `unpin`.

        Raises:
            UnknownPolicyError: It is not loaded.
        """
        with self._lock:
            resident = self._by_handle.get(handle)
            if resident is None:
                served = [*self._by_handle][-20:]
                raise UnknownPolicyError(
                    f"{handle} is not loaded in this sampler, which serves {served}; refresh with it first"
                )
            resident.pins += 1
            return resident

    def unpin(self, resident: Resident) -> None:
        """Undo one `pin`."""
        with self._lock:
            resident.pins -= 1

    def check(self, handles: Sequence[str]) -> dict[str, Checked]:
        """Check the files of the snapshots that are not loaded yet; full weights are read at once.

        Raises:
            UnknownPolicyError: The store has no such snapshot.
            SnapshotCorruptError: Files don't match the manifest.
            PolicyError: A handle is malformed or no sampler snapshot, or the snapshot is of another base model.
            ModelError: The weights can't be loaded.
        """
        loaded = self.handles()
        checked: dict[str, Checked] = {}
        left = self._adapter_memory
        for number, handle in enumerate(handle for handle in handles if handle not in loaded):
            checked[handle] = entry = self._check(handle)
            if entry.adapter is not None and entry.lent is None and self._max_adapters is not None:
                left -= bytes_of(entry.adapter)
                if number >= self._max_adapters and left < 0:  # there is nowhere to keep it until it is asked for
                    checked[handle] = replace(entry, adapter=None)
        return checked

    def replace(self, handles: Sequence[str], checked: Mapping[str, Checked]) -> None:
        """Serve exactly `handles`, all of them loaded or in `checked`; if one can't be loaded, nothing changes.

        Raises:
            ModelError: An adapter does not fit the base.
        """
        fresh: dict[str, Resident] = {}
        try:
            for handle, entry in checked.items():
                fresh[handle] = self._place(entry)
        except Exception:  # whatever it was, nothing half loaded stays
            self._unload(fresh.values())
            raise
        with self._lock:
            before, self._by_handle = self._by_handle, {}
            for handle in handles:
                self._by_handle[handle] = fresh[handle] if handle in fresh else before[handle]
            self._leaving += [resident for handle, resident in before.items() if handle not in self._by_handle]

    def collect(self) -> list[Resident]:
        """Free the snapshots that were released and that no request runs on any more; which they were."""
        if not self._leaving:
            return []
        with self._lock:
            gone = [resident for resident in self._leaving if not resident.pins]
            self._leaving = [resident for resident in self._leaving if resident.pins]
        self._unload(gone)
        return gone

    def _check(self, handle: str) -> Checked:
        Handle.parse(handle, kind="sampler_weights")
        snapshot = self._store.get(handle)
        if resolve(snapshot.base_model).name != self._base.name:
            raise PolicyError(f"{handle} is of base model {snapshot.base_model}; this sampler serves {self._base.name}")
        lent = handed_over(snapshot)
        if isinstance(lent, LentWeights) and lent.adapter is not None:
            return Checked(snapshot=snapshot, adapter=lent.adapter, network=None, lent=lent)
        if isinstance(lent, LentWeights) and self._base.shared:
            network = Network(lent_model(self._base, lent), self._base.vision)
            return Checked(snapshot=snapshot, adapter=None, network=network, lent=lent)
        folder = self._store.fetch(snapshot)
        if snapshot.kind == "lora":
            return Checked(snapshot=snapshot, adapter=self._lora.read(folder), network=None)
        model = load_directory(folder, self._base.dtype).eval().requires_grad_(False)
        model.to(self._base.device)  # pyright: ignore[reportArgumentType] - a wrapper hides what it takes
        network = Network(model, self._base.vision, owned=True)
        if network.vocab_size != self.vocab_size:
            raise PolicyError(f"{handle} has {network.vocab_size} logits; {self._base.name} has {self.vocab_size}")
        return Checked(snapshot=snapshot, adapter=None, network=network)

    def _holding(self, resident: Resident) -> Holding:
        copied = self.lodging.copied(resident)
        placed, kept = resident.slot is not None, copied or resident.lent is not None
        return Holding(
            residence=Residence.NETWORK if placed else Residence.HOST if kept else Residence.STORE,
            bytes=resident.size,
            host_bytes=copied,
            under_way=resident.pins,
        )

    def _place(self, entry: Checked) -> Resident:
        if entry.network is not None:
            size = entry.network.nbytes
            return Resident(snapshot=entry.snapshot, network=entry.network, slot=0, lent=entry.lent, size=size)
        resident = Resident(snapshot=entry.snapshot, network=self._lora, slot=None, lent=entry.lent)
        self.lodging.add(resident, entry.adapter)
        return resident

    def _read_again(self, resident: Resident) -> Adapter:
        return self._lora.read(self._store.fetch(resident.snapshot))

    def _unload(self, residents: Iterable[Resident]) -> None:
        for resident in residents:
            if resident.network is self._lora:
                self.lodging.remove(resident)

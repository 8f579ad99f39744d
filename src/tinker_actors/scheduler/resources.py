"""What jobs need and a machine has, and the ledger of who holds what."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields

from tinker_actors.errors import JobError


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """An amount of each resource; as a need, as a capacity or as a quota.

    Attributes:
        devices: Accelerators, each for one job alone.
        memory: Bytes of the host's memory.
        adapter_slots: Adapters that are trained or served at once.
        cpu_workers: Threads and processes that compute on the CPU: the threads of the trainer and sampler, rollout
            workers and pools of environments.
    """

    devices: int = 0
    memory: int = 0
    adapter_slots: int = 0
    cpu_workers: int = 0

    def __post_init__(self) -> None:
        for name in NAMES:
            value = getattr(self, name)
            if type(value) is not int or value < 0:
                raise ValueError(f"resources.{name} is {value!r}; a whole number of at least 0 is needed")

    def __add__(self, other: Resources) -> Resources:
        return Resources(**{name: getattr(self, name) + getattr(other, name) for name in NAMES})

    def less(self, other: Resources) -> Resources:
        """What is left of this without the other, at least 0 of each."""
        return Resources(**{name: max(0, getattr(self, name) - getattr(other, name)) for name in NAMES})

    def fits(self, within: Resources) -> bool:
        """Whether there is enough of each."""
        return not self.exceeds(within)

    def exceeds(self, capacity: Resources) -> tuple[str, ...]:
        """The names of those of which there is too little."""
        return tuple(name for name in NAMES if getattr(self, name) > getattr(capacity, name))

    def share_of(self, capacity: Resources) -> float:
        """The largest share of any one resource (the dominant share of Ghodsi et al., NSDI 2011)."""
        shares = [getattr(self, name) / getattr(capacity, name) for name in NAMES if getattr(capacity, name)]
        return max(shares, default=0.0)


NAMES = tuple(field.name for field in fields(Resources))


def total(amounts: Iterable[Resources]) -> Resources:
    """The sum of each."""
    result = Resources()
    for amount in amounts:
        result = result + amount
    return result


def refusal(need: Resources, limit: Resources, whose: str) -> str | None:
    """Why a need can never be met, and what could be; None if it can.

    Args:
        need: What is asked.
        limit: All that there is, or that may be held.
        whose: Whose limit it is, in words.
    """
    lacking = need.exceeds(limit)
    if not lacking:
        return None
    asked = ", ".join(f"resources.{name} is {getattr(need, name)}" for name in lacking)
    most = ", ".join(f"{name} {getattr(limit, name)}" for name in lacking)
    return f"{asked}, but {whose} is {most}: at most that can be asked for"


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """What one attempt of a job holds.

    Attributes:
        amount: How much of each.
        devices: Numbers of the devices.
    """

    amount: Resources
    devices: tuple[int, ...]


class Ledger:
    """Who holds what of a capacity. An owner is an attempt of a job, so that a late one can't free another's.

    Args:
        capacity: All that there is.
    """

    def __init__(self, capacity: Resources) -> None:
        self.capacity = capacity
        self._held: dict[tuple[str, int], Allocation] = {}
        self._devices = list(range(capacity.devices))

    @property
    def held(self) -> Mapping[tuple[str, int], Allocation]:
        """Allocations by (job, attempt)."""
        return self._held

    @property
    def free(self) -> Resources:
        """What nobody holds."""
        return self.capacity.less(total(allocation.amount for allocation in self._held.values()))

    def take(self, job: str, attempt: int, amount: Resources) -> Allocation:
        """Allocate; asking again for what one holds gives the same.

        Raises:
            JobError: There is not enough.
        """
        if (present := self._held.get((job, attempt))) is not None:
            return present
        if lacking := amount.exceeds(self.free):
            raise JobError(f"job {job} needs {amount}, but only {self.free} is free: too little {', '.join(lacking)}")
        devices, self._devices = self._devices[: amount.devices], self._devices[amount.devices :]
        allocation = self._held[job, attempt] = Allocation(amount=amount, devices=tuple(devices))
        return allocation

    def restore(self, job: str, attempt: int, allocation: Allocation) -> None:
        """Hold what an attempt was allocated by a former ledger; more than the capacity, if that has shrunk since."""
        self._held[job, attempt] = allocation
        self._devices = [device for device in self._devices if device not in allocation.devices]

    def release(self, job: str, attempt: int) -> bool:
        """Free what an attempt holds; False, and nothing happens, if it holds nothing (any more)."""
        allocation = self._held.pop((job, attempt), None)
        if allocation is None:
            return False
        mine = [device for device in allocation.devices if device < self.capacity.devices]
        self._devices = sorted([*self._devices, *mine])
        return True

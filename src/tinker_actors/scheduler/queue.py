"""Which queued jobs start now, and which running ones make room: a pure function of what waits and what runs.

The rules, in their order:

1. A job that exceeds the capacity or its tenant's quota for ever is named impossible and bars nobody.
2. Jobs are taken by effective priority (`Waiting.priority`, and one more for every `Rules.ageing` starts that took
   place while the job waited), then by the share that their tenant holds, weighted, then by age.
3. A job that would exceed its tenant's quota now is passed over, and with it those of its tenant behind it. It bars no
   other tenant.
4. The first one that doesn't fit is the head, and has a reservation from then on. Others start past it only if they and
   all that have started since the reservation fit beside it. So the head waits at most for what ran when it got its
   reservation: no estimate of run times is needed.
5. If `Rules.preempt`, jobs are stopped for a head whose own priority exceeds their effective one, as few as will do:
   those of the lowest first, the youngest first. The head's age doesn't count in this, theirs does: a job that has been
   stopped often enough is stopped no more.

Ageing bounds every wait: a job that has waited for `ageing * (d + 1)` starts is before all newer ones whose priority is
at most d above its own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tinker_actors.scheduler.resources import Resources, refusal, total


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """What a tenant may hold.

    Attributes:
        most: Of each resource at a time; None for no bound.
        jobs: Running at a time; None for no bound.
        weight: Its part of the machine, relative to others', where several wait.
    """

    most: Resources | None = None
    jobs: int | None = None
    weight: float = 1.0

    def __post_init__(self) -> None:
        if self.weight <= 0:
            raise ValueError(f"quota.weight is {self.weight}; a number above 0 is needed")
        if self.jobs is not None and self.jobs < 1:
            raise ValueError(f"quota.jobs is {self.jobs}; at least 1 is needed, or none for no bound")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """How a queue is served.

    Attributes:
        quotas: By tenant.
        default: The quota of tenants that are not named.
        ageing: Starts that a job waits through for one more of effective priority.
        preempt: Whether jobs are stopped in favour of those of higher priority.
    """

    quotas: Mapping[str, Quota] = field(default_factory=dict[str, Quota])
    default: Quota = Quota()
    ageing: int = 16
    preempt: bool = True

    def __post_init__(self) -> None:
        if self.ageing < 1:
            raise ValueError(f"rules.ageing is {self.ageing}; at least 1 is needed")

    def of(self, tenant: str) -> Quota:
        """A tenant's quota."""
        return self.quotas.get(tenant, self.default)


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A job in the queue.

    Attributes:
        job: Its id.
        tenant: Whose it is.
        need: What it needs.
        priority: Higher ones go first.
        number: Of its submission; unique, rising.
        since: How many starts there had been when it was submitted.
    """

    job: str
    tenant: str
    need: Resources
    priority: int = 0
    number: int
    since: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A job that runs, or whose process has not ended yet.

    Attributes:
        job: Its id.
        tenant: Whose it is.
        need: What it holds.
        priority: As it was submitted.
        since: How many starts there had been when it was submitted.
        start: The number of its start, from 1; unique, rising.
        leaving: Whether it has been told to stop.
    """

    job: str
    tenant: str
    need: Resources
    priority: int = 0
    since: int = 0
    start: int
    leaving: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """The head of the queue has the next of what is freed.

    Attributes:
        job: The head.
        since: How many starts there had been when it became the head.
    """

    job: str
    since: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is to happen now.

    Attributes:
        start: Jobs to start, in this order.
        stop: Running jobs to stop, so that the head can start once they have ended.
        impossible: Why, by job, for those that can never start.
        reservation: To be given to the next call.
    """

    start: tuple[str, ...] = ()
    stop: tuple[str, ...] = ()
    impossible: Mapping[str, str] = field(default_factory=dict[str, str])
    reservation: Reservation | None = None


def never_fits(need: Resources, tenant: str, capacity: Resources, rules: Rules) -> str | None:
    """Why a job could never start, and what could; None if it could."""
    most = rules.of(tenant).most
    own = refusal(need, most, f"the quota of tenant {tenant!r}") if most is not None else None
    return refusal(need, capacity, "all that there is") or own


def plan(
    waiting: Sequence[Waiting],
    running: Sequence[Held],
    capacity: Resources,
    rules: Rules,
    *,
    starts: int,
    reservation: Reservation | None = None,
) -> Plan:
    """Decide what starts and what stops.

    Args:
        waiting: The queue, in any order.
        running: What holds resources.
        capacity: All that there is.
        rules: How the queue is served.
        starts: How many starts there have been.
        reservation: What the call before returned.
    """
    return _Planning(running, capacity, rules, starts, reservation).plan(waiting)


class _Planning:
    def __init__(
        self,
        running: Sequence[Held],
        capacity: Resources,
        rules: Rules,
        starts: int,
        reservation: Reservation | None,
    ) -> None:
        self._held = list(running)
        self._capacity = capacity
        self._rules = rules
        self._starts = starts
        self._before = reservation

    def plan(self, waiting: Sequence[Waiting]) -> Plan:
        whys = {w.job: never_fits(w.need, w.tenant, self._capacity, self._rules) for w in waiting}
        left = [w for w in waiting if whys[w.job] is None]
        started: list[str] = []
        stop: tuple[str, ...] = ()
        head: Waiting | None = None
        kept: Reservation | None = None
        bound: set[str] = set()  # tenants whose next job exceeds their quota
        self._order(left)
        while left:
            job = left.pop()
            if job.tenant in bound or not self._within_quota(job):
                bound.add(job.tenant)
                continue
            if head is None and not job.need.fits(self._free()):
                head = job
                since = self._before.since if self._before and self._before.job == job.job else self._starts
                kept = Reservation(job=job.job, since=min(since, self._starts))
                stop = self._make_room(job)
            elif head is None or (kept is not None and self._may_pass(job, head, kept)):
                self._starts += 1
                self._held.append(_begun(job, self._starts))
                started.append(job.job)
                self._order(left)  # the tenant's share has changed
        impossible = {job: why for job, why in whys.items() if why is not None}
        return Plan(start=tuple(started), stop=stop, impossible=impossible, reservation=kept)

    def _order(self, left: list[Waiting]) -> None:
        """Sort what waits; the next one to be looked at comes last."""
        shares = {tenant: self._share(tenant) for tenant in {job.tenant for job in left}}
        left.sort(key=lambda job: (self._effective(job), -shares[job.tenant], -job.number))

    def _share(self, tenant: str) -> float:
        own = total(held.need for held in self._held if held.tenant == tenant)
        return own.share_of(self._capacity) / self._rules.of(tenant).weight

    def _effective(self, job: Waiting | Held) -> int:
        return job.priority + max(0, self._starts - job.since) // self._rules.ageing

    def _within_quota(self, job: Waiting) -> bool:
        quota = self._rules.of(job.tenant)
        own = [held.need for held in self._held if held.tenant == job.tenant]
        enough = quota.most is None or (total(own) + job.need).fits(quota.most)
        return enough and (quota.jobs is None or len(own) < quota.jobs)

    def _free(self, without: Collection[str] = ()) -> Resources:
        return self._capacity.less(total(held.need for held in self._held if held.job not in without))

    def _may_pass(self, job: Waiting, head: Waiting, kept: Reservation) -> bool:
        if not job.need.fits(self._free()):
            return False
        since = total(held.need for held in self._held if held.start > kept.since and not held.leaving)
        if not (since + job.need + head.need).fits(self._capacity):
            return False
        leaving = {held.job for held in self._held if held.leaving}
        soon = self._free(leaving)
        # what is being stopped is stopped for the head: nobody may take the rest that it counts on
        return not head.need.fits(soon) or (head.need + job.need).fits(soon)

    def _make_room(self, head: Waiting) -> tuple[str, ...]:
        """Stop as few as will do; what is to stop is marked as leaving."""
        gone = {held.job for held in self._held if held.leaving}
        if not self._rules.preempt or head.need.fits(self._free(gone)):
            return ()
        lower = [held for held in self._held if self._effective(held) < head.priority and not held.leaving]
        lower.sort(key=lambda held: (self._effective(held), -held.start))
        chosen: list[str] = []
        for held in lower:
            if head.need.fits(self._free(gone | set(chosen))):
                break
            chosen.append(held.job)
        if not head.need.fits(self._free(gone | set(chosen))):
            return ()  # stopping all of them would not do
        for job in tuple(reversed(chosen)):
            if head.need.fits(self._free(gone | (set(chosen) - {job}))):
                chosen.remove(job)
        self._held = [replace(held, leaving=held.leaving or held.job in chosen) for held in self._held]
        return tuple(chosen)


def _begun(job: Waiting, start: int) -> Held:
    return Held(job=job.job, tenant=job.tenant, need=job.need, priority=job.priority, since=job.since, start=start)

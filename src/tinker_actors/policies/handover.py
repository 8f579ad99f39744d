"""Weights of snapshots that were published in this process, for samplers in it: they need not read them again.

Nothing is kept alive here: an entry is there as long as the publisher or a sampler holds its weights.
"""

from __future__ import annotations

import threading
from weakref import WeakValueDictionary

from tinker_actors.policies.snapshot import Snapshot

_lock = threading.Lock()
_offered: WeakValueDictionary[Snapshot, object] = WeakValueDictionary()


def hand_over(snapshot: Snapshot, weights: object) -> None:
    """Offer a snapshot's weights, which nobody changes any more, to whoever loads it in this process."""
    with _lock:
        _offered[snapshot] = weights


def handed_over(snapshot: Snapshot) -> object | None:
    """The weights of a snapshot that was published in this process, if somebody still holds them."""
    with _lock:
        return _offered.get(snapshot)

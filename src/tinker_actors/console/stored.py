"""What a word on the command line means in a store."""

from __future__ import annotations

from typing import cast

from tinker_actors.errors import PolicyError
from tinker_actors.policies import Handle, HandleKind, Snapshot, SnapshotStore


def find_snapshot(store: SnapshotStore, text: str) -> Snapshot:
    """What `tinker://...`, POLICY, POLICY/NUMBER or POLICY/weights/NAME stands for.

    Raises:
        PolicyError: The text is no handle.
        UnknownPolicyError: The store has no such snapshot or checkpoint.
    """
    if "://" in text:
        return store.get(text)
    policy, *rest = text.split("/")
    if len(rest) > 2:
        raise PolicyError(f"{text!r} is no handle; POLICY, POLICY/NUMBER or POLICY/weights/NAME is needed")
    if not rest:
        return store.latest(policy)
    kind = cast(HandleKind, rest[0]) if len(rest) == 2 else "sampler_weights"
    name = rest[-1]
    if kind == "sampler_weights" and name.isdecimal():
        name = f"{int(name):06d}"
    return store.get(str(Handle(policy_id=policy, kind=kind, name=name)))

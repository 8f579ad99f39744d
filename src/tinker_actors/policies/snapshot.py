"""What a stored snapshot or checkpoint is, as everyone passes it around."""

from __future__ import annotations

from dataclasses import dataclass

from tinker_actors.policies.handles import Handle, PolicyId
from tinker_actors.policies.sealing import Manifest
from tinker_actors.policies.spec import PolicyKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """An immutable, numbered export of a policy.

    Attributes:
        handle: `tinker://<policy id>/<sampler_weights or weights>/<name>`.
        policy_id: The policy.
        number: Increases with each one of the same policy and handle kind; never reused.
        step: Optimizer steps that the policy had behind it.
        base_model: The base model's name.
        kind: `lora` (a PEFT directory) or `full` (a transformers model directory).
        path: The directory's absolute path, or its URL in a store that is no local folder.
        parent: Handle of the snapshot or checkpoint that its weights grew from, if any.
        created_at: Seconds since the epoch.
        expires_at: When its time to live is over, in seconds since the epoch; None for never.
    """

    handle: str
    policy_id: PolicyId
    number: int
    step: int
    base_model: str
    kind: PolicyKind
    path: str
    parent: str | None
    created_at: float
    expires_at: float | None = None

    @classmethod
    def of(cls, manifest: Manifest, path: str) -> Snapshot:
        """The snapshot that a manifest describes, stored at a path or URL."""
        return cls(
            handle=manifest.handle,
            policy_id=Handle.parse(manifest.handle).policy_id,
            number=manifest.number,
            step=manifest.step,
            base_model=manifest.base_model,
            kind=manifest.kind,
            path=path,
            parent=manifest.parent,
            created_at=manifest.created_at,
            expires_at=manifest.expires_at,
        )

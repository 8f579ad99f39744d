"""What the gateway remembers of each session, model, sampler and checkpoint. A field is a column."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from tinker_actors.errors import PolicyError

CheckpointKind: TypeAlias = Literal["training", "sampler", "external"]
SamplerKind: TypeAlias = Literal["base", "snapshot", "inflight"]
UsageKind: TypeAlias = Literal["trained", "prompt", "cached", "sampled", "checkpoints"]
"""Tokens of forward and backward passes, of prompts that were computed, of prompts that needn't be, of samples; and
checkpoints that were saved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRecord:
    """One client's session. Times are in seconds since the epoch.

    Attributes:
        session_id: Drawn by the gateway.
        tenant: Whose it is.
        created_at: When it began.
        seen_at: When its client was last heard of.
        sdk_version: What the client says that it is.
        tags: As the client gave them.
        user_metadata: As the client gave it.
        display_name: As the client gave it.
        project: As the client gave it.
        ended_at: When it ended; None while it goes on.
        ended: How: `success`, `errored` or `interrupted` as its client said, or `expired`.
        ended_detail: What its client said more.
    """

    session_id: str
    tenant: str
    created_at: float
    seen_at: float
    sdk_version: str = ""
    tags: tuple[str, ...] = ()
    user_metadata: Mapping[str, Any] = field(default_factory=dict)
    display_name: str | None = None
    project: str | None = None
    ended_at: float | None = None
    ended: str | None = None
    ended_detail: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRecord:
    """One training run: a policy that a client made.

    Attributes:
        model_id: `SESSION:train:N`; also the policy's id.
        tenant: Whose it is.
        session_id: Made in which session.
        base_model: Name under which its base model is served.
        rank: Of the adapter.
        optimizer: Name of the optimizer that it was made for.
        created_at: When it was made.
        used_at: When it was last asked anything.
        user_metadata: As the client gave it.
        parent: Path of the checkpoint that it started from, if any.
        inflight: Handle of the snapshot that its inflight samplers serve, if any.
        freed_at: When its training state was freed; None while it is in training.
    """

    model_id: str
    tenant: str
    session_id: str
    base_model: str
    rank: int
    optimizer: str
    created_at: float
    used_at: float
    user_metadata: Mapping[str, Any] = field(default_factory=dict)
    parent: str | None = None
    inflight: str | None = None
    freed_at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerRecord:
    """One sampling session.

    Attributes:
        sampler_id: `SESSION:sample:N`.
        tenant: Whose it is.
        session_id: Made in which session.
        base_model: Name under which its base model is served.
        kind: `base` samples the base model; `snapshot` fixed weights; `inflight` what its model published last.
        created_at: When it was made.
        path: The checkpoint's path as the client named it; None for the base model and for weights without a name.
        handle: The snapshot's handle in the store (`snapshot`).
        model_id: The model whose weights it samples, if any.
        clones: How many clients share it beyond the first.
    """

    sampler_id: str
    tenant: str
    session_id: str
    base_model: str
    kind: SamplerKind
    created_at: float
    path: str | None = None
    handle: str | None = None
    model_id: str | None = None
    clones: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRecord:
    """One named checkpoint.

    Attributes:
        path: `tinker://MODEL/KIND/NAME`, as clients name it.
        tenant: Whose it is.
        model_id: Saved by which model.
        kind: `training`, `sampler` or `external`.
        handle: Its handle in the store, which may have another name.
        base_model: Name under which its base model is served.
        rank: Of the adapter.
        created_at: When it was saved.
        size: Bytes.
        public: Whether every tenant may read it.
        expires_at: When it goes; None for never.
        user_metadata: As the client gave it.
        encrypted: Whether its files are, to others than the service.
    """

    path: str
    tenant: str
    model_id: str
    kind: CheckpointKind
    handle: str
    base_model: str
    rank: int
    created_at: float
    size: int = 0
    public: bool = False
    expires_at: float | None = None
    user_metadata: Mapping[str, Any] = field(default_factory=dict)
    encrypted: bool = False

    def check_legible(self) -> None:
        """Refuse what the service can't read.

        Raises:
            PolicyError: Its files are encrypted.
        """
        if self.encrypted:
            raise PolicyError(f"{self.path} is encrypted; only those whom it is encrypted to can read it")


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscardRecord:
    """Files that are to be deleted, or that are being stored and aren't on record yet; gone with them or once they are.

    Attributes:
        handle: Their handle in the store, which is never that of others.
        base_model: Name under which their base model is served.
        storing: Whether a process that lives is storing them; once it was killed they are to be deleted.
    """

    handle: str
    base_model: str
    storing: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageRecord:
    """How much of one kind a session used in one hour.

    Attributes:
        key: All of the following but the count.
        tenant: Whose session it is.
        hour: When the hour began, in seconds since the epoch.
        session_id: The session.
        base_model: Of which base model.
        kind: What is counted.
        count: Tokens, or checkpoints.
    """

    key: str
    tenant: str
    hour: int
    session_id: str
    base_model: str
    kind: UsageKind
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRecord:
    """Something that happened to a checkpoint.

    Attributes:
        id: Drawn by the gateway.
        tenant: Whose checkpoint it is.
        at: When, in seconds since the epoch.
        event: What, such as `checkpoint_publish`.
        path: The checkpoint.
        key: Id of the API key that did it.
        details: What else there is to say.
    """

    id: str
    tenant: str
    at: float
    event: str
    path: str
    key: str
    details: Mapping[str, Any] = field(default_factory=dict)

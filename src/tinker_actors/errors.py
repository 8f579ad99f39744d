"""The error tree: every error this package raises on purpose derives from `TinkerActorsError`.

Members also subclass the builtin that a caller would expect to catch. A message says what was wrong, the value
seen and what would be right.
"""

from __future__ import annotations

import errno

FULL_DISK = (errno.ENOSPC, errno.EDQUOT)
"""Numbers of an `OSError` that says that a disk or a quota is full."""


class TinkerActorsError(Exception):
    """Base of every error that this package raises on purpose."""


class ConfigError(TinkerActorsError, ValueError):
    """A configuration cannot work: an unknown key, a wrong type, a combination that is refused."""


class DataError(TinkerActorsError, ValueError):
    """A turn, trajectory or datum violates the data contract; names the seat, the turn and the field."""


class ModelError(TinkerActorsError, ValueError):
    """A base model, tokenizer or chat template can't be used as asked."""


class ModelNotFoundError(ModelError, LookupError):
    """A model name resolves to nothing; says what was tried."""


class PolicyError(TinkerActorsError, RuntimeError):
    """A policy operation is not possible in the policy's present state."""


class UnknownPolicyError(PolicyError, LookupError):
    """No policy or snapshot has this id; the base model is never served instead."""


class NotInTrainingError(UnknownPolicyError):
    """A trainer has no policy of this id: it was never made, was deleted, or went with the process that held it."""


class PolicyConflictError(PolicyError):
    """Somebody else was first: the latest snapshot isn't the one that was expected."""


class StoreError(PolicyError):
    """A snapshot store can't be reached; the cause is chained."""


class SnapshotCorruptError(PolicyError):
    """A snapshot's or checkpoint's files do not match its manifest."""


class SamplingError(TinkerActorsError, RuntimeError):
    """A sampling request can't be served."""


class ContextOverflowError(SamplingError, ValueError):
    """A prompt, or prompt plus reply, exceeds the context; carries both lengths in its message."""


class EpisodeError(TinkerActorsError, RuntimeError):
    """User code of an environment or agent failed; the cause is chained, the task and seat are named."""


class AlgorithmError(TinkerActorsError, ValueError):
    """An algorithm or estimator can't work on the given rewards or settings."""


class RunError(TinkerActorsError, RuntimeError):
    """A run can't start or go on; one line says why."""


class JobError(TinkerActorsError, RuntimeError):
    """A scheduler can't do what is asked of it."""


class UnknownJobError(JobError, LookupError):
    """No job of this tenant has this id."""


class JobRefusedError(JobError, ValueError):
    """A job could never run as asked; says what could."""


class JobStateError(JobError):
    """A job can't go from its present state to the one asked for."""


class SchedulerFolderError(JobError):
    """Another scheduler has the folder."""


class ActorError(TinkerActorsError, RuntimeError):
    """Base of the errors of the actor runtime."""

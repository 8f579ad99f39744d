"""Handles: the opaque strings that name snapshots and checkpoints."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, TypeAlias, cast, get_args

from tinker_actors.errors import PolicyError

PolicyId: TypeAlias = str
HandleKind: TypeAlias = Literal["sampler_weights", "weights"]

SCHEME = "tinker://"

_LONGEST = 128

# The first character is no dot and no slash is allowed, so that a name is one path component below the store's root.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*", re.ASCII)

_ALLOWED = "1 to 128 letters, digits, dots, dashes and underscores are needed, the first a letter or digit"


def check_id(what: str, value: str) -> str:
    """`value`, if it may name a policy: such names, joined by single colons, as in `SESSION:train:1`.

    Raises:
        PolicyError: It is empty, longer than 128 characters, or has a character that could leave its folder.
    """
    if not _is_id(value):
        raise PolicyError(f"{what} is {value!r}; {_ALLOWED}, and of each part where single colons join several")
    return value


def _is_id(value: str) -> bool:
    return len(value) <= _LONGEST and all(map(_NAME.fullmatch, value.split(":")))


def check_name(what: str, value: str) -> str:
    """`value`, if it may name one snapshot or checkpoint of a policy.

    Raises:
        PolicyError: It is empty, longer than 128 characters, or has a character that could leave its folder.
    """
    if len(value) > _LONGEST or not _NAME.fullmatch(value):
        raise PolicyError(f"{what} is {value!r}; {_ALLOWED}")
    return value


def folder_of(policy_id: PolicyId) -> str:
    """The name of a policy's folder: its id with `=` for `:`, which not every file system or tool takes.

    >>> folder_of("0f3c:train:1")
    '0f3c=train=1'
    """
    return policy_id.replace(":", "=")


def policy_of(folder: str) -> PolicyId | None:
    """The policy that a folder is of, None if it is of none; no id has `=`, so that no two have one folder."""
    policy_id = folder.replace("=", ":")
    return policy_id if _is_id(policy_id) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Handle:
    """Names one snapshot or checkpoint; its string is `tinker://<policy id>/<kind>/<name>`.

    >>> str(Handle(policy_id="guesser", kind="sampler_weights", name="000003"))
    'tinker://guesser/sampler_weights/000003'
    >>> Handle.parse("tinker://guesser/weights/final").name
    'final'

    Attributes:
        policy_id: The policy.
        kind: `sampler_weights` for a snapshot that samplers serve, `weights` for a training checkpoint.
        name: Unique for the policy and kind.
    """

    policy_id: PolicyId
    kind: HandleKind
    name: str

    def __post_init__(self) -> None:
        check_id("policy id", self.policy_id)
        check_name("handle name", self.name)
        if self.kind not in get_args(HandleKind):
            raise PolicyError(f"handle kind is {self.kind!r}; {' or '.join(get_args(HandleKind))} is needed")

    def __str__(self) -> str:
        return f"{SCHEME}{self.policy_id}/{self.kind}/{self.name}"

    @classmethod
    def parse(cls, text: str, *, kind: HandleKind | None = None) -> Handle:
        """Read a handle's string.

        Args:
            text: `tinker://<policy id>/<kind>/<name>`.
            kind: Refuse handles of another kind.

        Raises:
            PolicyError: The text is no handle, or one of another kind.
        """
        parts = text.removeprefix(SCHEME).split("/")
        if not text.startswith(SCHEME) or len(parts) != 3:
            raise PolicyError(f"{text!r} is no handle; {SCHEME}<policy id>/<kind>/<name> is needed")
        handle = cls(policy_id=parts[0], kind=cast(HandleKind, parts[1]), name=parts[2])
        if kind is not None and handle.kind != kind:
            raise PolicyError(f"{text} is of kind {handle.kind}; {kind} is needed here")
        return handle

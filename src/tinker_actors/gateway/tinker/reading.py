"""Reading another tenant's weights: public ones, or with a credential of that tenant's, which it handed over."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from fastapi import Request

from tinker_actors.gateway.caller import Caller
from tinker_actors.gateway.record_kinds import CheckpointRecord
from tinker_actors.gateway.refusals import RefusalError
from tinker_actors.gateway.scopes import Scope

if TYPE_CHECKING:
    from tinker_actors.gateway.gateway import Gateway

_ENOUGH: tuple[Scope, ...] = ("read", "train", "sample")
"""Scopes of which one lets a key read its tenant's weights."""

_CREDENTIALS = (b"x-api-key", b"authorization")


def readers(request: Request, caller: Caller, token: str | None, gateway: Gateway) -> tuple[Caller, ...]:
    """As whom a request may read weights: as its caller and, with a `weights_access_token`, as whoever that is of.

    Args:
        request: The request.
        caller: Who asks.
        token: An API key, or a token that stands for one; usually of another tenant.
        gateway: Knows who is let in.

    Raises:
        RefusalError: The token lets nobody in, or may not read weights.
    """
    if token is None:
        return (caller,)
    rest = [pair for pair in request.scope["headers"] if pair[0] not in _CREDENTIALS]
    with_token = {**request.scope, "headers": [*rest, (b"x-api-key", token.encode())], "state": {}}
    try:
        lender = gateway.admit(Request(with_token))
    except RefusalError as error:  # not 401, by which clients take their own key for a bad one
        detail = (
            "weights_access_token is an API key, or a token that stands for one, that is unknown, expired or revoked"
        )
        raise RefusalError(400, detail, code="invalid_weights_token") from error
    if not any(lender.may(scope) for scope in _ENOUGH):
        detail = f"weights_access_token may not read weights; it needs the scope {' or '.join(_ENOUGH)}"
        raise RefusalError(400, detail, code="invalid_weights_token")
    return (caller, lender)


def find_by(who: Sequence[Caller], path: str, gateway: Gateway) -> tuple[CheckpointRecord, dict[str, str]]:
    """A checkpoint that one of these callers may read.

    Args:
        who: As of `readers`: first who asks.
        path: The checkpoint's path.
        gateway: Has the records.

    Returns:
        The checkpoint, and what the log is to tell of whose credential opened it.

    Raises:
        RefusalError: None of them may know of such a checkpoint.
    """
    for caller in who[:-1]:
        with suppress(RefusalError):
            return gateway.records.checkpoint(caller, path), {}
    lent = {} if len(who) == 1 else {"weights_access_key": who[-1].key}
    return gateway.records.checkpoint(who[-1], path), lent


def note_read(record: CheckpointRecord, caller: Caller, gateway: Gateway, *, purpose: str, **lent: str) -> None:
    """Tell the log of a checkpoint's tenant that somebody reads it.

    Args:
        record: The checkpoint.
        caller: Who reads it.
        gateway: Has the log.
        purpose: What for.
        lent: Whose credential opened it, as of `find_by`.
    """
    about = {"by": caller.tenant, "purpose": purpose, **lent}
    gateway.accounts.note(record.tenant, "checkpoint_read", path=record.path, key=caller.key, **about)

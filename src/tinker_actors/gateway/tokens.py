"""Short-lived tokens that stand for an API key, so that clients needn't send the key itself with every request.

A token is a JWT (RFC 7519) that is signed with a secret of this process, so it ends with the process at the latest; the
official client fetches another one by itself when its token isn't taken any more. It carries no rights: it names a key,
which is looked up for every request, so that it ends with that key and has that key's scopes.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass

import jwt

from tinker_actors.gateway.caller import Caller

PREFIX = "eyJ"
"""What every JWT begins with, and no key: a JSON object's first characters in base64."""

LIFETIME = 900.0
"""Seconds for which a token is good; clients renew it after half of them."""

_ALGORITHM = "HS256"
_ISSUER = "passport-tinker-actors"
"""The official client reads who it is only from issuers whose names begin so."""


def urn(tenant: str) -> str:
    """A tenant's name as clients read names of users and organisations."""
    return f"tml:organization:{tenant}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What a token says.

    Attributes:
        key: Id of the key that it stands for.
        until: When it ends, in seconds since 1970.
    """

    key: str
    until: float


class Tokens:
    """Issues tokens, and reads them again.

    Args:
        lifetime: Seconds for which one is good.
        clock: Seconds since 1970, for when one is issued.
    """

    def __init__(self, *, lifetime: float = LIFETIME, clock: Callable[[], float] = time.time) -> None:
        self._secret = secrets.token_bytes(32)
        self._lifetime, self._clock = lifetime, clock

    def issue(self, caller: Caller) -> str:
        """A token for the key that a caller came with; it never outlives what it was exchanged for."""
        now = self._clock()
        until = now + self._lifetime if caller.until is None else min(now + self._lifetime, caller.until)
        claims = {
            "iss": _ISSUER,
            "sub": urn(caller.tenant),
            "org_id": caller.tenant,
            "key": caller.key,
            "iat": now,
            "exp": until,
        }
        return jwt.encode(claims, self._secret, _ALGORITHM)

    def read(self, token: str) -> Standing | None:
        """What a token says; None if it was not issued here, was altered, or is over."""
        try:
            claims = jwt.decode(
                token,
                self._secret,
                algorithms=[_ALGORITHM],
                issuer=_ISSUER,
                options={"require": ["exp", "iat", "key"]},
            )
        except jwt.InvalidTokenError:
            return None
        return Standing(key=claims["key"], until=claims["exp"])

"""Addresses that open one thing for a while, for whoever has them: clients fetch files without their key."""

from __future__ import annotations

import base64
import binascii
import hmac
import secrets
import time
from typing import Any

import orjson

from tinker_actors.gateway.refusals import not_found

_DIGEST = 32


class Signer:
    """Signs what an address opens, with a key that lives as long as the process."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)

    def sign(self, opens: dict[str, Any], *, expires_at: float) -> str:
        """The last part of an address.

        Args:
            opens: What it opens, as JSON data.
            expires_at: Until when, in seconds since the epoch.
        """
        content = orjson.dumps([expires_at, opens])
        return base64.urlsafe_b64encode(self._digest(content) + content).rstrip(b"=").decode()

    def opened(self, token: str) -> dict[str, Any]:
        """What an address opens.

        Raises:
            RefusalError: It was not signed here, or its time is over.
        """
        try:
            raw = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
        except (binascii.Error, ValueError):
            raw = b""
        digest, content = raw[:_DIGEST], raw[_DIGEST:]
        if not content or not hmac.compare_digest(digest, self._digest(content)):
            raise not_found("download", token[:16])
        expires_at, opens = orjson.loads(content)
        if expires_at <= time.time():
            raise not_found("download", token[:16])
        return opens

    def _digest(self, content: bytes) -> bytes:
        return hmac.digest(self._key, content, "sha256")

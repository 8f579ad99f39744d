"""A gateway as the command line asks it: over HTTP, with errors that fit on one line."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from tinker_actors.errors import ConfigError, JobError, UnknownJobError

DEFAULT_URL = "http://127.0.0.1:8400"
URL_VARIABLE, KEY_VARIABLE = "TINKER_ACTORS_URL", "TINKER_ACTORS_API_KEY"

_TIMEOUT = httpx.Timeout(30.0, connect=5.0)
_PATIENCE = 30.0
"""Seconds that a followed stream that was cut may take to come back: a gateway that is started anew."""


class Service:
    """A gateway.

    Args:
        url: Where it serves; `$TINKER_ACTORS_URL` if None, or else port 8400 of this host. The key comes from
            `$TINKER_ACTORS_API_KEY`.

    Raises:
        ConfigError: That is no URL, or the key can't be one.
    """

    def __init__(self, url: str | None = None) -> None:
        self.url = (url or os.environ.get(URL_VARIABLE) or DEFAULT_URL).rstrip("/")
        if not self.url.startswith(("http://", "https://")):
            raise ConfigError(f"the gateway's URL is {self.url!r}; http://HOST:PORT is needed")
        key = os.environ.get(KEY_VARIABLE, "").strip()
        if not key.isascii():
            raise ConfigError(f"${KEY_VARIABLE} holds characters that no key has; as `keys add` shows it is right")
        headers = {"X-API-Key": key} if key else {}
        try:
            self._http = httpx.Client(base_url=self.url, headers=headers, timeout=_TIMEOUT)
        except httpx.InvalidURL as error:
            raise ConfigError(f"the gateway's URL is {self.url!r}: {error}; http://HOST:PORT is needed") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._http.close()

    def get(self, path: str, **parameters: Any) -> dict[str, Any]:
        """What a route tells.

        Raises:
            ConfigError: Nobody serves there, or the key is wrong.
            UnknownJobError: There is no such job, or it is another's.
            JobError: It is refused for another reason.
        """
        return self._ask("GET", path, params=parameters)

    def post(self, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """What a route answers; errors as of `get`."""
        return self._ask("POST", path, json=body or {})

    def delete(self, path: str, **parameters: Any) -> dict[str, Any]:
        """What a route answers; errors as of `get`."""
        return self._ask("DELETE", path, params=parameters)

    def upload(self, path: Path) -> str:
        """Send the rows of a file; what a configuration calls them. Errors as of `get`."""
        with path.open("rb") as file:
            return self._ask("POST", "/jobs/v1/uploads", content=file)["upload"]

    def follow(
        self, path: str, name: str, begin: Mapping[str, int], *, unit: bytes | None, follow: bool
    ) -> Iterator[bytes]:
        """A stream that goes on where it was cut, should the gateway be started anew meanwhile.

        Args:
            path: Its route.
            name: The parameter that says from where it goes on.
            begin: The parameters that say from where at first.
            unit: What counts towards it: the byte that ends a row, of which only whole ones are given, or every byte
                if None.
            follow: Whether it goes on until the job is over.

        Raises:
            ConfigError: Errors as of `get`.
        """
        cut: float | None = None
        position = begin.get(name, 0)
        while True:
            came, rest = False, b""
            try:
                parameters = {**begin, "follow": follow}
                timeout = httpx.Timeout(30.0, read=None)
                with self._http.stream("GET", path, params=parameters, timeout=timeout) as answer:
                    if answer.is_error:
                        answer.read()
                        self._check(answer)
                    position = int(answer.headers.get("x-offset", position))
                    for chunk in answer.iter_raw():
                        came = True
                        whole, rest = _whole(rest + chunk, unit)
                        position += len(whole) if unit is None else whole.count(unit)
                        yield whole
                return
            except httpx.TransportError as error:
                now, begin = time.monotonic(), {name: position}
                if cut is None and not came and not isinstance(error, httpx.RemoteProtocolError | httpx.ReadError):
                    raise self._absent(error) from None
                cut = now if came or cut is None else cut
                if now - cut > _PATIENCE:
                    raise self._absent(error) from None
                time.sleep(0.5)

    def _ask(self, method: str, path: str, **more: Any) -> dict[str, Any]:
        try:
            answer = self._http.request(method, path, **more)
        except httpx.TransportError as error:
            raise self._absent(error) from None
        self._check(answer)
        try:
            return answer.json()
        except json.JSONDecodeError:
            raise ConfigError(f"what serves at {self.url} is no gateway of tinker-actors") from None

    def _absent(self, error: httpx.TransportError) -> ConfigError:
        return ConfigError(
            f"nothing answers at {self.url} ({error or type(error).__name__}); start one with `tinker-actors serve`, "
            f"or name another with --url or ${URL_VARIABLE}"
        )

    def _check(self, answer: httpx.Response) -> None:
        if not answer.is_error:
            return
        try:
            found = answer.json()
            detail, code = str(found["detail"]), str(found.get("code", ""))
        except (ValueError, KeyError, TypeError, AttributeError):
            raise ConfigError(
                f"what serves at {self.url} is no gateway of tinker-actors, or of another version: it answered "
                f"{answer.status_code} to {answer.request.url.path}"
            ) from None
        if answer.status_code in (401, 403):
            raise ConfigError(f"{self.url}: {detail} (the key is taken from ${KEY_VARIABLE})")
        if code == "not_found":
            raise UnknownJobError(detail)
        raise JobError(detail)


def _whole(data: bytes, unit: bytes | None) -> tuple[bytes, bytes]:
    """What can be given, and what has to wait for more."""
    if unit is None:
        return data, b""
    end = data.rfind(unit) + 1
    return data[:end], data[end:]

"""What is asked of a vLLM server over HTTP, and what its answers mean."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from tinker_actors.errors import SamplingError
from tinker_actors.sampling.requests import EngineDiedError, InvalidRequestError, Overloaded


class AdapterMissingError(SamplingError):
    """The server knows no adapter of this name: it is another one than the adapter was loaded into."""


class ServerFaultError(SamplingError):
    """The server failed at a request; it may be dead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What a server serves.

    Attributes:
        name: Of the base model.
        context_length: Longest prompt and reply together, in tokens; None if it doesn't say.
    """

    name: str
    context_length: int | None


class VllmClient:
    """A connection to a server.

    Args:
        url: Its address.
        socket: Path of its Unix socket, in place of the address's host and port.
        key: What it wants as bearer token; none if empty.
    """

    def __init__(self, url: str, *, socket: str | None = None, key: str = "") -> None:
        # as many connections as there are requests: the server queues them, and knows which to serve first
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=256)
        self._http = httpx.AsyncClient(
            base_url=url,
            transport=httpx.AsyncHTTPTransport(uds=socket, limits=limits),
            headers={"Authorization": f"Bearer {key}"} if key else {},
            timeout=httpx.Timeout(None, connect=10.0),  # an ask's deadline cancels it
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def healthy(self) -> bool:
        """Whether the server answers and its engine lives."""
        try:
            response = await self._http.get("/health", timeout=5.0)
        except httpx.HTTPError:
            return False
        return response.status_code == 200

    async def served(self, name: str = "") -> Served:
        """The base model of a name, or the first one.

        Raises:
            SamplingError: There is none of this name.
        """
        found = (await self._call("GET", "/v1/models")).json()["data"]
        bases = [entry for entry in found if not entry.get("parent")]
        for entry in bases:
            if name in ("", entry["id"]):
                return Served(name=entry["id"], context_length=entry.get("max_model_len"))
        raise SamplingError(f"the server has no model {name!r}; it serves {[entry['id'] for entry in bases]}")

    async def load(self, name: str, path: str) -> None:
        """Load an adapter.

        Raises:
            SamplingError: The server refuses it, or loads none while it runs.
        """
        try:
            await self._call("POST", "/v1/load_lora_adapter", {"lora_name": name, "lora_path": path})
        except AdapterMissingError as error:
            raise SamplingError(
                f"the server can't load {path}: {error}. It must see that folder, and run with "
                "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1"
            ) from error

    async def unload(self, name: str) -> None:
        """Unload an adapter; nothing happens to one that isn't there."""
        with contextlib.suppress(AdapterMissingError):
            await self._call("POST", "/v1/unload_lora_adapter", {"lora_name": name})

    async def complete(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """A completion as a whole."""
        return (await self._call("POST", "/v1/completions", body)).json()

    async def stream(self, body: Mapping[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """A completion part by part.

        Raises:
            EngineDiedError: The answer broke off.
        """
        try:
            async with self._http.stream("POST", "/v1/completions", json=dict(body)) as response:
                if response.status_code != 200:
                    await response.aread()
                    _refuse(response)
                async for line in response.aiter_lines():
                    if not line.startswith("data:"):
                        continue
                    data = line.removeprefix("data:").strip()
                    if data == "[DONE]":
                        return
                    part = json.loads(data)
                    if error := part.get("error"):
                        raise ServerFaultError(f"the server failed: {error.get('message', error)}")
                    yield part
        except httpx.TransportError as error:
            raise _lost(error) from error
        raise EngineDiedError("the server broke off its answer")

    async def _call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> httpx.Response:
        try:
            response = await self._http.request(method, path, json=None if body is None else dict(body))
        except httpx.TransportError as error:
            raise _lost(error) from error
        if response.status_code != 200:
            _refuse(response)
        return response


def _lost(error: httpx.TransportError) -> EngineDiedError:
    return EngineDiedError(f"the server can't be reached: {type(error).__name__}: {error}")


def _refuse(response: httpx.Response) -> None:
    """Raise what an answer that is none means."""
    try:
        said = response.json()
        message = str((said.get("error") or said).get("message", said))
    except (ValueError, AttributeError):
        message = response.text[:500]
    status = response.status_code
    if status == 404:
        raise AdapterMissingError(message)
    if status in (429, 503):
        seconds = response.headers.get("retry-after", "")
        raise Overloaded(f"the server is overloaded: {message}", float(seconds) if seconds.isdigit() else 1.0)
    if status in (400, 413, 422):
        raise InvalidRequestError(f"the server refuses the request: {message}")
    if status in (401, 403):
        raise SamplingError(f"the server wants another key ({status}): {message}; see api_key_variable")
    raise ServerFaultError(f"the server failed ({status}): {message}")

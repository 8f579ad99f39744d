"""A gateway to be fuzzed: it asks for answers that come later, and any that says that the service failed is a find."""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import psutil
from tests.gateway.gateways import TINY

from tinker_actors.gateway.futures import Futures
from tinker_actors.gateway.gateway import Gateway, create_app
from tinker_actors.gateway.limits import Limits
from tinker_actors.gateway.runtime import Runtime
from tinker_actors.gateway.tinker import fetching, sampling
from tinker_actors.gateway.tinker.executor import LiveModel

ENDLESS = Limits(
    requests=1e9, requests_burst=10**9, polls=1e9, polls_burst=10**9, address_requests=1e9, address_burst=10**9
)


class Fuzzed:
    """A gateway on an event loop of its own, which runs while it is asked; not to be used from another loop.

    Attributes:
        ids: What a client has: a session, a model in it, a sampler, a checkpoint.
        asked: How many inputs it was given.
        statuses: How many answers had which status.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._runner = asyncio.Runner()
        self._stack = AsyncExitStack()
        self.asked = self.fresh_at = 0
        self.statuses: dict[int, int] = {}
        self.ids: dict[str, Any] = {}

    def __enter__(self) -> Fuzzed:
        self._held = fetching.HELD, sampling.HELD
        fetching.HELD = sampling.HELD = 0.1  # polls that nothing answers take no half minute
        self._runner.run(self._start())
        return self

    def __exit__(self, *_: object) -> None:
        fetching.HELD, sampling.HELD = self._held
        self._runner.run(self._stack.aclose())
        self._runner.close()

    async def _start(self) -> None:
        runtime = await self._stack.enter_async_context(Runtime(self._root, [TINY], in_process=True))
        self.gateway = await self._stack.enter_async_context(Gateway(runtime=runtime, limits=ENDLESS))
        # answers are kept for a moment only, so that what stays in memory is a leak
        self.futures: Futures = self.gateway.futures
        self.futures._kept = self.futures._kept_read = 2.0
        transport = httpx.ASGITransport(create_app(self.gateway))
        client = httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1")
        self.client = await self._stack.enter_async_context(client)
        await self._fresh()

    @property
    def stuck(self) -> bool:
        """Whether commands wait for one that never comes."""
        return any(live.log.gap is not None for live in self._models())

    @property
    def next_command(self) -> int:
        """The number of the model's next command."""
        return next((live.log.next_id for live in self._models() if live.model_id == self.ids["model_id"]), 1)

    def _models(self) -> list[LiveModel]:
        executors = self.gateway.training._executors.values()
        return [live for executor in executors for live in executor.models.values()]

    def fresh(self) -> None:
        """End the session, with all that was made in it, and begin another."""
        self.fresh_at = self.asked
        self._runner.run(self._fresh())

    async def _fresh(self) -> None:
        if self.ids:
            await self.client.post(f"/api/v1/sessions/{self.ids['session_id']}/finish", json={})
        session = (await self._post("create_session", {}))["session_id"]
        made = {"session_id": session, "model_seq_id": 0, "base_model": TINY.name, "lora_config": {"rank": 1}}
        model = (await self._later("create_model", made))["model_id"]
        named = {"model_id": model, "seq_id": 1, "path": "first"}
        path = (await self._later("save_weights_for_sampler", named))["path"]
        sampler = {"session_id": session, "sampling_session_seq_id": 0, "model_path": path}
        found = (await self._post("create_sampling_session", sampler))["sampling_session_id"]
        self.ids = {
            "session_id": session,
            "model_id": model,
            "path": path,
            "model_path": path,
            "tinker_path": path,
            "source_path": path,
            "sampling_session_id": found,
            "sampler_id": found,
            "base_model": TINY.name,
        }

    async def _post(self, route: str, body: dict[str, Any]) -> dict[str, Any]:
        answer = await self.client.post(f"/api/v1/{route}", json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def _later(self, route: str, body: dict[str, Any]) -> dict[str, Any]:
        asked = {"request_id": (await self._post(route, body))["request_id"]}
        while (answer := await self.client.post("/api/v1/retrieve_future", json=asked)).status_code == 408:
            pass
        return answer.json()

    def send(self, path: str, content: bytes, *, method: str = "POST", **headers: str) -> httpx.Response:
        """Ask, and wait a moment for what comes later.

        Raises:
            AssertionError: The service failed, at once or later.
        """
        return self._runner.run(self._send(path, content, method, headers))

    async def _send(self, path: str, content: bytes, method: str, headers: dict[str, str]) -> httpx.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        answer = await self.client.request(method, path, content=content, headers=named)
        self.asked += 1
        self.statuses[answer.status_code] = self.statuses.get(answer.status_code, 0) + 1
        assert answer.status_code < 500, f"{path}: {answer.status_code} {answer.text}"
        assert answer.elapsed.total_seconds() < 20
        if answer.status_code == 200 and "json" in answer.headers.get("content-type", ""):
            request_id = _request_id(answer.content)
            future = self.futures._all.get(request_id or "")
            patience = 0.0 if self.stuck else 5.0
            if future is not None and await future.settled(patience) and future.answer and future.answer.failed:
                said = json.loads(future.answer.content)
                assert said["category"] == "user", f"{path}: {said}"
        return answer


def _request_id(content: bytes) -> str | None:
    found = json.loads(content)
    return found.get("request_id") if isinstance(found, dict) else None


def memory() -> int:
    """Bytes of this process and of those below it."""
    own = psutil.Process()
    return sum(process.memory_info().rss for process in (own, *own.children(recursive=True)))


class Pace:
    """Says now and then how far it is; for runs of many minutes."""

    def __init__(self) -> None:
        self.began = time.monotonic()

    def rate(self, count: int) -> float:
        """Inputs a second."""
        return count / max(time.monotonic() - self.began, 1e-9)

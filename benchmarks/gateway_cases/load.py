"""Many clients at a time, polite ones and others: what the service refuses, how fast it lets in, what it holds."""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from benchmarks.gateway_cases.service import NAME, Service

HEADERS = {"X-API-Key": "tml-benchmark"}
ARRIVING = 10.0
"""Seconds in which the clients come, one after another."""


@dataclass(slots=True, kw_only=True)
class Seen:
    """What the clients saw.

    Attributes:
        admission: Seconds until each `asample` was answered with its promise.
        statuses: How often each HTTP status came.
        failed: Answers that say that a request failed, one of each text.
        samples: How many requests were sampled.
        steps: How many optimizer steps were taken.
        megabytes: Memory of the service's process, every second.
    """

    admission: list[float] = field(default_factory=list)
    statuses: dict[int, int] = field(default_factory=dict)
    failed: set[str] = field(default_factory=set)
    samples: int = 0
    steps: int = 0
    megabytes: list[float] = field(default_factory=list)

    @property
    def server_errors(self) -> int:
        """Answers of the 500s."""
        return sum(count for status, count in self.statuses.items() if status >= 500)

    @property
    def p99_admission(self) -> float:
        """In milliseconds."""
        return statistics.quantiles(self.admission, n=100)[98] * 1e3

    @property
    def growth(self) -> float:
        """Memory of the last quarter as a share of the second quarter's: 1 is flat."""
        quarter = len(self.megabytes) // 4
        return statistics.median(self.megabytes[-quarter:]) / statistics.median(self.megabytes[quarter : 2 * quarter])


class Clients:
    """All clients of one run."""

    def __init__(self, service: Service, http: aiohttp.ClientSession, until: float) -> None:
        self.service, self.http, self.until = service, http, until
        self.seen = Seen()

    async def post(self, route: str, **body: Any) -> tuple[int, Any]:
        """A request's status and answer."""
        async with self.http.post(f"{self.service.url}/api/v1/{route}", json=body, headers=HEADERS) as answer:
            self.seen.statuses[answer.status] = self.seen.statuses.get(answer.status, 0) + 1
            return answer.status, await answer.json()

    async def result(self, promise: dict[str, Any]) -> Any:
        """The answer of a promise."""
        while True:
            status, answer = await self.post("retrieve_future", request_id=promise["request_id"])
            if status != 408:
                if "error" in answer:
                    self.seen.failed.add(str(answer["error"])[:200])
                return answer

    async def sampling(self, number: int) -> None:
        """Sample one after another; some vanish amid a request, and some read slowly."""
        luck = random.Random(number)
        session = (await self.post("create_session"))[1]["session_id"]
        made = await self.post(
            "create_sampling_session", session_id=session, sampling_session_seq_id=0, base_model=NAME
        )
        sampler, seq_id = made[1]["sampling_session_id"], 0
        while time.monotonic() < self.until:
            prompt = {"chunks": [{"type": "encoded_text", "tokens": [luck.randrange(3, 90) for _ in range(16)]}]}
            began = time.perf_counter()
            status, promise = await self.post(
                "asample",
                sampling_session_id=sampler,
                seq_id=seq_id,
                num_samples=1,
                prompt=prompt,
                sampling_params={"max_tokens": 8, "seed": seq_id},
            )
            if status == 429:
                await asyncio.sleep(1)
                continue
            self.seen.admission.append(time.perf_counter() - began)
            seq_id += 1
            if number % 10 == 0:
                await self._vanish(promise)
            elif number % 10 == 1:
                await self._read_slowly(promise)
            else:
                await self.result(promise)
                self.seen.samples += 1

    async def training(self, number: int) -> None:
        """Train an adapter."""
        session = (await self.post("create_session"))[1]["session_id"]
        lora = {"rank": 4, "seed": number, "train_unembed": False}
        asked = {"session_id": session, "model_seq_id": 0, "base_model": NAME, "lora_config": lora}
        model = (await self.result((await self.post("create_model", **asked))[1]))["model_id"]
        tokens = list(range(3 + number, 20 + number))
        inputs = {"target_tokens": {"data": tokens[1:], "dtype": "int64", "shape": [len(tokens) - 1]}}
        datum = {"model_input": {"chunks": [{"tokens": tokens[:-1]}]}, "loss_fn_inputs": inputs}
        batch = {"forward_backward_input": {"data": [datum], "loss_fn": "cross_entropy"}, "model_id": model}
        seq_id = 1
        while time.monotonic() < self.until:
            passed = await self.post("forward_backward", seq_id=seq_id, **batch)
            adam = {"model_id": model, "seq_id": seq_id + 1, "adam_params": {"learning_rate": 1e-4}}
            stepped = await self.post("optim_step", **adam)
            seq_id += 2
            await self.result(passed[1])
            await self.result(stepped[1])
            self.seen.steps += 1

    async def watch(self) -> None:
        """Note the service's memory."""
        while time.monotonic() < self.until:
            self.seen.megabytes.append(self.service.megabytes())
            await asyncio.sleep(1)

    async def _vanish(self, promise: dict[str, Any]) -> None:
        """Go away amid a long poll."""
        try:
            async with asyncio.timeout(0.01):
                await self.post("retrieve_future", request_id=promise["request_id"])
        except TimeoutError:
            pass
        await asyncio.sleep(0.5)

    async def _read_slowly(self, promise: dict[str, Any]) -> None:
        """Read an answer byte by byte."""
        host, port = self.service.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        body = f'{{"request_id": "{promise["request_id"]}"}}'.encode()
        head = f"POST /api/v1/retrieve_future HTTP/1.1\r\nHost: {host}:{port}\r\nX-API-Key: {HEADERS['X-API-Key']}\r\n"
        writer.write(f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        for _ in range(20):
            await reader.read(1)
            await asyncio.sleep(0.05)
        writer.close()


async def measure(service: Service, *, samplers: int, trainers: int, seconds: float) -> Seen:
    """Have clients at work for a while."""
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=60)) as http:
        clients = Clients(service, http, time.monotonic() + seconds)
        async with asyncio.TaskGroup() as group:
            group.create_task(clients.watch())
            for number in range(samplers):
                group.create_task(_arriving(number / samplers, clients.sampling(number)))
            for number in range(trainers):
                group.create_task(_arriving(number / trainers, clients.training(number)))
        return clients.seen


async def _arriving(share: float, client: Coroutine[Any, Any, None]) -> None:
    """Have a client come when that share of the others has come."""
    await asyncio.sleep(share * ARRIVING)
    await client

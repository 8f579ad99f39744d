"""What a call through the gateway takes beyond the same call in process."""

from __future__ import annotations

import asyncio
import http.client
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import tinker
from tinker import types
from tinker.proto import tinker_public_pb2 as wire
from tinker.proto.request_conv import forward_backward_request_to_proto

from benchmarks.gateway_cases.service import NAME, Service
from tinker_actors.actors import Mesh
from tinker_actors.data import Datum, ModelInput
from tinker_actors.policies import PolicySpec
from tinker_actors.training import AdamParams, LossConfig, Trainer

TOKENS = [1, 5, 9, 7, 3, 4, 8]
LORA = {"rank": 8, "seed": 1, "train_unembed": False}


@dataclass(slots=True, kw_only=True)
class Calls:
    """What calls took.

    Attributes:
        passes: Milliseconds of each `forward_backward`.
        steps: Milliseconds of each `optim_step`.
        processor: Processor milliseconds of a call, client and service together.
    """

    passes: list[float] = field(default_factory=list)
    steps: list[float] = field(default_factory=list)
    processor: float = 0.0

    def run(self, passed: Callable[[], object], stepped: Callable[[], object]) -> None:
        """Make both calls once."""
        start = time.perf_counter()
        passed()
        middle = time.perf_counter()
        stepped()
        self.passes.append((middle - start) * 1e3)
        self.steps.append((time.perf_counter() - middle) * 1e3)

    def medians(self) -> dict[str, float]:
        """Of the calls but for the first few, which warm up."""
        skipped = len(self.passes) // 10
        return {
            "forward_backward_p50": statistics.median(self.passes[skipped:]),
            "optim_step_p50": statistics.median(self.steps[skipped:]),
            "processor": self.processor,
        }


def by_the_client(service: Service, calls: int) -> Calls:
    """By the official client, each call awaited."""
    found = Calls()
    with tinker.ServiceClient(base_url=service.url) as client:
        model = client.create_lora_training_client(base_model=NAME, **LORA).result()
        before = service.processor_seconds()
        for _ in range(calls):
            found.run(
                lambda: model.forward_backward([_datum()], "cross_entropy").result(),
                lambda: model.optim_step(types.AdamParams(learning_rate=1e-4)).result(),
            )
        found.processor = (service.processor_seconds() - before) * 1e3 / (2 * calls)
    return found


def by_plain_http(service: Service, calls: int) -> Calls:
    """By the same requests on one connection, without a client's library."""
    found, plain = Calls(), _Plain(service.url)
    session = plain.ask("create_session")["session_id"]
    asked = {"session_id": session, "model_seq_id": 0, "base_model": NAME, "lora_config": LORA}
    model = plain.result(plain.ask("create_model", **asked))["model_id"]
    before = service.processor_seconds()
    for number in range(calls):
        batch = types.ForwardBackwardInput(data=[_datum()], loss_fn="cross_entropy")
        request = types.ForwardBackwardRequest(forward_backward_input=batch, model_id=model, seq_id=2 * number + 1)
        body = forward_backward_request_to_proto(request).SerializeToString()
        adam = {"model_id": model, "seq_id": 2 * number + 2, "adam_params": {"learning_rate": 1e-4}}
        found.run(
            lambda body=body: plain.output(plain.send("forward_backward", body, "application/x-protobuf")),
            lambda adam=adam: plain.result(plain.ask("optim_step", **adam)),
        )
    found.processor = (service.processor_seconds() - before) * 1e3 / (2 * calls)
    plain.ask(f"sessions/{session}/finish")
    return found


def in_process(base_model: str, scratch: Path, calls: int) -> Calls:
    """By a trainer actor in a child process, as the gateway has it, without the gateway."""
    return asyncio.run(_in_process(base_model, scratch, calls))


async def _in_process(base_model: str, scratch: Path, calls: int) -> Calls:
    found, length = Calls(), len(TOKENS) - 1
    datum = Datum(model_input=ModelInput.of(TOKENS[:-1]), targets=tuple(TOKENS[1:]), weights=(1.0,) * length)
    loss, adam = LossConfig(name="cross_entropy"), AdamParams(learning_rate=1e-4, eps=1e-12)
    async with Mesh(nodes=2) as mesh:
        trainer = await mesh.spawn(Trainer, base_model=base_model, store=str(scratch / "policies"), node=1)
        spec = PolicySpec(base_model=base_model, rank=8, seed=1, targets=("attention", "mlp"))
        policy = await trainer.create(spec)
        before = _processor_seconds()
        for _ in range(calls):
            start = time.perf_counter()
            await trainer.forward_backward(policy, [datum], loss, every_target=True)
            middle = time.perf_counter()
            await trainer.optim_step(policy, adam)
            found.passes.append((middle - start) * 1e3)
            found.steps.append((time.perf_counter() - middle) * 1e3)
        found.processor = (_processor_seconds() - before) * 1e3 / (2 * calls)
    return found


def _datum() -> types.Datum:
    inputs: Any = {"target_tokens": TOKENS[1:], "weights": [1.0] * (len(TOKENS) - 1)}
    return types.Datum(model_input=types.ModelInput.from_ints(TOKENS[:-1]), loss_fn_inputs=inputs)


def _processor_seconds() -> float:
    """Of the trainer's process and this one, but not of a service that runs beside."""
    own = psutil.Process()
    trainers = [child for child in own.children() if "worker" in " ".join(child.cmdline())]
    return sum(sum(found.cpu_times()[:2]) for found in (own, *trainers))


class _Plain:
    """One connection."""

    def __init__(self, url: str) -> None:
        self._connection = http.client.HTTPConnection(url.removeprefix("http://"))

    def send(self, route: str, body: bytes, kind: str = "application/json") -> bytes:
        headers = {"Content-Type": kind, "Accept": "application/x-protobuf", "X-API-Key": "tml-benchmark"}
        self._connection.request("POST", f"/api/v1/{route}", body, headers)
        answer = self._connection.getresponse()
        content = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"{route}: {answer.status} {content!r}")
        return content

    def ask(self, route: str, **body: Any) -> dict[str, Any]:
        return json.loads(self.send(route, json.dumps(body).encode()))

    def result(self, promise: dict[str, Any]) -> dict[str, Any]:
        return self.ask("retrieve_future", request_id=promise["request_id"])

    def output(self, promise: bytes) -> wire.ForwardBackwardOutput:
        body = json.dumps({"request_id": json.loads(promise)["request_id"]}).encode()
        return wire.ForwardBackwardOutput.FromString(self.send("retrieve_future", body))

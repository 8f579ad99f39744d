"""Eight clients that train eight adapters, one after another and at once."""

from __future__ import annotations

import contextlib
import json
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tinker
from tinker import types

from benchmarks.gateway_cases.service import NAME, Service

CLIENTS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """What a round took: seconds, and processor seconds of the service and the clients together."""

    wall: float
    processor: float


def measure(service: Service, *, steps: int, rows: int, tokens: int) -> tuple[Taken, Taken, bool]:
    """One round: the clients one after another, then all at once, each with a new adapter of its own seed.

    Returns:
        What each way took, and whether every adapter ended with the same bits both times.
    """
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(tinker.ServiceClient(base_url=service.url)) for _ in range(CLIENTS)]
        return _measured(service, clients, steps=steps, rows=rows, tokens=tokens)


def _measured(
    service: Service, clients: list[tinker.ServiceClient], *, steps: int, rows: int, tokens: int
) -> tuple[Taken, Taken, bool]:
    batches = [_batch(number, rows, tokens) for number in range(CLIENTS)]

    def train(number: int, model: tinker.TrainingClient) -> None:
        for _ in range(steps):
            passed = model.forward_backward(batches[number], "cross_entropy")
            stepped = model.optim_step(types.AdamParams(learning_rate=1e-3))
            passed.result()
            stepped.result()

    def one_after_another(models: list[tinker.TrainingClient]) -> None:
        for number, model in enumerate(models):
            train(number, model)

    def at_once(models: list[tinker.TrainingClient]) -> None:
        with ThreadPoolExecutor(CLIENTS) as pool:
            list(pool.map(train, range(CLIENTS), models))

    alone, first = _timed(service, clients, one_after_another)
    together, second = _timed(service, clients, at_once)
    same = [_weights(service.root, path) for path in first] == [_weights(service.root, path) for path in second]
    return alone, together, same


def _timed(
    service: Service, clients: list[tinker.ServiceClient], work: Callable[[list[Any]], None]
) -> tuple[Taken, list[str]]:
    """What the work took with new adapters, and the paths of what they were at its end."""
    models = [
        client.create_lora_training_client(base_model=NAME, rank=8, seed=number, train_unembed=False).result()
        for number, client in enumerate(clients)
    ]
    wall, processor = time.perf_counter(), service.processor_seconds()
    work(models)
    taken = Taken(wall=time.perf_counter() - wall, processor=service.processor_seconds() - processor)
    return taken, [model.save_state("end").result().path for model in models]


def _batch(number: int, rows: int, tokens: int) -> list[types.Datum]:
    numbers = random.Random(number)
    texts = [[numbers.randrange(3, 90) for _ in range(tokens + 1)] for _ in range(rows)]
    return [
        types.Datum(
            model_input=types.ModelInput.from_ints(text[:-1]),
            loss_fn_inputs={"target_tokens": text[1:], "weights": [1.0] * tokens},
        )
        for text in texts
    ]


def _weights(root: Path, path: str) -> str:
    """The digest of a checkpoint's weights."""
    model, kind, name = path.removeprefix("tinker://").split("/")
    manifest = root / "policies" / model.replace(":", "=") / kind / name / "manifest.json"
    return json.loads(manifest.read_text())["files"]["weights.safetensors"]

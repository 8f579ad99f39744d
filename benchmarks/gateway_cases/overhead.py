"""What a call through the gateway takes beyond the same call in process."""

from __future__ import annotations

import asyncio
import statistics
import time
from pathlib import Path

import tinker
from tinker import types

from benchmarks.gateway_cases.service import NAME, Service
from tinker_actors.actors import Mesh
from tinker_actors.data import Datum, ModelInput
from tinker_actors.policies import PolicySpec
from tinker_actors.training import AdamParams, LossConfig, Trainer

TOKENS = [1, 5, 9, 7, 3, 4, 8]


def through_the_gateway(service: Service, calls: int) -> tuple[list[float], list[float]]:
    """Milliseconds of `forward_backward` and `optim_step` calls by the official client, each awaited."""
    datum = types.Datum(
        model_input=types.ModelInput.from_ints(TOKENS[:-1]),
        loss_fn_inputs={"target_tokens": TOKENS[1:], "weights": [1.0] * (len(TOKENS) - 1)},
    )
    with tinker.ServiceClient(base_url=service.url) as client:
        model = client.create_lora_training_client(base_model=NAME, rank=8, seed=1, train_unembed=False).result()
        passes: list[float] = []
        steps: list[float] = []
        for _ in range(calls):
            start = time.perf_counter()
            model.forward_backward([datum], "cross_entropy").result()
            middle = time.perf_counter()
            model.optim_step(types.AdamParams(learning_rate=1e-4)).result()
            passes.append((middle - start) * 1e3)
            steps.append((time.perf_counter() - middle) * 1e3)
    return passes, steps


def in_process(base_model: str, scratch: Path, calls: int) -> tuple[list[float], list[float]]:
    """The same by a trainer actor in a child process, as the gateway has it, without the gateway."""
    return asyncio.run(_in_process(base_model, scratch, calls))


async def _in_process(base_model: str, scratch: Path, calls: int) -> tuple[list[float], list[float]]:
    length = len(TOKENS) - 1
    datum = Datum(model_input=ModelInput.of(TOKENS[:-1]), targets=tuple(TOKENS[1:]), weights=(1.0,) * length)
    loss, adam = LossConfig(name="cross_entropy"), AdamParams(learning_rate=1e-4, eps=1e-12)
    passes: list[float] = []
    steps: list[float] = []
    async with Mesh(nodes=2) as mesh:
        trainer = await mesh.spawn(Trainer, base_model=base_model, store=str(scratch / "policies"), node=1)
        spec = PolicySpec(base_model=base_model, rank=8, seed=1, targets=("attention", "mlp"))
        policy = await trainer.create(spec)
        for _ in range(calls):
            start = time.perf_counter()
            await trainer.forward_backward(policy, [datum], loss, every_target=True)
            middle = time.perf_counter()
            await trainer.optim_step(policy, adam)
            passes.append((middle - start) * 1e3)
            steps.append((time.perf_counter() - middle) * 1e3)
    return passes, steps


def median_of(values: list[float]) -> float:
    """The median but for the first few, which warm up."""
    return statistics.median(values[len(values) // 10 :])

"""A base model that has read a little: trained in full on texts, then written as a directory that `serve` takes."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from tinker_actors.data import Datum, ModelInput
from tinker_actors.models.catalogue import load_tokenizer
from tinker_actors.policies import PolicySpec
from tinker_actors.training.contract import AdamParams, LossConfig
from tinker_actors.training.engine import TrainingEngine

BASE = "tiny-llama:context=2048,seed=1"
BATCH = 12
LEARNING_RATE = 3e-3
PROMPT_WEIGHT = 0.01


def warm_base(turns: list[tuple[str, str]], target: Path, *, steps: int) -> float:
    """Train on prompts and answers for some steps, and write the model; returns the last loss per text, in nats."""
    tokenizer, rng = load_tokenizer(BASE), random.Random(0)
    loss = LossConfig(name="cross_entropy", micro_batch_tokens=8192)
    with TemporaryDirectory() as store:
        engine = TrainingEngine(BASE, store)
        policy = engine.create(PolicySpec(base_model=BASE, kind="full", name="reader"))
        mean = float("nan")
        for step in range(steps):
            datums = [_datum(*map(tokenizer.encode, turn)) for turn in rng.sample(turns, BATCH)]
            mean = engine.forward_backward(policy, datums, loss).loss / BATCH
            rate = LEARNING_RATE * min(1.0, (step + 1) / 10) * (1 - step / steps)
            engine.optim_step(policy, AdamParams(learning_rate=rate, grad_clip_norm=1.0))
        engine.export_base(policy, target)
        engine.close()
    return mean


def _datum(prompt: list[int], answer: list[int]) -> Datum:
    tokens = (*prompt, *answer)
    weights = (PROMPT_WEIGHT,) * (len(prompt) - 1) + (1.0,) * len(answer)
    return Datum(model_input=ModelInput.of(tokens[:-1]), targets=tokens[1:], weights=weights)


if __name__ == "__main__":
    read = [json.loads(line) for line in Path(sys.argv[1]).read_text().splitlines()]
    warm_base(read, Path(sys.argv[2]), steps=int(sys.argv[3]))

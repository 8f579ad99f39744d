"""A round of training and sampling through whichever `tinker` the interpreter finds; prints what it saw as JSON.

Run with TINKER_BASE_URL and TINKER_API_KEY set, and the name of a base model as argument.
"""

from __future__ import annotations

import json
import sys
from importlib.metadata import version

import tinker
from tinker import types

PROMPT, ANSWER = [20, 21, 22], [30, 31, 32]


def cross_entropy_datum() -> types.Datum:
    """The answer after the prompt, trained on the answer."""
    tokens = [*PROMPT, *ANSWER]
    return types.Datum(
        model_input=types.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={
            "target_tokens": types.TensorData(data=tokens[1:], dtype="int64", shape=[5]),
            "weights": types.TensorData(data=[0.0, 0.0, 1.0, 1.0, 1.0], dtype="float32", shape=[5]),
        },
    )


def rl_datum(sampled: types.SampledSequence) -> types.Datum:
    """What was sampled after the prompt, with an advantage."""
    tokens, before = list(sampled.tokens), len(PROMPT) - 1
    rows = {
        "target_tokens": ([*PROMPT[1:], *tokens], "int64"),
        "logprobs": ([0.0] * before + list(sampled.logprobs or ()), "float32"),
        "advantages": ([0.0] * before + [1.0] * len(tokens), "float32"),
    }
    return types.Datum(
        model_input=types.ModelInput.from_ints([*PROMPT, *tokens[:-1]]),
        loss_fn_inputs={
            name: types.TensorData(data=row, dtype=dtype, shape=[len(row)]) for name, (row, dtype) in rows.items()
        },
    )


def loss_of(client: tinker.TrainingClient, learning_rate: float) -> float:
    """Loss of one supervised step, before it."""
    passed = client.forward_backward([cross_entropy_datum()], "cross_entropy")
    stepped = client.optim_step(types.AdamParams(learning_rate=learning_rate))
    found = passed.result()
    stepped.result()
    return float(found.metrics["loss:sum"])


def main(model: str) -> dict[str, object]:
    """Train, sample, train on the sample, save, and go on from what was saved."""
    service = tinker.ServiceClient()
    trained = service.create_lora_training_client(base_model=model, rank=4, seed=1)
    losses = [loss_of(trained, 1e-2) for _ in range(3)]
    sampler = trained.save_weights_and_get_sampling_client()
    params = types.SamplingParams(max_tokens=4, temperature=1.0, seed=7)
    sampled = sampler.sample(types.ModelInput.from_ints(PROMPT), 2, params).result().sequences
    scores = sampler.compute_logprobs(types.ModelInput.from_ints([*PROMPT, *ANSWER])).result()
    passed = trained.forward_backward([rl_datum(sequence) for sequence in sampled], "importance_sampling")
    trained.optim_step(types.AdamParams(learning_rate=1e-3)).result()
    saved = trained.save_state("kept").result().path
    resumed = service.create_training_client_from_state(saved)
    return {
        "sdk": version("tinker"),
        "losses": losses,
        "sampled": [list(sequence.tokens) for sequence in sampled],
        "scored": [score is not None for score in scores],
        "reinforced": float(passed.result().metrics["loss:sum"]),
        "resumed": [loss_of(trained, 0.0), loss_of(resumed, 0.0)],
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(sys.argv[1])) + "\n")

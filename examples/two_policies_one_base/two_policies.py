"""Two policies of different rank learn different tasks on one frozen base, in passes that they share.

python examples/two_policies_one_base/two_policies.py
"""
# ruff: noqa: T201 - it shows what it does

from __future__ import annotations

import asyncio
import string
import tempfile
import time

from tinker_actors.actors import Mesh
from tinker_actors.data import Datum, ModelInput
from tinker_actors.models import load_tokenizer
from tinker_actors.policies import PolicySpec
from tinker_actors.sampling import Sampler, SamplingParams, SamplingRequest
from tinker_actors.training import AdamParams, LossConfig, Trainer

BASE = "tiny-llama"
LETTERS = string.ascii_lowercase
TASKS = {
    "next": {letter: LETTERS[(index + 1) % 26] for index, letter in enumerate(LETTERS)},
    "mirror": {letter: LETTERS[25 - index] for index, letter in enumerate(LETTERS)},
}
SPECS = (
    PolicySpec(base_model=BASE, name="next", rank=4, alpha=16.0),
    PolicySpec(base_model=BASE, name="mirror", rank=16, alpha=32.0, target_modules=("q_proj", "v_proj", "down_proj")),
)
STEPS = 60


def datum(prompt: list[int], answer: int) -> Datum:
    """An example whose answer alone is trained; the mean over the alphabet is the loss."""
    tokens = [*prompt, answer]
    weights = (*[0.0] * (len(prompt) - 1), 1 / len(LETTERS))
    return Datum(model_input=ModelInput.of(tokens[:-1]), targets=tuple(tokens[1:]), weights=weights)


async def main() -> None:
    """Train, publish, and ask both policies in one batch."""
    tokenizer = load_tokenizer(BASE)
    prompts = {letter: tokenizer.encode(f"{letter}=") for letter in LETTERS}
    batches = {
        task: [datum(prompts[letter], tokenizer.encode(answer)[0]) for letter, answer in answers.items()]
        for task, answers in TASKS.items()
    }
    with tempfile.TemporaryDirectory() as store:
        async with Mesh() as mesh:
            trainer = await mesh.spawn(Trainer, base_model=BASE, store=store)
            sampler = await mesh.spawn(Sampler, base_model=BASE, store=store)
            for spec in SPECS:
                await trainer.create(spec)

            started = time.perf_counter()
            for step in range(1, STEPS + 1):
                results = await trainer.forward_backward_many(
                    [(task, batch, LossConfig(name="cross_entropy")) for task, batch in batches.items()]
                )
                for task in batches:
                    await trainer.optim_step(task, AdamParams(learning_rate=1e-2, grad_clip_norm=1.0))
                if step in (1, STEPS // 2, STEPS):
                    losses = ", ".join(f"{task} {one.loss:.3f}" for task, one in zip(batches, results, strict=True))
                    print(f"step {step:2}: loss {losses}")
            took = time.perf_counter() - started

            handles = {task: (await trainer.publish(task)).handle for task in batches}
            await sampler.refresh(list(handles.values()))
            asked = [(task, letter) for task in batches for letter in LETTERS]
            replies = await asyncio.gather(
                *(
                    sampler.sample(
                        SamplingRequest(
                            prompt=tuple(prompts[letter]),
                            snapshot=handles[task],
                            params=SamplingParams(max_tokens=1, temperature=0.0),
                        )
                    )
                    for task, letter in asked
                )
            )
    right = dict.fromkeys(batches, 0)
    for (task, letter), reply in zip(asked, replies, strict=True):
        right[task] += reply.samples[0].text == TASKS[task][letter]
    for task, count in right.items():
        print(f"{task}: {count} of {len(LETTERS)} right")
    print(f"{STEPS} steps took {took:.1f} s")


if __name__ == "__main__":
    asyncio.run(main())

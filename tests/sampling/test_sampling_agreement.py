"""The sampler's log-probs are the trainer's, on every sampled token, before and after updates."""

import random

import pytest
import torch
from sampling_harness import TOKENIZER, ask
from transformers import AutoModelForCausalLM

from tinker_actors.data import EpisodeEnd, ModelInput, SamplingRecord, Trajectory, Turn, rl_datums
from tinker_actors.policies import PolicySpec
from tinker_actors.sampling import SamplingParams, SamplingRequest
from tinker_actors.training import AdamParams, LossConfig
from tinker_actors.training.engine import TrainingEngine


def sample_conversations(engine, snapshots, temperatures, seed):
    """Two-turn trajectories of every policy at every temperature; each turn of all of them is one batch."""
    rng = random.Random(seed)
    talks = [(policy, temperature) for policy in snapshots for temperature in temperatures for _ in range(3)]
    held = [tuple(TOKENIZER.encode("ask " * rng.randrange(1, 5))) for _ in talks]
    observations, turns = list(held), [[] for _ in talks]
    for number in range(2):
        requests = [
            SamplingRequest(
                prompt=held[i],
                snapshot=snapshots[policy].handle,
                params=SamplingParams(max_tokens=rng.randrange(2, 9), temperature=temperature, seed=rng.randrange(99)),
            )
            for i, (policy, temperature) in enumerate(talks)
        ]
        for i, (request, reply) in enumerate(zip(requests, engine.serve(requests), strict=True)):
            sample = reply.samples[0]
            record = SamplingRecord(
                snapshot_min=reply.snapshot,
                snapshot_max=reply.snapshot,
                snapshot_step=reply.snapshot_step,
                temperature=request.params.temperature,
                seed=reply.seed,
            )
            observation = ModelInput.of(observations[i])
            turns[i].append(
                Turn(
                    observation=observation,
                    action=sample.tokens,
                    logprobs=sample.logprobs,
                    end=sample.end,
                    sampling=record,
                )
            )
            observations[i] = tuple(TOKENIZER.encode(f" then {number}? "))
            held[i] = (*held[i], *sample.tokens, *observations[i])
    trajectories = [
        Trajectory(seat="agent", policy=policy, turns=tuple(turns[i]), end=EpisodeEnd.TERMINATED)
        for i, (policy, _) in enumerate(talks)
    ]
    return {policy: [entry for entry in trajectories if entry.policy == policy] for policy in snapshots}


@pytest.mark.parametrize("share_prompts", [True, False])
def test_logprobs_equal_the_trainers_before_and_after_updates(harness, publisher, share_prompts):
    trainer = TrainingEngine("tiny-llama", publisher.store.root)
    specs = [
        PolicySpec(base_model="tiny-llama", name="small", rank=4, seed=1),
        PolicySpec(base_model="tiny-llama", name="large", rank=16, seed=2),
        PolicySpec(base_model="tiny-llama", name="whole", kind="full", seed=3),
    ]
    policies = [trainer.create(spec) for spec in specs]
    loss = LossConfig(name="importance_sampling", share_prompts=share_prompts)
    engine = harness(context_length=512)
    moved = []
    for step in range(4):
        snapshots = {policy: trainer.publish(policy) for policy in policies}
        engine.refresh(*(snapshot.handle for snapshot in snapshots.values()))
        for policy, trajectories in sample_conversations(engine, snapshots, (0.7, 1.0, 1.6), seed=step).items():
            datums = [datum for entry in trajectories for datum in rl_datums(entry, (1.0, -1.0))]
            result = trainer.forward(policy, datums, loss)
            for datum, logprobs in zip(datums, result.logprobs, strict=True):
                sampled = [value for value, mask in zip(datum.logprobs, datum.mask, strict=True) if mask]
                trained = [value for value, mask in zip(logprobs, datum.mask, strict=True) if mask]
                assert len(sampled) == datum.sampled_tokens > 0
                assert trained == pytest.approx(sampled, abs=1e-5)
            trainer.forward_backward(policy, datums, loss)
            trainer.optim_step(policy, AdamParams(learning_rate=0.02 if policy != "whole" else 0.003))
            again = trainer.forward(policy, datums, loss)
            moved.append(largest_difference(again, result))
    assert min(moved) > 0.05  # every update changed what is compared next


def test_a_greedy_sample_equals_that_of_the_trained_weights(harness, publisher):  # A1
    trainer = TrainingEngine("tiny-llama", publisher.store.root)
    policy = trainer.create(PolicySpec(base_model="tiny-llama", name="p", rank=8))
    engine = harness(context_length=512)
    seen = []
    for step in range(3):
        snapshot = trainer.publish(policy)
        engine.refresh(snapshot.handle)
        (reply,) = engine.serve([ask(snapshot.handle, "hello", max_tokens=12, temperature=0, default_stops=False)])
        assert reply.snapshot_step == step
        sample = reply.samples[0]
        seen.append(sample.tokens)
        prompt = tuple(TOKENIZER.encode("hello"))
        merged = trainer.export_base(policy, publisher.store.root / f"merged-{step}")
        assert list(sample.tokens) == greedy_of(merged, prompt, 12)
        conversations = sample_conversations(engine, {policy: snapshot}, (1.0,), seed=step)[policy]
        datums = [datum for entry in conversations for datum in rl_datums(entry, 1.0)]
        trainer.forward_backward(policy, datums, LossConfig(name="importance_sampling"))
        trainer.optim_step(policy, AdamParams(learning_rate=0.05))
    assert len(set(seen)) == 3


def largest_difference(one, other):
    pairs = zip(one.logprobs, other.logprobs, strict=True)
    return max(abs(a - b) for first, second in pairs for a, b in zip(first, second, strict=True))


def greedy_of(directory, prompt, count):
    model = AutoModelForCausalLM.from_pretrained(directory)
    tokens = list(prompt)
    for _ in range(count):
        with torch.no_grad():
            tokens.append(int(model(input_ids=torch.tensor([tokens])).logits[0, -1].argmax()))
    return tokens[len(prompt) :]

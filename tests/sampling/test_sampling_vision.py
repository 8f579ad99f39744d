"""Images through sampler and trainer: both compute the same, for every family, adapter and temperature."""

import dataclasses
import random
from queue import Queue

import numpy as np
import pytest
import torch
from transformers import AutoModelForImageTextToText

from tinker_actors.actors import Mesh
from tinker_actors.data import (
    EpisodeEnd,
    Image,
    Message,
    ModelInput,
    SamplingRecord,
    TextChunk,
    Trajectory,
    Turn,
    rl_datums,
)
from tinker_actors.models import Renderer, load_base, load_tokenizer
from tinker_actors.policies import PolicySpec
from tinker_actors.sampling import Sampler, SamplingParams, SamplingReply, SamplingRequest
from tinker_actors.sampling.engine import Engine
from tinker_actors.sampling.requests import InvalidRequestError
from tinker_actors.sampling.residents import Residents
from tinker_actors.training import AdamParams, LossConfig
from tinker_actors.training.engine import TrainingEngine

NAME = "tiny-qwen2-vl"
VISION_TOKENS = {7, 8, 9, 10}


def image(height, width, seed):
    return Image.of(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


class Server:
    """An engine without an actor; requests given together share a batch."""

    def __init__(self, name, store):
        self.answers = Queue()
        self.residents = Residents(base=load_base(name), store=store)
        self.engine = Engine(
            residents=self.residents,
            tokenizer=load_tokenizer(name),
            context_length=256,
            answer=lambda done: [self.answers.put(entry) for entry in done],
        )
        self.engine.start()

    def refresh(self, *handles):
        self.engine.replace(handles, self.residents.check(handles)).result(60)

    def serve(self, requests):
        tickets = [self.engine.submit(request) for request in requests]
        got = dict(self.answers.get(timeout=60) for _ in tickets)
        replies = [got[ticket] for ticket in tickets]
        assert all(isinstance(reply, SamplingReply) for reply in replies), replies
        return replies


@pytest.fixture
def server(publisher):
    made = []

    def make(name):
        made.append(Server(name, publisher.store))
        return made[-1]

    yield make
    for entry in made:
        entry.engine.stop()


def conversations(serve, renderer, snapshots, temperatures, seed):
    """Two turns each; some with one image, some with two of different sizes, some with none."""
    luck = random.Random(seed)
    talks = [(policy, temperature) for policy in snapshots for temperature in temperatures for _ in range(3)]
    kinds = [
        lambda n: [Message.of("a", image(32, 32, n), "b?")],
        lambda n: [Message.of(image(32, 48, n), image(64, 33, n + 1), "which of the two?")],
        lambda n: [Message(role="user", content="no image")],
    ]
    messages = [kinds[number % 3](number) for number in range(len(talks))]
    held = [renderer.start(entry).input for entry in messages]
    observed, turns = list(held), [[] for _ in talks]
    for turn in range(2):
        requests = [
            SamplingRequest(
                prompt=whole.tokens,
                images=whole.images,
                snapshot=snapshots[policy].handle,
                params=SamplingParams(
                    max_tokens=luck.randrange(2, 7), temperature=temperature, seed=luck.randrange(99)
                ),
            )
            for (policy, temperature), whole in zip(talks, held, strict=True)
        ]
        for number, (request, reply) in enumerate(zip(requests, serve(requests), strict=True)):
            (sample,) = reply.samples
            record = SamplingRecord(
                snapshot_min=reply.snapshot,
                snapshot_max=reply.snapshot,
                snapshot_step=reply.snapshot_step,
                temperature=request.params.temperature,
            )
            turns[number].append(
                Turn(
                    observation=observed[number],
                    action=sample.tokens,
                    logprobs=sample.logprobs,
                    end=sample.end,
                    sampling=record,
                )
            )
            if turn == 0:
                messages[number].append(Message(role="assistant", content=renderer.parse(sample.tokens)))
                held[number] += ModelInput.of(sample.tokens)
                new = [Message.of("more", image(48, 32, number))]
                more = renderer.extend(held[number].tokens, messages[number], new, sample.tokens)
                assert not more.restarts
                observed[number] = more.input
                held[number] += more.input
    return {
        policy: [
            Trajectory(seat="agent", policy=policy, turns=tuple(turns[number]), end=EpisodeEnd.TERMINATED)
            for number, (owner, _) in enumerate(talks)
            if owner == policy
        ]
        for policy in snapshots
    }


def sampled_and_trained(datums, result):
    pairs = zip(datums, result.logprobs, strict=True)
    both = [
        (a, b)
        for datum, row in pairs
        for a, b, bit in zip(datum.logprobs, row, datum.mask, strict=True)
        if bit
    ]  # fmt: skip
    return torch.tensor(both, dtype=torch.float64).T


@pytest.mark.parametrize("name", [NAME, "tiny-qwen2.5-vl", "tiny-qwen3-vl"])
def test_logprobs_equal_the_trainers_and_the_ratio_is_one(server, publisher, name):
    trainer = TrainingEngine(name, publisher.store.root)
    policies = [
        trainer.create(PolicySpec(base_model=name, name="small", rank=4, seed=1)),
        trainer.create(PolicySpec(base_model=name, name="large", rank=16, seed=2)),
        trainer.create(PolicySpec(base_model=name, name="whole", kind="full", seed=3)),
    ]
    engine, renderer = server(name), Renderer(load_tokenizer(name))
    loss = LossConfig(name="importance_sampling", micro_batch_tokens=120)
    for step in range(3):
        snapshots = {policy: trainer.publish(policy) for policy in policies}
        engine.refresh(*(snapshot.handle for snapshot in snapshots.values()))
        played = conversations(engine.serve, renderer, snapshots, (0.7, 1.0, 1.6), seed=step)
        for policy, trajectories in played.items():
            datums = [datum for entry in trajectories for datum in rl_datums(entry, (1.0, -1.0))]
            assert {len(datum.model_input.images) for datum in datums} == {1, 2, 3}
            result = trainer.forward_backward(policy, datums, loss)
            sampled, trained = sampled_and_trained(datums, result)
            assert (sampled - trained).abs().max() < 1e-5
            # of what a batch trains on; one token's ratio carries the rounding of two float32 log-probs
            assert result.metrics["ratio_mean"] == pytest.approx(1.0, abs=1e-6)
            trainer.optim_step(policy, AdamParams(learning_rate=0.02 if policy != "whole" else 0.003))
            _, moved = sampled_and_trained(datums, trainer.forward(policy, datums, loss))
            assert (moved - trained).abs().max() > 0.05


def test_a_reply_is_that_of_transformers_generation(server, publisher, tmp_path):
    """Greedy tokens against the model's own `generate`, which counts positions by itself."""
    trainer = TrainingEngine(NAME, publisher.store.root)
    policy = trainer.create(PolicySpec(base_model=NAME, name="p", kind="full"))
    renderer, engine = Renderer(load_tokenizer(NAME)), server(NAME)
    snapshot = trainer.publish(policy)
    engine.refresh(snapshot.handle)
    model = AutoModelForImageTextToText.from_pretrained(snapshot.path)
    vision = load_base(NAME).vision
    rows = [
        renderer.start([Message.of("x" * number, *(image(32, 32 + 16 * number, k) for k in range(number)), "?")]).input
        for number in range(3)
    ]
    params = SamplingParams(max_tokens=10, temperature=0, default_stops=False)
    requests = [
        SamplingRequest(prompt=row.tokens, images=row.images, snapshot=snapshot.handle, params=params) for row in rows
    ]
    for row, reply in zip(rows, engine.serve(requests), strict=True):
        ids = torch.tensor([row.tokens])
        pixels = [vision.pixels(chunk) for chunk in row.images]
        extra = {}
        if pixels:
            extra = {
                "pixel_values": torch.cat([entry.patches for entry in pixels]),
                "image_grid_thw": torch.stack([entry.grid for entry in pixels]),
                "mm_token_type_ids": (ids == 9).int(),
            }
        made = model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=10,
            do_sample=False,
            eos_token_id=None,
            suppress_tokens=sorted(VISION_TOKENS),
            **extra,
        )
        assert list(reply.samples[0].tokens) == made[0, len(row) :].tolist()


def test_tokens_that_stand_for_images_are_never_sampled(server, publisher):
    trainer = TrainingEngine(NAME, publisher.store.root)
    policy = trainer.create(PolicySpec(base_model=NAME, name="p"))
    engine = server(NAME)
    snapshot = trainer.publish(policy)
    engine.refresh(snapshot.handle)
    row = Renderer(load_tokenizer(NAME)).start([Message.of(image(32, 32, 0), "?")]).input
    params = SamplingParams(max_tokens=40, temperature=50.0, default_stops=False, seed=1)
    request = SamplingRequest(
        prompt=row.tokens, images=row.images, snapshot=snapshot.handle, params=params, num_samples=20
    )
    (reply,) = engine.serve([request])
    said = [token for sample in reply.samples for token in sample.tokens]
    assert len(set(said)) > 90
    assert not VISION_TOKENS & set(said)


def test_prompts_of_the_same_ids_and_other_images_are_not_taken_for_each_other(server, publisher):
    trainer = TrainingEngine(NAME, publisher.store.root)
    policy = trainer.create(PolicySpec(base_model=NAME, name="p", kind="full"))
    engine, renderer = server(NAME), Renderer(load_tokenizer(NAME))
    snapshot = trainer.publish(policy)
    engine.refresh(snapshot.handle)
    params = SamplingParams(max_tokens=1, temperature=0)
    rows = [renderer.start([Message.of(image(32, 32, seed), "?")]).input for seed in (0, 1, 0)]
    first, second, third = engine.serve(
        [SamplingRequest(prompt=row.tokens, images=row.images, snapshot=snapshot.handle, params=params) for row in rows]
    )
    assert first.samples[0].logprobs == pytest.approx(third.samples[0].logprobs, abs=1e-5)
    assert first.samples[0].logprobs != pytest.approx(second.samples[0].logprobs, abs=1e-3)


async def test_a_request_that_can_not_be_read_fails_alone(publisher):
    trainer = TrainingEngine(NAME, publisher.store.root)
    policy = trainer.create(PolicySpec(base_model=NAME, name="p"))
    snapshot = trainer.publish(policy)
    row = Renderer(load_tokenizer(NAME)).start([Message.of(image(32, 32, 0), "?")]).input
    torn = ModelInput(
        chunks=tuple(
            chunk if isinstance(chunk, TextChunk) else dataclasses.replace(chunk, data=b"torn") for chunk in row.chunks
        )
    )
    async with Mesh() as mesh:
        sampler = await mesh.spawn(Sampler, base_model=NAME, store=str(publisher.store.root))
        await sampler.refresh([snapshot.handle])

        def request(prompt, images=()):
            return SamplingRequest(prompt=prompt, images=images, snapshot=snapshot.handle)

        with pytest.raises(InvalidRequestError, match=r"image of 4 bytes \(png\) can't be read"):
            await sampler.sample(request(torn.tokens, torn.images))
        with pytest.raises(InvalidRequestError, match="holds token 9, which stands for an image"):
            await sampler.sample(request(row.tokens))
        assert len((await sampler.sample(request(row.tokens, row.images))).samples) == 1


def test_a_model_that_reads_no_images_refuses_them(harness, publisher):
    engine = harness().engine
    row = Renderer(load_tokenizer(NAME)).start([Message.of(image(32, 32, 0), "?")]).input
    with pytest.raises(InvalidRequestError, match="images has 1; the base model reads none"):
        engine.submit(SamplingRequest(prompt=row.tokens, images=row.images, snapshot="s"))
    with pytest.raises(InvalidRequestError, match="prompt and images don't fit"):
        SamplingRequest(prompt=(1, 2), images=row.images, snapshot="s")

"""The whole engine on a device that isn't the CPU (`stand_in_device`): the same answers, whatever is asked."""

import contextlib
from pathlib import Path

import numpy as np
import pytest
import sampling_harness
import torch
from sampling_harness import ask
from stand_in_device import THERE, device_that_computes, move

from tinker_actors.data import Image, Message
from tinker_actors.models import Renderer, load_tokenizer
from tinker_actors.models.base import BaseModel, load_base
from tinker_actors.sampling import PromptScoring, SamplingParams, SamplingReply, SamplingRequest, linears, residents
from tinker_actors.sampling.grammars import regex

KERNELS = Path(__file__).parent.parent / "kernels"
SEEING = "tiny-qwen2-vl"


@contextlib.contextmanager
def afar(monkeypatch):
    """Engines that a harness makes within have their base, and all that belongs to it, on the device."""
    bases = {}

    def load(name, dtype="float32", device="cpu"):
        del device
        base = load_base(name, dtype)
        if name not in bases:
            bases[name] = BaseModel(base.spec, dtype, move(base.skeleton()))
        return bases[name]

    with device_that_computes(), monkeypatch.context() as patched:
        patched.setattr(sampling_harness, "load_base", load)
        original = residents.load_directory
        patched.setattr(residents, "load_directory", lambda folder, dtype: move(original(folder, dtype)))
        yield


class Kernels:
    """The emulator, for tensors that are on the device."""

    def __init__(self):
        from emulator import Emulator

        self.emulator = Emulator()

    def clusters(self, device):
        return self.emulator.clusters(device)

    def launch(self, kernel, types, grid, shared, arguments, device):
        assert device == THERE
        self.emulator.launch(kernel, types, grid, shared, arguments, torch.device("cpu"))


def served(harness, handles, requests, **options):
    made = harness(context_length=128, max_step_tokens=24, **options)
    made.refresh(*handles)
    replies = made.serve(requests)
    made.engine.stop()
    assert all(isinstance(reply, SamplingReply) for reply in replies), replies
    return made, replies


def same(here, there):
    """Whether two replies are the same but for rounding."""
    if here.prompt_scores is not None:
        one, other = here.prompt_scores, there.prompt_scores
        assert other.top_tokens.tolist() == one.top_tokens.tolist()
        assert other.drawn_tokens.tolist() == one.drawn_tokens.tolist()
        for name in ("top_logprobs", "candidate_logprobs", "drawn_logprobs"):
            assert getattr(other, name) == pytest.approx(getattr(one, name), abs=1e-4)
    assert [sample.tokens for sample in there.samples] == [sample.tokens for sample in here.samples]
    numbers = [
        [*reply.prompt_logprobs, *reply.target_logprobs, *(value for each in reply.samples for value in each.logprobs)]
        for reply in (here, there)
    ]
    assert numbers[1] == pytest.approx(numbers[0], abs=1e-4)


def requests_of(one, two, three):
    """One of everything that can be asked."""
    scored = tuple(range(7, 27))
    everywhere = PromptScoring(tops=3, draws=2, candidates=tuple((7, 8) for _ in scored[1:]))
    few = SamplingParams(seed=5, max_tokens=4)
    return [
        ask(one, "a", max_tokens=12, seed=1),
        ask(two, "what", max_tokens=9, seed=2, temperature=0.5, num_samples=3, logprobs=2),
        ask(three, "what is", max_tokens=9, temperature=0, seed=0, stop=("a",)),
        ask(two, "1+2", max_tokens=9, seed=3, top_k=5, top_p=0.9, min_p=0.01),
        ask(one, "1+2", max_tokens=9, seed=3, repetition_penalty=1.3, presence_penalty=0.5, logit_bias=((7, 2.0),)),
        ask(two, "number", max_tokens=9, seed=4, grammar=regex("[0-9]{4}")),
        SamplingRequest(prompt=scored, snapshot=one, params=few, targets=(8, 9), prompt_logprobs=True),
        SamplingRequest(prompt=scored, snapshot=two, params=few, scoring=everywhere),
    ]


@pytest.mark.parametrize("kernels", [False, True], ids=["products", "kernels"])
def test_every_kind_of_request_is_answered_on_a_device_as_on_the_cpu(publisher, harness, monkeypatch, kernels):
    snapshots = [publisher.lora("one", seed=1), publisher.lora("two", seed=2, rank=12), publisher.full("all", seed=3)]
    handles = [snapshot.handle for snapshot in snapshots]
    _, here = served(harness, handles, requests_of(*handles))
    with afar(monkeypatch):
        if kernels:
            monkeypatch.syspath_prepend(str(KERNELS))
            backend = Kernels()
            monkeypatch.setattr(linears, "backend_for", lambda device: backend if device == THERE else None)
        made, there = served(harness, handles, requests_of(*handles))
    assert made.residents.network.device == THERE
    assert not kernels or set(backend.emulator.launches) == {"decode_fused"}
    for one, other in zip(here, there, strict=True):
        same(one, other)


def test_adapters_that_take_turns_and_samples_that_give_up_memory_do_so_on_a_device(publisher, harness, monkeypatch):
    handles = [publisher.lora(f"p{number}", seed=number).handle for number in range(3)]
    requests = [ask(handles[n % 3], "what is" * 4, max_tokens=42, seed=n, default_stops=False) for n in range(4)]
    _, here = served(harness, handles, requests)
    token = 2 * 2 * 64 * 4
    with afar(monkeypatch):
        made, there = served(harness, handles, requests, max_adapters=2, kv_memory=2 * 128 * token)
    stats = made.engine.stats()
    assert stats.preempted
    assert stats.adapters_evicted
    for one, other in zip(here, there, strict=True):
        same(one, other)


def test_images_are_read_on_a_device(publisher, harness, monkeypatch):
    handle = publisher.lora("seeing", seed=1, base=SEEING, target_modules=["q_proj", "down_proj"]).handle
    pixels = np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    given = Renderer(load_tokenizer(SEEING)).start([Message.of(Image.of(pixels), "?")]).input
    request = SamplingRequest(
        prompt=given.tokens, images=given.images, snapshot=handle, params=SamplingParams(max_tokens=6, seed=1)
    )
    _, here = served(harness, [handle], [request], base=SEEING)
    with afar(monkeypatch):
        _, there = served(harness, [handle], [request], base=SEEING)
    same(here[0], there[0])

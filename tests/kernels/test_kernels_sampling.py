"""The sampler's engine with its adapters on the kernels, executed on the CPU: what its own CPU path samples."""

from __future__ import annotations

import queue
from collections.abc import Sequence

import pytest
import torch
from emulator import Emulator

from tinker_actors.kernels.backend import kernels_on_cpu
from tinker_actors.kernels.device_plan import DevicePlan
from tinker_actors.models import load_base, load_tokenizer
from tinker_actors.policies import Origin, SnapshotStore
from tinker_actors.sampling import SamplingParams, SamplingReply, SamplingRequest
from tinker_actors.sampling.engine import Engine
from tinker_actors.sampling.residents import Residents

BASE = "tiny-llama"
PRODUCTS = 2 * 4  # layers, each with q k v, o, gate up, down


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> SnapshotStore:
    from peft import LoraConfig, get_peft_model

    made = SnapshotStore(tmp_path_factory.mktemp("store"))
    for number, (rank, targets) in enumerate([(2, "all-linear"), (8, "all-linear"), (40, ["q_proj", "down_proj"])]):
        model = get_peft_model(load_base(BASE).skeleton(), LoraConfig(r=rank, lora_alpha=32, target_modules=targets))
        generator = torch.Generator().manual_seed(number)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "lora_" in name:
                    parameter.normal_(std=0.06, generator=generator)
        made.publish(f"p{number}", model.save_pretrained, Origin(step=0, base_model=BASE))
    return made


def served(store: SnapshotStore, requests: Sequence[SamplingRequest], **options: int) -> list[SamplingReply]:
    """The replies of an engine of its own, all requests waiting before it starts."""
    residents = Residents(base=load_base(BASE), store=store, **options)
    handles = list(dict.fromkeys(request.snapshot for request in requests))
    residents.replace(handles, residents.check(handles))
    answers: queue.SimpleQueue[tuple[object, object]] = queue.SimpleQueue()
    engine = Engine(
        residents=residents,
        tokenizer=load_tokenizer(BASE),
        context_length=64,
        answer=lambda done: [answers.put(entry) for entry in done],  # pyright: ignore[reportArgumentType]
        threads=1,
    )
    tickets = [engine.submit(request) for request in requests]
    engine.start()
    got = dict(answers.get(timeout=60) for _ in tickets)
    engine.stop()
    replies = [got[ticket] for ticket in tickets]
    assert all(isinstance(reply, SamplingReply) for reply in replies), replies
    return replies  # pyright: ignore[reportReturnType]


def requests_for(count: int) -> list[SamplingRequest]:
    return [
        SamplingRequest(
            prompt=tuple(7 + (5 * number + place) % 90 for place in range(3 + number % 4)),
            snapshot=f"tinker://p{number % 3}/sampler_weights/000001",
            params=SamplingParams(max_tokens=4, temperature=0, default_stops=False),
        )
        for number in range(count)
    ]


@pytest.mark.parametrize("most", [3, 2], ids=["all in place", "taking turns"])
def test_the_engine_samples_on_the_kernels_what_it_samples_without(
    device: Emulator, store: SnapshotStore, most: int
) -> None:
    requests = requests_for(6)
    expected = served(store, requests)
    assert not device.launches
    with kernels_on_cpu(device):
        found = served(store, requests, max_adapters=most)
    assert [reply.samples[0].tokens for reply in found] == [reply.samples[0].tokens for reply in expected]
    for one, other in zip(found, expected, strict=True):
        assert one.samples[0].logprobs == pytest.approx(other.samples[0].logprobs, abs=1e-5)
    assert set(device.launches) == {"decode_fused"}


def test_a_step_plans_its_rows_once_and_launches_once_for_layers_of_one_input(
    device: Emulator, store: SnapshotStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads: list[int] = []
    original = DevicePlan.load

    def load(self: DevicePlan, plan: object) -> None:
        loads.append(1)
        original(self, plan)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(DevicePlan, "load", load)
    with kernels_on_cpu(device):
        served(store, requests_for(2))
    steps = 4
    assert len(loads) == steps
    assert len(device.launches) == steps * PRODUCTS


def test_rows_beyond_what_decode_steps_have_take_the_way_of_prompts(device: Emulator, store: SnapshotStore) -> None:
    from tinker_actors.sampling.kv_pool import KVPool
    from tinker_actors.sampling.networks import Network, Rows
    from tinker_actors.sampling.runs import Span

    found: list[torch.Tensor] = []
    folders = [store.fetch(store.get(f"tinker://p{number}/sampler_weights/000001")) for number in (1, 0)]
    for on_kernels in (False, True):
        with kernels_on_cpu(device if on_kernels else None):  # pyright: ignore[reportArgumentType]
            network = Network(load_base(BASE).skeleton())
        for folder in folders:
            network.load(folder)
        rows = Rows(
            ids=[7 + place % 90 for place in range(300)],
            positions=torch.arange(300),
            spans=[Span(start=0, size=512, held=0, count=300)],
            slots=[0] * 150 + [1] * 140 + [-1] * 10,
            wanted=[280, 299],
        )
        with torch.inference_mode():
            found.append(network.logits(rows, KVPool(network.kv_shape, 512, network.dtype)))
    torch.testing.assert_close(found[1], found[0], atol=1e-4, rtol=0)
    assert any(name.startswith("mma_") for name in device.launches)

"""A step stays on the model's device. Torch's `meta` device stands for one that isn't the CPU: it computes nothing, and
every operation that gets tensors of two devices is an error here."""

from pathlib import Path

import pytest
import torch
import transformers
from sampling_harness import ask
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tinker_actors.errors import ModelError
from tinker_actors.models import load_base
from tinker_actors.models.adapters import Adapter, AdapterWeights
from tinker_actors.models.base import device_of
from tinker_actors.sampling import SamplingParams
from tinker_actors.sampling.kv_pool import KVPool
from tinker_actors.sampling.networks import Network, Rows
from tinker_actors.sampling.runs import Span
from tinker_actors.sampling.selection import Selector, logprobs_of, row_keys

COPIES = {torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default}


class OneDevice(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor) and leaf.dim()]
        assert func in COPIES or len({tensor.device.type for tensor in given}) < 2, f"{func} of two devices"
        return func(*args, **(kwargs or {}))


@pytest.fixture(params=["Llama", "Qwen3", "Gemma2"])
def network(request, monkeypatch):
    """A network on the device, without having been compared with transformers, which takes numbers."""
    config = getattr(transformers, f"{request.param}Config")(
        vocab_size=300,
        hidden_size=64,
        intermediate_size=1024,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        **({} if request.param == "Llama" else {"sliding_window": 8}),
    )
    model = getattr(transformers, f"{request.param}ForCausalLM")(config).eval().requires_grad_(False)
    shape = Network(model).kv_shape
    model = getattr(transformers, f"{request.param}ForCausalLM")(config).eval().requires_grad_(False)
    monkeypatch.setattr(Network, "_try_original", lambda self: torch.empty(0))
    monkeypatch.setattr(Network, "_try", lambda self, layers, expected: shape)
    return Network(model.to("meta"))


def adapter(network, rank):
    return Adapter(
        path=Path("made"),
        weights={
            path: AdapterWeights(
                a=torch.zeros(rank, product.inputs), b=torch.zeros(product.outputs[piece], rank), scale=1.0
            )
            for path, (product, piece) in network._products.items()
        },
    )


@pytest.mark.parametrize("ranks", [(), (4, 4), (4, 30)])
def test_a_step_of_prompts_and_samples_takes_place_on_the_models_device(network, ranks):
    for rank in ranks:
        network.place(adapter(network, rank))
    slots = [number % len(ranks) if ranks else -1 for number in range(8)]
    spans = [Span(start=64 * number, size=64, held=20, count=1) for number in range(8)]
    spans.append(Span(start=512, size=64, held=0, count=30))
    pool = KVPool(network.kv_shape, 1024, network.dtype, network.device)
    for count in (8, 38, 1):
        rows = Rows(
            ids=[5] * count,
            positions=torch.arange(count),
            spans=spans[: min(count, 8)] if count < 38 else spans,
            slots=(slots + [-1] * 30)[:count],
            wanted=range(min(count, 9)),
        )
        with torch.inference_mode(), OneDevice():
            logits = network.logits(rows, pool)
        assert (logits.device.type, logits.shape[0]) == ("meta", min(count, 9))
    pool.copy(0, 64, 32)
    pool.wipe(0, 64)


@pytest.mark.parametrize("options", [{}, {"temperature": 0}, {"temperature": 0.5, "logprobs": 2}, {"min_p": 0.1}])
def test_tokens_are_drawn_on_the_device_of_the_logits(options):
    logits = torch.empty(3, 300, device="meta")
    params = [SamplingParams(**options), SamplingParams(repetition_penalty=1.1)]
    selector = Selector.of([*params, params[0]], row_keys([1, 2, 3], [0, 0, 0]), logits.device)
    allowed = [torch.ones(300, dtype=torch.bool), None, None]
    said = [((1,), (2,))] * 3
    with OneDevice(), pytest.raises((NotImplementedError, RuntimeError), match="meta tensor"):
        selector.select(logits, [0, 1, 2], said=said, allowed=allowed)  # ends where tokens become numbers
    with OneDevice(), pytest.raises((NotImplementedError, RuntimeError), match="meta tensor"):
        logprobs_of(logits, [1, 2, 3])


@pytest.mark.parametrize(("name", "why"), [("tpu9", "'tpu9'.*is needed"), ("cuda:99", "'cuda:99'; torch finds")])
def test_a_device_that_is_not_there_is_refused_by_name(name, why):
    with pytest.raises(ModelError, match=why):
        load_base("tiny-llama", device=name)


def test_a_base_is_shared_by_device():
    assert load_base("tiny-llama", device="cpu") is load_base("tiny-llama")
    assert load_base("tiny-llama").device == device_of("cpu")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_samples_what_the_cpu_samples(publisher, harness):
    one = publisher.lora("one", seed=1)
    requests = [ask(one.handle, text, max_tokens=12, temperature=0, default_stops=False) for text in ("a", "what")]
    found = []
    for device in ("cpu", "cuda"):
        engine = harness(device=device)
        engine.refresh(one.handle)
        found.append(engine.serve(requests))
    for mine, theirs in zip(*found, strict=True):
        assert mine.samples[0].tokens == theirs.samples[0].tokens
        assert mine.samples[0].logprobs == pytest.approx(theirs.samples[0].logprobs, abs=1e-4)

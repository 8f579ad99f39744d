"""Every supported family against transformers' own generate, greedy, token for token."""

import gc
import weakref

import pytest
import torch
import transformers

from tinker_actors.errors import ModelError
from tinker_actors.models import load_base, load_tokenizer, save_model_directory
from tinker_actors.models.base import load_own_base
from tinker_actors.sampling.kv_pool import KVPool
from tinker_actors.sampling.networks import Network, Rows
from tinker_actors.sampling.runs import Span

SHAPE = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "eos_token_id": None,
    "bos_token_id": 1,
}
FAMILIES = {
    "llama": ("LlamaConfig", {}),
    "qwen2": ("Qwen2Config", {}),
    "qwen3": ("Qwen3Config", {"head_dim": 16}),
    "gemma": ("GemmaConfig", {"head_dim": 16, "tie_word_embeddings": False}),
    "gemma2": ("Gemma2Config", {"head_dim": 16, "tie_word_embeddings": False, "sliding_window": 16}),
    "gemma3": ("Gemma3TextConfig", {"head_dim": 16, "tie_word_embeddings": False, "sliding_window": 16}),
    "mistral": ("MistralConfig", {"sliding_window": 16}),
    "smollm3": ("SmolLM3Config", {}),
    "phi": ("PhiConfig", {}),
    "phi3": ("Phi3Config", {}),
}


WIDE = {"vocab_size": 400, "hidden_size": 320, "intermediate_size": 512}  # all of its layers are worth packing


def model_of(family, **others):
    name, options = FAMILIES[family]
    config = getattr(transformers, name)(**SHAPE | options | others)
    how = "eager" if family == "gemma2" else "sdpa"
    generator = torch.Generator().manual_seed(1)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=how).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=0.2, generator=generator)
    return model


class Greedy:
    """Sequences decoded side by side, each fed its prompt in parts."""

    def __init__(self, network):
        self.network = network
        self.pool = KVPool(network.kv_shape, 512, network.dtype)

    def step(self, works):
        """Logits after each (number, held, tokens) row."""
        ids = [token for _, _, tokens in works for token in tokens]
        ends = torch.tensor([len(tokens) for _, _, tokens in works]).cumsum(0) - 1
        positions = [torch.arange(held, held + len(tokens)) for _, held, tokens in works]
        rows = Rows(
            ids=ids,
            positions=torch.cat(positions),
            spans=[Span(start=128 * number, size=128, held=held, count=len(tokens)) for number, held, tokens in works],
            slots=[-1] * len(ids),
            wanted=ends.tolist(),
        )
        with torch.inference_mode():
            return self.network.logits(rows, self.pool)


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_tokens_equal_transformers_generate(family):
    model = model_of(family)
    prompts = [[5 + (7 * number * length) % 120 for number in range(length)] for length in (21, 40, 3)]
    expected = []
    for prompt in prompts:
        ids = torch.tensor([prompt])
        made = model.generate(ids, max_new_tokens=24, do_sample=False, attention_mask=torch.ones_like(ids))
        expected.append(made[0, len(prompt) :].tolist())
    assert max(len(set(tokens)) for tokens in expected) > 3
    engine = Greedy(Network(model))
    engine.step([(number, 0, prompt[:-2]) for number, prompt in enumerate(prompts)])
    logits = engine.step([(number, len(prompt) - 2, prompt[-2:]) for number, prompt in enumerate(prompts)])
    got = [[] for _ in prompts]
    for place in range(24):
        for number, token in enumerate(logits.argmax(-1).tolist()):
            got[number].append(token)
        logits = engine.step([(number, len(prompt) + place, got[number][-1:]) for number, prompt in enumerate(prompts)])
    assert got == expected


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("shape", [{}, WIDE], ids=["tiny", "wide"])
@pytest.mark.parametrize("family", ["llama", "qwen3", "phi3", "gemma2"])
def test_a_row_has_the_same_bits_alone_and_in_company_in_parts_and_at_once(family, shape, dtype):
    engine = Greedy(Network(model_of(family, **shape).to(getattr(torch, dtype))))
    prompt = [5 + 7 * number % 120 for number in range(90)]
    alone = engine.step([(0, 0, prompt)])
    token_by_token = [engine.step([(0, held, [token])]) for held, token in enumerate(prompt)][-1]
    others = [(1, 0, prompt[:50]), (2, 0, prompt[3:40])]
    engine.step([(0, 0, prompt[:37]), *others])
    company = engine.step([(1, 50, [9]), (2, 37, [8]), (0, 37, prompt[37:])])[2:]
    assert torch.equal(alone, token_by_token)
    assert torch.equal(alone, company)


@pytest.mark.parametrize("products", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
def test_biases_and_norms_of_heads_go_where_their_numbers_go(family, products, monkeypatch):
    model = model_of(family)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1 and "self_attn" in name:
                parameter.add_(torch.randn(parameter.shape, generator=generator))
    dtype = getattr(torch, products)
    if dtype == torch.bfloat16:  # as on a processor that multiplies 16 bits faster
        monkeypatch.setattr("tinker_actors.sampling.networks.wide_products", lambda dtype, device: False)
    model = model.to(dtype)
    ids = [5 + 7 * number % 120 for number in range(40)]
    with torch.no_grad():
        expected = model.float()(torch.tensor([ids])).logits[0, -1:]
        found = Greedy(Network(model.to(dtype))).step([(0, 0, ids)]).float()
    off = float((found - expected).abs().max() / expected.abs().max())
    assert off < (1e-5 if dtype == torch.float32 else 0.05)


def test_a_model_with_capped_scores_loads_from_a_directory_and_gives_its_logits(tmp_path):
    model = model_of("gemma2", vocab_size=load_tokenizer("tiny-llama").vocab_size)
    folder = save_model_directory(model, "tiny-llama", tmp_path / "gemma2")
    base = load_base(str(folder))
    ids = [5 + 7 * number % 90 for number in range(40)]
    with torch.no_grad():
        expected = model(torch.tensor([ids])).logits[0, -1:]
    engine = Greedy(Network(base.skeleton()))
    assert torch.allclose(engine.step([(0, 0, ids)]), expected, atol=1e-4)
    base.release()


def test_a_model_with_layers_that_do_not_attend_is_refused_by_name():
    config = transformers.MambaConfig(vocab_size=64, hidden_size=32, num_hidden_layers=1, state_size=4)
    with pytest.raises(ModelError, match="MambaForCausalLM"):
        Network(transformers.MambaForCausalLM(config).eval())


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_a_network_that_owns_its_weights_gives_up_what_its_products_hold_and_keeps_its_logits(family):
    shared, model = Greedy(Network(model_of(family, **WIDE))), model_of(family, **WIDE)
    packed = [weakref.ref(layer.mlp.down_proj.weight) for layer in model.model.layers]
    owned = Greedy(Network(model, owned=True))
    gc.collect()
    assert not any(weight() is not None for weight in packed)
    prompt = [5 + 7 * number % 120 for number in range(40)]
    assert torch.equal(owned.step([(0, 0, prompt)]), shared.step([(0, 0, prompt)]))


def test_a_base_of_ones_own_is_the_shared_one_where_that_is_loaded():
    load_base("tiny-llama").release()
    own = load_own_base("tiny-llama")
    assert not own.shared
    with pytest.raises(ModelError, match="no skeletons"):
        own.skeleton()
    shared = load_base("tiny-llama")
    assert shared is not own
    assert load_own_base("tiny-llama") is shared


def test_a_large_base_of_ones_own_is_computed_by_as_many_threads_after_it_gave_up_its_weights():
    own = load_own_base("tiny-llama:hidden=512,layers=4")
    assert (own.threads(None), own.threads(3)) == (None, 3)
    Network(own.model, owned=True)
    assert (own.threads(None), own.threads(3)) == (None, 3)

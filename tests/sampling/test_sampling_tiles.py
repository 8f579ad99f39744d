"""Rows of several adapters in one step: whole tiles, which are put in order, and others."""

from pathlib import Path

import pytest
import torch
import transformers

from tinker_actors.models.adapters import Adapter, AdapterWeights
from tinker_actors.sampling.adapter_stacks import Place, in_order, plan_tiles
from tinker_actors.sampling.kv_pool import KVPool
from tinker_actors.sampling.networks import Network, Rows
from tinker_actors.sampling.runs import Span

PLACES = {0: Place(8, 0), 1: Place(8, 1)}


@pytest.fixture(scope="module")
def network():
    config = transformers.LlamaConfig(
        vocab_size=128,
        hidden_size=64,
        intermediate_size=1024,  # from here on gate and up have a B each
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.2,
    )
    torch.manual_seed(0)
    made = Network(transformers.LlamaForCausalLM(config).eval())
    for _ in PLACES:
        made.place(
            Adapter(
                path=Path("made"),
                weights={
                    path: AdapterWeights(
                        a=torch.randn(8, product.inputs) * 0.1,
                        b=torch.randn(product.outputs[piece], 8) * 0.1,
                        scale=1.0,
                    )
                    for path, (product, piece) in made._products.items()
                    if not product.is_head
                },
            )
        )
    return made


def step(network, slots, lengths):
    """The logits after prompts of these lengths, one for each slot, then one token more."""
    pool = KVPool(network.kv_shape, 64 * len(slots), network.dtype)
    found = torch.empty(0)
    for decoding in (False, True):
        counts = [1] * len(slots) if decoding else lengths
        held = lengths if decoding else [0] * len(slots)
        rows = Rows(
            ids=[
                (3 * slot + 5 * n + h) % 128 for slot, c, h in zip(slots, counts, held, strict=True) for n in range(c)
            ],
            positions=torch.cat([torch.arange(h, h + c) for c, h in zip(counts, held, strict=True)]),
            spans=[
                Span(start=64 * i, size=64, held=h, count=c) for i, (c, h) in enumerate(zip(counts, held, strict=True))
            ],
            slots=[slot for slot, c in zip(slots, counts, strict=True) for _ in range(c)],
            wanted=(torch.tensor(counts).cumsum(0) - 1).tolist(),
        )
        with torch.inference_mode():
            found = network.logits(rows, pool)
    return found


def test_rows_in_the_order_of_their_tiles_have_the_bits_that_they_have_alone(network):
    slots, lengths = [0, 1] * 8, [4 + n for n in range(16)]
    assert in_order(plan_tiles(slots, PLACES))[1] is not None
    mixed = step(network, slots, lengths)
    for row in (0, 1, 7, 15):
        alone = step(network, [slots[row]], [lengths[row]])
        assert torch.equal(mixed[row], alone[0])
    other = step(network, [1 - slot for slot in slots], lengths)
    assert float((other - mixed).abs().max()) > 1e-2


@pytest.mark.parametrize("slots", [[0, 0, 0, 0, 1, 1, 1, 1], [0, 1, 1, 0, 1], [0, 1, 0, 1, 0, 1, 0, 1, -1]])
def test_rows_that_lie_so_already_or_fill_no_tiles_stay_where_they_are(slots):
    plans = plan_tiles(slots, PLACES)
    assert in_order(plans) == (plans, None)


@pytest.mark.parametrize(
    ("slots", "calls"), [([0] * 16 + [1] * 16, 2), ([0] * 64 + [1] * 4, 2), ([1] * 4 + [0] * 4, 1)]
)
def test_adapters_of_many_rows_take_a_call_each_and_few_rows_of_many_share_one(slots, calls):
    (plan,) = plan_tiles(slots, PLACES)
    assert len(plan.calls) == calls
    assert plan.whole == (slots == sorted(slots))  # prompts that lie in the adapters' order stay there

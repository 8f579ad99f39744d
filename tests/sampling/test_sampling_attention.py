"""Attention over the pool: what a row gets is its own sequence's, to the last bit, however long it is."""

import random

import psutil
import pytest
import torch

from tinker_actors.sampling.attention import Step, StepHolder
from tinker_actors.sampling.kv_pool import KVPool, KVShape
from tinker_actors.sampling.runs import Span, runs_of

SHAPES = [(9, 3, 64), (4, 2, 16), (4, 1, 128), (4, 4, 64)]
LONGEST = 1100


class Attention:
    """One layer's attention over sequences that each have an extent of their own."""

    def __init__(self, heads: tuple[int, int, int], dtype: torch.dtype, sequences: int = 1) -> None:
        query_heads, key_heads, width = heads
        generator = torch.Generator().manual_seed(0)

        def draw(count: int) -> torch.Tensor:
            return torch.randn(sequences, LONGEST, count, width, generator=generator).to(dtype)

        self.queries, self.keys, self.values = draw(query_heads), draw(key_heads), draw(key_heads)
        shape = KVShape(layers=1, heads=key_heads, width=width)
        self._pool = KVPool(shape, sequences * 2048, dtype)
        self._holder = StepHolder()

    def compute(self, rows: list[tuple[int, int, int]]) -> torch.Tensor:
        """Rows of a step, by sequence, first position and count."""
        spans = [Span(start=2048 * number, size=2048, held=held, count=count) for number, held, count in rows]

        def of(tensor: torch.Tensor) -> torch.Tensor:
            return torch.cat([tensor[number, held : held + count] for number, held, count in rows])

        places = torch.cat(
            [torch.arange(span.start + span.held, span.start + span.held + span.count) for span in spans]
        )
        self._holder.step = Step(pool=self._pool, places_t=places, runs=runs_of(spans), rows=len(places))
        with torch.inference_mode():
            return self._holder.attend(0, of(self.queries), torch.cat([of(self.keys), of(self.values)], dim=1))


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("heads", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_gets_the_same_bits_however_its_sequence_was_cut(heads, dtype):
    attention = Attention(heads, dtype)
    whole = attention.compute([(0, 0, LONGEST)])
    for size in (1, 17, 200, 384, 512):
        cuts = [(0, first, min(size, LONGEST - first)) for first in range(0, LONGEST, size)]
        parts = torch.cat([attention.compute([cut]) for cut in cuts])
        assert (parts != whole).flatten(1).any(1).nonzero().flatten().tolist() == []


@pytest.mark.parametrize("heads", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_gets_the_same_bits_beside_rows_of_any_length(heads, dtype):
    attention = Attention(heads, dtype, sequences=12)
    for number in range(12):
        attention.compute([(number, 0, LONGEST)])
    rng = random.Random(0)
    for _ in range(20):
        rows = [(number, rng.randrange(LONGEST), 1) for number in range(12)]
        if rng.random() < 0.5:  # of about one length, so that they are read together
            around = rng.randrange(LONGEST - 70)
            rows = [(number, around + rng.randrange(70), 1) for number in range(12)]
        alone = torch.cat([attention.compute([row]) for row in rows])
        assert torch.equal(attention.compute(rows), alone)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_equals_its_definition(dtype):
    attention = Attention((6, 2, 32), dtype)
    found = attention.compute([(0, 0, LONGEST)]).double()
    queries, keys, values = (part[0].double() for part in (attention.queries, attention.keys, attention.values))
    keys, values = keys.repeat_interleave(3, 1), values.repeat_interleave(3, 1)
    scores = torch.einsum("thd,lhd->htl", queries, keys) / 32**0.5
    scores.masked_fill_(torch.ones(LONGEST, LONGEST, dtype=torch.bool).triu(1), -torch.inf)
    expected = torch.einsum("htl,lhd->thd", scores.softmax(-1), values)
    assert float((found - expected).abs().max()) < (2e-6 if dtype == torch.float32 else 0.05)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_pool_takes_memory_as_it_is_written(dtype):
    process, places = psutil.Process(), 2**27 // dtype.itemsize
    before = process.memory_info().rss
    pool = KVPool(KVShape(layers=2, heads=1, width=1), places, dtype)
    assert pool.nbytes == 2**29
    assert process.memory_info().rss - before < 2**27
    keys, values = pool.read(places - 64, 1, 64, 64)
    assert all(not row.any() for row in (*keys, *values))

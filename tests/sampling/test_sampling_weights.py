"""Ways to hold weights: right, and with the same bits for a row whatever is beside it."""

import pytest
import torch

from tinker_actors.sampling.weights import Half, Packed, Plain, weights_of, wide_products

OUTPUTS, INPUTS = 960, 320


def layer(scale=0.05, dtype=torch.bfloat16, outputs=OUTPUTS):
    generator = torch.Generator().manual_seed(3)
    weight = torch.randn(outputs, INPUTS, generator=generator).mul_(scale).to(dtype)
    return weight, torch.randn(outputs, generator=generator).to(dtype)


@pytest.fixture
def rows():
    return torch.randn(300, INPUTS, generator=torch.Generator().manual_seed(4))


@pytest.mark.parametrize("kind", [Half, Packed, Plain])
def test_a_row_has_the_same_bits_for_any_number_of_rows(kind, rows):
    weight, bias = layer()
    weights = kind(weight, bias) if kind is Half else kind(weight.float(), bias.float())
    whole = weights(rows)
    for count in (*range(1, 66), 115, 116, 121, 122, 127, 130, 134, 151, 299):
        for first in (0, 1, 5):
            if count >= kind.least_rows and first + count <= len(rows):
                assert torch.equal(weights(rows[first : first + count]), whole[first : first + count])


def test_weights_of_16_bits_are_multiplied_as_they_are_with_sums_of_32(rows):
    weight, bias = layer()
    found = weights_of(weight, bias, wide=True)
    expected = rows.double() @ weight.double().t() + bias.double()
    assert float((found(rows).double() - expected).abs().max()) < 1e-5
    narrow = rows.bfloat16().double() @ weight.double().t() + bias.double()
    assert float((narrow - expected).abs().max()) > 1e-3  # what the same product of bfloat16 inputs is off by


@pytest.mark.parametrize("largest", [7e4, 1e30, float("nan")])
def test_weights_beyond_16_bit_floats_are_kept_as_they_are(largest, rows):
    weight, _ = layer()
    weight[5, 7] = largest
    assert not Half.holds(weight)
    found = weights_of(weight, None, wide=True)
    expected = rows @ weight.float().t()
    assert torch.allclose(found(rows), expected, rtol=1e-4, atol=1e-4, equal_nan=True)


def test_layers_are_held_by_size_and_dtype():
    small, _ = layer(outputs=16)
    assert isinstance(weights_of(small, None, wide=True), Plain)
    assert isinstance(weights_of(layer(dtype=torch.float32)[0], None, wide=False), Packed)
    assert not wide_products(torch.float32, torch.device("cpu"))

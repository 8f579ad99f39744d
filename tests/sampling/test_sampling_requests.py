import subprocess
import sys

import pytest

from tinker_actors.errors import SamplingError
from tinker_actors.sampling.requests import InvalidRequestError, SamplingParams, SamplingRequest

HANDLE = "tinker://p/sampler_weights/1"


@pytest.mark.parametrize(
    ("field", "value", "needed"),
    [
        ("max_tokens", 0, "an integer >= 1"),
        ("max_tokens", True, "an integer >= 1"),
        ("max_tokens", 2.0, "an integer >= 1"),
        ("temperature", -0.5, "a finite number >= 0"),
        ("temperature", float("nan"), "a finite number >= 0"),
        ("temperature", float("inf"), "a finite number >= 0"),
        ("top_p", 0.0, "in (0, 1]"),
        ("top_p", 1.5, "in (0, 1]"),
        ("top_k", 0, ">= 1, or -1"),
        ("top_k", -2, ">= 1, or -1"),
        ("stop", "x", "a tuple of strings and token ids"),
        ("seed", -1, "[0, 2**64)"),
        ("seed", 2**64, "[0, 2**64)"),
    ],
)
def test_params_that_cannot_be_served_are_refused_naming_field_value_and_need(field, value, needed):
    with pytest.raises(InvalidRequestError) as caught:
        SamplingParams(**{field: value})
    message = str(caught.value)
    assert message.startswith(f"{field} is {value!r};")
    assert needed in message
    assert isinstance(caught.value, SamplingError)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("entry", ["", -1, True, 1.5])
def test_a_wrong_stop_entry_is_named_by_its_position(entry):
    with pytest.raises(InvalidRequestError, match=r"stop\[1\] is "):
        SamplingParams(stop=("a", entry))


@pytest.mark.parametrize("prompt", [[1, 2], (), (1, -2), (1, 2.0), (1, True)])
def test_a_prompt_is_a_non_empty_tuple_of_token_ids(prompt):
    with pytest.raises(InvalidRequestError, match="prompt"):
        SamplingRequest(prompt=prompt, snapshot=HANDLE)


def test_stop_strings_and_tokens_are_told_apart():
    params = SamplingParams(stop=("..", 7, "end"))
    assert params.stop_strings == ("..", "end")
    assert params.stop_tokens == (7,)


def test_num_samples_and_snapshot_are_checked():
    with pytest.raises(InvalidRequestError, match="num_samples is 0"):
        SamplingRequest(prompt=(1,), snapshot=HANDLE, num_samples=0)
    with pytest.raises(InvalidRequestError, match="snapshot is ''"):
        SamplingRequest(prompt=(1,), snapshot="")


def test_requests_import_without_torch_or_transformers():
    code = (
        "import sys; from tinker_actors.sampling import SamplingRequest, SamplingParams, Sample, SamplingReply;"
        "assert not {'torch', 'transformers', 'zmq'} & set(sys.modules), 'heavy import'"
    )
    subprocess.run([sys.executable, "-c", code], check=True)

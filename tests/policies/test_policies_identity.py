import doctest
import subprocess
import sys

import pytest

from tinker_actors.errors import ConfigError, PolicyError
from tinker_actors.policies import Handle, PolicySpec, handles, spec


def test_a_handle_reads_back_what_it_writes():
    handle = Handle(policy_id="a.b-c_1", kind="weights", name="final")
    assert str(handle) == "tinker://a.b-c_1/weights/final"
    assert Handle.parse(str(handle)) == handle


def test_an_id_may_have_parts_joined_by_colons_and_its_folder_has_none():
    handle = Handle.parse("tinker://0f3c-12:train:1/weights/final")
    assert handle.policy_id == "0f3c-12:train:1"
    folder = handles.folder_of(handle.policy_id)
    assert ":" not in folder
    assert handles.policy_of(folder) == handle.policy_id


@pytest.mark.parametrize(
    "text",
    [
        "tinker://../weights/x",
        "tinker://a/weights/..",
        "tinker://a/weights/../../x",
        "tinker://a/weights/.hidden",
        "tinker://a/weights/",
        "tinker:///weights/x",
        "tinker://a/other/x",
        "tinker://a/weights/x\n",
        "tinker://a/weights/x\0y",
        "tinker://a/weights/é",
        "tinker://a\\b/weights/x",
        "file://a/weights/x",
        "tinker://a/weights",
        "tinker://a/weights/" + "x" * 129,
        "tinker://a/weights/x:y",
        "tinker://a::b/weights/x",
        "tinker://a:/weights/x",
        "tinker://:a/weights/x",
        "tinker://a:../weights/x",
        "tinker://a=b/weights/x",
        "",
    ],
)
def test_what_could_leave_the_store_is_no_handle(text):
    with pytest.raises(PolicyError):
        Handle.parse(text)


def test_a_handle_of_another_kind_is_refused_where_one_kind_is_needed():
    with pytest.raises(PolicyError, match="is of kind weights; sampler_weights is needed"):
        Handle.parse("tinker://a/weights/x", kind="sampler_weights")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("base_model", ""),
        ("kind", "dora"),
        ("rank", 0),
        ("alpha", 0.0),
        ("alpha", float("nan")),
        ("target_modules", "some-linear"),
        ("target_modules", ()),
        ("target_modules", ("q_proj", "")),
        ("seed", -1),
        ("seed", 2**63),
    ],
)
def test_a_spec_that_cannot_work_is_refused_naming_field_and_value(field, value):
    with pytest.raises(ConfigError, match=field):
        PolicySpec(**{"base_model": "tiny-llama", field: value})


def test_a_spec_refuses_a_name_that_is_no_id():
    with pytest.raises(PolicyError, match=r"'\.\./x'"):
        PolicySpec(base_model="tiny-llama", name="../x")


@pytest.mark.parametrize("module", [handles, spec])
def test_the_examples_in_the_docstrings_hold(module):
    assert doctest.testmod(module).failed == 0
    assert doctest.testmod(module).attempted > 0


def test_importing_policies_loads_no_torch_and_no_actor_runtime():
    code = (
        "import sys, tinker_actors.policies as p; p.PolicySpec(base_model='b'); "
        "assert not {'torch', 'transformers', 'zmq'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)

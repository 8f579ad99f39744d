import pytest
import tomli_w

from tinker_actors.errors import ConfigError
from tinker_actors.sampling.backends import TinkerSettings, VllmSettings
from tinker_actors.scheduler.loading import load_config, parse_config

SERVER = {"python": "/venvs/vllm/bin/python"}


def config(sampler, **sections):
    return parse_config({"environment": {"name": "number_guess"}, "sampler": sampler, **sections}, source="test")


def test_without_the_section_the_runs_own_process_samples():
    assert config({}).sampler.backend == "local"


def test_a_backend_has_settings_of_its_own(tmp_path):
    found = config({"backend": "vllm", "vllm": {**SERVER, "max_loras": 2, "environment": {"A": "b"}}})
    assert found.sampler.vllm == VllmSettings(python=SERVER["python"], max_loras=2, environment={"A": "b"})
    written = tmp_path / "config.toml"  # as a run's folder has it
    written.write_text(tomli_w.dumps(found.model_dump(mode="json", exclude_none=True)))
    assert load_config(written) == found
    assert load_config(written, ["--sampler.vllm.max-loras", "3"]).sampler.vllm.max_loras == 3


@pytest.mark.parametrize(
    ("sampler", "sections", "said"),
    [
        ({"backend": "sglang"}, {}, "sampler.backend is 'sglang'"),
        ({"backend": "vllm"}, {}, "sampler.vllm.python and url are empty"),
        ({"vllm": SERVER}, {}, "vllm has settings, but backend is 'local'"),
        (
            {"backend": "vllm", "vllm": SERVER, "local": {"max_batch": 8}},
            {},
            "local has settings, but backend is 'vllm'",
        ),
        ({"backend": "vllm", "vllm": {**SERVER, "max_lora": 3}}, {}, "did you mean sampler.vllm.max_loras?"),
        ({"backend": "vllm", "vllm": {**SERVER, "max_loras": 0}}, {}, "sampler.vllm.max_loras is 0; a positive"),
        ({"backend": "vllm", "vllm": {**SERVER, "max_lora_rank": 12}}, {}, "max_lora_rank is 12; one of 1, 8, 16"),
        ({"backend": "vllm", "vllm": {**SERVER, "url": "http://localhost:8000"}}, {}, "one or the other is needed"),
        ({"backend": "vllm", "vllm": {"url": "localhost:8000"}}, {}, "url is 'localhost:8000'; http://HOST:PORT"),
        (
            {"backend": "vllm", "vllm": {"url": "http://gpu-7:8000"}},
            {},
            "folder is empty and url is 'http://gpu-7:8000'",
        ),
        (
            {"backend": "vllm", "vllm": {**SERVER, "server_folder": "/x"}},
            {},
            "server_folder is '/x', which goes with url",
        ),
        ({"backend": "vllm", "vllm": SERVER}, {"policy": {"kind": "full"}}, "policy 'policy' is of kind 'full'"),
        ({"backend": "vllm", "vllm": SERVER}, {"policy": {"targets": ["unembed"]}}, "adapts unembed"),
        ({"backend": "vllm", "vllm": SERVER}, {"policy": {"target_modules": ["lm_head"]}}, "adapts lm_head"),
        (
            {"backend": "vllm", "vllm": {**SERVER, "max_lora_rank": 8}},
            {},
            "rank 16; sampler.backend 'vllm' serves at most 8",
        ),
        ({"backend": "vllm", "vllm": SERVER}, {"rollouts": {"temperature": 2.5}}, "rollouts.temperature is 2.5"),
        (
            {"backend": "vllm", "vllm": SERVER},
            {"policies": {"a": {}, "b": {"kind": "full"}}},
            "policy 'b' is of kind 'full'",
        ),
        (
            {"backend": "vllm", "vllm": {"url": "http://localhost:1"}},
            {"warmup": {"method": "full"}},
            "warmup.method is 'full', which makes a base model that the server",
        ),
        ({"backend": "tinker"}, {}, "trainer.backend 'tinker' is needed, or"),
        ({"backend": "tinker", "tinker": {"serves_store": True}}, {"policy": {"kind": "full"}}, "of kind 'full'"),
        (
            {"backend": "tinker", "tinker": {"serves_store": True}},
            {"warmup": {"method": "full"}},
            "warmup.method is 'full', which makes a base model that no service has",
        ),
    ],
)
def test_a_backend_that_cannot_serve_the_run_is_refused_with_the_reason(sampler, sections, said):
    with pytest.raises(ConfigError) as caught:
        config(sampler, **sections)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_can_serve_is_taken():
    config({"backend": "vllm", "vllm": SERVER}, warmup={"method": "full"})
    config({"backend": "vllm", "vllm": {"url": "http://gpu-7:8000", "folder": "/shared", "server_folder": "/mnt"}})
    config({"backend": "vllm", "vllm": SERVER}, policy={"rank": 512, "target_modules": ["model.layers.0.mlp.up_proj"]})
    found = config({"backend": "tinker", "tinker": {"serves_store": True, "url": "http://localhost:1"}})
    assert found.sampler.tinker == TinkerSettings(serves_store=True, url="http://localhost:1")

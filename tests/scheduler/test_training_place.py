"""Which runs may train at a service: what can't work there is refused when the configuration is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tomli_w

from tinker_actors.errors import ConfigError
from tinker_actors.scheduler.checks import check_job
from tinker_actors.scheduler.loading import load_config, parse_config

PLACE = {"backend": "tinker", "tinker": {"url": "http://127.0.0.1:8400"}}
THERE = {"trainer": PLACE, "sampler": {"backend": "tinker"}}


def config(**sections: Any) -> Any:
    return parse_config({"environment": {"name": "number_guess"}, **THERE, **sections}, source="test")


def test_the_address_is_written_once(tmp_path: Path):
    found = config()
    assert found.trainer.tinker.url == "http://127.0.0.1:8400"
    assert found.sampler.tinker.url == ""
    written = tmp_path / "config.toml"  # as a run's folder has it
    written.write_text(tomli_w.dumps(found.model_dump(mode="json", exclude_none=True)))
    assert load_config(written) == found
    config(sampler={"backend": "tinker", "tinker": {"url": "http://127.0.0.1:8400", "max_waiting": 9}})


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"sampler": {}}, "trainer.backend is 'tinker' and sampler.backend is 'local', which can't have weights"),
        ({"trainer": {"tinker": PLACE["tinker"]}}, "tinker has settings, but backend is 'local'"),
        ({"trainer": {"backend": "tinker", "tinker": {"url": "x"}}}, "trainer.tinker.url is 'x'; http://HOST:PORT"),
        ({"sampler": {"backend": "tinker", "tinker": {"serves_store": True}}}, "serves_store is true, but trainer"),
        (
            {"sampler": {"backend": "tinker", "tinker": {"url": "http://other:1"}}},
            "sampler.tinker.url is 'http://other:1' and trainer.tinker.url 'http://127.0.0.1:8400'",
        ),
        ({"policy": {"kind": "full"}}, "policy.kind is 'full'; a Tinker service trains adapters alone"),
        ({"policy": {"alpha": 8.0}}, "policy.alpha is 8.0"),
        ({"policy": {"target_modules": ["q_proj"]}}, "policy.target_modules is ['q_proj']; a Tinker service takes"),
        ({"algorithm": {"name": "gae"}, "policy": {"value_head": True}}, "policy.value_head is true"),
        ({"policies": {"a": {}, "b": {"alpha": 1.0}}}, "policies.b: policy.alpha is 1.0"),
        ({"trainer": {**PLACE, "optimizer": "adamw_8bit"}}, "trainer.optimizer is 'adamw_8bit'"),
        ({"warmup": {"method": "full"}}, "warmup.method is 'full', which makes a base model that no service has"),
        ({"rollouts": {"temperature": 0.7}}, "rollouts.temperature is 0.7, but trainer.backend is 'tinker'"),
        ({"seats": {"player": {"temperature": 0.5}}}, "seats.player.temperature is 0.5, but trainer.backend"),
        (
            {"evaluation": {"seats": {"player": {"player": "snapshot", "store": "runs/a"}}}},
            "evaluation.seats.player.store is 'runs/a', but trainer.backend is 'tinker'",
        ),
    ],
)
def test_a_run_that_can_not_train_at_a_service_is_refused_with_the_reason(sections: dict[str, Any], said: str):
    with pytest.raises(ConfigError) as caught:
        config(**sections)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_same_holds_for_supervised_runs():
    sft = {"job": "sft", "data": {"train": "rows.jsonl"}, "trainer": PLACE}
    assert parse_config(sft, source="test").trainer.backend == "tinker"  # type: ignore[union-attr]
    with pytest.raises(ConfigError, match=r"policy\.kind is 'full'"):
        parse_config({**sft, "policy": {"kind": "full"}}, source="test")


def test_an_entropy_bonus_needs_a_service_that_takes_one():
    bonus = {"entropy_coefficient": 0.1}
    check_job(config(algorithm=bonus))
    with pytest.raises(ConfigError, match=r"entropy_coefficient is 0\.1, but the Tinker API has no entropy bonus"):
        check_job(
            config(algorithm=bonus, trainer={**PLACE, "tinker": {**PLACE["tinker"], "takes_masks": False}})  # type: ignore[dict-item]
        )
    with pytest.raises(ConfigError, match="one factor for all trajectories alone"):
        check_job(config(algorithm={**bonus, "aggregation": "sequence_mean"}))

"""Every example's configuration is one that a run takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tinker_actors.errors import ConfigError
from tinker_actors.scheduler import check_job, load_config

EXAMPLES = Path(__file__).parents[2] / "examples"
MODELS = {"smollm2_last_word": pytest.mark.model}
CONFIGS = [
    pytest.param(file.parent.name, marks=MODELS.get(file.parent.name, ()))
    for file in sorted(EXAMPLES.glob("*/config.toml"))
]


@pytest.mark.parametrize("name", CONFIGS)
def test_a_run_takes_the_config_of_an_example(name: str):
    check_job(load_config(EXAMPLES / name / "config.toml", []))


def test_a_run_takes_the_config_of_one_at_a_service():
    # whether the service is there is asked last
    with pytest.raises(ConfigError, match=r"TINKER_API_KEY|the Tinker service at http://127\.0\.0\.1:8400"):
        check_job(load_config(EXAMPLES / "training_at_service" / "run.toml", []))

"""What Prometheus gets."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.gateway.gateways import TINY, gateway_at

from tinker_actors.data import Datum, ModelInput
from tinker_actors.gateway.observing import app as observing
from tinker_actors.gateway.observing import readings
from tinker_actors.gateway.serving import Serving
from tinker_actors.policies import PolicySpec
from tinker_actors.sampling import SamplingParams, SamplingRequest
from tinker_actors.training import AdamParams, LossConfig


def found(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return {(sample.name, frozenset(sample.labels.items())): sample.value for sample in samples}


async def test_what_was_done_is_in_the_metrics(tmp_path: Path):
    async with gateway_at(tmp_path, TINY) as (gateway, client):
        async with Serving(gateway.runtime).loaded(TINY.name, None) as snapshot:
            params = SamplingParams(max_tokens=3, default_stops=False)
            request = SamplingRequest(prompt=(5, 6, 7), snapshot=snapshot, params=params, num_samples=2)
            await gateway.runtime.engines_of(TINY.name).sampler.sample(request)
        trainer = gateway.runtime.engines_of(TINY.name).trainer
        policy = await trainer.create(PolicySpec(base_model=TINY.catalogue_name, rank=1))
        datum = Datum(model_input=ModelInput.of((5, 6)), targets=(6, 7), weights=(1.0, 1.0))
        await trainer.forward_backward(policy, [datum], LossConfig(name="cross_entropy"))
        await trainer.optim_step(policy, AdamParams(learning_rate=1e-3))
        gateway.futures.open("local", "sample")
        answer = await client.get("/metrics")
        assert answer.headers["content-type"].startswith("text/plain")
        metrics = found(answer.text)
        model = frozenset({("model", TINY.name)})
        assert metrics["tinker_actors_sampler_generated_tokens_total", model] == 6
        assert metrics["tinker_actors_sampler_requests_total", model] == 1
        assert metrics["tinker_actors_sampler_kv_capacity_tokens", model] > 0
        assert metrics["tinker_actors_sampler_prefill_seconds_total", model] > 0
        assert metrics["tinker_actors_sampler_first_token_seconds", model | {("quantile", "0.99")}] > 0
        assert metrics["tinker_actors_trainer_policies", model] == 1
        assert metrics["tinker_actors_trainer_passes_total", model] == 1
        assert metrics["tinker_actors_trainer_tokens_total", model] == 2
        assert metrics["tinker_actors_trainer_optimizer_steps_total", model] == 1
        assert metrics["tinker_actors_trainer_busy_seconds_total", model] > 0
        assert metrics["tinker_actors_futures_pending", frozenset()] == 1
        assert metrics["tinker_actors_actors", frozenset({("class", "Sampler")})] == 1
        assert metrics["tinker_actors_up", frozenset({("part", f"sampler {TINY.name}")})] == 1
        assert metrics["tinker_actors_node_rss_bytes", frozenset({("node", "0")})] > 0
        assert metrics["process_cpu_seconds_total", frozenset()] > 0
        assert not any(name.endswith("_created") for name, _ in metrics)


async def test_names_follow_the_conventions_and_labels_take_few_values(tmp_path: Path):
    async with gateway_at(tmp_path, TINY) as (_, client):
        text = (await client.get("/metrics")).text
        families = {family.name: family for family in text_string_to_metric_families(text)}
        for name, family in families.items():
            assert re.fullmatch(r"(tinker_actors|process)_[a-z_]+[a-z]", name), name
            assert family.documentation
            labels = {label for sample in family.samples for label in sample.labels}
            assert labels <= {
                "method",
                "route",
                "status",
                "le",
                "reason",
                "part",
                "model",
                "quantile",
                "state",
                "node",
                "class",
            }


async def test_a_part_that_does_not_answer_is_named_and_the_others_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(readings, "PATIENCE", 0.2)
    monkeypatch.setattr(observing, "_FRESH", 0.0)
    async with gateway_at(tmp_path, TINY) as (gateway, client):
        sampler = gateway.runtime.engines_of(TINY.name).sampler
        await gateway.runtime.mesh.stop(sampler)
        metrics = found((await client.get("/metrics")).text)
        assert metrics["tinker_actors_up", frozenset({("part", f"sampler {TINY.name}")})] == 0
        assert metrics["tinker_actors_up", frozenset({("part", "mesh")})] == 1


async def test_asking_again_at_once_reads_nothing_anew(tmp_path: Path):
    async with gateway_at(tmp_path) as (gateway, client):
        await client.get("/metrics")
        gateway.futures.open("local", "sample")
        metrics = found((await client.get("/metrics")).text)
        assert metrics["tinker_actors_futures_pending", frozenset()] == 0
        asked = frozenset({("method", "GET"), ("route", "/metrics"), ("status", "200")})
        assert metrics["tinker_actors_http_requests_total", asked] == 1


async def test_open_metrics_is_spoken_to_who_asks_for_it(tmp_path: Path):
    async with gateway_at(tmp_path) as (_, client):
        answer = await client.get("/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})
        assert answer.headers["content-type"].startswith("application/openmetrics-text")
        assert answer.text.endswith("# EOF\n")

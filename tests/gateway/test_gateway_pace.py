"""How fast requests for samples are let in, and what a client hears that isn't."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import psutil
from tests.gateway.gateways import TINY, gateway_at

from tinker_actors.gateway.pace import Pace
from tinker_actors.gateway.runtime import BEHIND, Runtime, ServedModel
from tinker_actors.gateway.sampling_options import PaceOptions, SamplingOptions


def test_a_late_loop_slows_the_pace_down_to_the_slowest_and_one_in_time_lets_it_rise_again():
    pace = Pace(slowest=20, fastest=1000)
    for _ in range(100):
        pace.saw(0.5)
    assert pace.rate == 20
    for _ in range(1000):
        pace.saw(0.001)
    assert pace.rate == 1000


def test_what_comes_at_once_is_bounded_however_long_nothing_came():
    pace = Pace(slowest=1, fastest=1, burst=16)
    assert sum(pace.lets_in() for _ in range(100)) == 16


async def test_a_loop_that_is_held_up_slows_the_pace_down():
    pace = Pace()
    async with pace.kept():
        for _ in range(3):
            await asyncio.sleep(0.03)
            time.sleep(0.1)  # noqa: ASYNC251 - holds the loop up
    assert pace.rate < 5000


async def test_who_is_not_let_in_is_told_when_to_come_back(tmp_path: Path):
    sampling = SamplingOptions(pace=PaceOptions(slowest=1e-6, fastest=1e-6, burst=1))
    async with gateway_at(tmp_path, TINY, sampling=sampling) as (_, client):
        session = (await client.post("/api/v1/create_session", json={})).json()["session_id"]
        asked = {"session_id": session, "sampling_session_seq_id": 0, "base_model": TINY.name}
        sampler = (await client.post("/api/v1/create_sampling_session", json=asked)).json()["sampling_session_id"]
        body = {
            "sampling_session_id": sampler,
            "num_samples": 1,
            "prompt": {"chunks": [{"type": "encoded_text", "tokens": [3, 4]}]},
            "sampling_params": {"max_tokens": 1},
        }
        first = await client.post("/api/v1/asample", json={**body, "seq_id": 0})
        second = await client.post("/api/v1/asample", json={**body, "seq_id": 1})
        assert (first.status_code, second.status_code, second.headers["Retry-After"]) == (200, 429, "1")
        # a repetition of what was let in is the same request
        again = await client.post("/api/v1/asample", json={**body, "seq_id": 0})
        assert again.json()["request_id"] == first.json()["request_id"]


async def test_the_processes_that_compute_let_the_gateways_go_first(tmp_path: Path):
    async with Runtime(tmp_path, [ServedModel(name="tiny-llama")]) as runtime:
        (engine,) = [pid for node, pid in runtime.mesh.pids.items() if node]
        assert psutil.Process(engine).nice() - psutil.Process().nice() == BEHIND

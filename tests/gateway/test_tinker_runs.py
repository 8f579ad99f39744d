"""Models in training: what becomes of their commands, together, out of order, and when something ends."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.gateway.gateways import TINY, by_header, gateway_at

from tinker_actors.gateway.gateway import Gateway, create_app
from tinker_actors.gateway.runtime import Runtime
from tinker_actors.gateway.tinker.options import TinkerOptions
from tinker_actors.policies import SnapshotStore
from tinker_actors.training import TrainingEngine


class Client:
    """What an early version of the official client sends, one request at a time."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self.http = http

    async def post(self, route: str, /, **body: Any) -> dict[str, Any]:
        answer = await self.http.post(f"/api/v1/{route}", json=body, timeout=100)
        while answer.status_code == 408:  # it takes longer, and is to be asked for again
            answer = await self.http.post(f"/api/v1/{route}", json=body, timeout=100)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def result(self, promise: dict[str, Any]) -> dict[str, Any]:
        return await self.post("retrieve_future", request_id=promise["request_id"])

    async def session(self) -> str:
        return (await self.post("create_session"))["session_id"]

    async def model(self, session: str, number: int = 0) -> str:
        lora = {"rank": 4, "seed": number, "train_unembed": False}
        asked = {"session_id": session, "model_seq_id": number, "base_model": TINY.name, "lora_config": lora}
        made = await self.result(await self.post("create_model", **asked))
        assert made["model_id"] == f"{session}:train:{number}"
        return made["model_id"]

    async def backward(self, model: str, seq_id: int, tokens: Sequence[int] = (1, 5, 9, 7)) -> dict[str, Any]:
        return await self.post("forward_backward", **batch(model, seq_id, tokens))

    async def step(self, model: str, seq_id: int) -> dict[str, Any]:
        return await self.post("optim_step", model_id=model, seq_id=seq_id, adam_params={"learning_rate": 1e-2})


async def test_a_tenant_has_so_many_models_in_training(tmp_path: Path):
    async with gateway_at(tmp_path, TINY, tinker=TinkerOptions(models_of_tenant=2), admit=by_header) as (_, http):
        client = Client(http)
        first, second = await client.session(), await client.session()
        await client.model(first, 0)
        await client.model(second, 0)
        one_more = {"session_id": second, "model_seq_id": 1, "base_model": TINY.name, "lora_config": {"rank": 1}}
        refused = await http.post("/api/v1/create_model", json=one_more)
        assert (refused.status_code, refused.json()["code"]) == (429, "too_many_models")
        assert refused.headers["retry-after"] == "30"
        await client.post("create_model", **one_more | {"model_seq_id": 0})  # is there, and answered as before
        other = {"Tenant": "other"}
        session = (await http.post("/api/v1/create_session", json={}, headers=other)).json()["session_id"]
        theirs = await http.post("/api/v1/create_model", json=one_more | {"session_id": session}, headers=other)
        assert theirs.status_code == 200
        await client.post(f"sessions/{first}/finish")
        await client.model(second, 1)


def batch(model: str, seq_id: int, tokens: Sequence[int], name: str = "forward_backward_input") -> dict[str, Any]:
    inputs = {"target_tokens": {"data": list(tokens[1:]), "dtype": "int64", "shape": [len(tokens) - 1]}}
    datum = {
        "model_input": {"chunks": [{"type": "encoded_text", "tokens": list(tokens[:-1])}]},
        "loss_fn_inputs": inputs,
    }
    return {name: {"data": [datum], "loss_fn": "cross_entropy"}, "model_id": model, "seq_id": seq_id}


async def test_passes_of_several_models_run_together_and_give_what_each_gives_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    sizes: list[int] = []
    many = TrainingEngine.forward_backward_many

    def counted(self: TrainingEngine, batches: Any, **options: Any) -> Any:
        sizes.append(len(batches))
        return many(self, batches, **options)

    monkeypatch.setattr(TrainingEngine, "forward_backward_many", counted)
    async with gateway_at(tmp_path, TINY) as (_, http):
        client = Client(http)
        session = await client.session()
        models = [await client.model(session, number) for number in (*range(4), *range(10, 14))]
        company, alone = models[:4], models[4:]
        lines = [(1, 5, 9, 7, number + 3) for number in range(4)]

        async def trained(model: str, line: Sequence[int]) -> list[dict[str, Any]]:
            promises = [await client.backward(model, 1, line), await client.step(model, 2)]
            promises += [await client.backward(model, 3, line), await client.step(model, 4)]
            return [await client.result(promise) for promise in promises]

        together = await asyncio.gather(*map(trained, company, lines))
        assert max(sizes) > 1
        sizes.clear()
        for model, line, found in zip(alone, lines, together, strict=True):
            one = await client.post("create_model", **_like(model, session))
            assert found == await trained((await client.result(one))["model_id"], line)
        assert set(sizes) == {1}


async def test_passes_that_run_together_keep_each_the_loss_that_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    sizes: list[int] = []
    asked = threading.Event()
    many = TrainingEngine.forward_backward_many

    def held(self: TrainingEngine, batches: Any, **options: Any) -> Any:
        sizes.append(len(batches))
        assert asked.wait(60)
        return many(self, batches, **options)

    monkeypatch.setattr(TrainingEngine, "forward_backward_many", held)
    async with gateway_at(tmp_path, TINY) as (_, http):
        client = Client(http)
        session = await client.session()
        first, *models = [await client.model(session, number) for number in range(3)]
        await client.backward(first, 1)
        losses, promises = ("importance_sampling", "ppo"), []
        for model, loss in zip(models, losses, strict=True):
            body = batch(model, 1, (1, 5, 9, 7))
            given = body["forward_backward_input"]["data"][0]["loss_fn_inputs"]
            for name, value in (("logprobs", -9.0), ("advantages", 1.0)):
                given[name] = {"data": [value] * 3, "dtype": "float32", "shape": [3]}
            body["forward_backward_input"]["loss_fn"] = loss
            promises.append(await client.post("forward_backward", **body))
        asked.set()
        found = [(await client.result(promise))["metrics"]["loss:sum"] for promise in promises]
        norms = [(await client.result(await client.step(model, 2)))["metrics"]["grad_norm:mean"] for model in models]
    assert sizes[-1] > 1
    # ratios far above the bound of 1.2: ppo holds each of the three tokens there and has no gradient
    assert (found[1], norms[1]) == (pytest.approx(-3.6), 0.0)
    assert found[0] < -30
    assert norms[0] > 1


def _like(model: str, session: str) -> dict[str, Any]:
    """A model with the seed of its counterpart in company."""
    number = int(model.rpartition(":")[2])
    lora = {"rank": 4, "seed": number - 10, "train_unembed": False}
    return {"session_id": session, "model_seq_id": number + 10, "base_model": TINY.name, "lora_config": lora}


async def test_a_batch_that_is_refused_spoils_nobody_elses(tmp_path: Path):
    async with gateway_at(tmp_path, TINY) as (_, http):
        client = Client(http)
        session = await client.session()
        first, second = await client.model(session, 0), await client.model(session, 1)
        wrong, right = await asyncio.gather(client.backward(first, 1, (1, 9_999)), client.backward(second, 1))
        refused = await client.result(wrong)
        assert (refused["category"], "token 9999" in refused["error"]) == ("user", True)
        assert (await client.result(right))["metrics"]["datums:sum"] == 1


async def test_commands_run_in_their_order_and_once(tmp_path: Path):
    async with gateway_at(tmp_path, TINY) as (_, http):
        client = Client(http)
        model = await client.model(await client.session())
        stepped = await client.step(model, 3)
        second = await client.backward(model, 2)
        again = await client.backward(model, 2)
        assert again["request_id"] == second["request_id"]
        first = await client.backward(model, 1)
        assert (await client.result(stepped))["metrics"]["step:max"] == 1
        assert (await client.step(model, 3))["request_id"] == stepped["request_id"]
        norm = (await client.result(stepped))["metrics"]["grad_norm:mean"]
        other = await client.model(await client.session())
        for seq_id in (1, 2):
            await client.backward(other, seq_id)
        assert (await client.result(await client.step(other, 3)))["metrics"]["grad_norm:mean"] == norm
        assert (await client.result(first))["metrics"]["loss:sum"] > 0


async def test_early_clients_are_answered_in_json_and_may_look_without_gradients(tmp_path: Path):
    async with gateway_at(tmp_path, TINY) as (_, http):
        client = Client(http)
        model = await client.model(await client.session())
        looked = await client.result(
            await client.post("forward", **batch(model, 1, (1, 5, 9, 7), name="forward_input"))
        )
        passed = await client.result(await client.backward(model, 2))
        assert looked == passed
        assert passed["loss_fn_outputs"][0]["logprobs"]["shape"] == [3]
        refused = await client.result(await client.step(await client.model(await client.session()), 1))
        assert "no gradients" in refused["error"]


async def test_a_model_goes_with_its_session(tmp_path: Path):
    async with gateway_at(tmp_path, TINY) as (gateway, http):
        client = Client(http)
        session = await client.session()
        model = await client.model(session)
        path = (await client.result(await client.post("save_weights", model_id=model, seq_id=1, path="a")))["path"]
        trainer = gateway.runtime.engines_of(TINY.name).trainer
        assert [policy.policy_id for policy in await trainer.policies()] == [model]
        await client.post(f"sessions/{session}/finish", reason={"type": "success"})
        assert await trainer.policies() == ()
        late = await client.result(await client.backward(model, 2))
        assert late["category"] == "user"
        assert late["error"].endswith(f"create a training client from its last checkpoint, {path}")
        other = await client.session()
        loaded = await client.post("load_weights", session_id=other, model_seq_id=0, path=path, optimizer=True)
        assert (await client.result(loaded))["model_id"] == f"{other}:train:0"


async def test_a_session_that_nothing_is_heard_of_expires(tmp_path: Path):
    async with gateway_at(tmp_path, TINY) as (gateway, http):
        client = Client(http)
        quiet, lively = await client.session(), await client.session()
        models = [await client.model(quiet), await client.model(lively)]
        gateway.records.sessions.update(quiet, seen_at=time.time() - 7200)
        await gateway.training.look()
        found = await gateway.runtime.engines_of(TINY.name).trainer.policies()
        assert [policy.policy_id for policy in found] == models[1:]
        ended = await http.post("/api/v1/session_heartbeat", json={"session_id": quiet})
        assert (ended.status_code, "expired" in ended.text) == (410, True)


async def test_commands_do_not_wait_for_ever_for_one_that_never_comes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    async with gateway_at(tmp_path, TINY) as (gateway, http):
        client = Client(http)
        model = await client.model(await client.session())
        held = await client.backward(model, 2)
        now = time.monotonic()
        await gateway.training.look()
        monkeypatch.setattr(time, "monotonic", lambda: now + 601)
        await gateway.training.look()
        lost = await client.result(held)
        assert lost == {"error": "the model's command with seq_id 1 never came", "category": "user"}
        assert (await client.result(await client.backward(model, 3)))["metrics"]


async def test_a_checkpoint_is_put_into_a_model_that_was_just_made_and_no_other(tmp_path: Path):
    async with gateway_at(tmp_path, TINY) as (_, http):
        client = Client(http)
        session = await client.session()
        model = await client.model(session)
        for seq_id in (1, 3):
            await client.backward(model, seq_id)
            await client.step(model, seq_id + 1)
        path = (await client.result(await client.post("save_weights", model_id=model, seq_id=5, path="a")))["path"]
        expected = await client.result(await client.backward(model, 6))
        fresh = await client.model(session, 1)
        asked = {"model_id": fresh, "path": path, "optimizer": True}
        assert (await client.result(await client.post("load_weights", seq_id=1, **asked)))["path"] == path
        assert await client.result(await client.backward(fresh, 2)) == expected
        again = await client.result(await client.post("load_weights", seq_id=3, **asked))
        assert "only permitted as a model's first command" in again["error"]


async def test_a_model_is_what_it_was_where_a_checkpoint_can_not_be_put_in_its_place(tmp_path: Path):
    async with gateway_at(tmp_path, TINY) as (gateway, http):
        client = Client(http)
        session = await client.session()
        saved, fresh = await client.model(session, 0), await client.model(session, 1)
        path = (await client.result(await client.post("save_weights", model_id=saved, path="a", seq_id=1)))["path"]
        (weights,) = gateway.runtime.store.glob("*/weights/*/weights.safetensors")
        weights.write_bytes(weights.read_bytes()[:-1])
        asked = {"model_id": fresh, "path": path, "optimizer": True}
        failed = await client.result(await client.post("load_weights", seq_id=1, **asked))
        assert failed["category"] == "server"
        assert "loss:sum" in (await client.result(await client.backward(fresh, 2)))["metrics"]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"model_id": "m", "model_seq_id": 1}, "model_seq_id is set; it doesn't go with model_id"),
        ({"model_id": "m", "base_model": TINY.name}, "base_model is set; it doesn't go with model_id"),
        ({"model_id": "m", "user_metadata": {"a": "b"}}, "user_metadata is set; it doesn't go with model_id"),
        ({"model_id": "m", "session_id": "s", "model_seq_id": 1}, "model_id is set; it doesn't go with session_id"),
        ({"session_id": "s", "model_seq_id": 1, "seq_id": 1}, "seq_id is set; it doesn't go with session_id"),
        ({"session_id": "s"}, "model_seq_id is missing"),
        ({}, "model_id is missing; session_id and model_seq_id, or model_id, are needed"),
        (
            {"session_id": "s", "model_seq_id": 1, "optimizer": True, "optimizer_config": {"type": "adamw"}},
            "optimizer_config is set and optimizer is true",
        ),
    ],
)
async def test_both_forms_of_loading_are_not_mixed(tmp_path: Path, more: dict[str, Any], message: str):
    async with gateway_at(tmp_path, TINY) as (_, http):
        asked = {"path": "tinker://m/weights/p", "optimizer": False, **more}
        refused = await http.post("/api/v1/load_weights", json=asked)
        assert (refused.status_code, message in refused.json()["detail"]) == (422, True), refused.text


async def test_settings_that_nothing_would_read_are_refused_by_name(tmp_path: Path):
    async with gateway_at(tmp_path, TINY) as (_, http):
        client = Client(http)
        model = await client.model(await client.session())
        of_a_session = {"sampling_session_seq_id": 1}
        for route, more, message in (
            ("save_weights_for_sampler", {"path": "a", **of_a_session}, "path is set; sampling_session_seq_id and"),
            ("save_weights_for_sampler", {"path": "a", "kind": "inflight"}, "path is set; sampling_session_seq_id and"),
            ("save_weights_for_sampler", {"ttl_seconds": 3600, **of_a_session}, "ttl_seconds and user_metadata belong"),
            (
                "save_weights_for_sampler",
                {"user_metadata": {"a": "b"}, **of_a_session},
                "ttl_seconds and user_metadata",
            ),
            ("save_weights_for_sampler", {}, "path or sampling_session_seq_id is needed"),
            ("optim_step", {"optimizer_params": {"type": "adamw"}, "adam_params": {}}, "optimizer_params is set"),
        ):
            failed = await client.result(await client.post(route, model_id=model, **more))
            assert (failed["category"], message in failed["error"]) == ("user", True), failed


@pytest.mark.parametrize("route", ["save_weights", "save_weights_for_sampler", "save_weights_external"])
async def test_a_time_to_live_that_is_too_short_is_refused_before_anything_is_stored(route: str, tmp_path: Path):
    async with gateway_at(tmp_path, TINY) as (gateway, http):
        client = Client(http)
        model = await client.model(await client.session())
        failed = await client.result(await client.post(route, model_id=model, path="a", ttl_seconds=60))
        assert "ttl_seconds is 60; 3600 (an hour)" in failed["error"], failed
        assert not SnapshotStore(gateway.runtime.store).policies()
        saved = await client.result(await client.post(route, model_id=model, path="a", ttl_seconds=3600))
        assert saved["path"].endswith("/a"), saved


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_when_the_engine_dies_its_commands_fail_and_its_models_go_on_from_checkpoints(tmp_path: Path):
    async with Runtime(tmp_path, [TINY]) as runtime, Gateway(runtime=runtime) as gateway:
        transport = httpx.ASGITransport(create_app(gateway))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
            client = Client(http)
            session = await client.session()
            saved, unsaved = await client.model(session, 0), await client.model(session, 1)
            path = (await client.result(await client.post("save_weights", model_id=saved, seq_id=1, path="a")))["path"]
            expected = await client.result(await client.backward(saved, 2))
            (engine,) = (pid for node, pid in runtime.mesh.pids.items() if node)
            os.kill(engine, signal.SIGKILL)
            lost = await client.result(await client.backward(saved, 3))
            assert lost["category"] == "server"
            assert lost["error"].endswith(f"create a training client from its last checkpoint, {path}")
            other = await client.result(await client.step(unsaved, 1))
            assert (other["category"], "it had saved no checkpoint" in other["error"]) == ("server", True)
            resumed = await client.post("load_weights", session_id=session, model_seq_id=2, path=path, optimizer=True)
            model = (await client.result(resumed))["model_id"]
            assert await client.result(await client.backward(model, 1)) == expected

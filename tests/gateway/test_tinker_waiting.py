"""Batches that wait for one before them: how many, and that they go on in the end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.gateway.gateways import TINY, gateway_at

from tinker_actors.gateway.tinker import runs

DATUM = {
    "model_input": {"chunks": [{"type": "encoded_text", "tokens": [5, 6, 7]}]},
    "loss_fn_inputs": {"target_tokens": {"data": [6, 7, 8], "dtype": "int64", "shape": [3]}},
}


async def test_a_tenants_batches_that_wait_hold_bounded_memory_and_what_they_wait_for_is_always_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(runs, "MOST_TOKENS", 5)
    async with gateway_at(tmp_path, TINY) as (_, client):

        async def post(route: str, body: dict[str, Any]) -> Any:
            return await client.post(f"/api/v1/{route}", json=body)

        session = (await post("create_session", {})).json()["session_id"]
        made = {"session_id": session, "model_seq_id": 0, "base_model": TINY.name, "lora_config": {"rank": 1}}
        promised = (await post("create_model", made)).json()
        created = (await post("retrieve_future", {"request_id": promised["request_id"]})).json()
        model = created["model_id"]

        async def pass_of(seq_id: int) -> Any:
            asked = {"data": [DATUM], "loss_fn": "cross_entropy"}
            body = {"model_id": model, "seq_id": seq_id, "forward_backward_input": asked}
            return await post("forward_backward", body)

        taken = {seq_id: await pass_of(seq_id) for seq_id in (3, 4)}
        refused = await pass_of(5)
        assert (refused.status_code, refused.json()["code"]) == (429, "too_many_tokens")
        taken |= {seq_id: await pass_of(seq_id) for seq_id in (1, 2)}
        for seq_id, answer in taken.items():
            assert (seq_id, answer.status_code) == (seq_id, 200)
            found = await post("retrieve_future", {"request_id": answer.json()["request_id"]})
            assert "error" not in found.json()
        assert (await pass_of(5)).status_code == 200

"""Tokens that stand for API keys, and credentials that open another tenant's weights."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import jwt
import pytest
import tinker
from tests.gateway.gateways import TINY, gateway_at, served
from tests.gateway.tinker_wire import Wire, published
from tinker import types

from tinker_actors.gateway.admission import Admission
from tinker_actors.gateway.caller import Caller
from tinker_actors.gateway.keys import KeyStore
from tinker_actors.gateway.tinker.options import TinkerOptions
from tinker_actors.gateway.tokens import Tokens

CALLER = Caller(tenant="acme", key="k")


@dataclass
class Keyed:
    """A gateway with keys, asked with any of them."""

    wire: Wire
    keys: KeyStore

    @property
    def admission(self) -> Admission:
        admission = self.wire.gateway.admit
        assert isinstance(admission, Admission)
        return admission

    def key(self, tenant: str, *scopes: Any, **options: Any) -> str:
        return self.keys.add(tenant, **({"scopes": scopes} if scopes else {}), **options)[1]

    async def post(self, key: str, route: str, **body: Any) -> httpx.Response:
        return await self.wire.http.post(f"/api/v1/{route}", json=body, headers={"X-API-Key": key})

    async def token(self, key: str) -> str:
        return (await self.post(key, "auth/token")).json()["jwt"]

    async def session(self, key: str) -> str:
        return (await self.post(key, "create_session")).json()["session_id"]

    async def lists(self, key: str) -> int:
        return (await self.wire.http.get("/api/v1/sessions", headers={"X-API-Key": key})).status_code

    async def load(self, key: str, path: str, token: str | None = None, *, number: int = 1) -> tuple[int, str]:
        """Make a model of a checkpoint; the status, and what went wrong."""
        slot: dict[str, Any] = {"session_id": await self.session(key), "model_seq_id": number}
        more = {} if token is None else {"weights_access_token": token}
        answer = await self.post(key, "load_weights", path=path, optimizer=False, **slot, **more)
        if answer.status_code != 200:
            return answer.status_code, answer.json()["detail"]
        done = (await self.post(key, "retrieve_future", request_id=answer.json()["request_id"])).json()
        return 200, done.get("error", "")


@pytest.fixture
async def keyed(tmp_path: Path) -> AsyncIterator[Keyed]:
    with KeyStore(tmp_path / "keys.sqlite") as keys:
        keys.add("nobody")
        async with gateway_at(tmp_path / "service", TINY, admit=Admission(keys)) as (gateway, http):
            yield Keyed(Wire(gateway, http, session="0-0"), keys)


async def test_a_token_is_its_key_until_that_is_revoked(keyed: Keyed):
    made, secret = keyed.keys.add("acme", scopes=["read"])
    token = await keyed.token(secret)
    assert await keyed.lists(token) == 200
    me = await keyed.wire.http.get("/api/v1/auth/apikey/me", headers={"Authorization": f"Bearer {token}"})
    assert (me.json()["name"], me.json()["note"]) == (made.id, "acme")
    assert (await keyed.post(token, "create_session")).status_code == 403  # its key may only read
    keyed.keys.revoke(made.id)
    refused = await keyed.wire.http.get("/api/v1/sessions", headers={"X-API-Key": token})
    assert (refused.status_code, refused.headers["www-authenticate"]) == (401, 'Bearer error="invalid_token"')
    assert (await keyed.post(token, "auth/token")).status_code == 401


def altered(token: str, **claims: Any) -> str:
    head, body, signature = token.split(".")
    found = json.loads(base64.urlsafe_b64decode(body + "=="))
    return ".".join([head, base64.urlsafe_b64encode(json.dumps({**found, **claims}).encode()).decode(), signature])


async def test_what_was_not_issued_here_was_altered_or_is_over_lets_nobody_in(keyed: Keyed):
    key = keyed.key("acme")
    token = await keyed.token(key)
    said = jwt.decode(token, options={"verify_signature": False})
    keyed.admission.tokens._clock = lambda: time.time() - 10_000
    over = await keyed.token(key)
    for bad in (
        over,
        altered(token, exp=said["exp"] + 9999),
        altered(token, key="other"),
        token[:-2] + ("AA" if token[-2:] != "AA" else "BB"),
        jwt.encode(said, None, algorithm="none"),
        jwt.encode(said, "0" * 32, algorithm="HS256"),
        Tokens().issue(Caller(tenant="acme", key=said["key"])),
        "eyJ",
        "eyJ.eyJ.eyJ",
    ):
        assert await keyed.lists(bad) == 401, bad
    assert await keyed.lists(token) == 200


def test_a_token_outlives_neither_its_key_nor_the_token_it_was_exchanged_for():
    tokens, now = Tokens(lifetime=900.0), time.time()
    first = tokens.read(tokens.issue(CALLER))
    assert first is not None
    assert first.until == pytest.approx(now + 900, abs=5)
    second = tokens.read(tokens.issue(replace(CALLER, until=first.until - 600)))
    assert second is not None
    assert second.until == pytest.approx(first.until - 600, abs=1)


async def test_a_token_for_a_key_that_ends_soon_ends_with_it(keyed: Keyed):
    token = await keyed.token(keyed.key("acme", seconds=60))
    again = await keyed.token(token)
    for each in (token, again):
        said = jwt.decode(each, options={"verify_signature": False})
        assert said["exp"] - said["iat"] <= 60


async def test_without_keys_a_token_says_who_one_is_and_lets_in_nobody_later(tmp_path: Path):
    with KeyStore(tmp_path / "keys.sqlite") as keys:
        async with gateway_at(tmp_path / "service", TINY, admit=Admission(keys)) as (_, http):
            token = (await http.post("/api/v1/auth/token", json={})).json()["jwt"]
            assert jwt.decode(token, options={"verify_signature": False})["org_id"] == "local"
            headers = {"X-API-Key": token}
            assert (await http.get("/api/v1/sessions", headers=headers)).status_code == 200
            keys.add("acme")
            assert (await http.get("/api/v1/sessions", headers=headers)).status_code == 401


async def test_another_tenants_weights_are_opened_by_its_credential_and_nothing_else(keyed: Keyed):
    record = await published(keyed.wire, tenant="owner", kind="training")
    lent, lent_secret = keyed.keys.add("owner", scopes=["read"])
    borrower = keyed.key("borrower")
    assert await keyed.load(borrower, record.path) == (404, f"checkpoint {record.path!r} is not known")
    for credential in (lent_secret, await keyed.token(lent_secret)):
        assert await keyed.load(borrower, record.path, credential) == (200, "")
    for credential in (borrower, keyed.key("third"), keyed.key("third", "read")):  # good ones, but not the owner's
        assert await keyed.load(borrower, record.path, credential) == (404, f"checkpoint {record.path!r} is not known")
    status, detail = await keyed.load(borrower, record.path, keyed.key("owner", "jobs", "metrics"))
    assert (status, "it needs the scope read or train or sample" in detail) == (400, True)
    keyed.keys.revoke(lent.id)
    for credential in (lent_secret, "tml-x", "", "eyJx", "é\n"):
        status, detail = await keyed.load(borrower, record.path, credential)
        assert (status, "unknown, expired or revoked" in detail) == (400, True), credential


async def test_a_lent_credential_reads_and_changes_nothing(keyed: Keyed):
    record = await published(keyed.wire, tenant="owner")
    lent, borrower = keyed.key("owner"), keyed.key("borrower")
    headers = {"X-API-Key": borrower, "X-Tinker-Weights-Access-Token": lent}
    kind, name = record.path.rsplit("/", 2)[1:]
    route = f"/api/v1/training_runs/{record.model_id}/checkpoints/{kind}/{name}"
    for method, action in (("DELETE", ""), ("POST", "/publish"), ("DELETE", "/publish"), ("PUT", "/ttl")):
        body: Mapping[str, Any] = {"json": {"ttl_seconds": 3600}} if method == "PUT" else {}
        assert (await keyed.wire.http.request(method, route + action, headers=headers, **body)).status_code == 404
    # a session of the lender's is no place to copy into
    theirs = {"session_id": await keyed.session(lent), "model_seq_id": 5, "source_path": record.path}
    into = await keyed.wire.http.post("/api/v1/copy_weights", json=theirs, headers=headers)
    assert (into.status_code, theirs["session_id"] in into.json()["detail"]) == (404, True)


async def test_copies_are_made_with_a_lent_credential_and_told_to_the_owner(keyed: Keyed):
    record = await published(keyed.wire, tenant="owner")
    lent, secret = keyed.keys.add("owner", scopes=["read"])
    borrower = keyed.key("borrower")
    asked = {"source_path": record.path, "destination_project_id": "mine"}
    assert (await keyed.post(borrower, "copy_weights", **asked)).status_code == 404
    for told in ({"X-Tinker-Weights-Access-Token": secret}, {}):  # in a header, as the client does, or in the body
        body = asked if told else {**asked, "weights_access_token": secret}
        headers = {"X-API-Key": borrower, **told}
        copied = await keyed.wire.http.post("/api/v1/copy_weights", json=body, headers=headers)
        assert copied.status_code == 200, copied.text
        copy = keyed.wire.gateway.records.checkpoints.get(copied.json()["tinker_path"])
        assert copy is not None
        assert (copy.tenant, copy.public) == ("borrower", False)
    log = (await keyed.wire.http.get("/api/v1/audit", headers={"X-API-Key": secret})).json()["entries"]
    assert [entry["event"] for entry in log] == ["checkpoint_copy"] * 2
    assert all(entry["event_details"]["weights_access_key"] == lent.id for entry in log)
    assert all(entry["event_details"]["by"] == "borrower" for entry in log)
    assert secret not in json.dumps(log)


@pytest.mark.sdk
async def test_the_official_client_exchanges_its_key_and_replaces_a_token_that_is_not_taken(tmp_path: Path):
    with KeyStore(tmp_path / "keys.sqlite") as keys:
        (owner, lent), (borrower, secret) = keys.add("owner"), keys.add("borrower")
        admission, options = Admission(keys), TinkerOptions(tokens=True)
        async with served(tmp_path / "service", TINY, admit=admission, tinker=options) as (gateway, url):
            saved = await asyncio.to_thread(_saved, url, lent)

            def program() -> str:
                with tinker.ServiceClient(base_url=url, api_key=secret) as service:
                    rest = tinker.RestClient(base_url=url, api_key=secret)
                    who = rest.whoami().result()
                    with pytest.raises(tinker.NotFoundError):
                        service.create_training_client_from_state(saved).result()
                    admission.tokens = Tokens()  # as after a restart
                    made = service.create_training_client_from_state_with_optimizer(saved, weights_access_token=lent)
                    assert made.result().get_info().lora_rank == 2
                    copy = rest.copy_weights(saved, "archive", weights_access_token=lent).result()
                    assert [each.tinker_path for each in rest.list_user_checkpoints().result().checkpoints] == [copy]
                    return who.org_urn

            assert await asyncio.to_thread(program) == "tml:organization:borrower"
            log = gateway.records.audit.where("tenant = 'owner'", order="at")
            assert [entry.event for entry in log] == ["checkpoint_create", "checkpoint_read", "checkpoint_copy"]
            assert {entry.details.get("weights_access_key") for entry in log[1:]} == {owner.id}
            assert {entry.key for entry in log[1:]} == {borrower.id}


def _saved(url: str, key: str) -> str:
    with tinker.ServiceClient(base_url=url, api_key=key) as service:
        client = service.create_lora_training_client(base_model=TINY.name, rank=2).result()
        datum = types.Datum(
            model_input=types.ModelInput.from_ints([1, 5, 9]), loss_fn_inputs={"target_tokens": [5, 9, 7]}
        )
        client.forward_backward([datum], "cross_entropy").result()
        client.optim_step(types.AdamParams()).result()
        return client.save_state("shared").result().path

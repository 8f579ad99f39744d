"""API keys: their store, the commands, and whom the gate lets in."""

from __future__ import annotations

import multiprocessing
import re
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI
from starlette.requests import HTTPConnection

from tinker_actors.cli import main
from tinker_actors.errors import ConfigError
from tinker_actors.gateway.admission import Admission, refuse_off_host
from tinker_actors.gateway.caller import LOCAL, CallerOf, needs
from tinker_actors.gateway.gate import Gate
from tinker_actors.gateway.gateway import Gateway, create_app, refused
from tinker_actors.gateway.keys import KeyStore
from tinker_actors.gateway.refusals import RefusalError
from tinker_actors.gateway.runtime import Runtime


class Clock:
    now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def keys(tmp_path: Path, clock: Clock):
    with KeyStore(tmp_path / "service" / "keys.sqlite", clock=clock) as store:
        yield store


def test_a_key_is_found_by_itself_and_its_file_never_holds_it(keys: KeyStore, tmp_path: Path):
    key, secret = keys.add("acme", name="laptop", scopes=["train", "read"])
    assert re.fullmatch(r"tml-[A-Za-z0-9_-]{43}", secret)
    found = keys.find(secret)
    assert found is not None
    assert (found.id, found.tenant, found.name, found.scopes) == (key.id, "acme", "laptop", {"train", "read"})
    assert keys.find(secret[:-1]) is None
    assert keys.find("") is None
    assert keys.find("tml-\udcff") is None
    files = list((tmp_path / "service").iterdir())
    assert len(files) == 3  # the write-ahead log beside it
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
    assert not any(secret.removeprefix("tml-").encode() in path.read_bytes() for path in files)


def test_a_key_ends_when_it_expires_or_is_revoked(keys: KeyStore, clock: Clock):
    _, short = keys.add("acme", seconds=10)
    lasting, other = keys.add("acme")
    assert keys.find(short)
    clock.now += 10
    assert keys.find(short) is None
    assert keys.any_good
    assert keys.revoke(lasting.id).revoked == clock.now
    clock.now += 5
    assert keys.revoke(lasting.id).revoked == clock.now - 5
    assert keys.find(other) is None
    assert not keys.any_good
    assert keys.ever
    with pytest.raises(ConfigError, match="'nope'"):
        keys.revoke("nope")


def test_the_last_use_is_noted_coarsely(keys: KeyStore, clock: Clock):
    _, secret = keys.add("acme")
    assert keys.list()[0].used is None
    first = clock.now
    for _ in range(3):
        keys.find(secret)
        clock.now += 100
    assert keys.list()[0].used == first
    keys.find(secret)
    assert keys.list()[0].used == first + 300


def _revoke(path: Path, id: str) -> None:
    with KeyStore(path) as store:
        store.revoke(id)


def test_a_revocation_by_another_process_holds_from_the_next_look(keys: KeyStore):
    key, secret = keys.add("acme")
    assert keys.find(secret)
    process = multiprocessing.get_context("spawn").Process(target=_revoke, args=(keys.path, key.id))
    process.start()
    process.join()
    assert keys.find(secret) is None


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"tenant": "../x"}, "tenant is '../x'"),
        ({"tenant": ""}, "tenant is ''"),
        ({"tenant": "a", "scopes": ["root"]}, "root"),
        ({"tenant": "a", "scopes": []}, "scopes is empty"),
        ({"tenant": "a", "seconds": 0.0}, "positive"),
        ({"tenant": "a", "name": "a\x1b[2J"}, "printable"),
    ],
)
def test_a_key_that_can_not_be_is_refused(keys: KeyStore, values: dict, named: str):
    with pytest.raises(ConfigError, match=re.escape(named)):
        keys.add(**values)
    assert keys.list() == []


def test_a_store_that_others_can_reach_or_that_is_none_is_refused(tmp_path: Path):
    path = tmp_path / "keys.sqlite"
    KeyStore(path).close()
    path.chmod(0o640)
    with pytest.raises(ConfigError, match="0640"):
        KeyStore(path)
    path.unlink()
    path.write_bytes(b"no database, but long enough to be looked at" * 40)
    path.chmod(0o600)
    with pytest.raises(ConfigError, match="no store of keys"):
        KeyStore(path)


def test_the_commands_make_list_and_revoke_keys(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    root = ["--root", str(tmp_path / "service")]
    assert main(["keys", "ls", *root]) == 2
    assert main(["keys", "add", "acme", "--name", "ci", "--scope", "sample", "--days", "1", *root]) == 0
    secret = capsys.readouterr().out.strip()
    with KeyStore(tmp_path / "service" / "keys.sqlite") as keys:
        key = keys.find(secret)
        assert key is not None
        assert (key.tenant, key.name, key.scopes) == ("acme", "ci", {"sample"})
        assert key.expires == pytest.approx(key.created + 86400)
        assert main(["keys", "ls", *root]) == 0
        listed = capsys.readouterr().out
        assert all(word in listed for word in (key.id, "acme", "ci", "sample", "good until"))
        assert secret not in listed
        assert main(["keys", "revoke", key.id, *root]) == 0
        assert keys.find(secret) is None
    main(["keys", "ls", *root])
    assert "revoked" in capsys.readouterr().out


# ------------------------------------------------------------------------------------------------ who is let in


def connection(client: str | None = "127.0.0.1", method: str = "POST", **headers: str) -> HTTPConnection:
    named = {"host": "127.0.0.1:8400", **{name.replace("_", "-"): value for name, value in headers.items()}}
    raw = [(name.encode(), value.encode("latin-1")) for name, value in named.items()]
    return HTTPConnection(
        {"type": "http", "method": method, "headers": raw, "client": None if client is None else (client, 1)}
    )


@pytest.mark.parametrize(
    "let_in",
    [
        connection(),
        connection(client="::1", host="[::1]:8400"),
        connection(host="localhost"),
        connection(client="::ffff:127.0.0.1"),
        connection(client=None),
        connection(origin="http://127.0.0.1:8400", sec_fetch_site="same-origin"),
        connection(sec_fetch_site="none"),
        connection(method="GET", sec_fetch_site="cross-site", sec_fetch_mode="navigate", sec_fetch_dest="document"),
    ],
)
def test_without_keys_programs_of_this_host_are_the_local_tenant(let_in: HTTPConnection):
    assert Admission()(let_in) == LOCAL


@pytest.mark.parametrize(
    ("kept_out", "named"),
    [
        (connection(client="192.0.2.7"), "192.0.2.7"),
        (connection(host="evil.example:8400"), "evil.example"),  # DNS rebinding
        (connection(host="127.0.0.1.evil.example"), "evil.example"),
        (connection(host="127.0.0.1@evil.example"), "evil.example"),
        (connection(host=""), "Host"),
        (connection(host="[::1"), "Host"),
        (connection(origin="http://evil.example"), "Origin"),
        (connection(origin="null"), "Origin"),
        (connection(origin="http://127.0.0.1:3000"), "Origin"),
        (connection(sec_fetch_site="cross-site"), "Sec-Fetch-Site"),
        (connection(sec_fetch_site="same-site", method="GET"), "Sec-Fetch-Site"),
        (connection(sec_fetch_site="cross-site", sec_fetch_mode="navigate", sec_fetch_dest="document"), "Sec-Fetch"),
        (
            connection(method="GET", sec_fetch_site="cross-site", sec_fetch_mode="navigate", sec_fetch_dest="iframe"),
            "Sec-Fetch",
        ),
        (connection(x_forwarded_for="192.0.2.7"), "proxy"),
    ],
)
def test_without_keys_other_hosts_and_other_pages_are_kept_out(kept_out: HTTPConnection, named: str):
    with pytest.raises(RefusalError, match=named) as caught:
        Admission()(kept_out)
    assert caught.value.status == 403


def test_listening_for_other_hosts_needs_a_key_that_is_good(keys: KeyStore):
    for host in ("127.0.0.1", "::1", "localhost", "127.8.8.8"):
        refuse_off_host(host, None)
    for host in ("0.0.0.0", "::", "192.0.2.7", "gateway.example", ""):
        with pytest.raises(ConfigError, match="keys add"):
            refuse_off_host(host, keys)
    key, _ = keys.add("acme")
    refuse_off_host("0.0.0.0", keys)
    keys.revoke(key.id)
    with pytest.raises(ConfigError, match="keys add"):
        refuse_off_host("0.0.0.0", keys)


@pytest.fixture
async def client(keys: KeyStore) -> AsyncIterator[httpx.AsyncClient]:
    app = FastAPI()

    @app.get("/who")
    async def who(caller: CallerOf) -> dict[str, str]:
        return {"tenant": caller.tenant, "key": caller.key}

    @app.post("/train", dependencies=[needs("train")])
    async def train() -> dict[str, str]:
        return {}

    app.add_middleware(Gate, admit=Admission(keys))
    app.add_exception_handler(RefusalError, refused)
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        yield client


async def test_once_there_was_a_key_nobody_gets_in_without_one(client: httpx.AsyncClient, keys: KeyStore):
    assert (await client.get("/who")).json()["tenant"] == "local"
    key, secret = keys.add("acme")
    answer = await client.get("/who")
    assert (answer.status_code, answer.json()["code"]) == (401, "invalid_api_key")
    assert answer.headers["www-authenticate"] == "Bearer"
    assert answer.headers["x-frame-options"] == "DENY"
    for headers in (
        {"X-API-Key": secret},
        {"Authorization": f"Bearer {secret}"},
        {"authorization": f"bearer  {secret}"},
    ):
        assert (await client.get("/who", headers=headers)).json() == {"tenant": "acme", "key": key.id}
    for headers in ({"X-API-Key": "tml-no"}, {"Authorization": f"Basic {secret}"}, {"Authorization": secret}):
        assert (await client.get("/who", headers=headers)).status_code == 401
    keys.revoke(key.id)
    answer = await client.get("/who", headers={"X-API-Key": secret})
    assert answer.status_code == 401
    assert secret not in answer.text
    assert (await client.get("/who")).status_code == 401


async def test_a_key_does_what_its_scopes_say(client: httpx.AsyncClient, keys: KeyStore):
    secrets = {scope: keys.add("acme", scopes=[scope])[1] for scope in ("train", "sample", "admin")}
    answers = {scope: await client.post("/train", headers={"X-API-Key": key}) for scope, key in secrets.items()}
    assert {scope: answer.status_code for scope, answer in answers.items()} == {
        "train": 200,
        "sample": 403,
        "admin": 200,
    }
    assert "scope train" in answers["sample"].json()["detail"]


async def test_a_gateway_of_which_nothing_is_said_serves_this_host_alone(tmp_path: Path):
    async with Runtime(tmp_path, [], in_process=True) as runtime:
        transport = httpx.ASGITransport(create_app(Gateway(runtime=runtime)), client=("192.0.2.7", 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            assert (await client.get("/healthz")).status_code == 200
            assert (await client.get("/openapi.json")).status_code == 403

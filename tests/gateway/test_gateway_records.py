"""What the gateway remembers."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from tinker_actors.errors import ConfigError
from tinker_actors.gateway.caller import LOCAL, Caller
from tinker_actors.gateway.record_kinds import CheckpointRecord, ModelRecord, SessionRecord
from tinker_actors.gateway.records import Records
from tinker_actors.gateway.refusals import RefusalError

OTHER = Caller(tenant="other", key="k", scopes=frozenset({"train"}))
ADMIN = Caller(tenant="root", key="a", scopes=frozenset({"admin"}))

SESSION = SessionRecord(
    session_id="s", tenant="local", created_at=1.0, seen_at=2.5, tags=("a", "b"), user_metadata={"x": {"y": [1]}}
)
MODEL = ModelRecord(
    model_id="s:train:0",
    tenant="local",
    session_id="s",
    base_model="m",
    rank=8,
    optimizer="adamw",
    created_at=1.0,
    used_at=1.0,
)


def checkpoint(**facts: object) -> CheckpointRecord:
    path = "tinker://s:train:0/weights/a"
    known = {"path": path, "tenant": "local", "model_id": "s:train:0", "kind": "training", "handle": path}
    return CheckpointRecord(**{**known, "base_model": "m", "rank": 8, "created_at": 1.0, **facts})  # pyright: ignore


def test_records_are_what_they_were_when_the_file_is_opened_again(tmp_path: Path):
    records = Records(tmp_path / "gateway.sqlite")
    records.sessions.put(SESSION)
    records.models.put(MODEL)
    records.checkpoints.put(checkpoint(public=True))
    assert records.models.update("s:train:0", freed_at=3.0, user_metadata={"k": "v"})
    records.close()
    again = Records(tmp_path / "gateway.sqlite")
    assert again.session(LOCAL, "s") == SESSION
    found = again.model(LOCAL, "s:train:0")
    assert (found.freed_at, found.user_metadata, found.rank) == (3.0, {"k": "v"}, 8)
    assert again.checkpoints.where("public = ?", 1) == [checkpoint(public=True)]
    again.close()


def test_another_tenants_looks_like_what_is_not_there(tmp_path: Path):
    records = Records(tmp_path / "gateway.sqlite")
    records.sessions.put(SESSION)
    records.models.put(MODEL)
    records.checkpoints.put(checkpoint())
    path = checkpoint().path
    for look, name in [(records.session, "s"), (records.model, "s:train:0"), (records.checkpoint, path)]:
        assert look(LOCAL, name) == look(ADMIN, name)
        with pytest.raises(RefusalError) as foreign:
            look(OTHER, name)
        with pytest.raises(RefusalError) as unknown:
            look(OTHER, "nothing")
        assert foreign.value.detail == unknown.value.detail.replace("nothing", name)
        assert foreign.value.status == unknown.value.status == 404
    records.close()


def test_a_public_checkpoint_is_read_by_all_and_changed_by_its_own(tmp_path: Path):
    records = Records(tmp_path / "gateway.sqlite")
    records.checkpoints.put(checkpoint(public=True))
    assert records.checkpoint(OTHER, checkpoint().path).public
    with pytest.raises(RefusalError):
        records.checkpoint(OTHER, checkpoint().path, reading=False)
    records.close()


def test_a_checkpoint_whose_time_is_over_is_not_there(tmp_path: Path):
    records = Records(tmp_path / "gateway.sqlite")
    records.checkpoints.put(checkpoint(expires_at=time.time() - 1))
    with pytest.raises(RefusalError):
        records.checkpoint(LOCAL, checkpoint().path)
    records.close()


def test_a_file_of_an_earlier_version_gains_the_columns_that_came_since(tmp_path: Path):
    with closing(sqlite3.connect(tmp_path / "gateway.sqlite")) as old, old:
        old.execute("CREATE TABLE sessions (session_id TEXT PRIMARY KEY, tenant, created_at, seen_at)")
        old.execute("INSERT INTO sessions VALUES ('s', 'local', 1.0, 2.5)")
    records = Records(tmp_path / "gateway.sqlite")
    found = records.session(LOCAL, "s")
    assert (found.tags, found.user_metadata, found.ended) == ((), {}, None)
    records.close()


def test_a_file_that_holds_no_records_is_refused_by_its_name(tmp_path: Path):
    file = tmp_path / "records.sqlite"
    file.write_bytes(b"not a database" * 100)
    with pytest.raises(ConfigError, match=f"the records in {file} can't be used: file is not a database"):
        Records(file)
    with pytest.raises(ConfigError, match="can't be opened"):
        Records(tmp_path / "missing" / "records.sqlite")

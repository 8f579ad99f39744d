"""Weights & Biases, with its real package, offline: what it would send is read from its file."""

import json
import struct

import pytest

pytest.importorskip("wandb")

from wandb.proto.wandb_internal_pb2 import Record

from tinker_actors.telemetry import Tracking, WandbTracker

pytestmark = pytest.mark.libraries

BLOCK, HEADER = 32768, struct.Struct("<IHB")


def records(path):
    """The records of a `.wandb` file: a header of seven bytes, then LevelDB's log format."""
    data, at, whole = path.read_bytes(), 7, b""
    while at + HEADER.size <= len(data):
        if BLOCK - at % BLOCK < HEADER.size:
            at += BLOCK - at % BLOCK
            continue
        _, size, kind = HEADER.unpack_from(data, at)
        at += HEADER.size
        whole += data[at : at + size]
        at += size
        if kind in (1, 4):  # full, last
            yield Record.FromString(whole)
            whole = b""


def tracked(folder, steps, status):
    notes = []
    tracker = WandbTracker(folder, project="project", name="name", id="abcd1234", mode="offline", tags=("tag",))
    tracking = Tracking({"wandb": tracker}, {"seed": 3, "model": {"name": "tiny"}}, note=notes.append)
    for step in steps:
        tracking.log(step, {"reward": step / 4, "policy/a/kl": 0.5})
    tracking.finish(status)
    assert notes == []


def test_what_would_be_sent_is_the_run_its_configuration_its_steps_and_its_end(tmp_path):
    tracked(tmp_path, range(1, 4), "failed")
    (path,) = tmp_path.glob("wandb/offline-run-*/run-abcd1234.wandb")
    found = list(records(path))
    (run,) = [record.run for record in found if record.HasField("run")]
    assert (run.project, run.display_name, run.run_id, list(run.tags)) == ("project", "name", "abcd1234", ["tag"])
    config = {update.key: json.loads(update.value_json) for update in run.config.update}
    assert (config["seed"], config["model"]) == (3, {"name": "tiny"})
    rows = [
        {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.history.item}
        for record in found
        if record.HasField("history")
    ]
    assert [(row["_step"], row["reward"], row["policy/a/kl"]) for row in rows] == [
        (1, 0.25, 0.5),
        (2, 0.5, 0.5),
        (3, 0.75, 0.5),
    ]
    (end,) = [record.exit for record in found if record.HasField("exit")]
    assert end.exit_code == 1


def test_a_resumed_run_is_the_same_run(tmp_path):
    tracked(tmp_path, range(1, 4), "cancelled")
    tracked(tmp_path, range(4, 6), "succeeded")
    runs = [
        record.run.run_id
        for path in sorted(tmp_path.glob("wandb/offline-run-*/*.wandb"))
        for record in records(path)
        if record.HasField("run")
    ]
    assert set(runs) == {"abcd1234"}
    assert len(list(tmp_path.glob("wandb/offline-run-*"))) == 2

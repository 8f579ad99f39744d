import json
from pathlib import Path

import pytest

from benchmarks import actors, table


def test_a_round_of_each_floor_and_ours_gives_rows_of_the_documented_shape(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = {"ask_p50_ipc": {"tinker_actors", "pyzmq"}, "ask_p50_local": {"tinker_actors", "asyncio_queue"}}
    path = tmp_path / "rows.json"
    systems = "tinker_actors,pyzmq,asyncio_queue"
    actors.main(["--quick", "--rounds", "1", "--cases", ",".join(wanted), "--systems", systems, "--json", str(path)])
    rows = json.loads(path.read_text())
    for row in rows:
        assert set(row) == {"case", "system", "unit", "median", "low", "high"}
        assert 0 < row["low"] <= row["median"] <= row["high"] or row["case"] == "load"
    for case, systems_of_case in wanted.items():
        assert {row["system"] for row in rows if row["case"] == case} == systems_of_case
        assert {row["unit"] for row in rows if row["case"] == case} == {"us"}
    printed = capsys.readouterr().out
    assert "load" in printed
    assert "failed" not in printed


def test_a_peer_that_is_not_installed_is_named_as_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(actors.SYSTEMS, "ray", ("on_ray", ("a_package_that_is_nowhere",)))
    actors.main(["--systems", "ray", "--cases", "ask_p50_ipc"])
    assert "left out: ray, a_package_that_is_nowhere is not installed" in capsys.readouterr().out


def test_ratios_pair_the_rounds() -> None:
    # The second round ran on a machine half as fast; the ratio doesn't know.
    assert table.paired_ratio([10.0, 20.0, 10.0], [5.0, 10.0, 5.0]) == 2.0
    row = table.summarise("c", "s", "us", [3.0, 1.0, 2.0])
    assert (row.median, row.low, row.high) == (2.0, 1.0, 3.0)
    assert "0.5" in table.render([row], {("c", "s"): 0.5})

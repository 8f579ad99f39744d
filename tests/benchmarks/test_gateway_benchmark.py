import json
from pathlib import Path

import pytest

from benchmarks import gateway


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_load_is_measured_in_rows_of_the_documented_shape(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "rows.json"
    gateway.main(["--quick", "--cases", "load", "--seconds", "10", "--json", str(path)])
    rows = json.loads(path.read_text())
    assert all(set(row) == {"case", "system", "unit", "median", "low", "high"} for row in rows)
    found = {row["case"]: row["median"] for row in rows}
    assert found["load_server_errors"] == 0
    assert min(found["load_samples"], found["load_optimizer_steps"]) > 0
    assert "failures none" in capsys.readouterr().out


def test_an_unknown_case_is_refused_by_name(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        gateway.main(["--cases", "nothing"])
    assert "'nothing'" in capsys.readouterr().err

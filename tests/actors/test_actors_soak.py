"""A minute of soak: ten thousand actors, killed processes, cancelled asks; nothing is lost, doubled or left."""

import json

import pytest
from soaking import Soak


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_soak_loses_doubles_and_leaves_nothing(soak: Soak) -> None:
    output = soak.wait()
    assert soak.report.exists(), output
    rows = {row["case"]: row["median"] for row in json.loads(soak.report.read_text())}
    assert rows["soak_failed_checks"] == 0, output
    assert rows["soak_kills"] > 3
    assert rows["soak_asks"] > 100

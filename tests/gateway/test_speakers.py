"""What is loaded to speak to a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
from tests.gateway.gateways import TINY

from tinker_actors.gateway.openai.speakers import Speaker, Speakers
from tinker_actors.gateway.runtime import Engines, Runtime, ServedModel


async def test_a_model_whose_files_could_not_be_read_once_is_spoken_to_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    runtime = Runtime(tmp_path, [TINY], in_process=True)
    runtime.engines[TINY.name] = Engines(served=TINY, trainer=cast("Any", None), sampler=cast("Any", None))
    load, failures = Speaker.of, [OSError("too many open files")]

    def failing_once(served: ServedModel) -> Speaker:
        if failures:
            raise failures.pop()
        return load(served)

    monkeypatch.setattr(Speaker, "of", failing_once)
    speakers = Speakers(runtime)
    with pytest.raises(OSError, match="too many open files"):
        await speakers.of(TINY.name)
    assert (await speakers.of(TINY.name)).served is TINY

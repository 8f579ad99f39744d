from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture
def empty_cache(tmp_path, monkeypatch: pytest.MonkeyPatch):
    from tinker_actors.models import tiny

    monkeypatch.setenv("TINKER_ACTORS_CACHE", str(tmp_path / "cache"))
    tiny.tokenizer_directory.cache_clear()
    yield tmp_path / "cache"
    tiny.tokenizer_directory.cache_clear()

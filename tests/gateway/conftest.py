"""A dashboard and the browser that looks at it, which is started once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio
from playwright.async_api import Browser
from tests.browser.chromium import chromium
from tests.gateway.dashboards import Dashboard, dashboard


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    """For tests that run in the session's event loop, as it does."""
    async with chromium() as browser:
        yield browser


@pytest_asyncio.fixture(loop_scope="session")
async def board(tmp_path: Path) -> AsyncIterator[Dashboard]:
    """A dashboard of a test's own, served."""
    async with dashboard(tmp_path) as board, board.served():
        yield board

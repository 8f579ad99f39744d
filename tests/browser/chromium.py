"""The headless Chromium of the tests: the one that `TINKER_ACTORS_CHROMIUM` names, or what `make browser` fetched."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from playwright.async_api import Browser, async_playwright

_FOLDER = Path(sys.prefix).resolve() / "browser"


@asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    """A browser, from its start to its end."""
    named, env = os.environ.get("TINKER_ACTORS_CHROMIUM"), dict(os.environ)
    path = shutil.which(named) if named else None
    if named and path is None:
        raise FileNotFoundError(f"TINKER_ACTORS_CHROMIUM is {named!r}, which is no program")
    if path is None and (_FOLDER / "chromium").is_file():
        path = str(_FOLDER / "chromium")
        libraries = [str(_FOLDER / "al2023" / "lib"), *filter(None, [env.get("LD_LIBRARY_PATH")])]
        env |= {"LD_LIBRARY_PATH": os.pathsep.join(libraries), "FONTCONFIG_PATH": str(_FOLDER / "fonts")}
    async with async_playwright() as playwright:
        # in a container, and as root, Chromium's own sandbox can't be set up; what it opens here is our own page
        browser = await playwright.chromium.launch(executable_path=path, args=["--no-sandbox"], env=env)
        try:
            yield browser
        finally:
            await browser.close()

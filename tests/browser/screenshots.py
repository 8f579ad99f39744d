"""Makes the pictures of docs/dashboard.md: `python -m tests.browser.screenshots docs/dashboard`, some minutes.

A real gateway serves the page, its scheduler runs real trainings, and a real browser looks at them meanwhile.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from PIL import Image
from playwright.async_api import Browser, Page
from tests.browser.chromium import chromium

from tinker_actors.gateway.config import ServeConfig
from tinker_actors.gateway.gateway import create_app
from tinker_actors.gateway.listening import listening, serving
from tinker_actors.gateway.opening import open_gateway
from tinker_actors.scheduler import load_config
from tinker_actors.scheduler.demand import request_of
from tinker_actors.scheduler.job_records import Job
from tinker_actors.scheduler.service import Scheduler
from tinker_actors.scheduler.states import JobState

EXAMPLES = Path(__file__).parents[2] / "examples"
SMALL = ("--rollouts.workers", "1", "--trainer.threads", "1")


async def main(folder: Path) -> None:
    """Train, look, and write the pictures into a folder."""
    with tempfile.TemporaryDirectory() as root:
        settings = {"root": root, "models": {"tiny-llama": {}}, "capacity": {"cpu_workers": 2}}
        async with open_gateway(ServeConfig.model_validate(settings)) as gateway:
            assert gateway.scheduler is not None
            with listening("127.0.0.1", 0) as socket:
                async with serving(create_app(gateway), socket) as url, chromium() as browser:
                    await _pictures(gateway.scheduler, Camera(browser, url, folder))


async def _pictures(scheduler: Scheduler, camera: Camera) -> None:
    careful = await _submit(scheduler, "number_guess", "--trainer.steps", "30")
    vision = await _submit(scheduler, "vision_digits", "--trainer.steps", "4", "--warmup.steps", "20")
    bold = await _submit(scheduler, "number_guess", "--name", "number_guess_bold", *LEARNS_FAST)
    wrong = ("--name", "wrong_reference", "--kl.coefficient", "0.1", "--kl.reference", "tinker://p/weights/gone")
    await _submit(scheduler, "number_guess", *wrong)
    for job in (careful, vision):
        await scheduler.wait(job.id)
    await scheduler.wait(bold.id, (JobState.RUNNING,))
    async with camera.looking(f"#/job/{bold.id}", dark=True) as page:
        await page.get_by_text("18 of 30").wait_for(timeout=300_000)
        await camera.shoot(page, "job-dark")
        await camera.go(page, "#/mesh")
        await camera.shoot(page, "mesh-dark")
    async with camera.looking("#/jobs") as page:
        await camera.shoot(page, "jobs")
    await scheduler.wait(bold.id)
    async with camera.looking(f"#/curves?run={careful.id}&run={bold.id}") as page:
        await page.get_by_role("slider").fill("0.6")
        reward = page.locator("[data-metric=Reward] canvas")
        await reward.hover(position={"x": 240, "y": 90})
        await camera.shoot(page, "curves")
    async with camera.looking(f"#/job/{careful.id}/rollouts?order=best") as page:
        await page.locator(".episodes a").nth(6).click()
        await page.locator(".sampled .token").first.hover()
        await camera.shoot(page, "rollout")
    async with camera.looking(f"#/job/{vision.id}/rollouts?order=best", dark=True, width=400) as page:
        await page.locator(".episodes a").first.click()
        await page.get_by_role("button", name="Log-prob").click()
        await camera.shoot(page, "rollout-narrow")
    async with camera.looking("#/jobs", width=400) as page:
        await camera.shoot(page, "jobs-narrow")
    async with camera.looking(f"#/job/{careful.id}/policies") as page:
        await camera.shoot(page, "policies")


LEARNS_FAST = ("--trainer.steps", "30", "--trainer.learning_rate", "6e-3")


async def _submit(scheduler: Scheduler, example: str, *overrides: str) -> Job:
    config = load_config(EXAMPLES / example / "config.toml", (*SMALL, *overrides))
    return await scheduler.submit(request_of(config))


class Camera:
    """Looks at the pages of a gateway."""

    def __init__(self, browser: Browser, url: str, folder: Path) -> None:
        self._browser, self._url, self._folder = browser, url, folder

    @asynccontextmanager
    async def looking(self, path: str, *, dark: bool = False, width: int = 1180) -> AsyncIterator[Page]:
        """A page in a window of its own."""
        context = await self._browser.new_context(
            viewport={"width": width, "height": 760}, color_scheme="dark" if dark else "light"
        )
        page = await context.new_page()
        page.set_default_timeout(60_000)
        await self.go(page, path)
        yield page
        await context.close()

    async def go(self, page: Page, path: str) -> None:
        """Show a view, and wait until it is live."""
        await page.goto(f"{self._url}/{path}")
        await page.locator("#link[data-state=live]").wait_for()
        await page.wait_for_timeout(2500)

    async def shoot(self, page: Page, name: str) -> None:
        """Take a picture; a palette makes it small."""
        path = self._folder / f"{name}.png"
        await page.screenshot(path=path, animations="disabled")
        with Image.open(path) as picture:
            picture.convert("RGB").quantize(255, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(
                path, optimize=True
            )


if __name__ == "__main__":
    pictures = Path(sys.argv[1])
    pictures.mkdir(parents=True, exist_ok=True)
    asyncio.run(main(pictures))

"""The dashboard in a real browser: jobs as they move, keys, colours, narrow windows, a server that goes and returns."""

from __future__ import annotations

import re
from contextlib import AsyncExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.async_api import Browser, Locator, Page, Request, expect
from tests.console.recorded import episode, trajectory, turn
from tests.gateway.dashboards import STEPS, Dashboard, dashboard, measure, play

from tinker_actors.gateway.admission import Admission
from tinker_actors.gateway.keys import KeyStore
from tinker_actors.scheduler.job_folder import JobFolder
from tinker_actors.scheduler.run_folder import RunFolder
from tinker_actors.scheduler.states import JobState

pytestmark = pytest.mark.asyncio(loop_scope="session")  # the browser's


async def test_jobs_appear_move_and_end_without_a_reload(board: Dashboard, browser: Browser):
    async with board.page(browser) as page:
        await expect(page.get_by_text("No jobs yet")).to_be_visible()
        await expect(page.locator("#link")).to_have_text("Live")
        job, run = await board.running("guess")
        row = page.locator(f"tr[data-job={job.id}]")
        await expect(row.locator(".state")).to_have_text("running")
        measure(run, 1, 10)
        await expect(row).to_contain_text(f"10 / {STEPS}")
        await expect(row).to_contain_text("reward 0.1")
        await expect(page.get_by_role("button", name="Active 1")).to_be_visible()
        await board.submit("quick", do="give up")
        failed = page.locator("tr", has_text="quick")
        await expect(failed.locator(".state")).to_have_text("failed")
        await expect(failed).to_contain_text("it went wrong")
        await page.get_by_role("button", name="Failed 1").click()
        await expect(row).to_have_count(0)
        await expect(failed).to_be_visible()
        await page.get_by_label("Find jobs by name or id").fill("guess")
        await expect(page.get_by_text("No job is like that")).to_be_visible()


async def test_the_bar_of_a_job_moves_by_epochs_as_by_steps(board: Dashboard, browser: Browser):
    job, run = await board.running("answers", trainer={"epochs": 4})
    async with board.page(browser, f"#/job/{job.id}") as page:
        await expect(page.locator("#link")).to_have_text("Live")
        measure(run, 1, 5, epoch=1.0)
        await expect(bar(page)).to_have_attribute("style", "width: 25%;")


async def test_the_bar_of_a_job_that_succeeded_is_full_after_however_few_steps(board: Dashboard, browser: Browser):
    job = await board.submit("early", do="0.01")
    assert (await board.scheduler.wait(job.id)).state is JobState.SUCCEEDED
    run = RunFolder(JobFolder(Path(await board.scheduler.folder(job.id))).run)
    run.root.mkdir()
    measure(run, 1, 10)
    async with board.page(browser, f"#/job/{job.id}") as page:
        await expect(page.locator(".facts")).to_contain_text(f"10 of {STEPS}")
        await expect(bar(page)).to_have_attribute("style", "width: 100%;")
        measure(run, 11, 12)
        await expect(page.locator(".facts")).to_contain_text(f"12 of {STEPS}")
        await expect(bar(page)).to_have_attribute("style", "width: 100%;")


async def test_a_job_is_cancelled_and_resumed_only_once_that_is_confirmed(board: Dashboard, browser: Browser):
    job, _ = await board.running("guess")
    async with board.page(browser, f"#/job/{job.id}/history") as page:
        await page.get_by_role("button", name="Cancel guess").click()
        await page.get_by_role("button", name="Leave it").click()
        await expect(page.get_by_role("dialog")).to_have_count(0)
        assert (await board.scheduler.job(job.id)).state is JobState.RUNNING
        await page.get_by_role("button", name="Cancel guess").click()
        await page.get_by_role("button", name="Cancel the job").click()
        await expect(page.locator("h1 + span .state")).to_have_text("cancelled")
        await expect(page.locator(".history li")).to_have_count(5)
        await expect(page.locator(".history")).to_contain_text("cancel asked")
        assert (await board.scheduler.job(job.id)).state is JobState.CANCELLED
        await page.get_by_role("button", name="Resume guess").click()
        await page.get_by_role("button", name="Resume the job").click()
        await expect(page.locator("h1 + span .state")).to_have_text("running")
        assert (await board.scheduler.job(job.id)).attempt == 2


async def test_a_job_is_deleted_once_that_is_confirmed_and_leaves_every_page(board: Dashboard, browser: Browser):
    job, _ = await board.running("guess")
    await board.scheduler.cancel(job.id)
    await board.scheduler.wait(job.id)
    async with board.page(browser, "#/jobs") as page, board.page(browser, f"#/job/{job.id}") as other:
        await expect(page.locator("#link")).to_have_text("Live")
        await expect(other.locator("#link")).to_have_text("Live")
        await page.get_by_role("button", name="Delete guess").click()
        await page.get_by_role("button", name="Leave it").click()
        await expect(page.locator(f"tr[data-job={job.id}]")).to_be_visible()
        await page.get_by_role("button", name="Delete guess").click()
        await page.get_by_role("button", name="Delete the job").click()
        await expect(page.get_by_text("No jobs yet")).to_be_visible()
        await expect(other.get_by_text("No jobs yet")).to_be_visible()
        assert await board.scheduler.jobs() == []


async def test_a_key_is_asked_for_kept_for_the_tab_and_never_part_of_an_address(tmp_path: Path, browser: Browser):
    with KeyStore(tmp_path / "keys.sqlite") as keys:
        key, secret = keys.add("mine")
        async with dashboard(tmp_path, admit=Admission(keys)) as board, board.served():
            await board.running("theirs", tenant="theirs")
            job, _ = await board.running("guess", tenant="mine")
            asked: list[Request] = []
            async with board.page(browser) as page:
                page.on("request", lambda request: asked.append(request))  # playwright marks the function
                await page.get_by_role("textbox", name="API key").fill("tml-wrong")
                await page.keyboard.press("Enter")
                await expect(page.get_by_role("alert")).to_contain_text("unknown, expired or revoked")
                await page.get_by_role("textbox", name="API key").fill(secret)
                await page.get_by_role("button", name="Continue").click()
                await expect(page.locator("tbody tr")).to_have_count(1)
                await expect(page.locator("tbody tr")).to_contain_text("guess")
                await expect(page.locator("#link")).to_have_text("Live")
                await page.reload()
                await expect(page.locator(f"tr[data-job={job.id}]")).to_be_visible()
                assert not [request.url for request in asked if "tml-" in request.url]
                assert secret not in await page.evaluate("JSON.stringify({...localStorage}) + document.cookie")
                keys.revoke(key.id)
                await page.reload()
                await expect(page.get_by_role("alert")).to_contain_text("unknown, expired or revoked")


async def test_a_lost_server_is_named_and_its_return_brings_what_was_missed(tmp_path: Path, browser: Browser):
    async with dashboard(tmp_path) as board, AsyncExitStack() as server, AsyncExitStack() as pages:
        await server.enter_async_context(board.served())
        job, run = await board.running("guess")
        measure(run, 1, 3)
        page = await pages.enter_async_context(board.page(browser, f"#/job/{job.id}"))
        await expect(page.locator("#link")).to_have_text("Live")
        reward = page.get_by_role("img", name="Reward")
        await expect(reward).to_have_attribute("aria-label", starting("Reward: guess 0.03 at step 3"))
        await server.aclose()
        await expect(page.locator("#link")).to_contain_text("No answer")
        await expect(reward).to_be_visible()  # what was known stays
        measure(run, 4, 6)
        await board.scheduler.cancel(job.id)
        await board.scheduler.wait(job.id)
        async with board.served(urlsplit(board.url).port or 0):
            await expect(page.locator("#link")).to_have_text("Live")
            await expect(reward).to_have_attribute("aria-label", starting("Reward: guess 0.06 at step 6"))
            await expect(page.locator("h1 + span .state")).to_have_text("cancelled")


@pytest.mark.parametrize("theme", ["light", "dark"])
async def test_every_view_fits_a_narrow_window_in_light_and_dark(board: Dashboard, browser: Browser, theme: str):
    job, run = await board.running("a_rather_long_name_of_a_run_that_goes_on_and_on_and_on")
    measure(run, 1, 5)
    play(run, episode("train-1-0-0", trajectory("x", turn("go " * 50, "1" * 80))))
    at = f"#/job/{job.id}"
    views = ["#/jobs", "#/curves", "#/policies", "#/mesh", "#/health", at, f"{at}/rollouts", f"{at}/policies"]
    views += [f"{at}/history", f"{at}/log", f"{at}/config", f"{at}/rollouts/train-1-0-0", "#/job/none"]
    settings = {"viewport": {"width": 400, "height": 800}, "color_scheme": theme}
    async with board.page(browser, **settings) as page:
        for view in views:
            await page.goto(f"{board.url}/{view}")
            await page.locator("main h1, main .empty").first.wait_for()
            wide = await page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
            assert wide <= 0, f"{view} is {wide} px too wide"
        light = await brightness(page, "document.body")
        assert light > 0.8 if theme == "light" else light < 0.2


async def test_an_episode_is_one_row_of_two_lines_at_most_in_a_narrow_window(board: Dashboard, browser: Browser):
    job, run = await board.running("guess")
    play(run, episode("train-1-0-0", trajectory("agent", turn("go", "1"))))
    async with board.page(browser, f"#/job/{job.id}/rollouts", viewport={"width": 400, "height": 800}) as page:
        row = page.locator(".episodes tbody tr", has_text="train-1-0-0")
        box = await row.bounding_box()
        assert box is not None
        assert box["height"] < 70


async def test_the_switch_of_colours_overrides_the_system_and_is_remembered(board: Dashboard, browser: Browser):
    async with board.page(browser, color_scheme="dark") as page:
        switch = page.get_by_role("button", name="Colours: as the system")
        await switch.click()
        await expect(page.get_by_role("button", name="Colours: light")).to_be_visible()
        assert await brightness(page, "document.body") > 0.8
        await page.reload()
        await expect(page.get_by_role("button", name="Colours: light")).to_be_visible()
        assert await brightness(page, "document.body") > 0.8


async def test_the_page_works_below_a_path_of_another_service(tmp_path: Path, browser: Browser):
    async with dashboard(tmp_path) as board, board.served(below="/tinker"):
        job, run = await board.running("guess")
        measure(run, 1, 5)
        async with board.page(browser, f"#/job/{job.id}") as page:
            await expect(page.locator("#link")).to_have_text("Live")
            await expect(page.get_by_role("img", name="Reward")).to_be_visible()


async def test_meshes_of_the_gateway_are_shown_as_they_are(board: Dashboard, browser: Browser):
    async with board.page(browser, "#/mesh") as page:
        row = page.locator(".actors tr", has_text="scheduler")
        await expect(row).to_contain_text("running")
        handled = int(await row.locator("td").nth(8).inner_text())
        for _ in range(20):
            await board.scheduler.free()
        await expect(row.locator("td").nth(8)).not_to_have_text(str(handled))
        await page.get_by_role("button", name="Actor").click()
        await expect(page.locator("th", has_text="Actor")).to_have_attribute("aria-sort", "ascending")
        await expect(page.locator(".actors tbody tr").first).to_contain_text("policies")


def starting(text: str) -> re.Pattern[str]:
    return re.compile(f"^{re.escape(text)}")


async def brightness(page: Page, element: str) -> float:
    """Of an element's ground, from 0 to 1."""
    colour = await page.evaluate(f"getComputedStyle({element}).backgroundColor")
    parts = [float(part) for part in colour.strip("rgb()").split(",")[:3]]
    return sum(parts) / 3 / 255


def bar(page: Page) -> Locator:
    """How far the job of a page is."""
    return page.locator(".bar i").first

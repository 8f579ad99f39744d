"""What a run did, in a real browser: its curves as they grow, and its episodes, token by token, whatever they say."""

from __future__ import annotations

import json
import re

import pytest
from playwright.async_api import Browser, Locator, Page, expect
from tests.console.recorded import episode, trajectory, turn
from tests.gateway.dashboards import Dashboard, measure, play

pytestmark = pytest.mark.asyncio(loop_scope="session")  # the browser's

LINE = {"light": (36, 84, 204), "dark": (134, 170, 255)}  # of the first run: --run-0
HOSTILE = "</script><script>window.taken = 1</script><img src=x onerror='window.taken = 1'><b>bold</b>"


@pytest.mark.parametrize("theme", ["light", "dark"])
async def test_a_curve_is_drawn_and_grows_as_the_run_measures(board: Dashboard, browser: Browser, theme: str):
    job, run = await board.running("guess")
    measure(run, 1, 5)
    async with board.page(browser, f"#/job/{job.id}", color_scheme=theme) as page:
        reward = chart(page, "Reward")
        await expect(reward).to_have_attribute("aria-label", re.compile("^Reward: guess 0.05 at step 5"))
        few = await drawn(reward, LINE[theme])
        assert few["count"] > 100
        assert few["left"] < 0.2
        assert few["right"] > 0.9
        assert few["bottom"] - few["top"] > 0.5, "the line doesn't rise"
        await expect(page.locator("#link")).to_have_text("Live")
        measure(run, 6, 20)
        await expect(reward).to_have_attribute("aria-label", re.compile("^Reward: guess 0.2 at step 20"))
        await expect(page.locator(".facts")).to_contain_text("20 of 40")


async def test_values_are_read_by_pointer_and_by_keys_in_all_charts_at_once(board: Dashboard, browser: Browser):
    job, run = await board.running("guess")
    measure(run, 1, 20)
    async with board.page(browser, f"#/job/{job.id}") as page:
        reward, tip = chart(page, "Reward"), page.get_by_role("tooltip")
        box = await reward.bounding_box()
        assert box is not None
        await page.mouse.move(box["x"] + box["width"] - 14, box["y"] + 60)
        await expect(tip).to_contain_text("Reward, step 20")
        await expect(tip).to_contain_text("0.2")
        await page.mouse.move(5, 5)
        await expect(tip).to_be_hidden()
        await chart(page, "KL").focus()
        await page.keyboard.press("ArrowLeft")
        await page.keyboard.press("ArrowLeft")
        await expect(tip).to_contain_text("KL, step 19")
        await page.get_by_role("slider").fill("0.9")
        await reward.focus()
        await page.keyboard.press("ArrowLeft")
        await expect(tip).to_contain_text("0.2, smoothed 0.1")
        await page.get_by_label("Over time").check()
        await expect(reward).to_have_attribute("aria-label", re.compile("at 40 s"))
        await page.get_by_label("Log scale").check()
        await page.reload()
        await expect(page.get_by_label("Log scale")).to_be_checked()


async def test_what_rounding_leaves_of_nothing_is_drawn_and_read_as_0(board: Dashboard, browser: Browser):
    job, run = await board.running("guess")
    for step, kl in enumerate((4e-14, 9e-14, 5e-14, 7e-14), start=1):
        measure(run, step, step, kl=kl)
    async with board.page(browser, f"#/job/{job.id}") as page:
        kl = chart(page, "KL")
        await expect(kl).to_have_attribute("aria-label", re.compile("^KL: guess 0 at step 4"))
        line = await drawn(kl, LINE["light"])
        assert line["count"] > 100
        assert line["bottom"] - line["top"] < 0.05, "rounding is drawn as if it were a curve"
        await page.get_by_label("Log scale").check()
        assert (await drawn(kl, LINE["light"]))["count"] == 0


async def test_any_metric_of_a_run_can_be_drawn(board: Dashboard, browser: Browser):
    job, run = await board.running("guess")
    measure(run, 1, 3, **{"env/invalid": 0.125})
    async with board.page(browser, f"#/job/{job.id}") as page:
        await page.get_by_text("More metrics").click()
        await page.get_by_label("Find a metric").fill("INV")
        await page.get_by_role("button", name="env/invalid").click()
        await expect(chart(page, "env/invalid")).to_have_attribute("aria-label", re.compile("guess 0.125 at step 3"))
        await page.reload()
        await expect(chart(page, "env/invalid")).to_be_visible()
        await page.get_by_role("button", name="Remove env/invalid").click()
        await expect(chart(page, "env/invalid")).to_have_count(0)


async def test_runs_are_compared_in_one_chart(board: Dashboard, browser: Browser):
    for name, last in (("one", 10), ("two", 20)):
        job, run = await board.running(name)
        measure(run, 1, last)
    async with board.page(browser, "#/curves") as page:
        reward = chart(page, "Reward")
        await expect(reward).to_have_attribute("aria-label", re.compile("two 0.2 at step 20; one 0.1 at step 10"))
        await page.get_by_label(re.compile("^one")).uncheck()
        await expect(reward).to_have_attribute("aria-label", re.compile("^Reward: two 0.2 at step 20\\."))
        assert page.url.count("run=") == 1
        await page.reload()
        await expect(page.get_by_label(re.compile("^one"))).not_to_be_checked()
        await expect(page.get_by_label(re.compile("^two"))).to_be_checked()
        assert job.id in page.url


async def test_tokens_show_mask_advantage_and_log_prob_in_colour_and_in_numbers(board: Dashboard, browser: Browser):
    job, run = await board.running("duel")
    mine = trajectory("x", turn("go", "12", image=True), turn("on", "3", reward=1.0))
    other = trajectory("o", turn("no", "9", reward=-1.0), policy="old", trainable=False)
    play(run, episode("train-1-0-0", mine, other), advantages={id(mine): [0.25, -1.5, 0.0, 0.25, 1.0]})
    async with board.page(browser, f"#/job/{job.id}/rollouts") as page:
        await page.get_by_role("link", name="train-1-0-0").click()
        sampled = page.locator(".sampled .token")
        await expect(sampled).to_have_text(["1", "2", "<|end|>", "3", "<|end|>"])
        grounds = "els => els.map(el => el.dataset.ground)"
        assert await sampled.evaluate_all(grounds) == ["plus1", "minus3", "zero", "plus1", "plus2"]
        paints = "els => els.map(el => getComputedStyle(el).backgroundColor)"
        assert len(set(await sampled.evaluate_all(paints))) == 4
        tip = page.get_by_role("tooltip")
        await sampled.nth(1).hover()
        for text in ('"2"', "1, trained on", "−1.5", "−1", "0.3679"):
            await expect(tip).to_contain_text(text)
        await page.locator(".observed .token").nth(1).hover()
        await expect(tip).to_contain_text("0, observed")
        await page.get_by_role("button", name="Log-prob").click()
        assert (await sampled.evaluate_all(grounds))[:3] == ["p1", "p2", "p2"]
        await page.get_by_role("button", name="Mask").click()
        assert set(await sampled.evaluate_all(grounds)) == {"trained"}
        await page.get_by_label("Numbers").check()
        shown = "el => getComputedStyle(el, '::after').content"
        assert "−0.5 | +0.25" in await sampled.first.evaluate("el => el.dataset.values")
        assert "attr" in (after := await sampled.first.evaluate(shown)) or "+0.25" in after
        await page.locator(".sampled").first.focus()
        await page.keyboard.press("End")
        await expect(tip).to_contain_text('"<|end|>"')
        picture = page.get_by_role("img", name="An image of 8 by 8 pixels")
        assert await picture.evaluate("image => image.naturalWidth") == 8
        await page.get_by_role("link", name=re.compile("^o ")).click()
        await expect(page.get_by_text("frozen: not trained on")).to_be_visible()
        assert set(await sampled.evaluate_all(grounds)) == {"untrained"}


async def test_whatever_an_episode_says_stays_text(board: Dashboard, browser: Browser):
    job, run = await board.running("hostile")
    bad = episode("train-1-0-0", trajectory("x", turn(HOSTILE, HOSTILE)), error=HOSTILE)
    play(run, bad)
    record = json.loads(run.rollouts.read_text())
    record["id"] = f"train-2-{HOSTILE}"
    record["environment"] = record["end"] = HOSTILE
    record["metrics"] = {HOSTILE: 1.0}
    for seat in record["seats"]:
        seat["seat"] = seat["policy"] = HOSTILE
        for each in seat["turns"]:
            each["snapshot"] = each["snapshot_max"] = HOSTILE
            each["action_ids"] = each["observation_ids"] = None
            each["messages"][0]["images"] = [{"width": 1, "height": 1, "png": f'"{HOSTILE}'}]
    with run.rollouts.open("a") as file:
        file.write(json.dumps(record) + "\n")
    measure(run, 1, 2, **{HOSTILE: 1.0})
    (run.root.parent / "output.log").write_text(HOSTILE)
    at = f"#/job/{job.id}"
    async with board.page(browser, f"{at}/rollouts/train-1-0-0") as page:
        await expect(page.locator(".sampled")).to_contain_text("<img src=x onerror='window.taken = 1'>")
        await unharmed(page)
        for view, text in ((f"{at}/rollouts", HOSTILE), (f"{at}/log", HOSTILE), (at, "Reward")):
            await page.goto(f"{board.url}/{view}")
            await expect(page.locator("main")).to_contain_text(text)
            await unharmed(page)
        await page.get_by_text("More metrics").click()
        await expect(page.locator(".names")).to_contain_text(HOSTILE)
        await page.goto(f"{board.url}/{at}/rollouts")
        await page.get_by_role("link", name=re.compile("train-2")).click()
        await expect(page.locator(".turn")).to_contain_text(HOSTILE)
        await unharmed(page)


async def test_a_long_episode_comes_in_parts_and_does_not_stop_the_page(board: Dashboard, browser: Browser):
    job, run = await board.running("long")
    turns = [turn(f"go {number}", "0123456789" * 4) for number in range(150)]
    play(run, episode("train-1-0-0", trajectory("x", *turns)))
    async with board.page(browser, f"#/job/{job.id}/rollouts/train-1-0-0") as page:
        cards = page.locator(".turn")
        await expect(cards.first).to_be_visible()
        assert await cards.count() < 150
        longest = await page.evaluate(
            "async () => { let worst = 0, last = performance.now();"
            "for (let i = 0; i < 30; i++) { scrollTo(0, document.body.scrollHeight);"
            "await new Promise(requestAnimationFrame); const now = performance.now();"
            "worst = Math.max(worst, now - last); last = now; } return worst; }"
        )
        assert longest < 2000
        await page.evaluate("scrollTo(0, document.body.scrollHeight)")
        while await cards.count() < 150:
            await page.evaluate("scrollTo(0, document.body.scrollHeight)")
            await page.wait_for_timeout(20)
        await expect(cards.last).to_contain_text("Turn 150")


def chart(page: Page, metric: str) -> Locator:
    """The canvas of a metric."""
    return page.locator(f'[data-metric="{metric}"] canvas')


async def drawn(canvas: Locator, colour: tuple[int, int, int]) -> dict[str, float]:
    """How many pixels have a colour, and where in the canvas they are, from 0 to 1."""
    return await canvas.evaluate(
        """(canvas, [r, g, b]) => {
            const {data, width, height} = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
            let [count, left, right, top, bottom] = [0, 1, 0, 1, 0];
            for (let i = 0; i < data.length; i += 4) {
                if (data[i + 3] < 200 || Math.hypot(data[i] - r, data[i + 1] - g, data[i + 2] - b) > 40) continue;
                const [x, y] = [((i / 4) % width) / width, Math.floor(i / 4 / width) / height];
                count++;
                left = Math.min(left, x); right = Math.max(right, x);
                top = Math.min(top, y); bottom = Math.max(bottom, y);
            }
            return {count, left, right, top, bottom};
        }""",
        list(colour),
    )


async def unharmed(page: Page) -> None:
    """Nothing of what is shown has become part of the page."""
    assert await page.evaluate("window.taken") is None
    assert await page.locator("main script, main b:text-is('bold'), img[src=x]").count() == 0

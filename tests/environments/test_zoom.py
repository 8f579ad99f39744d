"""Reading a card with a tool that enlarges a region: rules, images, and the datums of an episode."""

import io
import random
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from boards import module_of
from PIL import Image as Pillow

from tinker_actors.coordinator import run_episode
from tinker_actors.data import EpisodeEnd, ImageChunk, Task, rl_datums
from tinker_actors.environments import PolicyAgent, PolicySeat, ScriptedAgent, load_environment
from tinker_actors.errors import ConfigError
from tinker_actors.models import Renderer, load_tokenizer
from tinker_actors.sampling.requests import Sample, SamplingParams, SamplingReply

zoom = module_of("zoom")

GROUND = (0, 20, 180)


async def begun(*, seed=0, luck=0, **options):
    environment = load_environment("zoom", **options)()
    environment.rng = random.Random(luck)
    return environment, await environment.reset(seed)


async def played(agent, *, seed=0, **options):
    environment = load_environment("zoom", **options)()
    return await run_episode(environment, {"agent": agent}, task=Task(environment="zoom", seed=seed), id="e")


async def said(*answers, **options):
    replies = iter(answers)
    return await played(ScriptedAgent(lambda messages: next(replies)), **options)


def observed(episode, turn):
    (message,) = episode.trajectories[0].turns[turn].messages
    return message


def pixels(message):
    (image,) = message.images
    with Pillow.open(io.BytesIO(image.data)) as opened:
        return np.asarray(opened)


def grounds(grid):
    return {
        f"{'abcdefghi'[column]}{row + 1}": (0, *(20 + 160 * place // (grid - 1) for place in (column, row)))
        for row, column in product(range(grid), repeat=2)
    }


@pytest.mark.parametrize("red", [True, False])
def test_the_overview_of_a_card_is_the_same_whichever_way_its_lines_run(red):
    first = zoom.card_of(random.Random(0), red=red)
    cards = [
        replace(first, direction=direction, phase=phase)
        for direction, phase in product(zoom.DIRECTIONS, range(zoom.SCALE))
    ]
    assert len({zoom.reduced(zoom.drawn(card, GROUND)).tobytes() for card in cards}) == 1
    assert len({zoom.drawn(card, GROUND).tobytes() for card in cards}) == len(cards)


@pytest.mark.parametrize("grid", [2, 3, 9])
async def test_the_overview_shows_where_the_red_card_is(grid):
    targets = set()
    for seed in range(40):
        environment, shown = await begun(seed=seed, grid=grid)
        array = pixels(shown).astype(int)
        assert (array.shape, shown.content) == ((8 * grid, 8 * grid, 3), "Red lines?")
        row, column = np.argwhere((array[..., 0] > array[..., 2] + 20).reshape(grid, 8, grid, 8).any((1, 3)))[0]
        assert environment.target == f"{'abcdefghi'[column]}{row + 1}"
        targets.add(environment.target)
    assert len(targets) > min(grid * grid - 1, 15)


async def test_the_tool_returns_the_region_enlarged_and_the_direction_earns_the_reward():
    environment, _ = await begun(seed=5)
    card, ground = environment.cards[environment.target], grounds(2)[environment.target]
    for direction in zoom.DIRECTIONS:
        episode = await said(f"<{environment.target}>", f" {direction.upper()}\n", seed=5)
        result = observed(episode, 1)
        assert (result.role, result.content) == ("tool", "")
        assert np.array_equal(pixels(result), zoom.drawn(card, ground))
        assert (episode.end, episode.trajectories[0].reward) == (
            EpisodeEnd.TERMINATED,
            float(direction == card.direction),
        )
        assert episode.metrics == {"tool_calls": 1.0, "tool_errors": 0.0, "found": 1.0, "invalid": 0.0}


async def test_each_region_has_a_ground_of_its_own():
    environment, shown = await begun(grid=9)
    array = pixels(shown)
    seen = {name: tuple(array[8 * (int(name[1]) - 1), 8 * (ord(name[0]) - ord("a"))]) for name in environment.regions}
    assert seen == grounds(9)
    assert len(set(seen.values())) == 81


async def test_lines_run_the_way_their_letter_says():
    def shifted(array, down, right):
        return np.array_equal(array[8:16, 8:16], array[8 + down : 16 + down, 8 + right : 16 + right])

    steps = {"h": (0, 1), "v": (1, 0), "u": (-1, 1), "d": (1, 1)}  # a step along the lines changes nothing
    for direction in zoom.DIRECTIONS:
        array = zoom.drawn(replace(zoom.card_of(random.Random(0), red=True), direction=direction), GROUND)
        assert [name for name, step in steps.items() if shifted(array, *step)] == [direction]


async def test_another_region_shows_another_card_and_the_answer_is_still_that_of_the_red_one():
    environment, _ = await begun(seed=5)
    target = environment.cards[environment.target]
    other = next(name for name, card in environment.cards.items() if card.direction != target.direction)
    assert (await said(f"<{other}>", environment.cards[other].direction, seed=5)).trajectories[0].reward == 0.0
    episode = await said(f"<{other}>", target.direction, seed=5)
    assert (episode.trajectories[0].reward, episode.metrics["found"]) == (1.0, 0.0)
    assert (await said("", seed=5)).metrics["invalid"] == 1.0


@pytest.mark.parametrize("call", ["<>", "<c1>", "<a3>", "<a>", "<1a>", "<a1 b2>", "<<a1>>", "<a-1>"])
async def test_a_region_that_is_not_there_is_answered_by_an_error_and_the_episode_goes_on(call):
    environment, _ = await begun()
    right = environment.cards[environment.target].direction
    episode = await said(call, f"< {environment.target.upper()} >", right)
    assert observed(episode, 1).content.startswith("error: no region ")
    assert observed(episode, 1).content.endswith("; a1 to b2")
    assert observed(episode, 2).images
    assert (episode.trajectories[0].reward, episode.metrics["tool_calls"], episode.metrics["tool_errors"]) == (1, 2, 1)


async def test_an_episode_of_calls_alone_is_truncated():
    episode = await said("<a1>", "<a1>", "<b2>")
    assert (episode.end, episode.trajectories[0].reward) == (EpisodeEnd.TRUNCATED, 0.0)


async def test_other_forms_of_calls_work():
    environment, _ = await begun(form="{name}({arguments})")
    assert environment.toolbox.written("zoom", region="b2") == "zoom(b2)"
    episode = await said("zoom(b2)", "h", form="{name}({arguments})")
    assert np.array_equal(pixels(observed(episode, 1)), zoom.drawn(environment.cards["b2"], (0, 180, 180)))


async def test_a_group_shares_the_picture_and_seeds_differ():
    assert len({(await begun(seed=7, luck=luck))[1] for luck in range(5)}) == 1
    cards = [tuple((await begun(seed=seed))[0].cards.values()) for seed in range(100)]
    assert len(set(cards)) == 100


async def test_demonstrations_are_as_good_as_they_say():
    found = right = 0
    for number in range(400):
        environment, _ = await begun(seed=number, luck=1000 + number, skill=0.5)
        await environment.step(environment.demonstrate())
        found += environment.found
        right += (await environment.step(environment.demonstrate())).reward
    assert 215 < found < 285  # half by intent, and a quarter of the others by chance
    assert 150 < right < 225  # 15/32 in the mean: 5/8 of the answers read the card, the red one 5/8 of the time


@pytest.mark.parametrize("options", [{"grid": 1}, {"grid": 10}, {"skill": 2.0}])
def test_options_that_cannot_work_are_refused(options):
    with pytest.raises(ConfigError, match=" is "):
        load_environment("zoom", **options)()


class Replies:
    """A sampler that returns these texts, request after request, in the tokens of a policy."""

    def __init__(self, renderer, *texts):
        self.renderer, self.texts, self.prompts = renderer, iter(texts), []

    async def sample(self, request):
        text = next(self.texts)
        tokens = self.renderer.encode_action(text)
        self.prompts.append(request.prompt)
        sample = Sample(tokens=tokens, logprobs=(-0.5,) * len(tokens), end="stop", text=text)
        return SamplingReply(
            samples=(sample,), snapshot="s", snapshot_step=0, prompt_tokens=len(request.prompt), seed=0
        )


@pytest.mark.parametrize(
    ("actions", "images", "lengths"),
    [
        # a message's role, its end and the next role; an image's two markers and its positions; the question
        (("<a1>", "h"), [4, 4], ([3 + 6 + 10, 5], [3 + 6, 2])),
        (("<a1>", "<b1>", "u"), [4, 4, 4], ([3 + 6 + 10, 5], [3 + 6, 5], [3 + 6, 2])),
        (("<a9>", "<b1>", "u"), [4, 4], ([3 + 6 + 10, 5], [3 + 31, 5], [3 + 6, 2])),
    ],
)
async def test_each_image_is_expanded_once_and_masked(actions, images, lengths):  # T10
    renderer = Renderer(load_tokenizer("tiny-qwen2-vl"))
    sampler = Replies(renderer, *actions)
    spec = PolicySeat(sampler=sampler, policy="p", snapshot="s", params=SamplingParams(max_tokens=6))
    agent = PolicyAgent(spec, renderer, seed=0)
    episode = await played(agent)
    assert episode.error is None
    (trajectory,) = episode.trajectories
    (datum,) = rl_datums(trajectory, (0.0,) * len(actions))
    chunks = [chunk for chunk in datum.model_input.chunks if isinstance(chunk, ImageChunk)]
    assert [len(chunk) for chunk in chunks] == images
    assert len(datum) == sum(map(sum, lengths)) - 1
    expected = [bit for observation, action in lengths for bit in [0] * observation + [1] * action]
    assert list(datum.mask) == expected[1:]
    held = 0
    for prompt, (observation, action) in zip(sampler.prompts, lengths, strict=True):
        assert len(prompt) == held + observation
        held += observation + action

"""The environments that come with the package."""

import random

import pytest

from tinker_actors.coordinator import run_episode
from tinker_actors.data import EpisodeEnd, Task
from tinker_actors.environments import ScriptedAgent, load_environment, shipped_environments
from tinker_actors.errors import ConfigError


async def play(name, *answers, seed=0, luck=0, **options):
    environment = load_environment(name, **options)()
    replies = iter(answers)
    agent = ScriptedAgent(lambda messages: next(replies))
    task = Task(environment=name, seed=seed)
    return environment, await run_episode(environment, {"agent": agent}, task=task, id="e", seed=luck)


def fresh(name, *, seed=0, luck=0, **options):
    environment = load_environment(name, **options)()
    environment.rng = random.Random(luck)
    return environment, environment.reset(seed)


def said(episode):
    return [message.content for turn in episode.trajectories[0].turns for message in turn.messages]


async def test_arithmetic_rewards_the_exact_sum():
    environment, prompt = fresh("arithmetic", seed=5)
    a, b = prompt.removesuffix("=").split("+")
    assert int(a) + int(b) == environment.total
    for answer, reward in ((f" {environment.total} ", 1.0), (f"{environment.total + 1}", 0.0), ("", 0.0)):
        _, episode = await play("arithmetic", answer, seed=5)
        assert (episode.end, episode.trajectories[0].reward) == (EpisodeEnd.TERMINATED, reward)


def test_arithmetic_takes_its_task_from_the_seed_and_its_size_from_the_option():
    prompts = {fresh("arithmetic", seed=5, luck=luck, digits=3)[1] for luck in range(5)}
    assert len(prompts) == 1
    assert len({fresh("arithmetic", seed=seed, digits=3)[1] for seed in range(20)}) > 15


@pytest.mark.parametrize("held_out", [3, 5, 10])
def test_arithmetic_never_trains_on_the_questions_of_evaluations(held_out):
    def asked(evaluating):
        environment = load_environment("arithmetic", held_out=held_out)()
        environment.rng, environment.evaluating = random.Random(0), evaluating
        return {environment.reset(seed) for seed in range(3000)}

    training, evaluation = asked(False), asked(True)
    assert not training & evaluation
    assert len(training | evaluation) == 100
    assert abs(len(evaluation) - 100 / held_out) < 1


def test_arithmetic_demonstrates_the_sum_as_often_as_it_says():
    environment, _ = fresh("arithmetic", seed=5, noise=0.5, digits=2)
    right = sum(environment.demonstrate() == str(environment.total) for _ in range(400))
    assert 170 < right < 240


def test_arithmetic_demonstrates_numbers_next_to_the_sum_otherwise():
    for seed in range(30):
        environment, _ = fresh("arithmetic", seed=seed, noise=1.0)
        off = {int(environment.demonstrate()) - environment.total for _ in range(80)}
        assert off == {near for near in (-2, -1, 1, 2) if environment.total + near >= 0}


@pytest.mark.parametrize("secret", range(1, 8))
async def test_binary_search_always_finds_the_number(secret):
    def luck_of(secret):
        return next(luck for luck in range(200) if fresh("number_guess", luck=luck)[0].secret == secret)

    environment = load_environment("number_guess")()
    low, high = 1, 7

    def search(messages):
        nonlocal low, high
        word = messages[-1].content
        if word == "higher":
            low = search.last + 1
        elif word == "lower":
            high = search.last - 1
        search.last = (low + high) // 2
        return str(search.last)

    episode = await run_episode(
        environment,
        {"agent": ScriptedAgent(search)},
        task=Task(environment="number_guess", seed=0),
        id="e",
        seed=luck_of(secret),
    )
    assert episode.trajectories[0].reward == 1.0
    assert said(episode)[0] == "guess 1-7"


async def test_number_guess_ends_after_the_last_miss():
    luck = next(luck for luck in range(99) if fresh("number_guess", luck=luck)[0].secret == 4)
    _, episode = await play("number_guess", "1", "7", "5", luck=luck)
    assert said(episode) == ["guess 1-7", "higher", "lower"]
    assert (episode.end, episode.trajectories[0].reward) == (EpisodeEnd.TERMINATED, 0.0)


STRANGE = (
    *("", " ", "²", "٣", "Ⅷ", "１", "\x00", "-", "1e5", "nan", "9" * 5000, "a0", "z9", "#", "(", ")" * 50, "1 2", "é"),
    *("<9**9**9**9>", "<1/0>", "<" + "(" * 3000 + ">", "<look:>", "<look:z99>", '{"name": [], "parameters": {}}'),
    *("<tool_call></tool_call>", '<tool_call>{"name": 1}</tool_call>', "order:", "order x y z"),
)


@pytest.mark.parametrize("name", shipped_environments())
async def test_whatever_a_policy_says_no_shipped_environment_raises(name):
    for reply in STRANGE:
        environment = load_environment(name)()
        agents = {seat: ScriptedAgent(lambda messages, reply=reply: reply) for seat in environment.seats}
        episode = await run_episode(environment, agents, task=Task(environment=name, seed=1), id="e")
        assert episode.error is None, reply[:20]


@pytest.mark.parametrize("reply", ["", "x", "8", "0", "4.0", "²", "-1"])
async def test_number_guess_punishes_what_is_no_number_in_range(reply):
    _, episode = await play("number_guess", reply)
    assert (episode.trajectories[0].reward, episode.metrics) == (-0.5, {"invalid": 1.0})


def test_number_guess_shares_the_prompt_but_not_the_secret():
    made = [fresh("number_guess", seed=1, luck=luck) for luck in range(50)]
    assert {prompt for _, prompt in made} == {"guess 1-7"}
    assert {environment.secret for environment, _ in made} == set(range(1, 8))


def test_number_guess_demonstrates_a_good_move_about_four_times_in_ten():
    environment, _ = fresh("number_guess")
    shown = [environment.demonstrate() for _ in range(700)]
    assert set(shown) == {str(number) for number in range(1, 8)}
    # three in ten by intent, and one in seven of the others by chance
    assert 230 < shown.count("4") < 330


async def test_last_word_rewards_the_first_word_of_the_reply():
    environment, prompt = fresh("last_word", seed=3)
    last = environment.words[-1]
    assert prompt == f"Words: {', '.join(environment.words)}. Last word?"
    for reply, reward in ((last, 1.0), (f" {last.title()}.\nIt", 1.0), (environment.words[0], 0.0), ("", 0.0)):
        _, episode = await play("last_word", reply, seed=3)
        assert episode.trajectories[0].reward == reward


def test_last_word_prompts_are_fresh_and_demonstrations_poor():
    assert len({fresh("last_word", seed=seed)[1] for seed in range(300)}) == 300
    environment, _ = fresh("last_word", seed=3, shortest=4, longest=4)
    shown = [environment.demonstrate() for _ in range(400)]
    assert set(shown) == set(environment.words)
    assert 60 < shown.count(environment.words[-1]) < 140


async def test_digits_rewards_the_digit_of_the_image():
    environment, shown = fresh("digits", seed=3)
    assert (shown.content, [(image.width, image.height) for image in shown.images]) == ("Which digit?", [(8, 8)])
    wrong = str((int(environment.digit) + 1) % 10)
    for answer, reward, invalid in ((f" {environment.digit}\n", 1.0, 0.0), (wrong, 0.0, 0.0), ("", 0.0, 1.0)):
        _, episode = await play("digits", answer, seed=3)
        assert (episode.end, episode.trajectories[0].reward) == (EpisodeEnd.TERMINATED, reward)
        assert episode.metrics == {"invalid": invalid}


def test_digits_never_trains_on_the_images_of_evaluations():
    def shown(evaluating):
        environment = load_environment("digits", held_out=200)()
        environment.rng, environment.evaluating = random.Random(0), evaluating
        return {environment.reset(seed).images[0].data for seed in range(3000)}

    training, evaluation = shown(False), shown(True)
    assert len(evaluation) == 200
    assert len(training) > 1200
    assert not training & evaluation


def test_digits_shares_the_image_within_a_group_and_demonstrates_with_noise():
    assert len({fresh("digits", seed=4, luck=luck)[1].images[0] for luck in range(5)}) == 1
    environment, _ = fresh("digits", noise=0.5)
    right = sum(environment.demonstrate() == environment.digit for _ in range(400))
    assert 180 < right < 260  # half by intent, and a tenth of the others by chance


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("digits", {"noise": 1.5}),
        ("digits", {"held_out": 1797}),
        ("arithmetic", {"digits": 0}),
        ("arithmetic", {"noise": 2.0}),
        ("arithmetic", {"held_out": 2}),
        ("number_guess", {"low": 5, "high": 4}),
        ("number_guess", {"guesses": 0}),
        ("last_word", {"shortest": 4, "longest": 3}),
    ],
)
def test_options_that_cannot_work_are_refused(name, options):
    with pytest.raises(ConfigError, match=" is "):
        load_environment(name, **options)()

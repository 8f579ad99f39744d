"""Shapes in one image, and one question about them."""

import io

import numpy as np
import pytest
from boards import fresh, module_of
from PIL import Image as Pillow

from tinker_actors.environments import load_environment
from tinker_actors.errors import ConfigError


def pixels(message):
    (image,) = message.images
    with Pillow.open(io.BytesIO(image.data)) as opened:
        return np.asarray(opened.convert("RGB")).astype(int)


def test_the_image_has_the_number_and_the_colour_that_are_asked_for():
    shapes, found = module_of("shapes"), set()
    for seed in range(200):
        environment, shown = fresh("shapes", seed=seed)
        array = pixels(shown)
        assert array.shape == (32, 32, 3)
        ground = array[0, 0]
        assert len(set(ground)) == 1
        drawn = (array != ground).any(-1)
        cells = drawn.reshape(2, 16, 2, 16).any((1, 3)).sum()
        (colour,) = {tuple(pixel) for pixel in array[drawn].tolist()}
        if shown.content == "number?":
            assert environment.right == str(cells)
        if shown.content == "colour?":
            assert shapes.COLOURS[environment.right] == colour
        found.add((shown.content, environment.right))
    assert found == {(f"{question}?", right) for question, answers in shapes.QUESTIONS.items() for right in answers}


def test_shapes_fill_the_more_of_their_box_the_squarer_they_are():
    filled = {}
    for seed in range(150):
        environment, shown = fresh("shapes", seed=seed, ask="shape")
        array = pixels(shown)
        drawn = (array != array[0, 0]).any(-1)
        for cell in drawn.reshape(2, 16, 2, 16).swapaxes(1, 2).reshape(4, 16, 16):
            rows, columns = np.nonzero(cell)
            if len(rows):
                share = len(rows) / ((np.ptp(rows) + 1) * (np.ptp(columns) + 1))
                filled.setdefault(environment.right, set()).add(share)
    assert min(filled["square"]) == 1.0
    assert 0.7 < min(filled["circle"]) <= max(filled["circle"]) < 0.95
    assert max(filled["triangle"]) < 0.7


@pytest.mark.parametrize("ask", ["shape", "colour", "number"])
def test_the_right_answer_alone_earns_the_reward(ask):
    environment, shown = fresh("shapes", seed=4, ask=ask)
    assert shown.content == f"{ask}?"
    for said in (*environment.answers, f" {environment.right.upper()}\n", "", "pink", f"{environment.right}!"):
        step = environment.step(said)
        reward = float(said.strip().lower() == environment.right)
        assert (step.terminated, step.reward) == (True, reward)
        assert step.metrics == {"invalid": float(said.strip().lower() not in environment.answers)}


def test_a_group_shares_image_and_question_and_seeds_differ():
    assert len({fresh("shapes", seed=3, luck=luck)[1] for luck in range(5)}) == 1
    assert len({fresh("shapes", seed=seed)[1] for seed in range(300)}) > 295


def test_demonstrations_are_as_noisy_as_they_say():
    environment, _ = fresh("shapes", seed=0, ask="number", noise=0.5)
    shown = [environment.demonstrate() for _ in range(400)]
    assert set(shown) == set("1234")
    assert 215 < shown.count(environment.right) < 285  # half by intent, and a quarter of the others by chance


@pytest.mark.parametrize("options", [{"ask": "size"}, {"noise": 1.5}])
def test_options_that_cannot_work_are_refused(options):
    with pytest.raises(ConfigError, match=" is "):
        load_environment("shapes", **options)()

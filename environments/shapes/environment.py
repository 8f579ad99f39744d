"""Look at a few coloured shapes, drawn here, and say what they are, which colour they have or how many there are."""

from __future__ import annotations

import random

from PIL import Image as Pillow
from PIL import ImageDraw

from tinker_actors.data import Message
from tinker_actors.environments import Environment, Step
from tinker_actors.errors import ConfigError

SHAPES = ("circle", "square", "triangle")
COLOURS = {"red": (230, 40, 40), "green": (40, 190, 60), "blue": (50, 80, 240), "yellow": (235, 220, 50)}
QUESTIONS = {"shape": SHAPES, "colour": tuple(COLOURS), "number": ("1", "2", "3", "4")}
"""What may be asked, and the answers that there are to it."""

CELL = 16
"""Side of each of the four squares of the image, which hold a shape at most, in pixels."""


SHADES = tuple(shade for shade in range(50) if shade % 5)
HELD_OUT = tuple(range(0, 50, 5))
"""How bright the ground of an image is: of those of training, and of those that evaluations alone show."""


class Shapes(Environment):
    """One to four shapes of one kind and colour, one question, one answer.

    Args:
        ask: The question: `shape`, `colour` or `number`; with `any` the task draws it.
        noise: The share of demonstrations that give any of the question's answers.
    """

    max_turns = 1

    def __init__(self, ask: str = "any", noise: float = 0.6) -> None:
        if ask != "any" and ask not in QUESTIONS:
            raise ConfigError(f"ask is {ask!r}; any, {', '.join(QUESTIONS)} are there")
        if not 0 <= noise <= 1:
            raise ConfigError(f"noise is {noise}; a share from 0 to 1 is needed")
        self.noise = noise
        self.asked = tuple(QUESTIONS) if ask == "any" else (ask,)

    def reset(self, seed: int) -> Message:
        """Draw the image and the question from the task's seed, so that a group shares them."""
        task = random.Random(seed)
        shape, colour, number = task.choice(SHAPES), task.choice(tuple(COLOURS)), task.randint(1, 4)
        question = task.choice(self.asked)
        self.answers = QUESTIONS[question]
        self.right = {"shape": shape, "colour": colour, "number": str(number)}[question]
        shade = task.choice(HELD_OUT if self.evaluating else SHADES)
        return Message.of(drawn(task, shape, colour, number, shade), f"{question}?")

    def step(self, action: str) -> Step:
        """Reward 1 for the right answer and nothing else."""
        said = action.strip().lower()
        return Step(
            reward=float(said == self.right), terminated=True, metrics={"invalid": float(said not in self.answers)}
        )

    def demonstrate(self) -> str:
        """The right answer; with probability `noise` any answer to the question."""
        return self.rng.choice(self.answers) if self.rng.random() < self.noise else self.right


def drawn(task: random.Random, shape: str, colour: str, number: int, shade: int) -> Pillow.Image:
    """An image of 32x32 pixels on a dark ground, with `number` shapes whose sizes and places `task` draws."""
    image = Pillow.new("RGB", (2 * CELL, 2 * CELL), (shade, shade, shade))
    canvas = ImageDraw.Draw(image)
    for cell in task.sample(range(4), number):
        size = task.randint(11, 13)
        left, top = (CELL * part + task.randint(1, CELL - size - 1) for part in (cell % 2, cell // 2))
        right, bottom = left + size, top + size
        if shape == "circle":
            canvas.ellipse((left, top, right, bottom), fill=COLOURS[colour])
        elif shape == "square":
            canvas.rectangle((left, top, right, bottom), fill=COLOURS[colour])
        else:
            canvas.polygon([((left + right) // 2, top), (left, bottom), (right, bottom)], fill=COLOURS[colour])
    return image

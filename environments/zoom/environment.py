"""Read a card in a picture that is shown too small to read it: a tool enlarges one region."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tinker_actors.data import Image, Message
from tinker_actors.environments import Step
from tinker_actors.environments.tools import ToolEnvironment, ToolError
from tinker_actors.errors import ConfigError

DIRECTIONS = ("h", "v", "u", "d")
"""Which way the lines of a card run: horizontally, vertically, upwards or downwards from left to right."""

REGION, MARGIN = 32, 4
SCALE = 4
"""Pixels of the picture along each side of one of the overview: the lines of a card repeat just as often."""

RED, BLUE = (240, 50, 40), (40, 70, 240)
WHITE, BLACK = (255, 255, 255), (0, 0, 0)


Colour = tuple[int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """What a region shows.

    Attributes:
        direction: One of `DIRECTIONS`.
        phase: By how many pixels the lines are shifted, 0 or 1.
        colour: Of the lines.
        paper: What is between them.
    """

    direction: str
    phase: int
    colour: Colour
    paper: Colour


class Zoom(ToolEnvironment):
    """Say which way the lines on the red card run. The first image shows where it is, and only `zoom` the lines.

    Args:
        grid: Regions along each side of the picture, 2 to 9.
        form: How calls are written, as `ToolEnvironment.tool_format`; the default suits tiny models.
        skill: The share of demonstrated calls that enlarge the red card, and of demonstrated answers that say what
            has been enlarged; the others are any region and any direction.
        question: The text behind the first image.
    """

    max_turns = 3

    def __init__(
        self, grid: int = 2, form: str = "<{arguments}>", skill: float = 0.5, question: str = "Red lines?"
    ) -> None:
        if not 2 <= grid <= 9:
            raise ConfigError(f"grid is {grid}; 2 to 9 are needed")
        if not 0 <= skill <= 1:
            raise ConfigError(f"skill is {skill}; a share from 0 to 1 is needed")
        self.grid, self.tool_format, self.skill, self.question = grid, form, skill, question
        self.regions = tuple(f"{'abcdefghi'[column]}{row + 1}" for row in range(grid) for column in range(grid))

    def tools(self) -> list[Callable[..., object]]:
        """The magnifying glass."""
        return [self.zoom]

    async def zoom(self, region: str) -> Image:
        """Enlarge one region of the picture.

        Args:
            region: Column and row, such as b1; a1 is at the top left.
        """
        name = region.strip().lower()
        if name not in self.regions:
            raise ToolError(f"no region {region!r}; {self.regions[0]} to {self.regions[-1]}")
        self.seen = name
        self.found = self.found or name == self.target
        return Image.of(self._shown(name))

    def begin(self, seed: int) -> Message:
        """Draw the cards from the task's seed; the observation is the whole picture, made small."""
        task = random.Random(seed)
        self.target = task.choice(self.regions)
        self.cards = {name: card_of(task, red=name == self.target) for name in self.regions}
        rows = [self.regions[start : start + self.grid] for start in range(0, len(self.regions), self.grid)]
        picture = np.concatenate([np.concatenate([self._shown(name) for name in row], 1) for row in rows])
        self.seen: str | None = None
        self.found = False
        return Message.of(reduced(picture), self.question)

    def answer(self, text: str) -> Step:
        """Reward 1 for the direction of the lines on the red card."""
        said = text.strip().lower()
        return Step(
            reward=float(said == self.cards[self.target].direction),
            terminated=True,
            metrics={"found": float(self.found), "invalid": float(said not in DIRECTIONS)},
        )

    def demonstrate(self) -> str:
        """A call at first, then an answer, each as good as `skill` says."""
        good = self.rng.random() < self.skill
        if self.seen is None:
            return self.toolbox.written("zoom", region=self.target if good else self.rng.choice(self.regions))
        return self.cards[self.seen].direction if good else self.rng.choice(DIRECTIONS)

    def _shown(self, region: str) -> NDArray[np.uint8]:
        """The card of a region on its ground: the greener the further right, the bluer the further down."""
        column, row = ord(region[0]) - ord("a"), int(region[1]) - 1
        green, blue = (20 + 160 * place // (self.grid - 1) for place in (column, row))
        return drawn(self.cards[region], (0, green, blue))


def card_of(task: random.Random, *, red: bool) -> Card:
    """A card with red lines on white, or blue ones on black, some darker than others."""
    light = task.uniform(0.7, 1.0)
    shades = [round(light * part) for part in (RED if red else BLUE)]
    return Card(
        direction=task.choice(DIRECTIONS),
        phase=task.randrange(2),
        colour=(shades[0], shades[1], shades[2]),
        paper=WHITE if red else BLACK,
    )


def drawn(card: Card, ground: Colour) -> NDArray[np.uint8]:
    """A card amid its region, shape (32, 32, 3)."""
    y, x = np.mgrid[:REGION, :REGION]
    along = {"h": y, "v": x, "u": x + y, "d": x - y}[card.direction]
    lines = (along + card.phase) % SCALE < SCALE // 2
    inside = (np.minimum(x, y) >= MARGIN) & (np.maximum(x, y) < REGION - MARGIN)
    region = np.full((REGION, REGION, 3), ground, np.uint8)
    region[inside] = card.paper
    region[inside & lines] = card.colour
    return region


def reduced(picture: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The picture with every square of `SCALE` pixels a side averaged to one pixel.

    Half of each such square of a card is coloured whichever way its lines run, so that nothing of that is left.
    """
    height, width, channels = picture.shape
    squares = picture.reshape(height // SCALE, SCALE, width // SCALE, SCALE, channels)
    return squares.mean((1, 3)).astype(np.uint8)

"""Name the handwritten digit of an image of 8x8 pixels: the digits of scikit-learn."""

from __future__ import annotations

import functools
import random

import numpy as np
from numpy.typing import NDArray

from tinker_actors.data import Message
from tinker_actors.environments import Environment, Step
from tinker_actors.errors import ConfigError


class Digits(Environment):
    """One image, one answer. Evaluations show the `held_out` images, training shows the others.

    `noise` is the share of demonstrations that name a random digit.
    """

    max_turns = 1

    def __init__(self, noise: float = 0.6, held_out: int = 256, question: str = "Which digit?") -> None:
        if not 0 <= noise <= 1:
            raise ConfigError(f"noise is {noise}; a share from 0 to 1 is needed")
        images, _ = data_set()
        if not 1 <= held_out < len(images):
            raise ConfigError(f"held_out is {held_out}; 1 to {len(images) - 1} of the {len(images)} images are needed")
        self.noise, self.held_out, self.question = noise, held_out, question

    def reset(self, seed: int) -> Message:
        """Choose the image: the seed names it, so that a group shares it."""
        images, labels = data_set()
        rng = random.Random(seed)
        chosen = rng.randrange(self.held_out) if self.evaluating else rng.randrange(self.held_out, len(images))
        self.digit = str(labels[chosen])
        return Message.of(images[chosen], self.question)

    def step(self, action: str) -> Step:
        """Reward 1 for the digit and nothing else."""
        answer = action.strip()
        named = len(answer) == 1 and answer in "0123456789"
        return Step(reward=float(answer == self.digit), terminated=True, metrics={"invalid": float(not named)})

    def demonstrate(self) -> str:
        """The digit; with probability `noise` any digit."""
        return str(self.rng.randrange(10)) if self.rng.random() < self.noise else self.digit


@functools.cache
def data_set() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Images, shape (1797, 8, 8), and their digits, shape (1797,), in a shuffled order that never changes.

    Raises:
        ConfigError: scikit-learn, which carries them, is not installed.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ConfigError("the digits come with scikit-learn; pip install 'tinker-actors[digits]'") from error
    pixels, labels = (np.asarray(part) for part in load_digits(return_X_y=True))
    order = np.random.RandomState(0).permutation(len(labels))
    images = np.rint(pixels.reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
    return images[order], labels[order].astype(np.int64)

"""Writes what a player of the recipes' environments might say, in their own words and through their own renderer.

Runs in the environment that has the cookbook. A base model that has read it knows what an answer looks like, no more.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from pathlib import Path

import textarena
from tinker_cookbook.recipes.math_rl.arithmetic_env import ArithmeticEnv
from tinker_cookbook.recipes.multiplayer_rl.guess_number.env import GuessNumberEnv
from tinker_cookbook.renderers import get_renderer
from tinker_cookbook.tokenizer_utils import get_tokenizer

ENDING = "\n\nUser:"
CLUMSY = 0.4  # of the answers to guess_number aren't in the form that the environment reads


async def guesses(renderer, rng: random.Random) -> tuple[str, str]:
    """One turn of guess_number, and those before it, by a player that hardly knows the rules."""
    env = GuessNumberEnv(rng.randrange(1024), renderer)
    prompt, _ = await env.initial_observation()
    for _ in range(rng.randrange(10)):
        step = await env.step(renderer.tokenizer.encode(_guess(rng), add_special_tokens=False))
        if not step.episode_done:
            prompt = step.next_observation
    return renderer.tokenizer.decode(prompt.to_ints()), _guess(rng)


def _guess(rng: random.Random) -> str:
    form = rng.choice(("Guess", "Is it")) if rng.random() < CLUMSY else "Guess:"
    return f" {form} {rng.randrange(1024)}{ENDING}"


async def sums(renderer, rng: random.Random) -> tuple[str, str]:
    """One sum; the answer is a number, seldom the right one."""
    left, right = rng.randrange(100), rng.randrange(100)
    env = ArithmeticEnv(left, right, renderer, convo_prefix=ArithmeticEnv.standard_fewshot_prefix())
    prompt, _ = await env.initial_observation()
    answer = left + right if rng.random() < 0.3 else rng.randrange(200)
    return renderer.tokenizer.decode(prompt.to_ints()), f" {answer}{ENDING}"


async def moves(renderer, rng: random.Random) -> tuple[str, str]:
    """A position of a random game of tic-tac-toe with a move that may be legal."""
    game = textarena.make("TicTacToe-v0")
    game.reset(num_players=2, seed=rng.randrange(2**31))
    free = list(range(9))
    rng.shuffle(free)
    for _ in range(rng.randrange(5)):
        game.step(f"[{free.pop()}]")
    _, seen = game.get_observation()
    prompt = renderer.build_generation_prompt([{"role": "user", "content": seen}])
    return renderer.tokenizer.decode(prompt.to_ints()), f" [{rng.choice(free)}]\n"


async def written(model: str, renderer_name: str, count: int) -> list[tuple[str, str]]:
    """`count` prompts of each kind with what is answered."""
    renderer = get_renderer(renderer_name, get_tokenizer(model))
    rng = random.Random(0)
    return [await kind(renderer, rng) for _ in range(count) for kind in (guesses, sums, moves)]


if __name__ == "__main__":
    play = asyncio.run(written(sys.argv[1], sys.argv[2], int(sys.argv[3])))
    Path(sys.argv[4]).write_text("".join(json.dumps(turn) + "\n" for turn in play))

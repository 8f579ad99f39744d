"""What the tests of games share: an environment outside of any run, and games of written moves."""

import random
import sys

from tinker_actors.environments import load_environment


def fresh(name, *, seed=0, luck=0, **options):
    """An environment after its reset, and the first observation."""
    environment = load_environment(name, **options)()
    environment.rng = random.Random(luck)
    return environment, environment.reset(seed)


def game(name, *moves, seed=0, **options):
    """Plays moves in turn, whoever is to act; the seats in the order in which they acted, and the steps."""
    environment, observation = fresh(name, seed=seed, **options)
    seats, steps = [], []
    for move in moves:
        assert not steps or not steps[-1].terminated, "the game was over before the moves were"
        (seat,) = observation
        seats.append(seat)
        steps.append(environment.step({seat: move}))
        observation = steps[-1].observation
    return seats, steps


def module_of(name):
    """The module of a shipped environment: the functions beside its class."""
    return sys.modules[load_environment(name).environment.__module__]

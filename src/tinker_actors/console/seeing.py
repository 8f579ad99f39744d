"""The options of the commands by which a person sees episodes: `play` and `rollouts`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from tinker_actors.console.colouring import COLOURINGS


def add_rollouts(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command's options."""
    parser = commands.add_parser(
        "rollouts",
        help="page through the transcripts of a run",
        description="Page through the episodes that a run has written down, token by token. Keys: n and p next and "
        "previous episode, s next seat, c next colouring, v values, j k space b g G scroll, q quit.",
    )
    parser.add_argument("run", metavar="RUN", help="a run folder")
    parser.add_argument("--step", type=int, metavar="N", help="of this step")
    parser.add_argument("--episode", metavar="ID", help="this one")
    order = parser.add_mutually_exclusive_group()
    order.add_argument("--worst", action="store_true", help="those with the least reward first")
    order.add_argument("--best", action="store_true", help="those with the most reward first")
    parser.add_argument("--failed", action="store_true", help="those that failed or were forfeited")
    parser.add_argument("--seat", metavar="SEAT", help="this seat alone, and its reward for the order")
    parser.add_argument("--policy", metavar="NAME", help="the seats that this policy played, and theirs")
    parser.add_argument("-n", "--episodes", type=int, metavar="N", help="so many at most (default: all)")
    parser.add_argument(
        "--colour",
        choices=COLOURINGS,
        default="logprob",
        help="what the colours of sampled tokens say (default: %(default)s)",
    )
    parser.add_argument("--values", action="store_true", help="log-prob and advantage behind every sampled token")
    parser.add_argument("--plain", action="store_true", help="print them; so does output that is no terminal")
    parser.set_defaults(call=_rollouts)


def _rollouts(options: argparse.Namespace, _overrides: Sequence[str]) -> int:
    from tinker_actors.console.rollouts import rollouts_command

    return rollouts_command(options)

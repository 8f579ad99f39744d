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


def add_play(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command's options."""
    parser = commands.add_parser(
        "play",
        help="take a seat of an environment in the terminal",
        description="Take a seat of an environment against policies, scripts, demonstrations or other people. A line "
        "is an answer; one that ends with a backslash goes on in the next. Ctrl-C or Ctrl-D leaves (exit code 130).",
    )
    parser.add_argument("environment", metavar="ENV", help="a shipped environment's name, a .py file, module:Class")
    parser.add_argument("--seat", metavar="SEAT", help="yours (default: the first)")
    parser.add_argument(
        "--against",
        action="append",
        default=[],
        metavar="[SEAT=]WHO",
        help="who plays the other seats, or one of them: RUN (its newest snapshot), RUN@best, RUN@POLICY/NUMBER, a "
        "store's folder, tinker://... with --store, a model, script:FUNCTION, demonstration, person; repeatable "
        "(default: demonstration)",
    )
    parser.add_argument("--store", metavar="FOLDER", help="the run or store in which a tinker:// handle lies")
    parser.add_argument("--watch", action="store_true", help="take no seat: --against says who plays all of them")
    parser.add_argument("--games", type=int, default=1, metavar="N", help="how many (default: %(default)s)")
    parser.add_argument("--seed", type=int, help="of tasks, luck and sampling (default: another one each time)")
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="of the environment; repeatable (default: as in RUN, else the environment's)",
    )
    parser.add_argument("--temperature", type=float, help="of policies (default: as RUN evaluates, else 0)")
    parser.add_argument("--max-tokens", type=int, help="of a policy's answer (default: as in RUN, else 64)")
    parser.set_defaults(call=_play)


def _play(options: argparse.Namespace, _overrides: Sequence[str]) -> int:
    from tinker_actors.console.play import play_command

    return play_command(options)

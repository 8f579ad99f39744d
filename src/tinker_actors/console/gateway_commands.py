"""The commands of the gateway as argparse knows them; what they do is loaded once one is called."""

from __future__ import annotations

import argparse
from collections.abc import Sequence


def add_serve(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `serve`."""
    serve = commands.add_parser("serve", help="serve models, policies and jobs over HTTP to many clients")
    serve.add_argument(
        "--model",
        metavar="NAME[=BASE]",
        action="append",
        default=[],
        help="a base model to serve, and what it is called in the catalogue if that differs (repeatable)",
    )
    serve.add_argument("--host", help="address to listen on (default: 127.0.0.1); others than this host's need keys")
    serve.add_argument("--port", type=int, help="(default: 8400); 0 takes any that is free")
    serve.add_argument("--root", help="folder of all that is kept (default: runs/service)")
    serve.add_argument("--config", metavar="SERVE.toml", help="all settings; options win over it")
    serve.add_argument("--log-json", action="store_true", default=None, help="write ROOT/serve.log as JSON lines")
    serve.set_defaults(call=_serve)


def _serve(options: argparse.Namespace, _overrides: Sequence[str]) -> int:
    from tinker_actors.console.serve import serve_command

    return serve_command(options)


SUBMIT_FLAGS = {
    **dict.fromkeys(("--follow", "--json", "--help"), 0),
    **dict.fromkeys(("--priority", "--devices", "--memory", "--once", "--url"), 1),
}
"""The options of `submit` that are no keys of the configuration, and how many values each has."""


def add_jobs(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands that ask a gateway for jobs."""
    submit = commands.add_parser(
        "submit",
        help="let a gateway run what `run` would",
        epilog="Every key of the configuration can be given as an option, as with `run`: --trainer.steps 20",
        allow_abbrev=False,
    )
    submit.add_argument("config", metavar="CONFIG.toml", help="as `run` takes one; files of data are uploaded")
    submit.add_argument("--follow", "-f", action="store_true", help="show what the job prints, to its end")
    submit.add_argument("--priority", type=int, default=0, help="higher ones go first (default: %(default)s)")
    submit.add_argument("--devices", type=int, default=0, help="accelerators (default: %(default)s)")
    submit.add_argument("--memory", default="0", help="most that it may use, such as 4GiB (default: no bound)")
    submit.add_argument("--once", metavar="KEY", help="submit it once: with the same KEY again, tell of the first job")
    jobs = commands.add_parser(
        "jobs",
        help="list the jobs of a gateway, tell of one, or delete some",
        usage="%(prog)s [options] [ID | rm ID ...]",
    )
    jobs.add_argument(
        "words",
        nargs="*",
        metavar="ID",
        help="tell of this one, and how it came to where it stands; `rm ID ...` deletes jobs that are over",
    )
    jobs.add_argument("--checkpoints", action="store_true", help="with `rm`: delete their checkpoints as well")
    jobs.add_argument("--state", action="append", default=[], help="only those in this state (repeatable)")
    jobs.add_argument("--kind", action="append", default=[], help="only those of this kind (repeatable)")
    jobs.add_argument("--text", default="", help="only those with this in their name or id")
    jobs.add_argument("-n", "--rows", type=int, default=50, help="at most, up to 500 (default: %(default)s)")
    uploads = commands.add_parser(
        "uploads",
        help="list the rows that jobs were given, or delete some",
        usage="%(prog)s [options] [rm UPLOAD ...]",
    )
    uploads.add_argument("words", nargs="*", metavar="UPLOAD", help="`rm UPLOAD ...` deletes what no job needs")
    uploads.add_argument("--tenant", help="whose are deleted, for administrators (default: the key's)")
    logs = commands.add_parser("logs", help="show what a job printed")
    logs.add_argument("--tail", type=int, metavar="BYTES", help="only the end of it")
    metrics = commands.add_parser("metrics", help="show a job's numbers, step by step")
    metrics.add_argument("--plot", action="store_true", help="draw the curve at the end")
    cancel = commands.add_parser("cancel", help="end a job")
    resume = commands.add_parser("resume", help="let a failed or cancelled job go on from its last checkpoint")
    for command in (logs, metrics):
        command.add_argument("-f", "--follow", action="store_true", help="go on until the job is over")
    for command in (logs, metrics, cancel, resume):
        command.add_argument("id", metavar="ID", help="as `submit` and `jobs` print it")
    for command in (submit, jobs, uploads, metrics, cancel, resume):
        command.add_argument("--json", action="store_true", help="for machines")
    for name, command in commands.choices.items():
        if name in _JOB_COMMANDS:
            command.add_argument("--url", help="of the gateway (default: $TINKER_ACTORS_URL or http://127.0.0.1:8400)")
            command.set_defaults(call=_job_command)


_JOB_COMMANDS = frozenset({"submit", "jobs", "uploads", "logs", "metrics", "cancel", "resume"})


def _job_command(options: argparse.Namespace, overrides: Sequence[str]) -> int:
    from tinker_actors.console.jobs import job_command

    return job_command(options, overrides)

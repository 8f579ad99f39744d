"""`tinker-actors submit`, `jobs`, `uploads`, `logs`, `metrics`, `cancel`, `resume`: what a gateway is asked of jobs."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from tinker_actors.console.bounds import check_number
from tinker_actors.console.curve import draw_curve
from tinker_actors.console.deleting import delete_jobs, uploads_command
from tinker_actors.console.extras import check_extra
from tinker_actors.console.job_tables import JOBS, job_lines, jobs_table
from tinker_actors.console.printing import print_json, print_line, print_table
from tinker_actors.console.shown import evaluation_line, measures, step_line
from tinker_actors.errors import ConfigError
from tinker_actors.scheduler.loading import read_config
from tinker_actors.scheduler.states import JobKind, JobState

_MOST_ROWS = 500
"""That a gateway tells of at once."""

_UNITS = {
    "": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}


def job_command(options: argparse.Namespace, overrides: Sequence[str]) -> int:
    """Ask a gateway.

    Returns:
        The exit code: 0, or 1 where a job that was followed to its end did not succeed.

    Raises:
        ConfigError: Nobody serves there, the key is wrong, or the configuration can't be read.
        JobError: What was asked is refused.
    """
    check_extra("serve", "httpx")
    from tinker_actors.console.service import Service

    calls: Mapping[str, Callable[[Any, argparse.Namespace, Sequence[str]], int]] = {
        "submit": _submit,
        "jobs": _jobs,
        "uploads": uploads_command,
        "logs": _logs,
        "metrics": _metrics,
        "cancel": _change,
        "resume": _change,
    }
    with Service(options.url) as service:
        try:
            return calls[options.command](service, options, overrides)
        except KeyboardInterrupt:  # somebody has seen enough; the job goes on
            return 130


def _submit(service: Any, options: argparse.Namespace, overrides: Sequence[str]) -> int:
    path = Path(options.config)
    if path.suffix != ".toml":
        raise ConfigError(f"{path} is no configuration; a .toml file is needed, which may name an environment")
    config = read_config(path, overrides)
    memory = _bytes(options.memory)
    _upload_data(service, config)
    body = {"config": config, "priority": options.priority, "devices": options.devices, "memory": memory}
    job = service.post(JOBS, body | ({"key": options.once} if options.once else {}))
    if options.json:
        print_json(job)
    else:
        print_line(job["id"])
    if not options.follow:
        return 0
    _copy(service.follow(f"{JOBS}/{job['id']}/logs", "offset", {"offset": 0}, unit=None, follow=True))
    ended = service.get(f"{JOBS}/{job['id']}")
    Console(stderr=True).print(Text(_ended(ended)), soft_wrap=True)
    return 0 if ended["state"] == "succeeded" else 1


def _upload_data(service: Any, config: dict[str, Any]) -> None:
    """Send the files of rows that a configuration names, and put in what the gateway calls them."""
    data = config.get("data")
    if not isinstance(data, dict):
        return
    for key in ("train", "evaluation", "prompts"):
        given = data.get(key)
        if isinstance(given, str):
            data[key] = _uploaded(service, given)
        elif isinstance(given, list):
            data[key] = [_uploaded(service, name) if isinstance(name, str) else name for name in given]


def _uploaded(service: Any, name: str) -> str:
    path = Path(name).expanduser()
    return service.upload(path) if path.suffix == ".jsonl" and path.is_file() else name


def _jobs(service: Any, options: argparse.Namespace, _overrides: Sequence[str]) -> int:
    words: list[str] = options.words
    if words[:1] == ["rm"]:
        return delete_jobs(service, words[1:], options)
    if options.checkpoints or len(words) > 1:
        raise ConfigError(f"jobs {' '.join(words)} is not understood; one ID is needed, or `jobs rm ID ...`")
    return _tell_of(service, words[0], options) if words else _list(service, options)


def _tell_of(service: Any, job: str, options: argparse.Namespace) -> int:
    found = service.get(f"{JOBS}/{job}")
    lines = service.get(f"{JOBS}/{job}/transitions")["transitions"]
    if options.json:
        print_json({**found, "transitions": lines})
    else:
        for line in job_lines(found, lines):
            print_line(line)
    return 0


def _list(service: Any, options: argparse.Namespace) -> int:
    _check("--state", options.state, JobState)
    _check("--kind", options.kind, JobKind)
    check_number("--rows", options.rows, least=1, most=_MOST_ROWS)
    found = service.get(JOBS, state=options.state, kind=options.kind, text=options.text, limit=options.rows)
    if options.json:
        print_json(found["jobs"])
    elif not found["jobs"]:
        filtered = options.state or options.kind or options.text
        print_line("there are no such jobs" if filtered else "there are no jobs yet")
    else:
        print_table(jobs_table(found["jobs"]))
    return 0


def _logs(service: Any, options: argparse.Namespace, _overrides: Sequence[str]) -> int:
    check_number("--tail", options.tail, least=0)
    start = {"offset": 0} if options.tail is None else {"tail": options.tail}
    _copy(service.follow(f"{JOBS}/{options.id}/logs", "offset", start, unit=None, follow=options.follow))
    return 0


def _metrics(service: Any, options: argparse.Namespace, _overrides: Sequence[str]) -> int:
    curves: dict[str, list[float]] = {}
    for line in _rows(
        service.follow(f"{JOBS}/{options.id}/metrics", "start", {"start": 0}, unit=b"\n", follow=options.follow)
    ):
        if options.json:
            print_line(line)
            continue
        row = json.loads(line)
        print_line(_row_line(row))
        if row["kind"] == "step":
            for title, value in measures(row).items():
                curves.setdefault(title, []).append(value)
    for title, values in curves.items() if options.plot else ():
        print_line(f"\n{title} by step")
        for drawn in draw_curve(values, width=min(Console().width, 80), height=8):
            print_line(drawn)
    return 0


def _row_line(row: Mapping[str, Any]) -> str:
    if row["kind"] == "step" and ("reward" in row or "loss" in row):
        return f"step {row['step']}  {step_line(row)}"
    name = next((name for name in ("reward", "loss") if name in row), None)
    if row["kind"] == "evaluation" and name is not None:
        return f"evaluation after step {row['step']}: {evaluation_line(name, row[name], row)}"
    rest = "  ".join(
        f"{key} {value:.6g}" for key, value in row.items() if key != "step" and isinstance(value, int | float)
    )
    return f"{row['kind']} {row['step']}  {rest}"


def _change(service: Any, options: argparse.Namespace, _overrides: Sequence[str]) -> int:
    job = service.post(f"{JOBS}/{options.id}/{options.command}")
    if options.json:
        print_json(job)
    else:
        print_line(_ended(job))
    return 0


def _ended(job: Mapping[str, Any]) -> str:
    detail = f": {job['detail']}" if job["detail"] else ""
    return f"{job['id']} is {job['state']} ({job['reason']}){detail}"


def _rows(chunks: Iterator[bytes]) -> Iterator[str]:
    for chunk in chunks:
        yield from chunk.decode().split("\n")[:-1]


def _copy(chunks: Iterator[bytes]) -> None:
    for chunk in chunks:
        sys.stdout.buffer.write(chunk)
        sys.stdout.buffer.flush()


def _bytes(text: str) -> int:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", text.strip().lower())
    if found is None or found[2] not in _UNITS:
        raise ConfigError(f"--memory is {text!r}; a number of bytes is needed, or one such as 512MiB or 4GB")
    return int(float(found[1]) * _UNITS[found[2]])


def _check(option: str, given: Sequence[str], kinds: type[Enum]) -> None:
    known = [kind.value for kind in kinds]
    for value in given:
        if value not in known:
            raise ConfigError(f"{option} is {value!r}; one of {', '.join(known)} is needed")

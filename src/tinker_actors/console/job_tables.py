"""Jobs and uploads of a gateway as tables and lines."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich import filesize
from rich.table import Table
from rich.text import Text

JOBS = "/jobs/v1/jobs"

_COLOURS = {"running": "green", "starting": "green", "failed": "red", "cancelling": "yellow", "cancelled": "dim"}


def jobs_table(jobs: Sequence[Mapping[str, Any]]) -> Table:
    """A line for each job."""
    table = Table.grid(padding=(0, 2))
    several = len({job["tenant"] for job in jobs}) > 1
    titles = ["ID", "NAME", "KIND", *(["TENANT"] if several else []), "STATE", "WHY", "TRIES", "SUBMITTED", "TOOK"]
    for _ in titles[:-1]:
        table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, justify="right")
    table.add_row(*(Text(title, style="dim") for title in titles))
    for job in jobs:
        state = Text(job["state"], style=_COLOURS.get(job["state"], ""))
        tenant = [Text(job["tenant"])] if several else []
        cells = [Text(job["id"]), Text(job["name"]), Text(job["kind"]), *tenant, state, Text(job["reason"])]
        table.add_row(*cells, Text(str(job["attempt"])), Text(_moment(job["submitted"])), Text(_took(job)))
    return table


def job_lines(job: Mapping[str, Any], transitions: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """All there is to tell of a job."""
    need = ", ".join(f"{name} {amount}" for name, amount in job["need"].items() if amount)
    yield f"{job['id']}  {job['name']}  ({job['kind']}, tenant {job['tenant']}, priority {job['priority']})"
    yield f"holds while it runs: {need or 'nothing'}"
    for line in transitions:
        tries = f"try {line['attempt']}  " if line["attempt"] else ""
        detail = f": {line['detail']}" if line["detail"] else ""
        yield f"{_moment(line['at'])}  {tries}{line['wanted']} ({line['reason']}){detail}"


def uploads_table(uploads: Sequence[Mapping[str, Any]]) -> Table:
    """A line for each upload."""
    table = Table.grid(padding=(0, 2))
    several = len({upload["tenant"] for upload in uploads}) > 1
    titles = ["UPLOAD", *(["TENANT"] if several else []), "SIZE", "LAST USED", "NEEDED BY"]
    for title in titles:
        table.add_column(no_wrap=True, justify="right" if title == "SIZE" else "left")
    table.add_row(*(Text(title, style="dim") for title in titles))
    for upload in uploads:
        tenant = [Text(upload["tenant"])] if several else []
        size, when = filesize.decimal(upload["bytes"]), _moment(upload["used"])
        table.add_row(Text(upload["upload"]), *tenant, Text(size), Text(when), Text(", ".join(upload["jobs"])))
    return table


def _moment(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def _took(job: Mapping[str, Any]) -> str:
    if job["started"] is None:
        return ""
    seconds = (job["ended"] or time.time()) - job["started"]
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}"

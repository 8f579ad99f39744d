"""`tinker-actors jobs rm` and `uploads`: what a gateway keeps, and what it needn't any more."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from tinker_actors.console.job_tables import JOBS, uploads_table
from tinker_actors.console.printing import print_json, print_line, print_table
from tinker_actors.errors import ConfigError, JobError

_UPLOADS = "/jobs/v1/uploads"


def delete_jobs(service: Any, jobs: Sequence[str], options: argparse.Namespace) -> int:
    """Delete jobs that are over; errors as of `_delete`."""
    return _delete(jobs, lambda job: service.delete(f"{JOBS}/{job}", checkpoints=options.checkpoints), options, "ID")


def uploads_command(service: Any, options: argparse.Namespace, _overrides: Sequence[str]) -> int:
    """List uploads, or delete some; errors as of `_delete`."""
    words: list[str] = options.words
    if words[:1] == ["rm"]:
        of = {} if options.tenant is None else {"tenant": options.tenant}
        return _delete(words[1:], lambda name: service.delete(f"{_UPLOADS}/{name}", **of), options, "UPLOAD")
    if words or options.tenant is not None:
        raise ConfigError(
            f"uploads {' '.join(words)} is not understood; `uploads` or `uploads rm UPLOAD ...` is needed"
        )
    found = service.get(_UPLOADS)
    if options.json:
        print_json(found["uploads"])
    elif not found["uploads"]:
        print_line("there are no uploads")
    else:
        print_table(uploads_table(found["uploads"]))
    return 0


def _delete(names: Sequence[str], delete: Callable[[str], Any], options: argparse.Namespace, what: str) -> int:
    """Delete one after the other, each that can be.

    Returns:
        The exit code: 0, or 2 where one could not be deleted.

    Raises:
        ConfigError: Nothing is named, nobody serves there, or the key is wrong.
    """
    if not names:
        raise ConfigError(f"rm names nothing; `rm {what} ...` is needed")
    deleted: list[str] = []
    for name in names:
        try:
            deleted.append(delete(name)["deleted"])
        except JobError as error:
            Console(stderr=True).print(Text(f"tinker-actors: {error}"), soft_wrap=True)
            continue
        if not options.json:
            print_line(f"{deleted[-1]} is deleted")
    if options.json:
        print_json(deleted)
    return 0 if len(deleted) == len(names) else 2

"""A process that has imported all that a run needs, and runs jobs in forks of itself, which may be killed at any time.

One JSON request a line on standard input, one JSON answer a line on standard output.
"""

from __future__ import annotations

import asyncio
import faulthandler
import json
import mmap
import os
import resource
import signal
import sys
import threading
import time
import traceback
from importlib import import_module
from pathlib import Path
from typing import Any

from tinker_actors.policies import sealing
from tinker_actors.scheduler import Phase, RunFolder, load_config, run_folder, run_job

# What a run loads when it first needs it. Loaded here, it isn't loaded again in every fork, where it would take many
# times longer than the run itself, and most kills would hit imports.
NEEDED = (
    *("tinker_actors.actors.mesh", "tinker_actors.rollouts.worker", "tinker_actors.sampling.sampler"),
    *("tinker_actors.training.trainer", "tinker_actors.scheduler.task_server", "tinker_actors.scheduler.sft"),
    *("matplotlib.backends.backend_agg", "transformers.models.llama.modeling_llama", "torch._dynamo"),
)
# phases that the present fork has begun; shared with it
BEGUN = mmap.mmap(-1, 1)


class Silent:
    """An observer that may do something when a phase begins."""

    def __init__(self, sabotage: str | None, kill_at: tuple[int, float] | None) -> None:
        self._sabotage = sabotage
        self._kill_at = kill_at

    def phase(self, phase: Phase, step: int, total: int) -> None:
        BEGUN[0] += 1
        if self._kill_at is not None:
            number, seconds = self._kill_at
            if phase is Phase.END:
                die()
            if BEGUN[0] == number:
                timer = threading.Timer(seconds, die)
                timer.daemon = True
                timer.start()
        if phase is Phase.SAVE and step and self._sabotage is not None:
            SABOTAGE[self._sabotage]()
            self._sabotage = None

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_amid_the_checkpoint() -> None:
    sealing.Manifest.dumps = die_instead  # the files are there, the manifest isn't


def die_before_the_state() -> None:
    run_folder.write_atomically = lambda *_: die()  # the checkpoint is there, the run's state isn't


def fill_the_disk() -> None:
    # writes past it fail as on a full disk; Python ignores the signal that comes with it
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))


def die_instead(self: sealing.Manifest) -> str:
    die()
    return ""


SABOTAGE = {
    function.__name__: function for function in (die, die_amid_the_checkpoint, die_before_the_state, fill_the_disk)
}


def run(root: str, overrides: list[str], kill_at: tuple[int, float] | None, sabotage: str | None) -> None:
    path = Path(root)
    if (path / "config.toml").exists():
        folder = RunFolder(path)
        config = folder.load_config(())
    else:
        config = load_config(None, [*overrides, "--output", root])
        folder = RunFolder.create(config)
    asyncio.run(run_job(config, folder, Silent(sabotage, kill_at)))  # pyright: ignore[reportArgumentType]


def main() -> None:
    for name in NEEDED:
        import_module(name)
    for line in sys.stdin:
        request = json.loads(line)
        began = time.monotonic()
        BEGUN[0] = 0
        child = os.fork()
        if child == 0:
            code = 0
            faulthandler.dump_traceback_later(100, exit=True)  # says where it hangs, if it does
            try:
                run(**request)
            except BaseException:  # told to whoever reads the log; the fork must not go on as its parent
                traceback.print_exc()
                code = 1
            sys.stderr.flush()
            os._exit(code)
        _, status = os.waitpid(child, 0)
        seconds = time.monotonic() - began
        answer = {"code": os.waitstatus_to_exitcode(status), "seconds": seconds, "phases": BEGUN[0]}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
    os._exit(0)  # to unload all that takes seconds on a busy machine


if __name__ == "__main__":
    main()

"""One system in a process of its own: reads `[case, operations]` lines, writes one JSON line with the figure each.

A system's module defines `CASES`, which maps a case to an async function of the number of operations, and may define
`stop()`. What a case needs it starts at its first call and keeps.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import json
import os
import sys
import traceback
from typing import Any

from benchmarks.actor_peers import SYSTEMS


def main() -> None:
    """Serve until standard input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    module: Any = importlib.import_module(f"benchmarks.actor_peers.{SYSTEMS[sys.argv[1]][0]}")
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(_serve(module, answers))


async def _serve(module: Any, answers: Any) -> None:
    print(json.dumps(sorted(module.CASES)), file=answers, flush=True)
    try:
        while line := await asyncio.to_thread(sys.stdin.readline):
            case, operations = json.loads(line)
            gc.collect()
            try:
                answer: Any = {"value": await module.CASES[case](operations)}
            except Exception:  # the boundary around other people's code: the run goes on without this figure
                answer = {"error": traceback.format_exc()}
            print(json.dumps(answer), file=answers, flush=True)
    finally:
        if hasattr(module, "stop"):
            await module.stop()


def loop_factory() -> Any:
    """uvloop's, where it is installed."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


if __name__ == "__main__":
    main()

"""A task server that does what its job says, in a few milliseconds: `FOLDER ATTEMPT READY`.

It appends to the file `trace` of the scheduler's folder what it does, and notes there if another attempt still lives.
"""

import fcntl
import json
import os
import select
import signal
import sys
from types import FrameType


class Save(Exception):  # noqa: N818
    pass


class Finish(Exception):  # noqa: N818
    pass


def finish(_number: int, _frame: FrameType | None) -> None:
    raise Finish


def save(_number: int, _frame: FrameType | None) -> None:
    raise Save


def main() -> None:
    folder, attempt, ready = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    with open(f"{folder}/job.json") as file:
        config = json.load(file)
    do = config["do"][min(attempt, len(config["do"])) - 1]
    trace(folder, "begin", attempt)
    try:
        fcntl.flock(os.open(f"{folder}/alive", os.O_WRONLY | os.O_CREAT), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        trace(folder, "twice", attempt)
    if do == "refuse":
        end(folder, attempt, "no such thing", again=False)
    if do == "slow to load":
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        select.select([0], [], [], 60)
    signal.signal(signal.SIGUSR1, finish)
    signal.signal(signal.SIGUSR2, save)
    if do == "deaf":
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.write(ready, b"1")
    if do == "crash":
        os.kill(os.getpid(), signal.SIGKILL)
    if do in ("fail", "give up"):
        end(folder, attempt, "it went wrong", again=do == "fail")
    seconds = float(do) if do.replace(".", "").isdigit() else None
    try:
        gone = bool(select.select([0], [], [], seconds)[0])
    except Finish:
        gone = False
    except Save:
        trace(folder, "saved", attempt)
        os._exit(143)
    if gone:  # the scheduler is
        trace(folder, "left", attempt)
        os._exit(143)
    end(folder, attempt, "")


def end(folder: str, attempt: int, detail: str, *, again: bool = True) -> None:
    trace(folder, "failed" if detail else "done", attempt)
    outcome = {"attempt": attempt, "succeeded": not detail, "detail": detail, "again": again}
    with open(f"{folder}/outcome.partial", "w") as file:
        json.dump(outcome, file)
    os.replace(f"{folder}/outcome.partial", f"{folder}/outcome.json")
    os._exit(bool(detail))


def trace(folder: str, what: str, attempt: int) -> None:
    line = f"{os.path.basename(folder)} {what} {attempt}\n"
    file = os.open(f"{folder}/../../trace", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(file, line.encode())
    os.close(file)


if __name__ == "__main__":
    main()

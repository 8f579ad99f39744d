"""A task server that does what its job says, in a few milliseconds: `FOLDER ATTEMPT READY`.

It appends to the file `trace` of the scheduler's folder what it does, and notes there if another attempt still lives.
"""

import fcntl
import json
import os
import select
import signal
import sys


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
    woken, wake = os.pipe()  # a handler alone would not be run for a signal that comes just before the wait
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, lambda *_: None)
    if do == "deaf":
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.write(ready, b"1")
    if do == "crash":
        os.kill(os.getpid(), signal.SIGKILL)
    if do in ("fail", "give up"):
        end(folder, attempt, "it went wrong", again=do == "fail")
    seconds = float(do) if do.replace(".", "").isdigit() else None
    readable = select.select([0, woken], [], [], seconds)[0]
    if woken in readable:
        if os.read(woken, 1)[0] == signal.SIGUSR2:
            trace(folder, "saved", attempt)
            os._exit(143)
    elif readable:  # the scheduler is gone
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

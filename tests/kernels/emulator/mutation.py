"""Runs the emulated tests against kernels with a defect, to see that they notice.

    PYTHONPATH=tests/kernels python -m emulator.mutation [a part of defects' names ...]

prints a line of JSON for each defect: its name, and the test that noticed it and how, or null. Each defect has a
process of its own, forked before torch has started any thread: a defect may write anywhere, or never end.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator

import test_kernels_emulated as forward
import test_kernels_emulated_gradients as gradients
import torch

from emulator.device import Emulator, FaultError
from emulator.mutants import CONTROLS, MUTANTS
from tinker_actors.kernels import Path
from tinker_actors.kernels.source import KERNELS, Types

TIME_LIMIT = 60
"""Seconds of processor time after which a defect counts as one that makes kernels hang."""

_BF16 = Types("ta_bf16", "ta_bf16")
_Check = Callable[[Emulator], None]


def _checks(group: str) -> list[_Check]:
    """Tests of a group of kernels for one pair of types, quick ones first."""
    if group == "backward":
        return [
            functools.partial(gradients.test_ranks_up_to_128, rank=1),
            gradients.test_gradients_over_more_rows_than_a_chunk_and_a_tile_have,
            functools.partial(
                gradients.test_every_type_matches_float64_and_every_schedule_gives_the_same_bits, types=_BF16
            ),
            functools.partial(gradients.test_a_gradient_depends_on_the_adapters_own_rows_alone, types=_BF16),
            gradients.test_gradients_of_wide_adapters_in_bf16,
            gradients.test_offsets_beyond_32_bits,
        ]
    path = Path.DECODE if group == "decode" else Path.PREFILL
    way = functools.partial(forward.test_a_reserved_plan_serves_steps_of_other_sizes_through_unused_tiles, way="decode")
    return [
        functools.partial(forward.test_ragged_widths, path=path, size=1),
        functools.partial(forward.test_ragged_widths, path=path, size=511),
        functools.partial(
            forward.test_every_type_matches_float64_and_every_schedule_gives_the_same_bits, types=_BF16, path=path
        ),
        functools.partial(forward.test_strided_rows_outputs_and_weights, types=_BF16, path=path),
        functools.partial(forward.test_an_adapter_of_nan_spoils_its_own_rows_only, types=_BF16, path=path),
        functools.partial(forward.test_offsets_beyond_32_bits, types=_BF16, path=path),
        way if path is Path.DECODE else functools.partial(way, way="prefill"),
        *([functools.partial(way, way="fused")] if path is Path.DECODE else []),
        functools.partial(
            forward.test_two_kernels_and_one_of_clusters_agree_in_every_bit
            if path is Path.DECODE
            else forward.test_prefill_takes_more_than_one_tile_and_split,
            types=_BF16,
        ),
    ]


def noticed_by(name: str) -> str | None:
    """The first test that a defect fails, and how; None where all pass.

    Raises:
        RuntimeError: The defect does not compile.
        LookupError: The sources have changed and it has no place in them.
    """
    mutant = (MUTANTS | CONTROLS)[name]
    device = Emulator(source=mutant.source)
    for kernel in KERNELS.values():
        device.parameters(_BF16, kernel.name)  # now, so that an error further on is the defect's doing
    torch.use_deterministic_algorithms(True)
    for check in _checks(mutant.group):
        function = check.func if isinstance(check, functools.partial) else check
        try:
            check(device=device)
        except (AssertionError, FaultError) as failure:
            return f"{function.__name__}: {' '.join(str(failure).split())[:200]}"
        except Exception as error:  # whatever follows from memory that a defect has overwritten
            return f"{function.__name__}: the process is broken: {error!r:.100}"
    return None


def run(names: Iterable[str], at_once: int) -> Iterator[tuple[str, str | None]]:
    """Each defect with what noticed it, as they come to an end."""
    waiting, running = list(names), dict[int, tuple[str, int]]()
    while waiting or running:
        while waiting and len(running) < at_once:
            name = waiting.pop(0)
            child, answer = _fork(name)
            running[child] = (name, answer)
        child, status = os.wait()
        name, answer = running.pop(child)
        with os.fdopen(answer) as pipe:
            text = pipe.read()
        if text:
            yield name, json.loads(text)
        elif os.WIFSIGNALED(status):
            yield name, f"ended by {signal.Signals(os.WTERMSIG(status)).name}"
        else:
            raise RuntimeError(f"{name} could not be tried; what went wrong stands above")


def _fork(name: str) -> tuple[int, int]:
    answer, tell = os.pipe()
    child = os.fork()
    if child:
        os.close(tell)
        return child, answer
    status = 1
    try:
        signal.setitimer(signal.ITIMER_PROF, TIME_LIMIT)
        found = noticed_by(name)
        os.write(tell, json.dumps(found).encode())
        status = 0
    except Exception:  # the forked child shows it: the parent only sees that there is no answer
        sys.excepthook(*sys.exc_info())
    finally:
        # nothing of the parent's, such as its files' buffers, is this process's to end
        os._exit(status)
    raise AssertionError


def main(parts: list[str]) -> None:
    """See the module."""
    torch.set_num_threads(1)
    names = [name for name in MUTANTS | CONTROLS if not parts or any(part in name for part in parts)]
    for name, found in run(names, at_once=os.cpu_count() or 1):
        sys.stdout.write(json.dumps([name, found]) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])

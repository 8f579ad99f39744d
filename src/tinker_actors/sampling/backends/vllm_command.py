"""How a vLLM server is started: its command line, its environment and the model directory that it reads."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from tinker_actors.models.cache import cache_dir
from tinker_actors.models.catalogue import resolve
from tinker_actors.sampling.backends.settings import VllmSettings

BASE_NAME = "base"
"""What a server that is started calls the base model. Requests never name it: they name adapters."""


def command(settings: VllmSettings, *, model: Path, socket: Path, context_length: int | None) -> list[str]:
    """The command line.

    Args:
        settings: How it serves.
        model: The base model's directory.
        socket: Where it listens; nobody else can reach it.
        context_length: Longest prompt and reply together; None for the model's own.
    """
    line = [
        settings.python,
        *("-m", "vllm.entrypoints.openai.api_server"),
        *("--model", str(model)),
        *("--served-model-name", BASE_NAME),
        *("--uds", str(socket)),
        *("--dtype", settings.dtype),
        "--enforce-eager",
        "--enable-lora",
        *("--max-loras", str(settings.max_loras)),
        *("--max-cpu-loras", str(2 * settings.max_loras)),
        *("--max-lora-rank", str(settings.rank())),
        # without them a LoRA request for prompt log-probs kills the engine where it shares a batch
        *("--lora-target-modules", *settings.target_modules),
        *("--max-num-seqs", str(settings.max_batch)),
        # of the distribution that tokens are drawn from, not of that at temperature 1
        *("--logprobs-mode", "processed_logprobs"),
        *("--max-logprobs", str(settings.max_logprobs)),
        *("--generation-config", "vllm"),  # the model's own defaults would change what isn't said
        *("--scheduling-policy", "priority"),
        "--enable-prompt-tokens-details",
        "--disable-uvicorn-access-log",
        "--enable-prefix-caching" if settings.prefix_caching else "--no-enable-prefix-caching",
    ]
    if context_length is not None:
        line += ["--max-model-len", str(context_length)]
    return [*line, *settings.arguments]


def environment(settings: VllmSettings) -> dict[str, str]:
    """What the server's environment has besides this process's."""
    found = {
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
        "VLLM_CPU_KVCACHE_SPACE": str(settings.kv_gigabytes),
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",  # the model is a directory
    }
    if settings.threads is not None:
        cores = sorted(os.sched_getaffinity(0))[: settings.threads]
        # by default it leaves one core idle
        found |= {"VLLM_CPU_NUM_OF_RESERVED_CPU": "0", "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores))}
    return found | settings.environment


def model_directory(name: str) -> Path:
    """The directory of a base model; one that is made from a configuration is written to the cache folder first."""
    spec = resolve(name)
    folder = spec.tokenizer_path
    if (folder / "config.json").is_file() and any(folder.glob("*.safetensors")):
        return folder.resolve()
    from tinker_actors.models.base import load_base, save_model_directory

    digest = hashlib.sha256(spec.name.encode()).hexdigest()[:16]
    target = cache_dir() / "written" / digest
    return target if target.is_dir() else save_model_directory(load_base(name).skeleton(), folder, target)

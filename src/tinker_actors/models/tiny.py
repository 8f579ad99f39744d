"""Tiny decoders built from a configuration, with a character tokenizer made here: no file, no network.

A name says everything about the weights: `tiny-llama:seed=3` is the same model bit for bit in every process.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import stat
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from tinker_actors.errors import ModelError
from tinker_actors.models.cache import build_directory, cache_dir

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

PAD, UNKNOWN, END = "<|pad|>", "<|unk|>", "<|end|>"
SPECIAL_TOKENS = (PAD, UNKNOWN, END, "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>")
CHARACTERS = "\n" + "".join(chr(code) for code in range(32, 127))

CHAT_TEMPLATE = """\
{%- for message in messages -%}
{{ '<|' + message.role + '|>' + message.content }}
{%- for call in message.tool_calls or [] -%}
{{ '<tool_call>' + (call.function | tojson) + '</tool_call>' }}
{%- endfor -%}
{{ '<|end|>' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{ '<|assistant|>' }}
{%- endif -%}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TinyShape:
    """Shape and seed of a tiny decoder; each field may be given in the name, as in `tiny-llama:seed=3,layers=4`.

    Attributes:
        seed: Seed of the weights.
        hidden: Width of the residual stream; the feed-forward part is three times as wide.
        layers: Decoder layers.
        heads: Attention heads, a divisor of `hidden`.
        context: Longest sequence, in tokens.
    """

    seed: int = 0
    hidden: int = 64
    layers: int = 2
    heads: int = 4
    context: int = 512

    def __post_init__(self) -> None:
        small = [field.name for field in fields(self) if field.name != "seed" and getattr(self, field.name) < 1]
        if small or self.seed < 0:
            raise ModelError(f"{', '.join(small) or 'seed'} of a tiny model is too small: {self}")
        if self.hidden % (2 * self.heads):
            raise ModelError(f"hidden={self.hidden} is not an even multiple of heads={self.heads}")

    @classmethod
    def parse(cls, options: str) -> Self:
        """Read `seed=3,layers=4`.

        Raises:
            ModelError: An option is unknown, given twice or not a whole number.
        """
        known = [field.name for field in fields(cls)]
        values: dict[str, int] = {}
        for option in filter(None, options.split(",")):
            key, _, value = (part.strip() for part in option.partition("="))
            if key not in known or key in values or not value.isdecimal():
                raise ModelError(f"bad option {option!r} of a tiny model; options are whole numbers for {known}, once")
            values[key] = int(value)
        return cls(**values)

    def format(self) -> str:
        """The options that differ from the defaults, in the form that `parse` reads."""
        plain = type(self)()
        parts = ((field.name, getattr(self, field.name)) for field in fields(self))
        return ",".join(f"{name}={value}" for name, value in parts if value != getattr(plain, name))


def tokenizer_files(special: tuple[str, ...] = SPECIAL_TOKENS, chat_template: str = CHAT_TEMPLATE) -> dict[str, str]:
    """Names and contents of the files of the character tokenizer's directory."""
    tokens = [*special, *CHARACTERS]
    added = [
        {"id": index, "content": token, "special": True, "normalized": False}
        | dict.fromkeys(("single_word", "lstrip", "rstrip"), False)
        for index, token in enumerate(special)
    ]
    backend: dict[str, Any] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": {"type": "Fuse"},
        # BPE without merges splits into characters
        "model": {
            "type": "BPE",
            "unk_token": UNKNOWN,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": {token: index for index, token in enumerate(tokens)},
            "merges": [],
        },
    }
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": PAD,
        "eos_token": END,
        "unk_token": UNKNOWN,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 1_000_000,
    }
    return {
        "tokenizer.json": json.dumps(backend, ensure_ascii=False),
        "tokenizer_config.json": json.dumps(config, indent=2),
        "chat_template.jinja": chat_template,
    }


@functools.cache
def tokenizer_directory() -> Path:
    """The folder of the character tokenizer."""
    return written_directory(tokenizer_files())


def written_directory(files: dict[str, str]) -> Path:
    """A folder with these files, in the cache; where that can't be written, in the user's own temporary folder."""
    digest = hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()[:12]

    def fill(folder: Path) -> None:
        for name, content in files.items():
            (folder / name).write_text(content, encoding="utf-8")

    try:
        return build_directory(cache_dir() / "tokenizers" / f"tiny-{digest}", fill)
    except OSError:
        return build_directory(_own_temporary_folder() / f"tiny-{digest}", fill)


def _own_temporary_folder() -> Path:
    """The same one for all processes of a user, so that they don't pile up; nobody else can write to it."""
    folder = Path(tempfile.gettempdir()) / f"tinker-actors-tokenizers-{os.getuid()}"
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077:
        return folder
    return Path(tempfile.mkdtemp(prefix="tinker-actors-"))  # somebody else was there first


def build(architecture: str, shape: TinyShape, dtype: str) -> PreTrainedModel:
    """A decoder with freshly drawn weights; other dtypes are the float32 weights, rounded.

    Matrices are normal with standard deviation 0.1: at this width the usual 0.02 hardly learns.
    """
    return drawn(_config(architecture, shape), _model, seed=shape.seed, std=0.1, dtype=dtype)


def drawn(
    config: PretrainedConfig, make: Callable[[PretrainedConfig], PreTrainedModel], *, seed: int, std: float, dtype: str
) -> PreTrainedModel:
    """The model of a configuration with freshly drawn matrices; norms begin as ones and biases as zeros."""
    import torch
    from torch import nn

    with torch.random.fork_rng(devices=[]):  # construction draws weights too, and must not move the caller's generator
        model = make(config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=std, generator=generator)
            else:
                nn.init.constant_(parameter, 0.0 if name.endswith("bias") else 1.0)
            # parameters alone: the rotary frequencies stay float32, as they do in a model loaded from files
            parameter.data = parameter.to(getattr(torch, dtype))
    model.config.dtype = getattr(torch, dtype)
    return model


def _model(config: PretrainedConfig) -> PreTrainedModel:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")


def _config(architecture: str, shape: TinyShape) -> PretrainedConfig:
    from transformers import LlamaConfig, Qwen3Config

    vocabulary = len(SPECIAL_TOKENS) + len(CHARACTERS)
    common: dict[str, Any] = {
        "vocab_size": vocabulary,
        "hidden_size": shape.hidden,
        "intermediate_size": 3 * shape.hidden,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "max_position_embeddings": shape.context,
        "initializer_range": 0.1,
        "tie_word_embeddings": True,
        "pad_token_id": SPECIAL_TOKENS.index(PAD),
        "eos_token_id": SPECIAL_TOKENS.index(END),
        "bos_token_id": None,
    }
    if architecture == "llama":
        return LlamaConfig(num_key_value_heads=shape.heads, **common)
    if architecture == "qwen3":
        # grouped queries and normalised queries and keys, as in the real family
        key_value_heads = shape.heads // 2 if shape.heads % 2 == 0 else shape.heads
        return Qwen3Config(num_key_value_heads=key_value_heads, head_dim=shape.hidden // shape.heads, **common)
    raise ModelError(f"unknown tiny architecture {architecture!r}; llama and qwen3 exist")

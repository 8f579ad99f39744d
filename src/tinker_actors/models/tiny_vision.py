"""Tiny vision-language models of the Qwen-VL kind, built from a configuration: no file, no network.

Like the tiny decoders, a name says everything about the weights: `tiny-qwen2-vl:seed=3`.
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinker_actors.models import tiny

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

MODEL_TYPES = {"qwen2-vl": "qwen2_vl", "qwen2.5-vl": "qwen2_5_vl", "qwen3-vl": "qwen3_vl"}

VISION_START, VISION_END, IMAGE, VIDEO = "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"
SPECIAL_TOKENS = (*tiny.SPECIAL_TOKENS, VISION_START, VISION_END, IMAGE, VIDEO)

CHAT_TEMPLATE = """\
{%- for message in messages -%}
{{ '<|' + message.role + '|>' }}
{%- if message.content is string -%}
{{ message.content }}
{%- else -%}
{%- for part in message.content -%}
{{ '<|vision_start|><|image_pad|><|vision_end|>' if part.type == 'image' else part.text }}
{%- endfor -%}
{%- endif -%}
{%- for call in message.tool_calls or [] -%}
{{ '<tool_call>' + (call.function | tojson) + '</tool_call>' }}
{%- endfor -%}
{{ '<|end|>' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{ '<|assistant|>' }}
{%- endif -%}
"""

# A position of the decoder is a cell of 16x16 pixels; an image has 4 to 16 of them.
PATCH, MERGE, FRAMES = 8, 2, 2
MIN_PIXELS, MAX_PIXELS = 32 * 32, 64 * 64
TOWER_WIDTH, TOWER_LAYERS, TOWER_HEADS = 64, 2, 4


@dataclass(frozen=True, slots=True, kw_only=True)
class TinyVisionShape(tiny.TinyShape):
    """Shape and seed of a tiny vision-language model: as for a tiny decoder, of width 96."""

    hidden: int = 96


@functools.cache
def processor_directory(architecture: str) -> Path:
    """A folder with the tokenizer's and the image processor's files."""
    processor = {
        "image_processor_type": "Qwen2VLImageProcessor",
        "patch_size": PATCH,
        "merge_size": MERGE,
        "temporal_patch_size": FRAMES,
        "size": {"shortest_edge": MIN_PIXELS, "longest_edge": MAX_PIXELS},
    }
    return tiny.written_directory(
        {
            **tiny.tokenizer_files(SPECIAL_TOKENS, CHAT_TEMPLATE),
            "preprocessor_config.json": json.dumps(processor, indent=2),
            "config.json": json.dumps({"model_type": MODEL_TYPES[architecture], **_token_ids()}, indent=2),
        }
    )


def build(architecture: str, shape: TinyVisionShape, dtype: str) -> PreTrainedModel:
    """A model with freshly drawn weights; other dtypes are the float32 weights, rounded.

    Matrices are normal with standard deviation 0.08.
    """
    return tiny.drawn(_config(architecture, shape), _model, seed=shape.seed, std=0.08, dtype=dtype)


def _model(config: PretrainedConfig) -> PreTrainedModel:
    from transformers import AutoModelForImageTextToText

    return AutoModelForImageTextToText.from_config(config, attn_implementation="sdpa")


def _config(architecture: str, shape: TinyVisionShape) -> PretrainedConfig:
    from transformers import Qwen2_5_VLConfig, Qwen2VLConfig, Qwen3VLConfig

    text, tower = _text(shape), {"patch_size": PATCH, "spatial_merge_size": MERGE, "temporal_patch_size": FRAMES}
    given: dict[str, Any] = {"text_config": text, "vision_config": tower, **_token_ids(), "tie_word_embeddings": True}
    if architecture == "qwen2-vl":
        tower |= {"depth": TOWER_LAYERS, "embed_dim": TOWER_WIDTH, "hidden_size": shape.hidden, "mlp_ratio": 2}
        tower |= {"num_heads": TOWER_HEADS}
        return Qwen2VLConfig(**given)
    tower |= {"depth": TOWER_LAYERS, "hidden_size": TOWER_WIDTH, "intermediate_size": 2 * TOWER_WIDTH}
    tower |= {"num_heads": TOWER_HEADS, "out_hidden_size": shape.hidden}
    if architecture == "qwen2.5-vl":
        # one layer attends within windows of 2x2 positions, one to the whole image
        tower |= {"window_size": 2 * PATCH * MERGE, "fullatt_block_indexes": [TOWER_LAYERS - 1]}
        return Qwen2_5_VLConfig(**given)
    tower |= {"num_position_embeddings": 64, "deepstack_visual_indexes": [0]}
    text |= {"head_dim": shape.hidden // shape.heads}
    text["rope_parameters"]["mrope_interleaved"] = True
    return Qwen3VLConfig(**given)


def _text(shape: TinyVisionShape) -> dict[str, Any]:
    frequencies = shape.hidden // shape.heads // 2
    third = frequencies // 3
    return {
        "vocab_size": len(SPECIAL_TOKENS) + len(tiny.CHARACTERS),
        "hidden_size": shape.hidden,
        "intermediate_size": 3 * shape.hidden,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.heads // 2 if shape.heads % 2 == 0 else shape.heads,
        "max_position_embeddings": shape.context,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "mrope_section": [frequencies - 2 * third, third, third],
        },
        "tie_word_embeddings": True,
        "pad_token_id": SPECIAL_TOKENS.index(tiny.PAD),
        "eos_token_id": SPECIAL_TOKENS.index(tiny.END),
        "bos_token_id": None,
    }


def _token_ids() -> dict[str, int]:
    tokens = {"image": IMAGE, "video": VIDEO, "vision_start": VISION_START, "vision_end": VISION_END}
    return {f"{name}_token_id": SPECIAL_TOKENS.index(token) for name, token in tokens.items()}

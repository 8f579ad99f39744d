"""Base models, tokenizers, renderers and LoRA layers. Names resolve on first use: tokenizers need no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tinker_actors.lazy import lazy_names

if TYPE_CHECKING:
    from tinker_actors.models.base import BaseModel, load_base, release_base, save_model_directory
    from tinker_actors.models.catalogue import (
        ModelSpec,
        available_models,
        load_tokenizer,
        register_model,
        resolve,
    )
    from tinker_actors.models.family import FamilyRenderer
    from tinker_actors.models.fetching import fetch
    from tinker_actors.models.lora import MultiLoraLinear, MultiLoraModel
    from tinker_actors.models.renderer import Rendered, Renderer
    from tinker_actors.models.rendering import ChatRenderer, load_renderer
    from tinker_actors.models.tokenizer import Tokenizer

_HOMES = {
    "BaseModel": "base",
    "load_base": "base",
    "release_base": "base",
    "save_model_directory": "base",
    "ModelSpec": "catalogue",
    "available_models": "catalogue",
    "load_tokenizer": "catalogue",
    "register_model": "catalogue",
    "resolve": "catalogue",
    "FamilyRenderer": "family",
    "fetch": "fetching",
    "MultiLoraLinear": "lora",
    "MultiLoraModel": "lora",
    "Rendered": "renderer",
    "Renderer": "renderer",
    "ChatRenderer": "rendering",
    "load_renderer": "rendering",
    "Tokenizer": "tokenizer",
}

__all__ = [
    "BaseModel",
    "ChatRenderer",
    "FamilyRenderer",
    "ModelSpec",
    "MultiLoraLinear",
    "MultiLoraModel",
    "Rendered",
    "Renderer",
    "Tokenizer",
    "available_models",
    "fetch",
    "load_base",
    "load_renderer",
    "load_tokenizer",
    "register_model",
    "release_base",
    "resolve",
    "save_model_directory",
]

__getattr__ = lazy_names(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted(__all__)

"""Trainable models over a frozen base: LoRA layers through PEFT, or a copy of all weights."""

from __future__ import annotations

import math
import re
import warnings

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import nn
from transformers import PreTrainedModel

from tinker_actors.models import BaseModel
from tinker_actors.models.roles import target_names
from tinker_actors.models.vision import TOWER
from tinker_actors.policies import PolicySpec


def lora_model(base: BaseModel, spec: PolicySpec, generator: torch.Generator) -> PeftModel:
    """A module tree of its own over the base's storage, with fresh fp32 LoRA layers.

    Nothing is shared with other policies but the frozen base weights. A vision tower stays frozen, whatever its layers
    are called. The layers' initial values are PEFT's own kind
    (A as Kaiming uniform, B zero), drawn from `generator` alone.

    Raises:
        ConfigError: No module of the base has a target's name or role.
    """
    names = target_names(base.model, base.name, spec.target_modules, spec.targets)
    config = LoraConfig(
        r=spec.rank,
        lora_alpha=spec.alpha,  # pyright: ignore[reportArgumentType]  # PEFT divides it, so any number will do
        lora_dropout=0.0,
        target_modules=names if isinstance(names, str) else list(names),
        exclude_modules=None if base.vision is None else rf"{re.escape(TOWER)}\..*",
        task_type="CAUSAL_LM",
    )
    # PEFT draws from the process's generator, which isn't ours to advance, and asks transformers by an outgoing name.
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*is_gradient_checkpointing", category=FutureWarning)
        warnings.filterwarnings("ignore", message=".*tie_word_embeddings")  # the head's adapter is the head's alone
        model = get_peft_model(base.skeleton(), config)
    config.base_model_name_or_path = spec.base_model
    _initialise(model, generator)
    return model.eval()  # nothing here drops out; evaluation mode keeps the samplers' arithmetic


def full_model(base: BaseModel) -> PreTrainedModel:
    """A trainable fp32 copy of all base weights; tied weights stay tied."""
    model = base.skeleton()
    for parameter in model.parameters():
        parameter.data = parameter.data.to(torch.float32, copy=True)
        parameter.requires_grad_(True)
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            # torch drops the gradient of the padding id's row, also where that id is a token like any other.
            module.padding_idx = None
    model.config.dtype = torch.float32
    return model.eval()


@torch.no_grad()
def _initialise(model: PeftModel, generator: torch.Generator) -> None:
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        drawn = torch.zeros(parameter.shape, dtype=parameter.dtype)  # where the generator is, wherever the layers are
        if ".lora_A." in name:
            nn.init.kaiming_uniform_(drawn, a=math.sqrt(5), generator=generator)
        elif ".lora_embedding_B." in name:
            nn.init.normal_(drawn, generator=generator)
        parameter.data.copy_(drawn)

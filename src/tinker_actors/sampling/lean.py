"""Decoders of Llama's shape in as few operations as their layers need.

Transformers' own layers take some forty small operations each, which on a step of few rows cost as much as the
products. The layers of a model that is known to have this shape are computed here from its weights instead; `Network`
compares both when a model loads.

Shape suffixes: T rows of the step, W rows whose logits are wanted, V vocabulary, N width of the model, H query heads,
G key heads, D width of a head.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tinker_actors.sampling.attention import StepHolder
from tinker_actors.sampling.linears import Product

_KNOWN = frozenset({"LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"})


_BESIDE = 16  # columns beside a row's numbers, of which the first holds what its norm adds


class _Norm:
    """A root mean square norm (Zhang and Sennrich, 2019).

    The length of a row with one more number, the root of N times epsilon, is the root of N times what the row is
    divided by: with that number beside each row a norm takes three operations.
    """

    def __init__(self, module: Any) -> None:
        self.epsilon = float(module.variance_epsilon)
        weight = module.weight.detach()
        self._scaled = weight.float() * weight.numel() ** 0.5

    def __call__(self, x_tm: Tensor, x_tn: Tensor) -> Tensor:
        """The norm of the rows.

        Args:
            x_tm: The rows with what stands beside them, shape (T, N + 16).
            x_tn: The rows, a view of them.

        Returns:
            Shape (T, N).
        """
        length_t1 = torch.linalg.vector_norm(x_tm, dim=-1, keepdim=True, dtype=torch.float32)
        normed_tn = (x_tn / length_t1).mul_(self._scaled)
        return normed_tn if normed_tn.dtype == x_tn.dtype else normed_tn.to(x_tn.dtype)


class _HeadNorm:
    """The same norm of each head, whose numbers are in the order of `pairs` and have nothing beside them."""

    def __init__(self, module: Any) -> None:
        weight = module.weight.detach()
        self._epsilon = float(module.variance_epsilon)
        self._weight = weight[pairs(weight.numel()).to(weight.device)]

    def __call__(self, x_tgd: Tensor) -> Tensor:
        """The norm of the heads."""
        return F.rms_norm(x_tgd, self._weight.shape, self._weight, self._epsilon)


def pairs(width: int) -> Tensor:
    """An order of a head's numbers in which those that turn together, the halves' first, second and so on, are beside
    each other: as one complex number, which a rotary position multiplies by another (Su et al., RoFormer, 2021).
    """
    return torch.arange(width).view(2, -1).t().reshape(-1)


def _with_room(x_tn: Tensor, epsilon: float) -> Tensor:
    """Rows with what their norms add beside them, shape (T, N + 16)."""
    x_tm = x_tn.new_zeros(x_tn.shape[0], x_tn.shape[1] + _BESIDE)
    x_tm[:, :-_BESIDE] = x_tn
    x_tm[:, -_BESIDE] = (x_tn.shape[1] * epsilon) ** 0.5
    return x_tm


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layer:
    """One layer's parts."""

    number: int
    before_attention: _Norm
    qkv: Product
    query_norm: _HeadNorm | None
    key_norm: _HeadNorm | None
    output: Product
    before_mlp: _Norm
    gate_up: Product
    down: Product
    scaling: float
    window: int | None


class LeanDecoder:
    """Computes the logits of a step.

    Args:
        model: Its linear layers are replaced by pieces of products already, in these orders.
        holder: Where the step's attention is found.
    """

    def __init__(self, model: Any, holder: StepHolder) -> None:
        decoder, text = model.model, model.config
        self._embedding: nn.Embedding = decoder.embed_tokens
        self._rotary: nn.Module = decoder.rotary_emb
        self._layers = [_layer_of(number, layer) for number, layer in enumerate(decoder.layers)]
        self._norm = _Norm(decoder.norm)
        self._head: Product = model.lm_head.product
        self._heads, self._key_heads = int(text.num_attention_heads), int(text.num_key_value_heads)
        self._holder = holder

    @staticmethod
    def fits(model: nn.Module) -> bool:
        """Whether a model has this shape, before its linear layers are replaced."""
        config: Any = getattr(model, "config", None)
        if type(model).__name__ not in _KNOWN or config.hidden_act != "silu":
            return False
        decoder: Any = model.model
        norms = [norm for layer in decoder.layers for norm in (layer.input_layernorm, layer.post_attention_layernorm)]
        if any(norm.variance_epsilon != decoder.norm.variance_epsilon for norm in norms):
            return False
        linears = [model.lm_head]
        for layer in decoder.layers:
            attention, mlp = layer.self_attn, layer.mlp
            linears += [attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj]
            linears += [mlp.gate_proj, mlp.up_proj, mlp.down_proj]
        return all(isinstance(linear, nn.Linear) for linear in linears)

    @staticmethod
    def orders(model: Any) -> dict[str, Tensor]:
        """The order that the outputs of query and key layers must have, by the layer's path: heads in `pairs`."""
        found: dict[str, Tensor] = {}
        for number, layer in enumerate(model.model.layers):
            width = int(layer.self_attn.head_dim)
            for name in ("q_proj", "k_proj"):
                heads = getattr(layer.self_attn, name).out_features // width
                order_hd = torch.arange(heads)[:, None] * width + pairs(width)
                found[f"model.layers.{number}.self_attn.{name}"] = order_hd.reshape(-1)
        return found

    def __call__(self, ids_t: Tensor, positions_t: Tensor, keep_w: Tensor) -> Tensor:
        """The logits of the rows to keep, shape (W, V)."""
        x_tm = _with_room(self._embedding(ids_t), self._norm.epsilon)
        x_tn = x_tm[:, :-_BESIDE]
        cos, sin = self._rotary(x_tn[None], positions_t[None])
        half = cos.shape[-1] // 2
        turns_t1d = torch.complex(cos[0, :, :half].float(), sin[0, :, :half].float())[:, None]
        for layer in self._layers:
            x_tn += self._attention(layer, layer.before_attention(x_tm, x_tn), turns_t1d)
            gate, up = layer.gate_up.compute(layer.before_mlp(x_tm, x_tn)).chunk(2, dim=-1)
            x_tn += layer.down.compute(F.silu(gate).mul_(up))
        x_wm = x_tm.index_select(0, keep_w)
        return self._head.compute(self._norm(x_wm, x_wm[:, :-_BESIDE]))

    def _attention(self, layer: _Layer, x_tn: Tensor, turns_t1d: Tensor) -> Tensor:
        heads, turned = self._heads, self._heads + self._key_heads
        qkv = layer.qkv.compute(x_tn).view(x_tn.shape[0], turned + self._key_heads, -1)
        if layer.query_norm is not None and layer.key_norm is not None:
            qkv[:, :heads] = layer.query_norm(qkv[:, :heads])
            qkv[:, heads:turned] = layer.key_norm(qkv[:, heads:turned])
        if qkv.dtype == torch.float32:
            torch.view_as_complex(qkv.view(*qkv.shape[:2], -1, 2))[:, :turned].mul_(turns_t1d)
        else:
            both = qkv[:, :turned]
            complex_thd = torch.view_as_complex(both.float().unflatten(-1, (-1, 2))).mul_(turns_t1d)
            both.copy_(torch.view_as_real(complex_thd).flatten(-2))
        kept = qkv.to(self._holder.dtype)
        answer_thd = self._holder.attend(
            layer.number,
            kept[:, :heads],
            kept[:, heads:],
            scaling=layer.scaling,
            window=layer.window,
            dtype=x_tn.dtype,
        )
        return layer.output.compute(answer_thd.view(x_tn.shape[0], -1))


def _layer_of(number: int, layer: Any) -> _Layer:
    attention = layer.self_attn
    return _Layer(
        number=number,
        before_attention=_Norm(layer.input_layernorm),
        qkv=attention.q_proj.product,
        query_norm=_HeadNorm(attention.q_norm) if hasattr(attention, "q_norm") else None,
        key_norm=_HeadNorm(attention.k_norm) if hasattr(attention, "k_norm") else None,
        output=attention.o_proj.product,
        before_mlp=_Norm(layer.post_attention_layernorm),
        gate_up=layer.mlp.gate_proj.product,
        down=layer.mlp.down_proj.product,
        scaling=float(attention.scaling),
        window=getattr(attention if hasattr(attention, "sliding_window") else attention.config, "sliding_window", None),
    )

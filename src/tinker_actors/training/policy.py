"""One policy in training: its weights, gradients, optimizer and random numbers, and nobody else's."""

from __future__ import annotations

import contextlib
import shutil
import weakref
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from peft.tuners.lora import LoraLayer
from torch import Tensor, nn
from transformers import PreTrainedModel

from tinker_actors.errors import PolicyError
from tinker_actors.models import BaseModel, save_model_directory
from tinker_actors.models.adapters import Adapter, AdapterWeights
from tinker_actors.models.lent import LentWeights, lent_adapter
from tinker_actors.policies import Origin, PolicySpec
from tinker_actors.training.adapters import full_model, lora_model
from tinker_actors.training.contract import AdamParams, OptimStepResult, PolicyInfo
from tinker_actors.training.optimizer import PolicyOptimizer, hidden_matrices
from tinker_actors.training.optimizer_params import OptimizerName, optimizer_of
from tinker_actors.training.value_head import ValueHead


class TrainedPolicy:
    """A policy's whole training state.

    Attributes:
        policy_id: The policy.
        spec: What it was made from.
        model: The module tree, LoRA layers and all; its base weights are the process's shared ones (lora).
        parameters: The trained parameters by name, those of the value head among them.
        value_head: Says what a place in the text is worth; None if the spec has none.
        adapter: The trained matrices themselves, by layer and without the head's, for a model that serves many
            adapters; None if the policy isn't an adapter, or adapts more than linear layers.
        step: Optimizer steps behind it.
        pending: How many forward_backward calls its gradients hold.
        parent: Handle that its next snapshot's weights grow from.
        snapshot: Handle of the last snapshot published, if any.
        generator: The policy's random numbers.
    """

    def __init__(self, policy_id: str, spec: PolicySpec, base: BaseModel) -> None:
        self.policy_id, self.spec, self.base = policy_id, spec, base
        self.generator = torch.Generator().manual_seed(spec.seed)
        self._adapted: PeftModel | None = None
        if spec.kind == "lora":
            self._adapted = lora_model(base, spec, self.generator)
            self.model: PreTrainedModel = self._adapted.get_base_model()  # pyright: ignore[reportAttributeAccessIssue]
        else:
            self.model = full_model(base)
        self.parameters = {name: value for name, value in self.model.named_parameters() if value.requires_grad}
        self.value_head = None
        if spec.value_head:
            self.value_head = ValueHead(int(base.text_config.hidden_size), next(self.model.parameters()).device)
            self.parameters |= self.value_head.named()
        self.adapter = self._adapter()
        matrices = hidden_matrices(self.model, self.model.get_output_embeddings()) if spec.kind == "full" else ()
        self.optimizer = PolicyOptimizer(self.parameters, matrices)
        self._size = sum(parameter.numel() for parameter in self.parameters.values())
        self._moments_of: OptimizerName | None = None
        self._lent: list[LentWeights] = []
        self.step = self.pending = 0
        self.parent: str | None = None
        self.snapshot: str | None = None

    def computing(self) -> contextlib.AbstractContextManager[None]:
        """The precision of its passes: a full policy over a bf16 base multiplies in bf16, with fp32 master weights."""
        if self.spec.kind != "full" or self.base.dtype != "bfloat16":
            return contextlib.nullcontext()
        return torch.autocast(next(self.model.parameters()).device.type, torch.bfloat16)  # pyright: ignore[reportReturnType]

    @contextlib.contextmanager
    def accumulating(self) -> Iterator[None]:
        """Add the gradients of the block's backward passes to the pending ones; if the block raises, add nothing."""
        held = {name: parameter.grad for name, parameter in self.parameters.items()}
        for parameter in self.parameters.values():
            parameter.grad = None
        try:
            yield
        except BaseException:  # whatever it was, the pending gradients are put back
            for name, parameter in self.parameters.items():
                parameter.grad = held[name]
            raise
        for name, parameter in self.parameters.items():
            if parameter.grad is None:
                parameter.grad = held[name]
            elif (before := held[name]) is not None:
                parameter.grad.add_(before)
        self.pending += 1

    def optim_step(self, params: AdamParams) -> OptimStepResult:
        """Apply the pending gradients and drop them.

        Raises:
            PolicyError: There are none; or the policy's moments are another optimizer's; or the gradients aren't
                finite, in which case they are dropped and the weights and moments are unchanged.
        """
        if not self.pending:
            raise PolicyError(f"policy {self.policy_id!r} has no gradients; forward_backward comes before optim_step")
        try:
            self.optimizer.prepare(optimizer_of(params))
        except PolicyError as error:
            raise PolicyError(f"policy {self.policy_id!r}: {error}") from error
        self._own_weights()
        for parameter in self.parameters.values():
            if parameter.grad is None:  # a batch that trains no token: the step still decays moments and weights
                parameter.grad = torch.zeros_like(parameter)
        try:
            grad_norm = self.optimizer.step(params)
        except PolicyError as error:
            raise PolicyError(f"policy {self.policy_id!r} at step {self.step}: {error}") from error
        finally:
            self.pending = 0
            for parameter in self.parameters.values():
                parameter.grad = None
        self.step += 1
        return OptimStepResult(step=self.step, grad_norm=grad_norm)

    def write_snapshot(self, folder: Path) -> None:
        """Write what samplers load: a PEFT directory (lora) or a transformers model directory (full)."""
        if self._adapted is not None:
            # The embeddings aren't trained; without this PEFT may ask a hub for the base's vocabulary size.
            self._adapted.save_pretrained(str(folder), save_embedding_layers=False)
            return
        written = save_model_directory(self.model, self.base.name, folder / "model")
        for path in list(written.iterdir()):
            shutil.move(path, folder / path.name)
        written.rmdir()

    def lend(self) -> LentWeights | None:
        """The present weights for samplers in this process: a copy of an adapter, or full weights as they are.

        Full weights are lent rather than copied: the policy copies them itself before it writes to them, and only if
        somebody holds what was lent by then.

        Returns:
            None where samplers don't serve the adapter as it is held.
        """
        if self._adapted is not None:
            trained = len(self.parameters) - len(self.value_head.named() if self.value_head else {})
            if self.adapter is None or 2 * len(self.adapter.weights) != trained:
                return None
            self._lent = [lent := lent_adapter(self.adapter)]
        else:
            weights = {name: parameter.detach() for name, parameter in self.model.named_parameters()}
            self._lent.append(lent := LentWeights(adapter=None, parameters=weights))
        return lent

    def _own_weights(self) -> None:
        """Let go of what was lent; from here on the weights may be written to."""
        held = [weakref.ref(lent) for lent in self._lent if lent.adapter is None]
        self._lent.clear()
        if any(reference() is not None for reference in held):
            for parameter in self.model.parameters():
                parameter.data = parameter.data.clone()

    def export(self, path: Path) -> None:
        """Write the policy's weights, merged into the base's, as a transformers model directory with tokenizer.

        Raises:
            ModelError: `path` exists.
        """
        if self._adapted is None:
            save_model_directory(self.model, self.base.name, path)
            return
        merged = TrainedPolicy(self.policy_id, self.spec, self.base)
        merged.set_weights(self.weights())
        save_model_directory(merged._merge(), self.base.name, path)

    def weights(self) -> dict[str, Tensor]:
        """The trained parameters by name; views, not copies."""
        return {name: parameter.detach() for name, parameter in self.parameters.items()}

    @torch.no_grad()
    def set_weights(self, weights: dict[str, Tensor]) -> None:
        """Copy weights of the same names and shapes into the policy."""
        self._own_weights()
        for name, parameter in self.parameters.items():
            parameter.copy_(weights[name])

    def gradients(self) -> dict[str, Tensor]:
        """The pending gradients by name; empty without any."""
        return {name: value.grad for name, value in self.parameters.items() if value.grad is not None}

    def set_gradients(self, gradients: dict[str, Tensor]) -> None:
        """Hold these gradients, and no others, as pending."""
        for name, parameter in self.parameters.items():
            found = gradients.get(name)
            parameter.grad = None if found is None else found.to(parameter.device)

    def state(self) -> dict[str, Tensor]:
        """Weights, moments and pending gradients as weights/, optimizer/ and gradients/<name>; views, not copies."""
        parts = {"weights": self.weights(), "optimizer": self.optimizer.state(), "gradients": self.gradients()}
        return {f"{part}/{name}": value for part, tensors in parts.items() for name, value in tensors.items()}

    def nbytes(self) -> int:
        """Bytes of `state`."""
        return sum(value.nbytes for value in self.state().values())

    def drop_state(self) -> None:
        """Let go of what `state` holds; nothing but `take_state` and `info` may follow."""
        self._lent.clear()
        self._moments_of = self.optimizer.name
        self.optimizer.forget()
        for parameter in self.parameters.values():
            parameter.grad = None
            parameter.data = torch.empty(0, dtype=parameter.dtype, device=parameter.device)

    def take_state(self, tensors: dict[str, Tensor]) -> None:
        """Hold again what `state` gave before `drop_state`; the tensors become the policy's own."""
        for name, parameter in self.parameters.items():
            parameter.data = tensors[f"weights/{name}"]
            parameter.grad = tensors.get(f"gradients/{name}")
        moments = {name.removeprefix("optimizer/"): tensors[name] for name in tensors if name.startswith("optimizer/")}
        self.optimizer.load(self._moments_of, moments)

    def info(self) -> PolicyInfo:
        """The policy in numbers."""
        return PolicyInfo(
            policy_id=self.policy_id,
            base_model=self.spec.base_model,
            kind=self.spec.kind,
            step=self.step,
            parameters=self._size,
            pending=self.pending,
            snapshot=self.snapshot,
        )

    def origin(self) -> Origin:
        """Where its weights come from, as a store is told."""
        return Origin(
            step=self.step,
            base_model=self.spec.base_model,
            kind=self.spec.kind,
            parent=self.parent,
            spec=asdict(self.spec),
        )

    def _adapter(self) -> Adapter | None:
        if self._adapted is None:
            return None
        head = self.model.get_output_embeddings()
        weights: dict[str, AdapterWeights] = {}
        for path, module in self.model.named_modules():
            if not isinstance(module, LoraLayer) or module is head:
                continue
            if not isinstance(module.get_base_layer(), nn.Linear):
                return None
            (name,) = module.lora_A
            a, b = (self.parameters[f"{path}.lora_{part}.{name}.weight"] for part in "AB")
            weights[path] = AdapterWeights(a=a, b=b, scale=float(module.scaling[name]))
        return Adapter(path=Path(self.policy_id), weights=weights)

    def _merge(self) -> PreTrainedModel:
        """Fold the LoRA layers into own copies of the weights that they adapt; the policy can't be used after."""
        assert self._adapted is not None
        for name, parameter in self.model.named_parameters():
            if ".base_layer." in name:  # merging writes in place, and the storage is everyone's
                parameter.data = parameter.data.clone()
        ends = self.model.get_input_embeddings(), self.model.get_output_embeddings()
        if any(isinstance(end, LoraLayer) for end in ends):  # head and embeddings part, even where the base ties them
            head: Any = ends[1].get_base_layer() if isinstance(ends[1], LoraLayer) else ends[1]
            head.weight = nn.Parameter(head.weight.detach().clone(), requires_grad=False)
            for config in (self.model.config, self.model.config.get_text_config()):
                config.tie_word_embeddings = False
        return self._adapted.merge_and_unload()  # pyright: ignore[reportReturnType, reportCallIssue]

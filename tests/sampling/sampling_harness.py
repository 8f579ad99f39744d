"""Snapshots made by other code than the sampler's, and an engine without an actor around it."""

from __future__ import annotations

import itertools
import queue
from dataclasses import dataclass
from pathlib import Path

import torch

from tinker_actors.models import load_base, load_tokenizer, save_model_directory
from tinker_actors.policies import Origin, Snapshot, SnapshotStore
from tinker_actors.sampling import SamplingParams, SamplingReply, SamplingRequest
from tinker_actors.sampling.engine import Engine
from tinker_actors.sampling.limits import EngineLimits
from tinker_actors.sampling.residents import Residents

BASE = "tiny-llama"
TOKENIZER = load_tokenizer(BASE)
END = TOKENIZER.eos_id


@dataclass
class Published:
    """A snapshot and the model that it was made from, computed by other code than the sampler's."""

    snapshot: Snapshot
    model: torch.nn.Module

    @property
    def handle(self) -> str:
        return self.snapshot.handle

    def logprobs(self, prompt, tokens, temperature=1.0) -> list[float]:
        with torch.no_grad():
            logits = self.model(input_ids=torch.tensor([[*prompt, *tokens]])).logits[0] / temperature
        rows = torch.log_softmax(logits, -1)[len(prompt) - 1 : -1]
        return rows.gather(1, torch.tensor(tokens)[:, None])[:, 0].tolist()

    def greedy(self, prompt, count, stop=frozenset()) -> list[int]:
        tokens: list[int] = []
        while len(tokens) < count and not (tokens and tokens[-1] in stop):
            with torch.no_grad():
                logits = self.model(input_ids=torch.tensor([[*prompt, *tokens]])).logits[0, -1]
            tokens.append(int(logits.argmax()))
        return tokens


def liven(model: torch.nn.Module) -> None:
    """Untrained and tied, a tiny model repeats its last token; louder layers make what follows depend on the prompt."""
    for layer in model.model.layers:
        layer.self_attn.o_proj.weight.mul_(4)
        layer.mlp.down_proj.weight.mul_(4)


class Publisher:
    def __init__(self, root: Path) -> None:
        self.store = SnapshotStore(root / "store")
        self._root = root
        self._numbers = itertools.count()

    def full(self, policy: str, *, seed: int, step: int = 0, change=None) -> Published:
        model = load_base(f"{BASE}:seed={seed}").spec.load()
        with torch.no_grad():
            liven(model)
            if change is not None:
                change(model)
        source = save_model_directory(model, BASE, self._root / f"full-{next(self._numbers)}")

        def write(folder: Path) -> None:
            for path in source.iterdir():
                path.rename(folder / path.name)

        snapshot = self.store.publish(policy, write, Origin(step=step, base_model=BASE, kind="full"))
        return Published(snapshot, model.eval())

    def lora(
        self, policy, *, seed, rank=4, alpha=32.0, std=0.06, step=0, base=BASE, target_modules="all-linear"
    ) -> Published:
        from peft import LoraConfig, get_peft_model

        config = LoraConfig(r=rank, lora_alpha=alpha, target_modules=target_modules, task_type="CAUSAL_LM")
        model = get_peft_model(load_base(base).skeleton(), config)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "lora_" in name:
                    parameter.normal_(std=std, generator=generator)
        snapshot = self.store.publish(policy, model.save_pretrained, Origin(step=step, base_model=base))
        return Published(snapshot, model.eval())


class Harness:
    """An engine driven without an actor; requests submitted before `start` share the first batch."""

    def __init__(
        self,
        publisher,
        *,
        base=BASE,
        context_length=64,
        max_adapters=None,
        adapter_memory=2**30,
        device="cpu",
        **options,
    ):
        self.answers = queue.Queue()
        self.residents = Residents(
            base=load_base(base, device=device),
            store=publisher.store,
            max_adapters=max_adapters,
            adapter_memory=adapter_memory,
        )
        limits = {name: options.pop(name) for name in EngineLimits.__dataclass_fields__ if name in options}
        self.engine = Engine(
            residents=self.residents,
            tokenizer=load_tokenizer(base),
            context_length=context_length,
            answer=lambda done: [self.answers.put(entry) for entry in done],
            limits=EngineLimits(**limits),
            **options,
        )

    def refresh(self, *handles):
        self.residents.replace(handles, self.residents.check(handles))

    def serve(self, requests):
        """Answers in the order of the requests, all waiting before the engine starts."""
        tickets = [self.engine.submit(request) for request in requests]
        if not self.engine._thread.is_alive():
            self.engine.start()
        got = {}
        while len(got) < sum(not isinstance(ticket, SamplingReply) for ticket in tickets):
            ticket, answer = self.answers.get(timeout=60)
            got[id(ticket)] = answer
        return [ticket if isinstance(ticket, SamplingReply) else got[id(ticket)] for ticket in tickets]


def ask(snapshot, prompt, num_samples=1, **params):
    return SamplingRequest(
        prompt=tuple(TOKENIZER.encode(prompt)) if isinstance(prompt, str) else prompt,
        snapshot=snapshot,
        num_samples=num_samples,
        params=SamplingParams(**params),
    )

"""Cases and systems of `benchmarks.sampler`."""

from __future__ import annotations

import queue
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch

MODEL = "smollm2-135m"
RANK = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A prompt, how many tokens to add to it, by which adapter, and which conversation it goes on."""

    prompt: list[int]
    new: int
    adapter: int
    talk: int = -1

    def shortened(self) -> Work:
        """The same prompt and one token."""
        return replace(self, new=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What is asked, of whom."""

    systems: tuple[str, ...]
    dtype: str = "bfloat16"
    adapters: int = 0
    count: int = 32
    prompt: tuple[int, int] = (64, 64)
    new: tuple[int, int] = (64, 64)
    samples: int = 1
    turns: int = 1
    rounds: int = 9
    long: bool = False

    @property
    def plain(self) -> bool:
        """Whether all requests are of one length, so that prompts end before the rest begins."""
        return self.prompt[0] == self.prompt[1] and self.turns == 1

    def quick(self) -> Case:
        """A smaller one."""
        return replace(self, count=max(1, self.count // 4), new=(min(self.new[0], 32), min(self.new[1], 32)))

    def small(self) -> Case:
        """What warms a system up."""
        return replace(self, count=min(self.count, 4), new=(min(self.new[0], 4), min(self.new[1], 4)))

    def requests(self, rng: random.Random) -> list[Work]:
        """The requests; those of a group have one prompt."""
        made: list[Work] = []
        for number in range(self.count):
            prompt = [rng.randrange(100, 40_000) for _ in range(rng.randint(*self.prompt))]
            new = rng.randint(*self.new)
            adapter = number % self.adapters if self.adapters else -1
            made += [Work(prompt=prompt, new=new, adapter=adapter, talk=number)] * self.samples
        return made


_PLAIN = ("tinker_actors", "transformers", "vllm_cpu")
_MIXED = ("tinker_actors", "peft_mixed", "vllm_cpu")

CASES = {
    "base_32_bf16": Case(systems=_PLAIN),
    "base_32_fp32": Case(systems=_PLAIN, dtype="float32"),
    "decode_4_adapters_bf16": Case(systems=_MIXED, adapters=4),
    "decode_8_adapters_bf16": Case(systems=_MIXED, adapters=8),
    "decode_4_adapters_fp32": Case(systems=_MIXED, dtype="float32", adapters=4),
    "decode_8_adapters_fp32": Case(systems=_MIXED, dtype="float32", adapters=8),
    "ragged_32_bf16": Case(systems=_PLAIN, prompt=(16, 512), new=(8, 256), rounds=1),
    "ragged_bf16": Case(systems=_PLAIN, count=128, prompt=(16, 512), new=(8, 256), rounds=1, long=True),
    "group_16": Case(systems=("tinker_actors", "transformers"), count=1, prompt=(512, 512), samples=16),
    "multi_turn_bf16": Case(
        systems=("tinker_actors", "no_prefix_cache"), count=4, prompt=(96, 96), new=(8, 8), turns=8
    ),
}
"""`rounds` bounds those of a case that takes minutes; one that is `long` is measured only where it is named."""


class System(Protocol):
    """What generates."""

    def generate(self, work: Sequence[Work]) -> int:
        """Serve all; how many tokens were generated."""
        ...

    def close(self) -> None:
        """End."""
        ...


class Telling:
    """A system that tells when the prompts are done.

    Attributes:
        prompts_done: Called once every sample has a token, with how many there are by then; None for nobody.
    """

    prompts_done: Callable[[int], None] | None = None


class Ours(Telling):
    """The engine, without an actor around it."""

    def __init__(self, case: Case, scratch: Path, *, prefix_caching: bool = True) -> None:
        from peft import LoraConfig, get_peft_model

        from tinker_actors.models import load_base, load_tokenizer
        from tinker_actors.policies import Origin, SnapshotStore
        from tinker_actors.sampling.engine import Engine
        from tinker_actors.sampling.limits import EngineLimits
        from tinker_actors.sampling.residents import Residents

        self.case = case
        base = load_base(MODEL, case.dtype)
        store = SnapshotStore(scratch / f"store-{case.dtype}-{case.adapters}-{prefix_caching}")
        handles: list[str] = []
        for number in range(max(1, case.adapters)):
            config = LoraConfig(r=RANK, lora_alpha=16, target_modules="all-linear")
            model = get_peft_model(base.skeleton(), config)
            if case.adapters:
                fill(model, number)
            snapshot = store.publish(f"p{number}", model.save_pretrained, Origin(step=0, base_model=MODEL))
            handles.append(snapshot.handle)
        residents = Residents(base=base, store=store)
        residents.replace(handles, residents.check(handles))
        if not case.adapters:  # no adapter at all, as the peer
            for handle in handles:
                residents._by_handle[handle].slot = -1
        self._handles, self._answers = handles, queue.SimpleQueue[Any]()
        self._begun, self._drawn, self._awaited = set[tuple[int, int]](), 0, 0
        self._engine = Engine(
            residents=residents,
            tokenizer=load_tokenizer(MODEL),
            context_length=2048,
            answer=lambda done: [self._answers.put(entry) for entry in done] and None,
            progress=self._count,
            limits=EngineLimits(prefix_caching=prefix_caching),
            threads=torch.get_num_threads(),
        )
        self._engine.start()

    def generate(self, work: Sequence[Work]) -> int:
        """Turn by turn; the next turn's prompt is all that was said and as many new tokens again."""
        held = [list(entry.prompt) for entry in work]
        made = 0
        for turn in range(self.case.turns):
            if turn:
                for place, entry in enumerate(work):
                    held[place] += [100 + (token + turn) % 30_000 for token in entry.prompt]
            self._begun, self._drawn, self._awaited = set(), 0, len(work)
            places = {self._submit(held[place], entry): place for place, entry in enumerate(work)}
            for _ in work:
                ticket, reply = self._answers.get(timeout=600)
                tokens = reply.samples[0].tokens
                held[places[ticket]] += tokens
                made += len(tokens)
        return made

    def _count(self, told: Sequence[Any]) -> None:
        if self._awaited:
            self._drawn += len(told)
            self._begun.update((id(ticket), token.index) for ticket, token in told)
            if len(self._begun) == self._awaited:
                self._awaited = 0
                if self.prompts_done is not None:
                    self.prompts_done(self._drawn)

    def _submit(self, prompt: list[int], entry: Work) -> Any:
        from tinker_actors.sampling import SamplingParams, SamplingRequest

        params = SamplingParams(max_tokens=entry.new, default_stops=False)
        snapshot = self._handles[max(0, entry.adapter)]
        request = SamplingRequest(prompt=tuple(prompt), snapshot=snapshot, params=params)
        return self._engine.submit(request, streams=self.case.plain)

    def close(self) -> None:
        """End the engine's thread."""
        self._engine.stop()


class Transformers(Telling):
    """`generate`, in batches of 32, padded on the left, each as long as its longest reply."""

    def __init__(self, case: Case, scratch: Path) -> None:
        del scratch
        from tinker_actors.models import load_base

        self.model: Any = load_base(MODEL, case.dtype).skeleton()
        self._told = False

    def generate(self, work: Sequence[Work]) -> int:
        """Count what was asked for; what a batch computes beyond it is its own loss."""
        for first in range(0, len(work), 32):
            part = work[first : first + 32]
            width = max(len(entry.prompt) for entry in part)
            ids = torch.tensor([[0] * (width - len(entry.prompt)) + entry.prompt for entry in part])
            mask = torch.tensor([[0] * (width - len(entry.prompt)) + [1] * len(entry.prompt) for entry in part])
            new = max(entry.new for entry in part)
            self._told = len(work) > len(part)
            with torch.inference_mode():
                self.model.generate(
                    ids,
                    attention_mask=mask,
                    max_new_tokens=new,
                    min_new_tokens=new,
                    do_sample=True,
                    pad_token_id=0,
                    logits_processor=[self._tell],
                    **self._extra(part),
                )
        return sum(entry.new for entry in work)

    def _tell(self, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if not self._told and self.prompts_done is not None:  # the first token's scores are known: draw it, then go on
            self.prompts_done(ids.shape[0])
        self._told = True
        return scores

    def _extra(self, part: Sequence[Work]) -> dict[str, Any]:
        del part
        return {}

    def close(self) -> None:
        """Nothing to end."""


class PeftMixed(Transformers):
    """PEFT's mixed batch: one generate call whose rows name their adapters."""

    def __init__(self, case: Case, scratch: Path) -> None:
        from peft import LoraConfig, get_peft_model

        super().__init__(case, scratch)
        config = LoraConfig(r=RANK, lora_alpha=16, target_modules="all-linear")
        model = get_peft_model(self.model, config, adapter_name="a0")
        for number in range(1, case.adapters):
            model.add_adapter(f"a{number}", config)
        fill(model, 0)
        self.model = model.eval()

    def _extra(self, part: Sequence[Work]) -> dict[str, Any]:
        return {"adapter_names": [f"a{entry.adapter}" for entry in part]}


def fill(model: torch.nn.Module, seed: int) -> None:
    """Give an adapter weights that do something, the same for a seed."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.normal_(std=0.01, generator=generator)


SYSTEMS: dict[str, Callable[[Case, Path], System]] = {
    "tinker_actors": Ours,
    "transformers": Transformers,
    "peft_mixed": PeftMixed,
    "no_prefix_cache": lambda case, scratch: Ours(case, scratch, prefix_caching=False),
}

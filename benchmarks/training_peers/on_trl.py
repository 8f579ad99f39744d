"""TRL's supervised trainer, one optimizer step a round, without gradient checkpointing."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import SFTConfig, SFTTrainer

from benchmarks.training_peers import ALPHA, LEARNING_RATE, RANK, ragged
from benchmarks.training_peers.driver import Seconds


class _Clock(TrainerCallback):
    """Times the step itself, data loading and set-up left out."""

    def __init__(self) -> None:
        self.started = self.took = (0.0, 0.0)

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self.started = (time.perf_counter(), time.process_time())

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.took = (time.perf_counter() - self.started[0], time.process_time() - self.started[1])


class System:
    """A trainer for each batch."""

    def __init__(self, model: str) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(model)
        self.model: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, attn_implementation="sdpa")
        self.trainers: dict[int, tuple[SFTTrainer, _Clock, int]] = {}

    def step_ragged(self, size: int, rows: int) -> tuple[int, Callable[[], Seconds]]:
        """A supervised step."""
        if size not in self.trainers:
            self.trainers[size] = self._trainer(size, rows)
        trainer, clock, tokens = self.trainers[size]

        def step() -> Seconds:
            trainer.train()
            return clock.took

        return tokens, step

    def _trainer(self, size: int, rows: int) -> tuple[SFTTrainer, _Clock, int]:
        sequences = ragged(size, self.model.config.vocab_size)
        data = [
            {"input_ids": one.tokens, "completion_mask": [0] * len(one.prompt) + [1] * len(one.reply)}
            for one in sequences
        ]
        config = SFTConfig(
            output_dir=tempfile.mkdtemp(),
            per_device_train_batch_size=min(rows, size),
            gradient_accumulation_steps=-(-size // rows),
            max_steps=1,
            learning_rate=LEARNING_RATE,
            gradient_checkpointing=False,
            completion_only_loss=True,
            max_length=1024,
            bf16=False,
            use_cpu=True,
            report_to="none",
            save_strategy="no",
            disable_tqdm=True,
            dataloader_pin_memory=False,
        )
        clock = _Clock()
        trainer = SFTTrainer(
            model=self.model,
            args=config,
            train_dataset=Dataset.from_list(data),
            processing_class=self.tokenizer,
            peft_config=None
            if self.trainers
            else LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules="all-linear", task_type="CAUSAL_LM"),
            callbacks=[clock],
        )
        self.model = trainer.model
        return trainer, clock, sum(len(one.tokens) for one in sequences)

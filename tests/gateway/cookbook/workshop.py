"""A folder in which the cookbook's recipes find all that they ask a hub for: a model's tokenizer, and data sets.

A name such as `openai/gsm8k` is taken from the folder of that name below the working directory, where there is one.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
MODEL = "Qwen/Qwen3-8B-Base"  # a name of the cookbook's table, with the renderer of plain text
RENDERER = "role_colon"


@dataclass(frozen=True, slots=True, kw_only=True)
class Workshop:
    """Where recipes run.

    Attributes:
        folder: The working directory.
        python: The interpreter of the environment that has the cookbook.
    """

    folder: Path
    python: Path

    @property
    def base(self) -> Path:
        """The base model's directory, which recipes take for its tokenizer only."""
        return self.folder / MODEL

    def furnish(self) -> None:
        """Make the base model, which takes a minute or two, and the data."""
        from tinker_actors.models.tiny import tokenizer_files

        tokenizer = self.folder / "tokenizer"
        tokenizer.mkdir(parents=True)
        for name, content in tokenizer_files().items():
            (tokenizer / name).write_text(content)
        self._call(self.python, HERE / "write_play.py", tokenizer, RENDERER, 300, self.folder / "play.jsonl")
        self._call(sys.executable, HERE / "warm_base.py", self.folder / "play.jsonl", self.base, 400)
        self._write_data()

    def environment(self, home: Path, *, url: str, key: str) -> Mapping[str, str]:
        """What a recipe's process is told; with a home of its own, as recipes name their logs by the minute."""
        return {
            **os.environ,
            "HOME": str(home),
            "TINKER_BASE_URL": url,
            "TINKER_API_KEY": key,
            "HF_HUB_OFFLINE": "1",
            "HF_DATASETS_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
            "OMP_NUM_THREADS": "1",
        }

    def _call(self, python: Path | str, *arguments: object) -> None:
        subprocess.run(
            [str(python), *map(str, arguments)],
            env={**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
            check=True,
            timeout=900,
        )

    def _write_data(self) -> None:
        rng = random.Random(0)
        sums = [(rng.randrange(10), rng.randrange(10)) for _ in range(64)]
        asked = [(f"What is {a} + {b}?", str(a + b), str(a + b + 1)) for a, b in sums]
        chats = [
            {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}
            for question, answer, _ in asked
        ]
        for split, rows in (("train", chats), ("test", chats[:8])):
            self._rows(f"HuggingFaceH4/no_robots/{split}.jsonl", rows)
        graded = [{"question": question, "answer": f"#### {answer}"} for question, answer, _ in asked]
        self._rows("openai/gsm8k/train.jsonl", graded)
        self._rows("openai/gsm8k/test.jsonl", graded[:8])
        card = "---\nconfigs:\n- config_name: main\n  data_files:\n  - {split: train, path: train.jsonl}\n"
        (self.folder / "openai/gsm8k/README.md").write_text(card + "  - {split: test, path: test.jsonl}\n---\n")
        pairs = [
            {key: f"\n\nHuman: {question}\n\nAssistant: {said}" for key, said in (("chosen", good), ("rejected", bad))}
            for question, good, bad in asked
        ]
        self._rows("Anthropic/hh-rlhf/train.jsonl", pairs)
        self._rows("Anthropic/hh-rlhf/test.jsonl", pairs[:8])
        self._rows("zwhe99/DeepMath-103K/train.jsonl", [{"question": question} for question, _, _ in asked])

    def _rows(self, path: str, rows: Iterable[Mapping[str, object]]) -> None:
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))

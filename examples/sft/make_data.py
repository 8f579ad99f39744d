"""Write the example's conversations: words are asked for by their place, over two turns.

    python examples/sft/make_data.py

writes train.jsonl and held.jsonl beside this file, always the same ones.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

WORDS = ("cat", "dog", "sun", "map", "tree", "book", "fish", "star", "lamp", "door")
HERE = Path(__file__).parent


def conversation(draw: random.Random) -> dict[str, object]:
    """Two or three words; first the last one is asked for, then the first one."""
    words = draw.choices(WORDS, k=draw.randint(2, 3))
    return {
        "messages": [
            {"role": "user", "content": f"last of {' '.join(words)}"},
            {"role": "assistant", "content": words[-1]},
            {"role": "user", "content": "first?"},
            {"role": "assistant", "content": words[0]},
        ]
    }


def write(path: Path, count: int, seed: int) -> None:
    """Write a file of so many conversations."""
    draw = random.Random(seed)
    path.write_text("".join(json.dumps(conversation(draw)) + "\n" for _ in range(count)))


if __name__ == "__main__":
    write(HERE / "train.jsonl", 400, seed=0)
    write(HERE / "held.jsonl", 60, seed=1)

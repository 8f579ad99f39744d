"""Data sets of reasoning-gym: `reasoning_gym:basic_arithmetic`. A question, an answer, the data set's own score."""

# pyright: reportMissingImports=false
# the package is in an environment of its own, where types aren't checked

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from tinker_actors.data import Message
from tinker_actors.environments.environment import Observation, Step
from tinker_actors.environments.libraries.library import LibraryEnvironment, required, unknown
from tinker_actors.errors import ConfigError

required("reasoning_gym", "reasoning-gym")

from reasoning_gym.factory import DATASETS, create_dataset  # noqa: E402
from reasoning_gym.utils import SYSTEM_PROMPTS, extract_answer  # noqa: E402

_SIZE = 100_000
_HELD_BACK = 10_000


class ReasoningGymEnvironment(LibraryEnvironment):
    """Asks one question of a procedural data set and scores the answer.

    The answer is what stands in the last `<answer>` and `</answer>`, or all of the text where there are none.

    Args:
        dataset: A data set, or two of them: for training and for evaluations.
        prompt: The system message: one of the library's (`default`, `direct`, `simple`, ...), or a text; none if empty.
        options: As `LibraryEnvironment` takes them.
    """

    library: ClassVar[str] = "reasoning_gym"
    reusable: ClassVar[bool] = True
    max_turns = 1

    def __init__(self, dataset: Any, *, prompt: str = "", **options: Any) -> None:
        super().__init__(**options)
        self.dataset, self.held_back = dataset if isinstance(dataset, tuple) else (dataset, dataset)
        self._prompt = SYSTEM_PROMPTS.get(prompt, prompt)

    @classmethod
    def opened(cls, target: str, arguments: Mapping[str, Any]) -> tuple[Any, Any]:
        """Two data sets of that name that have no question in common by number: the questions of a data set of `seed`
        are made of `seed` and their number, and those for evaluations begin where `size` ends.
        """
        if target not in DATASETS:
            raise unknown("reasoning_gym", target, DATASETS)
        seed, size = arguments.get("seed", 0), arguments.get("size", _SIZE)
        if not isinstance(size, int) or size < 1:
            raise ConfigError(f"option 'size' is {size!r}; how many questions there are is needed")
        rest = {key: value for key, value in arguments.items() if key not in ("seed", "size")}
        training = create_dataset(target, **rest, seed=seed, size=size)
        return training, create_dataset(target, **rest, seed=seed + size, size=_HELD_BACK)

    def reset(self, seed: int) -> Observation:
        """Ask the question of that seed."""
        dataset = self.held_back if self.evaluating else self.dataset
        self.entry: Mapping[str, Any] = dataset[self.library_seed(seed) % len(dataset)]
        question = Message(role="user", content=self.entry["question"])
        return [Message(role="system", content=self._prompt), question] if self._prompt else question

    def step(self, action: str) -> Step:
        """Score the answer."""
        found = extract_answer(action)
        dataset = self.held_back if self.evaluating else self.dataset
        score = float(dataset.score_answer(action.strip() if found is None else found, self.entry))
        return Step(reward=score, terminated=True, metrics={"solved": float(score == 1.0)})

    def demonstrate(self) -> str:
        """The answer that the data set gives, in tags."""
        return f"<answer>{self.entry['answer']}</answer>"

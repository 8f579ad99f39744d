"""Environments of tinker-cookbook: `cookbook:package.module:Builder`, where the builder is an `RLDatasetBuilder` or an
`EnvGroupBuilder`.

The cookbook's environments speak tokens, which their renderer makes of messages. What a seat sees here are those
messages, heard from the renderer as it is asked for a prompt; the run's own renderer makes tokens of them. What a seat
says goes to the environment in tokens of the environment's renderer, with its stop sequence.
"""

# pyright: reportMissingImports=false
# the package is in an environment of its own, where types aren't checked

from __future__ import annotations

import asyncio
import functools
import importlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, cast

from tinker_actors.data import Message
from tinker_actors.environments.environment import Step
from tinker_actors.environments.libraries.library import LibraryEnvironment, required
from tinker_actors.errors import ConfigError, EpisodeError

required("tinker_cookbook", "cookbook")

import tinker  # noqa: E402
from tinker_cookbook.completers import TokensWithLogprobs  # noqa: E402
from tinker_cookbook.rl.types import (  # noqa: E402
    EnvGroupBuilder,
    RLDataset,
    RLDatasetBuilder,
    StepResult,
    Trajectory,
    Transition,
)


class CookbookEnvironment(LibraryEnvironment):
    """Wraps environments of tinker-cookbook: one of a group, whose renderer is its attribute `renderer`.

    Each episode of a group makes the cookbook's group of its task and plays the first of it. The group's own rewards
    are asked for that episode alone, so that those which compare episodes have nothing to compare.

    Args:
        builder: An `EnvGroupBuilder`, whose groups are all of one task; or an `RLDatasetBuilder` or `RLDataset`.
        options: As `LibraryEnvironment` takes them.
    """

    library: ClassVar[str] = "cookbook"

    def __init__(self, builder: EnvGroupBuilder | RLDataset | RLDatasetBuilder | _Source, **options: Any) -> None:
        super().__init__(**options)
        self._source = builder if isinstance(builder, _Source) else _Source(builder)
        self._group: Any = None  # an EnvGroupBuilder, once an episode has begun

    @classmethod
    def opened(cls, target: str, arguments: Mapping[str, Any]) -> Any:
        """What the class or function at `package.module:Name` makes of the arguments."""
        return _source(target, json.dumps(arguments, sort_keys=True))

    def let_go(self) -> None:
        """Nothing has been made of the builder yet."""

    async def reset(self, seed: int) -> Any:
        """Make the group of that seed and begin its first environment's episode."""
        self._group = await self._source.group(self.library_seed(seed), self.evaluating)
        (self._env, *_) = await self._group.make_envs()
        renderer = getattr(self._env, "renderer", None)
        if renderer is None or not hasattr(renderer, "build_generation_prompt"):
            raise EpisodeError(
                f"{type(self._env).__name__} has no attribute 'renderer'; environments of tinker-cookbook that make "
                "their tokens without one can't be shown as messages"
            )
        self._ear = _Ear(renderer)
        cast("Any", self._env).renderer = self._ear
        self._read: list[Any] = []
        self._transitions: list[Transition] = []
        begun = await self._env.initial_observation()
        if not isinstance(begun, tuple):
            raise EpisodeError(f"{type(self._env).__name__} has no room for its first prompt: {begun.logs}")
        self._observation = begun[0]
        return self._new()

    async def step(self, action: str) -> Step:
        """Give the text to the environment, in its tokens."""
        tokens = self._ear.tokens(action)
        result = await self._env.step(tokens, extra={"stop_reason": "stop"})
        self._note(tokens, result)
        if not result.episode_done:
            return Step(observation=self._new(said=True), reward=result.reward, metrics=dict(result.metrics))
        final = Trajectory(transitions=self._transitions, final_ob=result.next_observation)
        ((extra, metrics),) = await self._group.compute_group_rewards([final], [self._env])
        return Step(reward=result.reward + extra, terminated=True, metrics={**result.metrics, **metrics})

    async def close(self) -> None:
        """Clean up the group."""
        if self._group is not None:
            await self._group.cleanup()

    def _note(self, tokens: list[int], result: StepResult) -> None:
        said = TokensWithLogprobs(tokens=tokens, maybe_logprobs=[0.0] * len(tokens))
        self._transitions.append(
            Transition(
                ob=self._observation,
                ac=said,
                reward=result.reward,
                episode_done=result.episode_done,
                metrics=result.metrics,
                logs=result.logs,
            )
        )
        self._observation = result.next_observation

    def _new(self, said: bool = False) -> Sequence[Message]:
        """The messages that the seat hasn't read: those behind what it has, and behind what it said itself."""
        heard = self._ear.heard
        before = len(self._read)
        rest = heard[before:]
        if heard[:before] != self._read or (said and (not rest or rest[0].get("role") != "assistant")):
            raise EpisodeError(
                f"{type(self._env).__name__} rewrote the conversation: a prompt has to begin with the one before and "
                "the answer to it"
            )
        self._read = list(heard)
        return [_message(each) for each in (rest[1:] if said else rest)]


@functools.lru_cache(maxsize=16)
def _source(target: str, arguments: str) -> _Source:
    """What a name and arguments (JSON) stand for: one for all instances of a process."""
    path, _, name = target.rpartition(":")
    make = getattr(importlib.import_module(path), name, None) if path else None
    if make is None:
        raise ConfigError(
            f"environment 'cookbook:{target}' isn't the name of a builder; package.module:Name of an "
            "EnvGroupBuilder or RLDatasetBuilder is needed"
        )
    builder = make(**json.loads(arguments))
    if not isinstance(builder, EnvGroupBuilder | RLDataset | RLDatasetBuilder):
        raise ConfigError(
            f"environment 'cookbook:{target}' makes {type(builder).__name__}; an EnvGroupBuilder, RLDataset or "
            "RLDatasetBuilder is needed"
        )
    return _Source(builder)


class _Source:
    """Groups by seed. A builder of data sets builds them once."""

    def __init__(self, builder: EnvGroupBuilder | RLDataset | RLDatasetBuilder) -> None:
        self._builder = builder
        self._built: Any = None  # the data sets for training and for tests
        self._building = asyncio.Lock()

    async def group(self, seed: int, evaluating: bool) -> EnvGroupBuilder:
        """The group of a seed; of the data set for tests, if there is one, in evaluations."""
        if isinstance(self._builder, EnvGroupBuilder):
            return self._builder
        dataset = await self._dataset(evaluating) if isinstance(self._builder, RLDatasetBuilder) else self._builder
        batch = dataset.get_batch(seed % len(dataset))
        return batch[seed // len(dataset) % len(batch)]

    async def _dataset(self, evaluating: bool) -> RLDataset:
        async with self._building:
            if self._built is None:
                self._built = await cast("RLDatasetBuilder", self._builder)()
        training, testing = self._built
        return testing if evaluating and testing is not None else training


class _Ear:
    """A renderer that hears what messages a prompt is made of, and is the environment's own in all else."""

    def __init__(self, renderer: Any) -> None:
        self._renderer = renderer
        self.heard: list[Any] = []

    def build_generation_prompt(self, messages: Sequence[Any], *args: Any, **kwargs: Any) -> tinker.ModelInput:
        """As the renderer does."""
        self.heard = list(messages)
        return self._renderer.build_generation_prompt(messages, *args, **kwargs)

    def tokens(self, text: str) -> list[int]:
        """A reply in the renderer's tokens, with its stop sequence."""
        encode = self._renderer.tokenizer.encode
        stop = next(iter(self._renderer.get_stop_sequences()), None)
        if isinstance(stop, int):
            return [*encode(text, add_special_tokens=False), stop]
        return list(encode(text + (stop or ""), add_special_tokens=False))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._renderer, name)


def _message(given: Mapping[str, Any]) -> Message:
    """A message of the cookbook: text, or parts of text and pictures."""
    role, content = given["role"], given["content"]
    if isinstance(content, str):
        return Message(role=role, content=content)
    parts: list[Any] = []
    for part in content:
        if part["type"] == "image":
            parts.append(part["image"])
        elif part["type"] in ("text", "thinking"):
            parts.append(part[part["type"]])
        else:
            raise EpisodeError(
                f"a message of tinker-cookbook has a part of type {part['type']!r}; text or image is known"
            )
    return Message.of(*parts, role=role)

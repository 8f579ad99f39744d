"""What a submitted configuration may name: nothing of it opens a file or runs code that the operator didn't allow.

A rule stands for every key whose text is more than a word: `*` is any name in a table of tables. A key of a
configuration that is neither here nor among `WORDS` fails a test, so that none is added without a thought.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, cast

from tinker_actors.environments.libraries import LIBRARIES
from tinker_actors.environments.loading import shipped_environments
from tinker_actors.gateway.jobs.uploads import PREFIX
from tinker_actors.gateway.refusals import RefusalError
from tinker_actors.models.catalogue import available_models
from tinker_actors.models.templates import NAMED_TEMPLATES
from tinker_actors.scheduler.loading import JobConfig, parse_config
from tinker_actors.scheduler.objectives import is_own
from tinker_actors.scheduler.run_folder import RunFolder

JOB_STORE = "job:"
"""What stands for the store of one of the tenant's own jobs, as in `store = "job:ID"`, or for its base model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowed:
    """What the operator allows.

    Attributes:
        models: What each served base model is called in the catalogue, or its directory, by its name.
        paths: Folders below which files may be named.
        modules: Modules, with those below them, whose code may be named; and environments of libraries, such as
            `gymnasium:FrozenLake-v1`.
    """

    models: Mapping[str, str] = field(default_factory=dict[str, str])
    paths: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()


Find = Callable[[str], Awaitable[str]]
"""The path behind a tenant's `upload:...` or `job:...`; raises `RefusalError` if there is none."""


async def vetted(config: Mapping[str, Any], allowed: Allowed, find: Find) -> JobConfig:
    """A configuration with its names resolved, if all that it names is allowed.

    Args:
        config: As it was submitted.
        allowed: By the operator.
        find: Resolves what is the tenant's own.

    Raises:
        ConfigError: It can't work.
        RefusalError: It names what isn't allowed, or isn't there.
    """
    plain = {key: value for key, value in config.items() if key != "output"}
    parsed = parse_config(plain, source="config")
    resolved = parsed.model_dump(mode="json", exclude_none=True)
    await _Vetting(allowed, find).walk(resolved, ())
    return parse_config(resolved, source="config")


class _Vetting:
    def __init__(self, allowed: Allowed, find: Find) -> None:
        self._allowed, self._find = allowed, find

    async def walk(self, table: dict[str, Any], where: tuple[str, ...]) -> None:
        for key, value in table.items():
            path = (*where, key)
            rule = RULES.get(_pattern(path))
            if rule is not None:
                table[key] = await self._apply(rule, ".".join(path), value)
            elif isinstance(value, dict) and _pattern(path) not in FREE:
                await self.walk(cast("dict[str, Any]", value), path)

    async def _apply(self, rule: str, key: str, value: Any) -> Any:
        check = getattr(self, f"_{rule}")
        if isinstance(value, list):
            return [await check(key, entry) for entry in cast("list[Any]", value)]
        return await check(key, value)

    async def _model(self, key: str, value: str) -> str:
        served = self._allowed.models
        if value.startswith(JOB_STORE) and value not in served:
            base = RunFolder(Path(await self._find(value)).parent).base
            if base.is_dir():
                return str(base)
            raise _refused(key, value, "a job with a warm-up of all weights is needed, which makes a base model")
        if value in served:
            return served[value]
        if value.partition(":")[0] in available_models():
            return value
        if _is_path(value) and (path := self._below(value)) is not None:
            return path
        raise _refused(key, value, f"one of {', '.join(sorted({*served, *available_models()}))} is needed")

    async def _template(self, key: str, value: str) -> str:
        if value not in NAMED_TEMPLATES:
            raise _refused(key, value, f"{' or '.join(NAMED_TEMPLATES)} is needed, or none for the model's own")
        return value

    async def _environment(self, key: str, value: str) -> str:
        if value in shipped_environments():
            return value
        source, colon, name = value.rpartition(":") if ":" in value else (value, "", "")
        if value.partition(":")[0] in LIBRARIES:
            if value in self._allowed.modules:
                return value
        elif _is_path(source) or source.endswith(".py"):
            if (path := self._below(source)) is not None:
                return f"{path}{colon}{name}"
        elif colon and self._is_module(source):
            return value
        raise _refused(key, value, f"one of {', '.join(shipped_environments())} is needed")

    async def _objective(self, key: str, value: str) -> str:
        if not is_own(value):
            return value
        source, _, name = value.rpartition(":")
        if not _is_public(name):
            pass
        elif source.endswith(".py"):
            if (path := self._below(source)) is not None:
                return f"{path}:{name}"
        elif self._is_module(source):
            return value
        raise _refused(key, value, "a name, or a function in code that the service allows, is needed")

    async def _function(self, key: str, value: str) -> str:
        module, colon, name = value.rpartition(":")
        if _is_public(name) and (not colon or self._is_module(module)):
            return value  # without a module it is one of the environment's own file, which is allowed
        raise _refused(key, value, "the name of a function in the environment's own file is needed")

    async def _harness(self, key: str, value: str) -> str:
        if self._is_module(value.rpartition(":")[0]):
            return value
        raise _refused(key, value, "a function of a module that the service allows is needed")

    async def _program(self, key: str, value: object) -> NoReturn:
        raise _refused(key, value, "programs are not run for submitted jobs")

    async def _service(self, key: str, value: object) -> NoReturn:
        raise _refused(key, value, "nothing is sent elsewhere in the service's name; tracking.tensorboard writes files")

    async def _player(self, key: str, value: str) -> str:
        if value == "person":
            raise _refused(key, value, "a submitted job has no terminal to ask somebody at")
        return value

    async def _backend(self, key: str, value: str) -> str:
        if value != "local":
            raise _refused(key, value, "'local' is needed")
        return value

    async def _data(self, key: str, value: str) -> str:
        if value.startswith(PREFIX):
            return await self._find(value)
        if (path := self._below(value)) is not None:
            return path
        raise _refused(key, value, "rows that you have uploaded are needed, as 'upload:...'")

    async def _store(self, key: str, value: str) -> str:
        if value.startswith(JOB_STORE):
            return await self._find(value)
        if (path := self._below(value)) is not None:
            return path
        raise _refused(key, value, "'job:ID' is needed, one of your own jobs")

    def _is_module(self, name: str) -> bool:
        return any(name == module or name.startswith(f"{module}.") for module in self._allowed.modules)

    def _below(self, text: str) -> str | None:
        """The real path that a text names, if it lies below an allowed folder."""
        plain = os.path.normpath(text)
        if "\0" in text or not any(_is_below(plain, os.path.normpath(folder)) for folder in self._allowed.paths):
            return None  # and nothing on disk was looked at
        real = os.path.realpath(plain)
        return real if any(_is_below(real, os.path.realpath(folder)) for folder in self._allowed.paths) else None


RULES: Mapping[str, str] = {
    "model.name": "model",
    "model.chat_template": "template",
    "environment.name": "environment",
    "algorithm.name": "objective",
    "algorithm.loss": "objective",
    "seats.*.player": "player",
    "seats.*.store": "store",
    "seats.*.function": "function",
    "seats.*.harness": "harness",
    "seats.*.command": "program",
    "evaluation.seats.*.player": "player",
    "evaluation.seats.*.store": "store",
    "evaluation.seats.*.function": "function",
    "evaluation.seats.*.harness": "harness",
    "evaluation.seats.*.command": "program",
    "policy.start_store": "store",
    "policies.*.start_store": "store",
    "kl.reference_store": "store",
    "sampler.backend": "backend",
    "trainer.backend": "backend",
    "data.train": "data",
    "data.evaluation": "data",
    "tracking.wandb": "service",
    "tracking.trackio": "service",
    "data.prompts": "data",
    "sampling.store": "store",
}
"""How the text of a key is checked."""

FREE = frozenset({"environment.options", "seats.*.options", "evaluation.seats.*.options"})
"""Tables of keyword arguments of code that is allowed, which takes what it takes."""

WORDS = frozenset(
    {
        "job",
        "name",
        "model.device",
        "policy.target_modules",
        "policy.start",
        "policies.*.target_modules",
        "policies.*.start",
        "policies.*.targets",
        "rollouts.stop",
        "seats.*.policy",
        "seats.*.snapshot",
        "seats.*.tool_format",
        "evaluation.seats.*.policy",
        "evaluation.seats.*.snapshot",
        "evaluation.seats.*.tool_format",
        "kl.reference",
        "tracking.name",
        "data.split",
        "sampling.snapshot",
        "sampling.policy",
        "sampling.stop",
        "data.evaluation_split",
    }
)
"""Keys whose text is a mere word: compared, or looked up among what the run itself holds."""

_TABLES = ("seats", "policies")


def _pattern(path: tuple[str, ...]) -> str:
    return ".".join("*" if place and path[place - 1] in _TABLES else key for place, key in enumerate(path))


def _is_public(name: str) -> bool:
    return name.isidentifier() and not name.startswith("_")


def _is_path(text: str) -> bool:
    return "/" in text or "\\" in text


def _is_below(path: str, folder: str) -> bool:
    return os.path.isabs(path) and os.path.isabs(folder) and Path(path).is_relative_to(folder)


def _refused(key: str, value: object, wanted: str) -> RefusalError:
    return RefusalError(
        400, f"config.{key} is {value!r}, which a submitted job may not name; {wanted}", code="not_allowed"
    )

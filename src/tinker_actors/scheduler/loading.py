"""Reading a run's configuration: TOML, dotted overrides, and errors that fit on one line."""

from __future__ import annotations

import copy
import dataclasses
import difflib
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, Union, cast, get_args, get_origin

from pydantic import BaseModel, ValidationError

from tinker_actors.errors import ConfigError
from tinker_actors.scheduler.config import RunConfig
from tinker_actors.scheduler.inference_config import InferenceConfig
from tinker_actors.scheduler.sft_config import SftConfig

Model = TypeVar("Model", bound=BaseModel)

JobConfig = RunConfig | SftConfig | InferenceConfig
"""What a job may be; the key `job` says which."""

_UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")
"""What pydantic calls a key that a section doesn't have: one that is a model, or one that is a dataclass."""

_JOBS: Mapping[str, type[JobConfig]] = {"rl": RunConfig, "sft": SftConfig, "inference": InferenceConfig}


def load_config(
    path: Path | None, overrides: Sequence[str] = (), *, defaults: Mapping[str, Any] | None = None
) -> JobConfig:
    """A run's configuration.

    Args:
        path: A TOML file, or None for defaults alone.
        overrides: `--section.key value` or `--section.key=value`, dashes or underscores, as on the command line.
        defaults: Values that the file and the overrides are laid over.

    Raises:
        ConfigError: One line that names the key, the value seen and what would be right.
    """
    data = read_config(path, overrides, defaults=defaults)
    return parse_config(data, source=str(path) if path else "the command line")


def read_config(
    path: Path | None, overrides: Sequence[str] = (), *, defaults: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """A run's configuration as plain data, not yet checked; as `load_config`.

    Raises:
        ConfigError: The file can't be read, or an override isn't one.
    """
    data: dict[str, Any] = {}
    _merge(data, defaults or {})
    if path is not None:
        _merge(data, read_toml(path))
    for keys, value in _parse_overrides(overrides):
        _merge(data, _nested(keys, value))
    return data


def parse_config(data: Mapping[str, Any], *, source: str) -> JobConfig:
    """Check plain data against the configuration of the job that it names, `rl` if it names none.

    Raises:
        ConfigError: As `load_config`.
    """
    job = data.get("job", "rl")
    model = _JOBS.get(job) if isinstance(job, str) else None
    if model is None:
        raise ConfigError(f"{source}: job is {job!r}; one of {', '.join(_JOBS)} is needed")
    return validated(model, data, source=source)


def validated(model: type[Model], data: Mapping[str, Any], *, source: str) -> Model:
    """Check plain data against a model of sections.

    Raises:
        ConfigError: As `load_config`.
    """
    try:
        return model.model_validate(data)
    except ValidationError as error:
        # an unknown key first: it may be why another is missing, as a forgotten `job` is
        details = sorted(error.errors(), key=lambda detail: detail["type"] not in _UNKNOWN)
        lines = [_describe(dict(detail), model) for detail in details]
        more = f" (and {len(lines) - 1} more)" if len(lines) > 1 else ""
        raise ConfigError(f"{source}: {lines[0]}{more}") from None


def read_toml(path: Path) -> dict[str, Any]:
    """The plain data of a TOML file.

    Raises:
        ConfigError: It isn't there, can't be read, or is not TOML.
    """
    try:
        return tomllib.loads(path.read_text())
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from None
    except OSError as error:
        raise ConfigError(f"{path}: can't be read: {error.strerror}") from None


def _parse_overrides(arguments: Sequence[str]) -> list[tuple[list[str], Any]]:
    pairs: list[tuple[list[str], Any]] = []
    position = 0
    while position < len(arguments):
        flag = arguments[position]
        if not flag.startswith("--") or len(flag) < 3:
            raise ConfigError(f"argument {flag!r} is not understood; overrides look like --trainer.learning-rate 1e-4")
        name, separator, text = flag[2:].partition("=")
        position += 1
        if not separator:
            if position == len(arguments):
                raise ConfigError(f"{flag} has no value; overrides look like --trainer.learning-rate 1e-4")
            text = arguments[position]
            position += 1
        pairs.append((name.replace("-", "_").split("."), parse_value(text)))
    return pairs


def parse_value(text: str) -> Any:
    """A TOML value where the text is one, else the text itself."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _nested(keys: Sequence[str], value: Any) -> dict[str, Any]:
    for key in reversed(keys):
        value = {key: value}
    return cast("dict[str, Any]", value)


def _merge(target: dict[str, Any], source: Mapping[str, Any]) -> None:
    for key, value in source.items():
        present = target.get(key)
        if isinstance(present, dict) and isinstance(value, Mapping):
            _merge(cast("dict[str, Any]", present), cast("Mapping[str, Any]", value))
        else:
            target[key] = copy.deepcopy(value)


def _describe(detail: Mapping[str, Any], model: type[BaseModel]) -> str:
    location = [str(part) for part in detail["loc"]]
    key, value = ".".join(location), detail["input"]
    if detail["type"] in _UNKNOWN:
        return f"unknown key {key}; {_hint(location, model)}"
    if detail["type"] == "missing":
        return f"{key} is missing"
    if detail["type"] in ("model_type", "dict_type", "dataclass_type"):
        own = ", ".join(_known_keys(model, location)) or "any"
        return f"{key} is {value!r}; a section is needed, with keys of its own: {own}"
    if detail["type"] == "tuple_type":
        return f"{key} is {value!r}; a list is needed"
    message = str(detail["msg"]).removeprefix("Value error, ")
    if not location:
        return message
    if isinstance(value, Mapping):  # a section refused for how its keys go together: it names them itself
        return f"{key}.{message}"
    return f"{key} is {value!r}; {message[0].lower()}{message[1:]}"


def _hint(location: Sequence[str], model: type[BaseModel]) -> str:
    known = _known_keys(model, location[:-1])
    if close := difflib.get_close_matches(location[-1], known, n=1):
        return f"did you mean {'.'.join([*location[:-1], close[0]])}?"
    text = f"known here: {', '.join(known)}"
    for job, other in _JOBS.items() if issubclass(model, JobConfig) else ():
        if other is not model and location[-1] in _known_keys(other, location[:-1]):
            return f'that is a key of job = "{job}"; {text}'
    return text


def _known_keys(model: type[BaseModel], location: Sequence[str]) -> list[str]:
    left = list(location)
    while left:
        part = left.pop(0)
        annotation = _section_of(model.model_fields[part].annotation) if part in model.model_fields else None
        if get_origin(annotation) is dict and left:  # tables of one kind, by names of the user's
            left.pop(0)
            annotation = get_args(annotation)[1]
        if dataclasses.is_dataclass(annotation) and not left:
            return sorted(field.name for field in dataclasses.fields(annotation))
        if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
            return []
        model = annotation
    return sorted(model.model_fields)


def _section_of(annotation: Any) -> Any:
    """What a key holds, whether or not it may be left out."""
    held = [each for each in get_args(annotation) if each is not type(None)]
    return held[0] if get_origin(annotation) in (Union, UnionType) and len(held) == 1 else annotation

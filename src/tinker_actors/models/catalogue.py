"""One catalogue from a model's name to its weights, tokenizer and chat template."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tinker_actors.errors import ModelError, ModelNotFoundError
from tinker_actors.models import smollm2, tiny, tiny_vision
from tinker_actors.models.tokenizer import Tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedModel

DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """What a name resolves to. Nothing heavy is loaded until `load`.

    Attributes:
        name: The canonical name: the same for every spelling of the same weights.
        tokenizer_path: A folder with tokenizer.json, tokenizer_config.json and, where the model has one, its template.
        chat_template: The model's chat template (Jinja), or None.
        loader: Makes the model in the dtype named; a fresh object on each call.
        outliner: Makes it without weights, on torch's meta device; None where `loader` reads no weights either.
    """

    name: str
    tokenizer_path: Path
    chat_template: str | None
    loader: Callable[[str], PreTrainedModel] = field(repr=False)
    outliner: Callable[[], PreTrainedModel] | None = field(default=None, repr=False)

    def load(self, dtype: str = "float32") -> PreTrainedModel:
        """A fresh transformers model. Most callers want `load_base`, which holds weights once per process.

        Raises:
            ModelError: The dtype is unknown or the weights can't be loaded.
        """
        if dtype not in DTYPES:
            raise ModelError(f"unknown dtype {dtype!r}; one of {', '.join(DTYPES)} is needed")
        return self.loader(dtype)

    def outline(self) -> PreTrainedModel:
        """A model of the same configuration and modules, to be looked at: its weights aren't read.

        Raises:
            ModelError: The configuration can't be read.
        """
        return self.loader("float32") if self.outliner is None else self.outliner()


_registered: dict[str, Callable[[str], ModelSpec]] = {}


def register_model(name: str, builder: Callable[[str], ModelSpec]) -> None:
    """Add a model of one's own under `name`, in this process.

    Nodes are processes of their own: register in a module that each of them imports.

    Args:
        name: The name, without options; `name:anything` reaches the same builder.
        builder: Given the whole name asked for, options included, returns the spec.

    Raises:
        ModelError: The name is taken or holds a colon or a slash.
    """
    if name in _registered or name in _SHIPPED:
        raise ModelError(f"the model name {name!r} is taken")
    if not name or ":" in name or "/" in name:
        raise ModelError(f"bad model name {name!r}: it may hold neither ':' (options) nor '/' (paths and hub ids)")
    _registered[name] = builder


def available_models() -> tuple[str, ...]:
    """Names that the catalogue knows by itself; directories and hub ids come on top."""
    return (*_SHIPPED, *sorted(_registered))


def resolve(name: str, *, seed: int | None = None) -> ModelSpec:
    """Resolve a model's name.

    Args:
        name: A name of the catalogue (`tiny-llama`, `tiny-qwen3:seed=3`, `smollm2-135m`), a registered one, a
            directory with config.json, tokenizer.json and safetensors weights, or a hub id (`organisation/name`).
        seed: Seed of a tiny model's weights, instead of writing it in the name.

    Raises:
        ModelNotFoundError: Nothing has this name; says what was tried.
        ModelError: The name is known but its options are wrong.
    """
    if seed is not None:
        name = f"{name}{',' if ':' in name else ':'}seed={seed}"
    stem = name.partition(":")[0]
    if stem in _SHIPPED:
        return _SHIPPED[stem](name)
    if stem in _registered:
        return _registered[stem](name)
    tried = [f"the catalogue: it holds {', '.join(available_models())}"]
    if Path(name).expanduser().is_dir():
        return directory_spec(name)
    tried.append(f"a directory: {Path(name).expanduser().absolute()} does not exist")
    spec, why = _from_hub(name)
    if spec is not None:
        return spec
    close = difflib.get_close_matches(stem, available_models(), n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    raise ModelNotFoundError(f"no model {name!r}{hint or '.'} Tried " + "; ".join([*tried, why]))


def load_tokenizer(name: str) -> Tokenizer:
    """The tokenizer of a model, without torch or transformers. Read once per process; tokenizers do not change.

    Raises:
        ModelNotFoundError: Nothing has this name.
    """
    folder = resolve(name).tokenizer_path
    written = (folder / "tokenizer.json").stat().st_mtime_ns  # a directory written anew is read anew
    return _read_tokenizer(folder, written)


@functools.lru_cache(maxsize=16)
def _read_tokenizer(folder: Path, _written: int) -> Tokenizer:
    return Tokenizer.from_directory(folder)


def directory_spec(path: str | Path, *, name: str | None = None) -> ModelSpec:
    """The spec of a local model directory.

    Args:
        path: A folder with config.json, tokenizer.json and safetensors weights.
        name: The canonical name; the absolute path if not given.

    Raises:
        ModelNotFoundError: The folder lacks something that a model needs.
    """
    from tinker_actors.models.tokenizer import read_chat_template

    folder = Path(path).expanduser().resolve()
    missing = [part for part in ("config.json", "tokenizer.json") if not (folder / part).is_file()]
    if not any(folder.glob("*.safetensors")):
        missing.append("*.safetensors")
    if missing:
        raise ModelNotFoundError(f"{folder} is not a model directory: it lacks {', '.join(missing)}")
    return ModelSpec(
        name=name or str(folder),
        tokenizer_path=folder,
        chat_template=read_chat_template(folder),
        loader=functools.partial(_load_directory, folder),
        outliner=functools.partial(_outline_directory, folder),
    )


def _load_directory(folder: Path, dtype: str) -> PreTrainedModel:
    from tinker_actors.models.base import load_directory

    return load_directory(folder, dtype)


def _outline_directory(folder: Path) -> PreTrainedModel:
    from tinker_actors.models.base import outline_directory

    return outline_directory(folder)


def _tiny_spec(architecture: str, name: str) -> ModelSpec:
    shape = tiny.TinyShape.parse(name.partition(":")[2])
    options = shape.format()
    return ModelSpec(
        name=f"tiny-{architecture}:{options}" if options else f"tiny-{architecture}",
        tokenizer_path=tiny.tokenizer_directory(),
        chat_template=tiny.CHAT_TEMPLATE,
        loader=functools.partial(tiny.build, architecture, shape),
    )


def _tiny_vision_spec(architecture: str, name: str) -> ModelSpec:
    shape = tiny_vision.TinyVisionShape.parse(name.partition(":")[2])
    options = shape.format()
    return ModelSpec(
        name=f"tiny-{architecture}:{options}" if options else f"tiny-{architecture}",
        tokenizer_path=tiny_vision.processor_directory(architecture),
        chat_template=tiny_vision.CHAT_TEMPLATE,
        loader=functools.partial(tiny_vision.build, architecture, shape),
    )


def _smollm2_spec(name: str) -> ModelSpec:
    if name != smollm2.NAME:
        raise ModelError(f"{smollm2.NAME} takes no options, got {name!r}")
    folder = smollm2.directory()
    if not folder.is_dir():
        raise ModelNotFoundError(
            f"{smollm2.NAME} has not been fetched to {folder} yet; run: tinker-actors models fetch {smollm2.NAME}"
        )
    return directory_spec(folder, name=smollm2.NAME)


def _from_hub(name: str) -> tuple[ModelSpec | None, str]:
    from tinker_actors.models.hub import find

    return find(name)


_SHIPPED: dict[str, Callable[[str], ModelSpec]] = {
    "tiny-llama": functools.partial(_tiny_spec, "llama"),
    "tiny-qwen3": functools.partial(_tiny_spec, "qwen3"),
    **{f"tiny-{name}": functools.partial(_tiny_vision_spec, name) for name in tiny_vision.MODEL_TYPES},
    smollm2.NAME: _smollm2_spec,
}

"""Base models: loaded once per process and dtype, frozen, and lent out as skeletons that share the weights."""

from __future__ import annotations

import contextlib
import copy
import logging
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from tinker_actors.errors import ModelError
from tinker_actors.models.cache import build_directory
from tinker_actors.models.catalogue import ModelSpec, resolve
from tinker_actors.models.images import read_image_rule
from tinker_actors.models.vision import Vision

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

logger = logging.getLogger(__name__)

# below this many parameters a second computing thread costs more than it brings
_SMALL = 10_000_000

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "preprocessor_config.json",
    "processor_config.json",
    "video_preprocessor_config.json",
)


class BaseModel:
    """Frozen weights, held once per process.

    Attributes:
        spec: What the model was resolved from.
        dtype: The weights' dtype by name.
        device: Where the weights are.
        vision: How the model takes images; None if it reads none.
        model: The model itself: evaluation mode, no gradients. Treat it as read-only; take a `skeleton` to change
            modules.
        shared: Whether others in the process have it too. If not, whoever loaded it may change `model` itself.
    """

    def __init__(self, spec: ModelSpec, dtype: str, model: PreTrainedModel, *, shared: bool = True) -> None:
        self.spec, self.dtype, self.shared = spec, dtype, shared
        self.device = next(model.parameters()).device
        self.model = model.eval().requires_grad_(False)
        self.vision = Vision.read(spec.tokenizer_path)
        self._parameters = model.num_parameters()  # counted now: whoever has it alone may give up some

    @property
    def name(self) -> str:
        """The canonical name."""
        return self.spec.name

    @property
    def config(self) -> PretrainedConfig:
        """The transformers configuration."""
        return self.model.config

    @property
    def text_config(self) -> PretrainedConfig:
        """The part of the configuration that describes the language model; all of it if there is nothing else."""
        return self.config.get_text_config()

    @property
    def vocab_size(self) -> int:
        """Length of a row of logits."""
        return int(self.text_config.vocab_size)

    @property
    def context_length(self) -> int:
        """Longest sequence in tokens that the model was made for."""
        return context_length_of(self.model)

    def threads(self, asked: int | None) -> int | None:
        """How many threads compute it: as asked, else 1 for fewer than ten million parameters; None for torch's own."""
        return 1 if asked is None and self._parameters < _SMALL else asked

    def skeleton(self) -> PreTrainedModel:
        """A fresh module tree over the same weights.

        Modules and parameter objects are new, so layers may be injected and replaced without anyone else seeing it;
        the storage is the base's own. Writing to a base parameter in place would therefore change it for all.

        Raises:
            ModelError: The base is not shared: its one user may have changed it.
        """
        if not self.shared:
            raise ModelError(f"this {self.name} is its user's own and has no skeletons; take `load_base` to share one")
        memo: dict[int, Any] = {}
        for parameter in self.model.parameters():
            memo[id(parameter)] = nn.Parameter(parameter.detach(), requires_grad=False)
        for buffer in self.model.buffers():
            memo[id(buffer)] = buffer.detach()
        return copy.deepcopy(self.model, memo)

    def release(self) -> None:
        """Forget the model: the next `load_base` loads anew; memory is free once its skeletons are gone."""
        release_base(self.spec.name, self.dtype, str(self.device))


def context_length_of(model: PreTrainedModel) -> int:
    """Longest sequence in tokens that a model was made for."""
    return int(model.config.get_text_config().max_position_embeddings)


_bases: dict[tuple[str, str, str], BaseModel] = {}
_lock = threading.RLock()


def load_base(name: str, dtype: str = "float32", device: str = "cpu") -> BaseModel:
    """The base model of this name, loaded on the first call in this process, once for each dtype and device.

    Raises:
        ModelNotFoundError: Nothing has this name.
        ModelError: The dtype is unknown, the device isn't there, or the weights can't be loaded.
    """
    with _lock:  # a second caller waits for the first one's load instead of loading again
        spec, place = resolve(name), device_of(device)
        key = (spec.name, dtype, str(place))
        if key not in _bases:
            _bases[key] = BaseModel(spec, dtype, _loaded(spec, dtype, place))
            logger.info("loaded %s in %s on %s", spec.name, dtype, place)
        return _bases[key]


def load_own_base(name: str, dtype: str = "float32", device: str = "cpu") -> BaseModel:
    """A base model that nobody else gets, for one who gives up weights that it needs no more.

    Where the process has loaded this base already, it is that one, and shared: a copy would take more memory.

    Raises:
        ModelNotFoundError: Nothing has this name.
        ModelError: The dtype is unknown, the device isn't there, or the weights can't be loaded.
    """
    spec, place = resolve(name), device_of(device)
    with _lock:
        held = _bases.get((spec.name, dtype, str(place)))
    return held or BaseModel(spec, dtype, _loaded(spec, dtype, place), shared=False)


def device_of(name: str) -> torch.device:
    """The device of this name, with its number where there may be several of its kind.

    Raises:
        ModelError: There is no such device here.
    """
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ModelError(f"device is {name!r}; 'cpu', 'cuda' or a GPU by its number, 'cuda:1', is needed") from None
    if device.type == "cuda":
        count = torch.cuda.device_count()
        if (device.index or 0) >= count:
            raise ModelError(f"device is {name!r}; torch finds {count} GPUs here")
        return torch.device("cuda", torch.cuda.current_device() if device.index is None else device.index)
    return device


def _loaded(spec: ModelSpec, dtype: str, device: torch.device) -> PreTrainedModel:
    with torch.inference_mode(False):  # whatever its first caller does with it, others may train on it
        model = spec.load(dtype)
        model.to(device)  # pyright: ignore[reportArgumentType] - a wrapper hides what it takes
    return model


def release_base(name: str, dtype: str | None = None, device: str | None = None) -> None:
    """Forget a base model, by its canonical name; of one dtype and device or of all. Nothing happens without one."""
    with _lock:
        for key in [key for key in _bases if key[0] == name and dtype in (None, key[1]) and device in (None, key[2])]:
            del _bases[key]


def load_directory(folder: Path, dtype: str) -> PreTrainedModel:
    """Load a transformers directory.

    Raises:
        ModelError: The files can't be loaded, or weights are missing.
    """
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    kind = AutoModelForCausalLM if read_image_rule(folder) is None else AutoModelForImageTextToText
    with quiet_transformers():
        try:
            # with output_loading_info it returns a pair, which its annotation does not say
            loaded: Any = kind.from_pretrained(
                folder,
                dtype=getattr(torch, dtype),
                local_files_only=True,
                output_loading_info=True,
            )
        except (OSError, ValueError, KeyError, RuntimeError) as error:
            raise ModelError(f"{folder} can't be loaded as a language model: {error}") from error
    model, report = loaded
    if missing := sorted(report["missing_keys"]):
        raise ModelError(f"{folder} lacks weights for {len(missing)} parameters, the first is {missing[0]}")
    return model


def outline_directory(folder: Path) -> PreTrainedModel:
    """The modules of a transformers directory without their weights, on torch's meta device.

    Raises:
        ModelError: The configuration can't be read.
    """
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

    kind = AutoModelForCausalLM if read_image_rule(folder) is None else AutoModelForImageTextToText
    with quiet_transformers(), torch.device("meta"):
        try:
            return kind.from_config(AutoConfig.from_pretrained(folder, local_files_only=True))
        except (OSError, ValueError, KeyError, RuntimeError) as error:
            raise ModelError(f"{folder} can't be loaded as a language model: {error}") from error


def save_model_directory(model: PreTrainedModel, tokenizer: str | Path, path: str | Path) -> Path:
    """Write weights, tokenizer and chat template as a plain transformers directory, whole or not at all.

    Args:
        model: The model to write; no LoRA layers in it.
        tokenizer: A model's name or a folder that holds the tokenizer's files.
        path: The directory to make.

    Raises:
        ModelError: `path` exists, or the tokenizer's files do not.
    """
    target = Path(path)
    if target.exists():
        raise ModelError(f"{target} exists already; a new directory is needed")
    source = Path(tokenizer) if Path(tokenizer).is_dir() else resolve(str(tokenizer)).tokenizer_path
    if not (source / "tokenizer.json").is_file():
        raise ModelError(f"{source} has no tokenizer.json to copy")

    def fill(folder: Path) -> None:
        with quiet_transformers():
            model.save_pretrained(folder)
        for name in TOKENIZER_FILES:
            if (source / name).is_file():
                shutil.copyfile(source / name, folder / name)

    return build_directory(target, fill)


@contextlib.contextmanager
def quiet_transformers() -> Iterator[None]:
    """Keep transformers' progress bars and notices off the terminal for a while; its settings come back after."""
    from transformers.utils import logging as notices

    verbosity, bars = notices.get_verbosity(), notices.is_progress_bar_enabled()
    notices.set_verbosity_error()
    notices.disable_progress_bar()
    try:
        yield
    finally:
        notices.set_verbosity(verbosity)
        if bars:
            notices.enable_progress_bar()

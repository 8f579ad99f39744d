"""On what a base model computes, as configurations name it."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator

from tinker_actors.errors import ConfigError, ModelError

_CPU, _GPU = "cpu", "cuda"


def _form(name: str) -> str:
    kind, colon, number = name.partition(":")
    if name == _CPU or (kind == _GPU and (number.isascii() and number.isdigit()) == bool(colon)):
        return name
    raise ValueError("'cpu', 'cuda' or a GPU by its number, 'cuda:1', is needed")


DeviceName = Annotated[str, AfterValidator(_form)]
"""`cpu`, `cuda` or `cuda:N`; whether it is there is for `check_device` to say."""


def check_device(key: str, name: str) -> None:
    """Refuse a device that isn't here.

    Raises:
        ConfigError: Names the key, the device and what there is.
    """
    if name == _CPU:  # and torch needn't be loaded
        return
    from tinker_actors.models.base import device_of

    try:
        device_of(name)
    except ModelError as error:
        import torch

        found = [f"cuda:{number} ({torch.cuda.get_device_name(number)})" for number in range(torch.cuda.device_count())]
        raise ConfigError(f"{key}: {error}; there is {', '.join([_CPU, *found])}") from None

"""What an argument must be. Every refusal names it, the value seen and what would be right."""

from __future__ import annotations

import math
import numbers
from typing import Any

from tinker_actors.errors import ConfigError

LONGEST_NAME = 512  # characters


def check_seconds(
    name: str, value: Any, *, least: float | None = None, above: float | None = None, otherwise: str = ""
) -> None:
    """Refuse what is no finite number of seconds, or one below `least`, or not above `above`.

    `otherwise` says what the argument may be instead.

    Raises:
        ConfigError: naming the argument.
    """
    is_number = value.__class__ is float or value.__class__ is int  # as nearly all are
    if (
        (not is_number and (isinstance(value, bool) or not isinstance(value, numbers.Real)))
        or not math.isfinite(value)
        or (least is not None and value < least)
        or (above is not None and value <= above)
    ):
        bound = "" if least is None else f", {least:g} or more"
        bound = bound if above is None else f" above {above:g}"
        raise ConfigError(f"{name} is a finite number of seconds{bound}{otherwise}; got {_shown(value)}")


def check_count(name: str, value: Any, least: int, most: int | None = None) -> None:
    """Refuse what is no whole number from `least` on, up to `most`.

    Raises:
        ConfigError: naming the argument.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < least or (most is not None and value > most):
        bound = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise ConfigError(f"{name} is a whole number {bound}; got {_shown(value)}")


def check_index(name: str, value: Any) -> None:
    """Refuse what is no whole number.

    Raises:
        ConfigError: naming the argument.
    """
    if not isinstance(value, int) or isinstance(value, bool):
        raise ConfigError(f"{name} is the index of a node, a whole number; got {_shown(value)}")


def check_name(name: str, value: Any) -> None:
    """Refuse what could not be shown as a name in a line of a log or a table.

    Raises:
        ConfigError: naming the argument.
    """
    if not isinstance(value, str) or not 0 < len(value) <= LONGEST_NAME or not value.isprintable():
        raise ConfigError(f"{name} is 1 to {LONGEST_NAME} printable characters; got {_shown(value)}")


def check_type(name: str, value: Any, kind: type, what: str) -> None:
    """Refuse what is not a `kind`, which `what` calls by its name.

    Raises:
        ConfigError: naming the argument.
    """
    if not isinstance(value, kind):
        raise ConfigError(f"{name} is {what}; got {_shown(value)}")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:80]}... ({len(text)} characters)"

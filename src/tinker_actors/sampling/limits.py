"""How much an engine does at a time. Loads no torch."""

from __future__ import annotations

from dataclasses import dataclass

from tinker_actors.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLimits:
    """What an engine may compute, hold and let wait.

    Attributes:
        max_batch: Samples that run at once at most.
        max_step_tokens: Tokens of a step at most, unless more samples draw.
        max_waiting: Samples that may wait; a request beyond them is refused with `Overloaded`.
        kv_memory: Bytes for keys and values, running and cached.
        prefix_caching: Whether finished sequences stay, as memory allows, for prompts that go on from them.

    Raises:
        ConfigError: A number is not positive.
    """

    max_batch: int = 256
    max_step_tokens: int = 512
    max_waiting: int = 65_536
    kv_memory: int = 2**30
    prefix_caching: bool = True

    def __post_init__(self) -> None:
        for name in ("max_batch", "max_step_tokens", "max_waiting", "kv_memory"):
            check_positive(name, getattr(self, name))


def check_positive(name: str, value: int | None) -> None:
    """Refuse a number below 1; None stands for no number.

    Raises:
        ConfigError: It is one.
    """
    if value is not None and value < 1:
        raise ConfigError(f"{name} is {value}; an integer >= 1 is needed")

"""How many policies a trainer keeps in memory. Loads no torch."""

from __future__ import annotations

from dataclasses import dataclass

from tinker_actors.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Residency:
    """What the policies of a trainer may hold in memory; the ones used least recently go to disk until they are used.

    The policies of the call under way are in memory, whatever the limits.

    Attributes:
        policies: Most policies in memory; None for any number.
        bytes: Most bytes of weights, moments and pending gradients in memory; None for any number.
        folder: Where the others' state lies, in files without a name, which end with the process; None for the
            system's temporary folder. A folder that is memory itself frees none.
    """

    policies: int | None = None
    bytes: int | None = None
    folder: str | None = None

    def __post_init__(self) -> None:
        for name, value in (("policies", self.policies), ("bytes", self.bytes)):
            if value is not None and value < 1:
                raise ConfigError(f"resident {name} is {value}; an integer of at least 1 or None is needed")

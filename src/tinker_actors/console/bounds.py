"""Numbers of options, refused by the option's name where they can't be meant."""

from __future__ import annotations

from tinker_actors.errors import ConfigError


def check_number(option: str, given: int | None, *, least: int, most: int | None = None) -> None:
    """Refuse what is out of bounds; an option that wasn't given is None.

    Raises:
        ConfigError: Names the option, the number and what would be right.
    """
    if given is None or (least <= given and (most is None or given <= most)):
        return
    right = f"at least {least}" if most is None else f"from {least} to {most}"
    raise ConfigError(f"{option} is {given}; {right} is needed")

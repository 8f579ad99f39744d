"""A request's JSON object."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, cast

import orjson

from tinker_actors.environments.openai.errors import ApiError, shortened

MAX_STOPS = 16
"""Stop strings of a request."""


class Body:
    """A request's JSON object, field by field; a field of a wrong type is refused by name."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self._fields = fields

    @classmethod
    def read(cls, data: bytes) -> Body:
        """The body of a request.

        Raises:
            ApiError: It is no JSON object.
        """
        try:
            value = orjson.loads(data)  # takes neither NaN nor half a character
        except ValueError as error:
            raise ApiError(f"the body is not JSON that can be read: {error}") from None
        if not isinstance(value, dict):
            raise ApiError(f"the body is a JSON {type(value).__name__}; an object is needed")
        return cls(cast("dict[str, Any]", value))

    def get(self, name: str, *kinds: type, needed: str) -> Any:
        """A field, or None where it is null or not there.

        Raises:
            ApiError: It is of another type.
        """
        value = self._fields.get(name)
        if value is None:
            return None
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise ApiError(f"{name} is {shortened(value)}; {needed} is needed", param=name)
        return value

    def whole(self, name: str, *, least: int, most: int | None = None) -> int | None:
        """A whole number in [least, most]."""
        needed = f"an integer >= {least}" if most is None else f"an integer from {least} to {most}"
        value = self.get(name, int, needed=needed)
        if value is not None and (value < least or (most is not None and value > most)):
            raise ApiError(f"{name} is {value}; {needed} is needed", param=name)
        return value

    def number(self, name: str, least: float, most: float) -> float | None:
        """A number in [least, most]."""
        value = self.get(name, int, float, needed="a number")
        if value is not None and not least <= value <= most:
            raise ApiError(f"{name} is {value}; a number from {least:g} to {most:g} is needed", param=name)
        return value

    def flag(self, name: str) -> bool | None:
        """True or false."""
        return self.get(name, bool, needed="true or false")

    def only(self, name: str, *values: Any, reason: str) -> None:
        """Refuse a field that isn't left out and has none of these values, which change nothing."""
        value = self._fields.get(name)
        if value is not None and value not in values:
            allowed = ", ".join(json.dumps(entry) for entry in values)
            raise ApiError(
                f"{name} is {shortened(value)}, which is not served: {reason}; leave it out"
                + (f" or give {allowed}" if values else ""),
                param=name,
                code="unsupported_parameter",
            )

    def stops(self) -> tuple[str | int, ...]:
        """The strings of `stop` and the ids of `stop_token_ids`."""
        given = self.get("stop", str, list, needed="a string or a list of strings")
        texts: list[Any] = [given] if isinstance(given, str) else given or []
        if len(texts) > MAX_STOPS or not all(isinstance(text, str) and text for text in texts):
            raise ApiError(
                f"stop is {shortened(texts)}; at most {MAX_STOPS} strings that are not empty are needed", param="stop"
            )
        tokens = self.get("stop_token_ids", list, needed="a list of token ids") or []
        if not all(type(token) is int and token >= 0 for token in tokens):
            raise ApiError(f"stop_token_ids is {shortened(tokens)}; token ids are needed", param="stop_token_ids")
        return (*texts, *tokens)

    def biases(self) -> tuple[tuple[int, float], ...]:
        """The pairs of `logit_bias`."""
        given = self.get("logit_bias", dict, needed="an object of numbers by token id") or {}
        found: list[tuple[int, float]] = []
        for token, bias in given.items():
            if not (isinstance(token, str) and token.isdecimal() and len(token) < 10) or (
                not isinstance(bias, int | float) or isinstance(bias, bool) or not -100 <= bias <= 100
            ):
                raise ApiError(
                    f"logit_bias has {shortened(token)}: {shortened(bias)}; a token id and a number from -100 to 100 "
                    "are needed",
                    param="logit_bias",
                )
            found.append((int(token), float(bias)))
        return tuple(found)

    def refuse_others(self, known: Iterable[str]) -> None:
        """Refuse fields that would change the answer in a way that nobody here knows."""
        for name, value in self._fields.items():
            if name not in known and value is not None and value not in ({}, []):
                raise ApiError(
                    f"{name} is {shortened(value)}, but there is no such field here; leave it out",
                    param=name,
                    code="unsupported_parameter",
                )

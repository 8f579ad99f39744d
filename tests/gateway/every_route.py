"""Every route of a gateway's application, and a request for each made of nothing but its own schema.

A route that is new is found by itself. Ids are recognised by the names of their fields.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI
from fastapi.routing import iter_route_contexts
from pydantic import TypeAdapter
from starlette.routing import Route as PlainRoute

from tinker_actors.gateway.caller import Needs
from tinker_actors.gateway.gate import is_open
from tinker_actors.gateway.scopes import SCOPES, Scope

ANY_KEY = frozenset({"/openapi.json", "/api/v1/auth/apikey/me", "/api/v1/auth/token"})
"""What whoever has a key may ask, whatever its scopes: it tells of the routes or the key, and of nobody's data."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A request to be made of a route.

    Attributes:
        method: Its method.
        path: Its path, filled in.
        body: JSON data; None for a body of another kind, or none.
        content: That body.
        headers: Of it.
        query: Parameters.
    """

    method: str
    path: str
    body: Any = None
    content: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Route:
    """A route, and what it says of itself.

    Attributes:
        method: Its method.
        path: Its template.
        needs: For each `needs` on it, the scopes of which one is enough.
        parameters: Names in the path.
        body: The type of its JSON body, if it has one.
    """

    method: str
    path: str
    needs: tuple[frozenset[Scope], ...]
    parameters: tuple[str, ...]
    body: Any = None

    @property
    def name(self) -> str:
        """As a test is named after it."""
        return f"{self.method} {self.path}"

    @property
    def is_open(self) -> bool:
        """Whether anybody may ask it."""
        return is_open(self.path)

    @property
    def lacking(self) -> Scope | None:
        """A scope that isn't enough; None if there is none."""
        return next((scope for scope in sorted(SCOPES - {"admin"}) if any(scope not in n for n in self.needs)), None)

    def asked(self, values: Mapping[str, Any], bodies: Mapping[str, Any]) -> Asked:
        """A request with these ids.

        Args:
            values: By the name of a field or parameter.
            bodies: By the route's name: parts of its body that its schema doesn't tell, or `Asked` fields.
        """
        path = self.path
        for parameter in self.parameters:
            assert parameter in values, f"{self.name}: say in `values` what {parameter!r} is, to ask it with"
            for form in ("{%s}", "{%s:path}"):
                path = path.replace(form % parameter, str(values[parameter]))
        special = bodies.get(self.name, {})
        if callable(special):
            return special(self.method, path, values)
        body = None if self.body is None else {**_filled(TypeAdapter(self.body).json_schema(), values), **special}
        return Asked(method=self.method, path=path, body=body)


def every_route(app: FastAPI) -> list[Route]:
    """All routes of an application, each once for each method."""
    return list(_walk(app))


def _walk(app: FastAPI) -> Iterator[Route]:
    for context in iter_route_contexts(app.routes):
        dependant = getattr(context, "dependant", None)
        if dependant is None:
            assert isinstance(context.route, PlainRoute), f"{context.path}: nothing looks behind a mount"
            yield Route(method="GET", path=str(context.path), needs=(), parameters=())
            continue
        body = next((found.field_info.annotation for found in dependant.body_params), None)
        for method in sorted((context.methods or set()) - {"HEAD"}):
            yield Route(
                method=method,
                path=str(context.path),
                needs=tuple(_needs(dependant)),
                parameters=tuple(re.findall(r"{(\w+)", str(context.path))),
                body=body,
            )


def _needs(dependant: Any) -> Iterator[frozenset[Scope]]:
    if isinstance(dependant.call, Needs):
        yield frozenset(dependant.call.scopes)
    for inner in dependant.dependencies:
        yield from _needs(inner)


def _filled(schema: Mapping[str, Any], values: Mapping[str, Any]) -> Any:
    return _value(schema, schema.get("$defs", {}), values)


def _value(schema: Mapping[str, Any], defs: Mapping[str, Any], values: Mapping[str, Any]) -> Any:
    if "$ref" in schema:
        return _value(defs[schema["$ref"].rpartition("/")[2]], defs, values)
    for choices in ("anyOf", "oneOf", "allOf"):
        if choices in schema:
            return _value(schema[choices][0], defs, values)
    if "const" in schema or "enum" in schema:
        return schema.get("const", schema.get("enum", [None])[0])
    kind = schema.get("type")
    if kind == "object":
        known = schema.get("properties", {})
        wanted = [name for name in known if name in schema.get("required", ()) or name in values]
        return {
            name: values[name] if name in values and _takes_text(known[name]) else _value(known[name], defs, values)
            for name in wanted
        }
    if kind == "array":
        return [_value(schema["items"], defs, values)] if schema.get("minItems") else []
    plain = {"integer": max(1, schema.get("minimum", 1)), "number": 0.5, "boolean": False, "null": None}
    return plain.get(kind, "x")


def _takes_text(schema: Mapping[str, Any]) -> bool:
    return schema.get("type") == "string" or any(_takes_text(choice) for choice in schema.get("anyOf", ()))

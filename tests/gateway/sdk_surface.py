"""What the installed official client can ask, read from its own source, its request types and its protobuf messages."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tinker
from pydantic import BaseModel
from tinker import types

_ROOT = Path(tinker.__file__).parent
_PREFIX = "/api/v1/"
_METHODS = ("get", "post", "put", "delete", "patch")


@dataclass(frozen=True, kw_only=True)
class Call:
    """One place at which the client makes a request.

    Attributes:
        where: Its file and line.
        method: Of the request.
        path: Of the request; a part that is filled in stands as `{name}`.
        body: Names of the fields of its body, those within others with dots; None if it has none or it isn't JSON.
        query: Names of its query parameters.
    """

    where: str
    method: str
    path: str
    body: frozenset[str] | None
    query: frozenset[str]


def calls() -> list[Call]:
    """Everything that the client asks of a service."""
    found: list[Call] = []
    for file in sorted(_ROOT.rglob("*.py")):
        if not file.name.endswith("_test.py"):
            found += _Reader(file).calls()
    return found


def fields_of(schema: Mapping[str, Any]) -> frozenset[str]:
    """Names of all properties of a JSON schema, those within others with dots; those of a union's parts together."""
    return frozenset(_fields(schema, schema.get("$defs", {}), ""))


def fields_of_message(descriptor: Any, prefix: str = "") -> frozenset[str]:
    """Names of all fields of a protobuf message, those within others with dots."""
    names: set[str] = set()
    for field in descriptor.fields:
        names.add(prefix + field.name)
        if field.message_type is not None:
            names |= fields_of_message(field.message_type, f"{prefix}{field.name}.")
    return frozenset(names)


def _fields(schema: Mapping[str, Any], defs: Mapping[str, Any], prefix: str) -> Iterator[str]:
    if "$ref" in schema:
        yield from _fields(defs[schema["$ref"].rpartition("/")[2]], defs, prefix)
    for choice in [*schema.get("anyOf", ()), *schema.get("oneOf", ()), *schema.get("allOf", ())]:
        yield from _fields(choice, defs, prefix)
    if isinstance(items := schema.get("items"), dict):
        yield from _fields(items, defs, prefix)
    for name, inner in schema.get("properties", {}).items():
        yield prefix + name
        yield from _fields(inner, defs, f"{prefix}{name}.")


class _Reader:
    """Reads one file of the client."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._tree = ast.parse(file.read_text(encoding="utf-8"))
        self._above = {child: node for node in ast.walk(self._tree) for child in ast.iter_child_nodes(node)}

    def calls(self) -> Iterator[Call]:
        for node in ast.walk(self._tree):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            path = next((text for arg in node.args if (text := _text(arg)).startswith(_PREFIX)), None)
            if path is None:
                continue
            named = [_text(arg).lower() for arg in node.args] + [node.func.attr.strip("_")]
            method = next(name for name in named if name in _METHODS)
            given = {keyword.arg: keyword.value for keyword in node.keywords}
            yield Call(
                where=f"{self._file.relative_to(_ROOT)}:{node.lineno}",
                method=method.upper(),
                path=path,
                body=self._body(given["body"]) if "body" in given else None,
                query=self._query(given["options"]) if "options" in given else frozenset(),
            )

    def _body(self, value: ast.expr) -> frozenset[str] | None:
        if isinstance(value, ast.Dict):
            return frozenset(_keys(value))
        if isinstance(value, ast.Call):  # model_dump(request, ...)
            assert isinstance(value.args[0], ast.Name)
            return self._fields_of(value, value.args[0].id)
        return None  # bytes

    def _query(self, options: ast.expr) -> frozenset[str]:
        if not isinstance(options, ast.Dict):
            return frozenset()
        value = next(
            (value for key, value in zip(options.keys, options.values, strict=True) if _is(key, "params")), None
        )
        if isinstance(value, ast.Dict):
            return frozenset(_keys(value))
        if isinstance(value, ast.Call):  # request.model_dump(...)
            assert isinstance(value.func, ast.Attribute)
            assert isinstance(value.func.value, ast.Name)
            return self._fields_of(value, value.func.value.id)
        if isinstance(value, ast.Name):
            return frozenset(self._put_into(options, value.id))
        return frozenset()

    def _put_into(self, node: ast.AST, name: str) -> Iterator[str]:
        """Keys of a mapping that a function makes and fills."""
        for each in ast.walk(self._function(node)):
            if isinstance(each, ast.AnnAssign) and _is_name(each.target, name) and isinstance(each.value, ast.Dict):
                yield from _keys(each.value)
            if isinstance(each, ast.Subscript) and _is_name(each.value, name):
                yield _text(each.slice)

    def _fields_of(self, node: ast.AST, name: str) -> frozenset[str]:
        """Fields of the type that a variable was declared as, or was made of."""
        while True:
            node = self._function(node)
            for each in ast.walk(node):
                declared = each.annotation if isinstance(each, ast.arg) and each.arg == name else None
                if isinstance(each, ast.Assign) and any(_is_name(target, name) for target in each.targets):
                    declared = each.value.func if isinstance(each.value, ast.Call) else None
                if declared is not None:
                    kinds = (getattr(types, part, None) for part in ast.unparse(declared).split("."))
                    kind = next(kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel))
                    return fields_of(kind.model_json_schema())
            node = self._above[node]

    def _function(self, node: ast.AST) -> ast.AST:
        while not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            node = self._above[node]
        return node


def _text(node: ast.AST) -> str:
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        parts = (
            f"{{{ast.unparse(part.value)}}}" if isinstance(part, ast.FormattedValue) else _text(part)
            for part in node.values
        )
        return "".join(parts)
    return ""


def _keys(mapping: ast.Dict, prefix: str = "") -> Iterator[str]:
    for key, value in zip(mapping.keys, mapping.values, strict=True):
        assert key is not None
        yield prefix + _text(key)
        if isinstance(value, ast.Dict):
            yield from _keys(value, f"{prefix}{_text(key)}.")


def _is(node: ast.AST | None, text: str) -> bool:
    return node is not None and _text(node) == text


def _is_name(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name

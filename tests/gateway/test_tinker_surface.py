"""Everything that the official client can ask is served, or stands here with the reason why it isn't."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, get_origin

import pytest
from fastapi import FastAPI
from tests.gateway.sdk_surface import Call, calls, fields_of, fields_of_message
from tinker.proto import tinker_public_pb2 as wire

import tinker_actors.gateway.tinker as package
from tinker_actors.gateway.tinker.app import router
from tinker_actors.gateway.tinker.shared import Body

REFUSED_ROUTES = {"POST /api/v1/create_custom_loss": "losses of one's own are computed at the client, as a flag says"}

NOT_READ: Mapping[str, Mapping[str, str]] = {
    "POST /api/v1/asample": {
        "record_stability_info": "only stable_reinforce would need what is recorded, and that is refused",
        "prompt.chunks.dmel": "audio is refused by its type",
        "prompt.chunks.location": "a pointer to an image is refused by its type",
    },
    "POST /api/v1/client/config": {"sdk_version": "clients of every version get the same flags"},
    "POST /api/v1/client/dynamic_config": {"sdk_version": "clients of every version get the same flags"},
    "POST /api/v1/telemetry": dict.fromkeys(
        ("events", "platform", "process_uuid", "sdk_version", "session_id"), "nothing is kept of it"
    ),
}
"""Fields of the client's that no route of ours has; those within one that isn't read aren't, either."""

PROVENANCE = "where tokens come from is of use to stable_reinforce alone, and that is refused"

MESSAGE_READ = frozenset(
    {
        *("model_id", "seq_id", "loss_fn", "forward_only", "data", "loss_fn_config", "loss_fn_config_v2"),
        *(f"loss_fn_config.{name}" for name in ("key", "value")),
        *(f"loss_fn_config_v2.{name}" for name in ("key", "value", "value.number", "value.text")),
        *(f"data.{name}" for name in ("model_input", "loss_fn_inputs", "loss_fn_inputs.key", "loss_fn_inputs.value")),
        *(f"data.loss_fn_inputs.value.{name}" for name in ("dense", "dtype", "shape", "sparse_csr")),
        *(f"data.loss_fn_inputs.value.sparse_csr.{name}" for name in ("col_indices", "crow_indices", "values")),
        *(f"data.model_input.{name}" for name in ("encoded_text", "encoded_text.tokens", "image", "dmel")),
        *(f"data.model_input.image.{name}" for name in ("data", "format", "expected_tokens", "override_dimensions")),
    }
)
"""Fields of a batch that are read, or refused by name: `dmel` and `override_dimensions`."""

MESSAGE_NOT_READ: Mapping[str, str] = {
    "data.model_input_spans": PROVENANCE,
    "data.loss_fn_input_spans": PROVENANCE,
    "data.model_input.dmel.dmel": "audio is refused by its kind",
    "data.model_input.image.override_dimensions.width": "override_dimensions is refused",
    "data.model_input.image.override_dimensions.height": "override_dimensions is refused",
}


@pytest.fixture(scope="module")
def served() -> Mapping[str, Any]:
    """The operations of our routes as they describe themselves, by method and path."""
    app = FastAPI()
    app.include_router(router)
    description = app.openapi()
    return {
        _name(method, path): {**operation, "$defs": description["components"]["schemas"]}
        for path, operations in description["paths"].items()
        for method, operation in operations.items()
    }


def _name(method: str, path: str) -> str:
    """One for all ways to call what is filled in; a checkpoint's id has two parts."""
    return f"{method.upper()} {re.sub('{[^}]*}', '{}', path.replace('{checkpoint_id}', '{}/{}'))}"


def _body_of(operation: Mapping[str, Any]) -> frozenset[str]:
    content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    return fields_of({**content.get("schema", {}), "$defs": operation["$defs"]})


def _within(field: str, names: Mapping[str, str]) -> bool:
    return any(field == name or field.startswith(f"{name}.") for name in names)


def _on_the_wire(field: str) -> tuple[str, ...]:
    """What the client calls a field when it is sent; the settings of a step have a name for each kind of optimizer."""
    first, dot, rest = field.partition(".")
    return tuple(
        f"{name}{dot}{rest}" for name in {"optim_params": ("adam_params", "optimizer_params")}.get(first, (first,))
    )


CALLS = calls()


def test_the_clients_own_source_is_read():
    assert len(CALLS) > 45
    assert {call.path for call in CALLS} >= {"/api/v1/asample", "/api/v1/sessions/{session_id}/finish"}


@pytest.mark.parametrize("call", CALLS, ids=lambda call: f"{call.method} {call.path}")
def test_every_request_of_the_client_has_a_route_that_knows_its_fields(call: Call, served: Mapping[str, Any]):
    name = _name(call.method, call.path)
    assert name in served, f"{call.where} asks {name}"
    operation = served[name]
    if name in REFUSED_ROUTES:
        return
    query = {found["name"] for found in operation.get("parameters", ()) if found["in"] == "query"}
    assert call.query <= query, f"{call.where}: {name} ignores the parameters {sorted(call.query - query)}"
    if call.body is None:
        return
    ours, reasons = _body_of(operation), NOT_READ.get(name, {})
    ignored = [
        field
        for field in call.body - {"type"}  # the client's own name of the request
        if not ours.intersection(_on_the_wire(field)) and not _within(field, reasons)
    ]
    assert not ignored, f"{call.where}: {name} ignores {sorted(ignored)}"
    assert call.body >= reasons.keys(), "a reason for what the client doesn't send"
    assert not ours & reasons.keys(), "a reason for what is read"


def test_every_field_of_a_batch_is_read_or_has_a_reason_not_to_be():
    sent = fields_of_message(wire.ForwardBackwardRequest.DESCRIPTOR)
    assert sent >= MESSAGE_READ
    ignored = [field for field in sent - MESSAGE_READ if not _within(field, MESSAGE_NOT_READ)]
    assert not ignored, f"batches have fields that nobody reads: {sorted(ignored)}"


def test_every_field_of_our_bodies_is_read():
    forgotten: list[str] = []
    for kind in _bodies():
        read = _attributes_read(kind)
        forgotten += [
            f"{kind.__name__}.{name}"
            for name, field in kind.model_fields.items()
            if name not in read
            and get_origin(field.annotation) is not Literal  # whose values are checked by themselves
        ]
    assert not forgotten, f"these fields are declared, and nothing reads them: {forgotten}"


def _bodies() -> Iterator[type[Body]]:
    for found in pkgutil.iter_modules(package.__path__):
        module = importlib.import_module(f"{package.__name__}.{found.name}")
        for kind in vars(module).values():
            if inspect.isclass(kind) and issubclass(kind, Body) and kind.__module__ == module.__name__:
                yield kind


def _attributes_read(kind: type[Body]) -> set[str]:
    """Names of all attributes that are read where a body's class is known."""
    read: set[str] = set()
    for path in Path(package.__path__[0]).glob("*.py"):
        text = path.read_text(encoding="utf-8")
        if not re.search(rf"\b{kind.__name__}\b", text):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                read.add(node.attr)
                if node.attr == "model_dump" and kind.__module__.endswith(path.stem):
                    read |= set(kind.model_fields)
    return read

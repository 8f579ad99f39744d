"""The bodies that the OpenAI-compatible API takes, for the gateway's own description of itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_SAMPLING: dict[str, Any] = {
    "model": {"type": "string", "minLength": 1},
    "stream": {"type": "boolean"},
    "temperature": {"type": "number", "minimum": 0, "maximum": 2},
    "top_p": {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
    "return_token_ids": {"type": "boolean"},
}
_FURTHER: dict[str, Any] = {
    "n": {"type": "integer", "minimum": 1, "maximum": 128},
    "seed": {"type": "integer"},
    "stop": {"anyOf": [{"type": "string", "minLength": 1}, {"type": "array", "items": {"type": "string"}}]},
    "presence_penalty": {"type": "number", "minimum": -2, "maximum": 2},
    "frequency_penalty": {"type": "number", "minimum": -2, "maximum": 2},
    "repetition_penalty": {"type": "number", "exclusiveMinimum": 0},
    "top_k": {"type": "integer", "minimum": -1},
    "min_p": {"type": "number", "minimum": 0, "maximum": 1},
    "logit_bias": {"type": "object", "additionalProperties": {"type": "number"}},
    "prompt_logprobs": {"type": "integer", "minimum": 0, "maximum": 20},
    "ignore_eos": {"type": "boolean"},
    "stop_token_ids": {"type": "array", "items": {"type": "integer", "minimum": 0}},
}
_TOOLS: dict[str, Any] = {
    "tools": {"type": "array", "items": {"type": "object"}},
    "tool_choice": {"anyOf": [{"enum": ["none", "auto", "required"]}, {"type": "object"}]},
    "parallel_tool_calls": {"type": "boolean"},
}
_TOPS: dict[str, Any] = {"type": "integer", "minimum": 0, "maximum": 20}

CHAT_BODY: dict[str, Any] = {
    **_SAMPLING,
    **_FURTHER,
    **_TOOLS,
    "messages": {"type": "array", "items": {"type": "object"}, "minItems": 1},
    "max_tokens": {"type": "integer", "minimum": 1},
    "max_completion_tokens": {"type": "integer", "minimum": 1},
    "response_format": {"type": "object"},
    "logprobs": {"type": "boolean"},
    "top_logprobs": _TOPS,
}
COMPLETION_BODY: dict[str, Any] = {
    **_SAMPLING,
    **_FURTHER,
    "prompt": {"anyOf": [{"type": "string", "minLength": 1}, {"type": "array", "minItems": 1}]},
    "max_tokens": {"type": "integer", "minimum": 0},
    "echo": {"type": "boolean"},
    "logprobs": _TOPS,
}
RESPONSE_BODY: dict[str, Any] = {
    **_SAMPLING,
    **_TOOLS,
    "input": {"anyOf": [{"type": "string", "minLength": 1}, {"type": "array", "minItems": 1}]},
    "instructions": {"type": "string"},
    "max_output_tokens": {"type": "integer", "minimum": 1},
    "previous_response_id": {"type": "string"},
    "text": {"type": "object"},
    "include": {"type": "array", "items": {"type": "string"}},
    "top_logprobs": _TOPS,
}

_ERROR: dict[str, Any] = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}

REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {"description": text, "content": {"application/json": {"schema": _ERROR}}}
    for status, text in {
        400: "The request can't be read or served; `param` names the field.",
        401: "No good API key was given.",
        403: "The API key may not do this.",
        404: "No model of this name, or none that the caller may know of.",
        413: "The body is too large.",
        429: "Too much waits already.",
        503: "The sampler failed.",
    }.items()
}


def body(properties: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON body of these fields, as OpenAPI describes an operation's."""
    needed = [name for name in ("model", "messages", "prompt", "input") if name in properties]
    schema = {"type": "object", "properties": dict(properties), "required": needed}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}

"""JSON files of model directories."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tinker_actors.errors import ModelError


def read_json(path: Path) -> dict[str, Any]:
    """Contents of a JSON object file; empty if the file does not exist.

    Raises:
        ModelError: The file is not a JSON object.
    """
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(content, dict):
        raise ModelError(f"{path} holds a {type(content).__name__}; a JSON object is needed")
    return content

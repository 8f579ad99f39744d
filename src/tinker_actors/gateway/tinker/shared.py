"""What the routes of the Tinker API have in common."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from tinker_actors.gateway.writing import json_response


class Body(BaseModel):
    """A request's body. Fields that aren't known are for services of another version and ignored."""

    model_config = ConfigDict(protected_namespaces=(), extra="ignore")


Small: TypeAlias = Annotated[int, Field(ge=-(2**31), lt=2**31)]
"""A number that everything behind takes."""

Large: TypeAlias = Annotated[int, Field(ge=0, lt=2**63)]
"""A count that everything behind takes."""


def promise(request_id: str, **more: object) -> Response:
    """The answer to a request whose own answer comes later."""
    return json_response({"request_id": request_id, **more})

"""How routes get the gateway that they are of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from fastapi import Depends, Request

if TYPE_CHECKING:
    from tinker_actors.gateway.gateway import Gateway


async def _gateway(request: Request) -> Any:  # a plain function would be called in a thread
    return request.app.state.gateway


if TYPE_CHECKING:
    GatewayOf: TypeAlias = Gateway
else:
    GatewayOf = Annotated[Any, Depends(_gateway)]
    """A route's parameter: what all routes share."""

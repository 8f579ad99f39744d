"""Who asks: every request is made by one caller, for one tenant."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias

from fastapi import Depends, Request

from tinker_actors.gateway.refusals import RefusalError
from tinker_actors.gateway.scopes import SCOPES, Scope

LOCAL_TENANT = "local"
"""Whose everything is on a gateway without keys, which only the same host can reach."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who asks.

    Attributes:
        tenant: Whose models, checkpoints, samplers and jobs it may know of.
        key: Id of the key that it came with, for logs; never the key.
        scopes: What it may do.
        until: When what it came with ends by itself, in seconds since 1970; None if never.
    """

    tenant: str
    key: str
    scopes: frozenset[Scope] = SCOPES
    until: float | None = None

    @property
    def sees_all(self) -> bool:
        """Whether it may know of every tenant's."""
        return "admin" in self.scopes

    def may(self, scope: Scope) -> bool:
        """Whether it may do this."""
        return scope in self.scopes or self.sees_all


LOCAL = Caller(tenant=LOCAL_TENANT, key="none")
"""Everybody, on a gateway without keys."""


async def _caller(request: Request) -> Caller:  # a plain function would be called in a thread
    return request.state.caller


CallerOf: TypeAlias = Annotated[Caller, Depends(_caller)]
"""A route's parameter: who asks. The gate has let it in; whether an id is its tenant's is for the route to check."""


class Needs:
    """Lets a caller pass that has one of some scopes; `needs` makes it a dependency."""

    def __init__(self, scopes: tuple[Scope, ...]) -> None:
        self.scopes = scopes

    async def __call__(self, caller: CallerOf) -> None:
        """Check.

        Raises:
            RefusalError: 403; says which scopes would do.
        """
        if not any(caller.may(scope) for scope in self.scopes):
            raise RefusalError(
                403, f"the API key may not do this; it needs the scope {' or '.join(self.scopes)}", code="missing_scope"
            )


def needs(*scopes: Scope) -> Any:
    """A dependency that refuses callers without any of these scopes; one with `admin` always passes.

        @router.post("/optim_step", dependencies=[needs("train")])

    Every route that isn't open to everybody has one, or its router has.
    """
    return Depends(Needs(scopes))

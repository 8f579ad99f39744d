"""Who asks: every request is made by one caller, for one tenant."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias, get_args

from fastapi import Depends, Request

Scope: TypeAlias = Literal["train", "sample", "jobs", "read", "admin"]
"""What a key may do: train and store policies, sample, submit and end jobs, look at the tenant's own, all of it for
every tenant."""

SCOPES: frozenset[Scope] = frozenset(get_args(Scope))

LOCAL_TENANT = "local"
"""Whose everything is on a gateway without keys, which only the same host can reach."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who asks.

    Attributes:
        tenant: Whose models, checkpoints, samplers and jobs it may know of.
        key: Id of the key that it came with, for logs; never the key.
        scopes: What it may do.
    """

    tenant: str
    key: str
    scopes: frozenset[Scope] = SCOPES

    @property
    def sees_all(self) -> bool:
        """Whether it may know of every tenant's."""
        return "admin" in self.scopes

    def may(self, scope: Scope) -> bool:
        """Whether it may do this."""
        return scope in self.scopes or self.sees_all


LOCAL = Caller(tenant=LOCAL_TENANT, key="none")
"""Everybody, on a gateway without keys."""


def _caller(request: Request) -> Caller:
    return request.state.caller


CallerOf: TypeAlias = Annotated[Caller, Depends(_caller)]
"""A route's parameter: who asks. The gate has let it in; whether an id is its tenant's is for the route to check."""

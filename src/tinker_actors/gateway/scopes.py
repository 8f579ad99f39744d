"""What a key may do."""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

Scope: TypeAlias = Literal["train", "sample", "jobs", "read", "metrics", "admin"]
"""Train and store policies; sample; submit and end jobs; look at the tenant's own; read `/metrics`; all of it for every
tenant."""

SCOPES: frozenset[Scope] = frozenset(get_args(Scope))

USUAL_SCOPES: tuple[Scope, ...] = ("train", "sample", "jobs", "read")
"""What a key may do if nothing else is said: all but what is for operators."""

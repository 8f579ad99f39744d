"""What tenants used and did: tokens by the hour, and a log of what happened to their checkpoints."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from typing import Any

from tinker_actors.gateway.record_kinds import AuditRecord, UsageKind, UsageRecord
from tinker_actors.gateway.records import Records

HOUR = 3600


class Accounts:
    """Writes the books of all tenants.

    Args:
        records: Where they are.
    """

    def __init__(self, records: Records) -> None:
        self._records = records

    def used(self, tenant: str, session_id: str, base_model: str, counts: Mapping[UsageKind, int]) -> None:
        """Count what a session used now.

        Args:
            tenant: Whose session it is.
            session_id: The session.
            base_model: Of which base model.
            counts: How much of each kind: tokens, or checkpoints.
        """
        hour = int(time.time()) // HOUR * HOUR
        for kind, count in counts.items():
            if not count:
                continue
            key = "\n".join((tenant, str(hour), session_id, base_model, kind))
            if not self._records.usage.add(key, "count", count):
                self._records.usage.put(
                    UsageRecord(
                        key=key,
                        tenant=tenant,
                        hour=hour,
                        session_id=session_id,
                        base_model=base_model,
                        kind=kind,
                        count=count,
                    )
                )

    def note(self, tenant: str, event: str, *, path: str, key: str, **details: Any) -> None:
        """Write down what happened to a checkpoint.

        Args:
            tenant: Whose checkpoint it is.
            event: What happened, such as `checkpoint_publish`.
            path: The checkpoint.
            key: Id of the API key that did it.
            details: What else there is to say.
        """
        self._records.audit.put(
            AuditRecord(
                id=secrets.token_hex(8),
                tenant=tenant,
                at=time.time(),
                event=event,
                path=path,
                key=key,
                details=details,
            )
        )

"""Seeds derived from what they are for, so that results don't depend on who works on what or in which order."""

from __future__ import annotations

from hashlib import blake2b


def derive_seed(*parts: int | str) -> int:
    """A seed in [0, 2**63) that depends on every part and on their order.

    >>> derive_seed(0, "rollout", 3) == derive_seed(0, "rollout", 3)
    True
    >>> derive_seed(0, "rollout", 3) == derive_seed(0, "rollout", 4)
    False
    """
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in parts)
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little") >> 1

"""How much memory this process may lock."""

from __future__ import annotations

import resource


def memlock_limit() -> dict[str, int | None]:
    """RLIMIT_MEMLOCK as a reason's evidence; None is unlimited."""
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    return {"memlock_limit_bytes": None if limit == resource.RLIM_INFINITY else limit}

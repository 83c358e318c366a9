"""An engine as a worker sees it, without an engine."""

from __future__ import annotations

from typing import Any, Final

from perdure.core.work import Upstream
from perdure.sdk.worker.capacity import Capacity

ONE: Final = Capacity(slots=1, threads=1)


def upstream_to(**receivers: Any) -> Upstream:
    """Receives what is given; the rest of what a worker sends is dropped."""
    dropped = dict.fromkeys(("reported", "decided", "beats", "logged", "deferred"), lambda _: None)
    return Upstream(**{"clock_us": lambda: 0, **dropped, **receivers})

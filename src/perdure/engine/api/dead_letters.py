"""Dead letters: tasks that failed for good in runs that failed with them, and their runs retried in bulk.

Laws:

1. A dead letter is a failed task of a run that is failed now. A task whose failure the code caught is none, and neither is one whose run
   was retried: both the list and a retry look at the run as it is.
2. A bulk retry opens each run in a transaction of its own, by the same way as a retry of one run. What it cannot open it says, and goes
   on; asked again, it does the rest. A failed run that belongs to a failed parent is retried by way of the parent, once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Literal, Protocol

import msgspec

from perdure.core.errors import PerdureError, Unavailable

Place = tuple[int, bytes]
"""(moment of the failure, task id): the order of dead letters."""


class DeadFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which ones. Empty means all. Times are those of the failure; `since_us` is inclusive, `until_us` exclusive."""

    workflow: str = ""
    queue: str = ""
    task: str = ""
    """The task's name, or a node of a flow."""
    since_us: int | None = None
    until_us: int | None = None
    text: str = ""
    """Part of the error; case does not matter."""


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    task_id: bytes
    run_id: bytes
    seq: int
    task: str
    queue: str
    attempts: int
    lost: int
    scheduled_us: int
    failed_us: int
    error: str | None
    node: str | None
    workflow: str
    key: str | None
    parent_id: bytes | None


class DeadPage(msgspec.Struct, frozen=True):
    """`next` continues below this place; None at the end. A page may be short and still go on."""

    items: list[DeadLetter]
    next: Place | None


class DeadLetters(Protocol):
    async def page(self, ns: int, wanted: DeadFilter, below: Place | None, limit: int) -> DeadPage: ...
    async def roots(self, ns: int, run_ids: Sequence[bytes]) -> dict[bytes, bytes]:
        """Failed runs -> the outermost failed run that each belongs to, itself if none."""
        ...


class Retried(msgspec.Struct, frozen=True):
    """What became of one run."""

    run_id: bytes
    outcome: Literal["retried", "refused", "would_retry"]
    reason: str = ""
    """Why not."""


async def retry_runs(
    dead: DeadLetters,
    ns: int,
    run_ids: Iterable[bytes],
    retry: Callable[[bytes], Awaitable[None]],
    check: Callable[[bytes], Awaitable[None]],
    *,
    dry_run: bool,
) -> list[Retried]:
    """Retry these runs, or what they belong to, each once. Only an unreachable database ends it early.
    A dry run checks each instead, so that it refuses what a retry would."""
    wanted = list(dict.fromkeys(run_ids))
    roots = await dead.roots(ns, wanted)
    done: list[Retried] = []
    for run_id in dict.fromkeys(roots[r] for r in wanted):
        try:
            await (check if dry_run else retry)(run_id)
            done.append(Retried(run_id, "would_retry" if dry_run else "retried"))
        except Unavailable:
            raise
        except PerdureError as error:
            done.append(Retried(run_id, "refused", str(error)))
    return done

"""What every client offers, whether it embeds an engine or talks to a server."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, ParamSpec, Protocol, TypeVar

import msgspec

from perdure.core import ids
from perdure.core.api import runs
from perdure.core.api.act import KEY_PREFIX
from perdure.core.api.runs import GetRun, ListRuns, RunFilter, RunItem
from perdure.core.durations import datetime_of, us_of
from perdure.core.errors import InvalidInput
from perdure.core.lifecycle import RunStatus
from perdure.sdk.client.backend import Backend
from perdure.sdk.client.handles import Handle
from perdure.sdk.payloads import Converter

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class StartableWorkflow(Protocol[P, R_co]):
    """A workflow object, or a flow by name."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Any: ...
    def encode_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes: ...
    def decode_result(self, data: bytes) -> Any: ...
    async def start_on(self, target: Backend, data: bytes) -> Handle[R_co]: ...
    async def run_on(self, target: Backend, data: bytes) -> R_co: ...


class RunInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A run in a list."""

    id: str
    key: str
    workflow: str
    version: str
    status: str
    created_at: datetime
    finished_at: datetime | None
    error: str | None


class ClientBase:
    """`start`, `run`, `get` and `list`: the same for `Perdure` and `Client`."""

    _backend: Backend

    async def start(self, workflow: StartableWorkflow[P, R], *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Start a run on this client; returns when the run is durable."""
        return await workflow.start_on(self._backend, workflow.encode_call(args, kwargs))

    async def run(self, workflow: StartableWorkflow[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Start a run on this client and wait for its result."""
        return await workflow.run_on(self._backend, workflow.encode_call(args, kwargs))

    async def get(
        self, id: str | None = None, *, key: str | None = None, workflow: StartableWorkflow[Any, R] | None = None
    ) -> Handle[R]:
        """A handle of an existing run, by its id or by the key that it was started under.

        Args:
            id: The run's id, at least six of its first characters, or `@last`.
            key: The key that was given with `options(key=...)`.
            workflow: The run's workflow, for a typed result.

        Raises:
            NotFound: There is no such run. A debounced or batched start becomes a run when it begins; until then only the handle
                that its start returned can wait for it.
        """
        if (id is None) == (key is None):
            raise InvalidInput("get() takes the id of a run, or key= and the key it was started under")
        view = await self._backend.call(runs.STATUS, GetRun(id if id is not None else f"{KEY_PREFIX}{key}"))
        decode = workflow.decode_result if workflow is not None else Converter.of(Any).decode
        return Handle(self._backend, view.run_id, decode, view.key or "")

    async def list(
        self,
        *,
        workflow: str = "",
        status: str | Sequence[str] = (),
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int = 50,
    ) -> list[RunInfo]:
        """Runs, newest first: at most `limit` of those that match every filter."""
        words = [status] if isinstance(status, str) else status
        wanted = RunFilter(
            workflow=workflow,
            statuses=frozenset(int(_status(word)) for word in words),
            since_us=None if since is None else us_of(since),
            until_us=None if until is None else us_of(until),
        )
        found: list[RunInfo] = []
        below: bytes | None = None
        while len(found) < limit:
            page = await self._backend.call(runs.LIST, ListRuns(wanted, below, limit - len(found)))
            found.extend(_summary(item) for item in page.items)
            below = page.next
            if below is None:
                break
        return found


def _status(word: str) -> RunStatus:
    try:
        return RunStatus[word.upper()]
    except KeyError:
        raise InvalidInput(f"there is no run status {word!r}: {', '.join(s.word for s in RunStatus)}") from None


def _summary(item: RunItem) -> RunInfo:
    return RunInfo(
        id=ids.text(item.run_id),
        key=item.key or "",
        workflow=item.workflow,
        version=item.version,
        status=RunStatus(item.status).word,
        created_at=datetime_of(item.created_us),
        finished_at=None if item.finished_us is None else datetime_of(item.finished_us),
        error=item.error,
    )

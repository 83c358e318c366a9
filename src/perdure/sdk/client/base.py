"""What every client offers, whether it embeds an engine or talks to a server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from typing import Any, Final, ParamSpec, Protocol, TypeVar
from uuid import uuid4

import msgspec

from perdure.core import ids
from perdure.core.api import bulk_jobs, runs
from perdure.core.api.act import KEY_PREFIX
from perdure.core.api.bulk_jobs import BulkAction, StartBulkJob
from perdure.core.api.runs import GetRun, ListRuns, RunFilter, RunItem
from perdure.core.attributes import decode_attributes
from perdure.core.calls import encode_json
from perdure.core.durations import datetime_of, us_of
from perdure.core.errors import InvalidInput
from perdure.core.lifecycle import RunStatus
from perdure.sdk.client.backend import Backend
from perdure.sdk.client.bulk_jobs import BulkHandle
from perdure.sdk.client.handles import Handle
from perdure.sdk.payloads import Converter

PAGE_RUNS: Final = 500
"""Runs of one page of `runs()`."""

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
    error_code: str | None = None
    parent: str | None = None
    attributes: dict[str, str | bool | int | float | None] = {}
    """Its search attributes."""
    stuck: str | None = None
    """Why an active run cannot go on."""


class ClientBase:
    """`start`, `run`, `get`, `list`, `runs` and `bulk`: the same for `Perdure` and `Client`."""

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
        return [run async for run in self._pages(wanted, limit)]

    def runs(self, query: str = "", *, view: str = "", limit: int | None = None) -> AsyncIterator[RunInfo]:
        """Runs that match a query, newest first. Further pages are fetched as they are needed.

            async for run in client.runs("status = failed and attr.total > 100"):
                print(run.id, run.error)

        Args:
            query: A query text; empty for all runs.
            view: A saved view, whose query must match too.
            limit: At most so many.

        Raises:
            InvalidInput: The query has a mistake. The message shows its place.
            NotFound: There is no such view.
        """
        return self._pages(RunFilter(query=query, view=view), limit)

    async def bulk(
        self,
        action: BulkAction,
        query: str = "",
        *,
        view: str = "",
        reason: str = "",
        dry_run: bool = False,
        signal: str = "",
        payload: Any = None,
    ) -> BulkHandle:
        """Cancel, terminate, pause, resume, retry, delete or signal every run that matches. Returns when the job is durable.

            job = await client.bulk("cancel", "workflow = import and status = running", reason="wrong input")
            print(await job.wait())

        Args:
            action: `cancel`, `terminate`, `pause`, `resume`, `retry`, `delete` or `signal`.
            query: A query text. Runs that are started later are not part of the job.
            view: A saved view, whose query must match too.
            reason: Recorded by cancel, terminate and pause.
            dry_run: Find the runs, and do nothing to them.
            signal: Name of the signal to send, for `signal`.
            payload: Its value, of JSON types.

        Raises:
            InvalidInput: There is no query, or it has a mistake.
            NotFound: There is no such view.
        """
        # A key, so that a request that is repeated after a broken connection is one job.
        request = StartBulkJob(
            action=action,
            query=query,
            view=view,
            reason=reason,
            is_dry_run=dry_run,
            key=uuid4().hex,
            signal=signal,
            payload=encode_json(payload) if action == "signal" or payload is not None else b"",
        )
        job = await self._backend.call(bulk_jobs.START, request)
        return BulkHandle(self._backend, ids.text(job.id))

    async def _pages(self, wanted: RunFilter, limit: int | None) -> AsyncIterator[RunInfo]:
        below: bytes | None = None
        left = limit
        while left is None or left > 0:
            asked = PAGE_RUNS if left is None else min(left, PAGE_RUNS)
            page = await self._backend.call(runs.LIST, ListRuns(wanted, below, asked))
            for item in page.items:
                yield _summary(item)
            if page.next is None:
                return
            below, left = page.next, left if left is None else left - len(page.items)


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
        error_code=item.error_code,
        parent=ids.text(item.parent_id) if item.parent_id is not None else None,
        attributes=decode_attributes(item.attributes),
        stuck=item.stuck,
    )

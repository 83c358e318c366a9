"""One stream of changes for one client (server-sent events).

    GET /api/v1/stream?runs=1&counts=1&run=<id>&logs=<id>&bulk=<id>

    id: opaque, says what was sent      event: run | counts | history | log | bulk      data: JSON

Laws:

1. Nothing is lost: a client that comes back with Last-Event-ID gets everything after it. Near the seam it may get something twice; a run
   message is the run as it is now, a history event has its number, a log line its `place`, so a client can tell.
2. Commit order is not the order of ids or times, so lists are followed with an overlap of a few seconds, and what was sent is remembered for as long.
3. However many clients listen, one poller per namespace reads the runs list, one the counts (stream_counts.py), and only while a client is connected.
4. A client that does not keep up is cut off. It comes back by its cursor.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Final

import msgspec
from fastapi import APIRouter, Depends, Header, Query, Request
from fastapi.responses import StreamingResponse

from perdure.core import ids
from perdure.core.access import Principal
from perdure.core.api import bulk_jobs
from perdure.core.api import runs as runs_acts
from perdure.core.api.bulk_jobs import BulkJobRef
from perdure.core.api.runs import GetRun, LogPosition, RunItem
from perdure.core.errors import InvalidInput, Unavailable
from perdure.core.limits import STREAMS_MAX
from perdure.core.outage import Outage
from perdure.engine.api.ports import Reads
from perdure.server.context import Server
from perdure.server.rest import stream_client, views
from perdure.server.rest.guard import GuardedRoute, Reader, RestCaller
from perdure.server.rest.problems import TooManyStreams, responses
from perdure.server.rest.stream_bulk import follow_bulk
from perdure.server.rest.stream_client import Cursor, StreamClient, read_cursor
from perdure.server.rest.stream_counts import CountsFeed

log = logging.getLogger("perdure.server")

HEARTBEAT_S: Final = 15.0
FLUSH_S: Final = 0.25
"""At least this long between two flushes to one client."""
POLL_S: Final = 0.5
IDLE_POLL_S: Final = 2.0
"""Between two looks at a run that shows nothing new."""
OVERLAP_US: Final = 3_000_000
"""How far behind its own time a commit may become visible and still be seen."""
STREAMS_PER_PRINCIPAL_MAX: Final = 32
POLL_ROWS_MAX: Final = 20_000
"""Changes of one namespace that one look takes in; then it goes on from there."""
HISTORY_BYTES: Final = 1024 * 1024
CURSOR_CHARS_MAX: Final = 4_096

router = APIRouter(tags=["stream"], route_class=GuardedRoute)


class RunsChanges(msgspec.Struct):
    """Runs created or ended, with the moment of it, oldest first. `until_us`: there may be more after it."""

    items: list[tuple[int, RunItem]]
    until_us: int | None


async def changes_since(reads: Reads, ns: int, from_us: int) -> RunsChanges:
    created: list[tuple[int, RunItem]] = []
    above = ids.lowest_at(max(0, from_us // 1000)).bytes
    while page := await reads.created_since(ns, above, stream_client.PAGE_ROWS):
        created += [(max(from_us, ids.unix_ms_of(item.run_id) * 1000), item) for item in page]
        above = page[-1].run_id
        if len(page) < stream_client.PAGE_ROWS or len(created) >= POLL_ROWS_MAX:
            break
    ended: list[tuple[int, RunItem]] = []
    since, above = max(0, from_us), bytes(16)
    while page := await reads.ended_since(ns, since, above, stream_client.PAGE_ROWS):
        ended += [(item.finished_us or since, item) for item in page]
        since, above = ended[-1][0], page[-1].run_id
        if len(page) < stream_client.PAGE_ROWS or len(ended) >= POLL_ROWS_MAX:
            break
    until_us = min((part[-1][0] for part in (created, ended) if len(part) >= POLL_ROWS_MAX), default=None)
    found = [one for one in (*created, *ended) if until_us is None or one[0] <= until_us]
    return RunsChanges(sorted(found, key=lambda one: one[0]), until_us)


class RunsFeed:
    """Follows one namespace's runs for all who listen."""

    def __init__(self, reads: Reads, ns: int, public_url: str) -> None:
        self._reads, self._ns, self._public_url = reads, ns, public_url
        self.clients: set[StreamClient] = set()
        self._seen: dict[tuple[bytes, int], int] = {}
        self._task: asyncio.Task[None] | None = None

    async def join(self, client: StreamClient) -> None:
        """It hears the poller at once, and beside that gets what happened between its cursor and now."""
        now_us = await self._reads.clock_us()
        if client.cursor.runs_us is None:
            client.cursor.runs_us = now_us
        self.clients.add(client)
        if self._task is None:
            self._task = asyncio.create_task(self._run(now_us), name=f"perdure-runs-feed-{self._ns}")

    async def catch_up(self, client: StreamClient) -> None:
        """At the client's own pace; its cursor moves along."""
        reached = client.cursor.runs_us
        while reached is not None and not client.is_cut:
            found = await changes_since(self._reads, self._ns, reached - OVERLAP_US)
            for at_us, item in found.items:
                await client.wait_for_room()
                client.cursor.runs_us = max(client.cursor.runs_us or 0, at_us)
                self._put(client, item, at_us)
            reached = None
            if found.until_us is not None:
                reached = found.until_us + OVERLAP_US
                client.forget(found.until_us - OVERLAP_US)
        client.is_caught_up = True

    def leave(self, client: StreamClient) -> None:
        self.clients.discard(client)
        if not self.clients and self._task is not None:
            self._task.cancel()
            self._task = None
            self._seen.clear()

    async def _run(self, from_us: int) -> None:
        outage = Outage("following the list of runs", log, time.monotonic)
        while True:
            await asyncio.sleep(POLL_S)
            try:
                from_us = await self._poll(from_us)
                outage.over()
            except Exception as error:
                outage.failed(error, unexpected=not isinstance(error, Unavailable))

    async def _poll(self, from_us: int) -> int:
        now_us = await self._reads.clock_us()
        found = await changes_since(self._reads, self._ns, from_us - OVERLAP_US)
        for _, item in found.items:
            if (item.run_id, item.status) not in self._seen:
                self._seen[item.run_id, item.status] = now_us
                for client in list(self.clients):
                    self._put(client, item, now_us)
        reached = found.until_us + OVERLAP_US if found.until_us is not None else now_us
        self._tidy(from_us, now_us - 3 * OVERLAP_US)
        return reached

    def _tidy(self, sent_us: int, old_us: int) -> None:
        self._seen = {k: at for k, at in self._seen.items() if at > old_us}
        for client in list(self.clients):
            if client.is_cut:
                self.clients.discard(client)
            elif client.is_caught_up:
                client.forget(old_us)
                client.cursor.runs_us = max(client.cursor.runs_us or 0, sent_us)

    def _put(self, client: StreamClient, item: RunItem, at_us: int) -> None:
        """Once per status, and never an older one after a newer: two readers may bring them."""
        last = client.shown.get(item.run_id)
        if last is not None and (item.status == last[1] or (item.epoch, item.status) < last[:2]):
            return
        client.shown[item.run_id] = (item.epoch, item.status, at_us)
        client.put("run", views.summary(item, self._public_url).model_dump(mode="json"))


async def follow_history(client: StreamClient, reads: Reads, ns: int, run_id: bytes) -> None:
    """Exact: events are numbered without gaps."""
    pause_s = POLL_S
    while True:
        await client.wait_for_room()
        records = await _patiently(
            reads.history(ns, run_id, client.cursor.history, stream_client.PAGE_ROWS, HISTORY_BYTES)
        )
        for record in records or ():
            client.cursor.history = record.seq
            shown = views.history_event(record).model_dump(mode="json")
            client.put("history", {"run_id": ids.text(run_id), **shown})
        pause_s = FLUSH_S if records else min(pause_s * 1.5, IDLE_POLL_S)
        await asyncio.sleep(pause_s)


async def follow_logs(client: StreamClient, reads: Reads, ns: int, run_id: bytes) -> None:
    """Chunks of two engines may become visible out of order: each look begins a little before the last one's end."""
    pause_s, seen = POLL_S, dict[tuple[int, int, int, int], int]()
    while True:
        await client.wait_for_room()
        reached = client.cursor.logs
        place = LogPosition(max(0, reached.at_us - OVERLAP_US), -1, 0, 0, -1) if reached is not None else None
        sent = 0
        while (page := await _patiently(reads.logs(ns, run_id, place, stream_client.PAGE_ROWS))) is not None:
            for item in page.items:
                p = item.position
                key = (p.seq, p.attempt, p.n, p.line)
                if key in seen:
                    continue
                seen[key] = p.at_us
                sent += 1
                if client.cursor.logs is None or p.at_us >= client.cursor.logs.at_us:
                    client.cursor.logs = p
                shown = views.log_entry(item).model_dump(mode="json")
                client.put("log", {"run_id": ids.text(run_id), "place": ".".join(map(str, key)), **shown})
            place = page.next
            if place is None or client.room < stream_client.PAGE_ROWS:
                break
        newest_us = client.cursor.logs.at_us if client.cursor.logs else 0
        seen = {k: at for k, at in seen.items() if at >= newest_us - 2 * OVERLAP_US}
        pause_s = FLUSH_S if sent else min(pause_s * 1.5, IDLE_POLL_S)
        await asyncio.sleep(pause_s)


async def _patiently(asked: Any) -> Any:
    """None when the database is away: the stream stays, and catches up when it is back."""
    try:
        return await asked
    except Unavailable:
        return None


async def _or_cut(client: StreamClient, follow: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Who cannot be followed any more ends the stream; its client comes back. Called in here: a task that is cancelled before it begins
    would leave a coroutine behind."""
    try:
        await follow()
    except Unavailable as error:
        log.warning("a stream ends, its client will come back: %s", error)
        client.cut()
    except Exception:
        log.exception("a stream failed")
        client.cut()


class Streams:
    """The streams of one process."""

    def __init__(self, server: Server, streams_max: int = STREAMS_MAX) -> None:
        self._server, self._max = server, streams_max
        self._feeds: dict[int, RunsFeed] = {}
        self._counts: dict[int, CountsFeed] = {}
        self._clients: set[StreamClient] = set()
        self._by_subject: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._clients)

    def close(self) -> None:
        """End every stream, so that connections can close; clients come back elsewhere."""
        for client in list(self._clients):
            client.cut()

    def check(self, principal: Principal) -> None:
        """TooManyStreams when one more would be too many."""
        if len(self._clients) >= self._max:
            raise TooManyStreams(
                f"this server has {self._max} streams open, the most it takes (STREAMS_MAX); try again later"
            )
        count = self._by_subject.get(principal.subject, 0)
        if count >= STREAMS_PER_PRINCIPAL_MAX:
            raise TooManyStreams(
                f"{principal.subject} has {count} streams open, the limit is STREAMS_PER_PRINCIPAL_MAX={STREAMS_PER_PRINCIPAL_MAX}; "
                "close one, or ask for several topics in one stream"
            )

    def _enter(self, client: StreamClient, principal: Principal) -> None:
        self._clients.add(client)
        self._by_subject[principal.subject] = self._by_subject.get(principal.subject, 0) + 1

    def _leave(self, client: StreamClient, principal: Principal) -> None:
        self._clients.discard(client)
        left = self._by_subject[principal.subject] - 1
        if left:
            self._by_subject[principal.subject] = left
        else:
            del self._by_subject[principal.subject]

    async def serve(
        self,
        caller: RestCaller,
        cursor: Cursor,
        *,
        runs: bool,
        counts: bool,
        run: bytes | None,
        logs: bytes | None,
        bulk: str | None,
    ) -> AsyncGenerator[bytes]:
        """The bytes of one stream, for as long as the client listens, keeps up, and is welcome."""
        client, reads = StreamClient(cursor), self._server.api.ports.reads
        self._enter(client, caller.api.caller.principal)
        feed = (
            self._feeds.setdefault(caller.api.ns, RunsFeed(reads, caller.api.ns, self._server.api.public_url))
            if runs
            else None
        )
        tasks: list[asyncio.Task[None]] = []
        try:
            yield b": perdure\nretry: 1000\n\n"
            if counts:
                self._join_counts(client, caller.api.ns)
            if feed is not None:
                await feed.join(client)
                tasks.append(asyncio.create_task(_or_cut(client, partial(feed.catch_up, client))))
            if run is not None:
                tasks.append(
                    asyncio.create_task(_or_cut(client, partial(follow_history, client, reads, caller.api.ns, run)))
                )
            if logs is not None:
                tasks.append(
                    asyncio.create_task(_or_cut(client, partial(follow_logs, client, reads, caller.api.ns, logs)))
                )
            if bulk is not None:
                tasks.append(asyncio.create_task(_or_cut(client, partial(follow_bulk, client, caller, bulk))))
            async for part in self._parts(caller, client):
                yield part
        except Unavailable as error:
            log.warning("a stream ends, its client will come back: %s", error)
        finally:
            for task in tasks:
                task.cancel()
            if feed is not None:
                feed.leave(client)
                if not feed.clients:
                    self._feeds.pop(caller.api.ns, None)
            if counts:
                self._leave_counts(client, caller.api.ns)
            self._leave(client, caller.api.caller.principal)

    def _join_counts(self, client: StreamClient, ns: int) -> None:
        self._counts.setdefault(ns, CountsFeed(self._server.api, ns)).join(client)

    def _leave_counts(self, client: StreamClient, ns: int) -> None:
        feed = self._counts.get(ns)
        if feed is not None:
            feed.leave(client)
            if not feed.clients:
                del self._counts[ns]

    async def _parts(self, caller: RestCaller, client: StreamClient) -> AsyncGenerator[bytes]:
        loop = asyncio.get_running_loop()
        checked = loop.time()
        while not client.is_cut:
            part = await client.take(HEARTBEAT_S)
            yield part or b": still here\n\n"
            if loop.time() - checked >= HEARTBEAT_S:
                checked = loop.time()
                if await _patiently(caller.recheck()) is False:
                    return
            await asyncio.sleep(FLUSH_S)


@dataclass(frozen=True)
class Topics:
    """What a client follows."""

    runs: Annotated[bool, Query(description="Changes of the namespace's list of runs.")] = False
    counts: Annotated[bool, Query(description="The body of `GET /counts`, at once and when it changes.")] = False
    run: Annotated[str | None, Query(max_length=250, description="Events of this run's history.")] = None
    logs: Annotated[str | None, Query(max_length=250, description="Lines that this run prints.")] = None
    bulk: Annotated[str | None, Query(max_length=250, description="This bulk job, at once and when it changes.")] = None
    after: Annotated[int, Query(ge=0, lt=1 << 31, description="With run: only events above this number.")] = 0
    since: Annotated[
        str | None, Query(max_length=64, description="With logs: only lines since then. RFC 3339, or how long ago.")
    ] = None


@router.get(
    "/stream",
    response_class=StreamingResponse,
    responses=responses(
        401,
        403,
        404,
        409,
        422,
        429,
        s200={"description": "Server-sent events.", "content": {"text/event-stream": {"schema": {"type": "string"}}}},
    ),
)
async def stream(
    request: Request,
    caller: Reader,
    topics: Annotated[Topics, Depends()],
    resume_at: Annotated[
        str | None,
        Query(
            alias="last_event_id",
            max_length=CURSOR_CHARS_MAX,
            description="As the header Last-Event-ID, for a page that opens a new connection. The header counts, if there are both.",
        ),
    ] = None,
    last_event_id: Annotated[str | None, Header(max_length=CURSOR_CHARS_MAX)] = None,
) -> StreamingResponse:
    """Changes as they happen: `run`, `counts`, `history`, `log` and `bulk` events. Come back with Last-Event-ID and nothing is missed."""
    if not (topics.runs or topics.counts or topics.run or topics.logs or topics.bulk):
        raise InvalidInput("name something to follow: runs=1, counts=1, run=<id>, logs=<id> or bulk=<id>")
    resumed = read_cursor(last_event_id or resume_at)
    streams: Streams = request.app.state.streams
    run_id = await _existing(caller, topics.run) if topics.run is not None else None
    logs_id = await _existing(caller, topics.logs) if topics.logs is not None else None
    if topics.bulk is not None:
        await caller.call(bulk_jobs.GET, BulkJobRef(topics.bulk))  # NotFound before the stream begins
    streams.check(caller.api.caller.principal)
    cursor = resumed.about(run_id, logs_id)
    cursor.begin(topics.after, views.read_moment(topics.since, "since", time.time_ns() // 1000))
    body = streams.serve(
        caller, cursor, runs=topics.runs, counts=topics.counts, run=run_id, logs=logs_id, bulk=topics.bulk
    )
    return StreamingResponse(
        body, media_type="text/event-stream", headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    )


async def _existing(caller: RestCaller, run: str) -> bytes:
    return (await caller.call(runs_acts.STATUS, GetRun(run))).run_id

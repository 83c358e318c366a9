"""One stream of changes for one client (server-sent events).

    GET /api/v1/stream?runs=1&run=<id>&logs=<id>

    id: opaque, says what was sent      event: run | history | log      data: JSON

Laws:

1. Nothing is lost: a client that comes back with Last-Event-ID gets everything after it. Near the seam it may get something twice; a run
   message is the run as it is now, a history event has its number, a log line its `place`, so a client can tell.
2. Commit order is not the order of ids or times, so lists are followed with an overlap of a few seconds, and what was sent is remembered for as long.
3. However many clients listen, one poller per namespace asks for the runs list, and only while somebody listens.
4. A client that does not keep up is cut off. It comes back by its cursor.
"""

from __future__ import annotations

import asyncio
import base64
import logging
from collections import deque
from collections.abc import AsyncGenerator
from typing import Annotated, Any, Final

import msgspec
from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import StreamingResponse

from perdure.core import ids
from perdure.core.access import Principal
from perdure.core.errors import InvalidInput, Unavailable
from perdure.engine.reads import LogPosition, Reads, RunItem
from perdure.server.context import Server
from perdure.server.rest import views
from perdure.server.rest.guard import Caller, GuardedRoute, Reader
from perdure.server.rest.lookup import resolve
from perdure.server.rest.problems import TooManyStreams, responses

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
QUEUE_MESSAGES_MAX: Final = 2_000
"""Messages that wait for one client; with more it is cut off."""
PAGE_ROWS: Final = 500
POLL_ROWS_MAX: Final = 20_000
"""Changes of one namespace that one look takes in; then it goes on from there."""
HISTORY_BYTES: Final = 1024 * 1024
CURSOR_CHARS_MAX: Final = 4_096

router = APIRouter(tags=["stream"], route_class=GuardedRoute)


class Cursor(msgspec.Struct, omit_defaults=True):
    """Where a client is, per topic."""

    runs_us: int | None = None
    history: int = 0
    logs: LogPosition | None = None


def write_cursor(cursor: Cursor) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(cursor)).decode().rstrip("=")


def read_cursor(text: str | None) -> Cursor:
    if not text:
        return Cursor()
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)), type=Cursor)
    except (ValueError, msgspec.MsgspecError):
        raise InvalidInput(
            "Last-Event-ID: this is no id of this stream; leave it out to begin with what happens now"
        ) from None


def message(event: str, cursor: Cursor, data: Any) -> bytes:
    return b"id: %s\nevent: %s\ndata: %s\n\n" % (write_cursor(cursor).encode(), event.encode(), msgspec.json.encode(data))


class Client:
    """What waits to be sent to one client."""

    def __init__(self, cursor: Cursor) -> None:
        self.cursor = cursor
        self._waiting: deque[bytes] = deque()
        self._fresh = asyncio.Event()
        self.is_cut = False

    def put(self, event: str, data: Any) -> None:
        """The cursor must say by now what will have been sent with this message."""
        if len(self._waiting) >= QUEUE_MESSAGES_MAX:
            self.cut()
            return
        self._waiting.append(message(event, self.cursor, data))
        self._fresh.set()

    @property
    def room(self) -> int:
        return QUEUE_MESSAGES_MAX - len(self._waiting)

    def cut(self) -> None:
        self.is_cut = True
        self._fresh.set()

    async def take(self, within_s: float) -> bytes:
        """All that waits, or nothing when that is how it stays."""
        try:
            async with asyncio.timeout(within_s):
                await self._fresh.wait()
        except TimeoutError:
            return b""
        self._fresh.clear()
        out = b"".join(self._waiting)
        self._waiting.clear()
        return out


# -- the runs list -------------------------------------------------------------------------------------------------


class RunsFeed:
    """Follows one namespace's runs for all who listen."""

    def __init__(self, reads: Reads, ns: int, public_url: str) -> None:
        self._reads, self._ns, self._public_url = reads, ns, public_url
        self.clients: set[Client] = set()
        self._seen: dict[tuple[bytes, int], int] = {}
        self._task: asyncio.Task[None] | None = None

    async def join(self, client: Client) -> None:
        """First what happened since its cursor, then what the poller finds. The poller may repeat the last of it, never leave out."""
        now_us = await self._reads.clock_us()
        if client.cursor.runs_us is None:
            client.cursor.runs_us = now_us
        self.clients.add(client)
        if self._task is None:
            self._task = asyncio.create_task(self._run(now_us), name=f"perdure-runs-feed-{self._ns}")
        if client.cursor.runs_us < now_us:
            for item in await self._changes(client.cursor.runs_us):
                self._put(client, item)

    def leave(self, client: Client) -> None:
        self.clients.discard(client)
        if not self.clients and self._task is not None:
            self._task.cancel()
            self._task = None
            self._seen.clear()

    async def _run(self, from_us: int) -> None:
        while True:
            await asyncio.sleep(POLL_S)
            try:
                from_us = await self._poll(from_us)
            except Unavailable as error:
                log.warning("the runs list cannot be followed at the moment: %s", error)
            except Exception:
                log.exception("following the runs list failed")

    async def _poll(self, from_us: int) -> int:
        now_us = await self._reads.clock_us()
        found = await self._changes(from_us)
        for item in found:
            if (item.run_id, item.status) not in self._seen:
                self._seen[item.run_id, item.status] = now_us
                for client in list(self.clients):
                    self._put(client, item)
        for client in list(self.clients):
            if client.is_cut:
                self.clients.discard(client)
            elif client.cursor.runs_us is not None:
                client.cursor.runs_us = max(client.cursor.runs_us, from_us)
        self._seen = {k: at for k, at in self._seen.items() if at > now_us - 3 * OVERLAP_US}
        return now_us

    def _put(self, client: Client, item: RunItem) -> None:
        client.put("run", views.summary(item, self._public_url).model_dump(mode="json"))

    async def _changes(self, from_us: int) -> list[RunItem]:
        """Runs created or ended since, give or take the overlap; ended ones last, so that a run's last word is its end."""
        low_us = max(0, from_us - OVERLAP_US)
        created: list[RunItem] = []
        above = ids.lowest_at(low_us // 1000).bytes
        while page := await self._reads.created_since(self._ns, above, PAGE_ROWS):
            created += page
            above = page[-1].run_id
            if len(page) < PAGE_ROWS or len(created) >= POLL_ROWS_MAX:
                break
        ended: list[RunItem] = []
        since, above = low_us, bytes(16)
        while page := await self._reads.ended_since(self._ns, since, above, PAGE_ROWS):
            ended += page
            since, above = page[-1].finished_us or since, page[-1].run_id
            if len(page) < PAGE_ROWS or len(ended) >= POLL_ROWS_MAX:
                break
        return created + ended


# -- one run -------------------------------------------------------------------------------------------------------


async def follow_history(client: Client, reads: Reads, ns: int, run_id: bytes) -> None:
    """Exact: events are numbered without gaps."""
    pause_s = POLL_S
    while True:
        if client.room < PAGE_ROWS:
            await asyncio.sleep(FLUSH_S)
            continue
        records = await _patiently(reads.history(ns, run_id, client.cursor.history, PAGE_ROWS, HISTORY_BYTES))
        for record in records or ():
            client.cursor.history = record.seq
            shown = views.history_event(record).model_dump(mode="json")
            client.put("history", {"run_id": ids.text(run_id), **shown})
        pause_s = FLUSH_S if records else min(pause_s * 1.5, IDLE_POLL_S)
        await asyncio.sleep(pause_s)


async def follow_logs(client: Client, reads: Reads, ns: int, run_id: bytes) -> None:
    """Chunks of two engines may become visible out of order: each look begins a little before the last one's end."""
    pause_s, seen = POLL_S, dict[tuple[int, int, int, int], int]()
    while True:
        if client.room < PAGE_ROWS:
            await asyncio.sleep(FLUSH_S)
            continue
        reached = client.cursor.logs
        place = LogPosition(max(0, reached.at_us - OVERLAP_US), -1, 0, 0, -1) if reached is not None else None
        sent = 0
        while (page := await _patiently(reads.logs(ns, run_id, place, PAGE_ROWS))) is not None:
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
            if place is None or client.room < PAGE_ROWS:
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


# -- all of them ---------------------------------------------------------------------------------------------------


class Streams:
    """The streams of one process."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._feeds: dict[int, RunsFeed] = {}
        self._clients: set[Client] = set()
        self._by_subject: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._clients)

    def close(self) -> None:
        """End every stream, so that connections can close; clients come back elsewhere."""
        for client in list(self._clients):
            client.cut()

    def check(self, principal: Principal) -> None:
        """TooManyStreams when one more would be too many."""
        count = self._by_subject.get(principal.subject, 0)
        if count >= STREAMS_PER_PRINCIPAL_MAX:
            raise TooManyStreams(
                f"{principal.subject} has {count} streams open, the limit is STREAMS_PER_PRINCIPAL_MAX={STREAMS_PER_PRINCIPAL_MAX}; "
                "close one, or ask for several topics in one stream"
            )

    def _enter(self, client: Client, principal: Principal) -> None:
        self._clients.add(client)
        self._by_subject[principal.subject] = self._by_subject.get(principal.subject, 0) + 1

    def _leave(self, client: Client, principal: Principal) -> None:
        self._clients.discard(client)
        left = self._by_subject[principal.subject] - 1
        if left:
            self._by_subject[principal.subject] = left
        else:
            del self._by_subject[principal.subject]

    async def serve(
        self, caller: Caller, cursor: Cursor, *, runs: bool, run: bytes | None, logs: bytes | None
    ) -> AsyncGenerator[bytes]:
        """The bytes of one stream, for as long as the client listens, keeps up, and is welcome."""
        client, reads = Client(cursor), self._server.reads
        self._enter(client, caller.principal)
        feed = self._feeds.setdefault(caller.ns, RunsFeed(reads, caller.ns, self._server.public_url)) if runs else None
        tasks: list[asyncio.Task[None]] = []
        try:
            yield b": perdure\nretry: 1000\n\n"
            if feed is not None:
                await feed.join(client)
            if run is not None:
                tasks.append(asyncio.create_task(follow_history(client, reads, caller.ns, run)))
            if logs is not None:
                tasks.append(asyncio.create_task(follow_logs(client, reads, caller.ns, logs)))
            async for part in self._parts(caller, client, tasks):
                yield part
        except Unavailable as error:
            log.warning("a stream ends, its client will come back: %s", error)
        finally:
            for task in tasks:
                task.cancel()
            if feed is not None:
                feed.leave(client)
                if not feed.clients:
                    self._feeds.pop(caller.ns, None)
            self._leave(client, caller.principal)

    async def _parts(
        self, caller: Caller, client: Client, tasks: list[asyncio.Task[None]]
    ) -> AsyncGenerator[bytes]:
        loop = asyncio.get_running_loop()
        checked = loop.time()
        while not client.is_cut and not any(t.done() for t in tasks):
            part = await client.take(HEARTBEAT_S)
            yield part or b": still here\n\n"
            if loop.time() - checked >= HEARTBEAT_S:
                checked = loop.time()
                if await _patiently(self._server.auth.recheck(caller.principal)) is False:
                    return
            await asyncio.sleep(FLUSH_S)


@router.get(
    "/stream",
    response_class=StreamingResponse,
    responses=responses(
        401, 403, 404, 409, 422, 429,
        s200={"description": "Server-sent events.", "content": {"text/event-stream": {"schema": {"type": "string"}}}},
    ),
)  # fmt: skip
async def stream(
    request: Request,
    caller: Reader,
    runs: Annotated[bool, Query(description="Changes of the namespace's list of runs.")] = False,
    run: Annotated[str | None, Query(max_length=250, description="Events of this run's history.")] = None,
    logs: Annotated[str | None, Query(max_length=250, description="Lines that this run prints.")] = None,
    last_event_id: Annotated[str | None, Header(max_length=CURSOR_CHARS_MAX)] = None,
) -> StreamingResponse:
    """Changes as they happen: `run`, `history` and `log` events. Come back with Last-Event-ID and nothing is missed."""
    if not runs and run is None and logs is None:
        raise InvalidInput("name something to follow: runs=1, run=<id> or logs=<id>")
    cursor = read_cursor(last_event_id)
    streams: Streams = request.app.state.streams
    run_id = await resolve(caller, run) if run is not None else None
    logs_id = await resolve(caller, logs) if logs is not None else None
    streams.check(caller.principal)
    body = streams.serve(caller, cursor, runs=runs, run=run_id, logs=logs_id)
    return StreamingResponse(
        body, media_type="text/event-stream", headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    )

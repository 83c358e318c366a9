"""`perdure top`: a live page of a server and its database.

A thread of its own reads keys; the page is read from the server by the same requests as other commands, each bounded by the server.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Generator, Iterator
from datetime import UTC, datetime
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from perdure.cli.remote_options import Remote, remote
from perdure.core.errors import PerdureError

if TYPE_CHECKING:
    from perdure.cli.top_frame import Snapshot
    from perdure.programs.http_client import HttpApi

ROWS_READ_MAX: Final = 200
"""Workers, and queues, that one page takes from the server."""
STUCK_SHOWN_MAX: Final = 5
STEP_S: Final = 0.2
"""How soon a key has its effect, and a changed size of the terminal."""
ANSWER_S: Final = 5.0
"""A server that takes longer to answer is shown as unreachable; the page goes on."""


def register(app: typer.Typer) -> None:
    app.command()(top)


@remote
def top(
    server: Remote,
    interval: Annotated[float, typer.Option("--interval", min=0.5, help="Seconds between two readings.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Print one page and exit.")] = False,
) -> None:
    """Show runs, queues, workers and limits of a server, live.

    Keys: q quits, p pauses, s sorts workers by another column. In a pipe it prints one page.
    """
    from perdure.cli.top_frame import Sorting, draw, plain

    if server.out.is_for_people and not once and sys.stdin.isatty():
        with server.connect(answer_s=ANSWER_S, tries=1) as api:
            _follow(server, TopReader(api), interval)
        return
    page = TopReader(server.api).read()
    if server.out.is_for_people:
        server.out.console.print(draw(page, Sorting.NAME, server.out.console.width))
    elif server.out.mode == "plain":
        print(plain(page))
    else:
        server.out.data(page.as_data())


class TopReader:
    def __init__(self, api: HttpApi) -> None:
        self._api = api
        self._since = datetime.now(UTC).isoformat(timespec="seconds")
        self._last: tuple[float, int, int] | None = None

    def read(self) -> Snapshot:
        from perdure.cli.top_frame import Snapshot

        began = time.monotonic()
        counts = self._api.get("/counts")
        answer_s = time.monotonic() - began
        totals = self._api.get("/runs/histogram", [("since", "24h"), ("bins", 1)])["totals"]
        stuck = self._api.get("/runs", [("query", "stuck"), ("limit", STUCK_SHOWN_MAX)])["items"]
        return Snapshot(
            at=datetime.now(UTC),
            url=self._api.url,
            namespace=self._api.namespace or "default",
            server=self._api.get("/server"),
            counts=counts,
            totals=totals,
            rates=self._rates(),
            queues=self._api.get("/queues")["items"][:ROWS_READ_MAX],
            workers=list(self._api.items("/workers", limit=ROWS_READ_MAX)),
            limits=self._api.get("/limit-use")["items"],
            stuck=stuck,
            answer_ms=round(1000 * answer_s, 1),
        )

    def _rates(self) -> tuple[float, float] | None:
        """Runs that were started and that ended, per second, since the last reading: counts since this command began, compared."""
        totals = self._api.get("/runs/histogram", [("since", self._since), ("bins", 1)])["totals"]
        ended = totals["success"] + totals["failed"] + totals["cancelled"]
        now = (time.monotonic(), ended + totals["running"] + totals["pending"], ended)
        last, self._last = self._last, now
        if last is None:
            return None
        passed_s = now[0] - last[0]
        return max(now[1] - last[1], 0) / passed_s, max(now[2] - last[2], 0) / passed_s


def _follow(server: Remote, reader: TopReader, interval: float) -> None:
    from rich.live import Live

    from perdure.cli.top_frame import Sorting, away, draw

    console = server.out.console
    snapshot, sorting, is_paused, trouble = reader.read(), Sorting.NAME, False, ""
    due, width = time.monotonic() + interval, 0
    with _keys() as keys, Live(console=console, auto_refresh=False, screen=True, vertical_overflow="crop") as live:
        while True:
            is_changed = False
            for key in _pressed(keys):
                if key in ("q", "Q", "\x03"):
                    return
                is_paused = not is_paused if key == "p" else is_paused
                sorting = sorting.next() if key == "s" else sorting
                is_changed = True
            if not is_paused and time.monotonic() >= due:
                try:
                    snapshot, trouble = reader.read(), ""
                except PerdureError as error:
                    if getattr(error, "status", 503) < 500:
                        raise
                    trouble = str(error)
                due, is_changed = time.monotonic() + interval, True
            if is_changed or width != console.width:
                width = console.width
                page = draw(snapshot, sorting, width, height=console.height, is_paused=is_paused)
                live.update(away(page, trouble) if trouble else page, refresh=True)


def _pressed(keys: SimpleQueue[str]) -> Iterator[str]:
    """The keys of one step, which ends early with the first of them."""
    with contextlib.suppress(Empty):
        yield keys.get(timeout=STEP_S)
        while True:
            yield keys.get_nowait()


@contextlib.contextmanager
def _keys() -> Generator[SimpleQueue[str]]:
    """Single keys, without waiting for a line, where the terminal can do that."""
    found: SimpleQueue[str] = SimpleQueue()
    try:
        import termios
        import tty
    except ImportError:  # Windows: Ctrl-C ends it
        yield found
        return
    fd = sys.stdin.fileno()
    kept: Any = termios.tcgetattr(fd)
    threading.Thread(target=_read_keys, args=(fd, found), name="perdure-top-keys", daemon=True).start()
    try:
        tty.setcbreak(fd)
        yield found
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, kept)


def _read_keys(fd: int, found: SimpleQueue[str]) -> None:
    with contextlib.suppress(OSError):
        while key := os.read(fd, 1):
            found.put(key.decode("ascii", "replace"))

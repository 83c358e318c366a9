"""Log lines that repeat are counted, and work that keeps failing says so once, then at intervals, then that it works again."""

from __future__ import annotations

import io
import logging
from typing import Any

from perdure.core.limits import LOG_KINDS_MAX, LOG_REPEATS_SHOWN, LOG_WINDOW_S, OUTAGE_LOG_S
from perdure.core.outage import Outage
from perdure.programs import logs
from perdure.programs.log_repeats import Repeats


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


def record(
    msg: Any = "no answer from %s", *args: Any, name: str = "perdure.engine", level: int = logging.WARNING
) -> logging.LogRecord:
    return logging.LogRecord(name, level, "file.py", 1, msg, args or ("db",), None)


def repeated(line: logging.LogRecord) -> str | None:
    return line.msg.get("repeated") if isinstance(line.msg, dict) else getattr(line, "repeated", None)


def test_an_outage_of_ten_minutes_is_a_few_lines() -> None:
    clock = Clock()
    repeats = Repeats(clock)
    written: list[logging.LogRecord] = []
    for n in range(6_000):
        clock.now = 1_000 + n / 10
        written += repeats.pass_(record("no answer from %s", f"server {n}"))
    assert len(written) == LOG_REPEATS_SHOWN + 600 // LOG_WINDOW_S - 1
    assert [repeated(line) for line in written[:LOG_REPEATS_SHOWN]] == [None] * LOG_REPEATS_SHOWN
    assert repeated(written[-1]) == f"{LOG_WINDOW_S * 10:,} times in the last {LOG_WINDOW_S} s"


def test_every_line_is_either_written_or_counted() -> None:
    clock = Clock()
    repeats = Repeats(clock)
    written = [line for _ in range(100) for line in repeats.pass_(record())] + repeats.flush()
    counts = [int((repeated(line) or "1").split()[0]) for line in written]
    assert sum(counts) == 100 and len(written) == LOG_REPEATS_SHOWN + 1


def test_what_was_held_back_is_summed_up_with_the_next_line_of_any_kind() -> None:
    clock = Clock()
    repeats = Repeats(clock)
    for _ in range(20):
        repeats.pass_(record())
    clock.now += LOG_WINDOW_S
    first, second = repeats.pass_(record("all is well", level=logging.INFO))
    assert (first.msg, repeated(first)) == ("no answer from %s", f"{20 - LOG_REPEATS_SHOWN} times in the last 60 s")
    assert (second.msg, repeated(second)) == ("all is well", None)


def test_kinds_are_told_apart_by_logger_level_and_template() -> None:
    repeats = Repeats(Clock())
    kinds = [
        record(),
        record("another"),
        record(level=logging.ERROR),
        record(name="perdure.server"),
        record({"event": "structured"}),
        record({"event": "other"}),
    ]
    for kind in kinds:
        assert sum(len(repeats.pass_(kind)) for _ in range(50)) == LOG_REPEATS_SHOWN


def test_the_socket_in_a_message_of_asyncio_does_not_make_it_another_kind() -> None:
    repeats = Repeats(Clock())
    text = "socket.accept() out of system resource\nsocket: <asyncio.TransportSocket fd={}>"
    written = [line for n in range(50) for line in repeats.pass_(record(text.format(n), name="asyncio"))]
    assert len(written) == LOG_REPEATS_SHOWN


def test_nothing_of_user_code_is_held_back_and_nothing_below_a_warning() -> None:
    repeats = Repeats(Clock())
    for one in (record(name="shop.orders"), record(name="perduring"), record(level=logging.INFO)):
        assert sum(len(repeats.pass_(one)) for _ in range(50)) == 50


def test_kinds_are_bounded() -> None:
    repeats = Repeats(Clock())
    for n in range(LOG_KINDS_MAX * 2):
        repeats.pass_(record(f"kind {n}"))
    assert len(repeats._windows) <= LOG_KINDS_MAX


def test_a_process_counts_its_lines_and_sums_them_up_at_the_end() -> None:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    stream = io.StringIO()
    try:
        logs.configure("json", "warning", stream=stream)
        for n in range(1_000):
            logging.getLogger("perdure.engine").warning("try %d failed", n)
        logs.configure("json", "warning", stream=io.StringIO())  # closes the handler before
    finally:
        for handler in [h for h in root.handlers if h not in handlers]:
            root.removeHandler(handler)
        root.setLevel(level)
    lines = stream.getvalue().splitlines()
    assert len(lines) == LOG_REPEATS_SHOWN + 1
    assert f'"repeated": "{1_000 - LOG_REPEATS_SHOWN} times in the last' in lines[-1]


# -- outages -------------------------------------------------------------------------------------------------------


def test_an_outage_has_a_beginning_a_reminder_and_an_end(caplog: Any) -> None:
    clock = Clock()
    outage = Outage("claiming runs", logging.getLogger("perdure.test"), clock)
    for _ in range(100):
        outage.failed(ConnectionError("refused"))
        clock.now += OUTAGE_LOG_S / 50
    outage.over()
    outage.over()
    assert [r.getMessage() for r in caplog.records] == [
        "claiming runs failed and is tried again until it works: refused",
        "claiming runs still fails after 60 s and 51 tries: refused",
        "claiming runs works again after 120 s and 100 failed tries",
    ]


async def test_the_loops_of_an_engine_are_named_in_plain_words(dsn: str, caplog: Any, monkeypatch: Any) -> None:
    """Whatever loop fails, its line says what it does and not what its function is called."""
    import asyncio

    from perdure.core.errors import Unavailable
    from perdure.store.postgres import PostgresStore
    from tests.fakes.api import engine_on

    store = PostgresStore(dsn)
    await store.open()
    engine = engine_on(store)
    tried = asyncio.Event()
    tries = 0

    async def broken() -> None:
        nonlocal tries
        tries += 1
        if tries == 4:
            tried.set()
        raise Unavailable("the database is away")

    monkeypatch.setattr(engine.claims, "run", broken)
    await engine.open()
    try:
        await asyncio.wait_for(tried.wait(), 30)
    finally:
        await engine.close()
        await store.close()
    said = [r.getMessage() for r in caplog.records if "the database is away" in r.getMessage()]
    assert said == ["claiming runs failed and is tried again until it works: the database is away"]

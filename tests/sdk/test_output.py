"""What is printed and logged while a task runs belongs to its attempt, within bounds, and still reaches the real streams."""

from __future__ import annotations

import asyncio
import gc
import io
import logging
import sys
import threading
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from types import SimpleNamespace
from typing import Any

import pytest

from perdure.core.limits import LOG_BYTES_PER_ATTEMPT_MAX, LOG_LINE_CHARS_MAX
from perdure.core.retry import TaskOptions
from perdure.core.work import Assignment, LogChunk, LogLine, Report
from perdure.sdk.captured_output import OutputBuffer
from perdure.sdk.worker import output
from perdure.sdk.worker.attempts import Attempt, Slot, current_slot
from perdure.sdk.worker.capacity import Capacity
from perdure.sdk.worker.execution import TaskExecutor
from tests.fakes.upstreams import ONE, upstream_to
from tests.fakes.waiting import until


class Book:
    """A host and a sink at once: keeps the outputs that grew."""

    def __init__(self, tee: bool = True) -> None:
        self.tee, self.sink = tee, self
        self.grew: list[bool] = []
        self.time = 0

    def now_us(self) -> int:
        self.time += 1
        return self.time

    def grown(self, output: OutputBuffer, new: bool) -> None:
        self.grew.append(new)

    def beat(self, attempt: Attempt, details: bytes) -> None: ...


@pytest.fixture
def captured() -> Iterator[None]:
    output.install()
    yield
    output.remove()


@contextmanager
def running(book: Book) -> Iterator[Attempt]:
    attempt = Attempt(Assignment(bytes(16), 3, 1, 1, "t", b"", TaskOptions()), book)
    if output._installed:
        output.keep()  # pytest puts streams of its own in place between a fixture and its test
    token = current_slot.set(Slot(attempt))
    try:
        yield attempt
    finally:
        current_slot.reset(token)


def lines_of(attempt: Attempt) -> list[tuple[str, str, str]]:
    assert attempt._output is not None
    attempt._output.close()
    return [(line.stream, line.level, line.text) for line in attempt._output.take()]


def texts(attempt: Attempt) -> list[str]:
    return [text for _, _, text in lines_of(attempt)]


# -- streams --------------------------------------------------------------------------------------------------------------


def test_printed_lines_are_captured_and_still_printed(captured: None, capsys: pytest.CaptureFixture[str]) -> None:
    with running(Book()) as attempt:
        print("one\ntwo")
        print("thr", end="")
        print("ee")
        print("bad", file=sys.stderr)
        sys.stdout.writelines(["four\n", "five"])
    print("nobody's")
    assert sorted(lines_of(attempt)) == sorted(
        [("stdout", "info", t) for t in ("one", "two", "three", "four", "five")] + [("stderr", "info", "bad")]
    )
    out, err = capsys.readouterr()
    assert out == "one\ntwo\nthree\nfour\nfivenobody's\n"
    assert err == "bad\n"


def test_without_tee_captured_lines_are_not_printed_and_others_are(capsys: pytest.CaptureFixture[str]) -> None:
    output.install()
    try:
        with running(Book(tee=False)) as attempt:
            print("mine")
        print("nobody's")
    finally:
        output.remove()
    assert texts(attempt) == ["mine"]
    assert capsys.readouterr().out == "nobody's\n"


def test_nothing_is_left_behind_when_the_last_one_goes(capsys: pytest.CaptureFixture[str]) -> None:
    before = sys.stdout, sys.stderr, logging.Logger.callHandlers, logging.Logger.isEnabledFor
    output.install()
    output.install()
    output.remove()
    assert type(sys.stdout) is output.Tee
    output.remove()
    assert (sys.stdout, sys.stderr, logging.Logger.callHandlers, logging.Logger.isEnabledFor) == before
    assert not logging.getLogger().handlers or all("perdure" not in repr(h) for h in logging.getLogger().handlers)


def test_a_stream_that_somebody_else_put_over_ours_stays(captured: None) -> None:
    before = sys.stdout
    other = io.StringIO()
    with redirect_stdout(other):
        output.keep()
        with running(Book()) as attempt:
            print("redirected")
        assert texts(attempt) == ["redirected"]
    assert other.getvalue() == "redirected\n"
    assert sys.stdout is before


def test_a_proxy_that_is_still_held_after_removal_passes_everything_on(capsys: pytest.CaptureFixture[str]) -> None:
    output.install()
    held = sys.stdout
    output.remove()
    with running(Book()) as attempt:
        held.write("late\n")
    assert attempt._output is None
    assert capsys.readouterr().out == "late\n"


def test_a_progress_bar_is_one_line(captured: None) -> None:
    with running(Book()) as attempt:
        for percent in range(0, 101, 10):
            sys.stderr.write(f"\r{percent}%")
        sys.stderr.write("\n")
        sys.stderr.write("windows\r\n")
    assert texts(attempt) == ["100%", "windows"]


def test_the_proxy_looks_like_the_stream(captured: None) -> None:
    assert sys.stdout.encoding.lower().replace("-", "") == "utf8"
    assert sys.stdout.writable()
    assert isinstance(sys.stdout.isatty(), bool)
    sys.stdout.flush()


# -- logging --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    one = logging.getLogger("tests.capture")
    yield one
    one.handlers.clear()
    one.propagate = True
    one.setLevel(logging.NOTSET)


def test_info_is_captured_where_nobody_configured_logging(captured: None, logger: logging.Logger) -> None:
    with running(Book()) as attempt:
        logger.info("hello %s", "there")
        logger.debug("too quiet")
    assert lines_of(attempt) == [("log", "info", "hello there")]
    assert not logger.isEnabledFor(logging.INFO), "outside a task nothing has changed"


def test_info_that_only_we_want_does_not_reach_the_handlers(captured: None, logger: logging.Logger) -> None:
    stream = io.StringIO()
    logger.addHandler(logging.StreamHandler(stream))
    with running(Book()) as attempt:
        logger.info("quiet")
        logger.warning("loud")
    assert texts(attempt) == ["quiet", "loud"]
    assert stream.getvalue() == "loud\n"


def test_a_logger_that_was_silenced_by_name_stays_silent(captured: None, logger: logging.Logger) -> None:
    logger.setLevel(logging.ERROR)
    with running(Book()) as attempt:
        logging.getLogger("tests.capture.below").info("no")
        logger.error("yes")
    assert texts(attempt) == ["yes"]


def test_a_record_that_a_handler_prints_is_one_line(captured: None, logger: logging.Logger) -> None:
    logger.propagate = False  # the root would not see it
    logger.addHandler(logging.StreamHandler(sys.stderr))
    logger.setLevel(logging.DEBUG)
    with running(Book()) as attempt:
        logger.warning("once")
        logger.debug("shown, not kept")
    assert lines_of(attempt) == [("log", "warning", "once")]


def test_an_exception_is_logged_with_its_traceback_and_wrong_arguments_do_no_harm(
    captured: None, logger: logging.Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging, "raiseExceptions", False)
    logger.propagate = False
    with running(Book()) as attempt:
        try:
            raise ValueError("planted")
        except ValueError:
            logger.exception("it went wrong")
        logger.warning("%d items", "no number")
    first, second = texts(attempt)
    assert first.startswith("it went wrong\nTraceback") and first.endswith("ValueError: planted")
    assert "cannot be formatted" in second


def test_basic_config_still_works_while_captured(captured: None) -> None:
    root = logging.getLogger()
    kept, root.handlers = root.handlers, []
    stream = io.StringIO()
    try:
        logging.basicConfig(stream=stream, format="%(message)s")
        with running(Book()) as attempt:
            root.warning("both")
    finally:
        root.handlers = kept
    assert stream.getvalue() == "both\n"
    assert texts(attempt) == ["both"]


# -- bounds ---------------------------------------------------------------------------------------------------------------


def test_a_long_line_is_cut_with_an_ellipsis(captured: None) -> None:
    with running(Book(tee=False)) as attempt:
        print("x" * (LOG_LINE_CHARS_MAX + 1))
        print("y" * LOG_LINE_CHARS_MAX)
        for _ in range(100):
            sys.stdout.write("z" * 1_000)
    cut, whole, endless = texts(attempt)
    assert cut == "x" * (LOG_LINE_CHARS_MAX - 1) + "…"
    assert whole == "y" * LOG_LINE_CHARS_MAX
    assert len(endless) == LOG_LINE_CHARS_MAX and endless.endswith("…")


def test_an_attempt_keeps_a_bounded_amount_and_says_what_it_dropped(captured: None) -> None:
    with running(Book(tee=False)) as attempt:
        for _ in range(3_000):
            print("ä" * 500)
    kept = texts(attempt)
    assert sum(len(t.encode()) for t in kept) <= LOG_BYTES_PER_ATTEMPT_MAX + 200
    assert kept[-1] == (
        f"… {3_000 - len(kept) + 1:,} more lines were dropped: an attempt keeps LOG_BYTES_PER_ATTEMPT_MAX=1,048,576 bytes"
    )


def test_text_that_cannot_be_stored_is_made_storable(captured: None) -> None:
    with running(Book(tee=False)) as attempt:
        print("nul \x00 and surrogate \ud800")
    assert texts(attempt) == ["nul \N{REPLACEMENT CHARACTER} and surrogate ?"]


def test_lines_after_the_end_are_nobodys(captured: None) -> None:
    with running(Book(tee=False)) as attempt:
        print("in time")
        output = attempt._output
        assert output is not None
        output.close()
        print("too late")
        assert [line.text for line in output.take()] == ["in time"]


def test_threads_that_print_at_once_lose_nothing(captured: None) -> None:
    book = Book(tee=False)
    with running(book) as attempt:
        mine = output.output_of(attempt)
        assert mine is not None
    threads = [threading.Thread(target=lambda: [mine.add("log", "info", "x") for _ in range(500)]) for _ in range(8)]
    for t in threads:
        t.start()
    taken: list[LogLine] = []
    while any(t.is_alive() for t in threads):
        taken += mine.take()
    assert len(taken + mine.take()) == 4_000


# -- with a real execution ------------------------------------------------------------------------------------------------


class Plain:
    def decode_call(self, data: bytes) -> tuple[tuple[int], dict[str, Any]]:
        return (int(data),), {}

    def encode_result(self, value: int) -> bytes:
        return str(value).encode()


class Bench:
    """An execution and everything it says, in order."""

    def __init__(self, fn: Any, is_async: bool = True, **options: Any) -> None:
        self.said: list[LogChunk | Report] = []
        definition = SimpleNamespace(fn=fn, is_async=is_async, signature=Plain())
        upstream = upstream_to(clock_us=lambda: 7, reported=self.said.extend, logged=self.said.extend)
        self.execution = TaskExecutor(lambda _: definition, upstream, Capacity(slots=50, threads=4), **options)

    async def run(self, n: int) -> None:
        self.execution.assign([Assignment(bytes(16), i, 1, 1, "t", b"%d" % i, TaskOptions(), 5) for i in range(n)])
        await until(lambda: len(self.reports) == n)

    @property
    def reports(self) -> list[Report]:
        return [r for r in self.said if isinstance(r, Report)]

    @property
    def chunks(self) -> list[LogChunk]:
        return [c for c in self.said if isinstance(c, LogChunk)]


async def test_lines_come_before_the_report_and_chunks_are_numbered(monkeypatch: pytest.MonkeyPatch) -> None:
    async def chatty(n: int) -> int:
        for i in range(200):
            print(f"{n}:{i}")
            if i == 50:
                await until(lambda: any(c.seq == n for c in bench.chunks))
        return n

    bench = Bench(chatty, output_mode="capture")
    await bench.run(3)
    await bench.execution.close()
    for n in range(3):
        mine = [s for s in bench.said if s.seq == n]
        assert isinstance(mine[-1], Report)
        chunks = [c for c in mine if isinstance(c, LogChunk)]
        assert [c.n for c in chunks] == list(range(len(chunks)))
        assert len(chunks) > 1
        assert [line.text for c in chunks for line in c.lines] == [f"{n}:{i}" for i in range(200)]
        assert {c.ns for c in chunks} == {5}


async def test_a_task_that_goes_on_is_heard_while_it_runs() -> None:
    gate = asyncio.Event()

    async def waits(n: int) -> int:
        print("waiting")
        await gate.wait()
        return n

    bench = Bench(waits, output_mode="capture")
    bench.execution.assign([Assignment(bytes(16), 0, 1, 1, "t", b"0", TaskOptions())])
    await until(lambda: bench.chunks)
    assert not bench.reports
    gate.set()
    await until(lambda: bench.reports)
    assert len(bench.chunks) == 1
    await bench.execution.close()


async def test_neighbours_on_one_runner_and_in_threads_are_kept_apart() -> None:
    def speaks(n: int) -> int:
        print("I am", n)
        return n

    bench = Bench(speaks, is_async=False, output_mode="capture")
    await bench.run(40)
    await bench.execution.close()
    assert sorted((c.seq, line.text) for c in bench.chunks for line in c.lines) == [(n, f"I am {n}") for n in range(40)]


async def test_what_reports_set_off_does_not_belong_to_a_task() -> None:
    """Reports are sent in a turn of the loop of their own: what the engine does then must not look like the runner's task."""
    seen: list[object] = []

    async def quick(n: int) -> int:
        return n

    definition = SimpleNamespace(fn=quick, is_async=True, signature=Plain())
    upstream = upstream_to(reported=lambda _: seen.append(current_slot.get(None)))
    execution = TaskExecutor(lambda _: definition, upstream, ONE)
    execution.assign([Assignment(bytes(16), 0, 1, 1, "t", b"0", TaskOptions())])
    await until(lambda: seen)
    assert seen == [None]
    await execution.close()


async def test_a_silent_task_allocates_nothing_for_capture() -> None:
    async def silent(n: int) -> int:
        return n

    bench = Bench(silent)
    await bench.run(10)
    bench.said.clear()
    gc.collect()
    tracemalloc.start()
    await bench.run(200)
    snapshot = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, output.__file__)])
    tracemalloc.stop()
    await bench.execution.close()
    assert sum(s.size for s in snapshot.statistics("filename")) == 0

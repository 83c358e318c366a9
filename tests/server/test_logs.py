"""Logs of processes are lines that say where they come from; output of tasks is kept in the database."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import asyncpg
import pytest
import structlog

from perdure import Perdure, task, workflow
from perdure.programs import logs
from tests.fakes.waiting import until

log = logging.getLogger("tests.shop")


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    """Whatever a test configures is undone."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield io.StringIO()
    for handler in [h for h in root.handlers if h not in handlers]:
        root.removeHandler(handler)
    root.setLevel(level)
    structlog.reset_defaults()


def lines_of(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def line_of(stream: io.StringIO, event: str) -> dict[str, object]:
    (found,) = [x for x in lines_of(stream) if x["event"] == event]
    return found


@task
async def pack(item: str) -> str:
    log.warning("packing %s", item, extra={"weight": 3})
    return item


@task
def ship(item: str) -> str:
    log.info("shipping %s", item)
    return item


@task(retry=1)
async def printing(lines: int) -> None:
    for n in range(lines):
        print(f"line {n}")
    log.error("and a record")
    raise ValueError("after all that")


@workflow
async def shop(item: str) -> str:
    log.info("the shop opens")
    return await ship(await pack(item))


@workflow
async def print_much(lines: int) -> None:
    await printing(lines)


# -- logs of processes ----------------------------------------------------------------------------------------------


def test_what_a_library_adds_to_every_record_is_left_out(stream: io.StringIO) -> None:
    logs.configure("json", "info", stream=stream)
    log.info("hello", extra={"_added_by_a_library": 5, "weight": 3})
    (line,) = lines_of(stream)
    assert line["weight"] == 3 and not [name for name in line if name.startswith("_")]


def test_a_line_of_json_has_time_level_logger_and_event(stream: io.StringIO) -> None:
    logs.configure("json", "info", stream=stream, worker="w-1")
    log.info("hello %s", "you")
    log.debug("too quiet")
    structlog.get_logger("tests.other").info("bound", answer=42)
    first, second = lines_of(stream)
    assert first.pop("timestamp", "")
    assert first == {"event": "hello you", "level": "info", "logger": "tests.shop", "worker": "w-1"}
    assert (second["event"], second["answer"], second["logger"]) == ("bound", 42, "tests.other")


def test_an_error_is_in_the_line_with_its_traceback(stream: io.StringIO) -> None:
    logs.configure("json", "info", stream=stream)
    try:
        raise ValueError("broken")
    except ValueError:
        log.exception("it did not work")
    (line,) = lines_of(stream)
    assert "ValueError: broken" in str(line["exception"])
    assert len(stream.getvalue().splitlines()) == 1


async def test_a_line_from_a_task_says_which(dsn: str, stream: io.StringIO) -> None:
    logs.configure("json", "info", stream=stream)
    async with Perdure(dsn):
        handle = await shop.start("book")
        assert await handle.result() == "book"
    packing, shipping = line_of(stream, "packing book"), line_of(stream, "shipping book")
    assert (packing["run_id"], packing["task"], packing["attempt"], packing["weight"]) == (handle.id, "pack", 1, 3)
    assert (shipping["run_id"], shipping["task"], shipping["seq"]) == (handle.id, "ship", 1)
    opening = line_of(stream, "the shop opens")
    assert opening["run_id"] == handle.id
    assert "task" not in opening


def test_text_is_for_people(stream: io.StringIO) -> None:
    logs.configure("text", "info", stream=stream)
    log.warning("mind the gap", extra={"gap": 7})
    try:
        secret = "sesame"
        raise ValueError(f"broken {len(secret)}")
    except ValueError:
        log.exception("it did not work")
    text = stream.getvalue()
    assert "warning" in text
    assert "mind the gap" in text
    assert "gap=7" in text
    assert "ValueError: broken 6" in text
    assert "\x1b[" not in text, "no colours where there is no terminal"
    assert "'sesame'" not in text, "no local variables"


def test_configuring_again_replaces_and_an_unknown_level_is_refused(stream: io.StringIO) -> None:
    logs.configure("json", "info", stream=io.StringIO())
    logs.configure("json", "error", stream=stream)
    log.info("not this")
    log.error("once")
    assert [x["event"] for x in lines_of(stream)] == ["once"]
    with pytest.raises(ValueError, match="choose one of debug, info"):
        logs.configure("json", "loud")


# -- output of tasks ------------------------------------------------------------------------------------------------


async def kept(dsn: str, run_id: str) -> list[tuple[str, str, str]]:
    connection = await asyncpg.connect(dsn)
    try:
        rows = await connection.fetch(
            "select body, lines from perdure.task_log where run_id = $1 and seq >= 0 order by seq, attempt, n", run_id
        )
    finally:
        await connection.close()
    found = [line for r in rows for line in json.loads(r["body"])]
    assert sum(r["lines"] for r in rows) == len(found)
    return [(stream, level, text) for _, stream, level, text in found]


async def test_output_of_a_task_is_kept_and_there_soon(dsn: str) -> None:
    async with Perdure(dsn) as client:
        handle = await print_much.start(3)
        with pytest.raises(Exception, match="after all that"):
            await handle.result()
        await until(lambda: kept(dsn, handle.id), within_s=5)
        assert client.engine.counters.log_chunks >= 1
    assert await kept(dsn, handle.id) == [
        ("stdout", "info", "line 0"),
        ("stdout", "info", "line 1"),
        ("stdout", "info", "line 2"),
        ("log", "error", "and a record"),
    ]


async def test_the_last_output_is_written_before_the_engine_is_gone(dsn: str) -> None:
    async with Perdure(dsn):
        handle = await print_much.start(2_000)
        with pytest.raises(Exception, match="after all that"):
            await handle.result()
    assert len(await kept(dsn, handle.id)) == 2_001

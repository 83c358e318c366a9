"""What is traced: a parent, its child, tasks of each kind, one that fails once, and one that makes spans of its own."""

from __future__ import annotations

import logging

from opentelemetry import trace

from perdure import Retry, attempt, task, workflow
from tests.fakes.waiting import turns

log = logging.getLogger(__name__)


@task
async def greet(name: str) -> str:
    with trace.get_tracer("user").start_as_current_span("polish the greeting"):
        await turns()
    return f"hello {name}"


@task
def shout(text: str) -> str:
    with trace.get_tracer("user").start_as_current_span("find the loud letters"):
        return text.upper()


@task(retry=Retry(2, delay="10ms"))
async def wobbly() -> int:
    log.warning("wobbling", extra={"colour": "green"})
    if attempt().number == 1:
        raise ValueError("not yet")
    return attempt().number


@task(queue="far")
async def far_away() -> str:
    return "done where the run is not"


@workflow
async def inner(name: str) -> str:
    return await greet(name)


@workflow
async def outer(name: str) -> str:
    said = await inner(name)
    await wobbly()
    await far_away()
    return await shout(said)


@workflow
async def doomed() -> None:
    raise RuntimeError("no way out")

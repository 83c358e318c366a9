"""A DSN with several hosts, as of a cluster that fails over: `postgresql://app@db1:5432,db2:5432/app`.

The driver tries such hosts one after the other within one time limit, so a host that holds a connection open and says nothing (halted, or
behind a firewall that drops packets) would keep the others from being tried. Here each host is a DSN of its own. The one that was used
last goes first; the next begins when one has failed or has been silent for NEXT_HOST_S, and the first that takes writes is used.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from asyncpg import exceptions as pg

NEXT_HOST_S: Final = 0.5
ATTRIBUTE: Final = "target_session_attrs"

_last: dict[str, str] = {}
"""The host that was used last, by DSN. That it may be outdated costs one failed attempt."""


def with_writes(dsn: str) -> str:
    """The DSN as it is given to a driver: of several hosts, the one that takes writes, unless the DSN asks for another kind."""
    parts = urlsplit(dsn)
    if "," not in parts.netloc or ATTRIBUTE in dict(parse_qsl(parts.query)):
        return dsn
    query = [*parse_qsl(parts.query, keep_blank_values=True), (ATTRIBUTE, "read-write")]
    return urlunsplit(parts._replace(query=urlencode(query)))


def each(dsn: str) -> list[str]:
    """One DSN for each host, the one that was used last first."""
    parts = urlsplit(with_writes(dsn))
    user, at, hosts = parts.netloc.rpartition("@")
    found = [urlunsplit(parts._replace(netloc=f"{user}{at}{host}")) for host in hosts.split(",")]
    last = _last.get(dsn)
    return sorted(found, key=lambda one: one != last)


class NoHost(OSError):
    """No host of a DSN can be used."""


async def first(dsn: str, connect: Callable[[str], Awaitable[Any]]) -> Any:
    """The first connection that one of the hosts gives. If all refuse for one reason, such as a wrong password, that is raised as it is."""
    todo = each(dsn)
    if len(todo) == 1:
        return await connect(dsn)
    running: dict[asyncio.Task[Any], str] = {}
    failed: dict[str, Exception] = {}
    try:
        while todo or running:
            if todo:
                one = todo.pop(0)
                running[asyncio.ensure_future(connect(one))] = one
            pause_s = NEXT_HOST_S if todo else None
            done, _ = await asyncio.wait(running, timeout=pause_s, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                one = running.pop(task)
                error = task.exception()
                if error is None:
                    _last[dsn] = one
                    return task.result()
                if not isinstance(error, Exception):
                    raise error
                failed[one] = error
    finally:
        for task in running:
            task.cancel()
            task.add_done_callback(_forgotten)
    errors = list(failed.values())
    if isinstance(errors[0], pg.PostgresError) and len({type(e) for e in errors}) == 1:
        raise errors[0]
    raise NoHost("; ".join(f"{_host(one)}: {_reason(error)}" for one, error in failed.items()))


def _forgotten(task: asyncio.Task[Any]) -> None:
    """An attempt that was not waited for any longer: it may have been made just then."""
    if not task.cancelled() and task.exception() is None:
        task.result().terminate()


def _host(dsn: str) -> str:
    return urlsplit(dsn).netloc.rpartition("@")[2]


def _reason(error: Exception) -> str:
    if isinstance(error, pg.TargetServerAttributeNotMatched):
        return "takes no writes"
    return str(error) or ("no answer" if isinstance(error, TimeoutError) else type(error).__name__)

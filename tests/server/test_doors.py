"""The same act through REST, through gRPC and embedded: the same error, the same audit line, the same author."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest

from perdure import Client, NamedEvent, Perdure, Promise, Signal, Update, flow, task, workflow
from perdure.core import events as ev
from perdure.core import ids
from perdure.core.access import AuditLine
from perdure.core.api import runs
from perdure.core.api.runs import CancelRun, ChangeRun, ListHistory
from perdure.errors import PerdureError
from perdure.sdk.client.backend import ambient
from perdure.server.grpc.connected_workers import ConnectedWorkers
from perdure.server.grpc.hub import WorkerHub
from perdure.server.grpc.server import GrpcServer
from tests.server.rest_live import Live, live

hear = Signal("doors_hear", int)
given = Promise("doors_given", int)
change = Update("doors_change", int, int)
news = NamedEvent("doors_news", int)
FLOW = {
    "flow": "doors_flow",
    "input": {
        "type": "object",
        "properties": {"day": {"type": "string"}},
        "required": ["day"],
        "additionalProperties": False,
    },
    "tasks": {"a": {"value": 1}},
}


@workflow(name="doors_open")
async def open_() -> int:
    change.handle(lambda n: n + 1)
    first = await hear.next()
    return first + await given.wait()


@task(name="doors_fails", retry=1)
async def fails() -> None:
    raise ValueError("no")


@workflow(name="doors_failing")
async def failing() -> None:
    await fails()
    await given.wait()


@workflow(name="doors_code")
async def code(name: str, copies: int = 1) -> str:
    return name * copies


class Door:
    """One way in. Each act answers the id or name of what it was done to."""

    def __init__(self, name: str, client: Client | Perdure | None, rest: Live) -> None:
        self.name, self._client, self._rest = name, client, rest

    async def __call__(self, act: str, *args: Any) -> str:
        if self._client is None:
            return str(await getattr(self, f"rest_{act}")(*args))
        token = ambient.set(self._client._backend)
        try:
            return str(await getattr(self, f"sdk_{act}")(*args))
        finally:
            ambient.reset(token)

    async def sdk_start(self) -> str:
        return (await open_.start()).id

    async def rest_start(self) -> str:
        return str((await self._rest_post("/workflows/doors_open/runs", {}))["id"])

    async def sdk_signal(self, run: str) -> str:
        await hear.send(run, 1)
        return run

    async def rest_signal(self, run: str) -> str:
        await self._rest_post(f"/runs/{run}/signals/doors_hear", 1)
        return run

    async def sdk_update(self, run: str) -> str:
        await change.ask(run, 1)
        return run

    async def rest_update(self, run: str) -> str:
        await self._rest_post(f"/runs/{run}/updates/doors_change", {"value": 1})
        return run

    async def sdk_resolve(self, run: str) -> str:
        await given.resolve(run, 1)
        return run

    async def rest_resolve(self, run: str) -> str:
        await self._rest_post(f"/runs/{run}/promises/doors_given", 1)
        return run

    async def sdk_cancel(self, run: str) -> str:
        await self.client._backend.call(runs.CANCEL, CancelRun(run))
        return run

    async def rest_cancel(self, run: str) -> str:
        await self._rest_post(f"/runs/{run}/cancel", {})
        return run

    async def sdk_retry(self, run: str) -> str:
        await self.client._backend.call(runs.RETRY, ChangeRun(run))
        return run

    async def rest_retry(self, run: str) -> str:
        await self._rest_post(f"/runs/{run}/retry", None)
        return run

    async def sdk_resume(self, run: str) -> str:
        await self.client._backend.call(runs.RESUME, ChangeRun(run))
        return run

    async def rest_resume(self, run: str) -> str:
        await self._rest_post(f"/runs/{run}/resume", None)
        return run

    async def sdk_emit(self) -> str:
        await news.emit(1)
        return news.name

    async def rest_emit(self) -> str:
        await self._rest_post("/events/doors_news", {"payload": 1})
        return news.name

    async def sdk_run_flow(self, input: dict[str, Any]) -> str:
        return (await flow("doors_flow").start(**input)).id

    async def rest_run_flow(self, input: dict[str, Any]) -> str:
        return str((await self._rest_post("/workflows/doors_flow/runs", {"input": input}))["id"])

    async def sdk_run_code(self, input: dict[str, Any]) -> str:
        return (await flow("doors_code").start(**input)).id

    async def rest_run_code(self, input: dict[str, Any]) -> str:
        return str((await self._rest_post("/workflows/doors_code/runs", {"kwargs": input}))["id"])

    async def sdk_run_unknown(self) -> str:
        return (await flow("doors_nowhere").start()).id

    async def rest_run_unknown(self) -> str:
        return str((await self._rest_post("/workflows/doors_nowhere/runs", {}))["id"])

    @property
    def client(self) -> Client | Perdure:
        assert self._client is not None
        return self._client

    async def _rest_post(self, path: str, body: Any) -> Any:
        answer = await self._rest.http.post(path, json=body)
        if answer.status_code >= 400:
            error = PerdureError(answer.text)
            error.code = answer.json()["code"]  # type: ignore[misc]
            raise error
        return answer.json() if answer.content else None


@asynccontextmanager
async def doors(dsn: str) -> AsyncIterator[tuple[list[Door], Live]]:
    async with live(dsn) as rest:
        for one in (open_, failing, code):
            rest.perdure._backend.adopt(one)
        await rest.perdure.engine.refresh()
        await rest.perdure.deploy(FLOW)
        served = GrpcServer(
            rest.server.api, WorkerHub(rest.server.api.engine, ConnectedWorkers()), rest.server.auth, "127.0.0.1:0"
        )  # type: ignore[arg-type]
        await served.start()
        try:
            async with Client(f"127.0.0.1:{served.port}") as client:
                ways: dict[str, Client | Perdure | None] = {"rest": None, "grpc": client, "embedded": rest.perdure}
                yield [Door(name, way, rest) for name, way in ways.items()], rest
        finally:
            await served.stop(0.5)


async def _code(act: Callable[[], Awaitable[str]]) -> str:
    try:
        await act()
    except PerdureError as e:
        return e.code
    return ""


def _shape(line: AuditLine, target: str) -> tuple[Any, ...]:
    """An audit line without what is different each time."""
    detail = {k: v for k, v in (line.detail or {}).items() if k != "id"}
    return line.actor, line.action, line.target == target, detail


async def _lines(rest: Live) -> list[AuditLine]:
    return list(reversed((await rest.server.api.ports.audit.page(None, limit=500)).items))


@pytest.mark.parametrize("act", ["start", "signal", "update", "resolve", "cancel", "retry", "emit"])
async def test_an_act_is_recorded_the_same_through_every_door(act: str, dsn: str) -> None:
    seen: dict[str, list[tuple[Any, ...]]] = {}
    authors: dict[str, str] = {}
    async with doors(dsn) as (ways, rest):
        for door in ways:
            args: list[str] = []
            if act == "retry":
                handle = await rest.perdure.start(failing)
                with pytest.raises(PerdureError):
                    await handle.result()
                args = [handle.id]
            elif act not in ("start", "emit"):
                args = [(await rest.perdure.start(open_)).id]
            before = len(await _lines(rest))
            target = await door(act, *args)
            seen[door.name] = [_shape(line, target) for line in (await _lines(rest))[before:]]
            authors[door.name] = await _author(act, target, rest, dsn)
    assert seen["rest"] == seen["grpc"] and len(seen["rest"]) == 1, seen
    actor, action, names_it, _ = seen["rest"][0]
    assert actor and action.endswith(act if act != "start" else "run.start") and names_it
    assert seen["embedded"] == [], "a program with the database at hand has no credential to record"
    if act in ("retry", "emit"):
        assert authors == {"rest": actor, "grpc": actor, "embedded": "embedded"}


async def _author(act: str, target: str, rest: Live, dsn: str) -> str:
    """Whom the history, or the event itself, names."""
    if act == "retry":
        history = (await rest.perdure._backend.call(runs.HISTORY, ListHistory(target))).items
        return next(r.event.by for r in history if isinstance(r.event, ev.RunRetried))
    if act == "emit":
        connection = await asyncpg.connect(dsn)
        try:
            return str(await connection.fetchval("select source from perdure.named_event order by id desc limit 1"))
        finally:
            await connection.close()
    return ""


async def test_refusals_are_the_same_through_every_door(dsn: str) -> None:
    async with doors(dsn) as (ways, rest):
        open_run = (await rest.perdure.start(open_)).id
        nowhere = ids.text(bytes(16))
        acts: dict[str, tuple[str, list[Any], str]] = {
            "a flow without what it requires": ("run_flow", [{}], "invalid_input"),
            "a flow with a wrong type": ("run_flow", [{"day": 7}], "invalid_input"),
            "a flow with something unknown": ("run_flow", [{"day": "mo", "dya": "mo"}], "invalid_input"),
            "code without what it requires": ("run_code", [{}], "invalid_input"),
            "code with something unknown": ("run_code", [{"name": "a", "nmae": "a"}], "invalid_input"),
            "an unknown workflow": ("run_unknown", [], "not_registered"),
            "a run that is not stuck": ("resume", [open_run], "conflict"),
            "a run that is not there to resume": ("resume", [nowhere], "not_found"),
            "a run that has not failed": ("retry", [open_run], "conflict"),
            "a run that is not there to signal": ("signal", [nowhere], "not_found"),
        }
        before = len(await _lines(rest))
        for what, (act, args, code) in acts.items():
            codes = {door.name: await _code(lambda d=door, a=act, g=args: d(a, *g)) for door in ways}  # type: ignore[misc]
            assert codes == dict.fromkeys(codes, code), what
        assert len(await _lines(rest)) == before, "what is refused is not audited"
        found = await rest.get("/runs", workflow="doors_flow")
        found["items"] += (await rest.get("/runs", workflow="doors_code"))["items"]
        assert found["items"] == [], "a run that could not begin was written"
        for door in ways:
            await door("run_code", {"name": "a"})


async def test_audit_lines_of_many_acts_are_written_together_and_none_is_lost(dsn: str) -> None:
    async with doors(dsn) as (ways, rest):
        grpc = next(d for d in ways if d.name == "grpc")
        before = len(await _lines(rest))
        started = await asyncio.gather(*(grpc("start") for _ in range(50)))
        lines = (await _lines(rest))[before:]
        assert sorted(line.target for line in lines) == sorted(started)

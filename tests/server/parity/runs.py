"""Scenarios of runs and of messages to them."""

from __future__ import annotations

from typing import Any

import msgspec

from perdure.core import ids
from perdure.core.api import attempts, definitions, inspection, messages, repairs, run_paths, runs
from perdure.core.api.attempts import ListAttempts
from perdure.core.api.definitions import DeployFlow, FlowText
from perdure.core.api.inspection import DiffRuns, ExportRun, GetRunAt
from perdure.core.api.messages import (
    AskQuery,
    AskUpdate,
    GetUpdate,
    ListStates,
    ReadState,
    ResolvePromise,
    SendSignal,
    SignalWithStart,
)
from perdure.core.api.repairs import ForkRun, OverrideNode, RerunRun
from perdure.core.api.run_paths import FindPaths
from perdure.core.api.runs import (
    AwaitRun,
    CancelRun,
    ChangeRun,
    GetRun,
    ListChildren,
    ListHistory,
    ListLogs,
    ListRuns,
    ListTasks,
    PauseRun,
    RunFilter,
    TerminateRun,
)
from perdure.core.lifecycle import RunStatus, TaskStatus
from perdure.core.work import StartRequest
from tests.server.parity.stage import CALL, NOWHERE, Refusal, Rest, Scenario, Stage, done, each, within

MISSING = (NOWHERE, "not_found")


def start(key: str, workflow: str = "parity_wait") -> StartRequest:
    return StartRequest(workflow=workflow, version="", input=CALL, key=key, registered_only=True)


async def ended(stage: Stage) -> str:
    return await stage.ended(done)


async def logged(stage: Stage) -> str:
    run = await stage.ended(done)
    await stage.perdure.engine.task_logs.write()
    return run


async def failed(stage: Stage) -> str:
    return await stage.failed()


async def broken_flow(stage: Stage) -> str:
    source = "flow: parity-broken\ntasks: {a: {value: '${ 1 / 0 }'}}\n"
    await stage.embedded(definitions.DEPLOY, DeployFlow(FlowText(source=source)))
    begun = await stage.embedded(runs.START, start("", "parity-broken"))
    await stage.embedded(runs.RESULT, AwaitRun(ids.text(begun.run_id), 30))
    return ids.text(begun.run_id)


async def waiting(stage: Stage) -> str:
    return await stage.waiting()


async def stuck(stage: Stage) -> str:
    return await stage.stuck()


async def updated(stage: Stage) -> str:
    run = await stage.waiting()
    await stage.embedded(messages.UPDATE, AskUpdate(run, "parity_change", b"1", "parity-key"))
    return run


async def listed(stage: Stage) -> str:
    await stage.ended(done)
    await stage.ended(done)
    return "parity_done"


def unknown_start(name: str) -> Refusal:
    rest = Rest("POST", "/workflows/parity_nowhere/runs", {"key": name})
    return Refusal(code="not_registered", request=start(name, "parity_nowhere"), rest=rest)


def reserved_key(name: str) -> Refusal:
    rest = Rest("POST", "/workflows/parity_wait/runs", {"key": "idem:x"})
    return Refusal(code="invalid_input", request=start("idem:x"), rest=rest)


def unknown_signal(name: str) -> Refusal:
    rest = Rest(
        "POST", "/workflows/parity_nowhere/signal-with-start", {"key": name, "signal": "parity_hear", "value": 1}
    )
    return Refusal(
        code="not_registered",
        request=SignalWithStart(start(name, "parity_nowhere"), "parity_hear", b"1"),
        rest=rest,
    )


def wrong_query(name: str) -> Refusal:
    return Refusal(
        code="invalid_input",
        request=ListRuns(RunFilter(query="stauts = failed")),
        rest=Rest("GET", "/runs", params={"query": "stauts = failed"}),
    )


def paths_of_many(name: str) -> Refusal:
    return Refusal(
        code="invalid_input",
        request=FindPaths(workflows=("a", "b"), ended=True),
        rest=Rest("GET", "/run-paths", params={"workflow": ["a", "b"], "ended": True}),
    )


def run_word(reply: Any) -> dict[str, Any]:
    return {"status": RunStatus(reply.status).word}


SUMMARY = "run_id=id workflow version key created_us=created_at finished_us=finished_at stuck successor"
ITEM = f"{SUMMARY} attributes error_code=error.code error=error.message epoch parent_id"

SCENARIOS = (
    Scenario(
        act=runs.START,
        request=start,
        rest=lambda s: Rest("POST", "/workflows/parity_wait/runs", {"key": s}),
        fields="run_id=id",
        shows=lambda r: {"http": 201 if r.is_new else 200},
        refusal=unknown_start,
    ),
    Scenario(
        act=runs.START,
        request=lambda s: start(s, "parity_done"),
        rest=lambda s: Rest("POST", "/workflows/parity_done/runs", {"key": s}),
        fields="run_id=id",
        refusal=reserved_key,
    ),
    Scenario(
        act=runs.RUN,
        request=lambda s: start(s, "parity_done"),
        rest=None,
        refusal=unknown_start,
    ),
    Scenario(
        act=runs.LIST,
        setup=listed,
        request=lambda s: ListRuns(RunFilter(workflow=s), limit=1),
        rest=lambda s: Rest("GET", "/runs", params={"workflow": s, "limit": 1}),
        fields=each(ITEM),
        shows=lambda r: {"items": [{"status": RunStatus(i.status).word} for i in r.items]},
        refusal=wrong_query,
    ),
    Scenario(
        act=runs.STATUS,
        setup=ended,
        request=GetRun,
        rest=lambda s: Rest("GET", f"/runs/{s}/status"),
        fields=SUMMARY,
        shows=run_word,
        nowhere=MISSING,
    ),
    Scenario(
        act=runs.GET,
        setup=failed,
        request=GetRun,
        rest=lambda s: Rest("GET", f"/runs/{s}"),
        fields=f"{within(SUMMARY, 'item')} events retry_refused",
        shows=lambda r: {
            **run_word(r.item),
            "error": {"code": r.item.error_code},
            "tasks": {TaskStatus(s).word: n for s, n in r.tasks.items()},
        },
        nowhere=MISSING,
    ),
    Scenario(
        act=runs.RESULT,
        setup=ended,
        request=lambda s: AwaitRun(s, 30),
        rest=lambda s: Rest("GET", f"/runs/{s}/result", params={"wait": 30}),
        fields="outcome.value=result outcome.failure=error",
        shows=lambda r: {"http": 200, **run_word(r.outcome)},
        nowhere=MISSING,
    ),
    Scenario(
        act=runs.TASKS,
        setup=ended,
        request=ListTasks,
        rest=lambda s: Rest("GET", f"/runs/{s}/tasks"),
        fields="items[].id items[].seq items[].name items[].queue items[].attempts items[].lost items[].error next "
        "items[].scheduled_us=items[].scheduled_at items[].finished_us=items[].finished_at",
        shows=lambda r: {"items": [{"status": TaskStatus(i.status).word} for i in r.items]},
        nowhere=MISSING,
    ),
    Scenario(
        act=runs.LOGS,
        setup=logged,
        request=ListLogs,
        rest=lambda s: Rest("GET", f"/runs/{s}/logs"),
        fields="items[].seq items[].task items[].attempt items[].line.text=items[].text "
        "items[].line.at_us=items[].at items[].line.stream=items[].stream",
        nowhere=MISSING,
    ),
    Scenario(
        act=attempts.LIST,
        setup=logged,
        request=ListAttempts,
        rest=lambda s: Rest("GET", f"/runs/{s}/attempts"),
        fields="items[].seq items[].name items[].epoch items[].attempt items[].outcome items[].is_last items[].worker next "
        "items[].started_us=items[].started_at items[].finished_us=items[].finished_at",
        nowhere=MISSING,
    ),
    Scenario(
        act=runs.HISTORY,
        setup=ended,
        request=ListHistory,
        rest=lambda s: Rest("GET", f"/runs/{s}/history", params={"limit": 100}),
        fields="items[].seq items[].at_us=items[].at",
        shows=lambda r: {"items": [{"type": type(i.event).__name__} for i in r.items]},
        nowhere=MISSING,
    ),
    Scenario(
        act=run_paths.PATHS,
        setup=listed,
        request=lambda s: FindPaths(workflows=(s,), ended=True, limit=2),
        rest=lambda s: Rest("GET", "/run-paths", params={"workflow": s, "ended": True, "limit": 2}),
        fields=each("workflow kind steps runs samples[].run_id=samples[].id samples[].values samples[].detail"),
        refusal=paths_of_many,
    ),
    Scenario(
        act=runs.CHILDREN,
        setup=waiting,
        request=ListChildren,
        rest=lambda s: Rest("GET", f"/runs/{s}/children"),
        nowhere=MISSING,
    ),
    Scenario(
        act=runs.CANCEL,
        setup=waiting,
        request=lambda s: CancelRun(s, "enough"),
        rest=lambda s: Rest("POST", f"/runs/{s}/cancel", {"reason": "enough"}),
        nowhere=MISSING,
    ),
    Scenario(
        act=runs.TERMINATE,
        setup=waiting,
        request=lambda s: TerminateRun(s, "enough"),
        rest=lambda s: Rest("POST", f"/runs/{s}/terminate", {"reason": "enough"}),
        nowhere=MISSING,
    ),
    Scenario(
        act=runs.PAUSE,
        setup=waiting,
        request=lambda s: PauseRun(s, "a break"),
        rest=lambda s: Rest("POST", f"/runs/{s}/pause", {"reason": "a break"}),
        nowhere=MISSING,
    ),
    Scenario(
        act=runs.DELETE,
        setup=failed,
        request=ChangeRun,
        rest=lambda s: Rest("DELETE", f"/runs/{s}"),
        nowhere=MISSING,
    ),
    Scenario(
        act=runs.RETRY,
        setup=failed,
        request=ChangeRun,
        rest=lambda s: Rest("POST", f"/runs/{s}/retry"),
        nowhere=MISSING,
    ),
    Scenario(
        act=runs.RESUME,
        setup=stuck,
        request=ChangeRun,
        rest=lambda s: Rest("POST", f"/runs/{s}/resume"),
        nowhere=MISSING,
    ),
    Scenario(
        act=inspection.AT,
        setup=ended,
        request=lambda s: GetRunAt(s, 2),
        rest=lambda s: Rest("GET", f"/runs/{s}/at/2"),
        fields="run_id=id workflow version status at at_us=time event events outstanding[].kind outstanding[].seq "
        "outstanding[].name outstanding[].since",
        nowhere=MISSING,
    ),
    Scenario(
        act=inspection.DIFF,
        setup=ended,
        request=lambda s: DiffRuns(s, s),
        rest=lambda s: Rest("GET", f"/runs/{s}/diff", params={"other": s}),
        fields="one.run_id=one.id one.status other.status differs same parted omitted",
        nowhere=MISSING,
    ),
    Scenario(
        act=inspection.EXPORT,
        setup=ended,
        request=ExportRun,
        rest=lambda s: Rest("GET", f"/runs/{s}/export"),
        shows=lambda r: {"events": [{"type": e["type"]} for e in msgspec.json.decode(r.document)["events"]]},
        nowhere=MISSING,
    ),
    Scenario(
        act=repairs.RERUN,
        setup=ended,
        request=lambda s: RerunRun(run=s),
        rest=lambda s: Rest("POST", f"/runs/{s}/rerun", {}),
        fields="run_id=id",
        made="run_id=id",
        shows=lambda r: {"http": 201 if r.is_new else 200},
        nowhere=MISSING,
    ),
    Scenario(
        act=repairs.FORK,
        setup=ended,
        request=lambda s: ForkRun(run=s, at=2),
        rest=lambda s: Rest("POST", f"/runs/{s}/fork", {"at": 2}),
        fields="run_id=id",
        made="run_id=id",
        shows=lambda r: {"http": 201 if r.is_new else 200},
        nowhere=MISSING,
    ),
    Scenario(
        act=repairs.OVERRIDE,
        setup=broken_flow,
        request=lambda s: OverrideNode(s, "a", "set", b"1"),
        rest=lambda s: Rest("POST", f"/runs/{s}/override", {"node": "a", "how": "set", "value": 1}),
        nowhere=MISSING,
    ),
    Scenario(
        act=messages.SIGNAL,
        setup=waiting,
        request=lambda s: SendSignal(s, "parity_hear", b"1"),
        rest=lambda s: Rest("POST", f"/runs/{s}/signals/parity_hear", 1),
        nowhere=MISSING,
    ),
    Scenario(
        act=messages.SIGNAL_WITH_START,
        request=lambda s: SignalWithStart(start(s), "parity_hear", b"1"),
        rest=lambda s: Rest(
            "POST", "/workflows/parity_wait/signal-with-start", {"key": s, "signal": "parity_hear", "value": 1}
        ),
        fields="run_id=id",
        shows=lambda r: {"http": 201 if r.is_new else 200},
        refusal=unknown_signal,
    ),
    Scenario(
        act=messages.RESOLVE,
        setup=waiting,
        request=lambda s: ResolvePromise(s, "parity_given", b"1"),
        rest=lambda s: Rest("POST", f"/runs/{s}/promises/parity_given", 1),
        nowhere=MISSING,
    ),
    Scenario(
        act=messages.UPDATE,
        setup=waiting,
        request=lambda s: AskUpdate(s, "parity_change", b"1", "parity-key"),
        rest=lambda s: Rest("POST", f"/runs/{s}/updates/parity_change", {"value": 1, "key": "parity-key"}),
        fields="answer.value=value",
        shows=lambda r: {"key": "parity-key", "status": "done" if r.answer else "pending"},
        nowhere=MISSING,
    ),
    Scenario(
        act=messages.UPDATE_RESULT,
        setup=updated,
        request=lambda s: GetUpdate(s, "parity-key"),
        rest=lambda s: Rest("GET", f"/runs/{s}/updates/parity-key"),
        fields="answer.value=value",
        nowhere=MISSING,
    ),
    Scenario(
        act=messages.STATE,
        setup=waiting,
        request=lambda s: ReadState(s, "parity_note"),
        rest=lambda s: Rest("GET", f"/runs/{s}/state/parity_note"),
        fields="value",
        nowhere=MISSING,
    ),
    Scenario(
        act=messages.QUERY,
        setup=waiting,
        request=lambda s: AskQuery(s, "noted", b'{"times":2}'),
        rest=lambda s: Rest("POST", f"/runs/{s}/queries/noted", {"times": 2}),
        fields="value",
        shows=lambda r: {"name": "noted"},
        nowhere=MISSING,
    ),
    Scenario(
        act=messages.STATES,
        setup=waiting,
        request=ListStates,
        rest=lambda s: Rest("GET", f"/runs/{s}/state"),
        fields="items[].0=items[].name items[].1=items[].value next",
        nowhere=MISSING,
    ),
)

"""Tools that change something. They exist only where the user allows them, and need the permission of their act on the server."""

from __future__ import annotations

from typing import Annotated, Any
from uuid import uuid4

from pydantic import Field

from perdure.core.api import approvals, dead_letters, flow_control, messages, named_events, repairs, runs, schedules
from perdure.core.limits import IDEMPOTENCY_KEY_CHARS_MAX, NAME_CHARS_MAX
from perdure.core.questions import QUESTION_CHARS
from perdure.mcp.reading import ALL_DEAD_LETTERS, WAIT_S_MAX, DeadLetterFilters
from perdure.mcp.tools import (
    PAGE_DEFAULT,
    PAGE_MAX,
    TEXT_ARGUMENT_CHARS_MAX,
    Answer,
    NameArgument,
    RunArgument,
    changes,
)
from perdure.programs.http_client import HttpApi, segment

Reason = Annotated[str, Field(max_length=TEXT_ARGUMENT_CHARS_MAX, description="Kept on record and shown to people.")]
KeyArgument = Annotated[
    str | None,
    Field(
        min_length=1,
        max_length=IDEMPOTENCY_KEY_CHARS_MAX,
        description="A text of your own: sent twice under the same one, it has its effect once.",
    ),
]
Comment = Annotated[
    str, Field(max_length=TEXT_ARGUMENT_CHARS_MAX, description="Kept with the answer and shown to people.")
]
Question = Annotated[
    str,
    Field(
        max_length=QUESTION_CHARS,
        description="The approval's question as list_approvals gave it. Always give it: the answer is refused if the run asks another one now.",
    ),
]
DONE: Answer = {"result": {"done": True}}


@changes(runs.START, is_destructive=False)
def start_run(
    api: HttpApi,
    workflow: NameArgument,
    input: Annotated[
        Any, Field(description="An object: arguments by name. Null: none. Anything else: the one argument.")
    ] = None,
    key: Annotated[
        str | None,
        Field(min_length=1, max_length=NAME_CHARS_MAX, description="Your own id of the run, unique in the namespace."),
    ] = None,
    attributes: Annotated[
        dict[str, str | bool | int | float], Field(description="Search attributes, to find the run by.")
    ] = {},  # noqa: B006
    idempotency_key: KeyArgument = None,
) -> Answer:
    """Start a run of a workflow. get_workflow has the JSON Schema of the input."""
    body = {"input": input, "key": key, "attributes": attributes}
    return {
        "result": api.post(f"/workflows/{segment(workflow)}/runs", body, idempotency_key=idempotency_key or uuid4().hex)
    }


@changes(repairs.RERUN, is_destructive=False)
def rerun_run(
    api: HttpApi,
    run: RunArgument,
    edits: Annotated[
        dict[str, Any], Field(description='Fields of the input that change, by path: {"order.amount": 42}.')
    ] = {},  # noqa: B006
    idempotency_key: KeyArgument = None,
) -> Answer:
    """Start a new run of the same workflow, with the same or an edited input."""
    return {"result": api.post(f"{_run(run)}/rerun", {"edits": edits}, idempotency_key=idempotency_key or uuid4().hex)}


@changes(runs.RETRY, is_destructive=False)
def retry_run(api: HttpApi, run: RunArgument) -> Answer:
    """Continue a failed run where it failed: succeeded tasks keep their results, failed ones run again."""
    return {"result": api.post(f"{_run(run)}/retry")}


@changes(dead_letters.RETRY, is_destructive=False)
def retry_dead_letters(
    api: HttpApi,
    filters: DeadLetterFilters = ALL_DEAD_LETTERS,
    limit: Annotated[int, Field(ge=1, le=PAGE_MAX, description="Dead letters to go through at most.")] = PAGE_DEFAULT,
    dry_run: Annotated[bool, Field(description="Only report what would be retried.")] = True,
) -> Answer:
    """Retry the runs of dead letters that match. Reports only, unless dry_run is false."""
    return {"result": api.post("/dead-letters/retry", {**dict(filters.params), "limit": limit, "dry_run": dry_run})}


@changes(runs.CANCEL, is_destructive=True)
def cancel_run(api: HttpApi, run: RunArgument, reason: Reason = "") -> Answer:
    """Ask a run to stop. Its code may clean up and undo, then it ends cancelled."""
    return {"result": api.post(f"{_run(run)}/cancel", {"reason": reason})}


@changes(runs.TERMINATE, is_destructive=True)
def terminate_run(api: HttpApi, run: RunArgument, reason: Reason = "") -> Answer:
    """End a run at once, in any state. None of its code runs and nothing is undone; cancel_run is the gentle way."""
    return {"result": api.post(f"{_run(run)}/terminate", {"reason": reason})}


@changes(runs.PAUSE, is_destructive=False)
def pause_run(api: HttpApi, run: RunArgument, reason: Reason = "") -> Answer:
    """Start nothing new of a run until it is resumed. Running tasks end as usual."""
    return {"result": api.post(f"{_run(run)}/pause", {"reason": reason})}


@changes(runs.RESUME, is_destructive=False)
def resume_run(api: HttpApi, run: RunArgument) -> Answer:
    """Resume a paused run, or a stuck run after its code was repaired."""
    return {"result": api.post(f"{_run(run)}/resume")}


@changes(messages.SIGNAL, is_destructive=True)
def signal_run(
    api: HttpApi,
    run: RunArgument,
    name: NameArgument,
    value: Annotated[Any, Field(description="The value of the signal; any JSON.")] = None,
    idempotency_key: KeyArgument = None,
) -> Answer:
    """Send a signal to a run. What it does is up to the workflow."""
    api.post(f"{_run(run)}/signals/{segment(name)}", value, idempotency_key=idempotency_key or uuid4().hex)
    return DONE


@changes(messages.UPDATE, is_destructive=True)
def update_run(
    api: HttpApi,
    run: RunArgument,
    name: NameArgument,
    value: Annotated[Any, Field(description="What is asked for; any JSON.")] = None,
    key: KeyArgument = None,
) -> Answer:
    """Send an update to a run and get its reply. What it does is up to the workflow. `pending`: it has not replied in time."""
    body = {"value": value, "key": key or uuid4().hex, "wait": min(WAIT_S_MAX, api.answer_s / 2)}
    return {"result": api.post(f"{_run(run)}/updates/{segment(name)}", body)}


@changes(messages.RESOLVE, is_destructive=True)
def resolve_promise(
    api: HttpApi,
    run: RunArgument,
    name: NameArgument,
    value: Annotated[Any, Field(description="The value of the promise; any JSON.")] = None,
) -> Answer:
    """Give a promise that a run waits for its value. The first value stands."""
    api.post(f"{_run(run)}/promises/{segment(name)}", value)
    return DONE


@changes(approvals.ANSWER, is_destructive=True)
def approve(
    api: HttpApi,
    run: RunArgument,
    name: NameArgument,
    value: Annotated[Any, Field(description="The fields of the approval's form; list_approvals shows it.")] = None,
    comment: Comment = "",
    question: Question = "",
) -> Answer:
    """Approve what a run asks for, as the owner of the API key. Only for those who are asked."""
    body = {"value": value, "comment": comment, "question": question}
    return {"result": api.post(f"/approvals/{segment(run)}/{segment(name)}/approve", body)}


@changes(approvals.ANSWER, is_destructive=True)
def reject(
    api: HttpApi, run: RunArgument, name: NameArgument, comment: Comment = "", question: Question = ""
) -> Answer:
    """Reject what a run asks for, as the owner of the API key. Only for those who are asked."""
    body = {"comment": comment, "question": question}
    return {"result": api.post(f"/approvals/{segment(run)}/{segment(name)}/reject", body)}


@changes(named_events.EMIT, is_destructive=True)
def emit_event(
    api: HttpApi,
    name: NameArgument,
    payload: Annotated[Any, Field(description="The payload of the event; any JSON.")] = None,
    key: KeyArgument = None,
) -> Answer:
    """Emit a named event. It reaches every run that waits for it, and starts runs of workflows that subscribe to it."""
    body = {"payload": payload, "key": key}
    return {"result": api.post(f"/events/{segment(name)}", body, idempotency_key=uuid4().hex)}


@changes(schedules.TRIGGER, is_destructive=False)
def trigger_schedule(api: HttpApi, name: NameArgument) -> Answer:
    """Start a run of a schedule now, beside its times."""
    return {"result": api.post(f"/schedules/{segment(name)}/trigger")}


@changes(schedules.PAUSE, is_destructive=False)
def pause_schedule(api: HttpApi, name: NameArgument, reason: Reason = "") -> Answer:
    """Pause a schedule: it fires nothing until it is resumed."""
    return {"result": api.post(f"/schedules/{segment(name)}/pause", {"reason": reason})}


@changes(schedules.RESUME, is_destructive=False)
def resume_schedule(api: HttpApi, name: NameArgument) -> Answer:
    """Resume a paused schedule. Times that passed meanwhile are not made up for."""
    return {"result": api.post(f"/schedules/{segment(name)}/resume")}


@changes(flow_control.PAUSE, is_destructive=False)
def pause_queue(api: HttpApi, name: NameArgument, reason: Reason = "") -> Answer:
    """Pause a queue: no task of it starts until it is resumed. Running tasks end as usual."""
    return {"result": api.post(f"/queues/{segment(name)}/pause", {"reason": reason})}


@changes(flow_control.RESUME, is_destructive=False)
def resume_queue(api: HttpApi, name: NameArgument) -> Answer:
    """Resume a paused queue."""
    api.post(f"/queues/{segment(name)}/resume")
    return DONE


def _run(run: str) -> str:
    return f"/runs/{segment(run)}"

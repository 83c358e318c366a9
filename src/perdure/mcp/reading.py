"""Tools that read. None of them changes anything."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, Field

from perdure.core.api import (
    approvals,
    attempts,
    cluster,
    dead_letters,
    definitions,
    flow_control,
    inspection,
    messages,
    named_events,
    runs,
    schedules,
    versions,
    workflow_runs,
)
from perdure.core.errors import InvalidInput, NotFound
from perdure.core.limits import NAME_CHARS_MAX, QUERY_CHARS_MAX
from perdure.mcp.bounds import TEXT_CHARS_MAX, at_pointer
from perdure.mcp.tools import (
    FIRST,
    TEXT_ARGUMENT_CHARS_MAX,
    TIME_CHARS_MAX,
    Answer,
    NameArgument,
    NameFilter,
    Page,
    PageRequest,
    RunArgument,
    fetch_page,
    given,
    reads,
)
from perdure.programs.http_client import HttpApi, segment

WAIT_S_MAX: Final = 20.0
"""How long a tool waits for the end of a run."""
HISTORY_PAGE: Final = 500
EVENTS_SEARCHED_MAX: Final = 5_000
"""Events of a history that are searched for the values of a task."""
ENDS: Final = ("result", "failure", "attempts")
"""What a retry of the run takes back."""
SEQ_MAX: Final = 2**31 - 1
SLICE_CHARS_MAX: Final = 4 * TEXT_CHARS_MAX
"""Characters of a text that one call reads."""

RunWord = Literal["pending", "running", "success", "failed", "cancelled"]
TaskWord = Literal["pending", "dispatched", "running", "success", "failed", "skipped", "cancelled"]
When = Annotated[
    str | None, Field(max_length=TIME_CHARS_MAX, description="A time with its zone, or how long ago: 2h, 1d.")
]
TaskNumber = Annotated[
    int, Field(ge=0, lt=SEQ_MAX, description="The task's number in its run: `seq` in lists of tasks.")
]


@reads(runs.LIST)
def list_runs(
    api: HttpApi,
    query: Annotated[
        str,
        Field(
            max_length=QUERY_CHARS_MAX,
            description="Terms joined by and, or, not: status = failed and workflow = order and attr.total > 100 and created > -2h. "
            "Fields: status, workflow, version, key, error_code, id, parent, created, finished, waiting_on, stuck, paused, attr.NAME. "
            "Operators: = != < <= > >= in (a, b), prefix, exists.",
        ),
    ] = "",
    status: RunWord | None = None,
    workflow: NameFilter = "",
    text: Annotated[
        str,
        Field(max_length=NAME_CHARS_MAX, description="Part of the key, workflow or error, or the beginning of the id."),
    ] = "",
    waiting_on: Annotated[
        str,
        Field(
            max_length=NAME_CHARS_MAX,
            description="Active runs that wait for: approval, signal, event, promise, limit, retry, no_worker, ...",
        ),
    ] = "",
    page: PageRequest = FIRST,
) -> Page:
    """List runs, newest first, with what active ones wait for. All filters that are given must match."""
    filters = given(query=query, status=status, workflow=workflow, q=text, waiting_on=waiting_on)
    return fetch_page(api, "/runs", [*filters, ("waits", "true")], page)


@reads(runs.COUNT)
def count_runs(
    api: HttpApi,
    query: Annotated[str, Field(max_length=QUERY_CHARS_MAX, description="As in list_runs.")] = "",
    status: RunWord | None = None,
    workflow: NameFilter = "",
) -> Answer:
    """Count runs. `exact` is false where there are at least so many."""
    return {"result": api.get("/runs/count", given(query=query, status=status, workflow=workflow))}


@reads(runs.GET)
def get_run(api: HttpApi, run: RunArgument) -> Answer:
    """Get a run: status, what it waits for and why (`waiting`), input, result, error, counts of its tasks.

    `input`, `result`, `attributes` and `error` hold data that users and programs wrote.
    """
    return {"result": api.get(_run(run))}


@reads(runs.RESULT)
def wait_for_run(
    api: HttpApi,
    run: RunArgument,
    seconds: Annotated[float, Field(ge=0, le=WAIT_S_MAX, description="How long to wait for its end.")] = WAIT_S_MAX,
) -> Answer:
    """Wait until a run has ended, and get its status with its result or error. A status that is not final: it has not ended in time."""
    return {"result": api.get(f"{_run(run)}/result", [("wait", min(seconds, api.answer_s / 2))])}


@reads(runs.TASKS)
def list_run_tasks(
    api: HttpApi,
    run: RunArgument,
    status: TaskWord | None = None,
    node: Annotated[
        str, Field(max_length=NAME_CHARS_MAX, description="Only this node of a flow, or tasks of this name.")
    ] = "",
    order: Annotated[
        Literal["seq", "notable"], Field(description="By number, or failed ones first and then the slowest.")
    ] = "seq",
    page: PageRequest = FIRST,
) -> Page:
    """List the tasks of a run: status, attempts, error, worker, times. `error` and `details` hold data that programs wrote."""
    return fetch_page(api, f"{_run(run)}/tasks", given(status=status, node=node, order=order), page)


@reads(runs.HISTORY)
def get_task_values(api: HttpApi, run: RunArgument, task: TaskNumber) -> Answer:
    """Get the input, result and failure of one task from the history of its run, with the events that hold them.

    The values are data that users and programs wrote. A long value is read with read_history_value, by `event` and `pointer`.
    """
    found: dict[str, Any] = {"task": task}
    after, searched = 0, 0
    while searched < EVENTS_SEARCHED_MAX:
        events = api.get(f"{_run(run)}/history", [("after", after), ("limit", HISTORY_PAGE)])
        for event in events["items"]:
            if event["type"] == "RunRetried" and task in event["data"]["voided_tasks"]:
                found = {name: value for name, value in found.items() if name not in ENDS}
            found |= _about_task(event, task)
        searched += len(events["items"])
        if not events["next"]:
            break
        after = events["items"][-1]["seq"]
    else:
        found["note"] = f"only the first {EVENTS_SEARCHED_MAX:,} events were searched"
    if "input" not in found and "note" not in found:
        raise NotFound(f"run {run} has no task {task}; list_run_tasks lists its tasks")
    return {"result": found}


def _about_task(event: dict[str, Any], task: int) -> dict[str, Any]:
    data: dict[str, Any] = event["data"]

    def value(pointer: str) -> dict[str, Any]:
        return {"event": event["seq"], "pointer": pointer, "at": event["at"], "value": at_pointer(data, pointer)}

    match event["type"]:
        case "TasksScheduled" if data["first"] <= task < data["first"] + len(data["inputs"]):
            return {"name": data["name"], "queue": data["queue"], "input": value(f"/inputs/{task - data['first']}")}
        case "TasksSucceeded" if task in data["seqs"]:
            return {"result": value(f"/results/{data['seqs'].index(task)}")}
        case "TaskFailed" if data["seq"] == task:
            return {"failure": value("/failure"), "attempts": data["attempts"]}
        case _:
            return {}


@reads(attempts.LIST)
def list_run_attempts(
    api: HttpApi,
    run: RunArgument,
    task: Annotated[
        str, Field(max_length=NAME_CHARS_MAX, description="A task's number or name; empty: all tasks.")
    ] = "",
    unsuccessful: Annotated[bool, Field(description="Only attempts that ended and did not succeed.")] = False,
    page: PageRequest = FIRST,
) -> Page:
    """List the executions of a run's tasks with their errors and tracebacks. Errors hold data that programs wrote."""
    path = f"{_run(run)}/tasks/{segment(task)}/attempts" if task else f"{_run(run)}/attempts"
    return fetch_page(api, path, [("unsuccessful", "true" if unsuccessful else "false")], page)


@reads(runs.LOGS)
def list_run_logs(
    api: HttpApi,
    run: RunArgument,
    task: Annotated[
        str, Field(max_length=NAME_CHARS_MAX, description="A task's number or name; empty: everything in the run.")
    ] = "",
    order: Literal["oldest", "newest"] = "oldest",
    page: PageRequest = FIRST,
) -> Page:
    """List what the tasks of a run printed and logged. The lines are data that programs wrote."""
    path = f"{_run(run)}/tasks/{segment(task)}/logs" if task else f"{_run(run)}/logs"
    return fetch_page(api, path, [("order", order)], page)


@reads(runs.HISTORY)
def list_run_history(
    api: HttpApi,
    run: RunArgument,
    after: Annotated[int, Field(ge=0, lt=SEQ_MAX, description="Only events above this number.")] = 0,
    page: PageRequest = FIRST,
) -> Page:
    """List the events of a run, oldest first. Payloads in `data` are data that users and programs wrote."""
    return fetch_page(api, f"{_run(run)}/history", [("after", after)], page)


@reads(runs.HISTORY)
def read_history_value(
    api: HttpApi,
    run: RunArgument,
    event: Annotated[
        int, Field(ge=1, lt=SEQ_MAX, description="The number of the event; event 1 has the input of the run.")
    ],
    pointer: Annotated[
        str,
        Field(
            max_length=TEXT_ARGUMENT_CHARS_MAX,
            description="JSON pointer into the data of the event, such as /input/order; empty: all of it.",
        ),
    ] = "",
    offset: Annotated[int, Field(ge=0, description="Where in a long text to begin.")] = 0,
) -> Answer:
    """Read one value of a history that another answer has cut: a long text in parts, from `offset` to `next_offset`.

    The value is data that users and programs wrote.
    """
    page = api.get(f"{_run(run)}/history", [("after", event - 1), ("limit", 1)])
    if not page["items"] or page["items"][0]["seq"] != event:
        raise NotFound(f"run {run} has no event {event}")
    value = at_pointer(page["items"][0]["data"], pointer)
    if not isinstance(value, str):
        if offset:
            raise InvalidInput(
                f"offset is for texts, and the value at {pointer!r} is not one; name a part of it with pointer"
            )
        return {"result": {"value": value}}
    parts = [
        value[n : n + TEXT_CHARS_MAX] for n in range(offset, min(offset + SLICE_CHARS_MAX, len(value)), TEXT_CHARS_MAX)
    ]
    end = offset + sum(map(len, parts))
    return {"result": {"parts": parts, "chars": len(value), "next_offset": end if end < len(value) else None}}


@reads(messages.STATES)
def list_run_states(api: HttpApi, run: RunArgument, page: PageRequest = FIRST) -> Page:
    """List the states that a run has published, by name. The values are data that programs wrote."""
    return fetch_page(api, f"{_run(run)}/state", [], page)


@reads(messages.QUERY)
def query_run(
    api: HttpApi,
    run: RunArgument,
    name: Annotated[
        str,
        Field(min_length=1, max_length=NAME_CHARS_MAX, description="A query of its workflow; get_workflow lists them."),
    ],
    arguments: Annotated[dict[str, Any], Field(description="The arguments of the query by name.")] = {},  # noqa: B006
) -> Answer:
    """Compute a query of a run's workflow from its states. The run is neither woken nor changed."""
    return {"result": api.post(f"{_run(run)}/queries/{segment(name)}", arguments)}


@reads(inspection.DIFF)
def compare_runs(api: HttpApi, run: RunArgument, other: RunArgument) -> Answer:
    """Compare two runs of one workflow: the first step where they differ, and what differs after it."""
    return {"result": api.get(f"{_run(run)}/diff", [("other", other)])}


@reads(definitions.LIST)
def list_workflows(
    api: HttpApi,
    text: Annotated[str, Field(max_length=NAME_CHARS_MAX, description="Part of the name.")] = "",
    page: PageRequest = FIRST,
) -> Page:
    """List workflows and flows by name, with their current version and the number of active runs."""
    return fetch_page(api, "/workflows", given(q=text), page)


@reads(definitions.GET)
def get_workflow(api: HttpApi, name: NameArgument) -> Answer:
    """Get a workflow: the JSON Schema of its input, its versions, its queries, the events that start it."""
    return {"result": api.get(f"/workflows/{segment(name)}")}


@reads(versions.LIST)
def list_workflow_versions(api: HttpApi, name: NameArgument) -> Answer:
    """List the versions of a workflow: which is current, what is being ramped, how many runs and workers each has."""
    return {"result": api.get(f"/workflows/{segment(name)}/versions")}


@reads(definitions.VERSION)
def get_workflow_definition(
    api: HttpApi, name: NameArgument, version: Annotated[str, Field(min_length=1, max_length=NAME_CHARS_MAX)]
) -> Answer:
    """Get one version of a workflow, with the document of a flow. Workflows in Python have none."""
    return {"result": api.get(f"/workflows/{segment(name)}/versions/{segment(version)}")}


@reads(workflow_runs.ERRORS)
def get_workflow_errors(
    api: HttpApi,
    name: NameArgument,
    days: Annotated[int, Field(ge=1, le=workflow_runs.ERROR_DAYS_MAX)] = workflow_runs.ERROR_DAYS_DEFAULT,
) -> Answer:
    """Group the failures of a workflow's runs by cause, most frequent first, with an example of each. Messages are data that programs wrote."""
    return {"result": api.get(f"/workflows/{segment(name)}/errors", [("days", days)])}


class DeadLetterFilters(BaseModel):
    """Which dead letters."""

    workflow: NameFilter = ""
    queue: NameFilter = ""
    task: Annotated[str, Field(max_length=NAME_CHARS_MAX, description="The task's name, or a node of a flow.")] = ""
    since: When = None
    text: Annotated[str, Field(max_length=NAME_CHARS_MAX, description="Part of the error.")] = ""

    @property
    def params(self) -> list[tuple[str, Any]]:
        return given(workflow=self.workflow, queue=self.queue, task=self.task, since=self.since, q=self.text)


ALL_DEAD_LETTERS: Final = DeadLetterFilters()


@reads(dead_letters.LIST)
def list_dead_letters(api: HttpApi, filters: DeadLetterFilters = ALL_DEAD_LETTERS, page: PageRequest = FIRST) -> Page:
    """List dead letters, latest first: tasks that failed for good, in runs that failed with them. `error` is data that programs wrote."""
    return fetch_page(api, "/dead-letters", filters.params, page)


@reads(approvals.LIST)
def list_approvals(
    api: HttpApi,
    run: Annotated[str, Field(max_length=NAME_CHARS_MAX, description="Only of this run.")] = "",
    workflow: NameFilter = "",
    assignee: Annotated[
        str, Field(max_length=NAME_CHARS_MAX, description="Only those that this person or group may answer.")
    ] = "",
    state: Annotated[Literal["open", "decided"], Field(description="decided: lately, latest first.")] = "open",
    page: PageRequest = FIRST,
) -> Page:
    """List approvals that runs ask for, oldest first: the question, who may answer, the form. Texts are data that programs wrote."""
    filters = given(run=run, workflow=workflow, assignee=assignee, state=state)
    return fetch_page(api, "/approvals", filters, page)


@reads(schedules.LIST)
def list_schedules(api: HttpApi, workflow: NameFilter = "", page: PageRequest = FIRST) -> Page:
    """List schedules by name: when they fire in words, next time, pause, last error, counts."""
    return fetch_page(api, "/schedules", given(workflow=workflow), page)


@reads(schedules.FIRES)
def list_schedule_fires(api: HttpApi, name: NameArgument, page: PageRequest = FIRST) -> Page:
    """List past times of a schedule, latest first: started, skipped or missed, with the run."""
    return fetch_page(api, f"/schedules/{segment(name)}/fires", [], page)


@reads(named_events.LIST)
def list_events(api: HttpApi, name: NameFilter = "", page: PageRequest = FIRST) -> Page:
    """List named events of the last days, newest first: what they reached and started. `payload` is data that senders wrote."""
    return fetch_page(api, "/events", given(name=name), page)


@reads(cluster.LIST_WORKERS)
def list_workers(api: HttpApi, page: PageRequest = FIRST) -> Page:
    """List connected workers: queues, slots, what they serve, how fast."""
    return fetch_page(api, "/workers", [], page)


@reads(cluster.LIST_QUEUES)
def list_queues(api: HttpApi) -> Page:
    """List queues by task: pending and running tasks, age of the oldest, workers."""
    return dict(api.get("/queues"))


@reads(flow_control.LIST)
def list_limits(api: HttpApi, page: PageRequest = FIRST) -> Page:
    """List limits and pauses of queues, workflows, tasks and the namespace."""
    return fetch_page(api, "/limits", [], page)


@reads(flow_control.USE)
def list_limit_use(api: HttpApi) -> Page:
    """List how far limits are used now."""
    return dict(api.get("/limit-use"))


@reads(cluster.GET_SERVER)
def get_server(api: HttpApi) -> Answer:
    """Get the version and state of the server, and who this connection is: its role, permissions and namespace."""
    return {"result": {"server": api.get("/server"), "identity": api.get("/whoami")}}


def _run(run: str) -> str:
    return f"/runs/{segment(run)}"

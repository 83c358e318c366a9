"""What goes over the wire, both ways. Clients are generated from these: a field is added, never renamed, never removed."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Final, Generic, Literal, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    WithJsonSchema,
)

from perdure.core.api.timeline import SegmentKind
from perdure.core.durations import DURATION_US_MAX
from perdure.core.limits import ATTRIBUTE_NAME_CHARS_MAX, ATTRIBUTE_VALUE_CHARS_MAX, NAME_CHARS_MAX
from perdure.server.rest.graph_models import FlowGraph as FlowGraph
from perdure.server.rest.graph_models import TaskStatusWord as TaskStatusWord

ARGUMENTS_MAX: Final = 1_000
VERSION_CHARS_MAX: Final = 200
DESCRIPTION_CHARS_MAX: Final = 2_000
REASON_CHARS_MAX: Final = 1_000
CURSOR_CHARS_MAX: Final = 500
DURATION_CHARS_MAX: Final = 50
TIME_CHARS_MAX: Final = 50
SECONDS_MAX: Final = DURATION_US_MAX / 1_000_000
RATE_PER_S_MAX: Final = 1_000_000
SOURCE_CHARS_MAX: Final = 1024 * 1024
"""Characters of a flow's text; its bytes have a limit of their own."""
FILE_CHARS_MAX: Final = 1_000

T = TypeVar("T")

RunStatusWord = Literal["pending", "running", "success", "failed", "cancelled"]
UndoStatusWord = Literal["ready", "undoing", "undone", "failed", "kept"]
RoleWord = Literal["viewer", "operator", "developer", "worker", "admin"]
PermissionWord = Literal["read", "start", "operate", "develop", "commands", "work", "admin"]
Name = Annotated[str, Field(min_length=1, max_length=NAME_CHARS_MAX)]
Seconds = Annotated[float, Field(gt=0, le=SECONDS_MAX)]
DurationText = Annotated[str, Field(min_length=1, max_length=DURATION_CHARS_MAX, examples=["30s", "1h30m"])]
AttributeName = Annotated[str, Field(min_length=1, max_length=ATTRIBUTE_NAME_CHARS_MAX)]
AttributeText = Annotated[StrictStr, Field(max_length=ATTRIBUTE_VALUE_CHARS_MAX)]
AttributeNumber = Annotated[StrictInt, Field(ge=-(2**63), le=2**63 - 1)]
Attribute = AttributeText | StrictBool | AttributeNumber | StrictFloat

Moment = Annotated[
    datetime,
    PlainSerializer(lambda at: at.strftime("%Y-%m-%dT%H:%M:%S.%fZ"), return_type=str),
    WithJsonSchema({"type": "string", "format": "date-time"}),
]
"""A moment in UTC, always with microseconds, so that texts sort like times."""
ID: Final = "0192a6f0-5c1e-7000-8123-0123456789ab"
AT: Final = "2026-10-21T14:11:58.123456Z"


class Body(BaseModel):
    """A request body. Unknown fields are refused: the client expected them to have an effect."""

    model_config = ConfigDict(extra="forbid")


class Page(BaseModel, Generic[T]):
    """One page of a list. `next` is the cursor of the page after it, null at the end. A page may be short, even empty, and still go on."""

    items: list[T]
    next: str | None = Field(
        description="Pass it as `cursor` to go on; null when there is no more.", examples=["AZKm8Fwe"]
    )

    @classmethod
    def model_parametrized_name(cls, params: tuple[Any, ...]) -> str:
        """`RunSummaryPage`: the name of the schema."""
        return f"{params[0].__name__}Page"


class FlowProblem(BaseModel):
    """Something wrong with a flow's document, and where."""

    message: str
    hint: str = Field(default="", description="What to do, or what was probably meant.")
    severity: Literal["error", "warning"] = "error"
    file: str = ""
    line: int = Field(default=0, description="From 1; 0 when the document came without text.")
    column: int = 0
    text: str = Field(default="", description="The line, or the part of it around the column.")
    caret: int = Field(default=0, description="Where in `text` the column is, from 0.")
    path: list[str | int] = Field(default_factory=list, description="Of the value within the document.")


class Problem(BaseModel):
    """An error (RFC 9457)."""

    type: str = Field(description="A page that explains the code.", examples=["http://127.0.0.1:8600/errors#not_found"])
    title: str = Field(examples=["Not Found"])
    status: int = Field(examples=[404])
    code: str = Field(description="Stable; programs may rely on it.", examples=["not_found"])
    detail: str = Field(description="What happened, why, and what to do next.")
    instance: str = Field(description="The path that was asked for.")
    problems: list[FlowProblem] | None = Field(
        default=None, description="All that is wrong with a flow's document, under the code `invalid_flow`."
    )


class DeferredRun(BaseModel):
    """A deferred start. The run exists from `due_at` on, under this id."""

    id: str = Field(examples=[ID])
    workflow: str
    due_at: Moment = Field(description="When the run begins, unless more starts come.")
    url: str


class CancelRunRequest(Body):
    reason: Annotated[str, Field(max_length=REASON_CHARS_MAX)] = Field(
        default="", description="Kept in the history and shown to people.", examples=["wrong partition"]
    )


class TerminateRunRequest(CancelRunRequest):
    pass


class PauseRunRequest(Body):
    reason: Annotated[str, Field(max_length=REASON_CHARS_MAX)] = Field(
        default="", description="Shown to people while the run is paused.", examples=["the bank is closed"]
    )


class ErrorInfo(BaseModel):
    """How a run or a task failed."""

    code: str = Field(examples=["task_failed"])
    message: str
    type: str = Field(default="", description="The exception's class.", examples=["ValueError"])
    traceback: str = ""


class RunSummary(BaseModel):
    """A run in a list."""

    id: str = Field(examples=[ID])
    workflow: str = Field(examples=["checkout"])
    version: str
    key: str | None = Field(description="The id its starter gave it.")
    status: RunStatusWord
    created_at: Moment = Field(examples=[AT])
    finished_at: Moment | None
    attributes: dict[str, Any]
    error: ErrorInfo | None
    stuck: str | None = Field(description="Why an active run is stuck until it is resumed.")
    paused_at: Moment | None = Field(description="Since when a run is paused.")
    waiting: RunWaits | None = Field(
        default=None, description="What an active run waits for; in lists, where it was asked for."
    )
    attempts: int | None = Field(
        default=None, description="The most executions of one task; null where it was not asked for."
    )
    epoch: int = Field(description="How often the run has changed hands.")
    parent_id: str | None
    successor: str | None = Field(description="The run in which this one continued.")
    url: str = Field(description="Its page.")


WaitWord = Literal[
    "stuck",
    "approval",
    "signal",
    "event",
    "promise",
    "update",
    "child",
    "limit",
    "rate",
    "paused",
    "retry",
    "no_worker",
    "no_worker_for_version",
    "version",
    "slot",
    "dependency",
    "task",
    "timer",
]


class RunWait(BaseModel):
    """One thing that is waited for."""

    on: str = Field(description="The kind of wait, the word that lists are filtered by.", examples=["approval"])
    text: str = Field(description='In words, to be read after "waiting for".')
    name: str | None = Field(default=None, description="Of the signal, promise, approval, event, task or node.")
    key: str | None = Field(default=None, description="The limit, rate or rule.")
    until: Moment | None = None
    runs: list[str] = Field(default=[], description="Runs that hold the limit, or the child run.")
    by: list[str] = Field(default=[], description="Who is to approve, or who paused it.")


class RunWaits(BaseModel):
    """What an active run waits for."""

    reason: str = Field(description="In one sentence.")
    on: str = Field(description="The most telling kind of wait.", examples=["approval"])
    waits: list[RunWait]
    tasks: int = 0
    children: int = 0
    promises: list[str] = []
    timer_at: Moment | None = None


class TaskCounts(BaseModel):
    """Tasks by status, counted up to 100,000 ended ones."""

    pending: int = 0
    dispatched: int = 0
    running: int = 0
    success: int = 0
    failed: int = 0
    skipped: int = 0
    cancelled: int = 0


class UndoStep(BaseModel):
    """Something a run did, and the task that takes it back."""

    task: int = Field(description="Number of the task that did it.")
    name: str = Field(description="Its node in a flow, its name in code.", examples=["charge"])
    undo: str = Field(description="The task that takes it back.", examples=["refund"])
    status: UndoStatusWord
    by: int | None = Field(description="Number of the task that took it back.")
    error: str | None = Field(description="Why it could not be taken back.")


class Unread(BaseModel):
    """A message that was acknowledged and that the run has not recorded."""

    kind: str = Field(description="signal, promise, answer, update, cancel, terminate or pause.", examples=["signal"])
    name: str | None = Field(description="Name of the signal, promise, approval or update.", examples=["shipped"])
    sent_at: Moment = Field(examples=[AT])
    set_aside: str | None = Field(description="How the run ended first: `failed` (a retry delivers it), `success`, ...")


class Run(RunSummary):
    """A run in full."""

    input: Any = Field(description="The call it was started with.")
    result: Any = Field(default=None, description="What it returned, when it succeeded.")
    events: int = Field(description="Length of its history.")
    tasks: TaskCounts
    undo: list[UndoStep] | None = Field(
        default=None,
        description="What it did that can be taken back, in the order in which it was done. Null where the history is too long to tell here.",
    )
    rerun_of: str | None = Field(default=None, description="The run that this one repeats.")
    forked_from: str | None = Field(default=None, description="The run whose first events this one was given.")
    forked_at: int | None = Field(default=None, description="The last of those events, by its number there.")
    retry_refused: str | None = Field(
        default=None,
        description="Why a failed run cannot be retried. Null where it can be, and where the history is too long to tell here.",
    )
    unread: list[Unread] = Field(default=[], description="Acknowledged messages that the run has not recorded.")


class RunStatusInfo(BaseModel):
    """What a program that polls needs to know."""

    id: str = Field(examples=[ID])
    key: str | None = Field(description="The key its starter gave it.")
    workflow: str
    version: str
    status: RunStatusWord
    created_at: Moment
    finished_at: Moment | None
    stuck: str | None = Field(description="Why an active run cannot continue until it is resumed.")
    successor: str | None = Field(description="The run in which this one continued.")
    url: str = Field(description="Its page.")


class RunOutcome(BaseModel):
    status: RunStatusWord
    result: Any = None
    error: ErrorInfo | None = None


class TaskSegment(BaseModel):
    """What a task was doing for a while."""

    kind: SegmentKind
    from_: Moment = Field(alias="from")
    to: Moment
    attempt: int | None
    worker: str | None


class RunTaskProgress(BaseModel):
    done: float
    total: float | None = Field(description="Null: how much there is to do is not known.")
    text: str


class RunTask(BaseModel):
    id: str
    seq: int = Field(description="Its number in the run, from 0.")
    name: str
    node: str | None = Field(
        default=None,
        description="The node of a flow that it belongs to, with its place in a spread.",
        examples=["fetch[3]"],
    )
    queue: str
    status: TaskStatusWord
    attempts: int = Field(description="Executions begun.")
    lost: int = Field(description="How often its worker was lost.")
    scheduled_at: Moment | None
    started_at: Moment | None
    finished_at: Moment | None
    run_at: Moment | None = Field(description="When the next attempt may begin.")
    error: str | None
    worker: str | None
    details: Any = Field(description="The details of its last heartbeat.")
    progress: RunTaskProgress | None = Field(default=None, description="How far it said that it is.")
    blocked: str | None = Field(description="The stack that holds its worker's event loop.")
    copied: bool = Field(default=False, description="It ended in the run that this one is a fork of.")
    segments: list[TaskSegment] = Field(default=[], description="What it was doing, in order.")


class LogEntry(BaseModel):
    at: Moment
    attempt: int
    seq: int = Field(description="The task's number; -1 is the workflow's own code.")
    task: str | None
    node: str | None = Field(default=None, description="Its node of a flow, with its place in a foreach.")
    stream: str = Field(examples=["stdout"])
    level: str = Field(examples=["info"])
    text: str


class HistoryEvent(BaseModel):
    seq: int
    at: Moment
    type: str = Field(examples=["TasksScheduled"])
    data: dict[str, Any]


class StateValue(BaseModel):
    name: str
    value: Any


class RegisterWorkflowRequest(Body):
    name: Name
    version: Annotated[str, Field(min_length=1, max_length=VERSION_CHARS_MAX)]
    description: Annotated[str, Field(max_length=DESCRIPTION_CHARS_MAX)] | None = None


class FlowRequest(Body):
    """A flow's document, as JSON or as the text of a YAML or JSON file."""

    name: Name | None = Field(default=None, description="For a document that has no `flow` key.")
    document: dict[str, Any] | None = None
    source: Annotated[str, Field(min_length=1, max_length=SOURCE_CHARS_MAX)] | None = Field(
        default=None, examples=["flow: nightly\ntasks:\n  fetch: {python: fetch}\n"]
    )
    file: Annotated[str, Field(max_length=FILE_CHARS_MAX)] = Field(default="", description="What problems call it.")


class DeployFlowRequest(FlowRequest):
    """A declarative workflow. Its version is made from its document: the same document is the same version."""

    activate: bool = Field(default=True, description="Let new runs have this version.")


class FlowChanges(BaseModel):
    """Nodes by key, and other keys of the document, compared with the version that is current."""

    added: list[str]
    removed: list[str]
    changed: list[str]
    other: list[str]


class ValidFlow(BaseModel):
    """What a document would become."""

    name: str
    version: str
    kind: Literal["dag", "graph"]
    nodes: int
    is_known: bool = Field(description="This version is registered already.")
    current: str | None = Field(description="The version that new runs have now.")
    changes: FlowChanges | None = Field(description="Null where no flow of this name is current.")
    warnings: list[FlowProblem]
    graph: FlowGraph = Field(description="Nodes and links, as they are drawn.")


class WorkflowDefinition(BaseModel):
    """One version of a workflow. Code has no document."""

    name: str
    version: str
    kind: str
    registered_at: Moment
    current: bool
    document: dict[str, Any] | None
    source: str | None = Field(description="The text it was deployed as, comments included.")


class DeploymentResult(BaseModel):
    version: str
    created: bool = Field(description="This version is new.")
    activated: bool
    changes: FlowChanges | None
    warnings: list[FlowProblem]


class WorkflowSummary(BaseModel):
    name: str
    kind: str
    version: str = Field(description="The current one.")
    versions: int
    description: str | None
    created_at: Moment
    deleted_at: Moment | None
    runs_active: int = Field(description="Counted up to about 1,000.")


class WorkflowVersion(BaseModel):
    version: str
    kind: str
    registered_at: Moment
    current: bool


class EventSubscription(BaseModel):
    event: str
    match: str = Field(description="An expression over `event`, the payload; empty: every event of the name.")
    key: str = Field(description="An expression for the run's key; empty: none.")
    dedup: str = Field(description="An expression: events with the same value start one run; empty: none.")
    within_s: float | None = Field(description="For how long; null: until that run has ended.")
    input: dict[str, Any] | None = Field(description="The input with expressions; null: the payload.")


class Workflow(BaseModel):
    name: str
    kind: str
    version: str
    description: str | None
    created_at: Moment
    deleted_at: Moment | None
    runs_active: int
    versions: list[WorkflowVersion]
    input_schema: dict[str, Any] | None = Field(
        default=None, description="JSON Schema of what a run of it takes; null where it is not known."
    )
    queries: list[str] = Field(default=[], description="Names of its queries, in Python.")
    on: list[EventSubscription] = Field(default=[], description="Named events that start runs of it.")
    deployed: DeploymentResult | None = Field(default=None, description="What became of a flow that was just deployed.")


class ConnectedWorker(BaseModel):
    id: str
    name: str
    host: str
    pid: int
    sdk: str
    queues: list[str]
    tasks: list[str]
    workflows: list[str]
    slots: int
    slots_used: int
    runs_held: int
    draining: bool
    connected_at: Moment
    seen_at: Moment
    blocked: str | None
    engine: str | None
    ended: int = Field(default=0, description="Attempts that ended in the last five minutes.")
    failed: int = Field(default=0, description="Of these, how many did not succeed.")
    per_s: float = Field(default=0.0, description="Of these, how many per second.")
    p50_s: float | None = Field(
        default=None, description="Percentiles of how long they took, rounded up by an eighth at most."
    )
    p95_s: float | None = None
    p99_s: float | None = None


class QueueDepth(BaseModel):
    queue: str
    task: str
    pending: int = Field(description="Counted up to 10,000.")
    running: int
    oldest_age_s: float | None
    workers: int = Field(description="Connected workers that serve it.")

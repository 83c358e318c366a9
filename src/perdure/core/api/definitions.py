"""Workflows by name: versions, documents of flows, which version is current, and graphs."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from perdure.core.access import Permission
from perdure.core.api.act import Act, RunRef
from perdure.core.subscriptions import Subscription


class ListWorkflows(msgspec.Struct, frozen=True):
    text: str = ""
    """Part of the name."""
    after: str = ""
    limit: int = 50


class WorkflowItem(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    kind: str
    current: str
    description: str | None
    versions: int
    created_us: int
    deleted_us: int | None
    runs_active: int


class WorkflowPage(msgspec.Struct, frozen=True):
    items: list[WorkflowItem]
    next: str | None


class VersionItem(msgspec.Struct, frozen=True, kw_only=True):
    version: str
    kind: str
    registered_us: int
    current: bool


class WorkflowRef(msgspec.Struct, frozen=True):
    name: str


class WorkflowDetail(msgspec.Struct, frozen=True):
    item: WorkflowItem
    versions: list[VersionItem]
    """The newest ones, newest first."""
    input_schema: dict[str, Any] | None = None
    """JSON Schema of what a run of the current version takes; None where it is not known."""
    queries: tuple[str, ...] = ()
    """Names of the queries of the current version."""
    subscriptions: list[Subscription] = []
    """Named events that start runs of it."""


class RegisterWorkflow(msgspec.Struct, frozen=True, kw_only=True):
    """A version of code."""

    name: str
    version: str
    description: str | None = None


class WorkflowRegistered(msgspec.Struct, frozen=True):
    workflow: WorkflowDetail
    is_new: bool


class FlowText(msgspec.Struct, frozen=True, kw_only=True):
    """A flow, either as `document` or as `source`."""

    document: dict[str, Any] | None = None
    source: str | None = None
    """The text of its file."""
    name: str | None = None
    """For a document that has none."""
    file: str = ""
    """What problems call the source."""


class DeployFlow(msgspec.Struct, frozen=True):
    flow: FlowText
    activate: bool = True


class ProblemItem(msgspec.Struct, frozen=True, kw_only=True):
    """An error or warning about a document, and where."""

    message: str
    hint: str = ""
    severity: Literal["error", "warning"] = "error"
    file: str = ""
    line: int = 0
    """From 1; 0: the document came without text."""
    column: int = 0
    text: str = ""
    """The source line, or the part of it around the column."""
    caret: int = 0
    """Where in `text` the column is, from 0."""
    path: tuple[str | int, ...] = ()


class ChangeSummary(msgspec.Struct, frozen=True):
    """Keys of nodes, and other keys of the document that differ, against the version that is current."""

    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[str, ...]
    other: tuple[str, ...]


class FlowDeployed(msgspec.Struct, frozen=True, kw_only=True):
    workflow: WorkflowDetail
    version: str
    is_new: bool
    is_activated: bool
    changes: ChangeSummary | None
    warnings: list[ProblemItem]


class FlowValidated(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    version: str
    kind: str
    nodes: int
    is_known: bool
    current: str | None
    changes: ChangeSummary | None
    warnings: list[ProblemItem]
    graph: dict[str, Any]
    """Nodes and links, as they are drawn."""


class VersionRef(msgspec.Struct, frozen=True):
    name: str
    version: str


class Definition(msgspec.Struct, frozen=True, kw_only=True):
    """One version of a workflow. Both texts are empty for code."""

    version: str
    kind: str
    document: bytes
    source: str
    registered_us: int
    is_current: bool = False


class GetGraph(msgspec.Struct, frozen=True):
    name: str
    version: str = ""
    """Empty: the current one."""


class GetRunGraph(msgspec.Struct, frozen=True):
    run: RunRef


class GraphReply(msgspec.Struct, frozen=True):
    """A workflow of code has no nodes that could be known beforehand."""

    name: str
    version: str
    kind: str
    document: bytes
    """Empty for code."""
    statuses: dict[str, str] = {}
    """Of a run: node -> status."""
    counts: dict[str, dict[str, int]] = {}
    """Of a run: node -> its tasks by status."""


class GetSchema(msgspec.Struct, frozen=True):
    pass


LIST: Act[ListWorkflows, WorkflowPage] = Act("workflow.list", ListWorkflows, WorkflowPage, Permission.READ)
GET: Act[WorkflowRef, WorkflowDetail] = Act("workflow.get", WorkflowRef, WorkflowDetail, Permission.READ)
REGISTER: Act[RegisterWorkflow, WorkflowRegistered] = Act(
    "workflow.register", RegisterWorkflow, WorkflowRegistered, Permission.DEVELOP, ("workflow.register",), True
)
DEPLOY: Act[DeployFlow, FlowDeployed] = Act(
    "workflow.deploy", DeployFlow, FlowDeployed, Permission.DEVELOP, ("workflow.deploy",), True
)
VALIDATE: Act[FlowText, FlowValidated] = Act("workflow.validate", FlowText, FlowValidated, Permission.READ)
DELETE: Act[WorkflowRef, None] = Act(
    "workflow.delete", WorkflowRef, None, Permission.DEVELOP, ("workflow.delete",), True
)
VERSION: Act[VersionRef, Definition] = Act("workflow.version", VersionRef, Definition, Permission.READ)
GRAPH: Act[GetGraph, GraphReply] = Act("workflow.graph", GetGraph, GraphReply, Permission.READ)
RUN_GRAPH: Act[GetRunGraph, GraphReply] = Act("run.graph", GetRunGraph, GraphReply, Permission.READ)
SCHEMA: Act[GetSchema, dict[str, Any]] = Act("workflow.schema", GetSchema, dict[str, Any], Permission.READ)

ACTS = (LIST, GET, REGISTER, DEPLOY, VALIDATE, DELETE, VERSION, GRAPH, RUN_GRAPH, SCHEMA)

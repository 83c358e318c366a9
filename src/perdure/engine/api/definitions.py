"""Acts on workflows: list, register code, deploy flows, delete, graphs.

Compiling a document is work, so it is done beside the event loop; a definition never changes, so it is compiled once and kept.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from typing import Any, Final

import msgspec

from perdure.core import ids, subscriptions
from perdure.core.access import Permission
from perdure.core.api import definitions as acts
from perdure.core.api.definitions import (
    ChangeSummary,
    Definition,
    DeployFlow,
    FlowDeployed,
    FlowText,
    FlowValidated,
    GetGraph,
    GetRunGraph,
    GetSchema,
    GraphReply,
    ListWorkflows,
    ProblemItem,
    RegisterWorkflow,
    VersionRef,
    WorkflowDetail,
    WorkflowItem,
    WorkflowPage,
    WorkflowRef,
    WorkflowRegistered,
)
from perdure.core.errors import Forbidden, InvalidInput, NotRegistered, PerdureError
from perdure.core.lifecycle import TaskStatus
from perdure.core.limits import VERSIONS_SHOWN_MAX
from perdure.core.names import checked_name
from perdure.core.parameters import decode as decode_parameters
from perdure.core.parameters import parameters_schema
from perdure.core.work import VERSION_PREFIX, is_flow
from perdure.engine.api.api import NamespaceApi, handles, page_limit
from perdure.engine.api.ports import Deployment
from perdure.engine.api.runs import detail
from perdure.engine.api.starts import version_of, workflow_of
from perdure.engine.holiday_calendars import ensure_stored
from perdure.engine.runs.turns import within
from perdure.flows.changes import changes
from perdure.flows.compile import Compiled, compile_value
from perdure.flows.decide.decider import DecisionTooLarge
from perdure.flows.decide.progress import statuses_of
from perdure.flows.draft import Draft, draft_text, draft_value
from perdure.flows.drawing.chart import as_graph, chart_of
from perdure.flows.hooks import hook_documents
from perdure.flows.model import Flow
from perdure.flows.problems import DocumentProblem
from perdure.flows.scheduled import trigger_requests
from perdure.flows.schema import document_schema

log = logging.getLogger("perdure.server")

FLOWS_KEPT_MAX: Final = 100
"""Compiled definitions that are kept for questions about them."""
UNNAMED: Final = "document"
"""Name of a document without a file name, in problem reports."""
EVENTS_REPLAYED_MAX: Final = 10_000
"""Events of a run up to which its nodes' statuses are worked out for a reader."""
BYTES_REPLAYED_MAX: Final = 16 * 1024 * 1024
REPLAY_S_MAX: Final = 1.0
"""Seconds for replaying a history for a graph, one at a time; one that takes longer is shown without statuses."""
_replaying: Final = asyncio.Semaphore(1)


@handles(acts.LIST)
async def list_workflows(api: NamespaceApi, r: ListWorkflows) -> WorkflowPage:
    """By name; deleted ones are left out."""
    limit = page_limit(r.limit)
    found = await api.ports.reads.workflows(api.ns, r.text, r.after, limit + 1)
    return WorkflowPage(found[:limit], found[limit - 1].name if len(found) > limit else None)


@handles(acts.GET)
async def get(api: NamespaceApi, r: WorkflowRef) -> WorkflowDetail:
    found = await workflow_of(api, r.name)
    versions = await api.ports.reads.versions(api.ns, r.name, VERSIONS_SHOWN_MAX)
    said = await api.ports.reads.subscriptions(api.ns, found.name, found.current)
    shown = WorkflowDetail(found, versions, subscriptions=subscriptions.decode(said))
    if is_flow(found.current):
        return msgspec.structs.replace(shown, input_schema=await _input_schema(api, found))
    published = (await api.ports.store.published(api.ns, found.name, found.current)).parameters
    parameters = decode_parameters(published) if published else None
    if parameters is None:
        return shown
    schema = parameters_schema(parameters)
    return msgspec.structs.replace(shown, input_schema=schema, queries=parameters.queries)


async def _input_schema(api: NamespaceApi, workflow: WorkflowItem) -> dict[str, Any] | None:
    """Of a flow."""
    try:
        flow = await _compiled_flows.flow(api, workflow.name, workflow.current)
    except PerdureError:  # it was deployed under other rules, or is gone
        return None
    return dict(flow.input_schema) if flow is not None and flow.input_schema is not None else None


@handles(acts.REGISTER)
async def register(api: NamespaceApi, r: RegisterWorkflow) -> WorkflowRegistered:
    """Make a version of code known and current. A deleted workflow is restored."""
    checked_name("workflow", r.name)
    checked_name("version", r.version)
    if is_flow(r.version):
        raise InvalidInput(f"version: one that begins with {VERSION_PREFIX!r} is made from a flow's document")
    is_new = await api.ports.definitions.register(api.ns, r.name, r.version, r.description)
    api.engine.flows.forget(api.ns, r.name)
    await api.record("workflow.register", r.name, version=r.version)
    return WorkflowRegistered(await get(api, WorkflowRef(r.name)), is_new)


@handles(acts.DEPLOY)
async def deploy(api: NamespaceApi, r: DeployFlow) -> FlowDeployed:
    """Make a flow known, and with `activate` current, with the schedules of its triggers. A deleted workflow is restored."""
    draft = await _draft(r.flow)
    flow = draft.flow
    check_commands(api, flow)
    before = await api.ports.reads.workflow(api.ns, flow.name)
    changed = await _changes(api, before, draft)
    triggers = trigger_requests(flow)
    if r.activate:
        await ensure_stored(api.engine.scheduler.store, api.ns, [t.spec for t in triggers], api.by)
    for document in hook_documents(flow.name, flow.document).values():
        await _deploy_hook(api, document, activate=r.activate)  # before the flow, whose runs may end at once
    is_new = await api.ports.definitions.deploy(
        api.ns,
        Deployment(
            name=flow.name,
            version=draft.version,
            kind=flow.kind,
            description=flow.description or None,
            document=draft.document,
            source=draft.source,
            control=draft.control,
            timeout_us=flow.timeout_us,
            triggers=triggers,
            hooks=flow.hooks,
            subscriptions=draft.subscriptions,
            activate=r.activate,
            by=api.by,
        ),
    )
    moved(api, flow.name)
    await api.record("workflow.deploy", flow.name, version=draft.version, activate=r.activate)
    now = await get(api, WorkflowRef(flow.name))
    return FlowDeployed(
        workflow=now,
        version=draft.version,
        is_new=is_new,
        is_activated=now.item.current == draft.version and (before is None or before.current != draft.version),
        changes=changed,
        warnings=_problems(draft.compiled.warnings),
    )


async def _deploy_hook(api: NamespaceApi, document: dict[str, Any], *, activate: bool) -> None:
    draft = await asyncio.to_thread(draft_value, document)
    flow = draft.flow
    check_commands(api, flow)
    deployment = Deployment(
        name=flow.name,
        version=draft.version,
        kind=flow.kind,
        description=flow.description or None,
        document=draft.document,
        source=draft.source,
        activate=activate,
        by=api.by,
    )
    await api.ports.definitions.deploy(api.ns, deployment)
    moved(api, flow.name)


@handles(acts.VALIDATE)
async def validate(api: NamespaceApi, r: FlowText) -> FlowValidated:
    """Check a flow's document and report what deploying it would change. Nothing is written."""
    draft = await _draft(r)
    found = await api.ports.reads.workflow(api.ns, draft.flow.name)
    current = None if found is None or found.deleted_us is not None else found
    definition = await api.ports.reads.definition(api.ns, draft.flow.name, draft.version)
    return FlowValidated(
        name=draft.flow.name,
        version=draft.version,
        kind=draft.flow.body.kind,
        nodes=len(draft.flow.body.nodes),
        is_known=definition is not None,
        current=current.current if current else None,
        changes=await _changes(api, current, draft),
        warnings=_problems(draft.compiled.warnings),
        graph=await asyncio.to_thread(_drawn, draft.flow),
    )


def _drawn(flow: Flow) -> dict[str, Any]:
    return as_graph(chart_of(flow.body))


@handles(acts.DELETE)
async def delete(api: NamespaceApi, r: WorkflowRef) -> None:
    """Delete a workflow: no new runs start. Active runs continue, and history stays."""
    if not await api.ports.definitions.delete(api.ns, r.name):
        await workflow_of(api, r.name)  # NotRegistered, unless it was deleted before
        return
    api.engine.flows.forget(api.ns, r.name)
    await api.record("workflow.delete", r.name)


@handles(acts.VERSION)
async def version(api: NamespaceApi, r: VersionRef) -> Definition:
    """One version, with the document that it was deployed as."""
    current = (await workflow_of(api, r.name)).current
    found = await api.ports.reads.definition(api.ns, r.name, r.version)
    if found is None:
        raise NotRegistered(f"the workflow {r.name!r} has no version {r.version!r}; the current one is {current}")
    return msgspec.structs.replace(found, is_current=found.version == current)


@handles(acts.GRAPH)
async def graph(api: NamespaceApi, r: GetGraph) -> GraphReply:
    wanted = await version_of(api, r.name, r.version)
    return await _graph(api, r.name, wanted)


@handles(acts.RUN_GRAPH)
async def run_graph(api: NamespaceApi, r: GetRunGraph) -> GraphReply:
    """The flow of a run, and the status of each of its nodes."""
    run_id = await api.run_id(r.run)
    found = await detail(api, run_id)
    flow = await _compiled_flows.flow(api, found.item.workflow, found.item.version)
    if flow is None:
        return await _graph(api, found.item.workflow, found.item.version)
    statuses = await _statuses(api, run_id, flow, found.events)
    graph = await _graph(api, found.item.workflow, found.item.version, statuses)
    counts = (await api.ports.reads.node_counts(api.ns, [run_id])).get(run_id, [])
    words = {n.node: {TaskStatus(s).word: tasks for s, tasks in sorted(n.counts.items())} for n in counts}
    return msgspec.structs.replace(graph, counts=words)


async def _graph(api: NamespaceApi, name: str, version: str, statuses: dict[str, str] | None = None) -> GraphReply:
    flow = await _compiled_flows.flow(api, name, version)
    if flow is None:
        return GraphReply(name, version, "code", b"")
    definition = await api.ports.reads.definition(api.ns, name, version)
    document = definition.document if definition is not None else b""
    return GraphReply(name, version, flow.kind, document, statuses or {})


async def _statuses(api: NamespaceApi, run_id: bytes, flow: Flow, events: int) -> dict[str, str]:
    """Empty for a run whose history is too long to be replayed for a reader."""
    history = await api.ports.reads.history(api.ns, run_id, 0, EVENTS_REPLAYED_MAX + 1, BYTES_REPLAYED_MAX)
    if len(history) > EVENTS_REPLAYED_MAX or len(history) < events:
        return {}
    try:
        async with _replaying:
            return await asyncio.to_thread(statuses_of, flow, run_id, history, within(REPLAY_S_MAX))
    except (PerdureError, DecisionTooLarge) as error:  # the graph is useful without statuses
        log.warning("cannot work out the node statuses of run %s: %s", ids.text(run_id), error)
        return {}


@handles(acts.SCHEMA)
async def schema(api: NamespaceApi, r: GetSchema) -> dict[str, Any]:
    """JSON Schema of flow documents, with the tasks that this namespace's workers have registered: for editors."""
    types = await api.ports.definitions.task_types(api.ns)
    return document_schema({name: msgspec.json.decode(signature) for name, signature in types.items()})


def moved(api: NamespaceApi, name: str) -> None:
    """The current version of a name, and with it schedules, may have changed."""
    api.engine.flows.forget(api.ns, name)
    api.engine.scheduler.changed()


def check_commands(api: NamespaceApi, flow: Flow) -> None:
    """A flow with `run:` executes commands as the user of a worker: more than publishing needs."""
    node = flow.command_node()
    if node is not None and not api.caller.principal.may(Permission.COMMANDS):
        raise Forbidden(
            f"the node {node!r} of the flow {flow.name!r} runs a command, which needs the permission "
            f"{Permission.COMMANDS.value!r} of this credential. An administrator has it; `perdure api-key create --role admin "
            f"--scope {Permission.DEVELOP.value} --scope {Permission.COMMANDS.value}` makes a key for this alone."
        )


async def _draft(text: FlowText) -> Draft:
    """FlowError with every problem, InvalidInput for a request that has no document, or two."""
    if (text.document is None) == (text.source is None):
        raise InvalidInput("give the flow either as `document`, a JSON object, or as `source`, the text of its file")
    if text.source is not None:
        return await asyncio.to_thread(draft_text, text.source, name=text.name, file=text.file or UNNAMED)
    return await asyncio.to_thread(draft_value, text.document or {}, name=text.name)


async def _changes(api: NamespaceApi, current: WorkflowItem | None, draft: Draft) -> ChangeSummary | None:
    """Against the version that is current; None where that is no flow."""
    if current is None or not is_flow(current.current):
        return None
    found = await api.ports.reads.definition(api.ns, current.name, current.current)
    if found is None or not found.document:
        return None
    made = changes(msgspec.json.decode(found.document), msgspec.json.decode(draft.document))
    return msgspec.convert(made, ChangeSummary, from_attributes=True)


def _problems(problems: list[DocumentProblem] | tuple[DocumentProblem, ...]) -> list[ProblemItem]:
    return [msgspec.convert(p, ProblemItem, from_attributes=True) for p in problems]


class CompiledFlows:
    """Compiled definitions, the latest used."""

    def __init__(self) -> None:
        self._flows: OrderedDict[tuple[int, str, str], Flow] = OrderedDict()

    async def flow(self, api: NamespaceApi, name: str, version: str) -> Flow | None:
        """None for a version of code."""
        if not is_flow(version):
            return None
        key = api.ns, name, version
        found = self._flows.get(key)
        if found is None:
            definition = await api.ports.reads.definition(api.ns, name, version)
            if definition is None or not definition.document:
                raise NotRegistered(f"the workflow {name!r} has no version {version!r}")
            found = (await asyncio.to_thread(_compiled, definition.document, name)).flow
            self._flows[key] = found
            if len(self._flows) > FLOWS_KEPT_MAX:
                self._flows.popitem(last=False)
        self._flows.move_to_end(key)
        return found


async def compiled_flow(api: NamespaceApi, name: str, version: str) -> Flow | None:
    """The flow of a version; None for a version of code."""
    return await _compiled_flows.flow(api, name, version)


def _compiled(document: bytes, name: str) -> Compiled:
    return compile_value(msgspec.json.decode(document), name=name, stored=True)


_compiled_flows: Final = CompiledFlows()
"""Of this process."""

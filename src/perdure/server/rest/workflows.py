"""Workflows by name: what there is, registering, deleting, and starting runs."""

from __future__ import annotations

import difflib
import re
from typing import Annotated, Final

import msgspec
from fastapi import APIRouter, Header, Path, Query, Response
from fastapi.responses import JSONResponse

from perdure.core import deferred_starts, ids
from perdure.core.access import Permission
from perdure.core.calls import encode_json
from perdure.core.errors import Forbidden, InvalidInput, NotFound, NotRegistered, RunAlreadyExists
from perdure.core.limits import NAME_CHARS_MAX
from perdure.core.work import StartRequest
from perdure.engine.api.reads import WorkflowItem
from perdure.flows.model import VERSION_PREFIX, Flow, is_flow
from perdure.flows.scheduled import trigger_requests
from perdure.server.rest import models as m
from perdure.server.rest import views
from perdure.server.rest.documents import FlowRoute, changes_of, check_input, draft_of
from perdure.server.rest.guard import Caller, Developer, Reader, Starter
from perdure.server.rest.messages import IdempotencyKey, check_key, check_same, digest
from perdure.server.rest.paging import LIMIT_DEFAULT, LIMIT_MAX, Cursor, Limit
from perdure.server.rest.problems import IdempotencyConflict, WorkflowDeleted, responses
from perdure.server.rest.runs import audit, shown

TRACEPARENT: Final = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")

router = APIRouter(prefix="/workflows", tags=["workflows"], route_class=FlowRoute)

WorkflowName = Annotated[str, Path(min_length=1, max_length=NAME_CHARS_MAX, examples=["checkout"])]


@router.get("", responses=responses(401, 403, 422))
async def list_workflows(
    caller: Reader,
    q: Annotated[str, Query(max_length=NAME_CHARS_MAX, description="Part of the name.")] = "",
    limit: Limit = LIMIT_DEFAULT,
    cursor: Cursor = None,
) -> m.Page[m.WorkflowSummary]:
    """Workflows by name; deleted ones are left out."""
    after = views.read_cursor(cursor, str) or ""
    found = await caller.server.reads.workflows(caller.ns, q, after.replace("\x00", ""), limit + 1)
    page = found[:limit]
    return m.Page[m.WorkflowSummary](
        items=[views.workflow(w) for w in page], next=views.cursor_of(page[-1].name) if len(found) > limit else None
    )


@router.post("", status_code=201, responses=responses(401, 403, 409, 413, 422, s200={"model": m.WorkflowDetail, "description": "This version was registered before."}))  # fmt: skip
async def register_workflow(caller: Developer, body: m.Registration, response: Response) -> m.WorkflowDetail:
    """Make a version known and current: of code by its name, of a flow by its document. A deleted workflow comes back to life."""
    if isinstance(body, m.DeployFlow):
        return await _deploy(caller, body, response)
    if is_flow(body.version):
        raise InvalidInput(f"version: one that begins with {VERSION_PREFIX!r} is made from a flow's document")
    added = await caller.server.registry.register(caller.ns, body.name, body.version, body.kind, body.description)
    caller.use.moved(body.name)
    await caller.server.audit(caller.principal, "workflow.register", body.name, {"version": body.version}, ns=caller.ns)
    response.status_code = 201 if added else 200
    return await get_workflow(caller, body.name)


def check_commands(caller: Caller, flow: Flow) -> None:
    """A flow with `run:` executes commands as the user of a worker: more than publishing needs."""
    node = flow.command_node()
    if node is not None and not caller.principal.may(Permission.COMMANDS):
        raise Forbidden(
            f"the node {node!r} of the flow {flow.name!r} runs a command, which needs the permission "
            f"{Permission.COMMANDS.value!r} of this credential. An administrator has it; `perdure api-key create --role admin "
            f"--scope {Permission.DEVELOP.value} --scope {Permission.COMMANDS.value}` makes a key for this alone."
        )


async def _deploy(caller: Caller, body: m.DeployFlow, response: Response) -> m.WorkflowDetail:
    draft = await draft_of(body)
    check_commands(caller, draft.flow)
    name = draft.flow.name
    before = await caller.server.reads.workflow(caller.ns, name)
    changed = await changes_of(caller, before, draft)
    added = await caller.server.registry.deploy(
        caller.ns,
        name,
        draft.version,
        draft.flow.kind,
        draft.flow.description or None,
        draft.document,
        draft.source,
        activate=body.activate,
        triggers=trigger_requests(draft.flow),
        by=caller.principal.subject,
        control=draft.control,
        timeout_us=draft.flow.timeout_us,
    )
    caller.use.moved(name)
    caller.server.engine.scheduler.changed()
    await caller.server.audit(
        caller.principal, "workflow.deploy", name, {"version": draft.version, "activate": body.activate}, ns=caller.ns
    )
    response.status_code = 201 if added else 200
    detail = await get_workflow(caller, name)
    detail.deployed = m.Deployed(
        version=draft.version,
        created=added,
        activated=detail.version == draft.version and (before is None or before.current != draft.version),
        changes=None if changed is None else views.flow_changes(changed),
        warnings=[views.flow_problem(p) for p in draft.compiled.warnings],
    )
    return detail


@router.get("/{name}", responses=responses(401, 403, 404))
async def get_workflow(caller: Reader, name: WorkflowName) -> m.WorkflowDetail:
    """A workflow with its versions, newest first."""
    found = await known(caller, name)
    versions = await caller.server.reads.versions(caller.ns, name, LIMIT_MAX)
    shown_ = views.workflow(found)
    return m.WorkflowDetail(**shown_.model_dump(exclude={"versions"}), versions=[views.version(v) for v in versions])


@router.delete("/{name}", status_code=204, responses=responses(401, 403, 404))
async def delete_workflow(caller: Developer, name: WorkflowName) -> None:
    """Take no new runs. Runs that are active go on, and history stays."""
    if not await caller.server.registry.delete(caller.ns, name):
        found = await known(caller, name)
        assert found.deleted_us is not None
        return
    await caller.server.audit(caller.principal, "workflow.delete", name, ns=caller.ns)


@router.get("/{name}/versions", responses=responses(401, 403, 404))
async def list_versions(caller: Reader, name: WorkflowName) -> m.Page[m.WorkflowVersion]:
    """The newest versions of a workflow."""
    await known(caller, name)
    versions = await caller.server.reads.versions(caller.ns, name, LIMIT_MAX)
    return m.Page[m.WorkflowVersion](items=[views.version(v) for v in versions], next=None)


async def known(caller: Caller, name: str) -> WorkflowItem:
    found = await caller.server.reads.workflow(caller.ns, name)
    if found is None:
        raise NotRegistered(await _unknown(caller, name))
    return found


async def _unknown(caller: Caller, name: str) -> str:
    near = difflib.get_close_matches(name, await caller.server.reads.workflow_names(caller.ns), 3)
    hint = (
        f"did you mean {' or '.join(repr(n) for n in near)}?"
        if near
        else "connect a worker that defines it, or register it"
    )
    return f"no workflow {name!r} in this namespace; {hint}"


# -- starting ------------------------------------------------------------------------------------------------------


@router.post("/{name}/runs", status_code=201, response_model=m.Run, responses=responses(401, 403, 404, 409, 413, 422, s200={"model": m.Run, "description": "The run was there already."}, s202={"model": m.PutOff, "description": "The start was put off."}))  # fmt: skip
async def start_run(
    caller: Starter,
    name: WorkflowName,
    response: Response,
    body: m.StartRun | None = None,
    idempotency_key: IdempotencyKey = None,
    traceparent: Annotated[str | None, Header(max_length=100)] = None,
) -> m.Run | JSONResponse:
    """Start a run. Answered once it is durable. A start that is debounced or batched is answered with 202 and the id of the run that will come."""
    request = await request_of(caller, name, body or m.StartRun.model_validate({}), traceparent)
    if request.later is not None or request.dedup is not None:
        return await _start_later(caller, request, response, idempotency_key)
    if idempotency_key is not None:
        request = await _idempotent(caller, request, check_key(idempotency_key))
    before = await _holder(caller, request.key)
    run_id = await _start(caller, request, idempotency_key)
    response.status_code = 200 if run_id == before else 201
    response.headers["Location"] = f"/api/v1/runs/{ids.text(run_id)}"
    if run_id != before:
        await audit(caller, "run.start", run_id, workflow=name)
    return await shown(caller, run_id)


async def request_of(caller: Caller, name: str, body: m.StartRun, traceparent: str | None) -> StartRequest:
    if body.id is not None and body.id.startswith(views.IDEMPOTENT_KEY):
        raise InvalidInput(f"id: one that begins with {views.IDEMPOTENT_KEY!r} is made by the server; choose another")
    version = await _version(caller, name, body.version)
    await check_input(caller, name, version, body)
    return StartRequest(
        namespace=caller.namespace,
        workflow=name,
        version=version,
        input=views.call(body),
        key=body.id or "",
        on_conflict=body.on_conflict,
        timeout_us=views.duration_us(body.timeout),
        attributes=encode_json(body.attributes) if body.attributes else b"",
        trace=traceparent if traceparent and TRACEPARENT.fullmatch(traceparent) else "",
        later=_later(body),
        dedup=deferred_starts.Dedup(body.dedup.key, views.duration_us(body.dedup.for_))
        if body.dedup is not None
        else None,
    )


def _later(body: m.StartRun) -> deferred_starts.Later | None:
    if body.debounce is not None and body.batch is not None:
        raise InvalidInput("a start is debounced or batched, not both")
    if body.debounce is not None:
        d = body.debounce
        return deferred_starts.Debounce(d.key, views.duration_us(d.quiet), views.duration_us(d.max))
    b = body.batch
    return deferred_starts.Batch(b.key, b.size, views.duration_us(b.every)) if b is not None else None


async def _start_later(
    caller: Caller, request: StartRequest, response: Response, idempotency_key: str | None
) -> m.Run | JSONResponse:
    """Put off, or at most once. A repetition of either has no further effect, but items would be added twice: their key sees to that."""
    if isinstance(request.later, deferred_starts.Batch) and idempotency_key is not None:
        request = msgspec.structs.replace(request, once=check_key(idempotency_key))
    begun = await caller.use.start_later(request)
    where = f"/api/v1/runs/{ids.text(begun.run_id)}"
    if begun.created:
        await audit(caller, "run.start", begun.run_id, workflow=request.workflow)
    if begun.due_us is None:
        response.status_code = 201 if begun.created else 200
        response.headers["Location"] = where
        return await shown(caller, begun.run_id)
    body = m.PutOff(
        id=ids.text(begun.run_id), workflow=request.workflow, due_at=views.moment(begun.due_us),
        url=f"{caller.server.public_url}/runs/{ids.text(begun.run_id)}",
    )  # fmt: skip
    return JSONResponse(body.model_dump(mode="json"), status_code=202, headers={"Location": where})


async def _version(caller: Caller, name: str, wanted: str | None) -> str:
    found = await known(caller, name)
    if found.deleted_us is not None:
        raise WorkflowDeleted(
            f"the workflow {name!r} was deleted and takes no new runs; register it again to bring it back"
        )
    return await version_known(caller, name, wanted)


async def version_known(caller: Caller, name: str, wanted: str | None) -> str:
    """A version that there is: the current one unless another is named."""
    found = await known(caller, name)
    if wanted is None or wanted == found.current:
        return found.current
    if await caller.server.reads.definition(caller.ns, name, wanted) is not None:
        return wanted
    versions = [v.version for v in await caller.server.reads.versions(caller.ns, name, LIMIT_MAX)]
    near = difflib.get_close_matches(wanted, versions, 3)
    hint = f"did you mean {' or '.join(near)}?" if near else f"the current one is {found.current}"
    raise NotRegistered(f"the workflow {name!r} has no version {wanted!r}; {hint}")


async def _idempotent(caller: Caller, r: StartRequest, key: str) -> StartRequest:
    """Without an id of its own the key becomes the run's id, and that is exact: whoever comes second, even after a crash, finds the run of the first.

    The digest beside it tells a repetition from another request under the same key. A repetition of a start that has an id attaches to
    it, whatever it said about conflicts: it would be in conflict with itself. The version is left out of the digest: a current
    one may have changed meanwhile.
    """
    wanted = digest("start", r.workflow, r.input, r.key, r.on_conflict, r.timeout_us, r.attributes)
    known = await caller.server.registry.remember(caller.ns, f"start:{key}", wanted)
    check_same(key, known.held, wanted)
    if not r.key:
        return msgspec.structs.replace(r, key=views.IDEMPOTENT_KEY + key, on_conflict="attach")
    return r if known.first else msgspec.structs.replace(r, on_conflict="attach")


async def _holder(caller: Caller, key: str) -> bytes | None:
    if not key:
        return None
    try:
        return await caller.use.run_of(key)
    except NotFound:
        return None


async def _start(caller: Caller, request: StartRequest, idempotency_key: str | None) -> bytes:
    try:
        return await caller.use.start(request)
    except RunAlreadyExists:
        if idempotency_key is not None and request.key.startswith(views.IDEMPOTENT_KEY):
            raise IdempotencyConflict(
                f"the idempotency key {idempotency_key!r} was used for a different request; use a new key for a new request"
            ) from None
        raise

"""Scenarios of workflows, limits, workers, and of what administrators do."""

from __future__ import annotations

from typing import Any

from perdure.core.access import Role
from perdure.core.api import admin, cluster, definitions, flow_control, versions
from perdure.core.api.admin import (
    CreateKey,
    KeyRef,
    ListAudit,
    ListKeys,
    ListNamespaces,
    NamespaceRef,
    WhoAmI,
)
from perdure.core.api.cluster import GetServer, ListQueues, ListWorkers
from perdure.core.api.definitions import (
    DeployFlow,
    FlowText,
    GetGraph,
    GetRunGraph,
    GetSchema,
    ListWorkflows,
    RegisterWorkflow,
    VersionRef,
    WorkflowRef,
)
from perdure.core.api.flow_control import ListRules, PauseScope, RuleRef, SetRule
from perdure.core.api.versions import MoveRuns, SetCurrent
from tests.server.parity.stage import FLOW, NOWHERE, Refusal, Rest, Scenario, Stage, done, each, same, within

UNKNOWN = ("parity_nowhere", "not_registered")
WORKFLOW = "name kind current=version description created_us=created_at deleted_us=deleted_at runs_active"
DETAIL = (
    f"{within(WORKFLOW, 'item')} versions[].version=versions[].version versions[].kind=versions[].kind "
    "versions[].current=versions[].current versions[].registered_us=versions[].registered_at"
)
VERSIONS = (
    "name kind current=version previous ramp ramp_percent by_hand versions[].version=items[].version versions[].kind=items[].kind "
    "versions[].hash=items[].hash versions[].build_id=items[].build_id versions[].pinned=items[].pinned "
    "versions[].registered_us=items[].registered_at versions[].seen_us=items[].seen_at versions[].workers=items[].workers "
    "versions[].runs_pinned=items[].runs_pinned versions[].runs_other=items[].runs_other versions[].is_current=items[].current "
    "versions[].can_drain=items[].can_drain"
)
RULE = "scope name concurrency rate paused_us=paused_at paused_by pause_reason updated_us=updated_at updated_by"
KEY = "id name namespace scopes rate_per_s created_us=created_at created_by expires_us=expires_at revoked_us=revoked_at"
VERSION = "v1"


def flow(name: str, n: int = 1) -> FlowText:
    return FlowText(source=FLOW.format(name=name, n=n))


def source(name: str, n: int = 1) -> dict[str, Any]:
    return {"source": FLOW.format(name=name, n=n)}


async def deployed(stage: Stage) -> str:
    name = stage.name()
    await stage.embedded(definitions.DEPLOY, DeployFlow(flow(name)))
    return name


async def registered(stage: Stage) -> str:
    """Two versions, of which the second is current."""
    name = stage.name()
    for version in (VERSION, "v2"):
        await stage.embedded(definitions.REGISTER, RegisterWorkflow(name=name, version=version))
    return name


async def flow_run(stage: Stage) -> str:
    name = await deployed(stage)
    run = await stage.live.post(f"/workflows/{name}/runs", {})
    handle = await stage.perdure.get(run["id"])
    async for _ in handle.events():
        pass
    return handle.id


async def limited(stage: Stage) -> str:
    name = stage.name()
    await stage.embedded(flow_control.SET, SetRule("queue", name, 5))
    return name


async def paused(stage: Stage) -> str:
    name = stage.name()
    await stage.embedded(flow_control.PAUSE, PauseScope("queue", name, "full"))
    return name


async def namespace(stage: Stage) -> str:
    name = stage.name()
    await stage.embedded(admin.CREATE_NAMESPACE, NamespaceRef(name))
    return name


async def key(stage: Stage) -> str:
    made = await stage.embedded(admin.CREATE_KEY, CreateKey(name="parity", role=Role.VIEWER))
    return str(made.key.id)


async def ran(stage: Stage) -> str:
    return await stage.ended(done)


def key_role(reply: Any) -> dict[str, Any]:
    return {"role": reply.role.value}


def bad_flow(name: str) -> dict[str, Any]:
    return {"source": f"flow: {name}\ntasks: {{a: {{valeu: 1}}}}\n"}


DEFINITIONS = (
    Scenario(
        act=definitions.LIST,
        setup=registered,
        request=lambda s: ListWorkflows(),
        rest=lambda s: Rest("GET", "/workflows"),
        fields=f"{each(WORKFLOW)} items[].versions next",
        without_refusal="a text that fits no name finds none",
    ),
    Scenario(
        act=definitions.GET,
        setup=registered,
        request=WorkflowRef,
        rest=lambda s: Rest("GET", f"/workflows/{s}"),
        fields=DETAIL,
        nowhere=UNKNOWN,
    ),
    Scenario(
        act=definitions.REGISTER,
        request=lambda s: RegisterWorkflow(name=s, version=VERSION),
        rest=lambda s: Rest("POST", "/workflows", {"name": s, "version": VERSION}),
        fields=" ".join(f"workflow.{f}" for f in DETAIL.split()),
        shows=lambda r: {"http": 201 if r.is_new else 200},
        refusal=lambda name: Refusal(
            code="invalid_input",
            request=RegisterWorkflow(name=name, version="flow-1"),
            rest=Rest("POST", "/workflows", {"name": name, "version": "flow-1"}),
        ),
    ),
    Scenario(
        act=definitions.DEPLOY,
        request=lambda s: DeployFlow(flow(s)),
        rest=lambda s: Rest("POST", "/workflows/deploy", source(s)),
        fields="version=deployed.version is_new=deployed.created is_activated=deployed.activated changes=deployed.changes "
        "workflow.item.name=name workflow.item.kind=kind workflow.item.current=version",
        refusal=lambda name: Refusal(
            code="invalid_flow",
            request=DeployFlow(FlowText(**bad_flow(name))),
            rest=Rest("POST", "/workflows/deploy", bad_flow(name)),
        ),
    ),
    Scenario(
        act=definitions.VALIDATE,
        setup=deployed,
        request=lambda s: flow(s, 2),
        rest=lambda s: Rest("POST", "/workflows/validate", source(s, 2)),
        fields="name version kind nodes is_known current changes.changed",
        refusal=lambda name: Refusal(
            code="invalid_flow",
            request=FlowText(**bad_flow(name)),
            rest=Rest("POST", "/workflows/validate", bad_flow(name)),
        ),
    ),
    Scenario(
        act=definitions.DELETE,
        setup=registered,
        request=WorkflowRef,
        rest=lambda s: Rest("DELETE", f"/workflows/{s}"),
        nowhere=UNKNOWN,
    ),
    Scenario(
        act=definitions.VERSION,
        setup=registered,
        request=lambda s: VersionRef(s, VERSION),
        rest=lambda s: Rest("GET", f"/workflows/{s}/versions/{VERSION}"),
        fields="version kind registered_us=registered_at is_current=current document source",
        nowhere=UNKNOWN,
    ),
    Scenario(
        act=versions.LIST,
        setup=registered,
        request=WorkflowRef,
        rest=lambda s: Rest("GET", f"/workflows/{s}/versions"),
        fields=VERSIONS,
        nowhere=UNKNOWN,
    ),
    Scenario(
        act=versions.SET_CURRENT,
        setup=registered,
        request=lambda s: SetCurrent(s, VERSION),
        rest=lambda s: Rest("POST", f"/workflows/{s}/current", {"version": VERSION}),
        fields=VERSIONS,
        nowhere=UNKNOWN,
    ),
    Scenario(
        act=versions.ROLLBACK,
        setup=registered,
        request=WorkflowRef,
        rest=lambda s: Rest("POST", f"/workflows/{s}/rollback"),
        fields=VERSIONS,
        nowhere=UNKNOWN,
    ),
    Scenario(
        act=versions.MOVE,
        setup=registered,
        request=lambda s: MoveRuns(s, VERSION, "v2"),
        rest=lambda s: Rest("POST", f"/workflows/{s}/versions/{VERSION}/move", {"to": "v2"}),
        fields="runs",
        nowhere=UNKNOWN,
    ),
    Scenario(
        act=definitions.GRAPH,
        setup=deployed,
        request=GetGraph,
        rest=lambda s: Rest("GET", f"/workflows/{s}/graph"),
        fields="name version kind",
        nowhere=UNKNOWN,
    ),
    Scenario(
        act=definitions.RUN_GRAPH,
        setup=flow_run,
        request=GetRunGraph,
        rest=lambda s: Rest("GET", f"/runs/{s}/graph"),
        fields="name version kind",
        shows=lambda r: {"nodes": [{"key": k, "status": v} for k, v in r.statuses.items()]},
        nowhere=(NOWHERE, "not_found"),
    ),
    Scenario(
        act=definitions.SCHEMA,
        setup=same("-"),
        request=lambda s: GetSchema(),
        rest=lambda s: Rest("GET", "/schema/flow.json"),
        shows=lambda r: dict(r),
        without_refusal="it names nothing",
    ),
)

LIMITS = (
    Scenario(
        act=flow_control.LIST,
        setup=limited,
        request=lambda s: ListRules(),
        rest=lambda s: Rest("GET", "/limits"),
        fields=f"{each(RULE)} next",
        without_refusal="it names nothing",
    ),
    Scenario(
        act=flow_control.SET,
        request=lambda s: SetRule("queue", s, 5),
        rest=lambda s: Rest("PUT", f"/limits/queue/{s}", {"concurrency": 5}),
        fields=RULE,
        refusal=lambda name: Refusal(
            code="invalid_input",
            request=SetRule("namespace", name, 5),
            rest=Rest("PUT", f"/limits/namespace/{name}", {"concurrency": 5}),
        ),
    ),
    Scenario(
        act=flow_control.CLEAR,
        setup=limited,
        request=lambda s: RuleRef("queue", s),
        rest=lambda s: Rest("DELETE", f"/limits/queue/{s}"),
        nowhere=("parity-nowhere", "not_found"),
    ),
    Scenario(
        act=flow_control.PAUSE,
        request=lambda s: PauseScope("queue", s, "full"),
        rest=lambda s: Rest("POST", f"/queues/{s}/pause", {"reason": "full"}),
        fields=RULE,
        refusal=lambda name: Refusal(
            code="not_registered",
            request=PauseScope("workflow", name),
            rest=Rest("POST", f"/workflows/{name}/pause"),
        ),
    ),
    Scenario(
        act=flow_control.RESUME,
        setup=paused,
        request=lambda s: RuleRef("queue", s),
        rest=lambda s: Rest("POST", f"/queues/{s}/resume"),
        nowhere=("parity-nowhere", "not_found"),
    ),
    Scenario(
        act=cluster.LIST_WORKERS,
        setup=ran,
        request=lambda s: ListWorkers(),
        rest=lambda s: Rest("GET", "/workers"),
        fields="items[].id items[].name items[].host items[].pid items[].sdk items[].queues items[].tasks items[].slots next",
        without_refusal="it names nothing",
    ),
    Scenario(
        act=cluster.LIST_QUEUES,
        setup=ran,
        request=lambda s: ListQueues(),
        rest=lambda s: Rest("GET", "/queues"),
        fields="items[].queue items[].task items[].pending items[].running items[].workers",
        without_refusal="it names nothing",
    ),
    Scenario(
        act=cluster.GET_SERVER,
        setup=same("-"),
        request=lambda s: GetServer(),
        rest=lambda s: Rest("GET", "/server"),
        fields=(
            "version runs_days=keeps.runs_days counts_days=keeps.counts_days payload_store "
            "payload_bytes_max=limits.payload_bytes_max lease_s=limits.lease_s runs_max=limits.runs_max"
        ),
        without_refusal="it names nothing",
    ),
)

ADMIN = (
    Scenario(
        act=admin.WHOAMI,
        setup=same("-"),
        request=lambda s: WhoAmI(),
        rest=lambda s: Rest("GET", "/whoami"),
        fields="subject namespace scopes",
        shows=key_role,
        without_refusal="it names nothing",
    ),
    Scenario(
        act=admin.LIST_NAMESPACES,
        setup=namespace,
        request=lambda s: ListNamespaces(),
        rest=lambda s: Rest("GET", "/namespaces"),
        fields="items[].name items[].created_us=items[].created_at next",
        without_refusal="it names nothing",
    ),
    Scenario(
        act=admin.CREATE_NAMESPACE,
        request=NamespaceRef,
        rest=lambda s: Rest("POST", "/namespaces", {"name": s}),
        fields="name",
        shows=lambda r: {"http": 201 if r.is_new else 200},
        refusal=lambda name: Refusal(
            code="invalid_input", request=NamespaceRef("a b"), rest=Rest("POST", "/namespaces", {"name": "a b"})
        ),
    ),
    Scenario(
        act=admin.DELETE_NAMESPACE,
        setup=namespace,
        request=NamespaceRef,
        rest=lambda s: Rest("DELETE", f"/namespaces/{s}"),
        nowhere=("default", "conflict"),
    ),
    Scenario(
        act=admin.LIST_KEYS,
        setup=key,
        request=lambda s: ListKeys(),
        rest=lambda s: Rest("GET", "/api-keys"),
        fields=f"{each(KEY)} next",
        shows=lambda r: {"items": [key_role(k) for k in r.items]},
        without_refusal="it names nothing",
    ),
    Scenario(
        act=admin.CREATE_KEY,
        request=lambda s: CreateKey(name=s, role=Role.VIEWER, namespace="default"),
        rest=lambda s: Rest("POST", "/api-keys", {"name": s, "role": "viewer", "namespace": "default"}),
        fields=f"{within('name namespace scopes created_us=created_at created_by', 'key')} secret",
        made="key.id=id",
        shows=lambda r: key_role(r.key),
        refusal=lambda name: Refusal(
            code="not_found",
            request=CreateKey(name=name, role=Role.VIEWER, namespace="parity-nowhere"),
            rest=Rest("POST", "/api-keys", {"name": name, "role": "viewer", "namespace": "parity-nowhere"}),
        ),
    ),
    Scenario(
        act=admin.REVOKE_KEY,
        setup=key,
        request=KeyRef,
        rest=lambda s: Rest("DELETE", f"/api-keys/{s}"),
        nowhere=("parity-nowhere", "not_found"),
    ),
    Scenario(
        act=admin.LIST_AUDIT,
        setup=namespace,
        request=lambda s: ListAudit(limit=5),
        rest=lambda s: Rest("GET", "/audit", params={"limit": 5}),
        fields="items[].id items[].actor items[].action items[].target items[].namespace items[].at_us=items[].at",
        without_refusal="it names nothing",
    ),
)

SCENARIOS = (*DEFINITIONS, *LIMITS, *ADMIN)

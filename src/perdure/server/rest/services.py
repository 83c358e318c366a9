"""Instances of HTTP services: the registry that they use themselves, and callbacks with the end of a job.

The paths below /workers are those that services of this kind of scheduler already use. They stand at the root as well as below
/api/v1. `GET /api/v1/workers`, without a further word, is another list: the Perdure workers that are connected.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request
from pydantic import AliasChoices, BaseModel, ConfigDict, Field

from perdure.core import callbacks
from perdure.core.api import services as acts
from perdure.core.api.services import (
    AllocateInstance,
    InstanceHeartbeat,
    InstanceItem,
    ListInstances,
    RegisterInstance,
)
from perdure.core.calls import encode_json
from perdure.core.errors import InvalidInput, NotFound, RateLimited
from perdure.core.limits import INSTANCE_URL_CHARS_MAX, NAME_CHARS_MAX, SERVICE_INSTANCES_MAX
from perdure.engine.api.services import TTL_S_MAX, receive_callback
from perdure.server.auth.addresses import client_of
from perdure.server.auth.rates import Buckets
from perdure.server.context import Server
from perdure.server.rest import models as m
from perdure.server.rest import views
from perdure.server.rest.guard import Anyone, GuardedRoute, RestCaller, asks
from perdure.server.rest.paging import LIMIT_DEFAULT, Cursor, Limit
from perdure.server.rest.problems import responses

REFUSALS_PER_S = 2.0
REFUSALS_BURST = 50.0
"""Callbacks with a wrong token that one client may send at once: so many, then so many a second."""

router = APIRouter(tags=["services"], route_class=GuardedRoute)
compatible = APIRouter(include_in_schema=False, route_class=GuardedRoute)
"""The registry at the root."""

ServiceName = Annotated[str, Query(min_length=1, max_length=NAME_CHARS_MAX, description="The name of a service.")]


class _FromInstance(BaseModel):
    """What an instance sends. Services of other schedulers say more than is used here."""

    model_config = ConfigDict(extra="ignore", coerce_numbers_to_str=True)


class RegisterInstanceRequest(_FromInstance):
    url: str = Field(
        max_length=INSTANCE_URL_CHARS_MAX,
        description="Base URL; calls go to URL/exec/SERVICE.",
        examples=["http://10.0.0.5:8080"],
    )
    services: list[str] | str = Field(
        description="Names of its services: a list, or text separated by commas.", examples=[["transform", "sum"]]
    )
    load: float = Field(default=0.0, description="Calls under way, or any other measure of load.")
    id: str | None = Field(
        default=None,
        validation_alias=AliasChoices("id", "worker_id"),
        description="Its own name. Default: one that follows from the URL.",
    )


class InstanceHeartbeatRequest(_FromInstance):
    id: str | None = Field(default=None, validation_alias=AliasChoices("id", "worker_id"))
    url: str | None = Field(default=None, max_length=INSTANCE_URL_CHARS_MAX, description="Instead of the id.")
    load: float | None = None


class ServiceInstance(BaseModel):
    id: str
    url: str
    services: list[str]
    load: float
    last_heartbeat: m.Moment
    registered_at: m.Moment
    status: str = Field(description="`online` or `offline`.")


class HeartbeatTaken(BaseModel):
    id: str
    status: str


class CallbackTaken(BaseModel):
    is_new: bool = Field(description="False: the end of this job was reported before, and stands.")


@router.get("/services", responses=responses(401, 403, 422))
async def list_services(
    caller: Annotated[RestCaller, asks(acts.LIST)],
    service: Annotated[str, Query(max_length=NAME_CHARS_MAX, description="Of this service only.")] = "",
    limit: Limit = LIMIT_DEFAULT,
    cursor: Cursor = None,
) -> m.Page[ServiceInstance]:
    """Instances of HTTP services, by id."""
    request = ListInstances(service, None, views.read_text_cursor(cursor), limit)
    page = await caller.call(acts.LIST, request)
    return m.Page[ServiceInstance](items=[_shown(i) for i in page.items], next=views.next_cursor(page.next))


@compatible.post("/workers/register")
@router.post("/workers/register", responses=responses(401, 403, 409, 413, 422))
async def register_instance(
    caller: Annotated[RestCaller, asks(acts.REGISTER)], body: RegisterInstanceRequest
) -> ServiceInstance:
    """Register an instance of HTTP services, or change what is registered."""
    services = body.services if isinstance(body.services, list) else [s.strip() for s in body.services.split(",")]
    new = RegisterInstance(body.url, [s for s in services if s], body.load, body.id or "")
    return _shown(await caller.call(acts.REGISTER, new))


@compatible.post("/workers/heartbeat")
@router.post("/workers/heartbeat", responses=responses(401, 403, 404, 413, 422))
async def instance_heartbeat(
    caller: Annotated[RestCaller, asks(acts.HEARTBEAT)], body: InstanceHeartbeatRequest
) -> HeartbeatTaken:
    """Report that an instance is alive, and its load. 404: it is not registered, or not any more."""
    found = await caller.call(acts.HEARTBEAT, InstanceHeartbeat(body.id or "", body.url or "", body.load))
    return HeartbeatTaken(id=found.id, status=acts.ONLINE)


@compatible.get("/workers/list")
@router.get("/workers/list", responses=responses(401, 403, 422))
async def list_instances(
    caller: Annotated[RestCaller, asks(acts.LIST)],
    service: Annotated[str, Query(max_length=NAME_CHARS_MAX, description="Of this service only.")] = "",
    ttl: Annotated[
        float | None,
        Query(gt=0, le=TTL_S_MAX, description="With a heartbeat in so many seconds. Default: the server's own limit."),
    ] = None,
) -> list[ServiceInstance]:
    """Instances that are online, as a list without pages."""
    request = ListInstances(service, ttl or caller.server.engine.settings.service_ttl_s, "", SERVICE_INSTANCES_MAX)
    return [_shown(i) for i in (await caller.call(acts.LIST, request)).items]


@compatible.get("/workers/allocate")
@router.get("/workers/allocate", responses=responses(401, 403, 404, 422))
async def allocate_instance(
    caller: Annotated[RestCaller, asks(acts.ALLOCATE)], service: ServiceName
) -> ServiceInstance:
    """The instance of a service that is online and has the least load."""
    return _shown(await caller.call(acts.ALLOCATE, AllocateInstance(service)))


def _shown(i: InstanceItem) -> ServiceInstance:
    return ServiceInstance(
        id=i.id,
        url=i.url,
        services=i.services,
        load=i.load,
        last_heartbeat=views.moment(i.heartbeat_us),
        registered_at=views.moment(i.registered_us),
        status=i.status,
    )


receiving = APIRouter(include_in_schema=False, route_class=GuardedRoute)


@receiving.post(f"{callbacks.PATH}/{{token}}")
async def receive(_: Anyone, request: Request, token: Annotated[str, Path(max_length=1_000)]) -> CallbackTaken:
    """The end of a job: `{"result": ..., "error": ""}`. The token is the credential."""
    server: Server = request.app.state.server
    said: Any = request.state.value
    if not isinstance(said, dict) or not {"result", "error"} & said.keys():
        raise InvalidInput('the body of a callback is {"result": ..., "error": ""}')
    error = said.get("error") or ""
    text = error if isinstance(error, str) else encode_json(error).decode()
    try:
        return CallbackTaken(is_new=await receive_callback(server.api, token, encode_json(said.get("result")), text))
    except NotFound:
        _count_refusal(request)
        raise


def _count_refusal(request: Request) -> None:
    """RateLimited when one client guesses tokens."""
    rates: Buckets = request.app.state.link_rates
    client = client_of(request.client.host) if request.client else ""
    wait = rates.take(f"callbacks of:{client}", REFUSALS_PER_S, REFUSALS_BURST)
    if wait:
        raise RateLimited(f"too many callbacks were refused lately: wait {wait:.1f} s", wait)

"""Acts on HTTP services: instances that register themselves, calls of them, and the reception of callbacks.

Laws:

1. An instance is online while its last heartbeat is younger than the time to live, by the database's clock. Nothing has to mark it offline.
2. The server never connects to an instance. Whether its address may be reached is decided by the worker that calls it.
3. A callback URL is good for one job. The first report of a job counts; a repetition has no further effect; a report after the end of
   the attempt is refused.
"""

from __future__ import annotations

import math
from hashlib import blake2b
from typing import Final
from urllib.parse import urlsplit

from perdure.core import callbacks
from perdure.core.api import services as acts
from perdure.core.api.services import (
    AllocateInstance,
    BeginCall,
    CallBegun,
    CallEnd,
    CallEnds,
    InstanceHeartbeat,
    InstanceItem,
    InstancePage,
    InstanceRef,
    JobNames,
    ListInstances,
    RegisterInstance,
)
from perdure.core.callbacks import CallbackToken
from perdure.core.errors import Conflict, InvalidInput, NotFound, PayloadTooLarge
from perdure.core.limits import (
    ERROR_CHARS_MAX,
    INSTANCE_SERVICES_MAX,
    INSTANCE_URL_CHARS_MAX,
    PAYLOAD_BYTES_MAX,
    SERVICE_INSTANCES_MAX,
)
from perdure.core.names import checked_name
from perdure.engine.api.api import Api, NamespaceApi, handles, page_limit

LOAD_MAX: Final = 1e9
TTL_S_MAX: Final = 86_400.0
JOBS_MAX: Final = 1_000
"""Jobs of one request."""
JOB_CHARS_MAX: Final = 63


@handles(acts.REGISTER)
async def register(api: NamespaceApi, r: RegisterInstance) -> InstanceItem:
    url = instance_url(r.url)
    if not 1 <= len(r.services) <= INSTANCE_SERVICES_MAX:
        raise InvalidInput(
            f"an instance offers 1 to INSTANCE_SERVICES_MAX={INSTANCE_SERVICES_MAX} services, not {len(r.services)}"
        )
    services = sorted({checked_name("service", name) for name in r.services})
    id = checked_name("instance", r.id) if r.id else f"instance-{blake2b(url.encode(), digest_size=8).hexdigest()}"
    found, is_changed = await api.ports.services.register(
        api.ns, RegisterInstance(url, services, _checked_load(r.load), id)
    )
    if is_changed:  # one that registers again and again fills no log
        await api.record("service.register", found.id, url=url)
    return found


@handles(acts.HEARTBEAT)
async def heartbeat(api: NamespaceApi, r: InstanceHeartbeat) -> InstanceRef:
    if not r.id and not r.url:
        raise InvalidInput("a heartbeat names its instance by id or by url")
    url = instance_url(r.url) if r.url else ""
    load = None if r.load is None else _checked_load(r.load)
    found = await api.ports.services.heartbeat(api.ns, r.id, url, load)
    if found is None:
        raise NotFound(f"no instance {r.id or r.url!r} is registered in this namespace: register it again")
    return InstanceRef(found)


@handles(acts.LIST)
async def list_instances(api: NamespaceApi, r: ListInstances) -> InstancePage:
    limit = page_limit(r.limit)
    if r.ttl_s is not None and not 0 < r.ttl_s <= TTL_S_MAX:
        raise InvalidInput(f"ttl is {r.ttl_s:g}; give seconds above 0, at most {TTL_S_MAX:g}")
    ttl_s = api.engine.settings.service_ttl_s if r.ttl_s is None else r.ttl_s
    found = await api.ports.services.instances(
        api.ns, r.service, ttl_s, only_online=r.ttl_s is not None, after=r.after, limit=limit + 1
    )
    return InstancePage(found[:limit], found[limit - 1].id if len(found) > limit else None)


@handles(acts.ALLOCATE)
async def allocate(api: NamespaceApi, r: AllocateInstance) -> InstanceItem:
    """The instance with the least load; of several, the one that was heard of last."""
    found = await _online(api, checked_name("service", r.service))
    if not found:
        raise NotFound(f"no instance of the service {r.service!r} is online in this namespace")
    return min(found, key=lambda i: (i.load, -i.heartbeat_us, i.id))


@handles(acts.BEGIN_CALL)
async def begin_call(api: NamespaceApi, r: BeginCall) -> CallBegun:
    """Everything that a worker needs before it calls a service for a job."""
    _check_jobs([r.job])
    phase, end = await api.ports.services.callback(api.ns, r.job) or (None, None)
    # A closed one is called again: the worker that closed it crashed before its report was recorded.
    instances = await _online(api, r.service) if r.service and phase in (None, "closed") else []
    return CallBegun(instances, await _callback_url(api, r.job), phase == "waiting", end)


@handles(acts.ACCEPT_CALL)
async def accept_call(api: NamespaceApi, r: JobNames) -> None:
    _check_jobs(r.jobs)
    await api.ports.services.accept(api.ns, r.jobs)


@handles(acts.CALL_ENDS)
async def call_ends(api: NamespaceApi, r: JobNames) -> CallEnds:
    _check_jobs(r.jobs)
    return CallEnds(await api.ports.services.ended(api.ns, r.jobs))


@handles(acts.CLOSE_CALL)
async def close_call(api: NamespaceApi, r: JobNames) -> None:
    _check_jobs(r.jobs)
    await api.ports.services.close_callbacks(api.ns, r.jobs)


async def _online(api: NamespaceApi, service: str) -> list[InstanceItem]:
    ttl_s = api.engine.settings.service_ttl_s
    return await api.ports.services.instances(api.ns, service, ttl_s, only_online=True, limit=SERVICE_INSTANCES_MAX)


async def _callback_url(api: NamespaceApi, job: str) -> str:
    """Empty where this program has no server."""
    base = api.api.public_url
    secret = await api.ports.approvals.secret()
    return f"{base}{callbacks.PATH}/{callbacks.sign(CallbackToken(api.ns, job), secret)}" if base else ""


async def receive_callback(api: Api, token: str, result: bytes, error: str) -> bool:
    """The end of a job, as its service reports it. Whether it is the first report. The token is the credential, so this is no act."""
    named = callbacks.read(token, await api.ports.approvals.secret())
    if named is None:
        raise NotFound("this callback URL names no job: use the one that came with the call, unchanged")
    if len(result) > PAYLOAD_BYTES_MAX:
        raise PayloadTooLarge(
            f"the result has {len(result):,} bytes; PAYLOAD_BYTES_MAX={PAYLOAD_BYTES_MAX:,} are allowed. "
            "Keep it elsewhere and report a reference."
        )
    end = CallEnd(named.job, result, error[:ERROR_CHARS_MAX])
    before, is_recorded = await api.ports.services.end(named.ns, end)
    if before == "closed":
        raise Conflict(
            "the call has ended without this report: it timed out, was cancelled, or its run has ended. Nothing is recorded."
        )
    return is_recorded


def instance_url(url: str) -> str:
    """The base URL of an instance, without the slash at its end."""
    if len(url) > INSTANCE_URL_CHARS_MAX:
        raise InvalidInput(f"the url has more than INSTANCE_URL_CHARS_MAX={INSTANCE_URL_CHARS_MAX} characters")
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises ValueError for one that is no number
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and url.isprintable() and " " not in url
    except ValueError:
        usable = False
        parts = urlsplit("")
    if not usable or parts.query or parts.fragment:
        raise InvalidInput(f"{url[:200]!r} is no base URL of an instance: write http://host:port")
    if parts.username is not None or parts.password is not None:
        raise InvalidInput(
            "the url of an instance holds a user or a password, which every caller would see: leave it out"
        )
    return url.rstrip("/")


def _checked_load(load: float) -> float:
    if not (math.isfinite(load) and 0 <= load <= LOAD_MAX):
        raise InvalidInput(f"load is {load:g}; give a number from 0 to {LOAD_MAX:g}")
    return float(load)


def _check_jobs(jobs: list[str]) -> None:
    if len(jobs) > JOBS_MAX:
        raise InvalidInput(f"{len(jobs)} jobs in one request; JOBS_MAX={JOBS_MAX} are allowed")
    for job in jobs:
        checked_name("job", job, JOB_CHARS_MAX)

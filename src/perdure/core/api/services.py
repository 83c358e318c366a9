"""HTTP services: instances that register themselves, and calls of them that are under way (executors/service)."""

from __future__ import annotations

import msgspec

from perdure.core.access import Permission
from perdure.core.api.act import Act

ONLINE = "online"
OFFLINE = "offline"


class RegisterInstance(msgspec.Struct, frozen=True):
    url: str
    """Its base: calls go to URL/exec/SERVICE."""
    services: list[str]
    load: float = 0.0
    id: str = ""
    """Empty: one that follows from the URL."""


class InstanceItem(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    url: str
    services: list[str]
    load: float
    registered_us: int
    heartbeat_us: int
    status: str
    """`online` or `offline`: its last heartbeat is older than the time to live."""


class InstanceHeartbeat(msgspec.Struct, frozen=True):
    """An instance says that it lives, by its id or by its URL."""

    id: str = ""
    url: str = ""
    load: float | None = None
    """None: as before."""


class InstanceRef(msgspec.Struct, frozen=True):
    id: str


class ListInstances(msgspec.Struct, frozen=True):
    service: str = ""
    """Only instances of this service."""
    ttl_s: float | None = None
    """Only instances with a heartbeat in so many seconds. None: all, with the server's time to live as the limit of `online`."""
    after: str = ""
    limit: int = 50


class InstancePage(msgspec.Struct, frozen=True):
    items: list[InstanceItem]
    next: str | None


class AllocateInstance(msgspec.Struct, frozen=True):
    service: str


class BeginCall(msgspec.Struct, frozen=True):
    """A worker is about to call a service for a job. `service` is empty where the call has a URL of its own."""

    service: str
    job: str


class CallEnd(msgspec.Struct, frozen=True):
    """What a service sent to the callback URL of a job."""

    job: str
    result: bytes
    error: str = ""


class CallBegun(msgspec.Struct, frozen=True):
    instances: list[InstanceItem]
    """Those that are online, in the order of their ids."""
    callback_url: str
    """Where the service may report the end of this job later; empty: this program has no server that could receive it."""
    is_accepted: bool = False
    """A service has accepted the job: it must not be called again."""
    end: CallEnd | None = None
    """The end of the job, where it is known already."""


class JobNames(msgspec.Struct, frozen=True):
    jobs: list[str]


class CallEnds(msgspec.Struct, frozen=True):
    ends: list[CallEnd]


_WORK, _READ = Permission.WORK, Permission.READ

REGISTER: Act[RegisterInstance, InstanceItem] = Act(
    "service.register", RegisterInstance, InstanceItem, _WORK, ("service.register",), True
)
HEARTBEAT: Act[InstanceHeartbeat, InstanceRef] = Act("service.heartbeat", InstanceHeartbeat, InstanceRef, _WORK)
LIST: Act[ListInstances, InstancePage] = Act("service.list", ListInstances, InstancePage, _READ)
ALLOCATE: Act[AllocateInstance, InstanceItem] = Act("service.allocate", AllocateInstance, InstanceItem, _READ)
BEGIN_CALL: Act[BeginCall, CallBegun] = Act("service_call.begin", BeginCall, CallBegun, _WORK)
ACCEPT_CALL: Act[JobNames, None] = Act("service_call.accept", JobNames, None, _WORK)
CALL_ENDS: Act[JobNames, CallEnds] = Act("service_call.ends", JobNames, CallEnds, _WORK)
CLOSE_CALL: Act[JobNames, None] = Act("service_call.close", JobNames, None, _WORK)

ACTS = (REGISTER, HEARTBEAT, LIST, ALLOCATE, BEGIN_CALL, ACCEPT_CALL, CALL_ENDS, CLOSE_CALL)

"""Scenarios of HTTP services."""

from __future__ import annotations

from perdure.core.api import services
from perdure.core.api.services import (
    AllocateInstance,
    BeginCall,
    InstanceHeartbeat,
    JobNames,
    ListInstances,
    RegisterInstance,
)
from tests.server.parity.stage import Refusal, Rest, Scenario, Stage

INSTANCE = "id url services load status heartbeat_us=last_heartbeat registered_us=registered_at"
JOB = "perdure-0123456789abcdef01234567-1"
BAD_JOBS = Refusal(code="invalid_input", request=JobNames(["x" * 64]), rest=Rest("GET", "/services"))


async def registered(stage: Stage) -> str:
    name = stage.name()
    await stage.embedded(services.REGISTER, RegisterInstance(f"http://{name}", [name], 2.0, name))
    return name


def _bad_url(name: str) -> Refusal:
    return Refusal(
        code="invalid_input",
        request=RegisterInstance("ftp://h", ["s"]),
        rest=Rest("POST", "/workers/register", {"url": "ftp://h", "services": ["s"]}),
    )


SCENARIOS = (
    Scenario(
        act=services.REGISTER,
        request=lambda s: RegisterInstance(f"http://{s}", [s], 2.0, s),
        rest=lambda s: Rest("POST", "/workers/register", {"url": f"http://{s}", "services": [s], "load": 2.0, "id": s}),
        fields=INSTANCE,
        refusal=_bad_url,
    ),
    Scenario(
        act=services.HEARTBEAT,
        setup=registered,
        request=lambda s: InstanceHeartbeat(s, "", 2.0),
        rest=lambda s: Rest("POST", "/workers/heartbeat", {"id": s, "load": 2.0}),
        fields="id",
        nowhere=("parity-none", "not_found"),
    ),
    Scenario(
        act=services.LIST,
        setup=registered,
        request=ListInstances,
        rest=lambda s: Rest("GET", "/services", params={"service": s}),
        fields=" ".join(
            f"items[].{a}=items[].{b}"
            for a, b in ((f.partition("=")[0], f.rpartition("=")[2]) for f in INSTANCE.split())
        ),
        without_refusal="a service that has no instance has none",
    ),
    Scenario(
        act=services.ALLOCATE,
        setup=registered,
        request=AllocateInstance,
        rest=lambda s: Rest("GET", "/workers/allocate", params={"service": s}),
        fields=INSTANCE,
        nowhere=("parity-none", "not_found"),
    ),
    Scenario(
        act=services.BEGIN_CALL,
        setup=registered,
        request=lambda s: BeginCall(s, JOB),
        rest=None,
        refusal=lambda name: Refusal(
            code="invalid_input", request=BeginCall(name, "x" * 64), rest=Rest("GET", "/services")
        ),
    ),
    Scenario(act=services.ACCEPT_CALL, request=lambda s: JobNames([s]), rest=None, refusal=lambda name: BAD_JOBS),
    Scenario(act=services.CALL_ENDS, request=lambda s: JobNames([s]), rest=None, refusal=lambda name: BAD_JOBS),
    Scenario(act=services.CLOSE_CALL, request=lambda s: JobNames([s]), rest=None, refusal=lambda name: BAD_JOBS),
)

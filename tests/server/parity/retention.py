"""Scenarios of retention."""

from __future__ import annotations

from perdure.core.api import retention
from perdure.core.api.retention import GetRetentionStatus, ListPolicies, PolicyRef, SetPolicy
from tests.server.parity.stage import Refusal, Rest, Scenario, Stage, each

POLICY = "days updated_us=updated_at updated_by"


async def kept(stage: Stage) -> str:
    name = stage.name()
    await stage.embedded(retention.SET, SetPolicy("workflow", name, 30.0))
    return name


SCENARIOS = (
    Scenario(
        act=retention.LIST,
        setup=kept,
        request=lambda s: ListPolicies(),
        rest=lambda s: Rest("GET", "/retention"),
        fields=f"{each(POLICY)} default_days",
        without_refusal="it names nothing",
    ),
    Scenario(
        act=retention.SET,
        request=lambda s: SetPolicy("workflow", s, 30.0),
        rest=lambda s: Rest("PUT", f"/retention/workflow/{s}", {"days": 30}),
        fields=POLICY,
        refusal=lambda name: Refusal(
            code="invalid_input",
            request=SetPolicy("workflow", name, 0.001),
            rest=Rest("PUT", f"/retention/workflow/{name}", {"days": 0.001}),
        ),
    ),
    Scenario(
        act=retention.REMOVE,
        setup=kept,
        request=lambda s: PolicyRef("workflow", s),
        rest=lambda s: Rest("DELETE", f"/retention/workflow/{s}"),
        nowhere=("parity-none", "not_found"),
    ),
    Scenario(
        act=retention.STATUS,
        request=lambda s: GetRetentionStatus(5),
        rest=lambda s: Rest("GET", "/retention-status", params={"limit": 5}),
        shows=lambda r: {"jobs": [], "export": None},
        without_refusal="it names nothing",
    ),
)

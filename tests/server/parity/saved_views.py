"""Scenarios of saved views."""

from __future__ import annotations

from perdure.core.api import saved_views
from perdure.core.api.saved_views import ListViews, SaveView, ViewRef
from tests.server.parity.stage import Refusal, Rest, Scenario, Stage, each

VIEW = "name query updated_us=updated_at updated_by"
QUERY = "status = failed and attr.total > 100"


async def view(stage: Stage) -> str:
    name = stage.name()
    await stage.embedded(saved_views.SAVE, SaveView(name, QUERY))
    return name


SCENARIOS = (
    Scenario(
        act=saved_views.SAVE,
        request=lambda s: SaveView(s, QUERY),
        rest=lambda s: Rest("PUT", f"/views/{s}", {"query": QUERY}),
        fields=VIEW,
        refusal=lambda name: Refusal(
            code="invalid_input",
            request=SaveView(name, "status ="),
            rest=Rest("PUT", f"/views/{name}", {"query": "status ="}),
        ),
    ),
    Scenario(
        act=saved_views.LIST,
        setup=view,
        request=lambda s: ListViews(),
        rest=lambda s: Rest("GET", "/views"),
        fields=f"{each(VIEW)} next",
        without_refusal="it names nothing",
    ),
    Scenario(
        act=saved_views.DELETE,
        setup=view,
        request=ViewRef,
        rest=lambda s: Rest("DELETE", f"/views/{s}"),
        nowhere=("parity-none", "not_found"),
    ),
)

"""Documents of flows on their way in and out: read, compiled, compared, kept for a while.

Compiling is work, so it is done beside the event loop, and a definition, which never changes, is compiled once.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Any, Final

import msgspec
from fastapi import Request, Response
from fastapi.responses import JSONResponse

from perdure.core.errors import InvalidInput, NotRegistered, PerdureError
from perdure.engine.api.reads import WorkflowItem
from perdure.flows.changes import Changes, changes
from perdure.flows.compile import Compiled, compile_value
from perdure.flows.decide.decider import input_problem
from perdure.flows.draft import Draft, draft_text, draft_value
from perdure.flows.model import Flow, is_flow
from perdure.flows.problems import FlowError
from perdure.server.rest import models as m
from perdure.server.rest import views
from perdure.server.rest.guard import Caller, GuardedRoute
from perdure.server.rest.problems import MEDIA_TYPE

FLOWS_KEPT_MAX: Final = 100
"""Compiled definitions that are kept for questions about them."""
UNNAMED: Final = "document"
"""What problems call a document that came without the name of its file."""


class FlowRoute(GuardedRoute):
    """A route that takes documents: what is wrong with one is told in full."""

    def refused(self, request: Request, error: PerdureError) -> Response:
        answer = super().refused(request, error)
        if not isinstance(error, FlowError) or not isinstance(answer, JSONResponse):
            return answer
        told: dict[str, Any] = msgspec.json.decode(bytes(answer.body))
        told["problems"] = [views.flow_problem(p).model_dump() for p in error.problems]
        return JSONResponse(told, answer.status_code, media_type=MEDIA_TYPE)


async def draft_of(body: m.FlowText) -> Draft:
    """FlowError with everything that is wrong, InvalidInput for a request that has no document, or two."""
    if (body.document is None) == (body.source is None):
        raise InvalidInput("give the flow either as `document`, a JSON object, or as `source`, the text of its file")
    if body.source is not None:
        return await asyncio.to_thread(draft_text, body.source, name=body.name, file=body.file or UNNAMED)
    return await asyncio.to_thread(draft_value, body.document or {}, name=body.name)


# -- what is there -------------------------------------------------------------------------------------------------


class Kept:
    """Compiled definitions, the latest used."""

    def __init__(self) -> None:
        self._flows: OrderedDict[tuple[int, str, str], Flow] = OrderedDict()

    async def flow(self, caller: Caller, name: str, version: str) -> Flow | None:
        """None for a version of code."""
        if not is_flow(version):
            return None
        key = caller.ns, name, version
        found = self._flows.get(key)
        if found is None:
            definition = await caller.server.reads.definition(caller.ns, name, version)
            if definition is None or not definition.document:
                raise NotRegistered(f"the workflow {name!r} has no version {version!r}")
            found = (await asyncio.to_thread(_compiled, definition.document, name)).flow
            self._flows[key] = found
            if len(self._flows) > FLOWS_KEPT_MAX:
                self._flows.popitem(last=False)
        self._flows.move_to_end(key)
        return found


def _compiled(document: bytes, name: str) -> Compiled:
    return compile_value(msgspec.json.decode(document), name=name, stored=True)


kept = Kept()
"""Of this process. A definition is the same for everybody who may see it."""


async def changes_of(caller: Caller, current: WorkflowItem | None, draft: Draft) -> Changes | None:
    """Against the version that is current; None where that is no flow."""
    if current is None or not is_flow(current.current):
        return None
    found = await caller.server.reads.definition(caller.ns, current.name, current.current)
    if found is None or not found.document:
        return None
    return changes(msgspec.json.decode(found.document), msgspec.json.decode(draft.document))


async def check_input(caller: Caller, name: str, version: str, body: m.StartRun) -> None:
    """The input of a run against its flow's schema, before anything is written."""
    flow = await kept.flow(caller, name, version)
    if flow is None:
        return
    if body.args:
        raise InvalidInput(f"{name} is a flow and takes its input by name: give an object as `input`, or `kwargs`")
    if wrong := input_problem(flow, views.call(body)):
        raise InvalidInput(wrong)

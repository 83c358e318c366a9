"""Runs that services create: no caller waits for them, and no engine owns them until one claims them."""

from __future__ import annotations

import msgspec

from perdure.core import chain
from perdure.core import events as ev
from perdure.core.errors import NotRegistered
from perdure.core.flow_control.groups import FlowControlGroup
from perdure.core.work import StartRequest, is_demanded
from perdure.engine.context import EngineContext
from perdure.engine.flow_control import FlowControl
from perdure.engine.runs.flow_definitions import not_registered
from perdure.engine.runs.version_choice import VersionChoices
from perdure.wire.codec import encode_events


class NewRun(msgspec.Struct, frozen=True):
    """A run that no engine owns yet."""

    run_id: bytes
    ns: int
    workflow: str
    version: str
    body: bytes
    attributes: str | None
    group: FlowControlGroup | None
    deadline_us: int = 0
    pinned: bool = False
    key: str = ""
    key_hash: bytes = b""
    """Of workflow and input, which the key is recorded with."""


class NewRuns:
    def __init__(self, context: EngineContext, flow_control: FlowControl, versions: VersionChoices) -> None:
        self._now_us, self._flow_control, self._versions = context.now_us, flow_control, versions

    async def make(self, run_id: bytes, ns: int, r: StartRequest) -> NewRun:
        """The rows of a run, with the version that new runs get now. NotRegistered when there is no such workflow."""
        demanded = is_demanded(r)
        if demanded or not self._versions.knows(ns, r.workflow):
            await self._versions.find(ns, r.workflow, r.version, demanded=demanded)
        chosen = self._versions.of_start(ns, r.workflow, r.version, run_id, demanded=demanded)
        if chosen is None:
            raise NotRegistered(not_registered(r.workflow))
        r = msgspec.structs.replace(r, version=chosen.version)
        deadline_us = self._now_us() + r.timeout_us if r.timeout_us else 0
        started = ev.RunStarted(
            r.workflow,
            r.version,
            r.input,
            r.key,
            deadline_us=deadline_us,
            attributes=r.attributes,
            trace=r.trace,
            pinned=chosen.pinned,
        )
        return NewRun(
            run_id=run_id,
            ns=ns,
            workflow=r.workflow,
            version=r.version,
            body=encode_events([started]),
            attributes=r.attributes.decode() if r.attributes else None,
            group=await self._group(ns, r),
            deadline_us=deadline_us,
            pinned=chosen.pinned,
            key=r.key,
            key_hash=chain.input_hash(r.workflow, r.input) if r.key else b"",
        )

    async def _group(self, ns: int, r: StartRequest) -> FlowControlGroup | None:
        """The flow-control group of the run, if it has to wait."""
        version = (ns, r.workflow, r.version)
        if not self._flow_control.knows(version):
            await self._flow_control.find(ns, [version[1:]])
        return self._flow_control.of_run(version, r.input)

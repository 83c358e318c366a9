"""Hooks: the runs that start when a run has failed or succeeded.

A workflow version names, per status, the workflow of its hook. The end of a run writes a row of the outbox in its own commit; the row becomes
a run of that workflow, once, under a key that follows from the run and the number of its last event. A run that is retried and fails
again has a later last event, so its hook runs again. The run of a hook has no hooks itself, even if its workflow has.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from perdure.core import ids
from perdure.core.calls import encode_call
from perdure.core.limits import PAYLOAD_BYTES_MAX
from perdure.core.notifications import moment_text
from perdure.core.payloads import is_by_reference
from perdure.core.work import StartRequest, is_flow
from perdure.engine.api.api import Api
from perdure.engine.services.new_runs import NewRun
from perdure.engine.services.outbox import DueHook

KEY_PREFIX: Final = "perdure.hook:"
"""How the keys of hooks' runs begin. perdure.note_ends knows it."""


class HookRuns:
    def __init__(self, api: Api) -> None:
        self._engine, self._store = api.engine, api.ports.store

    async def run_of(self, hook: DueHook) -> NewRun:
        engine = self._engine
        ended = await self._ended(hook)
        key = f"{KEY_PREFIX}{ids.text(hook.run_id)}:{hook.occurrence}"
        run_id, input = engine.new_run_id(), encode_call([ended], {})
        request = StartRequest(workflow=hook.hook, version="", input=input, key=key)
        run = await engine.new_runs.make(run_id, hook.ns, request)
        if is_flow(run.version):  # it takes its input by name
            input = encode_call([], {"run": ended})
            request = msgspec.structs.replace(request, version=run.version, input=input)
            run = await engine.new_runs.make(run_id, hook.ns, request)
        return run

    async def _ended(self, hook: DueHook) -> dict[str, Any]:
        """The one argument of a hook. A result that is large, or that was kept elsewhere, is left out: it can be read by the run's id."""
        data = hook.data
        ended: dict[str, Any] = {
            "run_id": ids.text(hook.run_id),
            "workflow": hook.workflow,
            "version": data.get("version", ""),
            "key": data.get("key"),
            "status": data["status"],
            "created_at": moment_text(data["created_us"]),
            "finished_at": moment_text(data["finished_us"]),
            "error": None,
            "result": None,
        }
        if "error_code" in data or "error" in data:
            ended["error"] = {"code": data.get("error_code", ""), "message": data.get("error", "")}
        if data["status"] == "success":
            ended["result"] = await self._result(hook)
        return ended

    async def _result(self, hook: DueHook) -> Any:
        outcome = (await self._store.ended(hook.ns, [hook.run_id])).get(hook.run_id)
        if outcome is None or len(outcome.value) > PAYLOAD_BYTES_MAX // 2 or is_by_reference(outcome.value):
            return None
        try:
            return msgspec.json.decode(outcome.value)
        except msgspec.DecodeError:
            return None

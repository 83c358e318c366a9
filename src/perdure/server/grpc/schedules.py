"""Calls about schedules, over the same use cases as REST."""

from __future__ import annotations

from perdure.core.errors import InvalidInput
from perdure.engine.api.schedules import Schedules
from perdure.wire.schedules import Answered, Asked

FIRES_MAX = 500
"""Past times that one call answers with."""


async def answer(use: Schedules, asked: Asked) -> Answered:
    match asked.method:
        case "put":
            if asked.request is None:
                raise InvalidInput("put: the schedule is missing")
            view, created = await use.put(asked.request)
            return Answered(view=view, created=created)
        case "get":
            return Answered(view=await use.get(asked.name))
        case "pause":
            return Answered(view=await use.pause(asked.name, asked.reason))
        case "resume":
            return Answered(view=await use.resume(asked.name))
        case "trigger":
            return Answered(run_id=await use.trigger(asked.name))
        case "delete":
            await use.delete(asked.name)
            return Answered()
        case "times":
            return Answered(times=await use.times(asked.name, asked.count))
        case "fires":
            return Answered(fires=await use.fires(asked.name, asked.before_us, min(max(asked.count, 1), FIRES_MAX)))
        case _:
            times = await use.backfill(asked.name, asked.since_us, asked.until_us, dry_run=asked.dry_run)
            return Answered(backfill=times)


def audited(asked: Asked) -> tuple[str, str] | None:
    """What the audit log says of a call: action and target. None for one that changes nothing."""
    if asked.method in ("get", "times", "fires") or (asked.method == "backfill" and asked.dry_run):
        return None
    name = asked.request.name if asked.request is not None else asked.name
    return f"schedule.{asked.method}", name

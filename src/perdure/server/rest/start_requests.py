"""The body of a request that starts a run, and the start that it asks for."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated, Any, Final, Literal

from fastapi import Path
from pydantic import ConfigDict, Field

from perdure.core import deferred_starts
from perdure.core.calls import encode_json
from perdure.core.durations import us_of
from perdure.core.errors import InvalidInput
from perdure.core.limits import ATTRIBUTES_MAX, BATCH_ITEMS_MAX, NAME_CHARS_MAX
from perdure.core.work import StartRequest
from perdure.server.rest import models as m
from perdure.server.rest import views
from perdure.server.rest.guard import RestCaller

TRACEPARENT: Final = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")

WorkflowName = Annotated[str, Path(min_length=1, max_length=NAME_CHARS_MAX, examples=["checkout"])]


class DebounceOption(m.Body):
    key: m.Name
    quiet: m.Seconds | m.DurationText = Field(description="The run begins when no start has come for this long.")
    max_delay: m.Seconds | m.DurationText | None = Field(
        default=None, description="And at the latest this long after the first; a week unless given."
    )


class BatchOption(m.Body):
    key: m.Name
    size: Annotated[int, Field(ge=1, le=BATCH_ITEMS_MAX)] = Field(description="The run begins with so many items.")
    max_delay: m.Seconds | m.DurationText = Field(description="And at the latest this long after the first.")


class DedupOption(m.Body):
    key: m.Name
    within: m.Seconds | m.DurationText | None = Field(
        default=None, description="How long the key belongs to the first run; until that run has ended unless given."
    )


class StartRunRequest(m.Body):
    """Arguments come as `input` or as `args` and `kwargs`. An object as `input` gives them by name; any other value is the one argument."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"input": {"order": 42}, "attributes": {"env": "prod"}}]}
    )

    input: Any = Field(
        default=None, description="An object: arguments by name. Null: none. Anything else: the one argument."
    )
    args: list[Any] = Field(default_factory=list, max_length=m.ARGUMENTS_MAX, description="Arguments by position.")
    kwargs: dict[str, Any] = Field(default_factory=dict, max_length=m.ARGUMENTS_MAX, description="Arguments by name.")
    key: m.Name | None = Field(
        default=None, description="A key of your own, unique in the namespace.", examples=["order-42"]
    )
    on_conflict: Literal["fail", "attach", "replace"] = Field(
        default="fail", description="What to do when `key` is taken."
    )
    timeout: m.Seconds | m.DurationText | None = Field(
        default=None, description="Seconds, or text such as `1h30m`: when the run fails if it has not ended."
    )
    attributes: dict[m.AttributeName, m.Attribute] = Field(
        default_factory=dict, max_length=ATTRIBUTES_MAX, description="To find the run by."
    )
    version: Annotated[str, Field(min_length=1, max_length=m.VERSION_CHARS_MAX)] | None = Field(
        default=None, description="A registered version; the current one unless given."
    )
    delay: m.Seconds | m.DurationText | None = Field(
        default=None, description="The run begins this long after the start; it is `pending` until then."
    )
    start_at: datetime | None = Field(
        default=None, description="The run begins at this time instead.", examples=["2026-10-21T14:00:00Z"]
    )
    start_within: m.Seconds | m.DurationText | None = Field(
        default=None, description="The run fails if it has not begun this long after it could."
    )
    debounce: DebounceOption | None = Field(
        default=None, description="Deferred: of several starts under a key the last counts."
    )
    batch: BatchOption | None = Field(
        default=None, description="Deferred: the lists of several starts under a key are joined for one run."
    )
    dedup: DedupOption | None = Field(
        default=None, description="A second start under a key is answered with the run of the first."
    )


def start_request(
    caller: RestCaller, name: str, body: StartRunRequest, traceparent: str | None, idempotency_key: str | None
) -> StartRequest:
    dedup = body.dedup
    return StartRequest(
        namespace=caller.api.caller.namespace,
        workflow=name,
        version=body.version or "",
        input=views.call(body.input, body.args, body.kwargs),
        key=body.key or "",
        on_conflict=body.on_conflict,
        timeout_us=views.duration_us(body.timeout),
        attributes=encode_json(body.attributes) if body.attributes else b"",
        trace=traceparent if traceparent and TRACEPARENT.fullmatch(traceparent) else "",
        later=_later(body),
        dedup=None if dedup is None else deferred_starts.DedupSpec(dedup.key, views.duration_us(dedup.within)),
        delay_us=views.duration_us(body.delay),
        start_at_us=_start_at_us(body),
        start_within_us=views.duration_us(body.start_within),
        idempotency_key=idempotency_key or "",
        registered_only=True,
    )


def _start_at_us(body: StartRunRequest) -> int:
    if body.start_at is None:
        return 0
    if body.delay is not None:
        raise InvalidInput("give delay or start_at, not both")
    return us_of(body.start_at)


def _later(body: StartRunRequest) -> deferred_starts.Later | None:
    if body.debounce is not None and body.batch is not None:
        raise InvalidInput("a start is debounced or batched, not both")
    if body.debounce is not None:
        d = body.debounce
        return deferred_starts.DebounceSpec(d.key, views.duration_us(d.quiet), views.duration_us(d.max_delay))
    b = body.batch
    return deferred_starts.BatchSpec(b.key, b.size, views.duration_us(b.max_delay)) if b is not None else None

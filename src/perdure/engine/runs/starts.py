"""Starts that are being written, and the callers that wait for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf
from time import monotonic  # bound here, before workflow guards wrap it
from typing import Final

from perdure.core import chain
from perdure.core import events as ev
from perdure.core.errors import Unavailable
from perdure.core.flow_control.groups import FlowControlGroup
from perdure.core.limits import CALL_TIMEOUT_S
from perdure.core.messages import Message
from perdure.core.payload_fields import payloads_of
from perdure.core.payloads import MARK
from perdure.core.work import StartRequest, run_kind
from perdure.engine.commits.rows import Batch, GroupRow, StartRow, make_row
from perdure.engine.commits.write_queue import AwaitedUnit
from perdure.engine.runs.run_rows import attributes_text, message_row
from perdure.wire.codec import encode_events

WATCH_S: Final = 0.05
"""Seconds between two checks of starts whose callers wait."""

Answered = Callable[["StartUnit", bool, "Exception | None"], None]


class StartUnit(AwaitedUnit):
    """A run to be created, for a caller that waits."""

    def __init__(
        self,
        run_id: bytes,
        ns: int,
        request: StartRequest,
        started: ev.RunStarted,
        own: bool,
        answered: Answered,
        group: FlowControlGroup | None = None,
        messages: tuple[Message, ...] = (),
    ) -> None:
        super().__init__()
        self._answered = answered
        self.messages = messages
        """Messages that are written with the run. They are dropped if the key is taken."""
        self.run_id, self.ns, self.request, self.started, self.own, self.group = (
            run_id,
            ns,
            request,
            started,
            own,
            group,
        )
        self.hash = chain.input_hash(request.workflow, request.input) if request.key else b""
        self.head = b""
        """Hash of its first row, once it is written."""
        self.give_up_us = 0
        """By the database's clock: not created after that. It may reach the database late, because the connection or the database hung."""
        self.within_s, self.due_s = CALL_TIMEOUT_S, inf
        """How long its caller waits, and until when by the monotonic clock."""

    def answered(self, created: bool, error: Exception | None) -> None:
        self._answered(self, created, error)

    def expire(self) -> None:
        """The caller's time is over. The start is dropped unless it was already sent to the database."""
        self.settle(False, late_start(self.within_s, self))

    def fill(self, batch: Batch) -> None:
        r = self.request
        plain = encode_events([self.started])
        body = batch.seal(self.run_id, plain)
        self.head = chain.first(self.run_id, self.ns, int(self.own), body)
        fields = (
            self.run_id,
            self.ns,
            r.workflow,
            r.version,
            run_kind(r.version),
            r.key or None,
            self.hash,
            None,  # no parent
            None,
            self.own,
            body,
            attributes_text(r.attributes),
            self.group.id if self.group is not None else None,
            self.started.deadline_us or None,
            self.head,
            self.started.start_at_us or None,
            self.started.expires_us or None,
            r.version if self.started.pinned else "",
            self.give_up_us or None,
        )
        batch.starts.append(make_row(StartRow, fields))
        if MARK in plain:
            batch.use(self.run_id, self.ns, payloads_of(self.started))
        if self.group is not None:
            batch.groups.append(GroupRow(*self.group.row(), 0))
        if self.messages:
            batch.messages.extend(message_row(self.run_id, message) for message in self.messages)
            batch.use(self.run_id, self.ns, (p for message in self.messages for p in payloads_of(message)))


class StartWatch:
    """Answers callers whose start takes too long. It checks all of them periodically, because a timer for each would cost more
    than the rest of the wait."""

    def __init__(self) -> None:
        self._units: list[StartUnit] = []

    def add(self, unit: StartUnit, within_s: float, due_s: float) -> None:
        unit.within_s, unit.due_s = within_s, due_s
        self._units.append(unit)
        if len(self._units) == 1:
            asyncio.get_running_loop().call_later(WATCH_S, self._look)

    def _look(self) -> None:
        now_s = monotonic()
        for unit in self._units:
            if unit.due_s <= now_s:
                unit.expire()
        self._units = [unit for unit in self._units if not unit.is_settled]
        if self._units:
            asyncio.get_running_loop().call_later(WATCH_S, self._look)


def late_start(seconds: float, *units: StartUnit) -> Unavailable:
    """The error of a start that was not answered in time."""
    if any(unit.sent for unit in units):
        return unknown_start(seconds)
    return Unavailable(
        f"the database did not answer within {seconds:.3g} s; the run was not started and will not run. Try again later"
    )


def unknown_start(seconds: float) -> Unavailable:
    return Unavailable(
        f"no answer within {seconds:.3g} s: whether the run was started is unknown. To repeat it safely, start it under a key of your own "
        '(options(key=...)) with on_conflict="attach"; in REST send the same Idempotency-Key'
    )

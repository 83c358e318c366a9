"""The outbox: notifications are delivered and hooks started, by any engine.

    row, written with its fact --claim--> an attempt --+--> done
                                  ^-- due again -------+--> the next attempt, after a growing pause
                                                       +--> dead, after NOTIFY_ATTEMPTS_MAX

Laws:

1. A row is written in the transaction of its fact, or derived from a fact under a key that is unique. This service only delivers.
2. A claim is a lease by the database's clock. The number of the attempt is its fence: an engine whose lease is over records nothing.
   An engine that dies leaves a row that is due again.
3. A delivery is recorded at once, by itself. It is repeated only when the engine dies between the answer and the record, and then under the
   same id.
4. Each rule has its own places in an engine, so that a slow target delays only its own notifications.
5. The run of a hook is started in the transaction that makes its row done, so it is started once.
6. What waits is bounded: beyond NOTIFY_PENDING_MAX the oldest of a rule are dropped and counted.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from time import monotonic
from typing import Any, Final, Protocol

import msgspec

from perdure.core import ids
from perdure.core.api.notifications import NotificationItem, NotificationRule, PutNotificationRule
from perdure.core.application_limits import (
    NOTIFY_AT_ONCE_MAX,
    NOTIFY_DELIVERIES_MAX,
    NOTIFY_KEPT_S,
    NOTIFY_PENDING_MAX,
    NOTIFY_TIMEOUT_S,
)
from perdure.core.errors import Unavailable, clip
from perdure.core.notifications import Notice, Status, is_last, pause_s
from perdure.engine.counters import Counters
from perdure.engine.events import EngineEvents
from perdure.engine.services.new_runs import NewRun
from perdure.engine.services.service import Service

log = logging.getLogger("perdure.engine")

LEASE: Final = 2.0
"""Timeouts that an engine has for an attempt and its record, before another one tries."""
SWEEP_S: Final = 60.0
SWEEP_ROWS: Final = 5_000
LATE_ROWS: Final = 1_000
"""Late runs that one look notes for a rule."""
HOOKS_MAX: Final = 100
"""Hooks that one look claims."""
CLOSE_S: Final = 2.0
"""How long a closing engine waits for deliveries that are under way."""
ERROR_CHARS: Final = 500
"""Characters of an error that is kept with a notification."""
RACE_S: Final = 0.05
"""Before looking again when another engine has what is due, or no place is free."""


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """A claimed notification and its target."""

    n: int
    attempts: int
    earlier_attempts: int
    rule_id: int
    ns: int
    target: str
    address: str
    secret: bytes | None
    """Sealed."""
    notice: Notice


class DueHook(msgspec.Struct, frozen=True, kw_only=True):
    n: int
    attempts: int
    earlier_attempts: int
    ns: int
    kind: str
    run_id: bytes
    workflow: str
    hook: str
    occurrence: str
    data: dict[str, Any]


class NextNotification(msgspec.Struct, frozen=True):
    clock_us: int
    has_rules: bool
    has_late: bool
    due_us: int | None


class OutboxStore(Protocol):
    # delivery
    async def next_due(self, full: list[int], *, only_hooks: bool) -> NextNotification:
        """Rules of `full` are left out."""
        ...

    async def claim(self, busy: list[tuple[int, int]], per_rule: int, limit: int, lease_s: float) -> list[Delivery]: ...
    async def claim_hooks(self, limit: int, lease_s: float) -> list[DueHook]: ...
    async def end(self, n: int, attempts: int, status: Status, error: str | None, delay_us: int) -> bool: ...
    async def start_hook(self, n: int, attempts: int, run: NewRun) -> bool:
        """False: another engine has it, or it was started."""
        ...

    async def note_late(self, limit: int) -> int: ...
    async def sweep(self, kept_s: float, pending_max: int, limit: int) -> dict[int, int]:
        """Rule -> how many of its waiting notifications were dropped."""
        ...

    # the API of rules
    async def put_rule(
        self, ns: int, new: PutNotificationRule, secret: bytes | None, by: str, *, rotate: bool
    ) -> tuple[NotificationRule, bool]:
        """The rule, and whether the given secret is its secret now."""
        ...

    async def rules(self, ns: int, after: str, limit: int, name: str | None = None) -> list[NotificationRule]: ...
    async def delete_rule(self, ns: int, name: str) -> bool: ...
    async def page(
        self, ns: int, rule: str | None, status: str | None, before: int | None, limit: int
    ) -> list[NotificationItem]: ...
    async def retry(self, ns: int, id: bytes | None, rule: str | None) -> int: ...


class Rejected(Exception):
    """The receiver wants no further attempt."""


class Postponed(Exception):
    """The receiver refused for now and said for how long, in seconds."""

    def __init__(self, why: str, pause_s: float) -> None:
        super().__init__(why)
        self.pause_s = pause_s


class Sender(Protocol):
    async def send(self, delivery: Delivery) -> None:
        """Returns once the receiver has confirmed it. Any exception is a failed attempt."""
        ...

    async def close(self) -> None: ...


class HookStarter(Protocol):
    async def run_of(self, hook: DueHook) -> NewRun:
        """The run to start, and the hash of its input."""
        ...


class OutboxEngine(Protocol):
    """What of an engine it needs."""

    @property
    def counters(self) -> Counters: ...
    @property
    def events(self) -> EngineEvents: ...


class OutboxService(Service):
    name = "delivering notifications"
    poll_s = 1.0

    def __init__(
        self,
        engine: OutboxEngine,
        store: OutboxStore,
        sender: Sender | None,
        hooks: HookStarter,
        *,
        timeout_s: float = NOTIFY_TIMEOUT_S,
    ) -> None:
        """Without a sender it only starts hooks."""
        super().__init__()
        self._store, self._sender, self._hooks = store, sender, hooks
        self._timeout_s, self._lease_s = timeout_s, timeout_s * LEASE
        self._counters, self._events = engine.counters, engine.events
        self._under_way: dict[asyncio.Task[None], int] = {}
        """Attempts -> their rules."""
        self._has_rows = False
        self._sweep_at_s = monotonic() + SWEEP_S * random.random()
        engine.events.run_ended.subscribe(lambda _: self._run_ended())
        engine.events.outbox_changed.subscribe(self._changed)

    def _run_ended(self) -> None:
        """Rows may have been written with it."""
        if self._has_rows:
            self.wake()

    def _changed(self) -> None:
        self._has_rows = True
        self.wake()

    async def run(self) -> None:
        try:
            await super().run()
        finally:
            if self._under_way:  # one that is answered and not recorded would be sent again
                await asyncio.wait(set(self._under_way), timeout=CLOSE_S)
            for task in self._under_way:
                task.cancel()
            await asyncio.gather(*self._under_way, return_exceptions=True)
            if self._sender is not None:
                await self._sender.close()

    async def poll_once(self) -> float | None:
        busy = Counter(self._under_way.values())
        full = [rule for rule, n in busy.items() if n >= NOTIFY_AT_ONCE_MAX]
        found = await self._store.next_due(full, only_hooks=self._sender is None)
        self._has_rows = found.has_rules or found.due_us is not None
        if found.has_late and self._sender is not None and await self._store.note_late(LATE_ROWS):
            self.wake()
        await self._sweep()
        if found.due_us is None or found.due_us > found.clock_us:
            return None if found.due_us is None else (found.due_us - found.clock_us) / 1e6 + 0.001
        hooks = await self._store.claim_hooks(HOOKS_MAX, self._lease_s)
        for hook in hooks:
            await self._start(hook)
        claimed = await self._claim(busy)
        return 0.0 if hooks or claimed else RACE_S * random.uniform(0.5, 1.5)

    async def _claim(self, busy: Counter[int]) -> int:
        free = NOTIFY_DELIVERIES_MAX - len(self._under_way)
        if self._sender is None or free <= 0:
            return 0
        claimed = await self._store.claim(list(busy.items()), NOTIFY_AT_ONCE_MAX, free, self._lease_s)
        for one in claimed:
            task = asyncio.create_task(self._attempt(self._sender, one), name=f"perdure: notification {one.notice.id}")
            self._under_way[task] = one.rule_id
            task.add_done_callback(self._landed)
        return len(claimed)

    def _landed(self, task: asyncio.Task[None]) -> None:
        self._under_way.pop(task, None)
        self.wake()  # there is room for the next one of its rule
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("the end of a notification's attempt was not recorded; it is tried again", exc_info=error)

    async def _attempt(self, sender: Sender, one: Delivery) -> None:
        try:
            async with asyncio.timeout(self._timeout_s):
                await sender.send(one)
        except TimeoutError:
            await self._failed(one, f"no answer within {self._timeout_s:g} s")
        except Rejected as error:
            await self._failed(one, str(error), final=True)
        except Postponed as error:
            await self._failed(one, str(error), at_least_s=error.pause_s)
        except Exception as error:
            await self._failed(one, f"{type(error).__name__}: {error}")
        else:
            await self._store.end(one.n, one.attempts, "done", None, 0)
            self._counters.notifications_delivered += 1

    async def _failed(self, one: Delivery | DueHook, why: str, *, final: bool = False, at_least_s: float = 0.0) -> None:
        tried = one.attempts - one.earlier_attempts
        is_dead = final or is_last(tried)
        delay_s = max(pause_s(tried, random.uniform(-1, 1)), at_least_s)
        status: Status = "dead" if is_dead else "pending"
        await self._store.end(one.n, one.attempts, status, clip(why, ERROR_CHARS), int(delay_s * 1e6))
        self._counters.notifications_failed += 1
        if is_dead:
            what = (
                f"hook of run {ids.text(one.run_id)}" if isinstance(one, DueHook) else f"notification {one.notice.id}"
            )
            log.error("the %s is given up after %d attempts: %s", what, tried, clip(why, ERROR_CHARS))

    async def _start(self, hook: DueHook) -> None:
        try:
            run = await self._hooks.run_of(hook)
            if await self._store.start_hook(hook.n, hook.attempts, run):
                self._events.runs_begun.publish(1)
        except Unavailable:
            raise
        except Exception as error:  # the others must not wait for it
            await self._failed(hook, f"{type(error).__name__}: {error}")

    async def _sweep(self) -> None:
        if monotonic() < self._sweep_at_s:
            return
        self._sweep_at_s = monotonic() + SWEEP_S * random.uniform(0.75, 1.25)
        dropped = await self._store.sweep(NOTIFY_KEPT_S, NOTIFY_PENDING_MAX, SWEEP_ROWS)
        if dropped:
            log.error(
                "%d notifications were dropped: a rule has more than NOTIFY_PENDING_MAX=%d that wait",
                sum(dropped.values()),
                NOTIFY_PENDING_MAX,
            )

"""What people ask of Perdure, the same for every door: embedded client, REST, gRPC, command line.

Each answers only when its effect is durable.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from time import monotonic  # bound here, before workflow guards wrap it
from typing import Any, TypeVar

import msgspec

from perdure.core import events as ev
from perdure.core.deferred_starts import check_later
from perdure.core.errors import (
    Conflict,
    InvalidInput,
    NotFound,
    PayloadTooLarge,
    PromiseAlreadyResolved,
    RunAlreadyExists,
    RunFinished,
    Unavailable,
)
from perdure.core.flow_control.groups import Line
from perdure.core.ids import text
from perdure.core.limits import CALL_TIMEOUT_S, MESSAGE_KEY_CHARS_MAX, PAYLOAD_BYTES_MAX, SUCCESSORS_MAX
from perdure.core.messages import CancelAsked, Mail, PromiseKept, SignalSent
from perdure.core.names import checked_name
from perdure.core.work import Outcome, RunView, StartRequest
from perdure.engine.api.run_retry import Reopener
from perdure.engine.ports import Store
from perdure.engine.runs.flow_definitions import Flows
from perdure.engine.runs.inbox import Postbox
from perdure.engine.runs.starts import Answered, StartUnit, StartWatch, late_start, unknown_start
from perdure.engine.services.deferred_starts import Begun, Starts
from perdure.engine.services.outcomes import Waiters
from perdure.engine.tasks.flow_control import Lines
from perdure.wire.codec import decode_row, encode_mail

T = TypeVar("T")

EVENTS_PAGE = 1_000
START_TRIES = 5


class UseCases:
    def __init__(
        self,
        store: Store,
        ns: int,
        new_run_id: Callable[[], bytes],
        now_us: Callable[[], int],
        submit: Callable[[StartUnit], None],
        may_own: Callable[[int, str, str], bool],
        waiters: Waiters,
        mail_posted: Callable[[bytes], None],
        postbox: Postbox,
        flows: Flows,
        lines: Lines,
        starts: Starts | None = None,
    ) -> None:
        self._store, self.ns, self._new_run_id, self._now_us = store, ns, new_run_id, now_us
        self._postbox = postbox
        self._starts = starts
        self._submit, self._may_own, self._waiters, self._mail_posted = submit, may_own, waiters, mail_posted
        self._flows, self._lines = flows, lines
        self._watch = StartWatch()

    async def start(self, r: StartRequest, within_s: float = CALL_TIMEOUT_S) -> bytes:
        """Create a run and return its id once that is durable. One that is put off is there later, under that id."""
        return (await self.started(r, within_s))[0]

    async def started(self, r: StartRequest, within_s: float = CALL_TIMEOUT_S) -> tuple[bytes, bool]:
        """As `start`; and whether there is a run, or will be, that was not there before.

        Unavailable when it takes longer than `within_s`. Then, or when the caller is cancelled, a start that has not been handed to the
        database is dropped and never runs; if it has been, the error says that the outcome is unknown.
        """
        if r.later is not None or r.dedup is not None:
            try:
                async with asyncio.timeout(within_s):
                    begun = await self.start_later(r)
            except TimeoutError as e:
                raise unknown_start(within_s) from e
            return begun.run_id, begun.created
        due_s = monotonic() + within_s
        r = await self._ready(r, within_s)
        for _ in range(START_TRIES):
            unit, created = self._awaited(r, within_s, due_s)
            if await self._created(unit, created):
                return unit.run_id, True
            try:
                async with asyncio.timeout(due_s - monotonic()):
                    holder = await self._on_taken_key(r, unit.hash, unit.run_id)
            except TimeoutError as e:
                raise late_start(within_s) from e
            if holder is not None:
                return holder, holder == unit.run_id
        raise Conflict(f"the run id {r.key!r} kept changing hands while this start tried to take it; try again")

    async def start_later(self, r: StartRequest) -> Begun:
        """A start that is put off, or answered with a run that is there already. See core/deferred_starts.py."""
        if self._starts is None:
            raise Unavailable("this engine was opened without a place for starts that are put off or deduplicated")
        check_later(r.later, r.dedup, r.key)
        _check_size(r)
        r = r if r.version else await self._pinned(r)
        definition = (self.ns, r.workflow, r.version)
        await self._flows.find_input(definition)
        self._flows.check_input(definition, r.input)
        return await self._starts.start(self.ns, r)

    async def _pinned(self, r: StartRequest) -> StartRequest:
        """A start that names no version gets the current one, and stays with it."""
        return msgspec.structs.replace(r, version=await self._flows.pin(self.ns, r.workflow))

    def moved(self, workflow: str) -> None:
        """Another version of a workflow is current now."""
        self._flows.forget(self.ns, workflow)

    async def _ready(self, r: StartRequest, within_s: float) -> StartRequest:
        """Checked, pinned to a version, and that version's flow control at hand. LimitReached where it says that this start is not to be.
        Nothing is waited for when all of it is known here."""
        _check_size(r)
        if not r.version and self._flows.knows(self.ns, r.workflow):
            r = msgspec.structs.replace(r, version=self._flows.current(self.ns, r.workflow) or "")
        version = (self.ns, r.workflow, r.version)
        if not (r.version and self._flows.knows_input(version) and self._lines.knows(version)):
            r = await self._looked_up(r, within_s)
            version = (self.ns, r.workflow, r.version)
        self._flows.check_input(version, r.input)
        line = self._lines.of_run(version, r.input)
        if line is not None:
            await _before_start(within_s, self._lines.check_skip(line))
        return r

    async def _looked_up(self, r: StartRequest, within_s: float) -> StartRequest:
        async def look_up() -> StartRequest:
            found = r if r.version else await self._pinned(r)
            version = (self.ns, found.workflow, found.version)
            if not self._flows.knows_input(version):
                await self._flows.find_input(version)
            if not self._lines.knows(version):
                await self._lines.find(self.ns, [version[1:]])
            return found

        return await _before_start(within_s, look_up())

    def _awaited(
        self,
        r: StartRequest,
        within_s: float,
        due_s: float,
        run_id: bytes | None = None,
        mail: tuple[bytes, ...] = (),
    ) -> tuple[StartUnit, asyncio.Future[bool]]:
        """A start whose caller waits for the answer: True when there is a run, False when its key is taken."""
        created: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def answered(_: StartUnit, is_created: bool, error: Exception | None) -> None:
            if not created.done():
                if error is not None:
                    created.set_exception(error)
                else:
                    created.set_result(is_created)

        unit = self._submitted(r, answered, run_id, mail)
        self._watch.add(unit, within_s, due_s)
        return unit, created

    async def _created(self, unit: StartUnit, created: asyncio.Future[bool]) -> bool:
        try:
            return await created
        finally:
            unit.give_up()  # by a caller that was cancelled; nothing happens to one that was answered

    def _submitted(
        self,
        r: StartRequest,
        answered: Answered,
        run_id: bytes | None = None,
        mail: tuple[bytes, ...] = (),
    ) -> StartUnit:
        deadline_us = self._now_us() + r.timeout_us if r.timeout_us else 0
        started = ev.RunStarted(
            r.workflow, r.version, r.input, r.key, deadline_us=deadline_us, attributes=r.attributes, trace=r.trace
        )
        line = self._lines.of_run((self.ns, r.workflow, r.version), r.input)
        own = line is None and self._may_own(self.ns, r.workflow, r.version)
        unit = StartUnit(run_id or self._new_run_id(), self.ns, r, started, own, answered, line, mail)
        self._submit(unit)
        return unit

    async def run(self, r: StartRequest, within_s: float = CALL_TIMEOUT_S) -> tuple[bytes, Outcome]:
        """Start a run and wait for its end: one wake-up of the caller instead of two, where no id has to be contended for.
        `within_s` is for the start alone, as in `start`."""
        if r.key or r.later is not None or r.dedup is not None:
            run_id = await self.start(r, within_s)
            return run_id, await self._waiters.wait(self.ns, run_id, known=False)
        due_s = monotonic() + within_s
        unit = self._submitted(await self._ready(r, within_s), self._waiters.started)
        return unit.run_id, await self._ended(unit, within_s, due_s)

    async def run_within(
        self, r: StartRequest, seconds: float, within_s: float = CALL_TIMEOUT_S
    ) -> tuple[bytes, Outcome | None]:
        """The same for a caller that waits `seconds` at most for the end; None when it has not come by then."""
        if r.key or r.later is not None or r.dedup is not None:
            run_id = await self.start(r, within_s)
            return run_id, await _within(seconds, self._waiters.wait(self.ns, run_id, known=False))
        due_s = monotonic() + within_s
        unit = self._submitted(await self._ready(r, within_s), self._waiters.started)
        return unit.run_id, await _within(max(seconds, within_s), self._ended(unit, within_s, due_s))

    async def _ended(self, unit: StartUnit, within_s: float, due_s: float) -> Outcome:
        self._watch.add(unit, within_s, due_s)
        try:
            return await self._waiters.wait_from_start(unit)
        finally:
            unit.give_up()  # by a caller that was cancelled; nothing happens to one that was answered

    async def _on_taken_key(self, r: StartRequest, wanted: bytes, mine: bytes) -> bytes | None:
        """The holder to attach to, or None to try again."""
        found = await self._store.run_by_key(self.ns, r.key)
        if found is None:
            return None
        run_id, held = found
        if run_id == mine:  # written twice after a lost session; the first one counted
            return run_id
        if r.on_conflict == "attach":
            if held != wanted:
                raise RunAlreadyExists(
                    f"the run id {r.key!r} belongs to run {text(run_id)}, which was started with another workflow or input"
                )
            return run_id
        if r.on_conflict == "replace":
            try:
                await self.post(run_id, CancelAsked(f"replaced by a new run {r.key!r}"))
                await self._waiters.wait(self.ns, run_id, known=False)
            except RunFinished:
                pass
            await self._store.forget_key(self.ns, r.key, run_id)
            return None
        raise RunAlreadyExists(
            f'the run id {r.key!r} belongs to run {text(run_id)}; choose another, or on_conflict="attach" or "replace"'
        )

    async def outcome(self, run_id: bytes, *, known: bool) -> Outcome:
        return await self._waiters.wait(self.ns, run_id, known=known)

    async def post(self, run_id: bytes, mail: Mail, key: str = "") -> bool:
        """Put a fact into a run's inbox; a run that continued as new is followed to its successor. With a key of the sender's own, a second
        one under that key is the first one sent again: False, and nothing more comes of it."""
        if isinstance(mail, SignalSent):
            _check_message("signal", mail.name, mail.value)
        check_message_key(key)
        stops = isinstance(mail, CancelAsked)
        return await self._postbox.post(self.ns, run_id, encode_mail(mail), key=key, stops=stops)

    async def signal_with_start(self, r: StartRequest, signal: SignalSent, key: str = "") -> tuple[bytes, bool]:
        """Send a signal to the run under an id, and start that run if none is active there: run and signal are written together. Answers the
        run, and whether it was started for this."""
        if not r.key:
            raise InvalidInput(
                "a run that a signal may start needs an id of your own, by which the next signal finds it"
            )
        if r.later is not None or r.dedup is not None:
            raise InvalidInput("a start that is put off, or answered with an earlier run, cannot bring a signal along")
        _check_message("signal", signal.name, signal.value)
        check_message_key(key)
        body = encode_mail(signal)
        for _ in range(START_TRIES):
            found = await self._store.run_by_key(self.ns, r.key)
            if found is not None:
                try:
                    await self._postbox.post(self.ns, found[0], body, key=key)
                    return found[0], False
                except (RunFinished, NotFound):
                    await self._store.forget_key(self.ns, r.key, found[0])
            r = await self._ready(r, CALL_TIMEOUT_S)
            run_id = self._new_run_id()
            if key:
                await self._store.remember_message(run_id, key)
            due_s = monotonic() + CALL_TIMEOUT_S
            unit, created = self._awaited(r, CALL_TIMEOUT_S, due_s, run_id, (body,))
            if await self._created(unit, created):
                self._mail_posted(run_id)
                return run_id, True
        raise Conflict(f"the run id {r.key!r} kept changing hands while this signal tried to reach it; try again")

    def posted(self, run_id: bytes) -> None:
        """Somebody put a fact into this run's inbox in a statement of their own: look for it."""
        self._mail_posted(run_id)

    def _follow(self, view: RunView) -> bytes:
        if view.successor is None:
            raise RunFinished(f"run {text(view.run_id)} has ended and takes no more messages")
        return view.successor

    async def resolve(self, run_id: bytes, name: str, value: bytes, *, sure: bool = True) -> None:
        """`sure`: whoever asks may resolve an approval past those who are asked."""
        _check_message("promise", name, value)
        body = encode_mail(PromiseKept(name, value, sure))
        for _ in range(SUCCESSORS_MAX):
            active, won = await self._store.resolve_promise(run_id, self.ns, name, body, sure=sure)
            if won:
                self._mail_posted(run_id)
                return
            if active:
                raise PromiseAlreadyResolved(
                    f"promise {name!r} of run {text(run_id)} is resolved already; the first value stands"
                )
            run_id = self._follow(await self.describe(run_id))
        raise RunFinished("the run was continued too many times to follow")

    async def read_state(self, run_id: bytes, name: str) -> bytes | None:
        await self.describe(run_id)
        return await self._store.read_state(run_id, self.ns, name)

    async def history(self, run_id: bytes, after: int) -> list[ev.Recorded]:
        rows = await self._store.history_after(run_id, self.ns, after, EVENTS_PAGE)
        return [r for row in rows for r in decode_row(row.seq, row.at_us, row.body) if r.seq > after]

    async def describe(self, run_id: bytes) -> RunView:
        view = await self._store.describe(run_id, self.ns)
        if view is None:
            raise NotFound(f"no run {text(run_id)} in this namespace")
        return view

    async def run_of(self, key: str) -> bytes:
        """The run that was started under an id of the user's own."""
        found = await self._store.run_by_key(self.ns, key)
        if found is None:
            raise NotFound(f"no run was started under the id {key!r} in this namespace")
        return found[0]

    async def retry(self, run_id: bytes, by: str = "") -> None:
        """Let a failed run go on: what failed runs again, what succeeded keeps its result. See core/run_retry.py."""
        await self._reopener().retry(run_id, by)

    async def check_retry(self, run_id: bytes) -> None:
        """Raises what a retry of this run would be refused with, and changes nothing."""
        await self._reopener().check(run_id)

    def _reopener(self) -> Reopener:
        return Reopener(self._store, self.ns, self._flows, self._lines, self._mail_posted)

    async def resume(self, run_id: bytes) -> None:
        """Let a stuck run try again. It gave its slots back when it became stuck, so it waits for them like a new run. Conflict when it is
        not stuck."""
        view = await self.describe(run_id)
        if view.stuck is None or not await self._store.unstick(run_id, self.ns, await self._line_of(view)):
            raise Conflict(f"run {text(run_id)} is not stuck; there is nothing to resume")
        self._mail_posted(run_id)

    async def _line_of(self, view: RunView) -> Line | None:
        """Where a run waits to be let in; None where its workflow has no limits, or its first record cannot be read."""
        await self._lines.find(self.ns, [(view.workflow, view.version)])
        rows = await self._store.history_after(view.run_id, self.ns, 0, 1)
        try:
            first = decode_row(rows[0].seq, rows[0].at_us, rows[0].body)[0].event
        except (InvalidInput, msgspec.DecodeError, IndexError):
            return None
        data = first.input if isinstance(first, ev.RunStarted) else b""
        return self._lines.of_run((self.ns, view.workflow, view.version), data)


async def _before_start(seconds: float, looking: Coroutine[Any, Any, T]) -> T:
    """What a start has to know. When it cannot be had, there is no run."""
    try:
        async with asyncio.timeout(seconds):
            return await looking
    except TimeoutError as e:
        raise late_start(seconds) from e
    except Unavailable as e:
        raise Unavailable(f"{e}; the run was not started and will not run") from e


async def _within(seconds: float, waiting: Coroutine[Any, Any, Outcome]) -> Outcome | None:
    try:
        async with asyncio.timeout(seconds):
            return await waiting
    except TimeoutError:
        return None


def _check_message(kind: str, name: str, value: bytes) -> None:
    checked_name(kind, name)
    if len(value) > PAYLOAD_BYTES_MAX:
        raise PayloadTooLarge(
            f"the value of {kind} {name!r} has {len(value)} bytes, over the limit PAYLOAD_BYTES_MAX={PAYLOAD_BYTES_MAX}"
        )


def check_message_key(key: str) -> None:
    if key:
        checked_name("message key", key, MESSAGE_KEY_CHARS_MAX)


def _check_size(r: StartRequest) -> None:
    checked_name("workflow", r.workflow)
    for what, given in (("version", r.version), ("run", r.key)):
        if given:
            checked_name(what, given)
    if len(r.input) > PAYLOAD_BYTES_MAX:
        raise InvalidInput(
            f"the input of {r.workflow} has {len(r.input)} bytes, over the limit PAYLOAD_BYTES_MAX={PAYLOAD_BYTES_MAX}"
        )

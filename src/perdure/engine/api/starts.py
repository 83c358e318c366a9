"""How a run is started: checked, pinned to a version, written by a commit of this engine, and answered once that is durable.

    request -> registered? -> idempotent -> deferred or deduplicated?  yes -> services/deferred_starts.py
                                            no -> version, input, flow control at hand -> StartUnit -> committer

A start that its caller does not wait for any more, and that has not been handed to the database, is dropped and never runs.
"""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Coroutine
from hashlib import blake2b
from time import monotonic  # bound here, before workflow guards wrap it
from typing import Any, Final, TypeVar

import msgspec

from perdure.core import events as ev
from perdure.core.api.definitions import WorkflowItem
from perdure.core.api.runs import RunResult, StartedRun
from perdure.core.api.texts import check_attributes
from perdure.core.deferred_starts import BatchSpec, check_later
from perdure.core.errors import (
    Conflict,
    IdempotencyConflict,
    InvalidInput,
    NotFound,
    NotRegistered,
    RunAlreadyExists,
    RunFinished,
    Unavailable,
    WorkflowDeleted,
)
from perdure.core.flow_control.groups import FlowControlGroup
from perdure.core.ids import text
from perdure.core.limits import FLOW_PAYLOAD_BYTES_MAX, IDEMPOTENCY_KEY_CHARS_MAX, PAYLOAD_BYTES_MAX, VERSIONS_SHOWN_MAX
from perdure.core.messages import CancelMessage, Message
from perdure.core.names import checked_name
from perdure.core.payloads import MARK, opened, refuse_reference, values_of
from perdure.core.versions import Chosen
from perdure.core.work import StartRequest, is_demanded
from perdure.engine.api.api import NamespaceApi
from perdure.engine.api.payloads import taken
from perdure.engine.runs.flow_definitions import not_registered
from perdure.engine.runs.starts import Answered, StartUnit, late_start, unknown_start

T = TypeVar("T")

START_TRIES: Final = 5
IDEMPOTENT_KEY: Final = "idem:"
"""Begins the key of a run whose start carried an idempotency key and no key of the user's own."""


async def start(api: NamespaceApi, r: StartRequest) -> StartedRun:
    """The run is durable when this returns. Unavailable when that takes longer than the caller waits; the error says whether the run may
    still come."""
    within_s = api.caller.within_s
    r = await prepared(api, r)
    r = await stored(api, r)
    if r.is_deferred:
        try:
            async with asyncio.timeout(within_s):
                return await _defer(api, r)
        except TimeoutError as e:
            raise unknown_start(within_s) from e
    due_s = monotonic() + within_s
    begins = await ready(api, r, within_s)
    for _ in range(START_TRIES):
        unit, created = awaited(api, begins, within_s, due_s)
        if await answered(unit, created):
            return StartedRun(unit.run_id)
        try:
            async with asyncio.timeout(due_s - monotonic()):
                holder = await _on_taken_key(api, r, unit.hash, unit.run_id)
        except TimeoutError as e:
            raise late_start(within_s) from e
        if holder is not None:
            return StartedRun(holder, is_new=holder == unit.run_id)
    raise Conflict(f"the key {r.key!r} kept changing hands while this start tried to take it; try again")


async def run(api: NamespaceApi, r: StartRequest) -> RunResult:
    """Start a run and wait for its end: one wake-up of the caller instead of two, where no key has to be contended for."""
    within_s = api.caller.within_s
    due_s = monotonic() + within_s
    waiters = api.engine.waiters
    if r.input >= MARK or len(r.input) > api.engine.settings.payload_inline_bytes:
        r = await stored(api, r)
    unit = submitted(api, await ready(api, r, within_s), waiters.started)
    api.api.start_watch.add(unit, within_s, due_s)
    try:
        return RunResult(unit.run_id, await waiters.wait_from_start(unit))
    finally:
        unit.give_up()  # by a caller that was cancelled; nothing happens to one that was answered


async def stored(api: NamespaceApi, r: StartRequest) -> StartRequest:
    """With its input by reference where it is long. That of a deferred start is not: no run holds it until it begins."""
    if r.is_deferred:
        refuse_reference(r.input, f"the input of a deferred start of {r.workflow}")
        return r
    data = await taken(api, r.input, f"the input of {r.workflow}")
    return r if data is r.input else msgspec.structs.replace(r, input=data)


async def prepared(api: NamespaceApi, r: StartRequest) -> StartRequest:
    """Checked against the registered workflows, and made idempotent."""
    if r.key.startswith(IDEMPOTENT_KEY):
        raise InvalidInput(f"key: one that begins with {IDEMPOTENT_KEY!r} is made by the server; choose another")
    if r.registered_only:
        await registered_version(api, r.workflow, r.version)
    if r.idempotency_key and not isinstance(
        r.later, BatchSpec
    ):  # the items of a batch are added once by the deferred start itself
        r = await _idempotent(api, r)
    return r


async def workflow_of(api: NamespaceApi, name: str) -> WorkflowItem:
    found = await api.ports.reads.workflow(api.ns, name)
    if found is None:
        near = difflib.get_close_matches(name, await api.ports.reads.workflow_names(api.ns), 3)
        hint = (
            f"did you mean {' or '.join(repr(n) for n in near)}?"
            if near
            else "connect a worker that defines it, or register it"
        )
        raise NotRegistered(f"no workflow {name!r} in this namespace; {hint}")
    return found


async def version_of(api: NamespaceApi, name: str, wanted: str) -> str:
    """A registered version: the current one unless another is named."""
    found = await workflow_of(api, name)
    if not wanted or wanted == found.current:
        return found.current
    if await api.ports.reads.definition(api.ns, name, wanted) is not None:
        return wanted
    versions = [v.version for v in await api.ports.reads.versions(api.ns, name, VERSIONS_SHOWN_MAX)]
    near = difflib.get_close_matches(wanted, versions, 3)
    hint = f"did you mean {' or '.join(near)}?" if near else f"the current one is {found.current}"
    raise NotRegistered(f"the workflow {name!r} has no version {wanted!r}; {hint}")


async def registered_version(api: NamespaceApi, name: str, wanted: str) -> str:
    """As `version_of`; WorkflowDeleted for a workflow that takes no new runs."""
    if (await workflow_of(api, name)).deleted_us is not None:
        raise WorkflowDeleted(
            f"the workflow {name!r} was deleted and takes no new runs; register it again to restore it"
        )
    return await version_of(api, name, wanted)


async def _idempotent(api: NamespaceApi, r: StartRequest) -> StartRequest:
    """Without a key of its own the idempotency key becomes the run's key, and that is exact: a repetition, even after a crash, finds the
    run of the first.

    The digest beside it tells a repetition from a different request under the same key. A repetition of a start that has a key attaches
    to it without regard to its conflict policy: it would conflict with itself. The version is left out of the digest: the current one
    may have changed meanwhile.
    """
    key = check_idempotency_key(r.idempotency_key)
    wanted = digest(
        "start",
        r.workflow,
        r.input,
        r.key,
        r.on_conflict,
        r.timeout_us,
        r.attributes,
        r.rerun_of,
        r.delay_us,
        r.start_at_us,
        r.start_within_us,
    )
    known = await api.ports.definitions.remember(api.ns, f"start:{key}", wanted)
    check_same(key, known.held, wanted)
    if r.is_deferred:
        return r
    if not r.key:
        return msgspec.structs.replace(r, key=IDEMPOTENT_KEY + key, on_conflict="attach")
    return r if known.first else msgspec.structs.replace(r, on_conflict="attach")


async def _defer(api: NamespaceApi, r: StartRequest) -> StartedRun:
    check_later(r.later, r.dedup, r.key)
    check_request(r)
    definition = (api.ns, r.workflow, (await _chosen(api, r, api.engine.new_run_id())).version)
    flows = api.engine.flows
    await flows.find_input(definition)
    flows.check_input(definition, r.input)
    begun = await api.engine.deferred_starts.start(api.ns, r)
    return StartedRun(begun.run_id, begun.created, begun.due_us)


class ReadyStart(msgspec.Struct, frozen=True):
    """A start that was checked, with the id of its run and the version that was chosen by that id."""

    request: StartRequest
    run_id: bytes
    pinned: bool
    group: FlowControlGroup | None
    """The flow-control group that it waits in, if any."""


async def _chosen(api: NamespaceApi, r: StartRequest, run_id: bytes) -> Chosen:
    """The version of a new run. NotRegistered when there is none."""
    versions, demanded = api.engine.versions, is_demanded(r)
    if demanded or not versions.knows(api.ns, r.workflow):
        await versions.find(api.ns, r.workflow, r.version, demanded=demanded)
    chosen = versions.of_start(api.ns, r.workflow, r.version, run_id, demanded=demanded)
    if chosen is None:  # it may have been deployed this very moment
        await versions.find(api.ns, r.workflow, r.version)
        chosen = versions.of_start(api.ns, r.workflow, r.version, run_id)
    if chosen is None:
        raise NotRegistered(not_registered(r.workflow))
    return chosen


async def ready(api: NamespaceApi, r: StartRequest, within_s: float) -> ReadyStart:
    """LimitReached where a limit refuses the start. Nothing is waited for when all of it is known here."""
    check_request(r)
    ns, flows, flow_control, run_id = api.ns, api.engine.flows, api.engine.flow_control, api.engine.new_run_id()
    chosen = None
    if not is_demanded(r) and api.engine.versions.knows(ns, r.workflow):
        chosen = api.engine.versions.of_start(ns, r.workflow, r.version, run_id)
    if chosen is None:
        chosen = await _before_start(within_s, _chosen(api, r, run_id))
    version = (ns, r.workflow, chosen.version)
    if not (flows.knows_input(version) and flow_control.knows(version)):
        await _before_start(within_s, _look_up(api, version))
    readable = await _readable(api, r.input) if r.input.startswith(MARK) else r.input
    if readable is not None:
        flows.check_input(version, readable)
    group = flow_control.of_run(version, r.input)
    if group is not None:
        await _before_start(within_s, flow_control.check_skip(group))
    request = r if r.version == chosen.version else msgspec.structs.replace(r, version=chosen.version)
    return ReadyStart(request, run_id, chosen.pinned, group)


async def _readable(api: NamespaceApi, data: bytes) -> bytes | None:
    """The JSON of an input with its stored values in their places. None: it is too large to be judged here."""
    if sum(reference.size for reference in values_of(data)) > FLOW_PAYLOAD_BYTES_MAX:
        return None
    found = await api.engine.payloads.of(api.ns).transfer.resolve(data)
    return opened(found).body if found.startswith(MARK) else found


async def _look_up(api: NamespaceApi, version: tuple[int, str, str]) -> None:
    if not api.engine.flows.knows_input(version):
        await api.engine.flows.find_input(version)
    if not api.engine.flow_control.knows(version):
        await api.engine.flow_control.find(api.ns, [version[1:]])


def awaited(
    api: NamespaceApi,
    begins: ReadyStart,
    within_s: float,
    due_s: float,
    inbox: tuple[Message, ...] = (),
) -> tuple[StartUnit, asyncio.Future[bool]]:
    """A start whose caller waits for the answer: True when there is a new run, False when its key is taken."""
    created: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def settled(_: StartUnit, is_created: bool, error: Exception | None) -> None:
        if not created.done():
            if error is not None:
                created.set_exception(error)
            else:
                created.set_result(is_created)

    unit = submitted(api, begins, settled, inbox)
    api.api.start_watch.add(unit, within_s, due_s)
    return unit, created


async def answered(unit: StartUnit, created: asyncio.Future[bool]) -> bool:
    try:
        return await created
    finally:
        unit.give_up()  # by a caller that was cancelled; nothing happens to one that was answered


def submitted(
    api: NamespaceApi,
    begins: ReadyStart,
    settled: Answered,
    inbox: tuple[Message, ...] = (),
) -> StartUnit:
    engine, r, group = api.engine, begins.request, begins.group
    now_us = engine.clock.now_us()
    start_at_us = r.start_at_us or (now_us + r.delay_us if r.delay_us else 0)
    begins_us = max(now_us, start_at_us)
    started = ev.RunStarted(
        r.workflow,
        r.version,
        r.input,
        r.key,
        deadline_us=begins_us + r.timeout_us if r.timeout_us else 0,
        attributes=r.attributes,
        trace=r.trace,
        start_at_us=start_at_us,
        pinned=begins.pinned,
        expires_us=begins_us + r.start_within_us if r.start_within_us else 0,
    )
    if r.rerun_of:
        started = msgspec.structs.replace(started, rerun_of=r.rerun_of, schedule=r.schedule, nominal_us=r.nominal_us)
    own = group is None and start_at_us <= now_us and engine.runs.may_own(api.ns, r.workflow, r.version, begins.pinned)
    unit = StartUnit(begins.run_id, api.ns, r, started, own, settled, group, inbox)
    unit.give_up_us = now_us + int(api.caller.within_s * 1e6)
    engine.queue.add(unit)
    return unit


async def _on_taken_key(api: NamespaceApi, r: StartRequest, wanted: bytes, mine: bytes) -> bytes | None:
    """The holder to attach to, or None to try again."""
    store = api.ports.store
    found = await store.run_by_key(api.ns, r.key)
    if found is None:
        return None
    run_id, held = found
    if run_id == mine:  # written twice after a lost session; the first one counted
        return run_id
    if r.on_conflict == "attach":
        if held == wanted:
            return run_id
        if r.key.startswith(IDEMPOTENT_KEY):
            raise _different_request(r.idempotency_key)
        raise RunAlreadyExists(
            f"the key {r.key!r} belongs to run {text(run_id)}, which was started with another workflow or input"
        )
    if r.on_conflict == "replace":
        try:
            request = CancelMessage(f"replaced by a new run under the key {r.key!r}")
            await api.engine.inbox.send(api.ns, run_id, request)
            await api.engine.waiters.wait(api.ns, run_id, known=False)
        except RunFinished:
            pass
        await store.forget_key(api.ns, r.key, run_id)
        return None
    raise RunAlreadyExists(
        f'the key {r.key!r} belongs to run {text(run_id)}; choose another, or on_conflict="attach" or "replace"'
    )


async def holder_of(api: NamespaceApi, key: str) -> bytes | None:
    """The run under a key, None when there is none."""
    try:
        return await api.run_of_key(key)
    except NotFound:
        return None


async def _before_start(seconds: float, looking: Coroutine[Any, Any, T]) -> T:
    """Read what a start depends on; a failure refuses the start."""
    try:
        async with asyncio.timeout(seconds):
            return await looking
    except TimeoutError as e:
        raise late_start(seconds) from e
    except Unavailable as e:
        raise Unavailable(f"{e}; the run was not started and will not run") from e


def check_request(r: StartRequest) -> None:
    checked_name("workflow", r.workflow)
    if r.version:
        checked_name("version", r.version)
    if r.key:
        checked_name("key", r.key)
    if len(r.rerun_of) not in (0, 16):
        raise InvalidInput("rerun_of is the id of a run")
    if r.on_conflict not in ("fail", "attach", "replace"):
        raise InvalidInput(f"on_conflict is fail, attach or replace, not {r.on_conflict!r}")
    if r.attributes:
        check_attributes(r.attributes)
    if (r.delay_us or r.start_at_us or r.start_within_us) and r.is_deferred:
        raise InvalidInput("a debounced or batched start has a time of its own; drop delay, start_at and start_within")
    if len(r.input) > PAYLOAD_BYTES_MAX:
        raise InvalidInput(
            f"the input of {r.workflow} has {len(r.input)} bytes, over the limit PAYLOAD_BYTES_MAX={PAYLOAD_BYTES_MAX}"
        )


def check_idempotency_key(key: str) -> str:
    if not key.isascii() or not key.isprintable() or len(key) > IDEMPOTENCY_KEY_CHARS_MAX:
        raise InvalidInput(
            f"invalid idempotency key: use at most IDEMPOTENCY_KEY_CHARS_MAX={IDEMPOTENCY_KEY_CHARS_MAX} printable ASCII characters"
        )
    return key


def digest(*parts: Any) -> bytes:
    """Digest of a request, to distinguish a repetition from a different request."""
    state = blake2b(digest_size=16)
    for part in parts:
        data = part if isinstance(part, bytes) else str(part).encode()
        state.update(len(data).to_bytes(8, "big") + data)
    return state.digest()


def check_same(key: str, held: bytes, wanted: bytes) -> None:
    if held != wanted:
        raise _different_request(key)


def _different_request(key: str) -> IdempotencyConflict:
    return IdempotencyConflict(
        f"the idempotency key {key!r} was used for a different request; use a new key for a new request"
    )

"""Acts that send a run something: signals, promise values, updates; and reading the state that it publishes."""

from __future__ import annotations

from time import monotonic

import msgspec

from perdure.core import chain, ids
from perdure.core.access import Permission
from perdure.core.api import messages as acts
from perdure.core.api.messages import (
    AskQuery,
    AskUpdate,
    GetUpdate,
    ListStates,
    MessageSent,
    QueryReply,
    ReadState,
    ResolvePromise,
    SendSignal,
    SignalledRun,
    SignalWithStart,
    StatePage,
    StateRead,
    UpdateReply,
)
from perdure.core.errors import (
    Conflict,
    InvalidInput,
    NotFound,
    PayloadTooLarge,
    PromiseAlreadyResolved,
    RunFinished,
)
from perdure.core.limits import CALL_TIMEOUT_S, QUERY_ARGUMENTS_BYTES_MAX, UPDATE_WAIT_S_MAX
from perdure.core.messages import PromiseMessage, SignalMessage, UpdateMessage
from perdure.core.names import check_message_key, checked_name
from perdure.core.published_messages import MessageKind
from perdure.core.questions import BY_NAME
from perdure.engine.api import starts
from perdure.engine.api.api import NamespaceApi, handles, page_limit
from perdure.engine.api.approvals import check_resolve
from perdure.engine.api.payloads import taken
from perdure.wire.codec import encode_message


@handles(acts.SIGNAL)
async def signal(api: NamespaceApi, r: SendSignal) -> MessageSent:
    """A run that continued as new is followed. With a key, or an idempotency key, a repetition has no further effect."""
    run_id = await api.run_id(r.run)
    value = await checked_message(api, "signal", r.name, r.value, run_id)
    check_message_key(r.key)
    message = SignalMessage(r.name, value)
    if r.idempotency_key and not r.key:
        is_new = await _post_once(api, run_id, r, message)
    else:
        is_new = await api.engine.inbox.send(api.ns, run_id, message, key=r.key)
    if is_new:
        await api.record("run.signal", run_id, name=r.name)
    return MessageSent(is_new)


async def _post_once(api: NamespaceApi, run_id: bytes, r: SendSignal, message: SignalMessage) -> bool:
    """The idempotency key and the message are written together or not at all. False when an earlier request has sent it."""
    key = starts.check_idempotency_key(r.idempotency_key)
    wanted = starts.digest("signal", run_id, r.name, r.value)

    async def send(target: bytes) -> bool | None:
        sent = await api.ports.definitions.send_once(api.ns, f"signal:{key}", wanted, target, message)
        if sent.sent:
            api.engine.events.message_sent.publish(target)
            return True
        if sent.held is None:
            return None
        starts.check_same(key, sent.held, wanted)
        return False

    return await api.follow(run_id, send)


@handles(acts.SIGNAL_WITH_START)
async def signal_with_start(api: NamespaceApi, r: SignalWithStart) -> SignalledRun:
    """Send a signal to the run under a key, and start that run if none is active there: run and signal are written together."""
    api.check(Permission.START)
    sent = await _signal_with_start(api, r)
    if sent.is_new:
        await api.record("run.start", sent.run_id, workflow=r.start.workflow)
    await api.record("run.signal", sent.run_id, name=r.name)
    return sent


async def _signal_with_start(api: NamespaceApi, r: SignalWithStart) -> SignalledRun:
    start, store, door = r.start, api.ports.store, api.engine.message_door
    if not start.key:
        raise InvalidInput("a run that a signal may start needs a key of your own, by which the next signal finds it")
    if start.is_deferred:
        raise InvalidInput("a deferred or deduplicated start cannot carry a signal")
    checked_name("signal", r.name)
    value = await taken(api, r.value, f"the value of signal {r.name!r}")
    check_message_key(r.key)
    start = await starts.stored(api, await starts.prepared(api, start))
    message, wanted = SignalMessage(r.name, value), chain.input_hash(start.workflow, start.input)
    for _ in range(starts.START_TRIES):
        found = await store.run_by_key(api.ns, start.key)
        if found is not None:
            await door.check(api.ns, found[0], "signal", r.name, r.value)
            try:
                # A run that ends before it reads the signal is followed by one that is started like it: only if that is what is wanted.
                sent = msgspec.structs.replace(message, starts=found[1] == wanted)
                await api.engine.inbox.send(api.ns, found[0], sent, key=r.key)
                return SignalledRun(found[0], is_new=False)
            except (RunFinished, NotFound):
                await store.forget_key(api.ns, start.key, found[0])
        elif await _begin_requested(api, start.key):
            continue
        begins = await starts.ready(api, start, CALL_TIMEOUT_S)
        definition = (api.ns, begins.request.workflow, begins.request.version)
        if (error := await door.problem(definition, "signal", r.name, r.value)) is not None:
            raise error
        run_id = begins.run_id
        if r.key:
            await store.remember_message(run_id, r.key)
        due_s = monotonic() + CALL_TIMEOUT_S
        unit, created = starts.awaited(
            api, begins, CALL_TIMEOUT_S, due_s, (msgspec.structs.replace(message, starts=True),)
        )
        if await starts.answered(unit, created):
            api.engine.events.message_sent.publish(run_id)
            return SignalledRun(run_id, is_new=True)
    raise Conflict(f"the key {start.key!r} kept changing hands while this signal tried to reach it; try again")


async def _begin_requested(api: NamespaceApi, key: str) -> bool:
    """Whether a start that was asked for in SQL has the key now. One that failed or begins later leaves it to this signal's start."""
    try:
        return await api.begin_requested(key=key)
    except NotFound:
        return False


@handles(acts.RESOLVE)
async def resolve(api: NamespaceApi, r: ResolvePromise) -> None:
    """The first value stands. Administrators may resolve an approval past the people it asks."""
    run_id = await api.run_id(r.run)
    value = await checked_message(api, "promise", r.name, r.value, run_id)
    await check_resolve(api, run_id, r.name)
    is_authorized = api.caller.principal.may(Permission.ADMIN)

    async def send(target: bytes) -> bool | None:
        asked = await api.ports.approvals.find(api.ns, target, r.name)  # an approval's value is for what it asks now
        question = asked.digest if asked is not None else BY_NAME
        body = encode_message(PromiseMessage(r.name, value, is_authorized, question))
        active, won = await api.ports.store.resolve_promise(
            target, api.ns, r.name, body, authorized=is_authorized, question=question
        )
        if won:
            api.engine.events.message_sent.publish(target)
            return True
        if active:
            raise PromiseAlreadyResolved(
                f"promise {r.name!r} of run {ids.text(target)} is resolved already; the first value stands"
            )
        return None

    await api.follow(run_id, send)
    await api.record("run.resolve", run_id, name=r.name)


@handles(acts.UPDATE)
async def update(api: NamespaceApi, r: AskUpdate) -> UpdateReply:
    """Ask a run to change something and wait for its answer. Asked again under the same key, it waits on."""
    run_id = await api.run_id(r.run)
    checked_name("update key", r.key)
    value = await checked_message(api, "update", r.name, r.value, run_id)
    asked = UpdateMessage(r.key, r.name, value)
    answer = await api.engine.updates.ask(api.ns, run_id, asked, min(r.wait_s, UPDATE_WAIT_S_MAX))
    await api.record("run.update", run_id, name=r.name)
    return UpdateReply(answer)


@handles(acts.UPDATE_RESULT)
async def update_result(api: NamespaceApi, r: GetUpdate) -> UpdateReply:
    return UpdateReply(await api.engine.updates.find(api.ns, await api.run_id(r.run), r.key))


@handles(acts.STATE)
async def read_state(api: NamespaceApi, r: ReadState) -> StateRead:
    run_id = await api.run_id(r.run)
    value = await api.ports.store.read_state(run_id, api.ns, r.name)
    if value is None:
        await api.view(run_id)  # NotFound for a run that does not exist
    return StateRead(value)


@handles(acts.STATES)
async def list_states(api: NamespaceApi, r: ListStates) -> StatePage:
    """As of the run's last commit. Reading neither wakes nor claims the run."""
    run_id = await api.run_id(r.run)
    await api.view(run_id)
    limit = page_limit(r.limit)
    found = await api.engine.updates.states(api.ns, run_id, r.after, limit + 1)
    return StatePage(found[:limit], found[limit - 1][0] if len(found) > limit else None)


@handles(acts.QUERY)
async def query(api: NamespaceApi, r: AskQuery) -> QueryReply:
    """Computed by a worker from the run's states as of its last commit. The run is neither woken nor claimed."""
    checked_name("query", r.name)
    if len(r.arguments) > QUERY_ARGUMENTS_BYTES_MAX:
        raise PayloadTooLarge(
            f"the arguments of the query {r.name!r} have {len(r.arguments)} bytes, over the limit "
            f"QUERY_ARGUMENTS_BYTES_MAX={QUERY_ARGUMENTS_BYTES_MAX}"
        )
    view = await api.view(await api.run_id(r.run))
    answer = await api.engine.queries.ask(api.ns, view, r.name, r.arguments, api.caller.within_s)
    return QueryReply(answer.value, answer.failure)


async def checked_message(api: NamespaceApi, kind: MessageKind, name: str, value: bytes, run_id: bytes) -> bytes:
    """The value as it is recorded, once it is known that the run may read it. Content that it refers to is kept for the run from here on."""
    checked_name(kind, name)
    await api.engine.message_door.check(api.ns, run_id, kind, name, value)
    return await taken(api, value, f"the value of {kind} {name!r}", run_id)

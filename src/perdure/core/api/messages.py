"""Messages into a run: signals, promise values, updates; and the state that a run publishes, read or queried."""

from __future__ import annotations

import msgspec

from perdure.core.access import Permission
from perdure.core.api.act import Act, RunRef
from perdure.core.errors import Failure
from perdure.core.limits import UPDATE_WAIT_S_MAX
from perdure.core.work import StartRequest, UpdateAnswer


class SendSignal(msgspec.Struct, frozen=True):
    run: RunRef
    name: str
    value: bytes
    key: str = ""
    """The sender's own: a second message to the run under it is the first one sent again."""
    idempotency_key: str = ""
    """Of the request: a repetition has no further effect, another request under it is refused."""


class MessageSent(msgspec.Struct, frozen=True):
    is_new: bool
    """False: it was sent before, under this key."""


class SignalWithStart(msgspec.Struct, frozen=True):
    start: StartRequest
    """With a key of the user's own: the signal goes to the active run under it, or starts one."""
    name: str
    value: bytes
    key: str = ""


class SignalledRun(msgspec.Struct, frozen=True):
    run_id: bytes
    is_new: bool
    """The run was started for this signal."""


class ResolvePromise(msgspec.Struct, frozen=True):
    run: RunRef
    name: str
    value: bytes


class AskUpdate(msgspec.Struct, frozen=True):
    run: RunRef
    name: str
    value: bytes
    key: str
    """The sender's own: asked again under it, the update is done once."""
    wait_s: float = UPDATE_WAIT_S_MAX


class GetUpdate(msgspec.Struct, frozen=True):
    run: RunRef
    key: str


class UpdateReply(msgspec.Struct, frozen=True):
    answer: UpdateAnswer | None = None
    """None: the run has not answered yet."""


class ReadState(msgspec.Struct, frozen=True):
    run: RunRef
    name: str


class StateRead(msgspec.Struct, frozen=True):
    value: bytes | None
    """None: the run has not set it."""


class AskQuery(msgspec.Struct, frozen=True):
    run: RunRef
    name: str
    arguments: bytes = b"{}"
    """As JSON by name."""


class QueryReply(msgspec.Struct, frozen=True):
    value: bytes
    failure: Failure | None = None
    """The code of the query raised."""


class ListStates(msgspec.Struct, frozen=True):
    run: RunRef
    after: str = ""
    limit: int = 50


class StatePage(msgspec.Struct, frozen=True):
    items: list[tuple[str, bytes]]
    """(name, value), by name."""
    next: str | None


SIGNAL: Act[SendSignal, MessageSent] = Act(
    "run.signal", SendSignal, MessageSent, Permission.OPERATE, ("run.signal",), once_by="key"
)
SIGNAL_WITH_START: Act[SignalWithStart, SignalledRun] = Act(
    "run.signal_with_start",
    SignalWithStart,
    SignalledRun,
    Permission.OPERATE,
    ("run.start", "run.signal"),
    once_by="key",
)
RESOLVE: Act[ResolvePromise, None] = Act("run.resolve", ResolvePromise, None, Permission.OPERATE, ("run.resolve",))
UPDATE: Act[AskUpdate, UpdateReply] = Act(
    "run.update", AskUpdate, UpdateReply, Permission.OPERATE, ("run.update",), True, UPDATE_WAIT_S_MAX
)
UPDATE_RESULT: Act[GetUpdate, UpdateReply] = Act("run.update_result", GetUpdate, UpdateReply, Permission.READ)
STATE: Act[ReadState, StateRead] = Act("run.state", ReadState, StateRead, Permission.READ)
STATES: Act[ListStates, StatePage] = Act("run.states", ListStates, StatePage, Permission.READ)
QUERY: Act[AskQuery, QueryReply] = Act("run.query", AskQuery, QueryReply, Permission.READ)

ACTS = (SIGNAL, SIGNAL_WITH_START, RESOLVE, UPDATE, UPDATE_RESULT, STATE, STATES, QUERY)

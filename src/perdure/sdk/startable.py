"""What can be started by name, and the options of its starts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import copy
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, Protocol, Self, TypedDict, TypeVar, Unpack

from perdure.core import deferred_starts, ids
from perdure.core import events as ev
from perdure.core.api import messages, runs
from perdure.core.api.messages import SignalWithStart
from perdure.core.attributes import decode_attributes, start_attributes
from perdure.core.commands import UNNUMBERED, StartChild
from perdure.core.deferred_starts import Later
from perdure.core.durations import Duration, to_us, us_of
from perdure.core.errors import InvalidInput, PerdureError
from perdure.core.names import checked_name
from perdure.core.work import StartRequest
from perdure.sdk.client.backend import Backend, backend
from perdure.sdk.client.handles import Handle, outcome_of, value_of
from perdure.sdk.flow_control import Debounce, Dedup
from perdure.sdk.mapping import map as map_calls
from perdure.sdk.options import checked, positive_us
from perdure.sdk.traceparent import current_traceparent
from perdure.sdk.workflow.fanout import child_fanout
from perdure.sdk.workflow.live_run import LiveRun, current
from perdure.sdk.workflow.step import Step, Waiter

if TYPE_CHECKING:
    from perdure.sdk.messages import Signal

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
A = TypeVar("A")

OnConflict = Literal["fail", "attach", "replace"]
ParentClose = Literal["cancel", "terminate", "abandon"]
"""What becomes of a child when its parent ends first."""


class WorkflowRunOptions(TypedDict, total=False):
    """Options of starts; `Workflow.options` explains them."""

    key: str | None
    timeout: Duration | None
    on_conflict: OnConflict | None
    debounce: Debounce | None
    dedup: Dedup | None
    attributes: Mapping[str, str | bool | int | float | datetime] | None
    delay: Duration | None
    start_at: datetime | None
    start_within: Duration | None
    parent_close: ParentClose | None
    detached: bool | None


class Bound(Generic[R_co]):
    """A workflow with its arguments, for a `Schedule`, or for `client.start(..., timeout=...)`. `Workflow.bind()` makes one."""

    def __init__(self, workflow: Startable[Any, Any], data: bytes) -> None:
        self.workflow, self.data = workflow, data

    def __repr__(self) -> str:
        return f"<{self.workflow.name} with its arguments>"

    async def start_bound(self, target: Backend, within_s: float | None = None) -> Handle[R_co]:
        """`start` on a client."""
        return await self.workflow.start_on(target, self.data, within_s)

    async def run_bound(self, target: Backend) -> R_co:
        """`run` on a client."""
        result: R_co = await self.workflow.run_on(target, self.data)
        return result


class CallCodec(Protocol):
    """How the arguments and the result of a workflow are written as JSON: see signatures.py."""

    def encode_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes: ...
    def encode_calls(self, items: Iterable[Any]) -> list[bytes]: ...
    def decode_result(self, data: bytes) -> Any: ...


class Startable(Generic[P, R]):
    """What can be started by name: a workflow of this program, or one that is only known by its name."""

    def __init__(self, name: str, version: str, timeout: Duration | None = None) -> None:
        self.name = checked_name("workflow", name)
        self._label = version
        self._key, self._timeout = "", timeout
        self._on_conflict: OnConflict = "fail"
        self._later: Later | None = None
        self._dedup: deferred_starts.DedupSpec | None = None
        self._attributes = b""
        self._delay_us = self._start_at_us = self._start_within_us = 0
        self._parent_close: ParentClose = "cancel"
        self._detached = False

    @cached_property
    def signature(self) -> CallCodec:
        raise NotImplementedError

    @property
    def version(self) -> str:
        """The version that this program knows; empty: the one that is current."""
        return self._label

    @property
    def _source_text(self) -> str:
        """How the user's code refers to it; for errors."""
        return self.name

    @property
    def timeout(self) -> Duration | None:
        return self._timeout

    def schedule_problem(self) -> str:
        """Why a schedule cannot start it, because of its options; empty when it can."""
        if self._key:
            return f"a key belongs to one run; drop options(key={self._key!r})"
        if self._later is not None or self._dedup is not None:
            return "a schedule says itself when runs start; drop debounce and dedup"
        return ""

    def prepare(self, target: Backend) -> None:
        """Called before it is started through `target`."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Step[R]:
        """Start a child run, inside a workflow. Await the step for its result; the await raises ChildFailed.

        Raises PerdureError outside a workflow: use `run()` or `start()` there.
        """
        runtime = current.get(None)
        if runtime is None:
            me = self._source_text
            raise PerdureError(
                f"{me}() was called outside a workflow: use `await {me}.run(...)` for its result or `await {me}.start(...)` for a handle"
            )
        return self._child(self.signature.encode_call(args, kwargs))

    def _child(self, data: bytes) -> Step[R]:
        if self._later is not None or self._dedup is not None or self._is_delayed:
            raise InvalidInput(
                f"{self._source_text}: a child run is neither deferred nor deduplicated: its parent waits for it. Drop debounce, dedup, "
                "delay, start_at and start_within; wf.sleep() delays a child"
            )
        decode = self.signature.decode_result
        wanted = StartChild(
            UNNUMBERED,
            self.name,
            self.version,
            data,
            self._key,
            self._timeout_us,
            self._attributes,
            self._parent_close,
            self._detached,
        )
        return current.get().requests.start_child(wanted, lambda step: Waiter(step, decode))

    @property
    def _timeout_us(self) -> int:
        return to_us(self._timeout) if self._timeout is not None else 0

    map = map_calls

    def _fan_out(self, runtime: LiveRun, items: Iterable[Any], concurrency: int | None, on_error: str) -> Step[Any]:
        return child_fanout(runtime.requests, self._child, self.signature.encode_calls(items), concurrency, on_error)

    async def start(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Start a run; returns its handle once the start is durable.

        Raises RunAlreadyExists if its key belongs to another run, LimitReached if a limit with the policy `skip` is reached,
        NotRegistered if the workflow is not known, and Unavailable if there was no answer in time.
        """
        return await self.start_on(backend(), self.signature.encode_call(args, kwargs))

    async def run(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Start a run and wait for its result. Raises what `start()` and `Handle.result()` raise."""
        return await self.run_on(backend(), self.signature.encode_call(args, kwargs))

    async def signal_with_start(self, signal: Signal[A], value: A, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Send a signal to the run under the key of `options(key=...)`; if none is active, start it with these arguments.

            await cart.options(key="ada").signal_with_start(added, item, "ada")

        A start and its signal are written in one transaction. Returns a handle to the run. Raises InvalidInput without a key.
        """
        target = backend()
        request = self._request(target, self.signature.encode_call(args, kwargs))
        sent = await target.call(
            messages.SIGNAL_WITH_START, SignalWithStart(request, signal.name, signal.encode(value), signal.key)
        )
        return Handle(target, sent.run_id, self.signature.decode_result, self._key)

    def encode_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        """The arguments of a call as they are recorded. Raises PayloadMismatch."""
        return self.signature.encode_call(args, kwargs)

    def decode_result(self, data: bytes) -> Any:
        """The result of a run from its record."""
        return self.signature.decode_result(data)

    async def start_on(self, target: Backend, data: bytes, within_s: float | None = None) -> Handle[R]:
        """`start` on a client, with encoded arguments."""
        started = await target.call(runs.START, self._request(target, data), within_s)
        return Handle(target, started.run_id, self.signature.decode_result, self._key)

    async def run_on(self, target: Backend, data: bytes, within_s: float | None = None) -> R:
        """`run` on a client, with encoded arguments. `within_s`: for the start."""
        ended = await target.call(runs.RUN, self._request(target, data), within_s)
        outcome = ended.outcome if ended.outcome is not None else await outcome_of(target, ids.text(ended.run_id))
        result: R = await value_of(target, outcome, ended.run_id, self.signature.decode_result)
        return result

    def _request(self, target: Backend, data: bytes) -> StartRequest:
        if current.get(None) is not None:
            me = self._source_text
            raise PerdureError(
                f"{me}.start() inside a workflow would not be recorded; call {me}(...) to start a child run"
            )
        self.prepare(target)
        return StartRequest(
            workflow=self.name,
            version=self.version,
            input=data,
            key=self._key,
            on_conflict=self._on_conflict,
            timeout_us=self._timeout_us,
            attributes=self._attributes,
            trace=current_traceparent(),
            later=self._later,
            dedup=self._dedup,
            delay_us=self._delay_us,
            start_at_us=self._start_at_us,
            start_within_us=self._start_within_us,
        )

    def transaction_options(self) -> dict[str, Any]:
        """Options of a start in a transaction of the caller. Raises InvalidInput for those that it cannot have."""
        refused = {
            "debounce or batch": self._later is not None,
            "dedup": self._dedup is not None,
            "start_at": bool(self._start_at_us),
            "start_within": bool(self._start_within_us),
            "on_conflict": self._on_conflict == "replace",
        }
        wrong = [name for name, is_given in refused.items() if is_given]
        if wrong:
            raise InvalidInput(
                f"{self._source_text}: a start in a transaction takes no {' and no '.join(wrong)}; it takes key, timeout, attributes and delay"
            )
        given: dict[str, Any] = {}
        if self._key:
            given["key"] = self._key
        if self._timeout_us:
            given["timeout"] = f"{self._timeout_us} microseconds"
        if self._delay_us:
            given["delay"] = f"{self._delay_us} microseconds"
        if self._attributes:
            given["attributes"] = decode_attributes(self._attributes)
        return given

    @property
    def _is_delayed(self) -> bool:
        return bool(self._delay_us or self._start_at_us or self._start_within_us)

    def bind(self, *args: P.args, **kwargs: P.kwargs) -> Bound[R]:
        """The workflow with its arguments, for a `Schedule`. Raises PayloadMismatch for arguments that do not fit."""
        return Bound(self, self.signature.encode_call(args, kwargs))

    def batch(self, *, key: str, size: int, max_delay: Duration = "10s") -> Batched[R]:
        """Gather the items of many starts for one run; the workflow takes one list.

            await ingest.batch(key="eu", size=100, max_delay="10s").add(event)

        Args:
            key: which starts go together.
            size: the run begins with this many items,
            max_delay: or this long after the first one.
        """
        changed = copy(self)
        changed._later = deferred_starts.BatchSpec(key, size, to_us(max_delay))
        deferred_starts.check_later(changed._later, changed._dedup, changed._key)
        return Batched(changed)

    def options(self, **options: Unpack[WorkflowRunOptions]) -> Self:
        """The same workflow with other options for its starts: `await order.options(key="order-42").start(42)`.

        Args:
            key: a name of your own for the run, unique in the namespace, by which it is found again.
            timeout: how long the run may take.
            on_conflict: if the key belongs to another run: `"fail"` (the default) raises RunAlreadyExists, `"attach"` returns that
                run if workflow and input are the same, `"replace"` cancels it and starts anew.
            debounce: begin when no start has come for a while.
            dedup: return the run that an earlier start under the same dedup key has made.
            attributes: search attributes, by which lists and queries find the run.
            delay: begin this long after the start; the run is `pending` until then.
            start_at: begin at this time instead; it has a time zone.
            start_within: fail the run if it has not begun this long after it could.
            parent_close: of a child run, when its parent ends first: `"cancel"` (the default) asks it to stop, `"terminate"` ends it at
                once, `"abandon"` lets it go on.
            detached: of a child run: the parent does not wait for it and is not notified of its end. The await returns None at
                once; give it a `key` to find it again.

        Raises InvalidInput for more than one of `key`, `debounce` and `dedup`, and for values that can never work.
        """
        given = checked(f"{self.name}.options()", WorkflowRunOptions, options)
        changed = copy(self)
        if (debounce := given.get("debounce")) is not None:
            changed._later = debounce.recorded
        if (dedup := given.get("dedup")) is not None:
            changed._dedup = dedup.recorded
        if (key := given.get("key")) is not None:
            changed._key = checked_name("key", key)
        changed._timeout = given.get("timeout", self._timeout)
        if (attributes := given.get("attributes")) is not None:
            changed._attributes = start_attributes(attributes)
        changed._on_conflict = given.get("on_conflict") or self._on_conflict
        changed._parent_close = checked_parent_close(given.get("parent_close") or self._parent_close)
        changed._detached = bool(given.get("detached", self._detached))
        changed._delay_us, changed._start_at_us = self._begins(given.get("delay"), given.get("start_at"))
        if (start_within := given.get("start_within")) is not None:
            changed._start_within_us = positive_us("start_within", start_within)
        deferred_starts.check_later(changed._later, changed._dedup, changed._key)
        if changed._later is not None and changed._is_delayed:
            raise InvalidInput("a debounced start has a time of its own; drop delay, start_at and start_within")
        return changed

    def _begins(self, delay: Duration | None, start_at: datetime | None) -> tuple[int, int]:
        if delay is not None and start_at is not None:
            raise InvalidInput("give delay or start_at, not both")
        if delay is not None:
            return positive_us("delay", delay), 0
        return (0, us_of(start_at)) if start_at is not None else (self._delay_us, self._start_at_us)


def checked_parent_close(policy: ParentClose) -> ParentClose:
    if policy not in ev.PARENT_CLOSE:
        raise InvalidInput(f"parent_close={policy!r}: it is {', '.join(ev.PARENT_CLOSE[:-1])} or {ev.PARENT_CLOSE[-1]}")
    return policy


class Batched(Generic[R_co]):
    """A workflow whose runs get the items of many starts. `Workflow.batch()` makes one."""

    def __init__(self, workflow: Startable[..., Any]) -> None:
        self._workflow = workflow

    async def add(self, *items: Any, **lists: list[Any]) -> Handle[R_co]:
        """Add items to the batch. Returns a handle to the run that will get them.

        The list of a flow is given by its name: `add(events=[event])`.
        """
        args = () if lists else (list(items),)
        return await self._workflow.start_on(backend(), self._workflow.signature.encode_call(args, lists))

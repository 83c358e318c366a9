"""Executions of nodes: how each verb begins, what its end means for its node, and how it is stopped.

An execution in flight has a handle under its index in the visit: a task's sequence number, or one of the small structs below. What the
world says about it is found again through the tables of `Executions`, which hold what is in flight and nothing else.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final, cast

import msgspec

from perdure.core.approvals import Spec, check_names, encode_spec, read_answer
from perdure.core.calls import RESERVED, encode_offer
from perdure.core.declared import Declared, laid_under
from perdure.core.durations import to_us
from perdure.core.errors import Failure, InvalidInput, clip
from perdure.core.events import PromiseKind
from perdure.core.expressions import Expr, ExprError
from perdure.core.expressions.nodes import Fault, Meter
from perdure.core.expressions.template import Template
from perdure.core.journal import Journal
from perdure.core.limits import (
    EXPR_STEPS_MAX,
    FANOUT_TASKS_MAX,
    NAME_CHARS_MAX,
    PAYLOAD_BYTES_MAX,
    SCHEDULE_CHUNK_TASKS,
    UNDO_STACK_MAX,
)
from perdure.core.named_events import EVENT, wait_spec
from perdure.core.retry import TaskOptions
from perdure.core.waits import event_promise_name
from perdure.flows.decide.frames import Frame, GraphFrame, Host, Scope, Trouble, Visit, make
from perdure.flows.decide.values import Value
from perdure.flows.model import (
    APPROVED,
    DEFAULT,
    REJECTED,
    Approval,
    Call,
    Child,
    Choice,
    Embedded,
    Services,
    Sleep,
    Wait,
)
from perdure.flows.model import Value as Computed

_encode = msgspec.json.Encoder().encode

EAGER_ITEMS: Final = 5_000
"""Up to this many executions a free place is taken at once; a larger spread refills in steps of an eighth, to keep its history short."""
FILL_ITEMS: Final = SCHEDULE_CHUNK_TASKS
"""Executions of a spread that begin in one step of the decision."""
FILL_STEPS: Final = 30_000
"""Steps of expressions after which a step of the decision begins no further execution, and tasks that were asked for are handed over. Like
FILL_ITEMS it bounds commands, so it must not depend on time: a replay has to make the same ones."""
ITEM_STEPS: Final = 50
"""What one step of a decision costs beside its expressions."""
READ_STEP_BYTES: Final = 32
"""Bytes of an output whose decoding counts as one step."""
READ_FREE_BYTES: Final = 64 * 1024
"""Up to this size an output is read free of charge, once it has been decoded."""
SHOWN_FAILURES: Final = 3
"""Failures of a spread that its error message quotes."""


class Waiting(msgspec.Struct):
    """An execution that waits for a message, perhaps not for ever."""

    name: str
    timer: int = -1
    promise: bool = False
    spec: bytes = b""
    """Of the wait for an event, while it has not come."""


class Inner(msgspec.Struct):
    """An execution that is a body of its own, perhaps with a time limit."""

    frame: Frame
    timer: int = -1


class ChildRun(msgspec.Struct):
    seq: int


class Timer(msgspec.Struct):
    seq: int


class Done(msgspec.Struct, eq=False):
    """An execution that succeeded and can be taken back: an entry of the undo stack (core/undo.py)."""

    visit: Visit
    index: int
    given: bytes
    """What it was called with, as far as its undo may want that."""
    result: bytes


def nothing_declared(task: str) -> Declared | None:
    return None


class Executions(Host):
    """What is in flight, and how it gets there and away."""

    run_id: bytes
    declared: Callable[[str], Declared | None] = staticmethod(nothing_declared)
    """What a task declares about itself, as far as workers have said."""

    def __init__(self) -> None:
        self._journal = Journal()
        self._meter = Meter()
        """Of the step that is being made; renewed with every step."""
        self.spent = 0
        """Steps of the decision so far: what follows from one record."""
        self._cost = 0
        """Of the step of the decision that is being made, up to the last `_renew`."""
        self._calls_cost = 0
        """Steps that the tasks which are about to be asked for took."""
        self._agenda: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._thirsty: dict[Visit, None] = {}
        """Spreads with a place to fill once the record is worked off."""
        self._calls: list[tuple[Visit, Call, bytes]] = []
        """Tasks that are about to be asked for."""
        self._tasks: dict[int, tuple[Visit, int]] = {}
        self._children: dict[int, tuple[Visit, int]] = {}
        self._stopped: dict[int, tuple[Visit, int]] = {}
        """Tasks, and under -1 - n child runs, that were told to stop: they may have succeeded before they heard of it."""
        self._undo: list[Done] = []
        self._given: dict[tuple[Visit, int], bytes] = {}
        """What executions that can be taken back were called with."""
        self._timers: dict[int, tuple[Visit, int]] = {}
        self._promises: dict[str, tuple[Visit, int]] = {}
        self._kept: dict[str, bytes] = {}
        """Promises that were resolved before anybody asked for them."""
        self._unsure: set[str] = set()
        """Those of them that were resolved by somebody who may not answer for others."""
        self._waiting: dict[str, deque[tuple[Visit, int]]] = {}
        self._signals: dict[str, deque[bytes]] = {}
        self._buffered = 0
        self._signalled: set[str] = set()
        self._left: dict[bytes, list[str]] = {}
        """Waits for events that were given up, by spec: names of their promises."""
        self._names: dict[str, int] = {}
        """How often a promise of a name was asked for."""
        self._now_us = 0
        self._at = 0
        """Number of the record that is being worked off."""
        self._cause = 0
        """Number of the first record that made something fail."""

    def later(self, act: Callable[..., None], *args: Any) -> None:
        self._agenda.append((act, args))

    def soon(self, act: Callable[..., None], *args: Any) -> None:
        self._cost += self._renew()
        if self._cost > FILL_STEPS:
            self.later(act, *args)
        else:
            act(*args)

    def reopen(self, frame: Frame) -> None:
        """Go on with a body that failed or was stopped."""
        raise NotImplementedError

    def evaluate(self, what: Template | Expr, scope: Scope) -> Any:
        try:
            return what.evaluate(scope, self._meter)
        except ExprError as e:
            raise Trouble(e.to_failure()) from None

    def read(self, value: Value) -> Any:
        if value.size >= READ_STEP_BYTES:
            cost = value.undecoded // READ_STEP_BYTES + (value.size >> 8 if value.size > READ_FREE_BYTES else 0)
            try:
                self._meter.spend(cost)
            except Fault as e:
                message = f"reading an output of {value.size} bytes: {e}"
                raise Trouble(Failure("expression_error", message)) from None
        return value.obj

    def _renew(self) -> int:
        """What comes next has steps of its own. Answers what was done since the last time has cost."""
        cost = self._meter.renew() + ITEM_STEPS
        self.spent += cost
        return cost

    # -- nodes ------------------------------------------------------------------------------------------------------

    def enter(self, visit: Visit) -> None:
        if visit.over:
            return
        verb = visit.node.verb
        try:
            if visit.node.compensate is not None:
                self._check_room(visit)
            if isinstance(verb, Call) and visit.node.spread is None:  # by far the most common: no detours
                self._call(visit, verb)
                return
            self._unfold(visit)
        except Trouble as e:
            self._node_failed(visit, e.failure)
            return
        if visit.count:
            self.soon(self._fill, visit)
        else:
            self._over(visit)

    def _unfold(self, visit: Visit) -> None:
        """How many executions there are, and how many at a time."""
        node, scope = visit.node, visit.frame.scope(visit)
        verb, spread = node.verb, node.spread
        if isinstance(verb, Services):
            names = self.evaluate(verb.names, scope)
            if not isinstance(names, list) or not all(isinstance(n, str) and n for n in names):
                raise Trouble(
                    Failure(
                        "expression_error", f"the services of {node.key!r} must be a list of names, not {_shown(names)}"
                    )
                )
            built_in = next((n for n in names if n.startswith(RESERVED)), None)
            if built_in is not None:  # deploying a flow with `run:` needs a permission that this would go around
                raise Trouble(
                    Failure(
                        "invalid_input",
                        f"the services of {node.key!r} name {built_in!r}, which is built in: use http: or run:",
                    )
                )
            visit.items = names
        elif spread is not None and spread.items is not None:
            items = self.evaluate(spread.items, scope)
            if not isinstance(items, list):
                raise Trouble(Failure("expression_error", f"foreach of {node.key!r} needs a list, not {_shown(items)}"))
            visit.items = items
        elif spread is not None and spread.count is not None:
            count = self.evaluate(spread.count, scope)
            if not isinstance(count, int) or isinstance(count, bool) or count < 0:
                raise Trouble(
                    Failure("expression_error", f"parallel of {node.key!r} needs a whole number, not {_shown(count)}")
                )
            visit.count = count
        if visit.items is not None:
            visit.count = len(visit.items)
        if visit.count > FANOUT_TASKS_MAX:
            raise Trouble(
                Failure(
                    "limit_exceeded",
                    f"{node.key!r} spreads over {visit.count}, more than FANOUT_TASKS_MAX={FANOUT_TASKS_MAX}",
                )
            )
        if spread is not None and spread.concurrency is not None:
            limit = self.evaluate(spread.concurrency, scope)
            if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
                raise Trouble(
                    Failure(
                        "expression_error",
                        f"concurrency of {node.key!r} needs a whole number above 0, not {_shown(limit)}",
                    )
                )
            visit.limit = limit
        if node.compensate is not None:
            self._check_room(visit)
        visit.results = [None] * visit.count
        visit.todo = deque(range(visit.count))

    def _fill(self, visit: Visit) -> None:
        """Start as many executions as there is room for, in the order of the items; of many, those of one step."""
        if visit.over:
            return
        limit = visit.limit or visit.count
        room = min(limit - len(visit.handles), FILL_ITEMS)
        indexes = visit.take(room) if room > 0 else []
        if indexes:
            begun = self._begin(visit, indexes)
            if begun < len(indexes):
                visit.put_back(indexes[begun:])
            if visit.over:
                return
        if visit.todo:
            if limit > len(visit.handles):
                self.later(self._fill, visit)
        elif not visit.handles:
            self._over(visit)

    def _begin(self, visit: Visit, indexes: list[int]) -> int:
        """How many have begun when the step has cost enough."""
        if isinstance(visit.node.verb, Call):
            return self._schedule(visit, visit.node.verb, indexes)
        for n, index in enumerate(indexes):
            if visit.over:
                return len(indexes)
            self._start(visit, index)
            self._cost += self._renew()
            if self._cost > FILL_STEPS:
                return n + 1
        return len(indexes)

    def _schedule(self, visit: Visit, call: Call, indexes: list[int]) -> int:
        """Tasks in bulk. Places side by side share a command."""
        inputs: list[bytes] = []
        first = indexes[0]
        refused: list[tuple[int, Failure]] = []
        begun = 0
        for index in indexes:
            if inputs and index != first + len(inputs):
                self._bulk(visit, call, first, inputs)
                inputs = []
            begun += 1
            try:
                data = self._payload(visit, index, call.args)
                if not inputs:
                    first = index
                inputs.append(data)
            except Trouble as e:
                refused.append((index, e.failure))
            self._cost += self._renew()
            if self._cost > FILL_STEPS:
                break
        if inputs:
            self._bulk(visit, call, first, inputs)
        for index, _ in refused:
            visit.handles[index] = None
        for index, failure in refused:
            if not visit.over:
                self._failed(visit, index, failure)
        return begun

    def _bulk(self, visit: Visit, call: Call, first: int, inputs: list[bytes]) -> None:
        if visit.node.compensate is not None:
            self._given.update({(visit, first + i): data for i, data in enumerate(inputs)})
        at = first if visit.is_spread else -1
        label = visit.frame.prefix + visit.node.key
        queue, options = self._options(call.task, call)
        seq = self._ask.schedule_tasks(call.task, queue, inputs, options, [label], at)
        tasks, handles = self._tasks, visit.handles
        for i in range(len(inputs)):
            tasks[seq + i] = (visit, first + i)
            handles[first + i] = seq + i

    # -- single tasks: those that are asked for one after the other, and differ in their input alone, share a command

    def _call(self, visit: Visit, call: Call) -> None:
        visit.results = [None]
        if call.args is None:
            data = self._payload(visit, -1, None)
        else:
            try:
                data = _encode(call.args.evaluate(visit.frame.scope(visit), self._meter))
            except ExprError as e:
                raise Trouble(e.to_failure()) from None
            if len(data) > PAYLOAD_BYTES_MAX:
                checked(data, f"the input of {visit.label(-1)}")
        before = self._calls[0][1] if self._calls else call
        if before is not call and not _is_alike(before, call):
            self._flush()
        visit.handles[0] = None
        if visit.node.compensate is not None:
            self._given[visit, 0] = data
        self._calls.append((visit, call, data))
        if self._meter.steps < EXPR_STEPS_MAX:
            self._calls_cost += EXPR_STEPS_MAX - self._meter.steps
            if self._calls_cost > FILL_STEPS:
                self._flush()  # what took so long to ask for begins before the rest of the decision is made

    def _flush(self) -> None:
        calls, self._calls, self._calls_cost = self._calls, [], 0
        call = calls[0][1]
        nodes = [v.frame.prefix + v.node.key for v, _, _ in calls]
        queue, options = self._options(call.task, call)
        seq = self._journal.schedule_tasks(call.task, queue, [data for _, _, data in calls], options, nodes)
        for visit, _, _ in calls:
            self._tasks[seq] = (visit, 0)
            visit.handles[0] = seq
            seq += 1

    def _options(self, task: str, call: Call | Services) -> tuple[str, TaskOptions]:
        """Queue and options as they are recorded now; a replay takes them from the record."""
        return laid_under(self.declared(task), call.queue, call.options, call.said)

    @property
    def _ask(self) -> Journal:
        """The journal, once it knows of the tasks that were asked for before."""
        if self._calls:
            self._flush()
        return self._journal

    def _payload(self, visit: Visit, index: int, args: Template | None) -> bytes:
        if args is None:
            data = encode_offer(visit.frame.offer(visit, index))
        else:
            data = msgspec.json.encode(self.evaluate(args, visit.frame.scope(visit, self._place(visit, index))))
        if len(data) > PAYLOAD_BYTES_MAX:
            checked(data, f"the input of {visit.label(index)}")
        return data

    def _place(self, visit: Visit, index: int) -> int:
        return index if visit.is_spread else -1

    def _start(self, visit: Visit, index: int) -> None:
        visit.handles[index] = None
        try:
            _START[type(visit.node.verb)](self, visit, index, visit.node.verb)
        except Trouble as e:
            self._failed(visit, index, e.failure)

    # -- executions that are no plain task --------------------------------------------------------------------------

    def _start_service(self, visit: Visit, index: int, verb: Services) -> None:
        assert visit.items is not None
        data = self._payload(visit, index, verb.args)
        label = visit.frame.prefix + visit.node.key
        if visit.node.compensate is not None:
            self._given[visit, index] = data
        name = visit.items[index]
        queue, options = self._options(name, verb)
        seq = self._ask.schedule_tasks(name, queue, [data], options, [label], index)
        self._tasks[seq] = (visit, index)
        visit.handles[index] = seq

    def _start_child(self, visit: Visit, index: int, verb: Child) -> None:
        given = self._passed(visit, index, verb.args)
        offered = verb.args is None and isinstance(given, dict)
        data = encode_offer(given) if offered else msgspec.json.encode(given)
        checked(data, f"the input of {visit.label(index)}")
        if visit.node.compensate is not None:
            self._given[visit, index] = data
        seq = self._ask.start_child(verb.workflow, "", data, "", visit.node.timeout_us)
        self._children[seq] = (visit, index)
        visit.handles[index] = ChildRun(seq)

    def _passed(self, visit: Visit, index: int, args: Template | None) -> Any:
        """What a body or a child gets as its input."""
        frame = visit.frame
        if args is not None:
            return self.evaluate(args, frame.scope(visit, self._place(visit, index)))
        if isinstance(frame, GraphFrame) and not visit.is_spread:
            return visit.input if visit.input is not None else visit.params
        return frame.offer(visit, index)

    def _start_body(self, visit: Visit, index: int, verb: Embedded) -> None:
        stopped = visit.frames.pop(index, None)
        if stopped is not None:  # a retry: it goes on where it was
            visit.handles[index] = Inner(stopped, self._limit(visit, index))
            self.reopen(stopped)
            return
        data = self._passed(visit, index, verb.args)
        if visit.node.compensate is not None:
            self._given[visit, index] = _encode(data)
        own: Any = data if isinstance(data, dict) else {}
        params = visit.params if isinstance(visit.frame, GraphFrame) else own
        frame = make(self, verb.body, data, params, f"{visit.label(index)}.", (visit, index))
        self.spent += len(verb.body.nodes)
        visit.handles[index] = Inner(frame, self._limit(visit, index))
        frame.begin()

    def _start_choice(self, visit: Visit, index: int, verb: Choice) -> None:
        scope = visit.frame.scope(visit, self._place(visit, index))
        action = next((a for case, a in verb.cases if self.evaluate(case, scope)), verb.otherwise)
        value = Value.of(visit.input if isinstance(visit.frame, GraphFrame) else action)
        self._succeeded(visit, index, value.raw, action or DEFAULT)

    def _start_sleep(self, visit: Visit, index: int, verb: Sleep) -> None:
        delay = self.evaluate(verb.delay, visit.frame.scope(visit, self._place(visit, index)))
        try:
            if isinstance(delay, bool) or not isinstance(delay, (int, float, str)):
                raise InvalidInput(f"{_shown(delay)} is no duration")
            us = to_us(delay / 1000 if verb.ms and not isinstance(delay, str) else delay)
        except InvalidInput as e:
            raise Trouble(Failure("expression_error", f"{visit.label(index)}: {e}")) from None
        seq = self._ask.start_timer(self._now_us + us)
        self._timers[seq] = (visit, index)
        visit.handles[index] = Timer(seq)

    def _start_wait(self, visit: Visit, index: int, verb: Wait) -> None:
        scope = visit.frame.scope(visit, self._place(visit, index))
        if verb.event:
            self._start_event(visit, index, verb, scope)
            return
        name = _name(self.evaluate(verb.signal, scope), visit, "signal")
        waiting = visit.handles[index] = Waiting(name)
        buffered = self._signals.get(name)
        if buffered:
            self._buffered -= 1
            self._answered(visit, index, name, buffered.popleft())
            return
        if verb.lookup and name not in self._signalled:
            found = _found(name, visit)
            if found is not None:
                self._succeeded(visit, index, Value.of(found).raw)
                return
        self._waiting.setdefault(name, deque()).append((visit, index))
        waiting.timer = self._limit(visit, index)

    def _start_event(self, visit: Visit, index: int, verb: Wait, scope: Scope) -> None:
        """A wait that was given up is taken up by the next one of the same spec: what came in between is not missed."""
        event = _name(self.evaluate(verb.signal, scope), visit, "event")
        roots = verb.match.roots - {EVENT} if verb.match is not None else frozenset[str]()
        try:
            spec = wait_spec(event, verb.match.text if verb.match is not None else "", {r: scope(r) for r in roots})
        except InvalidInput as e:
            raise Trouble(Failure("expression_error", f"{visit.label(index)}: {e}")) from None
        left = self._left.get(spec)
        if left:
            name = left.pop()
        else:
            kind = f"event:{event}"
            n = self._names[kind] = self._names.get(kind, 0) + 1
            name = event_promise_name(event, n, self.run_id)
            self._ask.create_promise(name, spec, PromiseKind.EVENT)
        waiting = visit.handles[index] = Waiting(name, promise=True, spec=spec)
        if name in self._kept:
            self._answered(visit, index, name, self._kept.pop(name))
            return
        self._promises[name] = (visit, index)
        waiting.timer = self._limit(visit, index)

    def _start_approval(self, visit: Visit, index: int, verb: Approval) -> None:
        scope = visit.frame.scope(visit, self._place(visit, index))
        base = _name(self.evaluate(verb.name, scope), visit, "approval")
        if visit.is_spread:
            base = f"{base}[{index}]"
        n = self._names[base] = self._names.get(base, 0) + 1
        name = base if n == 1 else f"{base}#{n}"
        waiting = visit.handles[index] = Waiting(name, promise=True)
        spec = self._spec(visit, name, verb, scope)
        buffered = self._signals.get(base) if verb.signals and not spec.is_guarded else None
        if buffered:
            self._buffered -= 1
            self._answered(visit, index, base, buffered.popleft())
            return
        self._ask.create_promise(name, encode_spec(spec), PromiseKind.APPROVAL)
        if spec.is_guarded and name in self._unsure:
            self._kept.pop(name, None)
        if name in self._kept:
            self._answered(visit, index, name, self._kept.pop(name))
            return
        self._promises[name] = (visit, index)
        if verb.signals and not spec.is_guarded:
            self._waiting.setdefault(base, deque()).append((visit, index))
        waiting.timer = self._limit(visit, index)

    def _spec(self, visit: Visit, name: str, verb: Approval, scope: Scope) -> Spec:
        """What people are asked. Moments count from the record that is being worked off."""
        shown = {} if verb.shown is None else self.evaluate(verb.shown, scope)
        timeout_us = visit.node.timeout_us
        try:
            spec = Spec(
                title=_text(shown, "title") or name,
                quorum=verb.quorum,
                reject_quorum=verb.reject_quorum,
                description=_text(shown, "description"),
                form=dict(verb.form) if verb.form is not None else None,
                assignees=_people(shown, "assignees"),
                deadline_us=self._now_us + timeout_us if timeout_us else None,
                escalate_us=self._now_us + verb.escalate_us if verb.escalate_us else None,
                escalate_to=_people(shown, "escalate_to"),
                details=shown.get("details"),
            )
            encode_spec(spec)
        except InvalidInput as e:
            raise Trouble(Failure("expression_error", f"{visit.label(-1)}: {e}")) from None
        return spec

    def _start_value(self, visit: Visit, index: int, verb: Computed) -> None:
        value = self.evaluate(verb.value, visit.frame.scope(visit, self._place(visit, index)))
        self._succeeded(visit, index, Value.of(value).raw)

    def _limit(self, visit: Visit, index: int) -> int:
        if not visit.node.timeout_us:
            return -1
        seq = self._ask.start_timer(self._now_us + visit.node.timeout_us)
        self._timers[seq] = (visit, index)
        return seq

    def _answered(self, visit: Visit, index: int, name: str, raw: bytes) -> None:
        """A message that an execution waited for has come."""
        waiting = visit.handles[index]
        assert isinstance(waiting, Waiting)
        waiting.spec = b""
        self._unwait(visit, index)
        verb = visit.node.verb
        value = Value(raw or b"null")
        action = DEFAULT
        try:
            obj = value.obj
        except msgspec.DecodeError as e:
            self._failed(visit, index, Failure("payload_mismatch", f"what came for {name!r} is no JSON: {e}"))
            return
        if isinstance(verb, Approval):
            answer = read_answer(obj)
            action = _verdict(obj)
            value = value if answer is None else Value.of(answer.as_output())
        elif isinstance(verb, Wait) and verb.lookup:
            self._signalled.add(name)
            try:
                visit.frame.put((name,), obj)
            except Trouble as e:
                self._failed(visit, index, e.failure)
                return
        self._succeeded(visit, index, value.raw, action)

    def _unwait(self, visit: Visit, index: int) -> None:
        waiting = visit.handles[index]
        assert isinstance(waiting, Waiting)
        if waiting.timer >= 0:
            self._drop_timer(waiting.timer)
            waiting.timer = -1
        if waiting.promise:
            self._promises.pop(waiting.name, None)
        if waiting.spec:
            self._left.setdefault(waiting.spec, []).append(waiting.name)
        place = (visit, index)
        names = (waiting.name, waiting.name.partition("#")[0]) if waiting.promise else (waiting.name,)
        for name in names:
            queue = self._waiting.get(name)
            if queue and place in queue:
                queue.remove(place)

    def _drop_timer(self, seq: int) -> None:
        self._timers.pop(seq, None)
        self._ask.cancel_timer(seq)

    # -- ends of executions -----------------------------------------------------------------------------------------

    def _check_room(self, visit: Visit) -> None:
        if len(self._undo) + len(self._given) + visit.count > UNDO_STACK_MAX:
            message = f"the run would have more than UNDO_STACK_MAX={UNDO_STACK_MAX} executions to compensate; make a flow of its own of some"
            raise Trouble(Failure("limit_exceeded", message))

    def _done(self, visit: Visit, index: int, raw: bytes) -> None:
        """It succeeded, whether anybody still waits for that or not: it can be taken back, if its node says how."""
        if visit.node.compensate is not None:
            self._undo.append(Done(visit, index, self._given.pop((visit, index), b""), raw))

    def _succeeded(self, visit: Visit, index: int, raw: bytes, action: str = DEFAULT) -> None:
        self._done(visit, index, raw)
        visit.results[index] = raw
        del visit.handles[index]
        if visit.is_spread:
            self._refill(visit)
        else:
            visit.over, visit.action = True, action
            self.later(visit.frame.node_succeeded, visit, Value(raw), action)

    def _failed(self, visit: Visit, index: int, failure: Failure) -> None:
        visit.handles.pop(index, None)
        if visit.node.compensate is not None:
            self._given.pop((visit, index), None)
        if visit.node.on_error == "ignore":
            visit.results[index] = b"null"
            visit.frames.pop(index, None)
            visit.children.pop(index, None)
            self._refill(visit)
            return
        self._cause = self._cause or self._at
        visit.note_failure(index, failure)
        if visit.node.on_error == "collect" and visit.is_spread:
            self._refill(visit)
            return
        self._stop_all(visit)
        self._node_failed(visit, failure if not visit.is_spread else _of_item(failure, index))

    def _refill(self, visit: Visit) -> None:
        """After the record is worked off; a big spread waits until it is worth an event."""
        limit = visit.limit or visit.count
        free = limit - len(visit.handles)
        if visit.count <= EAGER_ITEMS or free >= limit // 8 or not visit.handles:
            self._thirsty[visit] = None

    def _over(self, visit: Visit) -> None:
        """Every execution has ended, and none of it stopped the node."""
        if visit.failures:
            self._node_failed(visit, _several(visit))
            return
        visit.over = True
        parts = cast(list[bytes], visit.results)
        value = Value.list_of(parts) if visit.is_spread else Value(parts[0])
        self.later(visit.frame.node_succeeded, visit, value, visit.action)

    def _node_failed(self, visit: Visit, failure: Failure) -> None:
        visit.over = True
        self._cause = self._cause or self._at
        timeout = failure.code == "timeout" and isinstance(visit.node.verb, (Wait, Approval))
        self.later(lambda: visit.frame.node_failed(visit, failure, timeout=timeout))

    # -- stopping ---------------------------------------------------------------------------------------------------

    def _stop_all(self, visit: Visit) -> None:
        if self._calls:
            self._flush()  # so that what is stopped has a number
        visit.over = True
        tasks: list[int] = []
        for index in list(visit.handles):
            handle = visit.handles[index]
            if isinstance(handle, int):
                if (place := self._tasks.pop(handle, None)) is not None:
                    self._stopped[handle] = place
                tasks.append(handle)
                del visit.handles[index]
            else:
                self._stop(visit, index)
        if tasks:
            self._ask.cancel_tasks(sorted(tasks))

    def _stop(self, visit: Visit, index: int) -> None:
        """Give up one execution; what becomes of it is nobody's business any more."""
        match visit.handles.get(index):
            case Timer() as timer:
                self._drop_timer(timer.seq)
            case ChildRun() as child:
                if (place := self._children.pop(child.seq, None)) is not None:
                    self._stopped[-1 - child.seq] = place
                self._ask.cancel_child(child.seq)
            case Waiting():
                self._unwait(visit, index)
            case Inner() as inner:
                if inner.timer >= 0:
                    self._drop_timer(inner.timer)
                inner.frame.over = True
                for v in inner.frame.visits():
                    self._stop_all(v)
                visit.keep_frame(index, inner.frame)
            case _:
                pass
        visit.handles.pop(index, None)


_START: dict[type, Callable[[Executions, Visit, int, Any], None]] = {
    Services: Executions._start_service,
    Child: Executions._start_child,
    Embedded: Executions._start_body,
    Choice: Executions._start_choice,
    Sleep: Executions._start_sleep,
    Wait: Executions._start_wait,
    Approval: Executions._start_approval,
    Computed: Executions._start_value,
}


# -- small things ------------------------------------------------------------------------------------------------------


def checked(data: bytes, what: str) -> bytes:
    if len(data) > PAYLOAD_BYTES_MAX:
        message = f"{what}: {len(data)} bytes, over the limit PAYLOAD_BYTES_MAX={PAYLOAD_BYTES_MAX}"
        raise Trouble(Failure("payload_too_large", message, "PayloadTooLarge"))
    return data


def _name(value: Any, visit: Visit, what: str) -> str:
    if not isinstance(value, str) or not value or len(value) > NAME_CHARS_MAX - 20:
        raise Trouble(
            Failure("expression_error", f"{visit.node.key!r} waits for {_shown(value)}, which is no name of a {what}")
        )
    return value


def _found(name: str, visit: Visit) -> Any:
    """A value that is there already under a name: in shared state, params or input."""
    for place in (visit.frame.shared, visit.params, visit.input):
        if isinstance(place, dict):
            value = cast(dict[str, Any], place).get(name)
            if value is not None:
                return value
    return None


def _text(shown: dict[str, Any], key: str) -> str:
    value = shown.get(key)
    return value if isinstance(value, str) else "" if value is None else _shown(value)


def _is_alike(a: Call, b: Call) -> bool:
    """Whether their tasks can share a command."""
    same = a.options is b.options or a.options == b.options
    return same and a.task == b.task and a.queue == b.queue and a.said == b.said


def _people(shown: dict[str, Any], key: str) -> list[str]:
    """A name, or a list of names; each once."""
    value = shown.get(key)
    names: list[Any] = [] if value is None else value if isinstance(value, list) else [value]
    check_names(names, key)
    return list(dict.fromkeys(names))


_YES: Final = frozenset({APPROVED, "approve", "yes", "true", "ok"})
_NO: Final = frozenset({REJECTED, "reject", "no", "false", "denied"})


def _verdict(value: Any) -> str:
    """What an approval's answer says."""
    if isinstance(value, dict):
        answer = cast(dict[str, Any], value)
        found = next((answer[k] for k in ("approved", "decision", "action") if k in answer), True)
        return _verdict(found if not isinstance(found, dict) else True)
    if isinstance(value, bool):
        return APPROVED if value else REJECTED
    if isinstance(value, str):
        word = value.strip().lower()
        return APPROVED if word in _YES else REJECTED if word in _NO else value
    return APPROVED


def _of_item(failure: Failure, index: int) -> Failure:
    return Failure(failure.code, f"[{index}] {failure.message}", failure.type, failure.traceback)


def _several(visit: Visit) -> Failure:
    failures = [visit.failures[i] for i in sorted(visit.failures)]
    if not visit.is_spread:
        return failures[0]
    shown: Iterable[str] = (f"[{i}] {visit.failures[i].message}" for i in sorted(visit.failures)[:SHOWN_FAILURES])
    more = f"; and {len(failures) - SHOWN_FAILURES} more" if len(failures) > SHOWN_FAILURES else ""
    first = failures[0]
    return Failure(first.code, clip(f"{len(failures)} of {visit.count} failed: {'; '.join(shown)}{more}"), first.type)


def _shown(value: Any) -> str:
    shown = Value.of(value).raw.decode(errors="replace")
    return shown if len(shown) <= 60 else f"{shown[:50]}…"

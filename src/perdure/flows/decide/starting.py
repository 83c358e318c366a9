"""How the executions of a node begin: how many there are, what each gets, and what each verb asks for."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol, cast

from perdure.core.approvals import Spec, check_names, encode_spec
from perdure.core.calls import RESERVED, encode_offer
from perdure.core.commands import UNNUMBERED, StartChild
from perdure.core.durations import to_us
from perdure.core.errors import Failure, InvalidInput
from perdure.core.events import PromiseKind
from perdure.core.expressions import ExprError
from perdure.core.expressions.template import Template
from perdure.core.limits import FANOUT_TASKS_MAX, FLOW_PAYLOAD_BYTES_MAX, NAME_CHARS_MAX, SCHEDULE_CHUNK_TASKS
from perdure.core.named_events import EVENT, since_us, wait_spec
from perdure.core.payloads import encode_tree, inside
from perdure.flows.decide.bodies import frame_of
from perdure.flows.decide.executions import ChildRun, Executions, InnerBody, MessageWait, SleepTimer
from perdure.flows.decide.frames import BodyFrame, FrameHost, Scope, Trouble, Visit
from perdure.flows.decide.graph_frames import GraphFrame
from perdure.flows.decide.values import JsonValue
from perdure.flows.model import (
    DEFAULT,
    ApprovalVerb,
    ChildCall,
    Choice,
    Embedded,
    MessageVerb,
    Services,
    Sleep,
    TaskCall,
    ValueVerb,
)

FILL_ITEMS: Final = SCHEDULE_CHUNK_TASKS
"""Executions of a spread that begin in one step of the decision."""


class BodyHost(FrameHost, Protocol):
    """What starting a body asks of the decider."""

    def retry_failed(self, frame: BodyFrame) -> None:
        """Continue a body that failed or was stopped."""


class NodeStarter:
    def __init__(self, executions: Executions, host: BodyHost) -> None:
        self._executions, self._agenda, self._host = executions, executions.agenda, host

    def enter(self, visit: Visit) -> None:
        if visit.over:
            return
        verb = visit.node.verb
        try:
            if visit.node.compensate is not None:
                self._executions.check_room(visit)
            if isinstance(verb, TaskCall) and visit.node.spread is None:  # by far the most common: no detours
                self._call(visit, verb)
                return
            self._unfold(visit)
        except Trouble as e:
            self._executions.node_failed(visit, e.failure)
            return
        if visit.count:
            self._agenda.soon(self.fill, visit)
        else:
            self._executions.over(visit)

    def _unfold(self, visit: Visit) -> None:
        """How many executions there are, and how many at a time."""
        node, scope = visit.node, visit.frame.scope(visit)
        verb, spread = node.verb, node.spread
        if isinstance(verb, Services):
            names = inside(self._agenda.evaluate(verb.names, scope))
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
            items = inside(self._agenda.evaluate(spread.items, scope))
            if not isinstance(items, list):
                raise Trouble(Failure("expression_error", f"foreach of {node.key!r} needs a list, not {_shown(items)}"))
            visit.items = items
        elif spread is not None and spread.count is not None:
            count = self._agenda.evaluate(spread.count, scope)
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
            limit = self._agenda.evaluate(spread.concurrency, scope)
            if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
                raise Trouble(
                    Failure(
                        "expression_error",
                        f"concurrency of {node.key!r} needs a whole number above 0, not {_shown(limit)}",
                    )
                )
            visit.limit = limit
        if node.compensate is not None:
            self._executions.check_room(visit)
        visit.results = [None] * visit.count
        visit.todo = deque(range(visit.count))

    def fill(self, visit: Visit) -> None:
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
                self._agenda.later(self.fill, visit)
        elif not visit.handles:
            self._executions.over(visit)

    def _begin(self, visit: Visit, indexes: list[int]) -> int:
        """How many have begun when the step has cost enough."""
        if isinstance(visit.node.verb, TaskCall):
            return self._schedule(visit, visit.node.verb, indexes)
        for n, index in enumerate(indexes):
            if visit.over:
                return len(indexes)
            self._start(visit, index)
            if self._agenda.charge():
                return n + 1
        return len(indexes)

    def _schedule(self, visit: Visit, call: TaskCall, indexes: list[int]) -> int:
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
            if self._agenda.charge():
                break
        if inputs:
            self._bulk(visit, call, first, inputs)
        for index, _ in refused:
            visit.handles[index] = None
        for index, failure in refused:
            if not visit.over:
                self._executions.failed(visit, index, failure)
        return begun

    def _bulk(self, visit: Visit, call: TaskCall, first: int, inputs: list[bytes]) -> None:
        if visit.node.compensate is not None:
            self._executions.given.update({(visit, first + i): data for i, data in enumerate(inputs)})
        at = first if visit.is_spread else -1
        label = visit.frame.prefix + visit.node.key
        seq = self._executions.flushed().schedule(call.task, call, inputs, [label], at)
        tasks, handles = self._executions.tasks, visit.handles
        for i in range(len(inputs)):
            tasks[seq + i] = (visit, first + i)
            handles[first + i] = seq + i

    def _call(self, visit: Visit, call: TaskCall) -> None:
        visit.results = [None]
        if call.args is None:
            data = self._payload(visit, -1, None)
        else:
            try:
                data = encode_tree(call.args.evaluate(visit.frame.scope(visit), self._agenda.meter))
            except ExprError as e:
                raise Trouble(e.to_failure()) from None
            if len(data) > FLOW_PAYLOAD_BYTES_MAX:
                checked(data, f"the input of {visit.label(-1)}")
        self._executions.call(visit, call, data)

    def _payload(self, visit: Visit, index: int, args: Template | None) -> bytes:
        if args is None:
            data = _offer(visit.frame.offer(visit, index))
        else:
            data = encode_tree(self._agenda.evaluate(args, visit.frame.scope(visit, visit.scope_index(index))))
        if len(data) > FLOW_PAYLOAD_BYTES_MAX:
            checked(data, f"the input of {visit.label(index)}")
        return data

    def _start(self, visit: Visit, index: int) -> None:
        visit.handles[index] = None
        try:
            _START[type(visit.node.verb)](self, visit, index, visit.node.verb)
        except Trouble as e:
            self._executions.failed(visit, index, e.failure)

    def _start_service(self, visit: Visit, index: int, verb: Services) -> None:
        assert visit.items is not None
        data = self._payload(visit, index, verb.args)
        label = visit.frame.prefix + visit.node.key
        if visit.node.compensate is not None:
            self._executions.given[visit, index] = data
        seq = self._executions.flushed().schedule(visit.items[index], verb, [data], [label], index)
        self._executions.tasks[seq] = (visit, index)
        visit.handles[index] = seq

    def _start_child(self, visit: Visit, index: int, verb: ChildCall) -> None:
        given = self._passed(visit, index, verb.args)
        offered = verb.args is None and isinstance(given, dict)
        data = _offer(given) if offered else encode_tree(given)
        checked(data, f"the input of {visit.label(index)}")
        if visit.node.compensate is not None:
            self._executions.given[visit, index] = data
        seq = self._executions.ask.start_child(
            StartChild(UNNUMBERED, verb.workflow, "", data, "", visit.node.timeout_us)
        )
        self._executions.children[seq] = (visit, index)
        visit.handles[index] = ChildRun(seq)

    def _passed(self, visit: Visit, index: int, args: Template | None) -> Any:
        """What a body or a child gets as its input."""
        frame = visit.frame
        if args is not None:
            return self._agenda.evaluate(args, frame.scope(visit, visit.scope_index(index)))
        if isinstance(frame, GraphFrame) and not visit.is_spread:
            return visit.input if visit.input is not None else visit.params
        return frame.offer(visit, index)

    def _start_body(self, visit: Visit, index: int, verb: Embedded) -> None:
        stopped = visit.frames.pop(index, None)
        if stopped is not None:  # a retry: it goes on where it was
            visit.handles[index] = InnerBody(stopped, self._executions.limit(visit, index))
            self._host.retry_failed(stopped)
            return
        data = self._passed(visit, index, verb.args)
        if visit.node.compensate is not None:
            self._executions.given[visit, index] = encode_tree(data)
        own: Any = data if isinstance(data, dict) else {}
        params = visit.params if isinstance(visit.frame, GraphFrame) else own
        frame = frame_of(self._host, verb.body, data, params, f"{visit.label(index)}.", (visit, index))
        self._agenda.spent += len(verb.body.nodes)
        visit.handles[index] = InnerBody(frame, self._executions.limit(visit, index))
        frame.begin()

    def _start_choice(self, visit: Visit, index: int, verb: Choice) -> None:
        scope = visit.frame.scope(visit, visit.scope_index(index))
        action = next((a for case, a in verb.cases if self._agenda.evaluate(case, scope)), verb.otherwise)
        value = JsonValue.of(visit.input if isinstance(visit.frame, GraphFrame) else action)
        self._executions.succeeded(visit, index, value.raw, action or DEFAULT)

    def _start_sleep(self, visit: Visit, index: int, verb: Sleep) -> None:
        delay = self._agenda.evaluate(verb.delay, visit.frame.scope(visit, visit.scope_index(index)))
        try:
            if isinstance(delay, bool) or not isinstance(delay, (int, float, str)):
                raise InvalidInput(f"{_shown(delay)} is not a duration")
            us = to_us(delay / 1000 if verb.ms and not isinstance(delay, str) else delay)
        except InvalidInput as e:
            raise Trouble(Failure("expression_error", f"{visit.label(index)}: {e}")) from None
        seq = self._executions.ask.start_timer(self._executions.now_us + us)
        self._executions.timers[seq] = (visit, index)
        visit.handles[index] = SleepTimer(seq)

    def _start_wait(self, visit: Visit, index: int, verb: MessageVerb) -> None:
        scope = visit.frame.scope(visit, visit.scope_index(index))
        if verb.event:
            self._start_event_wait(visit, index, verb, scope)
            return
        name = _name(self._agenda.evaluate(verb.signal, scope), visit, "signal")
        waiting = visit.handles[index] = MessageWait(name, signal=name)
        signals = self._executions.signals
        buffered = signals.take(name)
        if buffered is not None:
            self._executions.answered(visit, index, name, buffered)
            return
        if verb.lookup and name not in self._executions.signalled:
            found = _found(name, visit)
            if found is not None:
                self._executions.succeeded(visit, index, JsonValue.of(found).raw)
                return
        signals.wait(name, (visit, index))
        waiting.timer = self._executions.limit(visit, index)

    def _start_event_wait(self, visit: Visit, index: int, verb: MessageVerb, scope: Scope) -> None:
        event = _name(self._agenda.evaluate(verb.signal, scope), visit, "event")
        executions = self._executions
        since = None if verb.since is None else _since(self._agenda.evaluate(verb.since, scope), visit)
        roots = verb.match.roots - {EVENT} if verb.match is not None else frozenset[str]()
        try:
            from_us = since_us(since, started_us=executions.started_us, now_us=executions.now_us)
            spec = wait_spec(
                event, verb.match.text if verb.match is not None else "", {r: scope(r) for r in roots}, from_us
            )
        except InvalidInput as e:
            raise Trouble(Failure("expression_error", f"{visit.label(index)}: {e}")) from None
        promises = executions.promises
        name, seq = promises.event_wait(event, spec)
        if seq < 0:
            promises.created(executions.ask.create_promise(name, spec, PromiseKind.EVENT))
        self._await_promise(visit, index, MessageWait(name, promise=True, spec=spec))

    def _await_promise(self, visit: Visit, index: int, waiting: MessageWait) -> None:
        visit.handles[index] = waiting
        promises = self._executions.promises
        value = promises.value(waiting.name)
        if value is not None:
            self._executions.answered(visit, index, waiting.name, value)
            return
        promises.wait(waiting.name, (visit, index))
        if waiting.signal:
            self._executions.signals.wait(waiting.signal, (visit, index))
        waiting.timer = self._executions.limit(visit, index)

    def _start_approval(self, visit: Visit, index: int, verb: ApprovalVerb) -> None:
        scope = visit.frame.scope(visit, visit.scope_index(index))
        base = _name(self._agenda.evaluate(verb.name, scope), visit, "approval")
        if visit.is_spread:
            base = f"{base}[{index}]"
        executions = self._executions
        name = executions.promises.approval_name(base)
        spec = self._spec(visit, name, verb, scope)
        signal = base if verb.signals and not spec.is_guarded else ""
        waiting = visit.handles[index] = MessageWait(name, promise=True, signal=signal)
        buffered = executions.signals.take(signal) if signal else None
        if buffered is not None:
            executions.answered(visit, index, base, buffered)
            return
        executions.promises.created(executions.ask.create_promise(name, encode_spec(spec), PromiseKind.APPROVAL))
        self._await_promise(visit, index, waiting)

    def _spec(self, visit: Visit, name: str, verb: ApprovalVerb, scope: Scope) -> Spec:
        """What the approval asks. Times count from the record that is being applied."""
        shown = {} if verb.shown is None else self._agenda.evaluate(verb.shown, scope)
        timeout_us = visit.node.timeout_us
        try:
            spec = Spec(
                title=_text(shown, "title") or name,
                quorum=verb.quorum,
                reject_quorum=verb.reject_quorum,
                description=_text(shown, "description"),
                form=dict(verb.form) if verb.form is not None else None,
                assignees=_people(shown, "assignees"),
                deadline_us=self._executions.now_us + timeout_us if timeout_us else None,
                escalate_us=self._executions.now_us + verb.escalate_us if verb.escalate_us else None,
                escalate_to=_people(shown, "escalate_to"),
                details=shown.get("details"),
            )
            encode_spec(spec)
        except InvalidInput as e:
            raise Trouble(Failure("expression_error", f"{visit.label(-1)}: {e}")) from None
        return spec

    def _start_value(self, visit: Visit, index: int, verb: ValueVerb) -> None:
        value = self._agenda.evaluate(verb.value, visit.frame.scope(visit, visit.scope_index(index)))
        self._executions.succeeded(visit, index, JsonValue.of(value).raw)


_START: dict[type, Callable[[NodeStarter, Visit, int, Any], None]] = {
    Services: NodeStarter._start_service,
    ChildCall: NodeStarter._start_child,
    Embedded: NodeStarter._start_body,
    Choice: NodeStarter._start_choice,
    Sleep: NodeStarter._start_sleep,
    MessageVerb: NodeStarter._start_wait,
    ApprovalVerb: NodeStarter._start_approval,
    ValueVerb: NodeStarter._start_value,
}


def _offer(values: dict[str, Any]) -> bytes:
    try:
        return encode_offer(values)
    except TypeError:  # it holds references
        return encode_tree({"**": values})


def checked(data: bytes, what: str) -> bytes:
    """A large value is stored by the engine, up to what a decider may hold in memory."""
    if len(data) > FLOW_PAYLOAD_BYTES_MAX:
        message = f"{what}: {len(data)} bytes, over the limit FLOW_PAYLOAD_BYTES_MAX={FLOW_PAYLOAD_BYTES_MAX}"
        raise Trouble(Failure("payload_too_large", message, "PayloadTooLarge"))
    return data


def _name(value: Any, visit: Visit, what: str) -> str:
    if not isinstance(value, str) or not value or len(value) > NAME_CHARS_MAX - 20:
        raise Trouble(
            Failure(
                "expression_error", f"{visit.node.key!r} waits for {_shown(value)}, which is not the name of a {what}"
            )
        )
    return value


def _since(value: Any, visit: Visit) -> str | float | None:
    """How far a wait looks back."""
    if value is None or (isinstance(value, (int, float, str)) and not isinstance(value, bool)):
        return value
    message = f'invalid since of {visit.node.key!r}: {_shown(value)}. Use a duration, a time or "now".'
    raise Trouble(Failure("expression_error", message))


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


def _people(shown: dict[str, Any], key: str) -> list[str]:
    """A name, or a list of names; each once."""
    value = shown.get(key)
    names: list[Any] = [] if value is None else value if isinstance(value, list) else [value]
    check_names(names, key)
    return list(dict.fromkeys(names))


def _shown(value: Any) -> str:
    shown = JsonValue.of(value).raw.decode(errors="replace")
    return shown if len(shown) <= 60 else f"{shown[:50]}…"

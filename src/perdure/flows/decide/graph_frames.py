"""Bodies in which one cursor moves along edges, chosen by actions: a node may run again and again."""

from __future__ import annotations

from typing import Any

from perdure.core.errors import Failure
from perdure.flows.decide.frames import (
    ABSENT,
    FAILED,
    SKIPPED_BY_HAND,
    SUCCESS,
    BodyFrame,
    FrameHost,
    Trouble,
    Visit,
    of_node,
    place_in_spread,
)
from perdure.flows.decide.values import NULL, JsonValue
from perdure.flows.model import DEFAULT, ERROR, TIMEOUT, FlowBody


class GraphFrame(BodyFrame):
    """One cursor, moved along edges by actions."""

    def __init__(
        self,
        host: FrameHost,
        body: FlowBody,
        data: Any,
        params: Any,
        prefix: str = "",
        owner: tuple[Visit, int] | None = None,
    ) -> None:
        super().__init__(host, body, data, params, prefix, owner)
        self.steps = 0
        self.current: Visit | None = None
        self.passed: dict[str, str] = {}
        """How the last visit of each node ended."""

    def begin(self) -> None:
        self._move(self.body.start, self.input)

    def own_root(self, name: str, visit: Visit | None) -> Any:
        if name == "input":
            return visit.input if visit is not None else self.input
        if name == "params":
            return visit.params if visit is not None else self.params
        return ABSENT

    def offer(self, visit: Visit, index: int) -> dict[str, Any]:
        out: dict[str, Any] = dict(visit.params) if isinstance(visit.params, dict) else {}
        if isinstance(visit.input, dict):
            out.update(visit.input)
        return {**out, "input": visit.input, **place_in_spread(visit, index)}

    def _move(self, to: int, data: Any) -> None:
        self.steps += 1
        node = self.body.nodes[to]
        visit = self.current = Visit(self, node)
        visit.input, visit.params = data, self.params
        if self.steps > self.body.max_steps:
            limit = self.body.max_steps
            message = f"the graph has made max_steps={limit} steps and is at {node.key!r}; raise max_steps if it is meant to go on"
            self._fail(visit, Failure("step_limit", message))
            return
        self.host.later(self._enter, visit)

    def _enter(self, visit: Visit) -> None:
        if self.over or self.current is not visit:
            return
        node = visit.node
        try:
            if node.params is not None:
                own = self.host.evaluate(node.params, self.scope(visit))
                base = self.params if isinstance(self.params, dict) else {}
                visit.params = {**base, **own} if isinstance(own, dict) else own
            if node.prepare is not None:
                visit.input = self.host.evaluate(node.prepare, self.scope(visit))
        except Trouble as e:
            self.node_failed(visit, e.failure, timeout=False)
            return
        self.host.enter(visit)

    def node_succeeded(self, visit: Visit, value: JsonValue, action: str) -> None:
        node = visit.node
        try:
            self.write(visit, value)
            action = self._action(visit, value, action)
            to = node.edges.get(action, node.edges.get(DEFAULT))
            data = self.host.read(value) if to is not None else None
        except Trouble as e:
            self.node_failed(visit, e.failure, timeout=False)
            return
        self.passed[node.key] = SUCCESS
        if to is None:
            self.current = None
            self.host.soon(self._finish)
        else:
            self._move(to, data)

    def _action(self, visit: Visit, value: JsonValue, verb: str) -> str:
        node = visit.node
        if node.action is not None:
            return node.action
        if node.action_of is not None:
            found = self.host.evaluate(node.action_of, self.scope(visit, -1, value))
            if isinstance(found, bool):
                return verb if verb != DEFAULT else ("true" if found else "false")
            if found is not None:
                return found if isinstance(found, str) else JsonValue.of(found).raw.decode()
        return verb

    def node_failed(self, visit: Visit, failure: Failure, *, timeout: bool) -> None:
        node = visit.node
        if timeout and TIMEOUT in node.edges:
            self.passed[node.key] = SUCCESS
            self._move(node.edges[TIMEOUT], None)
        elif ERROR in node.edges:
            self.passed[node.key] = FAILED
            self._move(node.edges[ERROR], {"code": failure.code, "type": failure.type, "message": failure.message})
        else:
            self._fail(visit, failure)

    def _fail(self, visit: Visit, failure: Failure) -> None:
        self.failure = of_node(failure, self.prefix + visit.node.key)
        self._end(None, self.failure)

    def default_output(self) -> JsonValue:
        return JsonValue.of(self.shared)

    def visits(self) -> list[Visit]:
        return [self.current] if self.current is not None else []

    def failed_nodes(self) -> list[str]:
        return [self.prefix + self.current.node.key] if self.current is not None and self.failure is not None else []

    def _override_failed(self, visit: Visit) -> bool:
        """Whether the failed node goes on as an operator decided."""
        label = self.prefix + visit.node.key
        decision = self.host.overridden(label)
        if decision is None:
            return False
        if decision.how == "rerun":
            if not visit.results and not visit.handles:
                return False
            visit.forget_executions()
            self.host.later(self.host.enter, visit)
            return True
        visit.over = True
        if decision.how == "skip":
            self.host.skipped(label, SKIPPED_BY_HAND)
        value = NULL if decision.how == "skip" else JsonValue(decision.value)
        self.host.later(self.node_succeeded, visit, value, DEFAULT)
        return True

    def retry_failed(self) -> list[Visit]:
        self.over, self.failure = False, None
        visit = self.current
        if visit is not None and self._override_failed(visit):
            return []
        if visit is None:  # the output could not be made
            self._finish()
            return []
        if not visit.results and not visit.handles and not visit.failures:  # it never got as far as being worked on
            self.steps = 1 if self.steps > self.body.max_steps else self.steps
            self.host.later(self._enter, visit)
            return []
        return [visit]

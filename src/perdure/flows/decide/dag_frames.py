"""Bodies whose nodes become ready when everything they depend on is done: each node runs at most once."""

from __future__ import annotations

from typing import Any

from perdure.core.errors import Failure
from perdure.core.events import NodeOverridden
from perdure.core.payloads import OBJECT_TYPE, Placed, any_by_reference
from perdure.flows.decide.frames import (
    ABSENT,
    FAILED,
    PENDING,
    RUNNING,
    SKIPPED,
    SKIPPED_BY_HAND,
    SUCCESS,
    BodyFrame,
    FrameHost,
    Scope,
    Trouble,
    Visit,
    of_node,
    place_in_spread,
)
from perdure.flows.decide.values import NULL, JsonValue
from perdure.flows.model import DEFAULT, TIMEOUT, FlowBody, FlowNode


class DagFrame(BodyFrame):
    """Nodes become ready when everything they depend on is done."""

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
        n = len(body.nodes)
        self.status = [PENDING] * n
        self.outputs: list[JsonValue] = [NULL] * n
        self.actions: list[str] = [""] * n
        self.blame: list[str] = [""] * n
        """The failed node that a node failed or was skipped for: not empty is tainted."""
        self.waiting = list(body.waits)
        self.current: dict[int, Visit] = {}
        self.left = n
        self.smooth = True
        """Nothing has failed or been skipped so far: a node that waits for success runs."""

    def begin(self) -> None:
        for i, waiting in enumerate(self.waiting):
            if not waiting:
                self.host.later(self._ready, i)

    def scope(self, visit: Visit | None = None, index: int = -1, output: JsonValue | None = None) -> Scope:
        return self._root if index < 0 and output is None else super().scope(visit, index, output)

    def _root(self, name: str) -> Any:
        """The scope of a node that is executed once."""
        i = self.body.index.get(name)
        if i is not None:
            return self.host.read(self.outputs[i])
        if name == "input":
            return self.input
        if name in ("state", "shared"):
            return self.shared
        found = self.own_root(name, None)
        return self.host.scope_roots(name) if found is ABSENT else found

    def own_root(self, name: str, visit: Visit | None) -> Any:
        if name == "input":
            return self.input
        if name == "tasks":
            read = self.host.read
            return {n.key: read(self.outputs[i]) for i, n in enumerate(self.body.nodes) if self.status[i] == SUCCESS}
        i = self.body.index.get(name)
        return ABSENT if i is None else self.host.read(self.outputs[i])

    def offer(self, visit: Visit, index: int) -> dict[str, Any]:
        out: dict[str, Any] = dict(self.input) if isinstance(self.input, dict) else {}
        spread = visit.node.spread
        for dep in visit.node.deps:
            key = self.body.nodes[dep].key
            if spread is None or spread.source != key:
                value = self.host.read(self.outputs[dep])
                if isinstance(value, Placed) and value.reference.media_type == OBJECT_TYPE:
                    value = value.inside()
                if isinstance(value, dict):
                    out.update(value)
                out[key] = value
        return {**out, **place_in_spread(visit, index)}

    def _ready(self, i: int) -> None:
        if self.over or self.status[i] != PENDING:
            return
        node = self.body.nodes[i]
        if node.plain and self.smooth:
            self.status[i] = RUNNING
            visit = self.current[i] = Visit(self, node, i)
            self.host.enter(visit)
            return
        reason, blame = self._refusal(node)
        if not reason and node.when is not None:
            try:
                if not self.host.evaluate(node.when, self.scope()):
                    reason = "when is false"
            except Trouble as e:
                self._fail(i, e.failure)
                return
        if reason:
            self.host.skipped(self.prefix + node.key, reason)
            self.blame[i] = blame
            self.current.pop(i, None)
            self._done(i, SKIPPED)
            return
        self.status[i] = RUNNING
        before = self.current.get(i)
        if before is not None and any(r is not None for r in before.results):  # a retry: what it has is kept
            self.host.take_up(before)
            return
        visit = self.current[i] = Visit(self, node, i)
        self.host.enter(visit)

    def _refusal(self, node: FlowNode) -> tuple[str, str]:
        """Why a node whose sources are all done is skipped, and the failed node to blame; both empty when it runs."""
        sources = [*node.deps, *(a for a, _ in node.arcs)]
        blame = next((b for s in sources if (b := self.blame[s])), "")
        live = any(self.status[s] == SUCCESS and self.actions[s] == action for s, action in node.arcs)
        chosen = live or not node.arcs
        match node.run_if:
            case "all_success":
                runs = chosen and all(self.status[d] == SUCCESS for d in node.deps)
            case "none_failed":
                some = not node.deps or any(self.status[d] == SUCCESS for d in node.deps)
                runs = chosen and some and not blame
            case "any_failed":
                runs = bool(blame) or live
            case "always":
                runs = chosen or bool(blame)
        if runs:
            return "", ""
        if blame:
            return f"{blame} failed", blame
        if node.run_if == "any_failed":
            return "nothing failed", ""
        if not chosen:
            return "not chosen", ""
        missing = next((self.body.nodes[d].key for d in node.deps if self.status[d] != SUCCESS), "")
        return f"{missing} was skipped", ""

    def _done(self, i: int, status: str) -> None:
        self.status[i] = status
        self.smooth &= status == SUCCESS
        self.left -= 1
        for s in self.body.nodes[i].successors:
            self.waiting[s] -= 1
            if not self.waiting[s]:
                self.host.later(self._ready, s)
        if not self.left:
            if self.failure is not None:
                self._end(None, self.failure)
            else:
                self.host.soon(self._finish)

    def node_succeeded(self, visit: Visit, value: JsonValue, action: str) -> None:
        i = visit.at
        try:
            self.write(visit, value)
        except Trouble as e:
            self._fail(i, e.failure)
            return
        self.outputs[i], self.actions[i] = value, action
        del self.current[i]
        self._done(i, SUCCESS)

    def node_failed(self, visit: Visit, failure: Failure, *, timeout: bool) -> None:
        i = visit.at
        if timeout and TIMEOUT in visit.node.routes:
            self.node_succeeded(visit, NULL, TIMEOUT)
        else:
            self._fail(i, failure)

    def _fail(self, i: int, failure: Failure) -> None:
        key = self.body.nodes[i].key
        self.blame[i] = key
        if self.failure is None:
            self.failure = of_node(failure, self.prefix + key)
        self._done(i, FAILED)

    def default_output(self) -> JsonValue:
        last = [
            (n.key, self.outputs[i])
            for i, n in enumerate(self.body.nodes)
            if not n.successors and self.status[i] == SUCCESS
        ]
        raws = [output.raw for _, output in last]
        if any_by_reference(raws):
            return JsonValue.of({key: output.obj for key, output in last})
        parts = [JsonValue.of(key).raw + b":" + raw for (key, _), raw in zip(last, raws, strict=True)]
        return JsonValue(b"{" + b",".join(parts) + b"}")

    def visits(self) -> list[Visit]:
        return [self.current[i] for i in sorted(self.current)]

    def blocked(self, limit: int) -> list[tuple[str, list[str]]]:
        """Nodes that wait, each with those that it waits for."""
        open_ = (PENDING, RUNNING)
        out: list[tuple[str, list[str]]] = []
        for i, node in enumerate(self.body.nodes):
            if self.status[i] == PENDING and self.waiting[i] and len(out) < limit:
                before = [*node.deps, *(a for a, _ in node.arcs)]
                out.append((node.key, [self.body.nodes[d].key for d in before if self.status[d] in open_]))
        return out

    def failed_nodes(self) -> list[str]:
        return [self.prefix + n.key for n, status in zip(self.body.nodes, self.status, strict=True) if status == FAILED]

    def _override_failed(self, i: int) -> NodeOverridden | None:
        """What an operator decided about a failed node, unless it is to continue in the ordinary way."""
        decision = self.host.overridden(self.prefix + self.body.nodes[i].key) if self.status[i] == FAILED else None
        if decision is not None and decision.how == "rerun":
            self.current.pop(i, None)
            return None
        return decision

    def _overridden(self, i: int, decision: NodeOverridden) -> None:
        node = self.body.nodes[i]
        if decision.how == "set":
            visit = self.current.setdefault(i, Visit(self, node, i))
            visit.over = True
            self.node_succeeded(visit, JsonValue(decision.value), DEFAULT)
            return
        self.host.skipped(self.prefix + node.key, SKIPPED_BY_HAND)
        self.current.pop(i, None)
        self._done(i, SKIPPED)

    def retry_failed(self) -> list[Visit]:
        """Failed nodes continue; nodes that were skipped because of them are decided anew. Successes stay."""
        self.over, self.failure = False, None
        sources = self.body.sources
        anew = {i for i, blame in enumerate(self.blame) if blame}
        decided = {i: d for i in sorted(anew) if (d := self._override_failed(i)) is not None}
        for i in anew:
            if i in decided:
                self.status[i], self.blame[i] = RUNNING, ""
                continue
            # One that waits for others of them, or never got as far as being worked on, has to become ready again.
            goes_on = self.status[i] == FAILED and i in self.current and not sources[i] & anew
            self.status[i], self.blame[i] = RUNNING if goes_on else PENDING, ""
        self.left += len(anew)
        for i, status in enumerate(self.status):
            if status == PENDING:
                self.waiting[i] = sum(self.status[s] in (PENDING, RUNNING) for s in sources[i])
                if not self.waiting[i]:
                    self.host.later(self._ready, i)
        if not self.left:  # only the output could not be made
            self.host.later(self._finish)
        for i, decision in decided.items():
            self.host.later(self._overridden, i, decision)
        return [self.current[i] for i in sorted(self.current) if self.status[i] == RUNNING and i not in decided]

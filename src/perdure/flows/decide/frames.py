"""Bodies in execution. A frame is one body with its input and what has become of its nodes; a visit is one node being worked on.

    Frame (dag: many visits, each node once; graph: one visit after the other, nodes again and again)
      Visit (a node: 1 execution, or as many as it spreads over)
        execution i: a task | a child run | a timer | a wait | a promise | a Frame (embedded body)

Frames decide what comes next and know nothing of sequence numbers or history; the decider starts and stops executions for them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from perdure.core.errors import Failure
from perdure.core.expressions import Expr
from perdure.core.expressions.template import Template
from perdure.flows.decide.values import NULL, Value, written
from perdure.flows.model import DEFAULT, ERROR, TIMEOUT, Body, Node

PENDING: Final = "pending"
RUNNING: Final = "running"
SUCCESS: Final = "success"
FAILED: Final = "failed"
SKIPPED: Final = "skipped"

Scope = Callable[[str], Any]


_NOTHING: Final[dict[int, Any]] = {}
_NO_TODO: Final = ()


def _nothing() -> dict[int, Any]:
    return _NOTHING


class Visit(msgspec.Struct, eq=False):
    """One node being worked on."""

    frame: Frame
    node: Node
    at: int = -1
    """The node's place in its body, of a dag."""
    input: Any = None
    params: Any = None
    count: int = 1
    items: list[Any] | None = None
    limit: int = 0
    """Executions at a time; 0 is all."""
    todo: Any = _NO_TODO
    """Indexes that have not begun: a deque."""
    handles: dict[int, Any] = msgspec.field(default_factory=dict[int, Any])
    """Executions in flight, by index; what they are is the decider's business."""
    results: list[bytes | None] = msgspec.field(default_factory=list["bytes | None"])
    # Most visits never need these: they are made where something is put into them.
    failures: dict[int, Failure] = msgspec.field(default_factory=_nothing)
    frames: dict[int, Frame] = msgspec.field(default_factory=_nothing)
    """Embedded bodies that failed or were stopped: a retry goes on with them."""
    children: dict[int, int] = msgspec.field(default_factory=_nothing)
    """Child runs that failed, by index: a retry may wait for them again."""
    over: bool = False
    action: str = DEFAULT

    def note_failure(self, index: int, failure: Failure) -> None:
        self.failures = self.failures or {}
        self.failures[index] = failure

    def keep_frame(self, index: int, frame: Frame) -> None:
        self.frames = self.frames or {}
        self.frames[index] = frame

    def keep_child(self, index: int, seq: int) -> None:
        self.children = self.children or {}
        self.children[index] = seq

    def take(self, n: int) -> list[int]:
        """The next indexes to begin, at most n."""
        todo = self.todo
        return [todo.popleft() for _ in range(min(n, len(todo)))]

    def put_back(self, indexes: list[int]) -> None:
        self.todo.extendleft(reversed(indexes))

    @property
    def is_spread(self) -> bool:
        return self.items is not None or self.node.spread is not None

    def label(self, index: int) -> str:
        name = self.frame.prefix + self.node.key
        return f"{name}[{index}]" if self.is_spread else name


class Host:
    """What frames ask of the decider."""

    def scope_roots(self, name: str) -> Any:
        """`run` and `now`; KeyError for anything else."""
        raise NotImplementedError

    def enter(self, visit: Visit) -> None:
        """Begin to work on a node."""
        raise NotImplementedError

    def take_up(self, visit: Visit) -> None:
        """Go on with a node that has been worked on before: executions that ended well stay, the others run again."""
        raise NotImplementedError

    def later(self, act: Callable[..., None], *args: Any) -> None:
        """Do it after what is being done; nothing recurses."""
        raise NotImplementedError

    def soon(self, act: Callable[..., None], *args: Any) -> None:
        """Do it now, or later if what is being done has cost much already. Its expressions have steps of their own."""
        raise NotImplementedError

    def skipped(self, label: str, reason: str) -> None:
        raise NotImplementedError

    def wrote(self, frame: Frame, key: str) -> None:
        """Shared state of a frame has changed. Raises for a value that is too large."""
        raise NotImplementedError

    def frame_ended(self, frame: Frame, value: Value | None, failure: Failure | None) -> None:
        raise NotImplementedError

    def evaluate(self, what: Template | Expr, scope: Scope) -> Any:
        """Raises Trouble."""
        raise NotImplementedError

    def read(self, value: Value) -> Any:
        """An output as an object. A large one is paid for. Raises Trouble."""
        raise NotImplementedError


class Trouble(Exception):
    """A node cannot be worked on as it is written; this is how it fails."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class Frame:
    def __init__(
        self, host: Host, body: Body, data: Any, params: Any, prefix: str = "", owner: tuple[Visit, int] | None = None
    ) -> None:
        self.host, self.body, self.input, self.params, self.prefix, self.owner = host, body, data, params, prefix, owner
        self.shared: dict[str, Any] = dict(body.state)
        self.over = False
        self.failure: Failure | None = None
        """Of the first node that failed."""

    # -- what the decider tells -------------------------------------------------------------------------------------

    def begin(self) -> None:
        raise NotImplementedError

    def node_succeeded(self, visit: Visit, value: Value, action: str) -> None:
        raise NotImplementedError

    def node_failed(self, visit: Visit, failure: Failure, *, timeout: bool) -> None:
        raise NotImplementedError

    def blocked(self, limit: int) -> list[tuple[str, list[str]]]:
        return []

    def visits(self) -> list[Visit]:
        """Nodes that are being worked on or have failed, in the order of the body."""
        raise NotImplementedError

    def reopen(self) -> list[Visit]:
        """A retry: what failed has not. Returns the visits whose executions have to be taken up again."""
        raise NotImplementedError

    # -- scopes -----------------------------------------------------------------------------------------------------

    def scope(self, visit: Visit | None = None, index: int = -1, output: Value | None = None) -> Scope:
        def root(name: str) -> Any:
            if visit is not None and index >= 0:
                if name == "item":
                    return visit.items[index] if visit.items is not None else index
                if name == "index":
                    return index
                if name == "count":
                    return visit.count
            if name == "output" and output is not None:
                return self.host.read(output)
            if name in ("state", "shared"):
                return self.shared
            found = self.own_root(name, visit)
            return self.host.scope_roots(name) if found is _ABSENT else found

        return root

    def own_root(self, name: str, visit: Visit | None) -> Any:
        raise NotImplementedError

    def offer(self, visit: Visit, index: int) -> dict[str, Any]:
        """Whatever is at hand for an execution of a node that does not say what it takes."""
        raise NotImplementedError

    # -- results ----------------------------------------------------------------------------------------------------

    def write(self, visit: Visit, output: Value) -> None:
        if visit.node.writes:
            scope = self.scope(visit, -1, output)
            for w in visit.node.writes:
                self.put(w.to, self.host.evaluate(w.value, scope))

    def put(self, path: tuple[str, ...], value: Any) -> None:
        self.shared = written(self.shared, path, value)
        self.host.wrote(self, path[0])

    def _end(self, value: Value | None, failure: Failure | None) -> None:
        self.over = True
        self.host.later(self.host.frame_ended, self, value, failure)

    def _finish(self) -> None:
        """Every node is done and none failed: what comes out."""
        try:
            if self.body.output is not None:
                self._end(Value.of(self.host.evaluate(self.body.output, self.scope())), None)
            else:
                self._end(self.default_output(), None)
        except Trouble as e:
            self._end(None, e.failure)

    def default_output(self) -> Value:
        raise NotImplementedError


_ABSENT: Final[Any] = object()


class DagFrame(Frame):
    """Nodes become ready when everything they depend on is done."""

    def __init__(
        self, host: Host, body: Body, data: Any, params: Any, prefix: str = "", owner: tuple[Visit, int] | None = None
    ) -> None:
        super().__init__(host, body, data, params, prefix, owner)
        n = len(body.nodes)
        self.status = [PENDING] * n
        self.outputs: list[Value] = [NULL] * n
        self.actions: list[str] = [""] * n
        self.blame: list[str] = [""] * n
        """The failed node that a node failed or was skipped for: not empty is tainted."""
        self.waiting = list(body.waits)
        self.current: dict[int, Visit] = {}
        self.left = n
        self.smooth = True
        """Nothing has failed or been skipped so far: whatever waits for success runs."""

    def begin(self) -> None:
        for i, waiting in enumerate(self.waiting):
            if not waiting:
                self.host.later(self._ready, i)

    def scope(self, visit: Visit | None = None, index: int = -1, output: Value | None = None) -> Scope:
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
        return self.host.scope_roots(name) if found is _ABSENT else found

    def own_root(self, name: str, visit: Visit | None) -> Any:
        if name == "input":
            return self.input
        if name == "tasks":
            read = self.host.read
            return {n.key: read(self.outputs[i]) for i, n in enumerate(self.body.nodes) if self.status[i] == SUCCESS}
        i = self.body.index.get(name)
        return _ABSENT if i is None else self.host.read(self.outputs[i])

    def offer(self, visit: Visit, index: int) -> dict[str, Any]:
        out: dict[str, Any] = dict(self.input) if isinstance(self.input, dict) else {}
        spread = visit.node.spread
        for dep in visit.node.deps:
            key = self.body.nodes[dep].key
            if spread is None or spread.source != key:
                value = self.host.read(self.outputs[dep])
                if isinstance(value, dict):
                    out.update(value)
                out[key] = value
        return {**out, **_place(visit, index)}

    # -- readiness --------------------------------------------------------------------------------------------------

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

    def _refusal(self, node: Node) -> tuple[str, str]:
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

    def node_succeeded(self, visit: Visit, value: Value, action: str) -> None:
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

    def default_output(self) -> Value:
        nodes = enumerate(self.body.nodes)
        parts = [
            Value.of(n.key).raw + b":" + self.outputs[i].raw
            for i, n in nodes
            if not n.successors and self.status[i] == SUCCESS
        ]
        return Value(b"{" + b",".join(parts) + b"}")

    # -- retry ------------------------------------------------------------------------------------------------------

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

    def reopen(self) -> list[Visit]:
        """Failed nodes go on; nodes that were skipped because of them are decided anew. Successes stay."""
        self.over, self.failure = False, None
        sources = self.body.sources
        anew = {i for i, blame in enumerate(self.blame) if blame}
        for i in anew:
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
        return [self.current[i] for i in sorted(self.current) if self.status[i] == RUNNING]


class GraphFrame(Frame):
    """One cursor, moved along edges by actions."""

    def __init__(
        self, host: Host, body: Body, data: Any, params: Any, prefix: str = "", owner: tuple[Visit, int] | None = None
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
        return _ABSENT

    def offer(self, visit: Visit, index: int) -> dict[str, Any]:
        out: dict[str, Any] = dict(visit.params) if isinstance(visit.params, dict) else {}
        if isinstance(visit.input, dict):
            out.update(visit.input)
        return {**out, "input": visit.input, **_place(visit, index)}

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

    def node_succeeded(self, visit: Visit, value: Value, action: str) -> None:
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

    def _action(self, visit: Visit, value: Value, verb: str) -> str:
        node = visit.node
        if node.action is not None:
            return node.action
        if node.action_of is not None:
            found = self.host.evaluate(node.action_of, self.scope(visit, -1, value))
            if isinstance(found, bool):
                return verb if verb != DEFAULT else ("true" if found else "false")
            if found is not None:
                return found if isinstance(found, str) else Value.of(found).raw.decode()
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

    def default_output(self) -> Value:
        return Value.of(self.shared)

    def visits(self) -> list[Visit]:
        return [self.current] if self.current is not None else []

    def reopen(self) -> list[Visit]:
        self.over, self.failure = False, None
        visit = self.current
        if visit is None:  # the output could not be made
            self._finish()
            return []
        if not visit.results and not visit.handles and not visit.failures:  # it never got as far as being worked on
            self.steps = 1 if self.steps > self.body.max_steps else self.steps
            self.host.later(self._enter, visit)
            return []
        return [visit]


def make(
    host: Host, body: Body, data: Any, params: Any, prefix: str = "", owner: tuple[Visit, int] | None = None
) -> Frame:
    kind = DagFrame if body.kind == "dag" else GraphFrame
    return kind(host, body, data, params, prefix, owner)


def of_node(failure: Failure, label: str) -> Failure:
    """The same failure, with the node it came from."""
    if failure.message.startswith(f"{label}: "):
        return failure
    return Failure(failure.code, f"{label}: {failure.message}", failure.type, failure.traceback)


def _place(visit: Visit, index: int) -> dict[str, Any]:
    if not visit.is_spread or index < 0:
        return {}
    where = {"parallel_index": index, "parallel_count": visit.count}
    return {"item": visit.items[index], **where} if visit.items is not None else where

"""Bodies in execution. A frame is one body with its input and what has become of its nodes; a visit is one node being worked on.

    Frame (dag: many visits, each node once; graph: one visit after the other, nodes again and again)
      Visit (a node: 1 execution, or as many as it spreads over)
        execution i: a task | a child run | a timer | a wait | a promise | a Frame (embedded body)

Frames decide what comes next and know nothing of sequence numbers or history; the decider starts and stops executions for them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Final, Protocol

import msgspec

from perdure.core.errors import Failure
from perdure.core.events import NodeOverridden
from perdure.core.expressions import Expr
from perdure.core.expressions.template import Template
from perdure.flows.decide.values import JsonValue, written
from perdure.flows.model import DEFAULT, FlowBody, FlowNode

PENDING: Final = "pending"
RUNNING: Final = "running"
SUCCESS: Final = "success"
FAILED: Final = "failed"
SKIPPED: Final = "skipped"
SKIPPED_BY_HAND: Final = "skipped by an operator"
"""Why a node was skipped that had failed."""

Scope = Callable[[str], Any]


_NOTHING: Final[dict[int, Any]] = {}
_NO_TODO: Final = ()
ABSENT: Final[Any] = object()
"""What `own_root` returns for a name that it does not know."""


def _nothing() -> dict[int, Any]:
    return _NOTHING


class Visit(msgspec.Struct, eq=False):
    """One node being worked on."""

    frame: BodyFrame
    node: FlowNode
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
    frames: dict[int, BodyFrame] = msgspec.field(default_factory=_nothing)
    """Embedded bodies that failed or were stopped: a retry goes on with them."""
    children: dict[int, int] = msgspec.field(default_factory=_nothing)
    """Child runs that failed, by index: a retry may wait for them again."""
    over: bool = False
    action: str = DEFAULT

    def note_failure(self, index: int, failure: Failure) -> None:
        self.failures = self.failures or {}
        self.failures[index] = failure

    def keep_frame(self, index: int, frame: BodyFrame) -> None:
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

    def forget_executions(self) -> None:
        """The node begins anew, also with what had succeeded in it."""
        self.results.clear()
        self.handles.clear()
        self.frames = self.children = self.failures = _NOTHING
        self.todo, self.over = _NO_TODO, False

    @property
    def is_spread(self) -> bool:
        return self.items is not None or self.node.spread is not None

    def scope_index(self, index: int) -> int:
        """The index that expressions of an execution may read; -1: they have none."""
        return index if self.is_spread else -1

    def label(self, index: int) -> str:
        name = self.frame.prefix + self.node.key
        return f"{name}[{index}]" if self.is_spread else name


class FrameHost(Protocol):
    """What frames ask of the decider."""

    def scope_roots(self, name: str) -> Any:
        """`run` and `now`; KeyError for anything else."""

    def enter(self, visit: Visit) -> None:
        """Begin to work on a node."""

    def take_up(self, visit: Visit) -> None:
        """Continue a node that has been worked on before: executions that succeeded stay, the others run again."""

    def later(self, act: Callable[..., None], *args: Any) -> None:
        """Do it after what is being done; nothing recurses."""

    def soon(self, act: Callable[..., None], *args: Any) -> None:
        """Do it now, or later if this step has already cost much. Its expressions have steps of their own."""

    def skipped(self, label: str, reason: str) -> None: ...

    def wrote(self, frame: BodyFrame, key: str) -> None:
        """Shared state of a frame has changed. Raises Trouble for a value that is too large."""

    def frame_ended(self, frame: BodyFrame, value: JsonValue | None, failure: Failure | None) -> None: ...

    def overridden(self, label: str) -> NodeOverridden | None:
        """What an operator decided about a failed node, once."""

    def evaluate(self, what: Template | Expr, scope: Scope) -> Any:
        """Raises Trouble."""

    def read(self, value: JsonValue) -> Any:
        """An output as an object. A large one costs steps. Raises Trouble."""


class Trouble(Exception):
    """A node cannot be worked on as it is written; this is how it fails."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class BodyFrame(ABC):
    """One body with its input and the state of its nodes."""

    def __init__(
        self,
        host: FrameHost,
        body: FlowBody,
        data: Any,
        params: Any,
        prefix: str = "",
        owner: tuple[Visit, int] | None = None,
    ) -> None:
        self.host, self.body, self.input, self.params, self.prefix, self.owner = host, body, data, params, prefix, owner
        self.shared: dict[str, Any] = dict(body.state)
        self.over = False
        self.failure: Failure | None = None
        """Of the first node that failed."""

    @abstractmethod
    def begin(self) -> None: ...

    @abstractmethod
    def node_succeeded(self, visit: Visit, value: JsonValue, action: str) -> None: ...

    @abstractmethod
    def node_failed(self, visit: Visit, failure: Failure, *, timeout: bool) -> None: ...

    def blocked(self, limit: int) -> list[tuple[str, list[str]]]:
        return []

    @abstractmethod
    def visits(self) -> list[Visit]:
        """Nodes that are being worked on or have failed, in the order of the body."""

    @abstractmethod
    def failed_nodes(self) -> list[str]:
        """Labels of the nodes that failed."""

    @abstractmethod
    def retry_failed(self) -> list[Visit]:
        """Failed nodes may run again. Returns the visits whose executions have to continue."""

    def scope(self, visit: Visit | None = None, index: int = -1, output: JsonValue | None = None) -> Scope:
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
            return self.host.scope_roots(name) if found is ABSENT else found

        return root

    @abstractmethod
    def own_root(self, name: str, visit: Visit | None) -> Any: ...

    @abstractmethod
    def offer(self, visit: Visit, index: int) -> dict[str, Any]:
        """All values in scope, for an execution of a node without `with:`."""

    def write(self, visit: Visit, output: JsonValue) -> None:
        if visit.node.writes:
            scope = self.scope(visit, -1, output)
            for w in visit.node.writes:
                self.put(w.to, self.host.evaluate(w.value, scope))

    def put(self, path: tuple[str, ...], value: Any) -> None:
        self.shared = written(self.shared, path, value)
        self.host.wrote(self, path[0])

    def _end(self, value: JsonValue | None, failure: Failure | None) -> None:
        self.over = True
        self.host.later(self.host.frame_ended, self, value, failure)

    def _finish(self) -> None:
        """Every node is done and none failed: what comes out."""
        try:
            if self.body.output is not None:
                self._end(JsonValue.of(self.host.evaluate(self.body.output, self.scope())), None)
            else:
                self._end(self.default_output(), None)
        except Trouble as e:
            self._end(None, e.failure)

    @abstractmethod
    def default_output(self) -> JsonValue: ...


def of_node(failure: Failure, label: str) -> Failure:
    """The same failure, with the node it came from."""
    if failure.message.startswith(f"{label}: "):
        return failure
    return Failure(failure.code, f"{label}: {failure.message}", failure.type, failure.traceback)


def place_in_spread(visit: Visit, index: int) -> dict[str, Any]:
    if not visit.is_spread or index < 0:
        return {}
    where = {"parallel_index": index, "parallel_count": visit.count}
    return {"item": visit.items[index], **where} if visit.items is not None else where

"""The one graph form that `tasks:` and `graph:` bodies compile to. Immutable; holds everything a decider needs and nothing it does not.

A node is *what* to do (its verb), *how often* (spread), *when* (deps, arcs and run_if in a dag; edges in a graph) and *what becomes
of the result* (writes, routes). Names are resolved to indexes, text to expressions, durations to microseconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal

import msgspec

from perdure.core.expressions import Expr
from perdure.core.expressions.template import Template
from perdure.core.flow_control.options import FlowControlSpec
from perdure.core.jobs import SERVICE, executor_of
from perdure.core.retry import TaskOptions
from perdure.core.schedules import ScheduleSpec
from perdure.core.secrets import names_of
from perdure.core.subscriptions import Subscription

DEFAULT: Final = "default"
"""The action of a node that names none, and the edge that catches actions without one of their own."""
ERROR: Final = "error"
TIMEOUT: Final = "timeout"
APPROVED: Final = "approved"
REJECTED: Final = "rejected"

RunIf = Literal["all_success", "none_failed", "any_failed", "always"]
OnError = Literal["fail_fast", "collect", "ignore"]


class _Frozen(msgspec.Struct, frozen=True, kw_only=True):
    pass


class SourcePlace(msgspec.Struct, frozen=True):
    """Where in its document something stands, counted from 1."""

    line: int = 0
    column: int = 0


class HttpServiceOptions(_Frozen, frozen=True):
    """How a service is called over HTTP, where no Python task of its name stands for it (`Executions.schedule`)."""

    options: TaskOptions
    said: frozenset[str] = frozenset()
    fields: Mapping[str, Any] = {}
    """Of the call, beside service, input and params."""


class TaskCall(_Frozen, frozen=True, tag="call"):
    """A task for a worker."""

    task: str
    queue: str
    options: TaskOptions
    said: frozenset[str] = frozenset()
    """What the document gives of queue and options; the task's declaration counts for the rest."""
    args: Template | None = None
    """The call's arguments, one object. None: the node has no `with:`, and all values in scope are offered (core/calls.py)."""
    service: HttpServiceOptions | None = None
    """`task` is the name of a service."""


class Services(_Frozen, frozen=True, tag="services"):
    """The same call to several services: a spread over names instead of items."""

    names: Template
    """Evaluates to a list of names."""
    queue: str
    options: TaskOptions
    said: frozenset[str] = frozenset()
    args: Template | None = None
    service: HttpServiceOptions | None = None


class ChildCall(_Frozen, frozen=True, tag="child"):
    """Another workflow by name, a flow or code, as a run of its own."""

    workflow: str
    args: Template | None = None


class Embedded(_Frozen, frozen=True, tag="embedded"):
    """A body within the body. `args` is its input."""

    body: FlowBody
    args: Template | None = None


class Choice(_Frozen, frozen=True, tag="choice"):
    """The first case that holds names the action; none: `otherwise`, where there is one."""

    cases: tuple[tuple[Expr, str], ...]
    otherwise: str | None = None


class Sleep(_Frozen, frozen=True, tag="sleep"):
    """`delay` evaluates to a duration ("90s", or a number of seconds) or, with `ms`, to milliseconds."""

    delay: Template
    ms: bool = False


class MessageVerb(_Frozen, frozen=True, tag="wait"):
    """For a signal. `lookup` (`kind: wait_event`): a value that is already there under that name in shared, params or input will do."""

    signal: Template
    lookup: bool = False
    event: bool = False
    """For a named event instead; `signal` evaluates to its name."""
    match: Expr | None = None
    """Which of those: over `event` and the values in scope when the wait begins. None: any."""
    since: Template | None = None
    """How far the wait looks back: a duration, a time or "now". None: to the start of the run."""


class ApprovalVerb(_Frozen, frozen=True, tag="approval"):
    """For a promise of this name. `signals` (`kind: approval`): a signal of the same name answers it too."""

    name: Template
    shown: Template | None = None
    """What people are shown and who is asked: an object of title, description, details, assignees and escalate_to, as far as they are said."""
    form: Mapping[str, Any] | None = None
    """JSON Schema of the value of an answer."""
    quorum: int = 1
    reject_quorum: int = 1
    escalate_us: int = 0
    """After how long those in escalate_to may answer too; 0 is never."""
    signals: bool = False


class ValueVerb(_Frozen, frozen=True, tag="value"):
    """Computed on the spot."""

    value: Template


Verb = TaskCall | Services | ChildCall | Embedded | Choice | Sleep | MessageVerb | ApprovalVerb | ValueVerb


class NodeSpread(_Frozen, frozen=True):
    """One node, many executions: one of `items` and `count`, or neither for `services`, which spread over their names."""

    items: Template | None = None
    count: Template | None = None
    concurrency: Template | None = None
    """How many at a time; None is all of them."""
    source: str | None = None
    """The task whose output is spread over; it is not offered to each execution again."""


class Write(_Frozen, frozen=True):
    """Into shared state at a dotted path."""

    to: tuple[str, ...]
    value: Template
    """Evaluated with `output`, the node's result, in scope."""


class FlowNode(_Frozen, frozen=True):
    key: str
    verb: Verb
    place: SourcePlace = SourcePlace()
    spread: NodeSpread | None = None
    on_error: OnError = "fail_fast"
    timeout_us: int = 0
    """Of one execution of a verb that is no task (tasks have theirs in their options); 0 is none."""
    writes: tuple[Write, ...] = ()
    compensate: TaskCall | None = None
    """Takes back what an execution did, if the run fails or is cancelled later. Its arguments are evaluated with `output`, the
    execution's result, and `error` in scope."""
    # in a dag
    deps: tuple[int, ...] = ()
    """In the order written."""
    arcs: tuple[tuple[int, str], ...] = ()
    """(node, action) pairs of which at least one has to come about."""
    run_if: RunIf = "all_success"
    when: Expr | None = None
    successors: tuple[int, ...] = ()
    """Every node that has this one in its deps or arcs, once, ascending."""
    routes: frozenset[str] = frozenset()
    """Actions that lead somewhere: a dag's `then`, a graph's edges."""
    # in a graph
    edges: Mapping[str, int] = {}
    prepare: Template | None = None
    """The node's input; None: the result of the node before."""
    params: Template | None = None
    """Merged over the body's params; None: just those."""
    action: str | None = None
    """Fixed."""
    action_of: Template | None = None
    """Evaluated with `output` in scope; null is no action."""
    plain: bool = False
    """A task that runs once, as soon as everything it depends on has succeeded: most nodes of most dags."""

    def __post_init__(self) -> None:
        once = isinstance(self.verb, TaskCall) and self.spread is None
        waits = self.run_if == "all_success" and not self.arcs and self.when is None
        msgspec.structs.force_setattr(self, "plain", once and waits)


class FlowBody(_Frozen, frozen=True):
    kind: Literal["dag", "graph"]
    nodes: tuple[FlowNode, ...]
    start: int = 0
    output: Template | None = None
    """None: in a dag an object of the outputs of its last tasks, in a graph the shared state."""
    state: Mapping[str, Any] = {}
    """What shared state begins with."""
    max_steps: int = 0
    """Node visits in a graph; never 0 there."""
    index: Mapping[str, int] = {}
    """Key of a node -> its place."""
    sources: tuple[frozenset[int], ...] = ()
    """What each node of a dag waits for: its deps and the nodes of its arcs."""
    waits: tuple[int, ...] = ()
    """How many those are."""

    def __post_init__(self) -> None:
        sources = tuple(frozenset((*n.deps, *(a for a, _ in n.arcs))) for n in self.nodes)
        put = msgspec.structs.force_setattr
        put(self, "index", {n.key: i for i, n in enumerate(self.nodes)})
        put(self, "sources", sources)
        put(self, "waits", tuple(map(len, sources)))


class Trigger(_Frozen, frozen=True):
    """A schedule that comes and goes with the document."""

    name: str
    """Of the schedule: the flow's, and its own behind a slash."""
    spec: ScheduleSpec
    input: bytes
    """JSON with expressions; see flows/scheduled.py."""


class Flow(_Frozen, frozen=True):
    """A compiled document."""

    name: str
    body: FlowBody
    description: str = ""
    input_schema: Mapping[str, Any] | None = None
    """JSON Schema of the input, an object; None takes anything."""
    document: Mapping[str, Any] = {}
    """As written."""
    triggers: tuple[Trigger, ...] = ()
    subscriptions: tuple[Subscription, ...] = ()
    """Named events that start runs of it."""
    control: FlowControlSpec | None = None
    """Flow control of its runs."""
    timeout_us: int = 0
    """How long a run may take, unless its starter says; 0: as long as it takes."""
    hooks: Mapping[str, str] = {}
    """Status in which a run ends -> workflow of which a run starts then."""
    calls_services: bool = False
    """Something in it may be a Python task or a call over HTTP."""

    def __post_init__(self) -> None:
        calls = (call for node in self.all_nodes() for call in (node.verb, node.compensate))
        found = any(isinstance(call, TaskCall | Services) and call.service is not None for call in calls)
        msgspec.structs.force_setattr(self, "calls_services", found)

    @property
    def kind(self) -> str:
        return self.body.kind

    @property
    def compensates(self) -> bool:
        """Whether there is anything in it that can be taken back."""
        return any(node.compensate is not None for node in self.all_nodes())

    def command_node(self) -> str | None:
        """The first node that runs a command or another job of an executor (`run:`, `job:`, or the tasks behind them by name); None if there
        is none. A call of a service is no command: like `http:` it runs no code that the flow brings along."""
        for node in self.all_nodes():
            for call in (node.verb, node.compensate):
                if isinstance(call, TaskCall) and executor_of(call.task) not in ("", SERVICE):
                    return node.key
        return None

    def secrets(self) -> list[str]:
        """Names of the secrets that its tasks are given, in the order of the document."""
        calls = (call for node in self.all_nodes() for call in (node.verb, node.compensate))
        return names_of(place for call in calls if isinstance(call, TaskCall) for place in call.options.secrets)

    def all_nodes(self) -> Iterator[FlowNode]:
        """Those of embedded bodies too."""
        bodies = [self.body]
        while bodies:
            for node in bodies.pop().nodes:
                yield node
                if isinstance(node.verb, Embedded):
                    bodies.append(node.verb.body)

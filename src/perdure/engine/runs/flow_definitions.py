"""Cache of declarative workflows: compiled definitions, and the current version of each name.

A definition never changes (its version is the hash of its document), so it is compiled once and kept. The current version of a name
does change: it is cached for one second, so a deployment on another engine is seen a second later at most.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final

import msgspec

from perdure.core.declared import Declared, decode, split
from perdure.core.errors import Failure, InvalidInput, NotRegistered, PerdureError
from perdure.core.limits import VERSION_TRUST_US as TRUST_US
from perdure.core.parameters import Parameters, call_problem
from perdure.core.parameters import decode as decode_parameters
from perdure.core.published_messages import MessageChecks
from perdure.core.published_messages import decode as decode_messages
from perdure.core.versions import VersionChoice
from perdure.core.work import is_flow
from perdure.engine.ports import Named, PublishedVersion, ServiceRoutes, Store
from perdure.engine.shared_reads import SharedReads
from perdure.flows.compile import compile_value
from perdure.flows.decide.decider import Decider
from perdure.flows.decide.run_input import input_problem
from perdure.flows.messages import messages_of
from perdure.flows.model import Flow

PLANS_MAX: Final = 1_000
"""Compiled definitions kept; the longest unused go first."""
COMPILED_HERE_BYTES: Final = 8 * 1024
"""A larger document is compiled in a thread: it would hold up the event loop."""
HEARD_US: Final = 10_000_000
"""How long a worker's declaration takes precedence over the database, which has it by then."""
PUBLISHED_US: Final = 10_000_000
"""How long is cached what was published for a version."""
NAMES_MAX: Final = 10_000
"""Names whose current version is cached."""
REFRESH_US: Final = TRUST_US // 2
"""Age from which a current version that is asked for is read again in the background."""

NO_ROUTES: Final[ServiceRoutes] = (frozenset(), frozenset())

Definition = tuple[int, str, str]
"""(namespace, workflow, version)"""


class _Published(msgspec.Struct):
    """What was published for a version, decoded."""

    said: PublishedVersion
    parameters: Parameters | None
    messages: MessageChecks | None
    pinned: bool
    read_us: int


class Flows:
    def __init__(self, store: Store, now_us: Callable[[], int]) -> None:
        self._store, self._now_us = store, now_us
        self._declared: dict[int, dict[str, Declared]] = {}
        """Options that tasks of a namespace declare, as the database has them."""
        self._declared_at: dict[int, int] = {}
        self._routes: dict[int, ServiceRoutes] = {}
        """Of namespaces whose flows call services, as the database has them."""
        self._routes_at: dict[int, int] = {}
        self._served: frozenset[tuple[int, str]] = frozenset()
        self._heard: dict[tuple[int, str], tuple[Declared | None, int]] = {}
        """Recent declarations of workers of this server, which the database may not have yet."""
        self._shared_reads = SharedReads()
        self._moves = 0
        self._plans: OrderedDict[Definition, Flow | Failure] = OrderedDict()
        self._current: dict[Named, tuple[VersionChoice | None, int]] = {}
        self._published: dict[Definition, _Published] = {}
        self._flow_messages: dict[Definition, MessageChecks] = {}
        self.fixed: dict[Named, str] = {}
        """Versions that new runs of a name get instead of the current one, for tests."""

    def has(self, ns: int, workflow: str, version: str) -> bool:
        return isinstance(self._plans.get((ns, workflow, version)), Flow)

    def decider(self, ns: int, workflow: str, version: str, run_id: bytes) -> Decider | Failure:
        """A fresh decider, or why there is none. The definition must have been ensured."""
        found = self._plans.get((ns, workflow, version))
        if isinstance(found, Flow):
            self._plans.move_to_end((ns, workflow, version))
            return Decider(found, run_id, partial(self.declared, ns), partial(self.is_http, ns))
        return found or Failure("flow_unavailable", f"the definition {version} of {workflow} has not been read")

    async def ensure(self, wanted: Iterable[Definition]) -> None:
        """Read and compile missing definitions, and refresh the declared options of tasks."""
        wanted = list(wanted)
        for ns in {ns for ns, _, version in wanted if is_flow(version)}:
            await self._read_declared(ns)
        for definition in dict.fromkeys(wanted):
            if isinstance(self._plans.get(definition), Flow):
                self._plans.move_to_end(definition)
            elif is_flow(definition[2]):
                document = await self._store.document(*definition)
                if document is not None and len(document) > COMPILED_HERE_BYTES:
                    self._plans[definition] = await asyncio.to_thread(_compiled, definition, document)
                else:
                    self._plans[definition] = _compiled(definition, document)
                if len(self._plans) > PLANS_MAX:
                    self._plans.popitem(last=False)
        plans = [(ns, self._plans.get((ns, name, version))) for ns, name, version in wanted]
        for ns in {ns for ns, plan in plans if isinstance(plan, Flow) and plan.calls_services}:
            await self._read_routes(ns)

    async def find_input(self, definition: Definition) -> None:
        """Read what `check_input` needs, and refresh the declared options of tasks."""
        if is_flow(definition[2]):
            await self.ensure([definition])
        else:
            await self._find_published(definition)

    async def _find_published(self, definition: Definition) -> None:
        async def read() -> None:
            self.learn(definition, await self._store.published(*definition))

        await self._shared_reads.ask(definition, read)

    def knows_input(self, definition: Definition) -> bool:
        """Whether `check_input` can be asked without looking again. What was published for a version is looked for now and then: one that
        people name themselves may change."""
        if is_flow(definition[2]):
            return isinstance(self._plans.get(definition), Flow) and self._knows_declared(definition[0])
        return self._knows_published(definition)

    def _knows_published(self, definition: Definition) -> bool:
        found = self._published.get(definition)
        return found is not None and self._now_us() - found.read_us < PUBLISHED_US

    def check_input(self, definition: Definition, raw: bytes) -> None:
        """InvalidInput when a run could not begin with this input: a flow's is held against its schema, the arguments of code against its
        parameters. A definition that cannot be read, and code that no worker has served, are not judged here."""
        if is_flow(definition[2]):
            flow = self._plans.get(definition)
            if isinstance(flow, Flow) and (wrong := input_problem(flow, raw)):
                raise InvalidInput(wrong)
            return
        published = self._published.get(definition)
        taken = published.parameters if published is not None else None
        if taken is not None and (wrong := call_problem(definition[1], taken, raw)):
            raise InvalidInput(wrong)

    def is_pinned(self, definition: Definition) -> bool:
        """Whether runs of this version stay with it, as far as `find_input` has read."""
        published = self._published.get(definition)
        return published is not None and published.pinned

    def learn(self, definition: Definition, published: PublishedVersion) -> None:
        """What was published for a workflow of this process, or of a worker that is connected here."""
        if len(self._published) >= NAMES_MAX:
            self._published.clear()
        before = self._published.get(definition)
        if before is not None and before.said == published:
            before.read_us = self._now_us()
            return
        taken = decode_parameters(published.parameters) if published.parameters else None
        messages = decode_messages(published.messages) if published.messages else None
        checks = MessageChecks(messages) if messages is not None else None
        self._published[definition] = _Published(published, taken, checks, published.pinned, self._now_us())

    def knows_messages(self, definition: Definition) -> bool:
        """Whether `messages` can be asked without looking again."""
        return definition in self._flow_messages or self._knows_published(definition)

    async def find_messages(self, definition: Definition) -> None:
        """Read what `messages` needs."""
        if not is_flow(definition[2]):
            await self._find_published(definition)
            return
        await self.ensure([definition])
        flow = self._plans.get(definition)
        if isinstance(flow, Flow):
            if len(self._flow_messages) >= PLANS_MAX:
                self._flow_messages.clear()
            self._flow_messages[definition] = MessageChecks(messages_of(flow))

    def messages(self, definition: Definition) -> MessageChecks | None:
        """What messages to its runs are held against; None: nothing was published."""
        if is_flow(definition[2]):
            return self._flow_messages.get(definition)
        published = self._published.get(definition)
        return published.messages if published is not None else None

    def declared(self, ns: int, task: str) -> Declared | None:
        """The options a task declares, by its workers' latest declaration; None: unknown."""
        heard = self._heard.get((ns, task))
        if heard is not None and self._now_us() - heard[1] < HEARD_US:
            return heard[0]
        return self._declared.get(ns, {}).get(task)

    def is_http(self, ns: int, service: str) -> bool:
        """Whether a service of this name is called over HTTP: where an instance has registered it, or no Python task has its name."""
        registered, tasks = self._routes.get(ns, NO_ROUTES)
        if service in registered:
            return True
        return service not in tasks and (ns, service) not in self._served and (ns, service) not in self._heard

    def serve(self, tasks: Iterable[tuple[int, str]]) -> None:
        """Tasks of workers of this engine, by namespace and name."""
        self._served = frozenset(tasks)

    def hear(self, ns: int, signatures: Mapping[str, bytes]) -> None:
        """A worker has connected and declared its tasks."""
        now = self._now_us()
        if len(self._heard) + len(signatures) > NAMES_MAX:
            self._heard.clear()
        for task, signature in signatures.items():
            _, said = split(signature)
            self._heard[ns, task] = (decode(said) if said is not None else None, now)

    async def declare(self, ns: int, options: Mapping[str, bytes | None]) -> None:
        """What the worker of this process declares; None takes an earlier declaration back."""
        await self._store.save_task_options(ns, options)
        await self._load_declared(ns)

    def _knows_declared(self, ns: int) -> bool:
        read_us = self._declared_at.get(ns)
        return read_us is not None and self._now_us() - read_us < TRUST_US

    async def _read_declared(self, ns: int) -> None:
        if not self._knows_declared(ns):
            await self._shared_reads.ask(ns, lambda: self._load_declared(ns))

    async def _load_declared(self, ns: int) -> None:
        now = self._now_us()
        found = await self._store.task_options(ns)
        if now >= self._declared_at.get(ns, 0):  # else a younger answer came first
            self._declared_at[ns] = now
            self._declared[ns] = {task: made for task, data in found.items() if (made := decode(data)) is not None}

    async def _read_routes(self, ns: int) -> None:
        read_us = self._routes_at.get(ns)
        if read_us is None or self._now_us() - read_us >= TRUST_US:
            await self._shared_reads.ask(("routes", ns), lambda: self._load_routes(ns))

    async def _load_routes(self, ns: int) -> None:
        now = self._now_us()
        found = await self._store.service_routes(ns)
        if now >= self._routes_at.get(ns, 0):
            self._routes_at[ns], self._routes[ns] = now, found

    def knows(self, ns: int, name: str) -> bool:
        """Whether `choice` is cached. One that is asked for is read again before it expires, so that callers seldom wait for it."""
        if (ns, name) in self.fixed:
            return True
        found = self._current.get((ns, name))
        if found is None:
            return False
        age_us = self._now_us() - found[1]
        if age_us >= REFRESH_US:
            self._shared_reads.begin((ns, name, self._moves), lambda: self.find(ns, [name]))
        return age_us < TRUST_US

    def choice(self, ns: int, name: str) -> VersionChoice | None:
        """Which versions new runs of this name get; None when there is no such workflow."""
        if (fixed := self.fixed.get((ns, name))) is not None:
            return VersionChoice(fixed)
        found = self._current.get((ns, name))
        return found[0] if found is not None else None

    async def find(self, ns: int, names: Iterable[str]) -> None:
        """Read the current versions of names, and the definitions of those that are flows."""
        wanted, moves = list(dict.fromkeys(names)), self._moves
        found = await self._store.current_versions(ns, wanted)
        if len(self._current) + len(wanted) > NAMES_MAX:
            self._current.clear()
        now = self._now_us()
        for name in wanted:
            if moves == self._moves:
                self._current[ns, name] = (found.get(name), now)
            else:  # it may be what was read before the change: good for those who wait for it, and read again by the next
                self._current.setdefault((ns, name), (found.get(name), 0))
        await self.ensure((ns, name, v) for name, choice in found.items() for v in (choice.current, choice.ramp) if v)

    async def find_current(self, ns: int, name: str) -> None:
        """As `find`, for one name; many callers at a time share a read."""
        if not self.knows(ns, name):
            await self._shared_reads.ask((ns, name, self._moves), lambda: self.find(ns, [name]))

    async def pin(self, ns: int, name: str) -> str:
        """The current version of a workflow. NotRegistered when there is none."""
        if self.choice(ns, name) is None:  # it may have been deployed this very moment
            await self.find(ns, [name])
        else:
            await self.find_current(ns, name)
        choice = self.choice(ns, name)
        if choice is None:
            raise NotRegistered(not_registered(name))
        return choice.current

    def forget(self, ns: int, name: str) -> None:
        """The current version of a name was changed here: read it again, and ignore reads that began before."""
        self._moves += 1
        self._current.pop((ns, name), None)


def not_registered(name: str) -> str:
    return f"no workflow {name!r} in this namespace; deploy a flow of that name, or connect a worker that defines it"


def _compiled(definition: Definition, document: bytes | None) -> Flow | Failure:
    _, workflow, version = definition
    if document is None:
        return Failure("flow_unavailable", f"{workflow} has no definition {version} in the database")
    try:
        return compile_value(msgspec.json.decode(document), name=workflow, stored=True).flow
    except (PerdureError, msgspec.DecodeError) as e:
        return Failure("flow_unavailable", f"the definition {version} of {workflow} cannot be read by this server: {e}")

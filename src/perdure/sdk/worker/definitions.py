"""The tasks and workflows that a worker serves, and what it advertises about them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from hashlib import sha256
from typing import Any

import msgspec

from perdure.core import parameters
from perdure.core.declared import KEY, encode
from perdure.core.errors import NotRegistered, PerdureError
from perdure.core.jobs import job_task
from perdure.core.work import ServedCode
from perdure.executors.port import Executor
from perdure.sdk import registry
from perdure.sdk.code_hash import short
from perdure.sdk.definitions import DEFAULT_QUEUE, Task, Workflow
from perdure.sdk.message_registry import messages
from perdure.sdk.worker.builtin_tasks import Verbs
from perdure.sdk.worker.dynamic_messages import makes_messages
from perdure.sdk.worker.transactions import in_transaction

log = logging.getLogger("perdure.worker")


class JobTask:
    """A built-in task that an executor runs."""

    is_async = True
    process = False

    def __init__(self, name: str, executor: str) -> None:
        self.name, self.executor = name, executor


class WorkerDefinitions:
    """What is defined in this process, the built-in tasks unless `verbs` is None, and those of the executors."""

    def __init__(
        self,
        queues: list[str] | None,
        verbs: Verbs | None,
        executors: Sequence[Executor] = (),
        *,
        build_id: str = "",
        is_dev: bool = False,
    ) -> None:
        self._queues, self._build_id, self._is_dev = queues, build_id, is_dev
        self._executors = frozenset(e.name for e in executors)
        self._tasks = registry.tasks.copy()
        self._workflows = registry.workflows.copy()
        self._built_in: dict[str, Any] = dict(verbs.tasks) if verbs is not None else {}
        for e in executors:
            self._built_in |= {name: JobTask(name, e.name) for name in (job_task(e.name), *e.tasks)}
        self.overrides: dict[str, Any] = {}
        """Stand-ins for tasks by name, for tests. They are served, whether the task itself is or not."""
        self.stand_ins: dict[str, Any] = {}
        """The same for workflows."""
        self._warned: set[str] = set()
        self._makes_messages: dict[Any, bool] = {}
        """Whether the code of a workflow makes messages while it runs."""

    def adopt(self, definition: Any) -> None:
        """Serve this very definition under its name."""
        kind = self._tasks if isinstance(definition, Task) else self._workflows
        kind.adopt(definition)

    def refresh(self) -> None:
        """Take in what was defined since; a definition adopted by hand keeps its name. Warns of names that are not served, because two
        functions have them."""
        for mine, everyone in ((self._tasks, registry.tasks), (self._workflows, registry.workflows)):
            for definition in everyone.values():
                if definition.name not in mine.names():
                    mine.add(definition)
            for name, conflict in everyone.conflicts().items():
                if name not in mine.names() and conflict not in self._warned:
                    self._warned.add(conflict)
                    log.warning("%s; this worker serves neither", conflict)

    def take(self, other: WorkerDefinitions) -> None:
        """Serve what another worker serves, with its stand-ins."""
        self._tasks, self._workflows = other._tasks.copy(), other._workflows.copy()
        self.overrides.update(other.overrides)
        self.stand_ins.update(other.stand_ins)

    def functions(self) -> dict[str, Any]:
        """Name -> the function of the user that defines it, of tasks and workflows."""
        return {d.name: d.fn for d in (*self._tasks.values(), *self._workflows.values())}

    def find(self, name: str) -> Any:
        """The task or workflow of this name. NotRegistered when there is none, or one of each."""
        in_tasks, in_workflows = name in self._tasks.names(), name in self._workflows.names()
        if in_tasks and in_workflows:
            raise NotRegistered(f"{name!r} is a task and a workflow here; give the one that you mean itself")
        if in_workflows:
            return self._workflows.get(name)
        if not in_tasks and name in self._built_in:
            return self._built_in[name]
        if not in_tasks:
            raise NotRegistered(
                f"no task or workflow {name!r} is defined in this program; import the module that defines it, "
                f"or give flow({name!r}) for a workflow that is only known by its name"
            )
        return self._tasks.get(name)

    def built_in(self, name: str) -> Any:
        """The built-in task of this name; None: it is not served here."""
        return self._built_in.get(name)

    def task(self, name: str) -> Any:
        """The task to execute under this name."""
        found = self.overrides.get(name) or self._built_in.get(name) or self._tasks.get(name)
        return in_transaction(found) if getattr(found, "transactional", False) else found

    def workflow(self, name: str) -> Any:
        """The workflow to execute under this name."""
        return self.stand_ins.get(name) or self._workflows.get(name)

    @property
    def kinds(self) -> list[tuple[str, str]]:
        """(queue, task name)."""
        tasks: list[Task[Any, Any]] = self._tasks.values()
        queues = self._queues if self._queues is not None else sorted({DEFAULT_QUEUE, *(t.queue for t in tasks)})
        here = [t.name for t in tasks if not t.executor or t.executor in self._executors]
        names = dict.fromkeys([*here, *self._built_in, *self.overrides])
        return [(queue, name) for queue in queues for name in names]

    @property
    def code(self) -> dict[str, ServedCode]:
        """Workflow name -> the version that is served."""
        build_id = self.build_id
        return {w.name: self._served(w, build_id) for w in self._workflows.values()}

    def serves(self, name: str, version: str) -> bool:
        """Whether this version of the workflow is the one that is served."""
        return name in self._workflows.names() and self._version(self._workflows.get(name)) == version

    @property
    def build_id(self) -> str:
        """As it was declared; else derived from the code of all workflows."""
        if self._build_id:
            return self._build_id
        code = sorted((w.name, _hash_of(w) or w.version) for w in self._workflows.values())
        return short(sha256(msgspec.json.encode(code)).hexdigest()) if code else ""

    def _served(self, w: Any, build_id: str) -> ServedCode:
        control = getattr(w, "control", None)
        return ServedCode(
            version=self._version(w),
            hash=_hash_of(w),
            pinned=self._is_pinned(w),
            build_id=build_id,
            control=msgspec.json.encode(control) if control is not None else b"",
            parameters=_parameters_of(w),
            messages=self._messages_of(w),
            hooks=msgspec.json.encode(hooks) if (hooks := getattr(w, "hooks", None)) else b"",
            subscriptions=getattr(w, "subscriptions", b""),
        )

    def _messages_of(self, w: Any) -> bytes:
        """Empty for what is no workflow of this program's own: nothing is checked."""
        if not isinstance(w, Workflow):
            return b""
        fn = w.fn
        makes = self._makes_messages.get(fn)
        if makes is None:
            makes = self._makes_messages[fn] = makes_messages(fn)
        return messages.encoded(w.name, is_open=makes)

    def _version(self, w: Any) -> str:
        """Code that is edited while it runs keeps no promise about its label: each state of it is a version of its own."""
        hash, version = _hash_of(w), str(w.version)
        return f"{version}+{short(hash)}" if self._is_dev and hash and version != short(hash) else version

    def _is_pinned(self, w: Any) -> bool:
        versioning = getattr(w, "versioning", None)
        return not self._is_dev and (versioning or ("pinned" if self._build_id else "auto_upgrade")) == "pinned"

    @property
    def signatures(self) -> dict[str, dict[str, Any]]:
        """Task name -> JSON Schema of its call, for editors, and its declared options, for flows. A task whose annotations cannot
        be resolved has no schema."""
        found: dict[str, dict[str, Any]] = {}
        for t in self._tasks.values():
            declared = {} if t.declared is None else {KEY: t.declared}
            try:
                found[t.name] = {**t.signature.json_schema(), **declared}
            except PerdureError:  # its first call will say so
                if declared:
                    found[t.name] = declared
        return found

    @property
    def task_options(self) -> dict[str, bytes | None]:
        """Task name -> its declared options as JSON."""
        return {t.name: encode(t.declared) if t.declared is not None else None for t in self._tasks.values()}


def _hash_of(w: Any) -> str:
    return w.code.hash if isinstance(w, Workflow) else ""


def _parameters_of(w: Any) -> bytes:
    """Empty for a workflow without a signature: nothing is checked."""
    if isinstance(w, Workflow):
        with suppress(PerdureError):
            return parameters.encode(msgspec.structs.replace(w.signature.parameters(), queries=tuple(w.queries)))
    return b""

"""A worker: runs tasks, and drives code workflows that it keeps alive between activations.

It has no database credentials and exchanges only batches of the messages in core/work.py. In embedded mode the engine calls it
directly; a remote worker is the same object behind a stream.

    definitions.py       what it serves and advertises
    execution.py         attempts of tasks
    workflow_runner.py   the code of workflows
    queries.py           queries about runs
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Sequence
from typing import Any, TypedDict, Unpack

from perdure.core.errors import InvalidInput
from perdure.core.jobs import SERVICE
from perdure.core.limits import BUILD_ID_CHARS_MAX
from perdure.core.work import (
    Activation,
    Assignment,
    AttemptToken,
    Decided,
    QueryAnswer,
    QueryCall,
    Report,
    ServedCode,
    Upstream,
)
from perdure.executors.port import Executor
from perdure.sdk.secrets.store import SecretStore
from perdure.sdk.worker.builtin_tasks import VERBS_OF_ENVIRONMENT, VerbOptions, Verbs, service_executor
from perdure.sdk.worker.capacity import DEFAULT_CAPACITY, Capacity
from perdure.sdk.worker.definitions import WorkerDefinitions
from perdure.sdk.worker.execution import TaskExecutor
from perdure.sdk.worker.jobs import CallAct, no_server
from perdure.sdk.worker.output import OutputMode
from perdure.sdk.worker.processes import refuse_in_child_that_starts
from perdure.sdk.worker.queries import QueryRunner
from perdure.sdk.worker.tracing import TaskTracer
from perdure.sdk.worker.workflow_runner import WorkflowRunner
from perdure.sdk.workflow import guards


class ServingOptions(TypedDict, total=False):
    secrets: Sequence[str]
    """Providers of secrets, in the order in which they are asked; else PERDURE_SECRETS."""
    build_id: str
    """What the worker was built from, such as a commit."""
    is_dev: bool
    """Its code is being edited."""


class Worker:
    """Serves the tasks and workflows defined in this process, and the built-in tasks (builtin_tasks.py) unless `verbs` is None.

    What tasks print and log is sent to the engine and still printed (`output="tee"`), only sent (`"capture"`) or left alone
    (`"ignore"`). `tracer` is asked once, when the worker opens, for what makes attempts spans. A worker that declares a `build_id` pins
    runs to the version that they began with, unless their workflow says otherwise; one of `is_dev`, whose code is being edited, pins none.
    """

    outlives_engine = False

    def __init__(
        self,
        capacity: Capacity = DEFAULT_CAPACITY,
        *,
        verbs: VerbOptions | None = VERBS_OF_ENVIRONMENT,
        queues: list[str] | None = None,
        output: OutputMode = "tee",
        tracer: Callable[[], TaskTracer | None] = lambda: None,
        executors: Sequence[Executor] = (),
        **options: Unpack[ServingOptions],
    ) -> None:
        build_id = options.get("build_id", "")
        if not build_id.isprintable() or len(build_id) > BUILD_ID_CHARS_MAX:
            raise InvalidInput(
                f"a build id has at most BUILD_ID_CHARS_MAX={BUILD_ID_CHARS_MAX} printable characters, such as a commit or a tag"
            )
        guards.install()
        if verbs is not None and not any(e.name == SERVICE for e in executors):
            executors = [*executors, service_executor(verbs)]
        self._executors = {e.name: e for e in executors}
        self._capacity, self._tracer = capacity, tracer
        self._output: OutputMode = output
        self._secrets = SecretStore(options.get("secrets") or None)
        self._verbs = Verbs(verbs) if verbs is not None else None
        self.definitions = WorkerDefinitions(
            queues, self._verbs, executors, build_id=build_id, is_dev=options.get("is_dev", False)
        )
        self.ns = 0
        self.name = f"{socket.gethostname()}:{os.getpid()}"
        self._tasks: TaskExecutor | None = None
        self._runs: WorkflowRunner | None = None
        self._queries: QueryRunner | None = None
        """They exist while the worker is open."""

    def adopt(self, definition: Any) -> None:
        """Serve this very definition under its name."""
        self.definitions.adopt(definition)

    def refresh(self) -> None:
        """Take in what was defined since; a definition adopted by hand keeps its name."""
        self.definitions.refresh()

    @property
    def code(self) -> dict[tuple[int, str, str], ServedCode]:
        """(namespace, workflow, version) -> what is served."""
        return {(self.ns, name, code.version): code for name, code in self.definitions.code.items()}

    @property
    def served(self) -> list[tuple[int, str, str]]:
        """(namespace, queue, task name)."""
        return [(self.ns, queue, name) for queue, name in self.definitions.kinds]

    @property
    def task_options(self) -> dict[str, bytes | None]:
        """Task name -> its declared options as JSON."""
        return self.definitions.task_options

    @property
    def slots(self) -> int:
        return self._capacity.slots

    @property
    def slots_free(self) -> int:
        return self.slots - (self._tasks.in_use if self._tasks is not None else 0)

    def free_for(self, kind: tuple[int, str, str]) -> int:
        """All kinds share the slots."""
        return self.slots_free

    def name_of(self, run_id: bytes, seq: int) -> str:
        """This process."""
        return self.name

    def open(self, upstream: Upstream) -> None:
        """Connect to an engine. Must be called with the loop running."""
        refuse_in_child_that_starts()
        self.ns = upstream.ns
        self._tasks = TaskExecutor(
            self.definitions.task,
            upstream,
            self._capacity,
            self._output,
            self._tracer(),
            self._executors,
            self._secrets,
        )
        self._runs = WorkflowRunner(self.definitions.workflow, upstream, self._capacity.runs_max, self._tasks.sink)
        self._queries = QueryRunner(self.definitions.workflow, upstream.payloads)

    async def connect_executors(self, call: CallAct = no_server) -> list[AttemptToken]:
        """Connect the executors, which ask the server by `call`; returns the attempts whose jobs an earlier worker left running on this machine."""
        assert self._tasks is not None
        await self._tasks.open(call)
        return self._tasks.jobs.tokens()

    async def drain(self, grace_s: float) -> None:
        """Begin nothing new and wait for what runs; what has not ended after the grace is cancelled.

        Everything is reported when this returns: unstarted assignments as `returned`, cut off ones as `cancelled`, for the
        engine to run elsewhere. Assignments that still arrive are returned.
        """
        if self._tasks is not None:
            await self._tasks.drain(grace_s)

    async def close(self) -> None:
        if self._runs is not None:
            self._runs.cancel_operations()
        if self._queries is not None:
            self._queries.close()
        if self._tasks is not None:
            await self._tasks.close()
        if self._verbs is not None:
            await self._verbs.close()
        if self._runs is not None:
            self._runs.close()

    def assign(self, batch: list[Assignment]) -> None:
        assert self._tasks is not None
        self._tasks.assign(batch)

    def cancel(self, run_id: bytes, seq: int, attempt: int) -> None:
        assert self._tasks is not None
        self._tasks.cancel(run_id, seq, attempt)

    def running(self) -> list[tuple[bytes, int, int]]:
        """(run_id, seq, attempt) of everything that was assigned and has not been reported."""
        return self._tasks.tokens() if self._tasks is not None else []

    def is_running(self, run_id: bytes, seq: int, attempt: int) -> bool:
        return self._tasks is not None and self._tasks.has(run_id, seq, attempt)

    def deferred(self) -> list[AttemptToken]:
        """Those of them that wait for a job outside and hold no slot."""
        return self._tasks.jobs.deferred() if self._tasks is not None else []

    def acknowledged(self, reports: list[Report]) -> None:
        """The server has these reports."""
        if self._tasks is not None:
            self._tasks.jobs.acknowledged(reports)

    def activate(self, batch: list[Activation]) -> list[Decided]:
        """Run workflow code until it can go no further. Never raises; must not be called from inside an asyncio task."""
        assert self._runs is not None
        return self._runs.activate(batch)

    def query(self, code: tuple[int, str, str], call: QueryCall) -> asyncio.Future[QueryAnswer] | None:
        """The answer to a query; None where this version of the workflow is not served. `code`: (namespace, workflow, version)"""
        ns, name, version = code
        return self.answer(call) if ns == self.ns and self.definitions.serves(name, version) else None

    def answer(self, call: QueryCall) -> asyncio.Future[QueryAnswer]:
        assert self._queries is not None
        return self._queries.ask(call)

    def forget(self, run_id: bytes) -> None:
        if self._runs is not None:
            self._runs.forget(run_id)

    def forget_all(self) -> None:
        if self._runs is not None:
            self._runs.forget_all()

    def held(self) -> list[bytes]:
        """Ids of the runs whose workflow code is alive here."""
        return self._runs.held() if self._runs is not None else []

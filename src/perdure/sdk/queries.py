"""Queries: answers that are computed from the states of a run.

    progress = State("progress", 0)

    @crawl.query
    def percent(digits: int = 0) -> float:
        return round(100 * progress.get() / total.get(), digits)

    await percent.read(run_id, digits=1)

Laws:

1. A query reads what the run has recorded, as of its last commit. It neither wakes nor changes the run, and nothing of it is recorded.
2. Its function is executed by a worker that serves the workflow, in a thread and within QUERY_S_MAX. It need not be deterministic.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cached_property, update_wrapper
from typing import Any, Generic, ParamSpec, Protocol, TypeVar

from perdure.core.api import messages
from perdure.core.api.messages import AskQuery
from perdure.core.errors import InvalidInput, PayloadTooLarge, QueryFailed, WorkflowRuleBroken
from perdure.core.limits import QUERY_ARGUMENTS_BYTES_MAX
from perdure.core.names import checked_name
from perdure.payloads.content import UnsentPayload
from perdure.sdk.client.backend import Backend, backend
from perdure.sdk.client.payloads import decoded
from perdure.sdk.payloads import Signature
from perdure.sdk.workflow.live_run import current

P = ParamSpec("P")
R = TypeVar("R")


class QueriedWorkflow(Protocol):
    """What a query needs of its workflow."""

    name: str

    def prepare(self, target: Backend) -> None: ...


class BoundQuery(Generic[R]):
    """A query with its arguments. `Query.bind()` makes one."""

    def __init__(self, query: Query[Any, R], data: bytes) -> None:
        self._query, self._data = query, data

    async def read_on(self, target: Backend, run_id: str, *, within_s: float | None = None) -> R:
        """The answer for a run, through a client."""
        query = self._query
        if current.get(None) is not None:
            raise WorkflowRuleBroken(
                f"{query.name}.read() works outside workflows only; inside {query.workflow.name}, call {query.name}(...)"
            )
        query.workflow.prepare(target)
        reply = await target.call(messages.QUERY, AskQuery(run_id, query.name, self._data), within_s)
        if reply.failure is not None:
            raise QueryFailed(reply.failure)
        answer: R = await decoded(target, query.signature.decode_result, reply.value)
        return answer


class Query(Generic[P, R]):
    """A question about runs of a workflow, answered from their states: `await query.read(run_id, ...)`.

    `@workflow_name.query` makes one of a plain function. Called like that function, inside the workflow, it computes from the live states.
    """

    def __init__(self, workflow: QueriedWorkflow, fn: Callable[P, R]) -> None:
        self.name = checked_name("query", fn.__name__)
        if inspect.iscoroutinefunction(fn) or inspect.isasyncgenfunction(fn):
            raise InvalidInput(
                f"@{workflow.name}.query needs a plain `def` function; {self.name} is `async def`. A query only computes from the "
                "states of the run, so there is nothing to await"
            )
        self.workflow, self.fn = workflow, fn
        update_wrapper(self, fn)

    def __repr__(self) -> str:
        return f"<query {self.name} of {self.workflow.name}>"

    @cached_property
    def signature(self) -> Signature:
        """How arguments and answer are written as JSON."""
        return Signature.of(self.fn)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the plain function."""
        return self.fn(*args, **kwargs)

    async def read(self, run_id: str, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """The answer for a run, as of its last commit. Works outside workflows only; the run may be active or ended.

        Args:
            run_id: the id of the run, or `key:` and the key that it was started under.
            args, kwargs: the arguments of the function.

        Raises QueryFailed if the function raises or takes too long, NotFound for an unknown run or a version without this query, and
        Unavailable if no worker that serves the run's version is connected.
        """
        return await self.bind(*args, **kwargs).read_on(backend(), run_id)

    def bind(self, *args: P.args, **kwargs: P.kwargs) -> BoundQuery[R]:
        """The query with its arguments, for `client.query(percent.bind(digits=1), run_id, timeout="2s")`."""
        return BoundQuery(self, self.encode_call(args, kwargs))

    def encode_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        """The arguments as they are sent."""
        data = self.signature.encode_call(args, kwargs)
        if isinstance(data, UnsentPayload):
            raise InvalidInput(
                f"an argument of the query {self.name} is a new blob, which would have to be stored; give a blob of the run, or plain data"
            )
        if len(data) > QUERY_ARGUMENTS_BYTES_MAX:
            raise PayloadTooLarge(
                f"the arguments of the query {self.name} have {len(data)} bytes, over the limit "
                f"QUERY_ARGUMENTS_BYTES_MAX={QUERY_ARGUMENTS_BYTES_MAX}"
            )
        return data

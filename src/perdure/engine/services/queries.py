"""Queries: a worker computes an answer from what is recorded of a run. Nothing is written.

    ask --> a worker of this engine that serves the version? --no--> wait QUERY_WORKER_WAIT_S, then `unavailable`
                      | yes
                      v
            the run's first record and its states, as of now --> worker --> answer

Laws:

1. The function runs in a worker that serves the run's version; of a run that is not pinned, in one that serves another version of its workflow
   if none serves that one. Workers of other engines are not asked.
2. Every query ends within the time of its call. QUERIES_OPEN_MAX bounds what they hold in memory.
"""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import Final, Protocol

from perdure.core import events as ev
from perdure.core import ids
from perdure.core.error_codes import error_for
from perdure.core.errors import (
    Failure,
    NotFound,
    NotRegistered,
    PayloadMismatch,
    PayloadTooLarge,
    PerdureError,
    QueryFailed,
    Unavailable,
)
from perdure.core.lifecycle import RunStatus
from perdure.core.limits import (
    QUERIES_OPEN_MAX,
    QUERY_ANSWER_BYTES_MAX,
    QUERY_S_MAX,
    QUERY_STATES_BYTES_MAX,
    QUERY_STATES_MAX,
    QUERY_WORKER_WAIT_S,
)
from perdure.core.work import QueryAnswer, QueryCall, RunView, is_flow
from perdure.engine.context import EngineContext
from perdure.engine.ports import CodeKey
from perdure.engine.runs.flow_definitions import Flows
from perdure.engine.runs.owned import OwnedRuns
from perdure.wire.codec import decode_row

CALL_SHARE: Final = 0.9
"""Part of the call's time after which a query is given up, so that its error arrives in time."""
ANSWER_GRACE_S: Final = 1.0
"""What an answer may take beyond QUERY_S_MAX, which the worker keeps by itself."""
LOOK_EVERY_S: Final = 0.1
"""How often a query looks whether a worker has come."""
REFUSALS: Final = frozenset(kind.code for kind in (NotFound, NotRegistered, PayloadMismatch, Unavailable))
"""Codes with which a worker refuses a query without calling its function. Any other failure is that of the function."""


class QueryStates(Protocol):
    async def query_states(self, ns: int, run_id: bytes, states_max: int, bytes_max: int) -> dict[str, bytes] | None:
        """The states of a run, from one snapshot; None: they are more than that."""
        ...


class Queries:
    def __init__(self, context: EngineContext, states: QueryStates, runs: OwnedRuns, flows: Flows) -> None:
        self._store, self._worker = context.store, context.worker
        self._states, self._runs, self._flows = states, runs, flows
        self._open = 0

    async def ask(self, ns: int, view: RunView, name: str, arguments: bytes, within_s: float) -> QueryAnswer:
        """What the function returned or raised. Raises NotFound, PayloadMismatch or Unavailable where it was not called."""
        if is_flow(view.version):
            raise NotFound(f"run {ids.text(view.run_id)} is of the flow {view.workflow!r}, and flows have no queries")
        if self._open >= QUERIES_OPEN_MAX:
            raise Unavailable(f"QUERIES_OPEN_MAX={QUERIES_OPEN_MAX} queries are in progress here; ask again later")
        self._open += 1
        try:
            return await self._ask(ns, view, name, arguments, monotonic() + CALL_SHARE * within_s)
        finally:
            self._open -= 1

    async def _ask(self, ns: int, view: RunView, name: str, arguments: bytes, end_s: float) -> QueryAnswer:
        wait_end_s = min(end_s, monotonic() + QUERY_WORKER_WAIT_S)
        call: QueryCall | None = None
        pinned = await self._is_pinned(ns, view)
        while True:
            code = self._code(ns, view, pinned=pinned)
            if code is not None:
                call = call or await self._call(ns, view, name, arguments)
                asked = self._worker.query(code, call)
                if asked is not None:
                    return checked(await self._awaited(asked, name, end_s))
            if monotonic() >= wait_end_s:
                raise _no_worker(view, pinned=pinned)
            await asyncio.sleep(LOOK_EVERY_S)

    async def _is_pinned(self, ns: int, view: RunView) -> bool:
        """As workers say about its version; those of this engine, or the last that registered it."""
        served = self._runs.code.get((ns, view.workflow, view.version))
        return served.pinned if served else (await self._store.published(ns, view.workflow, view.version)).pinned

    def _code(self, ns: int, view: RunView, *, pinned: bool) -> CodeKey | None:
        """The version to ask, of those that workers of this engine serve."""
        own = (ns, view.workflow, view.version)
        if own in self._runs.code:
            return own
        if pinned:
            return None
        choice = self._flows.choice(ns, view.workflow)
        current = (ns, view.workflow, choice.current) if choice is not None else None
        others = [key for key in self._runs.code if key[:2] == own[:2]]
        return current if current in others else next(iter(others), None)

    async def _call(self, ns: int, view: RunView, name: str, arguments: bytes) -> QueryCall:
        rows = await self._store.history_after(view.run_id, ns, 0, 1)
        first = decode_row(rows[0].seq, rows[0].at_us, rows[0].body)[0].event if rows else None
        if not isinstance(first, ev.RunStarted):
            raise NotFound(f"the history of run {ids.text(view.run_id)} is gone")
        states = await self._states.query_states(ns, view.run_id, QUERY_STATES_MAX, QUERY_STATES_BYTES_MAX)
        if states is None:
            raise PayloadTooLarge(
                f"run {ids.text(view.run_id)} has more states than a query is given: over QUERY_STATES_MAX={QUERY_STATES_MAX}, or over "
                f"QUERY_STATES_BYTES_MAX={QUERY_STATES_BYTES_MAX} bytes. Read them one by one"
            )
        return QueryCall(
            run_id=view.run_id,
            workflow=view.workflow,
            name=name,
            arguments=arguments,
            key=view.key or "",
            status=RunStatus(view.status).word,
            input=first.input,
            states=states,
        )

    async def _awaited(self, asked: asyncio.Future[QueryAnswer], name: str, end_s: float) -> QueryAnswer:
        seconds = min(end_s - monotonic(), QUERY_S_MAX + ANSWER_GRACE_S)
        try:
            async with asyncio.timeout(seconds):
                return await asked
        except TimeoutError:
            raise Unavailable(f"the worker has not answered the query {name!r} within {seconds:.3g} s") from None


def checked(answer: QueryAnswer) -> QueryAnswer:
    """Raises what a worker refused. A worker may run other code than ours, so its answer is bounded here as well."""
    failure = answer.failure
    if failure is None and len(answer.value) > QUERY_ANSWER_BYTES_MAX:
        why = (
            f"the answer has {len(answer.value)} bytes, over the limit QUERY_ANSWER_BYTES_MAX={QUERY_ANSWER_BYTES_MAX}"
        )
        return QueryAnswer(b"", Failure(QueryFailed.code, why, PayloadTooLarge.__name__))
    if failure is not None and failure.code in REFUSALS:
        raise error_for(failure.code, failure.message)
    return answer


def _no_worker(view: RunView, *, pinned: bool) -> PerdureError:
    wanted = f"version {view.version!r} of the workflow {view.workflow!r}"
    if not pinned:
        wanted += ", or another version of it,"
    return Unavailable(
        f"no worker that serves {wanted} is connected here, and a query is computed by one. Start a worker with that code, "
        "then ask again; the states themselves can be read without one"
    )

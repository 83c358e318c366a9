"""What connected workers send: reports, decisions, answers to queries, heartbeats and log lines.

Law: a report, a heartbeat, a log line counts only from the worker the attempt was given to; a decision only from the worker that holds
the run, for the activation it answers. So no message of a worker can reach another namespace.
"""

from __future__ import annotations

from collections.abc import Callable

from perdure.core.errors import Failure, clip
from perdure.core.limits import PAYLOAD_BYTES_MAX
from perdure.core.retry import End
from perdure.core.work import Beat, Decided, LogChunk, Report, Upstream
from perdure.engine.tasks.attempts import Attempts
from perdure.server.grpc.connected_workers import ConnectedWorkers
from perdure.server.grpc.connection import Connection
from perdure.wire.protocol import Token, Up


class WorkerMessages:
    def __init__(
        self, workers: ConnectedWorkers, attempts: Attempts, upstream: Upstream, leaves: Callable[[], None]
    ) -> None:
        self._by_id, self._placed = workers.by_id, workers.placed
        self._pools, self._code, self._queries = workers.pools, workers.placement, workers.queries
        self._attempts, self._upstream, self._clock_us = attempts, upstream, upstream.clock_us
        self._leaves = leaves
        """Called when a worker begins to drain: it takes no more runs."""
        self.refused = 0
        """Reports, decisions, answers and heartbeats refused because the worker does not hold the attempt, run or query."""

    def received(self, c: Connection, up: Up) -> None:
        if self._by_id.get(c.id) is not c:
            return  # the worker has another stream by now
        c.seen_us = self._clock_us()
        if up.draining and not c.draining:
            c.draining = True
            self._pools.recount(c)
            self._leaves()
            self.decided(self._code.hand_over(c))
        if up.logs:
            self._take_logs(c, up.logs)
        if up.beats:
            self.take_beats(c, up.beats)
        if up.deferred:
            self._take_deferred(c, up.deferred)
        if up.reports_number:
            c.acknowledge(up.reports_number)
        if up.reports:
            self._take_reports(c, up.reports)
        if up.decisions:
            self._take_decisions(c, up.decisions)
        if up.answers:
            self.refused += self._queries.answered(c, up.answers)

    def _take_deferred(self, c: Connection, tokens: list[Token]) -> None:
        mine = c.defer(tokens)
        self._pools.recount(c)
        if mine:
            self._upstream.deferred(mine)

    def decided(self, decisions: list[Decided]) -> None:
        if decisions:
            self._upstream.decided(decisions)

    def _take_reports(self, c: Connection, reports: list[Report]) -> None:
        mine: list[Report] = []
        now = self._clock_us()
        for r in reports:
            # The worker's word on its times counts as far as they can be. A clock that is ahead shifts both.
            ahead_us = max(r.finished_us - now, 0)
            r.finished_us = max(1, r.finished_us - ahead_us)
            r.started_us = max(1, min(r.started_us - ahead_us, r.finished_us))
            key = (r.run_id, r.seq)
            if not c.expects(r) or self._placed.get(key) is not c:
                self.refused += 1
                if self._placed.get(key) is not c:  # it has been assigned to another worker since
                    c.drop(key)
                continue
            if len(r.value) > PAYLOAD_BYTES_MAX:
                r.end, r.value, r.failure = End.FINAL_ERROR, b"", _too_large(len(r.value))
            c.drop(key)
            del self._placed[key]
            r.worker = c.name
            mine.append(r)
        self._pools.recount(c)
        if c.early is not None:
            c.early.extend(mine)
        else:
            self._upstream.reported(mine)

    def report_early(self, c: Connection) -> None:
        """The attempts that it brought along are adopted: what it reported meanwhile counts now."""
        early, c.early = c.early or [], None
        # What was assigned meanwhile to a worker of another namespace is not ended by a token that was only claimed.
        self._upstream.reported([r for r in early if not self._is_of_other_namespace(c, r.run_id, r.seq)])

    def _is_of_other_namespace(self, c: Connection, run_id: bytes, seq: int) -> bool:
        """An attempt that is under way here in another namespace than the worker's."""
        flight = self._attempts.get(run_id, seq)
        return flight is not None and flight.assignment.ns != c.ns

    def _take_decisions(self, c: Connection, decisions: list[tuple[int, Decided, bool]]) -> None:
        mine, refused = self._code.take(c, decisions)
        self.refused += refused
        self.decided(mine)
        if c.draining:
            self.decided(self._code.hand_over(c))

    def take_beats(self, c: Connection, beats: list[Beat]) -> None:
        c.seen_us = self._clock_us()
        for b in beats:
            if not b.attempt:
                self._take_overrun(c, b)
        beats = [b for b in beats if b.attempt]
        mine = [
            b
            for b in beats
            if c.running.get((b.run_id, b.seq)) == b.attempt and not self._is_of_other_namespace(c, b.run_id, b.seq)
        ]
        self.refused += len(beats) - len(mine)
        c.blocked = next((b.blocked for b in mine if b.blocked), "")
        self._upstream.beats(mine)

    def _take_overrun(self, c: Connection, b: Beat) -> None:
        """The last message of a worker whose workflow code cannot be stopped."""
        if not self._code.holds(c, b.run_id):
            self.refused += 1
            return
        self._code.forget(b.run_id)
        self.decided([Decided(b.run_id, [], _overran(b.blocked))])

    def _take_logs(self, c: Connection, chunks: list[LogChunk]) -> None:
        mine: list[LogChunk] = []
        for chunk in chunks:
            if c.running.get((chunk.run_id, chunk.seq)) == chunk.attempt or (
                chunk.seq == -1 and chunk.run_id in c.held
            ):
                chunk.ns = c.ns
                mine.append(chunk)
        self.refused += len(chunks) - len(mine)
        if mine:
            self._upstream.logged(mine)


def _too_large(size: int) -> Failure:
    return Failure(
        "payload_too_large", f"the result has {size} bytes, over the limit PAYLOAD_BYTES_MAX={PAYLOAD_BYTES_MAX}"
    )


def _overran(stack: str) -> Failure:
    message = (
        "the workflow's code computed without an await, could not be stopped, and its worker ended. "
        f"Repair it, then resume the run. It was at\n{stack}"
    )
    return Failure("code_overrun", clip(message))

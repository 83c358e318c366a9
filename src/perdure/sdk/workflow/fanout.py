"""`wf.map`: one bulk command for many tasks, one awaitable for all results, in the order of the items.

With `concurrency=n` only n are in flight; each event that ends some schedules as many new ones, so the order of commands
depends on the history alone.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from perdure.core import ids
from perdure.core.errors import InvalidInput, PerdureError
from perdure.sdk.workflow.requests import Requests
from perdure.sdk.workflow.step import Step, new_step


class TaskFanout:
    """Hears of each outcome by task sequence number; resolves its step with the list of results."""

    def __init__(
        self, requests: Requests, task: Any, inputs: list[bytes], concurrency: int | None, on_error: str
    ) -> None:
        _check(concurrency, on_error)
        self._requests, self._task, self._inputs = requests, task, inputs
        self._collect = on_error == "collect"
        self._raw: list[bytes | Exception | None] = [None] * len(inputs)
        self._left = len(inputs)
        self._issued = 0
        self._offsets: list[tuple[int, int, int]] = []  # (first seq, end seq, index of the first item)
        self._owed = 0
        self._issue(min(concurrency or len(inputs), len(inputs)))
        first = self._offsets[0][0] if self._offsets else -1
        self.step = new_step(requests.run, ids.TASK, first, on_cancel=self.cancel_rest)
        if not inputs:
            self.step.set_result([])

    def _issue(self, count: int) -> None:
        chunk = self._inputs[self._issued : self._issued + count]
        if not chunk:
            return
        task = self._task
        first = self._requests.schedule_fanout(task.name, task.queue, chunk, task.effective, self, task.undo)
        self._offsets.append((first, first + len(chunk), self._issued))
        self._issued += len(chunk)

    def _index(self, seq: int) -> int:
        for first, end, index in reversed(self._offsets):
            if first <= seq < end:
                return index + seq - first
        raise AssertionError(f"task {seq} is not of this fan-out")

    def succeed(self, seq: int, value: bytes) -> None:
        offsets = self._offsets
        index = offsets[0][2] + seq - offsets[0][0] if len(offsets) == 1 else self._index(seq)
        self._raw[index] = value
        self._ended()

    def fail(self, seq: int, error: Exception) -> None:
        self._raw[self._index(seq)] = error
        if self._collect:
            self._ended()
        elif not self.step.done():
            self.step.set_exception(error)
            self.cancel_rest()

    def _ended(self) -> None:
        self._left -= 1
        if self._left == 0:
            self._requests.forget_fanout(self)
            self._resolve()
        elif self._issued < len(self._inputs) and not self.step.done():
            if not self._owed:
                self._requests.run.loop.call_soon(self._issue_owed)
            self._owed += 1

    def _issue_owed(self) -> None:
        """Once per event, however many of it ended ours."""
        owed, self._owed = self._owed, 0
        if not self.step.done() and not self._requests.run.closed:
            self._issue(owed)

    def _resolve(self) -> None:
        if self.step.done():
            return
        decode = self._task.signature.decode_result
        try:
            if any(isinstance(r, Exception) for r in self._raw):
                self.step.set_result([r if isinstance(r, Exception) else decode(r) for r in self._raw])
            else:
                self.step.set_result(self._task.signature.decode_results(self._raw))
        except PerdureError as e:
            self.step.set_exception(e)
        self._raw = []

    def cancel_rest(self) -> None:
        if self._requests.run.closed:
            return
        self._requests.forget_fanout(self)
        open_seqs = [
            first + i for first, end, index in self._offsets for i in range(end - first) if self._raw[index + i] is None
        ]
        if open_seqs:
            self._requests.run.journal.cancel_tasks(open_seqs)


def child_fanout(
    requests: Requests, start: Callable[[bytes], Step[Any]], inputs: list[bytes], concurrency: int | None, on_error: str
) -> Step[Any]:
    """The same over child workflows, which are started one by one."""
    _check(concurrency, on_error)
    results: list[Any] = [None] * len(inputs)
    live: dict[int, Step[Any]] = {}
    cancelled: list[Any] = []
    """The reason of the cancellation, once there was one."""
    queue = iter(enumerate(inputs))

    def launch() -> None:
        for index, data in queue:
            step = live[index] = start(data)
            step.add_done_callback(partial(ended, index))
            if concurrency and len(live) >= concurrency:
                return

    def ended(index: int, step: Step[Any]) -> None:
        live.pop(index, None)
        if cancelled and not live:
            out.finish_cancel(cancelled[0])
        if cancelled or out.done():
            return
        if step.cancelled():
            out.cancel()
            return
        error = step.exception()
        if error is not None and on_error == "raise":
            out.set_exception(error)
            cancel_rest()
            return
        results[index] = error if error is not None else step.result()
        launch()
        if not live:
            out.set_result(results)

    def cancel_rest() -> None:
        for step in list(live.values()):
            step.cancel()

    def defer(_: Step[Any], reason: Any) -> bool:
        """Leaves first: as for one child, for all of them."""
        if not cancelled:
            cancelled.append(reason)
            cancel_rest()
        return any(not step.done() for step in live.values())

    out = new_step(requests.run, ids.CHILD, -1, defer_cancel=defer)
    launch()
    if not inputs:
        out.set_result([])
    return out


def _check(concurrency: int | None, on_error: str) -> None:
    if concurrency is not None and concurrency < 1:
        raise InvalidInput(f"concurrency={concurrency}: at least one must run; leave it out for no limit")
    if on_error not in ("raise", "collect"):
        raise InvalidInput(f'on_error={on_error!r}: choose "raise" or "collect"')

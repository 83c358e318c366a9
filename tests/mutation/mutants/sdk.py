"""Planted bugs in sdk."""

from __future__ import annotations

from tests.mutation.mutants import Mutant

MUTANTS = [
    Mutant(
        "runtime-boundary",
        "sdk/runtime.py",
        "if at >= 0 and seq < self._segments[at][1]:",
        "if at >= 0 and seq <= self._segments[at][1]:",
        "unit/test_runtime.py unit/test_fanout.py unit/test_updates.py unit/test_undo.py",
    ),
    Mutant(
        "runtime-wrong-end",
        "sdk/runtime.py",
        "        if self._cancel_reason == DEADLINE:  # the",
        "        if False:  # the",
        "unit/test_runtime.py unit/test_fanout.py unit/test_updates.py unit/test_undo.py",
    ),
    Mutant(
        "runtime-lose-a-signal",
        "sdk/runtime.py",
        "            self._handover.signals.append((e.name, e.value))\n",
        "            pass\n",
        "unit/test_runtime.py unit/test_fanout.py unit/test_updates.py unit/test_undo.py",
    ),
    Mutant(
        "runtime-skip-stopping-fan-outs",
        "sdk/runtime.py",
        "            fanout._cancel_rest()\n",
        "            pass\n",
        "unit/test_runtime.py unit/test_fanout.py unit/test_updates.py unit/test_undo.py",
    ),
    Mutant(
        "runtime-last-value-wins",
        "sdk/runtime.py",
        "        self._promise_values.setdefault(e.name, e.value)\n",
        "        self._promise_values[e.name] = e.value\n",
        "unit/test_runtime.py unit/test_fanout.py unit/test_updates.py unit/test_undo.py",
    ),
    Mutant(
        "execution-slot-leak",
        "sdk/execution.py",
        "                self._queue.remove(a)\n                self.in_use -= 1\n",
        "                self._queue.remove(a)\n",
        "unit/test_execution.py unit/test_processes.py unit/test_watchdog.py",
    ),
    Mutant(
        "execution-identity-check-dropped",
        "sdk/execution.py",
        "        if self._running.get(key) is info:\n",
        "        if key in self._running:\n",
        "unit/test_execution.py unit/test_processes.py unit/test_watchdog.py",
    ),
    Mutant(
        "execution-double-report",
        "sdk/execution.py",
        "            self._abandoned.discard(info)\n            return\n",
        "            self._abandoned.discard(info)\n",
        "unit/test_execution.py unit/test_processes.py unit/test_watchdog.py",
    ),
    Mutant(
        "execution-swap-two-statements",
        "sdk/execution.py",
        "        if self.sink is not None and not self.sink.is_empty:\n            self.sink.flush()\n        self._report(reports)",
        "        self._report(reports)\n        if self.sink is not None and not self.sink.is_empty:\n            self.sink.flush()",
        "unit/test_execution.py unit/test_processes.py unit/test_watchdog.py",
    ),
    Mutant(
        "execution-waiting-count-as-silent",
        "sdk/execution.py",
        "        waiting = [a for a in self._queue if a.options.heartbeat_us]\n",
        "        waiting: list[Assignment] = []\n",
        "unit/test_execution.py unit/test_processes.py unit/test_watchdog.py",
    ),
]

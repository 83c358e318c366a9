"""Planted bugs in flows."""

from __future__ import annotations

from tests.mutation.mutants import Mutant

MUTANTS = [
    Mutant(
        "frames-drop-a-condition",
        "core/flow/frames.py",
        "runs = chosen and some and not blame",
        "runs = chosen and not blame",
        "flows/test_corpus.py",
    ),
    Mutant(
        "frames-drop-a-condition-2",
        "core/flow/frames.py",
        "self.status[i] == FAILED and i in self.current and not sources[i] & anew",
        "self.status[i] == FAILED and i in self.current",
        "flows/test_corpus.py::test_a_flow_asks_for_exactly_these_commands[dag/retry_of_a_failed_cleanup]",
    ),
    Mutant(
        "frames-off-by-one",
        "core/flow/frames.py",
        "if self.steps > self.body.max_steps:\n            limit",
        "if self.steps >= self.body.max_steps:\n            limit",
        "flows/test_corpus.py::test_a_flow_asks_for_exactly_these_commands[graph/retry_after_the_step_limit]",
    ),
    Mutant(
        "frames-skip-update",
        "core/flow/frames.py",
        "        self.smooth &= status == SUCCESS\n",
        "",
        "flows/test_corpus.py",
    ),
    Mutant(
        "frames-skip-a-reset",
        "core/flow/frames.py",
        "            self.steps = 1 if self.steps > self.body.max_steps else self.steps\n",
        "",
        "flows/test_corpus.py",
    ),
    Mutant(
        "decider-skip-the-barrier",
        "core/flow/decider.py",
        "        if any(k >= 0 for k in doubtful):\n",
        "        if False and any(k >= 0 for k in doubtful):\n",
        "flows/test_corpus.py::test_a_flow_asks_for_exactly_these_commands[dag/compensate_what_was_in_flight]",
    ),
    Mutant(
        "decider-drop-a-condition",
        "core/flow/decider.py",
        "if isinstance(event, ev.CancelRequested) or not self._leaves:",
        "if not self._leaves:",
        "flows/test_corpus.py",
    ),
    Mutant(
        "decider-lose-an-undo-entry",
        "core/flow/decider.py",
        "            self._done(visit, index, raw)\n            if visit.results[index] is None:",
        "            if visit.results[index] is None:",
        "flows/test_corpus.py",
    ),
    Mutant(
        "decider-lose-a-late-success",
        "core/flow/decider.py",
        "                self._stopped.setdefault(seq, self._tasks.pop(seq, _NOWHERE))\n                self._keep(seq, raw)\n",
        "                self._tasks.pop(seq, None)\n",
        "flows/test_corpus.py",
    ),
    Mutant(
        "decider-drop-a-limit",
        "core/flow/decider.py",
        "        if self._buffered >= SIGNALS_BUFFERED_MAX:\n",
        "        if self._buffered < 0:\n",
        "flows/test_corpus.py",
    ),
]

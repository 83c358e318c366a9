"""Rows beside a run's own, held against its folded history: its deadline, its key, its promises and their answers."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.core import events as ev
from perdure.core import ids
from perdure.core.invariants.findings import Findings
from perdure.core.invariants.rows import StoredKey, StoredPromise, StoredRun
from perdure.core.invariants.run_fold import RunFold
from perdure.core.limits import DEADLINE_LATE_S_MAX
from perdure.core.questions import asked_by


def check_deadline(fold: RunFold, stored: StoredRun, now_us: int, findings: Findings) -> None:
    if not stored.active or fold.broken or not fold.state.deadline_us:
        return
    findings.examine(14)
    late_us = now_us - fold.state.deadline_us
    if late_us > DEADLINE_LATE_S_MAX * 1_000_000:
        findings.violate(14, fold.text, f"active {late_us / 1e6:.0f} s after its deadline")


def check_keys(fold: RunFold, keys: Sequence[StoredKey], findings: Findings, *, active: bool) -> None:
    """Rows of run_key that name this run. A run that has ended may have passed its key on; so may one that was retried since."""
    if fold.closed:
        return
    s = fold.started
    for k in keys:
        findings.examine(2)
        findings.examine(28)
        if fold.next_run:
            what = f"the key {k.key!r} names this run, which continued as {ids.text(fold.next_run)}"
            findings.violate(28, fold.text, what)
        # The key of a chain has the input of its first run.
        if s is None or (k.ns, k.key) != (fold.ns, s.key) or (not s.first and k.input_hash != fold.input_hash):
            what = (
                f"the key {k.key!r} of namespace {k.ns} names this run, which was not started under it with that input"
            )
            findings.violate(2, fold.text, what)
    if s is not None and s.key and active and not keys and not s.parent_id:
        findings.examine(2)
        findings.violate(2, fold.text, f"active under the key {s.key!r}, which does not name it")


def check_promises(fold: RunFold, promises: Sequence[StoredPromise], findings: Findings) -> None:
    """The kind of a promise is that of its creation. One that was resolved before it was created is a plain promise. What is asked is what the
    history asks; its answer may not be in the history yet."""
    for p in promises:
        if fold.broken or fold.closed:
            continue
        created = fold.state.promises.get(p.name)
        findings.examine(4)
        if created is None:
            if p.is_asked and not p.is_resolved:
                findings.violate(4, fold.text, f"the promise {p.name!r} is open, and the history does not ask for it")
            continue
        if p.is_asked and p.question and p.question != asked_by(created):
            findings.violate(4, fold.text, f"the promise {p.name!r} asks something else than the history")
        if p.is_asked and not p.is_resolved and fold.state.is_resolved(p.name):
            findings.violate(4, fold.text, f"the promise {p.name!r} is open, and the history has its value")
        kind = ev.PROMISE_WORDS[created.kind]
        if p.kind != kind and not (p.is_resolved and p.kind == ev.PROMISE_WORDS[ev.PromiseKind.PLAIN]):
            what = f"column kind of the promise {p.name!r} is {p.kind}, the history says {kind}"
            findings.violate(4, fold.text, what)


def check_answers(fold: RunFold, findings: Findings) -> None:
    """A fork has answers to what a retry of the other run took back, without the question."""
    for seq, name in fold.answers.unasked_after(fold.forked):
        findings.violate(27, fold.text, f"event {seq} answers a question {name!r} that was not asked")

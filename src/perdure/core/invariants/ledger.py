"""What the tasks of one run did, by their own ledger, against what is recorded about them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Final

from perdure.core import ids
from perdure.core.invariants.findings import Findings
from perdure.core.invariants.rows import LedgerLine, StoredTask
from perdure.core.invariants.run_fold import RunFold
from perdure.core.lifecycle import TaskStatus
from perdure.core.retry import TaskOptions, backoff_us

SPACING_SLACK: Final = 0.02
"""Share of a delay by which the database's clock and the machine's may differ."""


def check_executions(
    fold: RunFold, stored: Sequence[StoredTask], lines: Sequence[LedgerLine], names: frozenset[str], findings: Findings
) -> None:
    """What tasks did (`lines`, by time) against what is recorded about them. `names` are the tasks that write the ledger at all."""
    by_task: defaultdict[str, list[LedgerLine]] = defaultdict(list)
    for line in lines:
        by_task[line.task].append(line)
    rows = {ids.text(t.id): t for t in stored}
    for task_id, row in rows.items():
        if row.status == TaskStatus.SUCCESS and row.name in names and not row.copied:
            findings.examine(8)
            if _recorded_effect(row, by_task.get(task_id, [])) is None:
                findings.violate(8, fold.text, f"task {row.seq} succeeded in attempt {row.attempts} without an effect")
    if fold.broken:
        return
    seqs = {ids.text(ids.derive(fold.run_id, ids.TASK, seq)): seq for seq in fold.tasks}
    for task_id, own in by_task.items():
        seq = seqs.get(task_id)
        if seq is not None:
            _check_attempts(fold, seq, rows.get(task_id), own, findings)
    newest = fold.retries[-1] if fold.retries else -1
    for line in lines:
        if line.phase == "begin" and line.after and line.epoch > newest:  # what a retry took back is nowhere recorded
            _check_order(fold, line, seqs, rows, by_task, findings)


def _recorded_effect(row: StoredTask, lines: Sequence[LedgerLine]) -> LedgerLine | None:
    """The effect of the execution that was recorded: of the same attempt, and of the recording epoch if there is one."""
    effects = [x for x in lines if x.phase == "effect" and x.attempt == row.attempts]
    return next((x for x in effects if x.epoch == row.epoch), effects[0] if effects else None)


def _first_effect(row: StoredTask, line: LedgerLine, lines: Sequence[LedgerLine]) -> LedgerLine | None:
    """The earliest execution whose result `line` may have been given.

    The owner that recorded the result may have had it from an execution that a former owner began: a worker that lost its server brings
    it along. So for what runs under that owner, or a later one, any execution of that attempt will do; for what ran before, only the recorded one.
    """
    if line.epoch < row.epoch:
        return _recorded_effect(row, lines)
    effects = [x for x in lines if x.phase == "effect" and x.attempt == row.attempts and x.epoch <= row.epoch]
    return min(effects, key=lambda x: x.mono_us, default=None) or _recorded_effect(row, lines)


def _check_attempts(
    fold: RunFold, seq: int, row: StoredTask | None, lines: Sequence[LedgerLine], findings: Findings
) -> None:
    """A lost worker is one that is recorded as lost, or one whose run was taken over before it could record anything: the same
    attempt then begins again under a later epoch."""
    begins = [x for x in lines if x.phase == "begin"]
    findings.examine(10, len(begins))
    options = fold.tasks[seq].options
    per_ownership = Counter((x.attempt, x.epoch) for x in begins)
    retries = len(fold.retries)
    for (attempt, epoch), count in per_ownership.items():
        if count > (1 if epoch else 1 + retries):  # 0: the run was another engine's
            findings.violate(10, fold.text, f"task {seq}: attempt {attempt} began {count} times in epoch {epoch}")
    if options.at_most_once and len(begins) > 1 + retries:
        findings.violate(10, fold.text, f"at-most-once task {seq} began {len(begins)} times")
    taken_over = len(begins) - len({x.attempt for x in begins})
    # A row without attempts is of a task that was cancelled while another engine had it: it does not say what that engine lost.
    lost = row.lost if row is not None and row.attempts and not retries else options.lost_max
    if len(begins) > options.max_attempts + lost + taken_over:
        findings.violate(
            10,
            fold.text,
            f"task {seq} began {len(begins)} times with max_attempts={options.max_attempts}, {lost} lost workers, {taken_over} take-overs",
        )
    if row is not None and not row.lost and not retries:
        _check_spacing(fold, seq, options, lines, findings)
    if row is not None and row.status in (TaskStatus.SUCCESS, TaskStatus.FAILED):
        _check_after_record(fold, row, options, begins, findings)


def _check_spacing(
    fold: RunFold, seq: int, options: TaskOptions, lines: Sequence[LedgerLine], findings: Findings
) -> None:
    """From the end of an execution that failed by itself to the beginning of the next attempt, under one owner. Only for tasks that
    lost no worker: an attempt whose report was lost is repeated at once."""
    task_id = ids.derive(fold.run_id, ids.TASK, seq)
    ends = {(x.attempt, x.epoch): x for x in lines if x.phase == "end" and x.failed}
    for x in lines:
        end = ends.get((x.attempt - 1, x.epoch)) if x.phase == "begin" else None
        if end is None or x.mono_us < end.mono_us:
            continue
        findings.examine(19)
        least_us = end.retry_us or backoff_us(options, task_id, end.attempt)
        if x.mono_us - end.mono_us < least_us * (1 - SPACING_SLACK):
            took = f"{(x.mono_us - end.mono_us) / 1e3:.1f} ms"
            findings.violate(
                19,
                fold.text,
                f"task {seq}: attempt {x.attempt} began {took} after a failure, {least_us / 1e3:.1f} ms at least were due",
            )


def _check_after_record(
    fold: RunFold, row: StoredTask, options: TaskOptions, begins: Sequence[LedgerLine], findings: Findings
) -> None:
    if row.attempts - row.lost > options.max_attempts:
        findings.violate(10, fold.text, f"task {row.seq} recorded {row.attempts} attempts, {row.lost} of them lost")
    since = fold.since(row.epoch)
    for x in begins:
        if x.epoch <= since:
            continue
        if x.attempt > row.attempts:
            what = f"task {row.seq} ended in attempt {row.attempts} and yet attempt {x.attempt} began"
            findings.violate(10, fold.text, what)
        elif x.epoch > row.epoch:
            what = f"task {row.seq} was recorded in epoch {row.epoch} and executed again in epoch {x.epoch}"
            findings.violate(10, fold.text, what)


def _check_order(
    fold: RunFold,
    line: LedgerLine,
    seqs: dict[str, int],
    rows: dict[str, StoredTask],
    by_task: dict[str, list[LedgerLine]],
    findings: Findings,
) -> None:
    """Every execution, recorded or not, must have followed the recorded executions of what it was given."""
    me = seqs.get(line.task)
    for other in line.after:
        findings.examine(11)
        row = rows.get(other)
        path = fold.tasks.get(row.seq) if row is not None else None
        if row is None or path is None:
            # A take-over may schedule this task under another fact; what it was given must be recorded all the same.
            findings.violate(11, fold.text, f"{line.name} began after {other}, whose end is nowhere recorded")
            continue
        if me is not None and path.ended >= fold.tasks[me].scheduled:
            findings.violate(11, fold.text, f"task {me} was scheduled before task {row.seq}, which it needs, ended")
        effect = _first_effect(row, line, by_task.get(other, []))
        if effect is not None and effect.mono_us > line.mono_us:
            findings.violate(
                11,
                fold.text,
                f"{line.name} (attempt {line.attempt}) began before the recorded execution of task {row.seq}, which it needs",
            )

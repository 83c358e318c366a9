"""Lanes of a timeline: steps of one node together, or counts of them where there are many."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from perdure.core.api.timeline import Timeline, TimelineNode, WorkBins
from perdure.core.lifecycle import TASK_TERMINAL, TaskStatus
from perdure.core.timeline.bins import spread
from perdure.core.timeline.rows import NODES_MAX, NodeOutline, NodeTally, TimelineRows
from perdure.core.timeline.spans import BIN_US_MIN, binned, duration_bars, exact_bars, idle_spans, work_bins
from perdure.core.timeline.steps import RunStep

ERROR_CHARS_MAX: Final = 300
SEGMENTS_MAX: Final = 50
"""Segments of one lane."""
BINS_TOTAL_MAX: Final = 2_400
"""Bins of all lanes together, so that an answer stays small."""
_WORTH: Final = (
    TaskStatus.RUNNING,
    TaskStatus.DISPATCHED,
    TaskStatus.FAILED,
    TaskStatus.PENDING,
    TaskStatus.CANCELLED,
    TaskStatus.SUCCESS,
    TaskStatus.SKIPPED,
)
"""Of the tasks of one node: what is at work, then the most telling."""


def status_of(counts: Mapping[int, int]) -> int:
    return int(next((s for s in _WORTH if counts.get(s)), TaskStatus.PENDING))


def lanes(steps: Iterable[RunStep], bins: int) -> list[TimelineNode]:
    """In the order in which they were asked for."""
    groups: defaultdict[str, list[RunStep]] = defaultdict(list)
    for step in steps:
        groups[step.node].append(step)
    each = _bins_each(sum(len(g) > 1 for g in groups.values()), bins)
    return [_lane(node, group, each) for node, group in groups.items()]


def _bins_each(fanouts: int, bins: int) -> int:
    return max(min(bins, BINS_TOTAL_MAX // max(fanouts, 1)), 4)


def _lane(node: str, steps: list[RunStep], bins: int) -> TimelineNode:
    counts = Counter(int(s.status) for s in steps)
    only = steps[0] if len(steps) == 1 else None
    is_work = steps[0].kind in ("task", "child")
    began = [s.started_us for s in steps if s.started_us is not None]
    done = all(s.status in TASK_TERMINAL for s in steps)
    ends = [s.finished_us for s in steps if s.finished_us is not None]
    took = [_last_us(s) for s in steps if s.status == TaskStatus.SUCCESS and s.started_us is not None]
    shown = only.segments if only is not None else [] if is_work else [x for s in steps for x in s.segments]
    return TimelineNode(
        node=node,
        kind="fanout" if only is None and steps[0].kind == "task" else steps[0].kind,
        status=status_of(counts),
        tasks=len(steps),
        counts=dict(counts),
        seq=only.seq if only is not None and only.kind == "task" else None,
        attempts=max(s.attempts for s in steps),
        first_us=min(s.since_us for s in steps),
        started_us=min(began, default=None),
        finished_us=max(ends, default=None) if done else None,
        error=_error(s.error for s in steps),
        segments=shown[-SEGMENTS_MAX:],
        bins=work_bins([w for s in steps for w in s.work()], bins) if only is None and is_work else None,
        durations=exact_bars(took) if only is None and is_work else None,
        child_run=only.child or None if only is not None else None,
        after=sorted({a for s in steps for a in s.after if a != node})[:NODES_MAX],
    )


def _last_us(step: RunStep) -> int:
    """How long its last attempt took."""
    work = step.work()
    return work[-1][1] - work[-1][0] if work else 0


def _error(errors: Iterable[str | None]) -> str | None:
    found = next((e for e in errors if e), None)
    return found[:ERROR_CHARS_MAX] if found is not None else None


def tally_lanes(rows: TimelineRows, scheduled: Mapping[str, tuple[int, int]], bins: int) -> list[TimelineNode]:
    """Of a run with many tasks. `scheduled`: tasks by node, as its history says; those without a row are in the memory of an engine, or
    will be. In the order in which the nodes were first asked for."""
    tallies = {t.node: t for t in rows.tallies or []}
    for node, (_, first_us) in scheduled.items():
        tallies.setdefault(node, NodeTally(node=node, first_us=first_us))
    unwritten = TaskStatus.DISPATCHED if rows.item.owned else TaskStatus.PENDING
    is_over = rows.item.finished_us is not None
    each = _bins_each(sum(sum(t.counts.values()) > 1 for t in tallies.values()), bins)
    found: list[TimelineNode] = []
    for t in tallies.values():
        counts = {int(TaskStatus[word.upper()]): n for word, n in t.counts.items() if n}
        more = scheduled.get(t.node, (0, 0))[0] - sum(counts.values())
        if more > 0 and not is_over:
            counts[unwritten] = counts.get(unwritten, 0) + more
        if counts:
            found.append(_tally_lane(t, counts, rows, each))
    return sorted(found, key=lambda n: n.first_us or 0)


def _tally_lane(t: NodeTally, counts: dict[int, int], rows: TimelineRows, bins: int) -> TimelineNode:
    total = sum(counts.values())
    done = not any(s not in TASK_TERMINAL for s in counts)
    end_us = rows.item.finished_us if rows.item.finished_us is not None else rows.now_us
    ends = [c.high_us if c.n > 1 else c.sum_us for c in t.ends]
    finished = min(max([rows.from_us + int(max(ends, default=0.0)), t.finished_us or 0]), end_us)
    started = _started_us(t, rows)
    return TimelineNode(
        node=t.node,
        kind="fanout" if total > 1 else "task",
        status=status_of(counts),
        tasks=total,
        counts=counts,
        attempts=t.attempts,
        first_us=t.first_us if t.first_us is not None else started,
        started_us=started,
        finished_us=finished if done and (ends or t.finished_us) else None,
        error=_error([t.error]),
        bins=_tally_bins(t, rows.from_us, finished if done else end_us, bins),
        durations=duration_bars(t.durations, t.longest_us),
    )


def _started_us(t: NodeTally, rows: TimelineRows) -> int | None:
    """The beginning of the first cluster, unless a task that is known by itself began within it."""
    if not t.starts:
        return t.started_us
    first = min(t.starts, key=lambda c: c.low_us)
    if t.started_us is not None and t.started_us - rows.from_us <= first.high_us:
        return t.started_us
    return rows.from_us + int(first.low_us)


def _tally_bins(t: NodeTally, from_us: int, until_us: int, bins: int) -> WorkBins | None:
    begins = [c.low_us for c in t.starts]
    if not begins:
        return None
    low = max(min(begins), 0.0)
    width = max(math.ceil((until_us - from_us - low) / bins), BIN_US_MIN)
    starts, ends = spread(t.starts, low, width), spread(t.ends, low, width)
    failures: Counter[int] = Counter()
    for f in t.failures:  # not spread: parts of one are none
        failures[min(int(max(f.sum_us / f.n - low, 0) // width), bins - 1)] += f.n
    last = min(max((until_us - from_us - low) // width, *ends, *failures) if ends or failures else bins - 1, bins - 1)
    return binned(starts, ends, failures, from_us + int(low), width, 0, int(last))


def outlined(
    found: Sequence[TimelineNode], outline: Sequence[NodeOutline], statuses: Mapping[str, str], is_over: bool
) -> list[TimelineNode]:
    """Lanes of a flow: each with the nodes before it, and those that have not begun. Nodes that leave nothing behind, such as a choice, are
    known from a replay (`statuses`), else from what follows them."""
    known = {n.node: n for n in found}
    followed = {a for o in outline if o.path in known for a in o.after}
    lanes = [_outlined(o, known, statuses, followed, is_over) for o in outline]
    paths = {o.path for o in outline}
    return [*lanes, *(n for n in found if n.node not in paths)]


def _outlined(
    o: NodeOutline, known: Mapping[str, TimelineNode], statuses: Mapping[str, str], followed: set[str], is_over: bool
) -> TimelineNode:
    lane = known.get(o.path)
    if lane is not None:
        kind = lane.kind if lane.kind == "fanout" else o.kind
        return msgspec.structs.replace(lane, kind=kind, after=list(o.after))
    guess = "success" if o.path in followed else "skipped" if is_over else "pending"
    word = statuses.get(o.path, guess)
    word = {"waiting": "running"}.get(word, word)
    return TimelineNode(
        node=o.path,
        kind=o.kind,  # type: ignore[arg-type]
        status=int(TaskStatus[word.upper()]),
        tasks=0,
        counts={},
        after=list(o.after),
    )


def timeline(rows: TimelineRows, found: list[TimelineNode], work: Iterable[tuple[int, int]]) -> Timeline:
    item = rows.item
    begins = [n.first_us for n in found if n.first_us is not None]
    from_us = min([item.created_us, *begins])
    to_us = item.finished_us if item.finished_us is not None else max(rows.now_us, from_us)
    counts: Counter[int] = Counter()
    for n in found:
        if n.kind in ("task", "fanout"):
            counts.update(n.counts)
    return Timeline(
        run_id=item.run_id,
        from_us=from_us,
        to_us=to_us,
        ended=item.finished_us is not None,
        total=sum(counts.values()),
        counts=dict(counts),
        nodes=found[:NODES_MAX],
        idle=idle_spans(work, from_us, to_us),
        truncated=rows.capped or len(found) > NODES_MAX,
    )

"""Ended tasks of runs with many, counted by node: the rows of node_count that a commit changes.

Every task of a large run passes through here, so the common case is short: one node, and integers. perdure.count_tasks counts the same in SQL,
for the rare statements that copy tasks or take them back.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from math import floor, log
from operator import sub
from typing import Any, Final, NamedTuple

from perdure.core import ids
from perdure.core.timeline.bins import COUNTED_FROM, PART_US, part_bin
from perdure.core.timeline.rows import OCTAVE_BINS
from perdure.core.timeline.spans import LN2
from perdure.core.timeline.steps import node_name
from perdure.engine.commits.rows import TaskRow


class NodeCountRow(NamedTuple):
    """`n` more tasks of a node."""

    run_id: bytes
    node: str
    what: str
    bin: int
    ns: int
    n: int


_NS, _RUN, _NAME, _NODE, _STATUS, _ATTEMPTS, _STARTED, _FINISHED = (
    TaskRow._fields.index(name)
    for name in ("ns", "run_id", "name", "node", "status", "attempts", "started_at", "finished_at")
)
Columns = list[tuple[Any, ...]]
"""Of TaskRow, in its order."""
_SUCCESS: Final = "success"
_FAILED: Final = "failed"


def node_counts(tasks: Sequence[TaskRow]) -> list[NodeCountRow]:
    """Empty where no run has that many tasks."""
    counted = [t for t in tasks if t.seq >= COUNTED_FROM]
    if not counted:
        return []
    found: list[NodeCountRow] = []
    for (run_id, node), columns in _groups(counted):
        ns = columns[_NS][0]
        for what, bins in _counts(columns, ids.unix_ms_of(run_id) * 1000):
            found += [NodeCountRow(run_id, node, what, number, ns, n) for number, n in bins.items()]
    found.sort()  # rows are locked in one order
    return found


def _groups(tasks: list[TaskRow]) -> list[tuple[tuple[bytes, str], Columns]]:
    """By run and node, in columns. Mostly all are of one."""
    columns = list(zip(*tasks, strict=True))
    runs, names, nodes = set(columns[_RUN]), set(columns[_NAME]), set(columns[_NODE])
    if len(runs) == 1 and nodes == {None} and len(names) == 1:
        return [((runs.pop(), names.pop()), columns)]
    groups: defaultdict[tuple[bytes, str], list[TaskRow]] = defaultdict(list)
    for t in tasks:
        node = t.node
        groups[t.run_id, t.name if node is None else node if "[" not in node else _plain(node)].append(t)
    return [(key, list(zip(*rows, strict=True))) for key, rows in groups.items()]


def _plain(label: str) -> str:
    """As `node_name`; most labels end with their only index."""
    head, _, rest = label.partition("[")
    return head if rest.find("[") < 0 and rest.endswith("]") else node_name(label)


def _counts(columns: Columns, base_us: int) -> list[tuple[str, Counter[int]]]:
    """Bins of the few different sixteenths of a second: a call for each task would cost more than all this."""
    starts: Sequence[Any] = columns[_STARTED]
    ends: Sequence[Any] = columns[_FINISHED]
    statuses = columns[_STATUS]
    words: Counter[str] = Counter(statuses)
    if None in starts or len(words) > 1:
        rows = list(zip(starts, ends, statuses, strict=True))
        took = [e - s for s, e, word in rows if word == _SUCCESS and s is not None]
        failed = [e for _, e, word in rows if word == _FAILED]
        starts, ends = [s for s in starts if s is not None], [e for s, e, _ in rows if s is not None]
    else:
        took = list(map(sub, ends, starts)) if _SUCCESS in words else []
        failed = list(ends) if _FAILED in words else []
    words.pop(_FAILED, None)
    return [
        ("start", _binned(starts, base_us)),
        ("end", _binned(ends, base_us)),
        ("duration", Counter([floor(OCTAVE_BINS * log(us if us > 1 else 1) / LN2) for us in took])),
        ("attempts", Counter(columns[_ATTEMPTS])),
        (_FAILED, _binned(failed, base_us)),
        *((word, Counter({0: n})) for word, n in words.items()),
    ]


def _binned(moments: Sequence[int], base_us: int) -> Counter[int]:
    found: Counter[int] = Counter()
    for part, n in Counter([(at - base_us) // PART_US for at in moments]).items():
        found[part_bin(part)] += n
    return found

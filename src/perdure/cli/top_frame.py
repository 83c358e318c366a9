"""What `perdure top` draws: one reading of a server, as tables that fit the terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from perdure.cli.render import Column, Item, ago, duration, flat

if TYPE_CHECKING:
    from rich.console import RenderableType

OLD_S: Final = 60.0
"""A task that has waited longer is marked."""
SLOW_COMMIT_MS: Final = 50.0
SLOW_ANSWER_MS: Final = 500.0
ROWS_MIN: Final = 3
"""Of each table, however low the terminal."""
HEAD_LINES: Final = 6
"""Above the tables, and the line of the cursor."""
TABLE_LINES: Final = 4
"""Of a table that are not its rows: a gap, two titles, how many more there are."""
LIMITS_SHOWN_MAX: Final = 5


class Sorting(StrEnum):
    """How workers are ordered."""

    NAME = "name"
    USED = "used"
    FAILED = "failed"
    SLOW = "p99"

    def next(self) -> Sorting:
        all_ = list(Sorting)
        return all_[(all_.index(self) + 1) % len(all_)]

    @property
    def key(self) -> Callable[[Item], Any]:
        match self:
            case Sorting.USED:
                return lambda w: -_share(w)
            case Sorting.FAILED:
                return lambda w: -(w.get("failed") or 0)
            case Sorting.SLOW:
                return lambda w: -(w.get("p99_s") or 0)
            case _:
                return lambda w: w["name"]


@dataclass(frozen=True)
class Snapshot:
    at: datetime
    url: str
    namespace: str
    server: Item
    counts: Item
    totals: Item
    rates: tuple[float, float] | None
    queues: list[Item]
    workers: list[Item]
    limits: list[Item]
    stuck: list[Item]
    answer_ms: float

    def as_data(self) -> Item:
        slots, used = sum(w.get("slots", 0) for w in self.workers), sum(w.get("slots_used", 0) for w in self.workers)
        return {
            "at": self.at.isoformat(timespec="milliseconds"),
            "url": self.url,
            "namespace": self.namespace,
            "server": self.server,
            "runs": {**self.counts, "last_24h": self.totals},
            "slots": {"used": used, "total": slots},
            "queues": by_queue(self.queues),
            "workers": self.workers,
            "limits": self.limits,
            "stuck": self.stuck,
            "answer_ms": self.answer_ms,
        }


def by_queue(items: Sequence[Item]) -> list[Item]:
    """The kinds of tasks of each queue as one line, the one with the oldest waiting task first."""
    found = []
    for name, group in groupby(sorted(items, key=lambda q: q["queue"]), key=lambda q: q["queue"]):
        kinds = list(group)
        ages = [q["oldest_age_s"] for q in kinds if q.get("oldest_age_s") is not None]
        found.append(
            {
                "queue": name,
                "pending": sum(q.get("pending") or 0 for q in kinds),
                "running": sum(q.get("running") or 0 for q in kinds),
                "oldest_age_s": max(ages, default=None),
                "unserved": [q["task"] for q in kinds if not q.get("workers") and q.get("pending")],
            }
        )
    return sorted(found, key=lambda q: -(q["oldest_age_s"] or 0))


def plain(s: Snapshot) -> str:
    """Lines for a pipe: a word for the kind, then values."""
    c = s.counts
    lines: list[tuple[Any, ...]] = [("runs", c["active"], c["pending"], c["failed_24h"], len(s.stuck))]
    lines += [("queue", q["queue"], q["pending"], q["running"], q["oldest_age_s"]) for q in by_queue(s.queues)]
    lines += [("worker", w["name"], w.get("slots_used"), w.get("slots"), w.get("runs_held")) for w in s.workers]
    lines += [("limit", u["key"], u["held"], u["limit"], u["waiting"]) for u in s.limits]
    lines += [("stuck", r["id"], r["workflow"], r.get("stuck"), "") for r in s.stuck]
    return "\n".join("\t".join(map(flat, line)).rstrip() for line in lines)


def draw(
    s: Snapshot, sorting: Sorting, width: int, *, height: int | None = None, is_paused: bool = False
) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    tables = [
        ("Queues", by_queue(s.queues), _QUEUES, "no task waits or has been running for a while"),
        (f"Workers by {sorting}", sorted(s.workers, key=sorting.key), _WORKERS, "no workers are connected"),
        ("Limits", sorted(s.limits, key=lambda u: -u["waiting"])[:LIMITS_SHOWN_MAX], _LIMITS, ""),
        ("Stuck runs: perdure show RUN", s.stuck, _STUCK, ""),
    ]
    shown = [table for table in tables if table[1] or table[3]]
    rows_max = _rows_of_each([len(items) for _, items, _, _ in shown], height)
    parts: list[RenderableType] = [*_head(s, width, is_paused=is_paused)]
    for (title, items, columns, empty), rows in zip(shown, rows_max, strict=True):
        parts += [Text(), Text(title, style="bold", no_wrap=True, overflow="ellipsis")]
        parts.append(_rows(items[:rows], columns, width) if items else Text(empty, style="dim"))
        if len(items) > rows:
            parts.append(Text(f"… {len(items) - rows} more", style="dim"))
    return Group(*parts)


def away(page: RenderableType, trouble: str) -> RenderableType:
    """The last page, marked as old."""
    from rich.console import Group
    from rich.text import Text

    return Group(Text(f"NOT CURRENT: {trouble}", style="bold red", no_wrap=True, overflow="ellipsis"), page)


def _head(s: Snapshot, width: int, *, is_paused: bool) -> list[RenderableType]:
    from rich.text import Text

    c, day = s.counts, s.totals
    slots, used = sum(w.get("slots", 0) for w in s.workers), sum(w.get("slots_used", 0) for w in s.workers)
    rates = "" if s.rates is None else f"   started {s.rates[0]:,.1f}/s   ended {s.rates[1]:,.1f}/s"
    commit = c.get("commit_p50_ms")
    more = "+" if c.get("capped") else ""
    title = Text(f"perdure {s.server['version']}", style="bold")
    title.append(f"  {s.url}  {s.namespace}  {s.at.astimezone():%H:%M:%S}", style="dim")
    title.append("  PAUSED" if is_paused else "", style="bold yellow")
    runs = Text(f"runs      {c['active'] - c['pending']:,} running   {c['pending']:,} pending{more}{rates}")
    last = Text(f"24 h      {day['success']:,} succeeded   ")
    last.append(f"{day['failed']:,} failed", style="red" if day["failed"] else "")
    last.append(
        f"   {day['cancelled']:,} cancelled   {c['dead_letters']:,} dead letters   {c['approvals']:,} approvals"
    )
    work = Text(f"capacity  {c['engines']} engines   {c['workers']} workers   slots {used:,}/{slots:,} ")
    work.append_text(_bar(used, slots, max(0, min(24, width - work.cell_len - 1))))
    base = Text("database  ")
    base.append(
        f"commit p50 {f'{commit:g} ms' if commit is not None else '-'}", style=_above(commit or 0, SLOW_COMMIT_MS)
    )
    base.append("   ")
    base.append(f"API answered in {s.answer_ms:g} ms", style=_above(s.answer_ms, SLOW_ANSWER_MS))
    base.append(f"   lease {s.server['limits']['lease_s']:g} s", style="dim")
    lines = [title, runs, last, work, base]
    for line in lines:
        line.no_wrap, line.overflow = True, "ellipsis"
    return list(lines)


def _bar(used: int, slots: int, cells: int) -> Any:
    from rich.text import Text

    full = round(cells * used / slots) if slots else 0
    bar = Text("█" * full, style="green" if used < slots else "yellow")
    bar.append("░" * (cells - full), style="dim")
    return bar


def _rows_of_each(lengths: Sequence[int], height: int | None) -> list[int]:
    """How many rows of each table fit on the terminal: short tables whole, long ones share what is left."""
    if height is None:
        return list(lengths)
    left, given = max(height - HEAD_LINES - TABLE_LINES * len(lengths), 0), [0] * len(lengths)
    for n, index in enumerate(sorted(range(len(lengths)), key=lengths.__getitem__)):
        given[index] = min(lengths[index], max(left // (len(lengths) - n), ROWS_MIN))
        left = max(left - given[index], 0)
    return given


def _rows(items: list[Item], columns: Sequence[Column], width: int) -> RenderableType:
    from perdure.cli.render import table

    return table(items, [c for c in columns if width >= _LEAST_WIDTH.get(c.title, 0)], width)


def _above(value: float, limit: float) -> str:
    return "yellow" if value > limit else ""


def _share(worker: Item) -> float:
    return (worker.get("slots_used") or 0) / (worker.get("slots") or 1)


def _state(w: Item) -> str:
    return "blocked" if w.get("blocked") else "draining" if w.get("draining") else "ready"


_LEAST_WIDTH: Final = {"p50": 70, "p99": 70, "ended": 60, "host": 100, "seen": 80, "no worker for": 60, "because": 60}
"""On a narrower terminal the column is left out."""

_QUEUES: Final = [
    Column("queue", lambda q: q["queue"], style="bold"),
    Column("pending", lambda q: q["pending"], lambda q: f"{q['pending']:,}", right=True),
    Column("running", lambda q: q["running"], lambda q: f"{q['running']:,}", right=True),
    Column(
        "oldest",
        lambda q: q["oldest_age_s"],
        lambda q: duration(q["oldest_age_s"]),
        style=lambda q: _above(q["oldest_age_s"] or 0, OLD_S),
        right=True,
    ),
    Column("no worker for", lambda q: ", ".join(q["unserved"]), style="bold red"),
]
_WORKERS: Final = [
    Column("worker", lambda w: w["name"], style="bold"),
    Column("state", _state, style=lambda w: "green" if _state(w) == "ready" else "yellow", whole=True),
    Column("slots", lambda w: f"{w.get('slots_used', 0)}/{w.get('slots', 0)}", right=True),
    Column("runs", lambda w: w.get("runs_held"), right=True),
    Column("ended", lambda w: w.get("ended"), right=True),
    Column("failed", lambda w: w.get("failed"), style=lambda w: "red" if w.get("failed") else "", right=True),
    Column("p50", lambda w: w.get("p50_s"), lambda w: duration(w.get("p50_s")), right=True),
    Column("p99", lambda w: w.get("p99_s"), lambda w: duration(w.get("p99_s")), right=True),
    Column("host", lambda w: f"{w.get('host')}:{w.get('pid')}", style="dim"),
    Column("seen", lambda w: w.get("seen_at"), lambda w: ago(w.get("seen_at")), "dim"),
]
_LIMITS: Final = [
    Column("limit", lambda u: u["key"], style="bold"),
    Column("held", lambda u: u["held"], right=True),
    Column("of", lambda u: u["limit"], right=True),
    Column("waiting", lambda u: u["waiting"], style=lambda u: "yellow" if u["waiting"] else "", right=True),
]
_STUCK: Final = [
    Column("run", lambda r: r["id"][:13], whole=True),
    Column("workflow", lambda r: r["workflow"], style="bold"),
    Column("because", lambda r: r.get("stuck"), style="red"),
]

"""A run on a terminal: status, wait reason, result or error, and tasks.

The tasks of a fan-out are one line with counts. Those that failed or are running are also listed one by one.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from perdure.cli.render import (
    MARKS,
    STYLES,
    Item,
    ago,
    duration,
    flat,
    local_time,
    pretty,
    seconds_between,
    seconds_until,
    status_word,
)

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

GROUP_FROM = 6
"""This many consecutive tasks of one name are drawn as one line."""
SINGLED_OUT_MAX = 5
"""Failed and running tasks of a group that are listed one by one."""
UNDO_SHOWN_MAX = 10
"""Entries of the undo stack."""
TASKS_SHOWN_MAX = 500
ATTEMPTS_SHOWN_MAX = 5
"""Failed attempts of one task, the last ones."""
BAR_CHARS = 20
"""Width of the bar of a task that says how far it is."""
LINES_MAX = 60
"""Lines of tasks."""
OUR_FRAME = re.compile(r'^  File "[^"\n]*/perdure/(?:sdk|core|app)/[^\n]*\n(?:    [^\n]*\n)*', re.MULTILINE)
"""A frame of Perdure in the text of a traceback, with its source lines."""


EMPTY: Mapping[int, list[Item]] = {}


@dataclass
class TreeGroup:
    """Consecutive tasks of one name, or of one node of a flow."""

    name: str
    tasks: list[Item] = field(default_factory=list)

    @property
    def counts(self) -> dict[str, int]:
        out: dict[str, int] = {}
        for t in self.tasks:
            out[t["status"]] = out.get(t["status"], 0) + 1
        return out

    @property
    def status(self) -> str:
        """Active statuses come first, then failures."""
        counts = self.counts
        for word in ("running", "dispatched", "pending", "failed", "cancelled", "success"):
            if word in counts:
                return word
        return "skipped"

    @property
    def singled_out(self) -> list[Item]:
        """Failed tasks, and the running ones if there are few, else those that block a worker."""
        failed = [t for t in self.tasks if t["status"] == "failed"]
        running = [t for t in self.tasks if t["status"] == "running"]
        blocking = [t for t in running if t.get("blocked")]
        return failed[:SINGLED_OUT_MAX] + (running if len(running) <= SINGLED_OUT_MAX else blocking[:SINGLED_OUT_MAX])


BLOCKED_SHOWN = 3
"""Blocked nodes of a flow that `show` lists."""


def label(task: Item) -> str:
    """The node of a flow with its index in a fan-out, or the task's name."""
    return str(task.get("node") or task["name"])


def grouped(tasks: Iterable[Item]) -> list[Item | TreeGroup]:
    """Tasks in the order of their scheduling, with fan-outs as groups."""
    rows: list[TreeGroup] = []
    for task in sorted(tasks, key=lambda t: t["seq"]):
        name = label(task).partition("[")[0]
        if rows and rows[-1].name == name:
            rows[-1].tasks.append(task)
        else:
            rows.append(TreeGroup(name, [task]))
    out: list[Item | TreeGroup] = []
    for group in rows:
        if len(group.tasks) >= GROUP_FROM:
            out.append(group)
        else:
            out.extend(group.tasks)
    return out


def run_view(
    run: Item,
    tasks: list[Item],
    *,
    logs: list[Item] | None = None,
    failed: Mapping[int, list[Item]] = EMPTY,
    children: Sequence[Item] = (),
) -> RenderableType:
    """Everything that `show` and `watch` draw. `failed`: attempts of a task that were followed by another one."""
    from rich.console import Group as Stack

    parts: list[RenderableType] = [headline(run), details(run)]
    total = sum((run.get("tasks") or {}).values())
    if tasks:
        parts += ["", task_lines(tasks, total, failed)]
    if children:
        parts += ["", *child_lines(children)]
    if run.get("error"):
        parts += ["", error_block(run["error"])]
    if logs:
        parts += ["", *log_lines(logs)]
    return Stack(*parts)


def child_lines(children: Sequence[Item]) -> Iterator[Text]:
    from rich.text import Text

    yield Text("child runs", style="dim")
    for child in reversed(children):
        word = status_word(child)
        line = Text("  ")
        line.append(f"{MARKS.get(word, ' ')} ", style=STYLES.get(word, ""))
        line.append(child["workflow"])
        line.append(f"  {child['id']}  {word}", style="dim")
        yield line


def headline(run: Item) -> Text:
    from rich.text import Text

    word = status_word(run)
    line = Text()
    line.append(f"{MARKS.get(word, ' ')} ", style=STYLES.get(word, ""))
    line.append(run["workflow"], style="bold")
    line.append("  ")
    line.append(word, style=STYLES.get(word, ""))
    took = duration(seconds_between(run.get("created_at"), run.get("finished_at")))
    line.append(f"  {'in' if run.get('finished_at') else 'for'} {took}", style="dim")
    return line


def details(run: Item) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for title, value, style in _detail_rows(run):
        table.add_row(f"  {title}", Text(value, style=style))
    return table


def _detail_rows(run: Item) -> Iterable[tuple[str, str, str]]:
    yield "id", run["id"], ""
    if run.get("key"):
        yield "key", run["key"], ""
    yield "started", f"{local_time(run['created_at'])} ({ago(run['created_at'])})", ""
    yield "version", str(run.get("version", "")), ""
    if run.get("attributes"):
        yield "attributes", "  ".join(f"{k}={v}" for k, v in run["attributes"].items()), ""
    if run.get("parent_id"):
        yield "parent", run["parent_id"], ""
    if run.get("rerun_of"):
        yield "rerun of", run["rerun_of"], ""
    if run.get("forked_from"):
        yield "forked from", f"{run['forked_from']} at event {run['forked_at']}", ""
    if run.get("successor"):
        yield "continues as", run["successor"], ""
    if run.get("stuck"):
        yield "stuck", str(run["stuck"]), STYLES["failed"]
    if run.get("waiting") and not run.get("finished_at"):
        yield "waiting", waiting_text(run["waiting"]), "yellow"
        yield from (("blocked", text, "dim") for text in blocked_texts(run["waiting"]))
    if run.get("unread"):
        yield "unread", unread_text(run["unread"]), "yellow"
    if run.get("input") not in (None, {}, []):
        yield "input", pretty(run["input"]), ""
    if run.get("undo"):
        yield "undo", undo_text(run["undo"]), ""
    if run["status"] == "success":
        yield "result", pretty(run.get("result")), "bold"
    if run.get("url"):
        yield "page", run["url"], "blue"


def unread_text(unread: list[Item]) -> str:
    """Messages that the run has not got: `2 x signal shipped, set aside (failed); 1 x cancel, pending`."""
    counts: Counter[tuple[str, str]] = Counter()
    for message in unread:
        what = f"{message['kind']} {message['name']}" if message["name"] else message["kind"]
        ended = message["set_aside"]
        counts[what, f"set aside ({ended})" if ended else "pending"] += 1
    return "; ".join(f"{n} x {what}, {state}" for (what, state), n in counts.items())


def undo_text(undo: list[Item]) -> str:
    """The undo stack, newest first: `pack undone, charge by refund`."""
    words = [f"{u['name']} by {u['undo']}" if u["status"] == "ready" else f"{u['name']} {u['status']}" for u in undo]
    more = f", and {len(words) - UNDO_SHOWN_MAX} more" if len(words) > UNDO_SHOWN_MAX else ""
    return ", ".join(words[::-1][:UNDO_SHOWN_MAX]) + more


def blocked_texts(waiting: Any) -> list[str]:
    """Nodes of a flow that wait for others, except for the first reason, which is printed as the wait reason."""
    waits = waiting.get("waits", []) if isinstance(waiting, dict) else []
    return [w["text"] for w in waits[1:] if w["on"] == "dependency"][:BLOCKED_SHOWN]


def waiting_text(waiting: Any) -> str:
    """The wait reason in the words of the server."""
    if isinstance(waiting, str):
        return waiting
    pause = seconds_until(waiting.get("timer_at"))
    return f"{waiting['reason']}{f' (in {duration(pause)})' if pause > 0 else ''}"


def task_lines(tasks: list[Item], total: int, failed: Mapping[int, list[Item]] = EMPTY) -> RenderableType:
    from rich.tree import Tree

    tree = Tree("tasks", hide_root=True, guide_style="dim")
    drawn = 0
    for row in grouped(tasks):
        if drawn >= LINES_MAX:
            break
        drawn += 1
        if isinstance(row, TreeGroup):
            branch = tree.add(_group_line(row))
            for task in row.singled_out:
                _add_task(branch, task, failed.get(task["seq"], ()), numbered=True)
        else:
            _add_task(tree, row, failed.get(row["seq"], ()))
    hidden = total - len(tasks)
    if hidden > 0 or drawn >= LINES_MAX:
        from rich.text import Text

        tree.add(Text(f"… {total:,} tasks in total; `perdure open` shows all of them", style="dim"))
    return tree


def _group_line(group: TreeGroup) -> Text:
    from rich.text import Text

    line = Text()
    line.append(f"{MARKS[group.status]} ", style=STYLES[group.status])
    line.append(group.name)
    line.append(f" × {len(group.tasks):,}  ", style="dim")
    for n, (word, count) in enumerate(group.counts.items()):
        line.append(", " if n else "", style="dim")
        line.append(f"{count:,} {word}", style=STYLES[word])
    return line


def _add_task(tree: Any, task: Item, failed: Sequence[Item] = (), *, numbered: bool = False) -> None:
    from rich.text import Text

    word = task["status"]
    line = Text()
    line.append(f"{MARKS[word]} ", style=STYLES[word])
    line.append(f"{task['name']}#{task['seq']}" if numbered and not task.get("node") else label(task))
    if word not in ("success", "pending"):
        line.append(f"  {word}", style=STYLES[word])
    for remark in task_remarks(task):
        line.append(f"  {remark}", style="dim")
    branch = tree.add(line)
    if task.get("progress") and not task.get("finished_at"):
        branch.add(progress_line(task["progress"]))
    for attempt in failed[-ATTEMPTS_SHOWN_MAX:]:
        branch.add(Text(attempt_line(attempt), style="dim"))
    if task.get("error") and word != "success":
        branch.add(Text(error_line(task["error"]), style="red"))
    if task.get("blocked"):
        blocked = Text()
        blocked.append("blocks the event loop of its worker here:\n", style="yellow")
        blocked.append(str(task["blocked"]).rstrip(), style="dim")
        branch.add(blocked)


def progress_line(progress: Item) -> Text:
    """`━━━━━━━━━━          50%  5/10  reading b.csv`; without a total only the count."""
    from rich.text import Text

    done, total = progress["done"], progress.get("total")
    line = Text()
    if total:
        share = min(done / total, 1.0)
        filled = int(share * BAR_CHARS)
        line.append("━" * filled, style="green")
        line.append("━" * (BAR_CHARS - filled), style="bright_black")
        line.append(f" {int(share * 100)}%")
    counted = f"{_count(done)}/{_count(total)}" if total else _count(done)
    line.append(f"  {counted}" if total else counted)
    if progress.get("text"):
        line.append(f"  {flat(progress['text'])}", style="dim")
    return line


def _count(n: float) -> str:
    return f"{int(n):,}" if n == int(n) else f"{n:,.1f}"


def attempt_line(a: Item) -> str:
    """An attempt that failed, on one line: `attempt 1  error after 12ms  on box-1  ValueError: no such card`."""
    took = f" after {duration(a['wall_s'])}" if a.get("wall_s") is not None else ""
    words = [f"attempt {a['attempt']}", f"{a['outcome']}{took}"]
    if a.get("worker"):
        words.append(f"on {a['worker']}")
    if a.get("error"):
        words.append(error_line(a["error"]))
    return "  ".join(words)


def task_remarks(task: Item) -> Iterable[str]:
    if task.get("node") and task["name"] not in (label(task).partition("[")[0], ""):
        yield task["name"]
    took = seconds_between(task.get("started_at"), task.get("finished_at"))
    if task.get("copied"):
        yield "copied"
    elif took is not None:
        yield duration(took)
    elif task["status"] == "pending":
        pause = seconds_until(task.get("run_at"))
        yield f"next attempt in {duration(pause)}" if pause > 0 else f"waiting in queue {task.get('queue')}"
    if (task.get("attempts") or 0) > 1:
        yield f"{task['attempts']} attempts" if task.get("finished_at") else f"attempt {task['attempts']}"
    if task.get("lost"):
        yield f"lost {task['lost']}×"
    if task["status"] == "running" and task.get("worker"):
        yield f"on {task['worker']}"
    if task.get("details") not in (None, "", {}):
        yield str(task["details"]) if isinstance(task["details"], str) else pretty(task["details"])


def error_line(error: Any) -> str:
    """Type and message of an error on one line."""
    if isinstance(error, str):
        return error.splitlines()[0] if error else ""
    head = (str(error.get("message") or "").splitlines() or [""])[0]
    kind = error.get("type") or error.get("code")
    return f"{kind}: {head}" if kind else head


def error_block(error: Any) -> RenderableType:
    from rich.console import Group as Stack
    from rich.padding import Padding
    from rich.text import Text

    traceback = user_frames(str(error.get("traceback") or "")) if isinstance(error, dict) else ""
    if not traceback:
        text = error if isinstance(error, str) else error_text(error)
        return Text(text, style=STYLES["failed"])
    return Stack(Text(error_line(error), style=STYLES["failed"]), Padding(Text(traceback, style="dim"), (0, 0, 0, 2)))


def user_frames(traceback: str) -> str:
    """The traceback without frames of Perdure, unless it has no other frames."""
    kept = OUR_FRAME.sub("", traceback).strip()
    return kept if '  File "' in kept else traceback.strip()


def error_text(error: Item) -> str:
    kind = error.get("type") or error.get("code")
    return f"{kind}: {error.get('message', '')}" if kind else str(error.get("message", ""))


def log_lines(lines: Iterable[Item]) -> list[Text]:
    from rich.text import Text

    return [Text(f"{line.get('task') or ''} | {line['text']}", style="dim") for line in lines]


def useful_next(run: dict[str, Any]) -> list[str]:
    if run.get("stuck"):
        return [f"perdure resume {run['id']}    after fixing the code"]
    match run["status"]:
        case "failed":
            refused = run.get("retry_refused")
            again = f"cannot be retried: {refused}" if refused else f"perdure retry {run['id']}"
            return [f"perdure logs {run['id']}", again]
        case "pending" | "running":
            return [f"perdure watch {run['id']}"]
        case _:
            return []

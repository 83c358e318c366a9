"""The output of commands.

A table on a terminal, tab-separated lines in a pipe, JSON or YAML on request. In a pipe stdout holds data only; links and hints go
to stderr. On a terminal both go to stdout.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from perdure.cli.stored_values import readable
from perdure.core.errors import InvalidInput
from perdure.core.names import escaped
from perdure.programs.terminal import console

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

Item = dict[str, Any]
Mode = Literal["table", "plain", "json", "yaml"]

STYLES = {
    "success": "green",
    "failed": "bold red",
    "cancelled": "yellow",
    "running": "cyan",
    "dispatched": "cyan",
    "pending": "dim",
    "skipped": "dim",
    "stuck": "bold red",
    "paused": "yellow",
}
MARKS = {
    "success": "✓",
    "failed": "✗",
    "cancelled": "⊘",
    "running": "●",
    "dispatched": "◌",
    "pending": "○",
    "skipped": "–",
    "stuck": "!",
    "paused": "‖",
}
COLUMN_GAP = 2
CUT_CHARS_MIN = 8
"""Minimum width of a column that is truncated."""
WRAPPED_CHARS_MIN = 16
"""Minimum width of a column that is wrapped."""
VALUE_CHARS_MAX = 2_000
"""Maximum length of a result or an input on a terminal; `-o json` prints all of it."""


@dataclass(frozen=True)
class Column:
    """A column: the value for programs, and the text for people where it differs."""

    title: str
    value: Callable[[Item], Any]
    shown: Callable[[Item], str] | None = None
    style: Callable[[Item], str] | str = ""
    right: bool = False
    fold: bool = False
    """Long texts are wrapped, not truncated."""
    whole: bool = False
    """Never truncated, however narrow the terminal: ids and names that commands take as arguments, and statuses."""


class Output:
    def __init__(self, output: str | None = None, fields: str | None = None, *, as_json: bool = False) -> None:
        self.fields = [f.strip() for f in fields.split(",") if f.strip()] if fields else []
        self.mode: Mode = _mode(output, as_json=as_json, has_fields=bool(self.fields))

    @cached_property
    def console(self) -> Console:
        """Built on first use: output to a pipe does without rich."""
        return console(sys.stdout)

    @property
    def is_for_people(self) -> bool:
        return self.mode == "table"

    def rows(self, items: Iterable[Item], columns: Sequence[Column], *, empty: str) -> int:
        """Prints a list, or `empty` on a terminal if it has no entries. Returns the number of entries."""
        if self.mode == "plain":
            return _plain_rows(items, columns)
        found = list(items)
        if self.mode == "table":
            if found:
                self.console.print(table(found, columns, self.console.width), crop=False)
            else:
                self.say(empty)
        else:
            self.data(found)
        return len(found)

    def one(self, item: Item, *, people: Callable[[], None], plain: Sequence[Any]) -> None:
        """Prints one item: `people` on a terminal, the `plain` values in one line in a pipe, all of it as JSON or YAML."""
        if self.mode == "table":
            people()
        elif self.mode == "plain":
            print("\t".join(flat(v) for v in plain))
        else:
            self.data(item)

    def data(self, value: Any) -> None:
        """Prints JSON or YAML, limited to the chosen fields."""
        if self.fields:
            value = [project(v, self.fields) for v in value] if isinstance(value, list) else project(value, self.fields)
        if self.mode == "yaml":
            import yaml

            text = yaml.safe_dump(value, sort_keys=False, allow_unicode=True)
            # YAML's own escapes, where control characters need any, survive a round trip.
            print(text if escaped(text) == text else yaml.safe_dump(value, sort_keys=False), end="")
        elif sys.stdout.isatty():
            self.console.print_json(json.dumps(value, ensure_ascii=False), indent=2)
        else:
            print(json.dumps(value, ensure_ascii=False))

    def say(self, text: str) -> None:
        """Prints a note for people, which is never part of the data."""
        if self.is_for_people:
            self.console.print(text, style="dim", highlight=False, markup=False, soft_wrap=True)
        else:
            print(text, file=sys.stderr)

    def next(self, *commands: str) -> None:
        """Prints commands that are useful next."""
        if commands and self.is_for_people:
            self.console.print()
        for command in commands:
            self.say(f"  {command}")


def _mode(output: str | None, *, as_json: bool, has_fields: bool) -> Mode:
    if as_json and output not in (None, "json"):
        raise InvalidInput(f"--json and -o {output} contradict each other; use one of them")
    if has_fields and output == "table":
        raise InvalidInput("--fields needs JSON or YAML output; it cannot be combined with -o table")
    if output in ("table", "json", "yaml"):
        return output  # type: ignore[return-value]
    if as_json or has_fields:
        return "json"
    return "table" if sys.stdout.isatty() else "plain"


def _plain_rows(items: Iterable[Item], columns: Sequence[Column]) -> int:
    count = 0
    for item in items:
        print("\t".join(flat(c.value(item)) for c in columns), flush=count % 100 == 0)
        count += 1
    return count


def table(items: list[Item], columns: Sequence[Column], width: int) -> RenderableType:
    from rich.cells import cell_len
    from rich.table import Table
    from rich.text import Text

    texts = [[escaped(c.shown(item) if c.shown else flat(c.value(item)), keep="") for c in columns] for item in items]
    longest = [max(map(cell_len, (c.title, *(row[n] for row in texts)))) for n, c in enumerate(columns)]
    widths = _widths(columns, longest, width)
    table_width = sum(widths) + COLUMN_GAP * (len(widths) - 1)
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, COLUMN_GAP, 0, 0), width=table_width)
    for c, column_width in zip(columns, widths, strict=True):
        table.add_column(
            c.title,
            justify="right" if c.right else "left",
            overflow="fold" if c.fold else "ellipsis",
            no_wrap=not c.fold,
            width=column_width,
        )
    for item, row in zip(items, texts, strict=True):
        styles = [c.style(item) if callable(c.style) else c.style for c in columns]
        table.add_row(*(Text(text, style=style) for text, style in zip(row, styles, strict=True)))
    return table


def _widths(columns: Sequence[Column], longest: Sequence[int], width: int) -> list[int]:
    """Shrinks the widest columns first. Columns marked `whole` never shrink, even if the table gets wider than the terminal."""
    widths = list(longest)
    least = [
        n if c.whole else min(n, WRAPPED_CHARS_MIN if c.fold else CUT_CHARS_MIN)
        for c, n in zip(columns, longest, strict=True)
    ]
    over = sum(widths) + COLUMN_GAP * (len(widths) - 1) - width
    while over > 0:
        widest = max((n for n in range(len(widths)) if widths[n] > least[n]), key=lambda n: widths[n], default=None)
        if widest is None:
            break
        widths[widest] -= 1
        over -= 1
    return widths


def project(item: Any, fields: Sequence[str]) -> Item:
    """The item with these fields only; `error.message` selects a nested field. Raises InvalidInput for an unknown field."""
    out: Item = {}
    for field in fields:
        value: Any = item
        for part in field.split("."):
            if value is None:
                break
            if not isinstance(value, dict) or part not in value:
                known = ", ".join(item) if isinstance(item, dict) else "none"
                raise InvalidInput(f"--fields: unknown field {field!r}; available: {known}")
            value = value[part]
        out[field] = value
    return out


def flat(value: Any) -> str:
    """A value on one line without tabs, for a column."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (dict, list)):
        value = readable(value)
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return " ".join(str(value).split()) if isinstance(value, str) else str(value)


def pretty(value: Any) -> str:
    """A JSON value for people: on one line if it fits, truncated if it is very long. A stored value is a line of text."""
    shown = readable(value)
    if isinstance(shown, str) and not isinstance(value, str):
        return shown
    value = shown
    line = json.dumps(value, ensure_ascii=False)
    text = line if len(line) <= 100 else json.dumps(value, ensure_ascii=False, indent=2)
    if len(text) <= VALUE_CHARS_MAX:
        return text
    return f"{text[:VALUE_CHARS_MAX]}\n… {len(text) - VALUE_CHARS_MAX:,} more characters; -o json prints all of them"


def status_word(item: Item) -> str:
    """The status of a run, or `paused` or `stuck` for a run that waits for an operator."""
    if item.get("paused_at"):
        return "paused"
    return "stuck" if item.get("stuck") else str(item["status"])


def status_shown(item: Item) -> str:
    word = status_word(item)
    return f"{MARKS.get(word, ' ')} {word}"


def status_style(item: Item) -> str:
    return STYLES.get(status_word(item), "")


def moment(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None


def seconds_between(start: str | None, end: str | None, now: datetime | None = None) -> float | None:
    """Seconds from `start` to `end`, or to now; None if `start` is not set."""
    began = moment(start)
    if began is None:
        return None
    ended = moment(end) or now or datetime.now(UTC)
    return max((ended - began).total_seconds(), 0.0)


def seconds_until(text: str | None) -> float:
    """Seconds until a point in time; 0 if there is none, negative if it has passed."""
    at = moment(text)
    return (at - datetime.now(UTC)).total_seconds() if at else 0.0


def duration(seconds: float | None) -> str:
    """12ms, 3.4s, 2m05s, 3h12m, 4d02h."""
    if seconds is None:
        return ""
    if seconds < 1:
        return f"{seconds * 1000:.0f}ms"
    if seconds < 60:
        return f"{seconds:.1f}s"
    for big, small, size, part in (("m", "s", 60, 1), ("h", "m", 3_600, 60), ("d", "h", 86_400, 3_600)):
        if seconds < size * (60 if big != "h" else 24) or big == "d":
            return f"{int(seconds // size)}{big}{int(seconds % size // part):02}{small}"
    raise AssertionError("days have no end")


def ago(text: str | None) -> str:
    seconds = seconds_between(text, None)
    if seconds is None:
        return ""
    if seconds < 2:
        return "now"
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)):
        if seconds >= size:
            return f"{int(seconds // size)}{unit} ago"
    return "now"


def local_time(text: str | None) -> str:
    """In the local time zone, to the second."""
    at = moment(text)
    return at.astimezone().strftime("%Y-%m-%d %H:%M:%S") if at else ""


def clock_time(text: str | None) -> str:
    at = moment(text)
    return at.astimezone().strftime("%H:%M:%S.%f")[:-3] if at else ""

"""Reading fields of a document: what is wanted, what was found, and where it stands. Problems are collected, never raised one by one.

A reader answers None for a field that is wrong, after recording why. Compilation continues with the rest, so that one pass finds
everything there is to find.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Final, cast

from perdure.core import expressions
from perdure.core.durations import to_us
from perdure.core.errors import InvalidInput
from perdure.core.expressions import Expr, ExprError
from perdure.core.expressions.template import SECRET, Template
from perdure.core.limits import NAME_CHARS_MAX
from perdure.core.names import UNSAFE, invalid_name
from perdure.core.suggestions import did_you_mean
from perdure.flows.model import SourcePlace
from perdure.flows.problems import PROBLEMS_MAX, DocumentProblem, FlowError, Path, one_of
from perdure.flows.source.document import Document

SECRET_HINT: Final = (
    "a secret may stand in what a task of a worker is given: url, headers, query and body of http, env of run, with of a Python task; "
    "a service has auth"
)
SHOWN_CHARS: Final = 60
"""Characters of a wrong value that a message quotes."""
PATH_STEPS_MAX: Final = 32
"""Steps of a dotted path."""


def found(value: Any) -> str:
    """A value in words, for messages."""
    match value:
        case None:
            return "nothing"
        case bool():
            return "true" if value else "false"
        case str():
            return f"the text {short(value)}"
        case int() | float():
            return f"the number {short(value)}"
        case list():
            return "a list"
        case _:
            return "a mapping"


def short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN_CHARS else f"{text[: SHOWN_CHARS - 1]}…"


class Scope:
    """The names an expression may begin with."""

    __slots__ = ("before", "own", "roots", "tasks", "types")

    def __init__(
        self,
        roots: frozenset[str],
        types: Mapping[str, Any],
        tasks: Mapping[str, int] | None = None,
        before: int = -1,
        own: str = "",
    ) -> None:
        self.roots = roots
        self.types = types
        self.tasks: Mapping[str, int] = tasks or {}
        """Of a dag."""
        self.before = before
        """A bit for every task that has ended by then."""
        self.own = own

    def plus(self, *roots: str) -> Scope:
        return Scope(self.roots.union(roots), self.types, self.tasks, self.before, self.own)

    def __contains__(self, root: str) -> bool:
        if root in self.roots:
            return True
        if root == self.own:
            return False
        index = self.tasks.get(root)
        return index is not None and bool(self.before >> index & 1)

    def refusal(self, root: str) -> tuple[str, str]:
        """Why a name is not in scope, and what to do."""
        if root == self.own:
            return (
                f"task {root!r} reads its own output",
                "in `set:` it is called `output`; elsewhere it does not exist yet",
            )
        if root in self.tasks:
            hint = f"add {root!r} to its depends_on" if self.own else ""
            return f"task {self.own!r} reads the output of {root!r}, which it does not wait for", hint
        if "-" in root and root.partition("-")[0] in self:
            return f"unknown name {short(root)}", "put spaces around the minus of a difference"
        if root in {"item", "index", "count"}:
            return f"{root!r} is known in a node with foreach or parallel only", ""
        if root == SECRET:
            return "a secret cannot be read here: the engine evaluates this, and records its value", SECRET_HINT
        if root == "output":
            return "'output' is known in `set:` only", ""
        known = [*self.roots, *(t for t, i in self.tasks.items() if self.before >> i & 1)]
        near = did_you_mean(root, known)
        return f"unknown name {short(root)}", near or f"known here: {one_of(sorted(known)[:20])}"


class Reader:
    """One compilation's view of its document."""

    def __init__(self, name: str, document: Document | None = None, *, typed: bool = True) -> None:
        self.name = name
        self.typed = typed
        """Whether expressions are held against what is known of the values they read."""
        self.document = document
        self.problems: list[DocumentProblem] = []
        self.warnings: list[DocumentProblem] = []

    def error(self, path: Path, message: str, hint: str = "", *, key: bool = False, offset: int | None = None) -> None:
        self.problems.append(self._problem(path, message, hint, key, offset, "error"))
        if len(self.problems) >= PROBLEMS_MAX:
            raise FlowError(self.problems)

    def warn(self, path: Path, message: str, hint: str = "", *, key: bool = False) -> None:
        if len(self.warnings) < PROBLEMS_MAX:
            self.warnings.append(self._problem(path, message, hint, key, None, "warning"))

    def _problem(
        self, path: Path, message: str, hint: str, key: bool, offset: int | None, severity: Any
    ) -> DocumentProblem:
        if self.document is None:
            return DocumentProblem(file=self.name, message=message, hint=hint, severity=severity, path=path)
        if offset is None:
            place = self.document.place(path, key=key)
        else:
            place = self.document.place_within(path, offset, key=key)
        return self.document.problem(place, message, hint=hint, severity=severity, path=path)

    def place(self, path: Path) -> SourcePlace:
        return SourcePlace() if self.document is None else self.document.place(path, key=True)

    def wanted(self, path: Path, what: str, wanted: str, value: Any) -> None:
        self.error(path, f"{what} is {found(value)}; it must be {wanted}")

    def mapping(self, value: Any, path: Path, what: str) -> dict[str, Any] | None:
        if isinstance(value, dict):
            return cast(dict[str, Any], value)
        self.wanted(path, what, "a mapping", value)
        return None

    def list_of(self, value: Any, path: Path, what: str) -> list[Any] | None:
        if isinstance(value, list):
            return value
        self.wanted(path, what, "a list", value)
        return None

    def text(self, value: Any, path: Path, what: str) -> str | None:
        if isinstance(value, str):
            return value
        self.wanted(path, what, "text", value)
        return None

    def name_of(self, value: Any, path: Path, what: str) -> str | None:
        """A name as tasks, workflows, queues and signals have them."""
        if not isinstance(value, str) or not value.strip():
            self.wanted(path, what, "a name", value)
        elif len(value) > NAME_CHARS_MAX:
            self.error(path, f"{what} has more than NAME_CHARS_MAX={NAME_CHARS_MAX} characters")
        elif UNSAFE.search(value):
            self.error(path, invalid_name(what, value))
        elif "${" in value:
            self.error(path, f"{what} is {found(value)}; expressions are not evaluated here", offset=value.index("${"))
        else:
            return value
        return None

    def names(self, value: Any, path: Path, what: str) -> list[tuple[str, Path]]:
        """One name or a list of names, each with its path. What is wrong is left out."""
        if isinstance(value, str):
            return [(value, path)]
        if not isinstance(value, list):
            self.wanted(path, what, "a name or a list of names", value)
            return []
        out: list[tuple[str, Path]] = []
        for i, item in enumerate(value):
            if isinstance(item, str):
                out.append((item, (*path, i)))
            else:
                self.wanted((*path, i), f"an entry of {what}", "a name", item)
        return out

    def boolean(self, value: Any, path: Path, what: str) -> bool | None:
        if isinstance(value, bool):
            return value
        self.wanted(path, what, "true or false", value)
        return None

    def integer(self, value: Any, path: Path, what: str, least: int, most: int) -> int | None:
        if isinstance(value, int) and not isinstance(value, bool) and least <= value <= most:
            return value
        self.wanted(path, what, f"a whole number from {least} to {most}", value)
        return None

    def number(self, value: Any, path: Path, what: str, least: float) -> float | None:
        if isinstance(value, (int, float)) and not isinstance(value, bool) and value >= least:
            return float(value)
        self.wanted(path, what, f"a number of at least {least:g}", value)
        return None

    def word(self, value: Any, path: Path, what: str, words: Collection[str]) -> str | None:
        if isinstance(value, str) and value in words:
            return value
        near = did_you_mean(value, words) if isinstance(value, str) else ""
        self.error(path, f"{what} is {found(value)}; it must be one of {one_of(words)}", near)
        return None

    def duration(self, value: Any, path: Path, what: str) -> int | None:
        """Microseconds."""
        if isinstance(value, bool) or not isinstance(value, (int, float, str)):
            self.wanted(path, what, 'a duration such as "30s", "1h30m" or a number of seconds', value)
            return None
        try:
            return to_us(value)
        except (InvalidInput, OverflowError, ValueError) as e:
            said = (
                str(e)
                if isinstance(e, InvalidInput) and len(str(value)) <= SHOWN_CHARS
                else f"{short(value)} is not a duration"
            )
            self.error(path, f"{what}: {said}")
            return None

    def dotted(self, value: Any, path: Path, what: str, *, key: bool = False) -> tuple[str, ...] | None:
        steps = tuple(value.split(".")) if isinstance(value, str) else ()
        if not steps or not all(s.strip() for s in steps):
            self.error(path, f"{what} is {found(value)}; it must be a dotted path such as report.total", key=key)
        elif len(steps) > PATH_STEPS_MAX:
            self.error(path, f"{what} has more than PATH_STEPS_MAX={PATH_STEPS_MAX} steps", key=key)
        elif any(len(s) > NAME_CHARS_MAX for s in steps):
            self.error(path, f"a step of {what} has more than NAME_CHARS_MAX={NAME_CHARS_MAX} characters", key=key)
        else:
            return steps
        return None

    def keys(self, value: Mapping[str, Any], path: Path, where: str, known: Collection[str]) -> None:
        """Complain about keys that are not known."""
        for key in value:
            if key not in known:
                self.unknown(key, path, where, known)

    def unknown(self, key: str, path: Path, where: str, known: Iterable[str], hint: str = "") -> None:
        known = list(known)
        near = hint or did_you_mean(key, known) or f"it takes {one_of(known)}"
        self.error((*path, key), f"unknown key {short(key)} in {where}", near, key=True)

    def expression(self, value: Any, path: Path, what: str, scope: Scope) -> Expr | None:
        """Text (`${ }` around it is optional), true, false, or the JSON form."""
        try:
            if isinstance(value, str):
                parsed = expressions.parse(value)
            elif isinstance(value, bool):
                parsed = expressions.parse("true" if value else "false")
            elif isinstance(value, (dict, list)):
                parsed = expressions.from_json(cast(Any, value))
            else:
                self.wanted(path, what, "an expression", value)
                return None
        except ExprError as e:
            self.error(path, f"{what}: {e.message}", offset=e.offset if isinstance(value, str) else None)
            return None
        return parsed if self.sound(parsed, path, scope, value if isinstance(value, str) else None) else None

    def template(self, value: Any, path: Path, scope: Scope) -> Template | None:
        """Any value with `${ }` inside."""
        try:
            made = Template.make(value)
        except ExprError as e:
            self._unreadable(value, path, e)
            return None
        if made.is_constant:
            return made
        before = len(self.problems)
        for one, place in zip(made.exprs, made.places, strict=True):
            self.sound(one, (*path, *place), scope, inner(value, place))
        return made if len(self.problems) == before else None

    def _unreadable(self, value: Any, path: Path, first: ExprError) -> None:
        """Every text in a value that cannot be read, not just the first."""
        before = len(self.problems)
        for leaf, where in leaves(value, path):
            if isinstance(leaf, str) and "${" in leaf:
                try:
                    Template.make(leaf)
                except ExprError as e:
                    self.error(where, e.message, offset=e.offset)
        if len(self.problems) == before:
            self.error((*path, *first.path), first.message, key=True)

    def sound(self, one: Expr, path: Path, scope: Scope, text: str | None) -> bool:
        """Whether an expression reads what is there, and what it says can work. `text` is what stands at the path, if it is text."""
        before = len(self.problems)
        for root in sorted(one.roots):
            if root not in scope:
                message, hint = scope.refusal(root)
                self.error(path, message, hint, offset=_offset_of(root, one, text))
        if self.typed and "tasks" in one.roots and scope.tasks:
            self._known_tasks(one, path, scope, text)
        if self.typed and scope.types and len(self.problems) == before:
            for said in expressions.check(one, scope.types):
                self.error(path, said, offset=_offset_of("", one, text))
        return len(self.problems) == before

    def _known_tasks(self, one: Expr, path: Path, scope: Scope, text: str | None) -> None:
        for found in one.paths:
            key = found[1] if found[0] == "tasks" and len(found) > 1 else None
            if isinstance(key, str) and key not in scope.tasks:
                near = did_you_mean(key, scope.tasks)
                self.error(path, f"there is no task {short(key)} here", near, offset=_offset_of("tasks", one, text))
            elif isinstance(key, str) and key not in scope:
                self.error(path, *scope.refusal(key), offset=_offset_of("tasks", one, text))


def leaves(value: Any, path: Path) -> Iterator[tuple[Any, Path]]:
    """Scalars in a value with their paths, in the order written."""
    todo: list[tuple[Any, Path]] = [(value, path)]
    while todo:
        item, where = todo.pop()
        if isinstance(item, dict):
            members = cast(dict[str, Any], item)
            todo.extend((v, (*where, k)) for k, v in reversed(members.items()))
        elif isinstance(item, list):
            parts = item
            todo.extend((parts[i], (*where, i)) for i in range(len(parts) - 1, -1, -1))
        else:
            yield item, where


def _offset_of(root: str, one: Expr, text: str | None) -> int | None:
    """Where in the text around it an expression first reads a root; its beginning for no root in particular."""
    if text is None:
        return None
    begin = max(0, text.find(one.text))
    m = re.search(rf"(?<![\w.\"'-]){re.escape(root)}(?![\w-])", one.text) if root else None
    return begin + (m.start() if m else 0)


def inner(value: Any, path: Path) -> Any:
    """What stands at a path of a value."""
    for step in path:
        value = value[step]
    return value

"""Writes the parts of the documentation that come from code: `uv run python docs/generate.py`.

    docs/reference/errors.md       whole page, from core/errors.py
    docs/reference/limits.md       whole page, from core/limits.py and the settings classes
    docs/concepts/lifecycles.md    the two diagrams, from the tables in core/lifecycle.py; the prose around them is written by hand

Meanings are read from the code: the tree in the docstring of core/errors.py, the string below a constant or a field. What only a
reader of the docs needs (what to do about an error) is in the tables here; a class without an entry stops the generator.
tests/docs/test_generated.py compares the pages with what this would write.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from enum import IntEnum
from pathlib import Path
from types import ModuleType
from typing import Any

import perdure
from perdure.core import commit_policy, errors, lifecycle, limits, placement
from perdure.engine import engine
from perdure.sdk import client

DOCS = Path(__file__).parent
BY = "<!-- Written by docs/generate.py. Change the code it reads, or the generator, and run it again. -->"

# -- errors ------------------------------------------------------------------------------------------------------------

MEANING = {
    "PerdureError": "the base of every error below",
    "Conflict": "what was asked for collides with what is already there",
    "PromiseAlreadyResolved": "the promise has its value; the first one stands",
    "RecordedError": "the base of errors rebuilt from a record; `failure` holds the original type name and traceback as text",
    "RunFailed": "the run's code raised, or the engine ended the run",
    "RunCancelled": "somebody cancelled the run and it has unwound",
    "TaskCancelled": "the task was cancelled before it ended",
    "HistoryTooLarge": "the run's history reached `HISTORY_EVENTS_MAX`",
}
"""For classes whose line in the tree says nothing beyond the code."""

ADVICE = {
    "PerdureError": "Catch it where you want everything Perdure can explain and nothing else.",
    "InvalidInput": "Correct the call; the message names the value. Trying again cannot help.",
    "PayloadMismatch": "Annotate with the exact type, or convert before passing on. After a change of signature, let the annotation accept both forms.",
    "PayloadTooLarge": "Store the data elsewhere and pass a reference. See [limits and large data](../how-to/limits-and-large-data.md).",
    "NotRegistered": "Import the module that defines it. If two functions claim one name, give one of them `name=`.",
    "NotFound": "Check the id and the namespace. A run that retention has dropped is gone.",
    "Conflict": "Try again, or choose another id.",
    "RunAlreadyExists": 'Choose another id, or say `on_conflict="attach"` or `"replace"`. Attaching needs the same workflow and input.',
    "PromiseAlreadyResolved": "Nothing to do: somebody else answered first.",
    "RunFinished": "Start a new run. Messages to a run that continued as new are forwarded; this one has really ended.",
    "Unavailable": "Try again later. Runs are not affected; they go on when the database is back.",
    "Fenced": "Nothing to do: the engine registers anew by itself. If it happens often, the process or the database stalls longer than `lease_s`.",
    "RecordedError": "Look at `error.failure.type` and `error.failure.traceback`.",
    "RunError": "Catch it around `Handle.result()` for both ends without success.",
    "RunFailed": "Read `error.failure.traceback`, repair the cause, start again.",
    "RunCancelled": "Expected after `Handle.cancel()`. The message is the reason that was given.",
    "TaskError": "Catch it around the await of a task for every end without success, for instance to compensate.",
    "TaskFailed": "Handle it in the workflow, or repair the task. `error.failure.type` names the original exception.",
    "TaskTimeout": "Raise `timeout=` or `heartbeat=`, make the task faster, or call `perdure.attempt().heartbeat()` more often.",
    "TaskLost": "See why processes die while running it (memory?). For `at_most_once` tasks find out whether the effect happened, then decide in the workflow.",
    "TaskCancelled": "Expected when the run ended or the step was cancelled.",
    "ChildFailed": "Handle it like a task error; the child's own run has the details.",
    "WorkflowRuleBroken": "Do what the message says: `wf.now()`, `wf.random()`, `wf.sleep()`, a task, or `wf.run()`.",
    "NondeterminismError": "Restore the old path behind `wf.patched(name)`, deploy, then `Handle.resume()`. See [change code safely](../how-to/change-code-safely.md).",
    "HistoryTooLarge": "End the run earlier with `wf.continue_as_new()`, or move loops into child workflows.",
    "IllegalTransition": "Report it with the history of the run; this is a bug in Perdure.",
    "MigrationError": "Run `perdure migrate`. If the database is ahead of the code, update the code.",
    "Stuck": "Read the message, repair the cause, then `Handle.resume()`.",
}

CODES_WITHOUT_CLASS = {
    "run_timeout": "The run did not end before the `timeout` it was started with. Raised as `RunFailed`.",
    "limit_exceeded": "The run went over `PENDING_TASKS_MAX` or `SIGNALS_BUFFERED_MAX`; the message says which. Raised as `RunFailed`.",
    "poison": "The database refuses a record of this run. The run is stuck; neighbours are not affected.",
    "internal": "Perdure's own code failed while driving the run. The run is stuck. Please report it.",
}


def _tree_meanings() -> dict[str, str]:
    lines = re.findall(r"\+-- (\w+) +([a-z_]+)? {2,}(\S.*)$", errors.__doc__ or "", re.MULTILINE)
    return {name: meaning for name, _, meaning in lines}


def error_classes() -> list[type[errors.PerdureError]]:
    """Every error in the order of the source, and the one the client adds."""
    own = [
        c
        for c in vars(errors).values()
        if inspect.isclass(c) and issubclass(c, errors.PerdureError) and c.__module__ == errors.__name__
    ]
    return [*own, client.Stuck]


def _depth(cls: type) -> int:
    return len([c for c in cls.__mro__ if issubclass(c, errors.PerdureError)]) - 1


def _import_rule() -> str:
    inner = [f"`{c.__name__}`" for c in error_classes() if c.__name__ not in perdure.__all__]
    return f"Import them from `perdure`; only {', '.join(inner[:-1])} and {inner[-1]} are in `perdure.core.errors`."


def errors_page() -> str:
    tree = _tree_meanings()
    out = [
        BY,
        "# Errors",
        "",
        "You need this page when a message or a log line shows a code, or when you decide what to catch.",
        "",
        "Every error is a `PerdureError` with a stable `code`. Codes do not change between versions; texts may. Indentation below shows which class",
        f"derives from which: catching a class catches what stands under it. {_import_rule()}",
        "",
        "| class | code | meaning | what to do |",
        "|---|---|---|---|",
    ]
    for cls in error_classes():
        name = cls.__name__
        doc = (cls.__doc__ or "").strip().partition("\n")[0] if "__doc__" in vars(cls) else ""
        meaning = MEANING.get(name) or tree.get(name) or doc
        assert meaning, f"{name} has no meaning: add it to the tree in core/errors.py"
        indent = "&nbsp;&nbsp;" * _depth(cls)
        out.append(f"| {indent}`{name}` | `{cls.code}` | {_sentence(meaning)} | {ADVICE[name]} |")
    out += [
        "",
        "## Codes without a class of their own",
        "",
        "They appear in `error.failure.code`, in `perdure.run.error_code` and in logs.",
        "",
        "| code | meaning |",
        "|---|---|",
        *(f"| `{code}` | {meaning} |" for code, meaning in CODES_WITHOUT_CLASS.items()),
        "",
        "`TimeoutError` is Python's own: `Handle.result(timeout=...)`, `Promise.wait(timeout=...)` and `Signal.next(timeout=...)` raise it. The run goes on.",
        "",
    ]
    return "\n".join(out)


def _sentence(text: str) -> str:
    text = text.strip().rstrip(".")
    return text[0].upper() + text[1:] + "."


# -- limits ------------------------------------------------------------------------------------------------------------

FIELD_MEANING = {
    "ATTEMPTS_MAX": "The most that `Retry(max=...)` accepts.",
    "namespace": "The tenant whose runs this engine starts, sees and executes.",
    "shard": "The number written into the ids of new runs, 0 to 4,095. One database is one shard; leave it alone.",
    "heartbeat_s": "How often a session is renewed. Keep it at a third of `lease_s` or less.",
    "tick_s": "How often timeouts are looked at and idle runs considered for eviction.",
    "commit": "When a batch is written; fields below.",
    "placement": "Which tasks stay local and which runs leave memory; fields below.",
    "partitions_ahead_days": "Days for which partitions are made in advance.",
    "close_grace_s": "How long closing waits for running tasks before it hands them back as lost.",
}
"""For constants and fields without a text of their own below them."""


def documented(source: Any) -> list[tuple[str, str]]:
    """(name, text below it) of each assignment in a module or class, in order."""
    text = inspect.getsource(source)
    body = ast.parse(text).body
    if not isinstance(source, ModuleType):
        assert isinstance(body[0], ast.ClassDef)
        body = body[0].body
    out: list[tuple[str, str]] = []
    for at, node in enumerate(body):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            below = body[at + 1] if at + 1 < len(body) else None
            said = isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
            name = node.target.id
            out.append((name, str(below.value.value) if said else FIELD_MEANING[name]))  # type: ignore[union-attr]
    return out


def _value(value: Any) -> str:
    if isinstance(value, bool) or value is None or isinstance(value, (str, float)):
        return f"`{value!r}`"
    if isinstance(value, int):
        return f"{value:,}"
    return f"`{type(value).__name__}()`"


def _fields(cls: Any) -> list[str]:
    made = cls()
    return [
        "| field | default | meaning |",
        "|---|---|---|",
        *(f"| `{name}` | {_value(getattr(made, name))} | {_sentence(text)} |" for name, text in documented(cls)),
        "",
    ]


def limits_page() -> str:
    out = [
        BY,
        "# Limits",
        "",
        "You need this page when an error quotes a limit by name, or before you design something large. What to do about a limit is told in",
        "[limits and large data](../how-to/limits-and-large-data.md).",
        "",
        "## Fixed bounds",
        "",
        "These are constants of `perdure.core.limits`. They are the same for every process of one version and cannot be set.",
        "",
        "| name | default | meaning |",
        "|---|---|---|",
        *(f"| `{name}` | {getattr(limits, name):,} | {_sentence(text)} |" for name, text in documented(limits)),
        "",
        "## EngineSettings",
        "",
        "Per engine: `Perdure(settings=EngineSettings(...))`. Names end in their unit.",
        "",
        *_fields(engine.EngineSettings),
        "## CommitPolicy",
        "",
        "When a batch is written: `EngineSettings(commit=CommitPolicy(...))`, from `perdure.core.commit_policy`.",
        "",
        *_fields(commit_policy.CommitPolicy),
        "## Placement",
        "",
        "What stays with the engine that scheduled it: `EngineSettings(placement=Placement(...))`, from `perdure.core.placement`.",
        "",
        *_fields(placement.Placement),
    ]
    return "\n".join(out)


# -- lifecycles ----------------------------------------------------------------------------------------------------------


def _diagram(table: dict[Any, Any], first: IntEnum, terminal: frozenset[Any]) -> str:
    edges: dict[tuple[str, str], list[str]] = {}
    for (status, act), after in table.items():
        edges.setdefault((status.word, after.word), []).append(act)
    out = ["```mermaid", "stateDiagram-v2", f"    [*] --> {first.name.lower()}"]
    out += [f"    {a} --> {b}: {', '.join(acts)}" for (a, b), acts in edges.items()]
    out += [f"    {status.name.lower()} --> [*]" for status in sorted(terminal)]
    return "\n".join([*out, "```"])


def lifecycles_page(current: str) -> str:
    drawn = {
        "run": _diagram(lifecycle.RUN_TABLE, lifecycle.RunStatus.PENDING, lifecycle.RUN_TERMINAL),
        "task": _diagram(lifecycle.TASK_TABLE, lifecycle.TaskStatus.PENDING, lifecycle.TASK_TERMINAL),
    }
    for name, diagram in drawn.items():
        opening, closing = f"<!-- drawn from core/lifecycle.py: {name} -->", "<!-- end -->"
        assert opening in current, f"docs/concepts/lifecycles.md has no place for the {name} diagram: {opening}"
        head, _, rest = current.partition(opening)
        _, _, tail = rest.partition(closing)
        current = f"{head}{opening}\n{diagram}\n{closing}{tail}"
    return current


# -- all ---------------------------------------------------------------------------------------------------------------


def pages() -> dict[Path, str]:
    """Every page with a generated part, as it should be."""
    life = DOCS / "concepts" / "lifecycles.md"
    return {
        DOCS / "reference" / "errors.md": errors_page(),
        DOCS / "reference" / "limits.md": limits_page(),
        life: lifecycles_page(life.read_text()),
    }


def main() -> None:
    for path, text in pages().items():
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
            sys.stdout.write(f"wrote {path.relative_to(DOCS.parent)}\n")


if __name__ == "__main__":
    main()

"""`perdure diff` and `debug`, and the state of a run as of an event."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.cli import completion_values
from perdure.cli.remote_options import Remote, RunId, remote

if TYPE_CHECKING:
    from perdure.core.events import Recorded
    from perdure.sdk.definitions import Workflow

VALUE_CHARS_MAX = 60

OtherRun = Annotated[
    str,
    typer.Argument(metavar="RUN", help="The other run.", show_default=False, autocompletion=completion_values.runs),
]


def register(app: typer.Typer) -> None:
    app.command()(diff)
    app.command()(debug)


@remote
def diff(server: Remote, run: RunId, other: OtherRun) -> None:
    """Show where two runs part and what differs after it."""
    found = server.api.get(server.path(run, "diff"), [("other", server.resolve(other))])
    server.out.one(found, people=lambda: _print_diff(server, found), plain=_plain(found))


def _plain(found: dict[str, Any]) -> list[Any]:
    parted = found["parted"]
    return [found["same"], parted["step"] if parted else None, ",".join(found["differs"])]


def _print_diff(server: Remote, found: dict[str, Any]) -> None:
    from perdure.cli.render import Column, duration

    one, other = found["one"], found["other"]
    heads = [
        {"what": name, "one": one[name], "other": other[name], "differs": name in found["differs"]}
        for name in ("id", "workflow", "version", "status", "input", "result", "error")
        if one[name] is not None or other[name] is not None
    ]
    took = {"what": "took", "one": duration(one["took_ms"] / 1_000), "other": duration(other["took_ms"] / 1_000)}
    server.out.rows([*heads, took], [*_sides("what", _head_style)], empty="")
    parted = found["parted"]
    if parted is None:
        server.out.say(f"all steps are the same: {found['same']}")
        return
    same = "1 step is" if found["same"] == 1 else f"{found['same']} steps are"
    server.out.say(f"{same} the same; the runs part at {parted['step']} ({', '.join(parted['differs'])})")
    lines = [
        {
            "step": line["step"],
            "one": _side(line["one"]),
            "other": _side(line["other"]),
            "differs": bool(line["differs"]),
        }
        for line in found["after"]
    ]
    columns: list[Column] = _sides("step", _head_style)
    server.out.rows(lines, columns, empty="")
    if found["omitted"]:
        server.out.say(f"{found['omitted']:,} more steps; -o json prints the first of them in full")


def _sides(first: str, style: Any) -> list[Any]:
    from perdure.cli.render import Column, flat

    def cut(value: Any) -> str:
        text = flat(value) if value is not None else "-"
        return text if len(text) <= VALUE_CHARS_MAX else f"{text[:VALUE_CHARS_MAX]}…"

    return [
        Column(first, lambda r: r[first], whole=True),
        Column("one", lambda r: r["one"], lambda r: cut(r["one"]), style, fold=True),
        Column("other", lambda r: r["other"], lambda r: cut(r["other"]), style, fold=True),
    ]


def _head_style(row: dict[str, Any]) -> str:
    return "yellow" if row.get("differs") else ""


def _side(step: dict[str, Any] | None) -> str | None:
    """A step in one cell: `charge success {"paid": 5} 1.2s`."""
    from perdure.cli.render import duration, flat

    if step is None:
        return None
    parts = [step["name"], step["outcome"] or "outstanding"]
    if step["error"]:
        parts.append(step["error"])
    elif step["value"] is not None:
        parts.append(flat(step["value"]))
    if step["took_ms"] is not None:
        parts.append(f"({duration(step['took_ms'] / 1_000)})")
    return " ".join(parts)


def print_state_at(server: Remote, run: str, at: int, code: str | None) -> None:
    """`perdure state RUN --at EVENT`."""
    found = server.api.get(server.path(run, "at", str(at)))
    if code is not None:
        found["suspended"] = _suspended(server, run, found["at"], code)
    server.out.one(
        found, people=lambda: _print_state(server, found), plain=[found["at"], found["event"], found["status"]]
    )


def _print_state(server: Remote, found: dict[str, Any]) -> None:
    from perdure.cli.render import Column, flat, local_time

    print(
        f"{found['workflow']}  {found['status']} at event {found['at']} of {found['events']} ({found['event']}, {local_time(found['time'])})"
    )
    rows = [
        *({"what": f"{o['kind']} {o['seq']}", "value": _open_text(o)} for o in found["outstanding"]),
        *({"what": f"state {name}", "value": flat(value)} for name, value in found["state"].items()),
        *({"what": f"attribute {name}", "value": flat(value)} for name, value in found["attributes"].items()),
        *({"what": f"node {name}", "value": word} for name, word in found["nodes"].items()),
        *({"what": f"undo {u['name']}", "value": f"by {u['undo']}, {u['status']}"} for u in found["undo"]),
        *(
            {"what": f"event {r['event']}", "value": f"{r['step']}: {r['error'] or flat(r['value'])}"}
            for r in found["results"]
        ),
        *(
            {"what": "code", "value": f"{_near(s['file'])}:{s['line']} in {s['function']}: {s['source']}"}
            for s in found.get("suspended", [])
        ),
    ]
    columns = [Column("what", lambda r: r["what"], whole=True), Column("value", lambda r: r["value"], fold=True)]
    server.out.rows(rows, columns, empty="nothing was outstanding, set or known yet")


def _near(file: str) -> str:
    """A file of the working directory by its name alone."""
    from pathlib import Path

    path = Path(file)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else file


def _open_text(step: dict[str, Any]) -> str:
    from perdure.cli.render import local_time

    more = (
        f", fires {local_time(step['until'])}" if step["until"] else f", run {step['run_id']}" if step["run_id"] else ""
    )
    return f"{step['name']}: outstanding since event {step['since']}{more}"


def _suspended(server: Remote, run: str, at: int, target: str) -> list[dict[str, Any]]:
    import msgspec

    from perdure.testing.debugger import OwnCode
    from perdure.testing.stepper import Stepper

    run_id, history = _exported(server, run)
    workflow = _workflow(history, target)
    stepper = Stepper(workflow, run_id, history[:at], OwnCode(workflow))
    stepper.restart()
    try:
        while stepper.at < len(stepper.records) and stepper.mismatch is None:
            stepper.step()
        return [msgspec.to_builtins(place) for place in stepper.suspended()]
    finally:
        stepper.close()


def _exported(server: Remote, run: str) -> tuple[bytes, list[Recorded]]:
    import json

    from perdure.core import ids
    from perdure.wire.codec import history_from_json

    document = server.api.get(server.path(run, "export"))
    run_id, history = history_from_json(json.dumps(document).encode())
    return ids.parse(run_id), history


def _workflow(history: list[Recorded], target: str | None) -> Workflow[..., Any]:
    """The code of a run: from `target`, or from the module that a file of the working directory defines."""
    from pathlib import Path

    from perdure.core import events as ev
    from perdure.core.errors import InvalidInput
    from perdure.core.work import is_flow
    from perdure.programs.modules import load
    from perdure.sdk import registry

    started = history[0].event
    assert isinstance(started, ev.RunStarted)
    if is_flow(started.version):
        raise InvalidInput(
            f"{started.workflow} is a flow and has no code; `perdure state RUN --at EVENT` shows its nodes"
        )
    targets = [target] if target is not None else [str(p) for p in sorted(Path.cwd().glob("*.py")) if _defines(p)]
    if not targets:
        raise InvalidInput("no Python file here defines a workflow; name a module or a file: perdure debug RUN TARGET")
    defined = load(targets)
    if started.workflow not in defined.workflows:
        raise InvalidInput(
            f"{', '.join(targets)} does not define the workflow {started.workflow!r} of this run; it defines {defined or 'nothing'}"
        )
    found: Workflow[..., Any] = registry.workflows.get(started.workflow)
    return found


def _defines(path: Any) -> bool:
    return "@workflow" in path.read_text(errors="replace")


@remote
def debug(
    server: Remote,
    run: RunId,
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="TARGET",
            help="Module or file of the workflow. Default: the files of this directory.",
            show_default=False,
        ),
    ] = None,
    debugpy: Annotated[
        int | None, typer.Option("--debugpy", metavar="PORT", min=1, help="Wait for a debugger that speaks DAP here.")
    ] = None,
) -> None:
    """Open a run's code in a debugger, on its recorded history.

    perdure debug @last orders.py

    Commands beside those of pdb: `ev` goes on to the next event, `ev N` to event N, `back` to the one before; `event` shows the event,
    `events` lists them. Nothing is executed but the code: no tasks, no side effects.
    """
    from perdure.testing.debugger import EventDebugger

    run_id, history = _exported(server, run)
    workflow = _workflow(history, target)
    if debugpy is not None:
        _attach(debugpy)
        _replay_all(workflow, run_id, history)
        return
    server.out.say(f"{workflow.name}: {len(history)} events; help lists the commands, ev goes on to the next event")
    EventDebugger(workflow, run_id, history).debug()


def _attach(port: int) -> None:
    from importlib import import_module

    from perdure.core.errors import InvalidInput

    try:
        found: Any = import_module("debugpy")
    except ImportError:
        raise InvalidInput("--debugpy needs the package debugpy: pip install debugpy") from None
    found.listen(("127.0.0.1", port))
    print(f"waiting for a debugger at 127.0.0.1:{port}; set a breakpoint in the workflow, then attach", flush=True)
    found.wait_for_client()


def _replay_all(workflow: Workflow[..., Any], run_id: bytes, history: list[Recorded]) -> None:
    from perdure.testing.debugger import OwnCode
    from perdure.testing.stepper import Stepper

    stepper = Stepper(workflow, run_id, history, OwnCode(workflow))
    stepper.restart()
    while stepper.at < len(stepper.records) and stepper.mismatch is None:
        record = stepper.records[stepper.at]
        print(f"event {record.seq}  {type(record.event).__name__}", flush=True)
        stepper.step()
    stepper.close()

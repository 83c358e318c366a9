"""The table of commands. The module of a command is imported when the command is called, not to list the commands."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final, NamedTuple

import typer
from typer.core import TyperGroup
from typer.main import get_group

from perdure.cli.help import CONTEXT, Command, HelpGroup
from perdure.cli.pointers import COMMAND_POINTERS, unknown_command


class Entry(NamedTuple):
    module: str
    """Module of perdure.cli with a function `register(app)`."""
    help: str
    """First sentence of the command's own help. A test compares them."""


SECTIONS: Final[dict[str, dict[str, Entry]]] = {
    "Get started": {
        "init": Entry("init", "Write a first workflow, hello.py and hello.yaml."),
        "dev": Entry("dev", "Run database, server and worker, and reload on change."),
        "login": Entry("login", "Sign in to a server, with a browser or an API key."),
        "logout": Entry("login", "Forget the sign-in to a server."),
    },
    "Runs": {
        "run": Entry("run", "Start a run of a workflow."),
        "list": Entry("runs", "List runs, newest first."),
        "view": Entry("saved_views", "Save, list and delete named queries for `perdure list`."),
        "show": Entry("runs", "Show a run: status, wait reason, tasks, result."),
        "watch": Entry("watch", "Follow a run until it finishes; exit with its status."),
        "logs": Entry("logs", "Print the output and log lines of a run's tasks."),
        "attempts": Entry("attempts", "List the attempts of a run's tasks."),
        "history": Entry("runs", "Print a run's event history."),
        "open": Entry("runs", "Open a run's page in the browser."),
        "cancel": Entry("run_control", "Cancel a run."),
        "terminate": Entry("run_control", "End a run at once, in any state; none of its code runs."),
        "pause": Entry("run_control", "Pause a run: nothing new of it starts until it is resumed."),
        "retry": Entry("run_control", "Retry a failed run; completed tasks keep their results."),
        "rerun": Entry("repairs", "Start a run again, with the same or an edited input."),
        "fork": Entry("repairs", "Start a run from the middle of another one, with its history up to an event."),
        "node": Entry("repairs", "Rerun, skip or set a failed node of a flow."),
        "resume": Entry("run_control", "Resume a paused run, or a stuck run after fixing its code."),
        "delete": Entry("run_control", "Delete an ended run with its history, tasks, logs and values."),
        "bulk": Entry("bulk_jobs", "List, show and stop bulk jobs, which act on many runs."),
        "diff": Entry("inspection", "Show where two runs part and what differs after it."),
        "debug": Entry("inspection", "Open a run's code in a debugger, on its recorded history."),
        "signal": Entry("messages", "Send a signal to a run, or to many."),
        "update": Entry("messages", "Send an update to a run and print its reply."),
        "resolve": Entry("messages", "Resolve a promise that a run is waiting for."),
        "state": Entry("messages", "Print the state that a run has published."),
        "query": Entry("messages", "Compute a query of a run's workflow and print the answer."),
    },
    "Workflows": {
        "workflow": Entry("workflows", "List, show, pause and resume workflows."),
        "versions": Entry("versions", "Show versions of workflows, ramp to a new one and roll back."),
        "flow": Entry("flows", "Validate, deploy and draw declarative flows."),
        "deploy": Entry("flows", "Deploy flows and make them the current version."),
        "validate": Entry("flows", "Check flows for errors, without a server."),
        "check": Entry("check", "Check that a deploy breaks no run in flight."),
        "schedule": Entry("schedules", "Start runs on a schedule, and backfill them."),
        "calendar": Entry("calendars", "Manage the calendars that schedules use."),
        "event": Entry("named_events", "Send and list named events."),
        "webhook": Entry("webhooks", "Turn signed HTTP requests into events or signals."),
        "notify": Entry("notify", "Notify people and systems about runs."),
        "approval": Entry("approvals", "List and answer approvals."),
        "approve": Entry("approvals", "Approve what a run asks for."),
        "reject": Entry("approvals", "Reject what a run asks for."),
        "payload": Entry("payloads", "Download the content of blobs and stored values."),
        "dead-letter": Entry("dead_letters", "List failed tasks and retry their runs in bulk."),
    },
    "Operations": {
        "server": Entry("server", "Run a server: pages, REST API, and gRPC for workers."),
        "worker": Entry("worker", "Run a worker for the workflows of Python modules."),
        "job": Entry("job", "Run one job whose spec is in an object store."),
        "top": Entry("top", "Show runs, queues, workers and limits of a server, live."),
        "workers": Entry("workers", "List connected workers."),
        "services": Entry("services", "List the instances of HTTP services."),
        "queue": Entry("queues", "List, pause and resume queues."),
        "limit": Entry("limits", "Set concurrency and rate limits."),
        "retention": Entry("retention", "Say how long ended runs are kept; follow their export."),
        "import": Entry("imports", "Import exported runs into a database, with their ids and histories."),
        "namespace": Entry("namespaces", "Create, list and delete namespaces."),
        "api-key": Entry("api_keys", "Create, list and revoke API keys."),
        "audit": Entry("audit", "Print the audit log, newest first."),
        "explain": Entry("explain", "Explain an error code: what happened, why, what to do."),
        "mcp": Entry("mcp", "Serve runs to agents as tools, over the Model Context Protocol."),
        "migrate": Entry("database", "Update the schema of the database."),
        "doctor": Entry("database", "Check the database and suggest fixes."),
        "keys": Entry("keys", "List, rotate and retire the keys that encrypt payloads."),
        "verify": Entry("verify", "Verify that no run was lost or corrupted."),
        "bench": Entry("bench", "Measure Perdure against bare PostgreSQL."),
        "plan": Entry("plan", "Plan servers, workers and PostgreSQL for a load, with the arithmetic shown."),
        "completion": Entry("completion", "Print a completion script for your shell."),
    },
}
COMMANDS: Final[dict[str, Entry]] = {name: entry for section in SECTIONS.values() for name, entry in section.items()}

PAIRS: Final[dict[tuple[str, ...], str]] = {
    ("login", "logout"): "Sign in to a server; sign out again.",
    ("list", "view"): "List runs, newest first; save queries.",
    ("history", "open"): "Print a run's event history; open its page.",
    ("cancel", "terminate"): "Cancel a run; end it at once, in any state.",
    ("pause", "resume"): "Pause a run; resume a paused or a stuck one.",
    ("delete", "bulk"): "Delete an ended run; follow jobs on many runs.",
    ("state", "query"): "Print the state of a run; compute a query from it.",
    ("rerun", "fork", "node"): "Repeat a run; fork it; decide about a failed node.",
    ("logs", "attempts"): "Print the output of a run's tasks; list their attempts.",
    ("diff", "debug"): "Compare two runs; debug a run on its history.",
    ("signal", "update"): "Send a signal to a run; an update, and print its reply.",
    ("queue", "limit"): "List, pause and resume queues; set limits.",
    ("retention", "import"): "Keep or export ended runs; import them again.",
    ("namespace", "api-key"): "Manage namespaces and API keys.",
    ("workflow", "versions"): "List, show and pause workflows; ramp versions.",
    ("deploy", "validate"): "Short for `flow deploy` and `flow validate`.",
    ("schedule", "calendar"): "Start runs on a schedule; manage calendars.",
    ("event", "webhook"): "Send named events; receive them by webhook.",
    ("server", "mcp"): "Run a server: pages, REST, gRPC; serve runs to agents.",
    ("worker", "job"): "Run a worker, or one job of an object store.",
    ("workers", "services"): "List connected workers; instances of services.",
    ("top", "audit"): "Watch a server live; print the audit log.",
    ("verify", "bench"): "Verify that no run was lost; measure Perdure.",
    ("migrate", "keys"): "Update the database's schema; rotate encryption keys.",
    ("doctor", "explain"): "Check the database; explain an error code.",
    ("plan", "completion"): "Plan servers and databases; complete commands.",
    ("flow", "check"): "Validate, deploy, draw flows; check a deploy.",
    ("show", "watch"): "Show a run and what it waits for; follow it to its end.",
    ("approval", "notify"): "List and answer approvals; notify people about runs.",
    ("approve", "reject"): "Short for `approval approve` and `approval reject`.",
}
"""Commands that share one line of `perdure --help`, so that it fits on a screen."""

NOUNS: Final = frozenset(
    [
        "api-key",
        "approval",
        "calendar",
        "dead-letter",
        "event",
        "flow",
        "limit",
        "namespace",
        "queue",
        "schedule",
        "view",
        "webhook",
        "workflow",
    ]
)
"""Groups with a `list`. Their plural is the same group, and lists when no verb follows it."""

VERSION_VERBS: Final = frozenset({"list", "set-current", "rollback", "move", "--help", "-h"})
"""`perdure versions WORKFLOW` lists; a workflow that is called like one of these needs `list`."""
COMPLETE_VARIABLE: Final = "_PERDURE_COMPLETE"
"""Set by the shell when it asks for completions."""
EPILOG: Final = "perdure COMMAND --help: options of a command. perdure --version: the version."


class CommandGroup(TyperGroup):
    """The group behind `perdure`."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        if cmd_name not in self.commands:
            self.commands.update(load(COMMANDS[cmd_name].module))
        return self.commands.get(cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        args = canonical(args)
        if args[0] not in COMMANDS and not args[0].startswith("-") and not ctx.resilient_parsing:
            raise unknown_command("perdure", args[0], COMMANDS, COMMAND_POINTERS.get(args[0], ""))
        return super().resolve_command(ctx, args)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        self.format_commands(ctx, formatter)  # --version and --help are in the epilog

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        rows = {title: list(_rows(entries)) for title, entries in SECTIONS.items()}
        width = max(len(names) for section in rows.values() for names, _ in section)
        for title, section in rows.items():
            with formatter.section(title):
                formatter.write_dl([(names.ljust(width), text) for names, text in section])

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        formatter.write_paragraph()
        formatter.write_text(EPILOG)


def _rows(entries: dict[str, Entry]) -> Any:
    first = {pair[0]: (", ".join(pair), text) for pair, text in PAIRS.items()}
    others = {name for pair in PAIRS for name in pair[1:]}
    for name, entry in entries.items():
        if name not in others:
            yield first.get(name, (name, entry.help))


def canonical(args: list[str]) -> list[str]:
    """The words of a command as they are in `COMMANDS`: `schedules` is `schedule list`, `runs show X` is `show X`."""
    word, rest = args[0], args[1:]
    has_verb = bool(rest) and (not rest[0].startswith("-") or rest[0] in ("--help", "-h"))
    if word == "runs":
        return rest if has_verb and rest[0] in COMMANDS else ["list", *rest]
    if word in ("worker", "workers") and rest[:1] == ["list"]:
        return ["workers", *rest[1:]]
    if word == "versions" and has_verb and rest[0] not in VERSION_VERBS:
        return ["versions", "list", *rest]
    if word.endswith("s") and word[:-1] in NOUNS:
        return [word[:-1], *rest] if has_verb else [word[:-1], "list", *rest]
    return args


def load(module: str) -> dict[str, Any]:
    """The commands of one module."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    import_module(f"perdure.cli.{module}").register(app)
    _use_our_help(app)
    return dict(get_group(app).commands)


def _use_our_help(app: Any) -> None:
    """Commands and groups at every depth get the help page of help.py."""
    for info in app.registered_commands:
        info.cls = Command
        info.context_settings = {**CONTEXT, **(info.context_settings or {})}
    for group in app.registered_groups:
        group.cls = HelpGroup
        group.context_settings = dict(CONTEXT)
        group.typer_instance.rich_markup_mode = None
        _use_our_help(group.typer_instance)

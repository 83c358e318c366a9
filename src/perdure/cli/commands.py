"""Which commands there are and where they live. A command's module is imported when it is called, never for the list of them."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final, NamedTuple

import typer
from typer.core import TyperGroup
from typer.main import get_group

from perdure.cli.help import CONTEXT, Command, Group


class Entry(NamedTuple):
    module: str
    """Below perdure.cli; has `register(app)`."""
    help: str
    """The first sentence of the command's own help. A test compares them."""


SECTIONS: Final[dict[str, dict[str, Entry]]] = {
    "Start": {
        "dev": Entry("dev", "Database, server and worker in one command, with reload."),
        "init": Entry("init", "Write hello.py, a first workflow to change."),
        "server": Entry("server", "Run a server: REST for people, gRPC for workers."),
        "worker": Entry("worker", "Serve the tasks and workflows of Python modules."),
    },
    "Runs": {
        "run": Entry("run", "Start a run of a workflow."),
        "list": Entry("runs", "List runs, newest first."),
        "show": Entry("runs", "Show a run: how it stands, what it waits for, its tasks."),
        "watch": Entry("runs", "Watch a run until it ends, and end as it did."),
        "logs": Entry("runs", "Print what a run's tasks printed and logged."),
        "history": Entry("runs", "Print a run's events, the only truth about it."),
        "state": Entry("updates", "Print the state that a run has set, or one value of it."),
        "open": Entry("runs", "Print the link to a run's page."),
        "cancel": Entry("run", "Ask a run to stop."),
        "retry": Entry("run", "Open a failed run again; what succeeded is kept."),
        "dead": Entry("dead_letters", "List tasks that failed for good, and retry their runs in bulk."),
        "resume": Entry("run", "Let a stuck run try again, after its code was repaired."),
        "signal": Entry("run", "Send a signal to a run."),
        "resolve": Entry("run", "Give a promise of a run its value."),
        "event": Entry("named_events", "Tell of named events that runs wait for, and list them."),
        "webhook": Entry("named_events", "Let signed requests from elsewhere become events."),
        "update": Entry("updates", "Ask a run to change something, and print its answer."),
    },
    "Approvals": {
        "approvals": Entry("approvals", "List what waits for somebody's yes or no, oldest first."),
        "approve": Entry("approvals", "Say yes to what a run asks."),
        "reject": Entry("approvals", "Say no to what a run asks."),
        "delegate": Entry("approvals", "Hand over an approval to somebody else."),
        "link": Entry("approvals", "Make a link to a page where somebody can answer, once, without a key."),
    },
    "Flows": {
        "validate": Entry("flows", "Check flows, without a server."),
        "deploy": Entry("flows", "Deploy flows: validate them, make them known and current."),
        "activate": Entry("flows", "Choose the version that new runs have: forward, or back."),
        "graph": Entry("flows", "Draw a flow."),
        "schema": Entry("flows", "Print the JSON Schema of flows, for your editor."),
    },
    "Schedules": {
        "schedule": Entry("schedules", "Start runs by the clock: list, create, pause, backfill."),
        "calendar": Entry("schedules", "Name the days that schedules keep to."),
    },
    "Fleet": {
        "workflows": Entry("cluster", "List the workflows that workers have registered."),
        "workers": Entry("cluster", "List the workers that are connected."),
        "queues": Entry("cluster", "List queues with work, and who serves them."),
        "limit": Entry("flow_control", "Limit how much runs at a time, or per time."),
        "pause": Entry("flow_control", "Let nothing of a queue or a workflow begin."),
        "unpause": Entry("flow_control", "Let a queue or a workflow go on."),
    },
    "Access": {
        "namespace": Entry("namespaces", "Create, list and delete namespaces."),
        "key": Entry("api_keys", "Create, list and revoke API keys."),
        "audit": Entry("cluster", "List who did what, newest first."),
    },
    "Database": {
        "migrate": Entry("database", "Bring the database's schema up to date."),
        "doctor": Entry("database", "Say what is wrong with the database, and what to do."),
        "verify": Entry("verify", "Prove from the database that no run was lost or torn."),
    },
    "More": {
        "bench": Entry("bench", "Measure Perdure beside bare PostgreSQL."),
        "completion": Entry("completion", "Print a completion script for your shell."),
    },
}
COMMANDS: Final[dict[str, Entry]] = {name: entry for section in SECTIONS.values() for name, entry in section.items()}

COMPLETE_VARIABLE: Final = "_PERDURE_COMPLETE"
"""Set by the shell when it asks what could come next."""
EPILOG = "perdure COMMAND --help tells more. Commands find the server with --url or PERDURE_URL."


class Commands(TyperGroup):
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
        # What is suggested for a mistyped name is looked for among the names of `commands`.
        known, self.commands = self.commands, {**dict.fromkeys(COMMANDS), **self.commands}  # type: ignore[dict-item]
        try:
            if args and args[0] in COMMANDS:
                self.commands = known
            return super().resolve_command(ctx, args)
        finally:
            self.commands = known

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        width = max(map(len, COMMANDS))
        for title, entries in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), entry.help) for name, entry in entries.items()])

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        formatter.write_paragraph()
        formatter.write_text(EPILOG)


def load(module: str) -> dict[str, Any]:
    """The commands of one module."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    import_module(f"perdure.cli.{module}").register(app)
    _dress(app)
    return dict(get_group(app).commands)


def _dress(app: Any) -> None:
    """Whatever a module registers gets our help page."""
    for info in app.registered_commands:
        info.cls = Command
        info.context_settings = {**CONTEXT, **(info.context_settings or {})}
    for group in app.registered_groups:
        group.cls = Group
        group.context_settings = dict(CONTEXT)
        group.typer_instance.rich_markup_mode = None
        _dress(group.typer_instance)

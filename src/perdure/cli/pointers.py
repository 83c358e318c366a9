"""Where to go from a word that is not a command: words of other tools, and words that are close to ours."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

_SHOW = "`perdure show RUN` shows a run, `perdure list` lists runs."
_RUN = "`perdure run WORKFLOW` starts a run."
_CANCEL = "`perdure cancel RUN` cancels a run, `perdure terminate RUN` ends it at once."
_LIST = "`perdure list` lists runs."
_RETRY = "`perdure retry RUN` retries a failed run, `perdure rerun RUN` starts it again from its beginning."
_PAUSE = "Use `perdure queue {0} NAME`, `perdure workflow {0} NAME` or `perdure schedule {0} NAME`."
_API_KEY = "`perdure api-key create|list|revoke` manages API keys."
_DEAD_LETTER = "`perdure dead-letter list` lists tasks that failed for good."
_TASKS = "`perdure show RUN` lists the tasks of a run, `perdure queue list` the tasks that wait for a worker."
_LOGS = "`perdure logs RUN --follow` prints log lines as they appear."
_DELETE = (
    "`perdure delete RUN` deletes an ended run. Schedules, calendars, webhooks and namespaces have a `delete` "
    "of their own: `perdure schedule delete NAME`."
)

COMMAND_POINTERS: Final[dict[str, str]] = {
    "start": f"{_RUN} `perdure dev` or `perdure server` starts a server.",
    "execute": _RUN,
    "exec": _RUN,
    "submit": _RUN,
    "invoke": _RUN,
    "launch": _RUN,
    "trigger": f"{_RUN} `perdure schedule trigger NAME` starts one of a schedule.",
    "ps": _LIST,
    "ls": _LIST,
    "jobs": _LIST,
    "status": _SHOW,
    "get": _SHOW,
    "describe": _SHOW,
    "inspect": _SHOW,
    "info": _SHOW,
    "result": "`perdure show RUN --fields result` prints the result of a run, `perdure watch RUN` waits for it.",
    "wait": "`perdure watch RUN` waits until a run finishes.",
    "follow": "`perdure watch RUN` follows a run, `perdure logs RUN --follow` its log lines.",
    "tail": _LOGS,
    "log": _LOGS,
    "task": _TASKS,
    "tasks": _TASKS,
    "stop": _CANCEL,
    "kill": _CANCEL,
    "abort": _CANCEL,
    "remove": _DELETE,
    "rm": _DELETE,
    "restart": _RETRY,
    "reset": _RETRY,
    "replay": _RETRY,
    "compare": "`perdure diff RUN RUN` shows where two runs part.",
    "pdb": "`perdure debug RUN` opens a run's code in a debugger.",
    "clone": "`perdure rerun RUN` starts a run again, `perdure fork RUN --at EVENT` copies its history.",
    "branch": "`perdure fork RUN --at EVENT` starts a run from the middle of another one.",
    "unpause": f"`perdure resume RUN` resumes a paused or stuck run. {_PAUSE.format('resume')}",
    "send": "`perdure signal RUN NAME VALUE` sends a signal, `perdure event send NAME` a named event.",
    "emit": "`perdure event send NAME` sends a named event.",
    "publish": "`perdure event send NAME` sends a named event.",
    "hook": "`perdure webhook create NAME --scheme github` creates a webhook.",
    "cron": "`perdure schedule create NAME WORKFLOW --cron EXPR` creates a schedule.",
    "backfill": "`perdure schedule backfill NAME --since TIME` starts the runs that a schedule missed.",
    "activate": "`perdure versions set-current WORKFLOW VERSION` chooses the version of new runs.",
    "rollback": "`perdure versions rollback WORKFLOW` goes back to the previous version.",
    "graph": "`perdure flow graph FILE` draws a flow.",
    "schema": "`perdure flow schema` prints the JSON Schema of flows.",
    "lint": "`perdure validate` checks flows.",
    "delegate": "`perdure approval delegate RUN --to NAME` delegates an approval.",
    "link": "`perdure approval link RUN --for NAME` creates a link for an answer.",
    "dead": _DEAD_LETTER,
    "dlq": _DEAD_LETTER,
    "failed": f"`perdure list --status failed` lists failed runs. {_DEAD_LETTER}",
    "key": _API_KEY,
    "apikey": _API_KEY,
    "token": _API_KEY,
    "signin": "`perdure login` signs in to a server.",
    "auth": "`perdure login` signs in to a server; or set PERDURE_API_KEY. `perdure api-key create` makes a key.",
    "config": "Commands read PERDURE_URL, PERDURE_API_KEY and PERDURE_NAMESPACE; docs/reference/cli.md lists all variables.",
    "serve": "`perdure server` runs a server, `perdure dev` one for development.",
    "up": "`perdure dev` runs database, server and worker.",
    "ui": "`perdure open` opens the server's page in the browser.",
    "web": "`perdure open` opens the server's page in the browser.",
    "dashboard": "`perdure open` opens the server's page in the browser.",
    "db": "`perdure migrate`, `perdure doctor` and `perdure verify` work on the database.",
    "upgrade": "`perdure migrate` brings the database's schema up to date.",
    "new": f"`perdure init` writes a first workflow. {_RUN}",
    "create": f"`perdure init` writes a first workflow. {_RUN}",
    "help": "Use `perdure --help`, or `perdure COMMAND --help`.",
    "version": "Use `perdure --version`.",
}

VERB_SYNONYMS: Final[dict[str, tuple[str, ...]]] = {
    "add": ("create", "set"),
    "clear": ("delete",),
    "describe": ("show", "list"),
    "get": ("show", "list"),
    "info": ("show", "list"),
    "inspect": ("show", "list"),
    "ls": ("list",),
    "make": ("create", "set"),
    "new": ("create", "set"),
    "put": ("set", "create"),
    "remove": ("delete", "revoke", "clear"),
    "delete": ("revoke", "clear"),
    "rm": ("delete", "revoke", "clear"),
    "run": ("trigger",),
    "start": ("trigger", "resume"),
    "status": ("show", "list"),
    "stop": ("pause",),
    "emit": ("send",),
    "publish": ("send",),
    "unpause": ("resume",),
    "disable": ("pause",),
    "enable": ("resume",),
    "update": ("create", "set"),
}
"""What to suggest for an unknown verb of a noun: the first of these that the noun has."""

NOUN_POINTERS: Final[dict[str, str]] = {
    "event": "`perdure history RUN` prints the event history of a run.",
    "workflow": "`perdure run WORKFLOW` starts a run.",
}
"""For a word after a noun that is no verb at all."""


def unknown_command(path: str, word: str, known: Iterable[str], pointer: str = "") -> Exception:
    """The error of an unknown command. `pointer` says where to go if no known command is similar."""
    from perdure.core.errors import InvalidInput
    from perdure.core.suggestions import nearest

    known = list(known)
    meant = next((verb for verb in VERB_SYNONYMS.get(word, ()) if verb in known), "")
    if path == "perdure" and pointer:
        advice = pointer
    elif near := meant or nearest(word, known):
        advice = f"{'Use' if meant else 'Did you mean'} `{path} {near}`{'.' if meant else '?'}"
    else:
        advice = pointer or f"`{path} --help` lists the commands."
    return InvalidInput(f"unknown command `{path} {word}`. {advice}")

"""docs/reference/cli.md, written from the commands themselves. `docs/generate.py` writes the page; a test compares."""

from __future__ import annotations

import inspect
from typing import Any, Final

from perdure.app.http_client import EXIT_CODES
from perdure.app.http_client import VARIABLES as CLIENT_VARIABLES
from perdure.cli.commands import SECTIONS, load
from perdure.cli.help import is_argument, sections_of, usage_of
from perdure.cli.remote_options import PANEL

BY: Final = "<!-- Written by docs/generate.py from the commands themselves. Change their help, or cli/reference.py. -->"

INTRO: Final = """# Command line

You need this page to look up an option. `perdure COMMAND --help` says the same for one command; [use the command line](../how-to/use-the-command-line.md) shows
them at work.

Commands about runs, workers and access talk to a server: `--url`, else `PERDURE_URL`, else the one that `perdure dev` runs in this directory, else
`http://127.0.0.1:8600`. Commands about the database take `--dsn`, else `PERDURE_DSN`, `.env` or `perdure.toml`, else they start the private PostgreSQL in `.perdure/` and stop it
again when no other program uses it. Output is a table on a terminal and tab-separated lines elsewhere, without headings; links and advice go to stderr unless a person reads both.
`NO_COLOR` is respected."""

NOTES: Final[dict[str, str]] = {
    "run": """Three ways to give arguments, one at a time: by name (`name=Ada`), by position (`-a Ada`), or all as one JSON value (`--input '{"name": "Ada"}'`,
`--input @file`, `--input -`). A value is JSON where it is JSON, otherwise text: `n=3` is a number, `n='"3"'` and `n=three` are texts.""",
    "list": """`--since` and `--until` take an age (`2h`, `1d12h`), a date or a time; without a zone it is meant in yours.""",
    "migrate": """Safe to run from many processes at once. An applied migration never changes; its checksum is compared every time. A database that is ahead of
the code is left alone.

```console
$ perdure migrate
nothing to do: the database is up to date
```""",
    "doctor": """Looks at connection, schema, version, durability, clock, vacuum horizon, dead rows, indexes, connections, partitions, pooling. Exit code 1 if
a finding is `fail`.""",
    "verify": """See [verify and bench](../how-to/verify-and-bench.md).

```console
$ perdure verify --at-rest --json
[{"number":…
```""",
    "server": "All settings and where they can come from: [settings](settings.md).",
}


def page() -> str:
    out = [BY, INTRO, "", "## Exit codes", "", "| code | meaning |", "|---|---|"]
    out += [f"| {code} | {meaning} |" for code, meaning in EXIT_CODES.items()]
    out += [
        "",
        "## Naming a run",
        "",
        _NAMING,
        "",
        "## Options of every command that talks to a server",
        "",
        *_shared(),
        "",
    ]
    for title, entries in SECTIONS.items():
        out += [f"## {title}", ""]
        for name, entry in entries.items():
            out += _command(f"perdure {name}", load(entry.module)[name], NOTES.get(name, ""))
    out += ["## Environment of commands and workers", "", "| variable | meaning |", "|---|---|"]
    out += [f"| `{name}` | {meaning} |" for name, meaning in CLIENT_VARIABLES.items()]
    out += ["", "The settings of servers and workers, with their variables, are in [settings](settings.md)."]
    return "\n".join(out).rstrip() + "\n"


_NAMING: Final = """Wherever a command wants a `RUN`: its id; the first 6 or more characters of it, if no other run begins with them; `key:NAME` for the id it was given with
`--id`; or `@last`, the run that you started last from this machine (kept in `$XDG_STATE_HOME/perdure`), else the newest one on the server."""


def _shared() -> list[str]:
    command = load("run")["cancel"]
    return _table(sections_of(command, _context(command, "perdure cancel"))[PANEL])


def _command(path: str, command: Any, note: str) -> list[str]:
    out = [f"### {path}", "", *_text(command)]
    nested: dict[str, Any] = getattr(command, "commands", {})
    takes_options = not nested or command.invoke_without_command
    if takes_options:
        pieces = ["[OPTIONS]", *(usage_of(p) for p in command.params if is_argument(p))]
        out += [f"    {path} {' '.join(pieces)}", ""]
    if note:
        out += [note, ""]
    if takes_options:
        sections = sections_of(command, _context(command, path))
        rows = [row for title, rows in sections.items() if title != PANEL for row in rows if "--help" not in row[0]]
        if rows:
            out += [*_table(rows), ""]
        if PANEL in sections:
            out += [
                "And the options of [every command that talks to a server](#options-of-every-command-that-talks-to-a-server).",
                "",
            ]
    for name, one in nested.items():
        out += _command(f"{path} {name}", one, "")
    return out


def _text(command: Any) -> list[str]:
    paragraphs = inspect.cleandoc(command.help or "").split("\n\n")
    return [line for p in paragraphs for line in (" ".join(p.split()), "")]


def _context(command: Any, path: str) -> Any:
    return command.context_class(command, info_name=path, help_option_names=["--help", "-h"])


def _table(rows: list[tuple[str, str]]) -> list[str]:
    return ["| option | meaning |", "|---|---|", *(f"| `{_cell(name)}` | {_cell(text)} |" for name, text in rows)]


def _cell(text: str) -> str:
    return text.replace("|", "\\|")

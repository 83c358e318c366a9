"""The text of docs/reference/cli.md, generated from the commands. `docs/generate.py` writes the page; a test compares them."""

from __future__ import annotations

import functools
import inspect
from typing import Any, Final

from perdure.cli.commands import SECTIONS, load
from perdure.cli.help import is_argument, sections_of, usage_of
from perdure.cli.remote_options import OUTPUT, SERVER
from perdure.programs.http_client import EXIT_CODES
from perdure.programs.http_client import VARIABLES as CLIENT_VARIABLES

BY: Final = "<!-- Written by docs/generate.py from the commands themselves. Change their help, or cli/reference.py. -->"

INTRO: Final = """# Command line

All commands and their options. `perdure COMMAND --help` prints the same for one command;
[use the command line](../how-to/use-the-command-line.md) shows them at work.

Nouns have verbs: `perdure schedule list`, `perdure schedule pause NAME`. The plural of a noun is accepted too, and lists when no
verb follows: `perdure schedules` is `perdure schedule list`. The daily commands about runs have no noun: `perdure list`,
`perdure show RUN`.

Commands that talk to a server find it with `--url`, then `PERDURE_URL`, then the `perdure dev` of this directory, then
`http://127.0.0.1:8600`. Commands that work on the database take `--dsn`, then `PERDURE_DSN`, then `DATABASE_URL`; without any of them
they start the private PostgreSQL in `.perdure/` and stop it again if no other process uses it.

Output is a table on a terminal, and tab-separated lines without headings in a pipe, where links and hints go to stderr. `NO_COLOR` is
respected."""

NOTES: Final[dict[str, str]] = {
    "run": """Arguments are given in one of three ways: by name (`name=Ada`), by position (`-a Ada`), or as one JSON value (`--input '{"name": "Ada"}'`,
`--input @FILE`, `--input -`). A value is JSON if it parses, otherwise text: `n=3` is a number, `n='"3"'` and `n=three` are text.""",
    "list": """`--since` and `--until` take an age (`2h`, `1d12h`), a date or a time. A time without a zone is local.""",
    "worker": "`perdure worker list` lists the connected workers, as `perdure workers` does.",
    "migrate": """Safe to run from many processes at once. An applied migration never changes; its checksum is compared every time. A database
that is ahead of the code is left alone.

```console
$ perdure migrate
nothing to do: the database is up to date
```""",
    "doctor": """Checks connection, schema, version, durability, clock, vacuum horizon, dead rows, indexes, connections, partitions and pooling.
The exit code is 1 if a finding is `fail`.""",
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


_NAMING: Final = """A `RUN` is given as its id; as the first 6 or more characters of the id, if no other run begins with them; as `key:KEY`, the key it
was given with `--key`; or as `@last`, the run most recently started from this machine (kept in `$XDG_STATE_HOME/perdure`), otherwise
the newest run on the server."""


_ANCHOR: Final = "options-of-every-command-that-talks-to-a-server"


def _shared() -> list[str]:
    return _table(_common_rows())


@functools.cache
def _common_rows() -> list[tuple[str, str]]:
    command = load("run_control")["cancel"]
    sections = sections_of(command, _context(command, "perdure cancel"))
    return [*sections[SERVER], *sections[OUTPUT]]


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
        common = _common_rows()
        rows = [row for rows in sections.values() for row in rows if row not in common and "--help" not in row[0]]
        if rows:
            out += [*_table(rows), ""]
        if SERVER in sections:
            out += [f"And the [options of every command that talks to a server](#{_ANCHOR}).", ""]
        elif OUTPUT in sections:
            out += [f"And the [output options](#{_ANCHOR}) `-o`, `--json` and `--fields`.", ""]
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

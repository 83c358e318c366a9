"""What every command that talks to a server has in common: where it is, as whom, in which namespace, and how to print.

    @remote
    def cancel(server: Remote, run: RunId, reason: str = "") -> None: ...

`remote` adds the shared options to the function's own and hands it a `Remote` for its first parameter.
"""

from __future__ import annotations

import functools
import inspect
import json
import os
import sys
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Concatenate, Literal, ParamSpec

import typer

from perdure.cli import completion_values

if TYPE_CHECKING:
    from perdure.app.http_client import Api
    from perdure.cli.render import Output

P = ParamSpec("P")
PANEL = "Server and output"

Format = Literal["table", "json", "yaml"]
RunId = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        help="Its id, the first 6 or more characters of it, key:NAME, or @last.",
        show_default=False,
        autocompletion=completion_values.runs,
    ),
]
Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        envvar="PERDURE_URL",
        rich_help_panel=PANEL,
        help="The server; PERDURE_URL, that of `perdure dev` here, or http://127.0.0.1:8600.",
    ),
]
Key = Annotated[
    str | None,
    typer.Option(
        "--key",
        metavar="KEY",
        envvar="PERDURE_API_KEY",
        rich_help_panel=PANEL,
        help="API key or token, or @FILE; PERDURE_API_KEY.",
    ),
]
Namespace = Annotated[
    str | None,
    typer.Option(
        "--namespace",
        "-n",
        metavar="NAME",
        envvar="PERDURE_NAMESPACE",
        rich_help_panel=PANEL,
        help="PERDURE_NAMESPACE, or the key's own.",
    ),
]
OutputFormat = Annotated[
    Format | None,
    typer.Option(
        "--output",
        "-o",
        rich_help_panel=PANEL,
        help="A table on a terminal, tab-separated lines elsewhere unless told.",
    ),
]
Fields = Annotated[
    str | None,
    typer.Option("--json", metavar="FIELD,FIELD", rich_help_panel=PANEL, help="JSON with these fields only."),
]

_SHARED: dict[str, Any] = {
    "url": Url,
    "key": Key,
    "namespace": Namespace,
    "output": OutputFormat,
    "fields": Fields,
}


class Remote:
    """The server a command works on, connected at first use, and the way it prints."""

    def __init__(
        self,
        url: str | None = None,
        key: str | None = None,
        namespace: str | None = None,
        output: str | None = None,
        fields: str | None = None,
    ) -> None:
        self._url, self._key, self._namespace = url, key, namespace
        self.namespace = namespace
        self._output, self._fields = output, fields

    @cached_property
    def out(self) -> Output:
        from perdure.cli.render import Output

        return Output(self._output, self._fields)

    @cached_property
    def api(self) -> Api:
        from perdure.app.dev.discovery import server_token, server_url
        from perdure.app.http_client import Api

        url = self._url or server_url(Path.cwd())
        return Api(url, key=self._key or server_token(url, Path.cwd()), namespace=self._namespace)

    # -- runs by short names ----------------------------------------------------------------------------------------

    def path(self, run: str, *more: str) -> str:
        """The path of a run, or of something in it."""
        from perdure.app.http_client import segment

        return "/".join(["/runs", segment(self.resolve(run)), *(segment(m) for m in more)])

    def resolve(self, run: str) -> str:
        """`@last` is the run last started from here; where there is none, the server's latest."""
        if run != "@last":
            return run
        from perdure.app.http_client import ApiError, segment

        remembered = self._memory.get()
        if remembered is None:
            return run
        try:
            self.api.get(f"/runs/{segment(remembered)}")
        except ApiError as error:
            if error.status == 404:  # another database behind the same address
                return run
            raise
        return remembered

    def remember(self, run_id: str) -> None:
        self._memory.put(run_id)

    @cached_property
    def _memory(self) -> Memory:
        from perdure.app.dev.discovery import state_directory

        return Memory(state_directory(), f"{self.api.url} {self._namespace or ''}".strip())


class Memory:
    """Which run was started last from this machine, per server and namespace. Losing it costs nothing."""

    ENTRIES_MAX = 50

    def __init__(self, directory: Path, place: str) -> None:
        self._file, self._place = directory / "last.json", place

    def get(self) -> str | None:
        found = self._all().get(self._place)
        return found if isinstance(found, str) else None

    def put(self, run_id: str) -> None:
        known = {place: run for place, run in self._all().items() if place != self._place}
        kept = dict(list(known.items())[-(self.ENTRIES_MAX - 1) :]) | {self._place: run_id}
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            draft = self._file.with_suffix(f".{os.getpid()}")
            draft.write_text(json.dumps(kept))
            draft.replace(self._file)
        except OSError:
            pass  # a home that cannot be written to is no reason to fail a start

    def _all(self) -> dict[str, Any]:
        try:
            found = json.loads(self._file.read_text())
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}


def remote(body: Callable[Concatenate[Remote, P], None]) -> Callable[P, None]:
    """Make a command of a function whose first parameter is the `Remote`."""

    @functools.wraps(body)
    def command(*args: P.args, **kwargs: P.kwargs) -> None:
        shared = {name: kwargs.pop(name, None) for name in _SHARED}
        shared["key"] = given_key(shared["key"])  # type: ignore[arg-type]
        server = Remote(**shared)  # type: ignore[arg-type]
        try:
            body(server, *args, **kwargs)
        finally:
            if "api" in vars(server):
                server.api.__exit__(None, None, None)
            sys.stdout.flush()

    own = list(inspect.signature(body, eval_str=True).parameters.values())[1:]
    shared = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
        for name, annotation in _SHARED.items()
    ]
    keyword = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own]
    command.__signature__ = inspect.Signature([*keyword, *shared], return_annotation=None)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in [*keyword, *shared]}
    del command.__wrapped__  # typer would look through it and find the function without the shared options
    return command


def given_key(key: str | None) -> str | None:
    """`@FILE` is the content of a file. A key on the command line is warned about: every user of the machine can read it there."""
    if not key:
        return key
    if key.startswith("@"):
        from perdure.core.errors import InvalidInput

        try:
            return Path(key[1:]).expanduser().read_text().strip()
        except OSError as error:
            raise InvalidInput(f"--key: cannot read {key[1:]}: {error.strerror}") from None
    if any(word.partition("=")[0] == "--key" for word in sys.argv):
        print(
            "warning: every user of this machine can read the key of --key in the list of processes. Set PERDURE_API_KEY, or write --key @FILE.",
            file=sys.stderr,
        )
    return key


def value_of(text: str) -> Any:
    """A value as people type it: JSON where it is JSON, otherwise the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def json_argument(text: str, what: str) -> Any:
    """JSON from the command line, from `@file` or from `-` (stdin). A mistake is shown with its line and column."""
    from perdure.core.errors import InvalidInput

    source = what
    if text == "-":
        text, source = sys.stdin.read(), "stdin"
    elif text.startswith("@"):
        source = text[1:]
        try:
            text = Path(source).read_text()
        except OSError as error:
            raise InvalidInput(f"{what}: cannot read {source}: {error.strerror}") from None
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise InvalidInput(
            f"{what}: {source} is not JSON at line {error.lineno}, column {error.colno}: {error.msg}. "
            "Text needs quotes of its own, as in '\"Ada\"'."
        ) from None

"""What commands share: the server they talk to, the credentials, the namespace, and the output format.

    @remote
    def cancel(server: Remote, run: RunId, reason: str = "") -> None: ...

    @local
    def validate(out: Output, paths: list[Path]) -> None: ...

`remote` adds the shared options to those of the function and passes a `Remote` as its first argument. `local` does the same for
commands that need no server: they have the options of the output alone, and an `Output`.
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
from typing import TYPE_CHECKING, Annotated, Any, Concatenate, Literal, ParamSpec, TypedDict, Unpack

import typer

from perdure.cli import completion_values
from perdure.cli.option_groups import CommandSignature

if TYPE_CHECKING:
    from perdure.cli.render import Output
    from perdure.programs.http_client import HttpApi

P = ParamSpec("P")
SERVER = "Server"
OUTPUT = "Output"
"""Headings of the shared options in the help of a command."""

Format = Literal["table", "json", "yaml"]
_RUN_ID: Any = typer.Argument(
    metavar="RUN",
    help="Run id, its first 6 or more characters, key:KEY, or @last.",
    show_default=False,
    autocompletion=completion_values.runs,
)
RunId = Annotated[str, _RUN_ID]
OptionalRunId = Annotated[str | None, _RUN_ID]
WorkflowFilter = Annotated[
    str | None,
    typer.Option(
        "--workflow",
        "-w",
        metavar="NAME",
        help="Only this workflow.",
        autocompletion=completion_values.workflows,
    ),
]
Limit = Annotated[int, typer.Option("--limit", "-l", min=1, help="Maximum number to print.")]

_SERVER: dict[str, Any] = {
    "url": Annotated[
        str | None,
        typer.Option(
            "--url",
            metavar="URL",
            envvar="PERDURE_URL",
            rich_help_panel=SERVER,
            help="Server. Default: PERDURE_URL, or the local server.",
        ),
    ],
    "api_key": Annotated[
        str | None,
        typer.Option(
            "--api-key",
            metavar="KEY",
            envvar="PERDURE_API_KEY",
            rich_help_panel=SERVER,
            help="API key, or @FILE. Default: PERDURE_API_KEY, or `perdure login`.",
        ),
    ],
    "namespace": Annotated[
        str | None,
        typer.Option(
            "--namespace",
            "-n",
            metavar="NAME",
            envvar="PERDURE_NAMESPACE",
            rich_help_panel=SERVER,
            help="Namespace. Default: PERDURE_NAMESPACE.",
        ),
    ],
}
_OUTPUT: dict[str, Any] = {
    "output": Annotated[
        Format | None,
        typer.Option(
            "--output",
            "-o",
            rich_help_panel=OUTPUT,
            help="Default: a table, or plain lines in a pipe.",
        ),
    ],
    "as_json": Annotated[bool, typer.Option("--json", rich_help_panel=OUTPUT, help="Short for -o json.")],
    "fields": Annotated[
        str | None,
        typer.Option(
            "--fields",
            metavar="NAME,NAME",
            rich_help_panel=OUTPUT,
            help="Print only these fields, as JSON or YAML.",
        ),
    ],
}


class SessionLimits(TypedDict, total=False):
    answer_s: float
    tries: int


class Remote:
    """The server that a command talks to, connected on first use, and the output of the command."""

    def __init__(self, out: Output, *, url: str | None, api_key: str | None, namespace: str | None) -> None:
        self.out = out
        self.namespace = namespace
        self._url, self._api_key = url, api_key

    @property
    def is_named(self) -> bool:
        """Whether the user chose a server or a credential, by option or by environment."""
        return bool(self._url or self._api_key)

    @cached_property
    def api(self) -> HttpApi:
        return self.connect()

    def connect(self, **limits: Unpack[SessionLimits]) -> HttpApi:
        """A session of its own, with the server and the credential that hold now."""
        from perdure.app.discovery import server_token, server_url
        from perdure.programs.http_client import HttpApi

        url = self._url or server_url(Path.cwd())
        key = self._api_key or server_token(url, Path.cwd()) or _stored(url)
        return HttpApi(url, key=key, namespace=self.namespace, **limits)

    def path(self, run: str, *more: str) -> str:
        """The REST path of a run, or of something that belongs to it."""
        from perdure.programs.http_client import segment

        return "/".join(["/runs", segment(self.resolve(run)), *(segment(m) for m in more)])

    def resolve(self, run: str) -> str:
        """`@last` is the run most recently started from this machine; if there is none, the newest run on the server."""
        if run != "@last":
            return run
        from perdure.programs.http_client import ApiError, segment

        remembered = self._memory.get()
        if remembered is None:
            return run
        try:
            self.api.get(f"/runs/{segment(remembered)}")
        except ApiError as error:
            if error.status == 404:  # the server has another database now
                return run
            raise
        return remembered

    def remember(self, run_id: str) -> None:
        self._memory.put(run_id)

    @cached_property
    def _memory(self) -> Memory:
        from perdure.app.discovery import state_directory

        return Memory(state_directory(), f"{self.api.url} {self.namespace or ''}".strip())


def _stored(url: str) -> str | None:
    """The credential that `perdure login` keeps for a server."""
    from perdure.programs.credentials import Credential, Credentials

    def renew(server: str, old: Credential) -> Credential:
        from perdure.programs import device_flow

        return device_flow.renew(server, old)

    return Credentials().secret(url, renew)


class Memory:
    """The run most recently started from this machine, per server and namespace. The file may be lost without harm."""

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
            pass  # the run was started; a read-only home directory must not turn that into an error

    def _all(self) -> dict[str, Any]:
        try:
            found = json.loads(self._file.read_text())
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}


def remote(body: Callable[Concatenate[Remote, P], None]) -> Callable[..., None]:
    """A command that talks to a server: `body` gets a `Remote`."""

    def call(options: dict[str, Any], rest: dict[str, Any]) -> None:
        options["api_key"] = given_api_key(options["api_key"])
        out = _output(options)
        server = Remote(out, **options)
        try:
            body(server, **rest)  # type: ignore[call-arg]
        finally:
            if "api" in vars(server):
                server.api.__exit__(None, None, None)

    return _command(body, {**_SERVER, **_OUTPUT}, call)


def remote_silent(body: Callable[Concatenate[Remote, P], None]) -> Callable[..., None]:
    """A command that talks to a server and has no output to format."""

    def call(options: dict[str, Any], rest: dict[str, Any]) -> None:
        from perdure.cli.render import Output

        options["api_key"] = given_api_key(options["api_key"])
        body(Remote(Output(None, None, as_json=False), **options), **rest)  # type: ignore[call-arg]

    return _command(body, _SERVER, call)


def local(body: Callable[Concatenate[Output, P], None]) -> Callable[..., None]:
    """A command that needs no server: `body` gets an `Output`."""

    def call(options: dict[str, Any], rest: dict[str, Any]) -> None:
        body(_output(options), **rest)  # type: ignore[call-arg]

    return _command(body, _OUTPUT, call)


def _output(options: dict[str, Any]) -> Output:
    from perdure.cli.render import Output

    return Output(options.pop("output"), options.pop("fields"), as_json=options.pop("as_json"))


def _command(
    body: Callable[..., None], shared: dict[str, Any], call: Callable[[dict[str, Any], dict[str, Any]], None]
) -> Callable[..., None]:
    """`body` with the shared options added to the signature that typer reads."""
    own = CommandSignature(body)

    @functools.wraps(body)
    def command(**given: Any) -> None:
        options = {name: given.pop(name, None) for name in shared}
        try:
            call(options, own.grouped(given))
        finally:
            sys.stdout.flush()

    added = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=False if name == "as_json" else None,
            annotation=annotation,
        )
        for name, annotation in shared.items()
    ]
    parameters = [*own.parameters, *added]
    command.__signature__ = inspect.Signature(parameters, return_annotation=None)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    # typer would follow it to the function without the shared options
    del command.__wrapped__  # pyrefly: ignore[missing-attribute]
    return command


def given_api_key(key: str | None) -> str | None:
    """Reads `@FILE`. Warns about a key on the command line, which every user of the machine can see in the process list."""
    if not key:
        return key
    if key.startswith("@"):
        from perdure.core.errors import InvalidInput

        try:
            return Path(key[1:]).expanduser().read_text().strip()
        except OSError as error:
            raise InvalidInput(f"--api-key: cannot read {key[1:]}: {error.strerror}") from None
    if any(word.partition("=")[0] == "--api-key" for word in sys.argv):
        print(
            "warning: --api-key is visible to every user of this machine in the process list. "
            "Set PERDURE_API_KEY, or use --api-key @FILE.",
            file=sys.stderr,
        )
    return key


def value_of(text: str) -> Any:
    """A value typed by a person: parsed as JSON if it is valid JSON, otherwise a string."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def json_argument(text: str, what: str) -> Any:
    """JSON from the command line, from `@FILE` or from `-` (stdin). Errors name line and column."""
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
            f"{what}: {source} is not valid JSON: line {error.lineno}, column {error.colno}: {error.msg}. "
            "Quote a string twice: '\"Ada\"'."
        ) from None

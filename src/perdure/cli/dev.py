"""`perdure dev`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.cli.options import Dsn, Sources, with_options

if TYPE_CHECKING:
    from rich.console import Console


def register(app: typer.Typer) -> None:
    app.command()(dev)


@dataclass(kw_only=True)
class DevFlags(Sources):
    directory: Annotated[
        Path,
        typer.Argument(
            metavar="PATH",
            exists=True,
            file_okay=False,
            help="Directory with Python files and flows. Default: this one.",
        ),
    ] = Path(".")
    dsn: Dsn = None
    http: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="127.0.0.1:8600 or the next free port.")] = None
    grpc: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="127.0.0.1:8601 or the next free port.")] = None
    once: Annotated[bool, typer.Option("--once", help="Exit after the first run, with its status.")] = False


@with_options(DevFlags)
def dev(flags: DevFlags) -> None:
    """Run database, server and worker, and reload on change.

    An empty directory gets a hello.py, a hello.yaml, and a first run.
    """
    import asyncio

    from perdure.programs.dev.dev import DevOptions
    from perdure.programs.dev.dev import dev as run
    from perdure.programs.logs import configure
    from perdure.programs.settings import ServerSettings

    given: dict[str, tuple[str, object]] = {
        "dsn": ("--dsn", flags.dsn),
        "http": ("--http", flags.http),
        "grpc": ("--grpc", flags.grpc),
    }
    layers = flags.layers(ServerSettings, given)
    settings = ServerSettings.load(layers)
    flags.print_if_asked(settings, layers)
    configure("text", "warning")
    options = DevOptions(
        directory=flags.directory.resolve(),
        dsn=settings.dsn or None,
        http=settings.http,
        grpc=settings.grpc,
        once=flags.once,
        secret_keys=settings.secret_keys,
    )
    raise typer.Exit(asyncio.run(run(options, Screen())))


class Screen:
    """Output of `dev`, on a terminal or into a file."""

    def __init__(self) -> None:
        import sys

        from perdure.programs.terminal import console

        self._console: Console = console(sys.stdout)

    def _print(self, *parts: tuple[str, str]) -> None:
        from rich.text import Text

        self._console.print(Text.assemble(*parts), soft_wrap=True)
        self._console.file.flush()

    def step(self, name: str, text: str) -> None:
        self._print((f"{name:>9}  ", "bold cyan"), (text, ""))

    def note(self, text: str) -> None:
        self._print((f"{'':>9}  ", ""), (text, "dim"))

    def trouble(self, text: str) -> None:
        head, *rest = text.rstrip().splitlines()
        self._print((f"{'trouble':>9}  ", "bold red"), (head, ""))
        for line in rest:
            self._print((f"{'':>9}  {line}", "dim"))

    def ended(self, run: dict[str, Any]) -> None:
        from perdure.cli.render import MARKS, STYLES, duration, pretty, seconds_between
        from perdure.cli.run_tree import error_line

        word = run["status"]
        took = duration(seconds_between(run["created_at"], run.get("finished_at")))
        said = pretty(run.get("result")) if word == "success" else error_line(run.get("error") or "")
        self._print(
            (f"{MARKS[word]:>9}  ", STYLES[word]),
            (run["workflow"], "bold"),
            (f"  {word}", STYLES[word]),
            (f" in {took}  ", "dim"),
            (said, ""),
        )

    def link(self, url: str) -> None:
        self._print(("", ""))
        self._print((f"{'':>9}  {url}", "bold blue underline"))
        self._print(("", ""))
        self.note("Save a file and it reloads. In another terminal: perdure list, perdure run WORKFLOW. Ctrl-C stops.")

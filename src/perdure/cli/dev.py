"""`perdure dev`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console


def register(app: typer.Typer) -> None:
    app.command()(dev)


def dev(
    directory: Annotated[
        Path,
        typer.Argument(metavar="PATH", exists=True, file_okay=False, help="Whose *.py to serve and flows to deploy."),
    ] = Path("."),
    db: Annotated[
        str | None,
        typer.Option(
            "--db",
            "--dsn",
            envvar=["PERDURE_DSN", "DATABASE_URL"],
            metavar="DSN",
            help="Your PostgreSQL. Without it a private one in .perdure is started.",
        ),
    ] = None,
    http: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="127.0.0.1:8600 or the next free port.")] = None,
    grpc: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="127.0.0.1:8601 or the next free port.")] = None,
    once: Annotated[bool, typer.Option("--once", help="End after the first run, as it did.")] = False,
) -> None:
    """Database, server and worker in one command, with reload.

    An empty directory gets a hello.py, a hello.yaml, and a first run.
    """
    import asyncio

    from perdure.app.dev.dev import DevOptions
    from perdure.app.dev.dev import dev as run
    from perdure.app.logs import configure
    from perdure.app.settings import GRPC_PORT, HTTP_PORT, Address

    configure("text", "warning")
    options = DevOptions(
        directory=directory.resolve(),
        dsn=db,
        http=Address.parse(http, default_port=HTTP_PORT) if http else Address("127.0.0.1", HTTP_PORT),
        grpc=Address.parse(grpc, default_port=GRPC_PORT) if grpc else Address("127.0.0.1", GRPC_PORT),
        once=once,
    )
    raise typer.Exit(asyncio.run(run(options, Screen())))


class Screen:
    """What `dev` says, on a terminal or into a file."""

    def __init__(self) -> None:
        import sys

        from perdure.app.terminal import console

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

"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, fields
from inspect import Parameter, Signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_type_hints

import typer

if TYPE_CHECKING:
    from perdure.programs.process_settings import ProcessSettings
    from perdure.programs.settings_sources import Layer

T = TypeVar("T")

Dsn = Annotated[
    str | None,
    typer.Option(
        "--dsn",
        metavar="DSN",
        help="The database; else PERDURE_DSN, .env or perdure.toml, else a private PostgreSQL in .perdure.",
    ),
]
LogFormat = Annotated[str | None, typer.Option(metavar="text|json", help="Format of log lines on stderr.")]
LogLevel = Annotated[
    str | None, typer.Option(metavar="LEVEL", help="Lowest level to print: debug, info, warning, error.")
]


@dataclass(kw_only=True)
class Sources:
    """Where a process finds its settings beside flags and environment, and a look at the result."""

    config: Annotated[
        Path | None,
        typer.Option(
            exists=True, dir_okay=False, help="Settings as TOML; perdure.toml in this directory if it exists."
        ),
    ] = None
    secrets_dir: Annotated[
        Path | None,
        typer.Option(exists=True, file_okay=False, help="A directory with one file per secret, such as /run/secrets."),
    ] = None
    assign: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any setting, such as engine.lease_s=10. Repeatable."),
    ] = None
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Print the settings with their sources, and exit.")
    ] = False

    def layers(self, settings: type[ProcessSettings], flags: dict[str, tuple[str, object]]) -> Sequence[Layer]:
        from perdure.programs import settings_sources

        known = settings.settings()
        return [
            settings_sources.flags(flags),
            settings_sources.assignments(self.assign or (), known),
            *settings_sources.read(settings.section, known, config=self.config, secrets_dir=self.secrets_dir),
        ]

    def print_if_asked(self, settings: ProcessSettings, layers: Sequence[Layer]) -> None:
        if self.print_config:
            print("\n".join(settings.effective(layers)))
            raise typer.Exit


def with_options(options: type[T]) -> Callable[[Callable[[T], None]], Callable[..., None]]:
    """Makes a command of a function that takes its options as one object: each field of the dataclass is an option."""

    def decorate(command: Callable[[T], None]) -> Callable[..., None]:
        def called(**given: Any) -> None:
            command(options(**given))

        hints = get_type_hints(options, include_extras=True)
        parameters = [
            Parameter(
                field.name,
                Parameter.KEYWORD_ONLY,
                default=Parameter.empty if field.default is MISSING else field.default,
                annotation=hints[field.name],
            )
            for field in fields(options)  # type: ignore[arg-type]
        ]
        called.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
        called.__annotations__ = {name: hints[name] for name in (p.name for p in parameters)}
        called.__name__, called.__doc__ = command.__name__, command.__doc__
        return called

    return decorate


@contextmanager
def database(dsn: str | None) -> Generator[str]:
    """The given DSN, else the configured one, else that of the private PostgreSQL, which stops with the last program that uses it."""
    if not dsn:
        from perdure.programs.settings_sources import configured_dsn

        dsn = configured_dsn()
    if dsn:
        yield dsn
        return
    from perdure.localpg.cluster import PrivateCluster, default_directory

    with PrivateCluster(default_directory()) as cluster:
        yield cluster.dsn()

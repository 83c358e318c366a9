"""`perdure keys`: the data keys that encrypt payloads, and the master keys that wrap them. Works on the database."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from perdure.cli.options import Dsn, database
from perdure.programs.terminal import console

if TYPE_CHECKING:
    from perdure.store.payload_keys import PayloadKeyItem, PayloadKeys

T = TypeVar("T")

Keys = Annotated[
    str | None,
    typer.Option(
        "--keys",
        metavar="WHERE",
        envvar="PERDURE_PAYLOAD_KEYS",
        help="The master keys: file:PATH, command:PROGRAM or transit:URL.",
    ),
]

Json = Annotated[bool, typer.Option("--json", help="JSON instead of text.")]

keys = typer.Typer(help="List, rotate and retire the keys that encrypt payloads.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    app.add_typer(keys, name="keys")


@keys.command("list")
def show(
    dsn: Dsn = None,
    where: Keys = None,
    as_json: Json = False,
) -> None:
    """List the data keys, and say which of them can be used here.

    Exit code 1 if one cannot.
    """
    items = _with_keys(dsn, where, lambda known, c: known.list(c))
    if as_json:
        import msgspec

        print(msgspec.json.encode(items).decode())
    elif sys.stdout.isatty():
        _table(items)
    else:
        for i in items:
            print("\t".join((str(i.id), i.master, _moment(i.created_us), _state(i))))
    if any(i.problem for i in items):
        raise typer.Exit(1)


@keys.command()
def rotate(dsn: Dsn = None, where: Keys = None, as_json: Json = False) -> None:
    """Make a new data key. Every running engine encrypts new data with it within seconds; old data stays readable."""
    made = _with_keys(dsn, where, lambda known, c: known.rotate(c))
    _tell(as_json, {"id": made}, f"data key {made} encrypts new data from now on")


@keys.command()
def rewrap(dsn: Dsn = None, where: Keys = None, as_json: Json = False) -> None:
    """Wrap all data keys with the newest master key, so that older master keys are not needed any more."""
    done = _with_keys(dsn, where, lambda known, c: known.rewrap(c))
    nothing = "nothing to do: the newest master key wraps all data keys"
    _tell(as_json, {"rewrapped": done}, f"rewrapped {len(done)} data keys" if done else nothing)


@keys.command()
def retire(
    key_id: Annotated[int, typer.Argument(metavar="ID", help="The data key, as `perdure keys list` shows it.")],
    dsn: Dsn = None,
    as_json: Json = False,
) -> None:
    """Delete a data key that nothing is encrypted with any more.

    Reads all tables to find out, which takes a while on a large database. A key that is still needed is kept.
    """
    import asyncio

    from perdure.store.connections import connect
    from perdure.store.payload_keys import retire as delete

    async def run(address: str) -> None:
        connection = await connect(address)
        try:
            await delete(connection, key_id)
        finally:
            await connection.close(timeout=10)

    with database(dsn) as address:
        asyncio.run(run(address))
    _tell(as_json, {"deleted": key_id}, f"data key {key_id} is deleted")


def _tell(as_json: bool, data: Any, text: str) -> None:
    import msgspec

    print(msgspec.json.encode(data).decode() if as_json else text)


def _with_keys(dsn: str | None, where: str | None, act: Callable[[PayloadKeys, Any], Awaitable[T]]) -> T:
    import asyncio
    import os

    from perdure.app.master_keys import master_keys
    from perdure.core.errors import InvalidInput
    from perdure.store.connections import connect
    from perdure.store.migrate import check
    from perdure.store.payload_keys import PayloadKeys

    if not where:
        raise InvalidInput("where are the master keys? Give --keys or set PERDURE_PAYLOAD_KEYS, as on the servers")
    known = PayloadKeys(master_keys(where, os.environ))

    async def run(address: str) -> T:
        await check(address)
        connection = await connect(address)
        try:
            return await act(known, connection)
        finally:
            await connection.close(timeout=10)

    with database(dsn) as address:
        return asyncio.run(run(address))


def _moment(us: int) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(us / 1e6, UTC).astimezone().isoformat(sep=" ", timespec="seconds")


def _state(item: PayloadKeyItem) -> str:
    return item.problem or ("encrypts new data" if item.is_newest else "opens old data")


def _table(items: list[PayloadKeyItem]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="")
    for name in ("data key", "master key", "made", ""):
        table.add_column(name)
    for i in items:
        state = Text(_state(i), style="bold red" if i.problem else "green" if i.is_newest else "dim")
        table.add_row(str(i.id), i.master, _moment(i.created_us), state)
    console().print(table)

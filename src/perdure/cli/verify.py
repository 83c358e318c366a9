"""`perdure verify`: prove from the database, and from a ledger if there is one, that nothing was lost, doubled or torn."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perdure.cli.options import Dsn, database
from perdure.programs.terminal import console

if TYPE_CHECKING:
    from perdure.core.invariants import Tally


STORED = 24
"""The invariant about stored content."""


def register(app: typer.Typer) -> None:
    app.command()(verify)


def verify(
    dsn: Dsn = None,
    ledger: Annotated[
        Path | None,
        typer.Option(help="What tasks did, written by perdure.testing.ledger.", exists=True, dir_okay=False),
    ] = None,
    starts: Annotated[
        Path | None,
        typer.Option(help='Acknowledged starts: JSON lines {"run": "<id>"}.', exists=True, dir_okay=False),
    ] = None,
    signals: Annotated[
        Path | None,
        typer.Option(
            help='Acknowledged signals: JSON lines {"run", "name", "value", "sender"}, in the order of each sender.',
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    at_rest: Annotated[
        bool, typer.Option("--at-rest", help="Nothing is going on: leftovers and unfinished runs count as violations.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON array instead of a table.")] = False,
) -> None:
    """Verify that no run was lost or corrupted.

    Checks the invariants of every run; exit code 1 when one does not hold.
    """
    import asyncio

    with database(dsn) as address:
        tallies = asyncio.run(_verify(address, ledger, starts, signals, at_rest))
    if as_json:
        import msgspec

        print(msgspec.json.encode([_plain_fields(t) for t in tallies]).decode())
    elif sys.stdout.isatty():
        _table(tallies)
    else:
        _plain(tallies)
    if any(t.violations for t in tallies):
        raise typer.Exit(1)


async def _verify(
    dsn: str, ledger: Path | None, starts: Path | None, signals: Path | None, at_rest: bool
) -> list[Tally]:
    from perdure.app.payload_keys import read_sealing, sealing_options
    from perdure.payloads.objects import ObjectStores
    from perdure.programs.verify_ledger import read_ledger, read_signals, read_starts, sorted_ledger
    from perdure.sdk.client.payloads import payload_options
    from perdure.store.verify import verify as run

    stores = ObjectStores(payload_options().stores)
    read_sealing(dsn, sealing_options(os.environ), os.environ)
    acknowledged = read_starts(starts) if starts is not None else None
    sent = list(read_signals(signals)) if signals is not None else []
    if ledger is None:
        return await run(dsn, starts=acknowledged, signals=sent, at_rest=at_rest, stores=stores)
    names = frozenset(line.name for line in read_ledger(ledger))
    with sorted_ledger(ledger) as lines:
        return await run(
            dsn, ledger=lines, names=names, starts=acknowledged, signals=sent, at_rest=at_rest, stores=stores
        )


def _plain_fields(t: Tally) -> dict[str, object]:
    return {
        "number": t.number,
        "name": t.name,
        "examined": t.examined,
        "violations": t.violations,
        "examples": t.examples,
        "needs": t.needs,
        "unchecked": t.unchecked,
    }


def _plain(tallies: list[Tally]) -> None:
    """One invariant per line and one example per line below it, columns by tab: for grep and cut."""
    for t in tallies:
        if t.needs:
            print("\t".join(("-", str(t.number), t.name, f"not checked without {t.needs}")))
            continue
        print("\t".join(("FAIL" if t.violations else "ok", str(t.number), t.name, str(t.examined), str(t.violations))))
        if t.unchecked:
            print("\t".join(("", "", "", _unchecked(t))))
        for e in t.examples:
            print("\t".join(("", "", e.run, " ".join(e.what.split()))))


def _unchecked(t: Tally) -> str:
    if t.number == STORED:
        return f"{t.unchecked:,} not checked: they are in object stores that PERDURE_PAYLOADS does not name"
    return f"{t.unchecked:,} not checked but for the hash chain: they are encrypted, and PERDURE_PAYLOAD_KEYS does not open them"


def _table(tallies: list[Tally]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="")
    table.add_column("")
    table.add_column("no", justify="right")
    table.add_column("invariant")
    table.add_column("examined", justify="right")
    table.add_column("violations", justify="right")
    for t in tallies:
        what = Text(t.name)
        for e in t.examples:
            what.append(f"\n{e.run} {e.what}", style="italic")
        if t.unchecked:
            what.append(f"\n{_unchecked(t)}", style="italic dim")
        if t.needs:
            what.append(f"\nnot checked without {t.needs}", style="italic dim")
            table.add_row(Text("-", style="dim"), str(t.number), what, "", "")
            continue
        mark = Text("FAIL", style="bold red") if t.violations else Text("ok", style="green" if t.examined else "dim")
        table.add_row(mark, str(t.number), what, f"{t.examined:,}", f"{t.violations:,}")
    console().print(table)

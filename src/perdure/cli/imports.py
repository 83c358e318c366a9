"""`perdure import`: reads exported runs back into a database."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from perdure.cli.options import Dsn, database

if TYPE_CHECKING:
    from perdure.core.retention import Manifest
    from perdure.store.imports import Imported


def register(app: typer.Typer) -> None:
    app.command("import")(import_)


def import_(
    url: Annotated[
        str,
        typer.Argument(
            metavar="URL",
            help="Where the exports are: s3://bucket/prefix, gs://, az:// or file:///directory; or one folder below.",
            show_default=False,
        ),
    ],
    dsn: Dsn = None,
    keep: Annotated[
        str, typer.Option("--keep", metavar="TIME", help="How long retention leaves the runs alone: 30d, or forever.")
    ] = "30d",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check everything, and write nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of text.")] = False,
) -> None:
    """Import exported runs into a database, with their ids and histories.

    Runs that are there already are passed over, so an import may be repeated. The database must be migrated.
    """
    import asyncio
    import os

    from perdure.app.payload_keys import sealing_options, use_sealing
    from perdure.core.errors import NotFound
    from perdure.core.retention import parse_days
    from perdure.exports.archive import Archive
    from perdure.store.imports import import_exports

    last = ""

    def tell(folder: str, manifest: Manifest, done: Imported) -> None:
        nonlocal last
        if folder != last and not as_json:
            last = folder
            print(f"{folder}: {manifest.runs:,} runs", flush=True)

    async def run(address: str) -> Imported:
        await use_sealing(address, sealing_options(os.environ), os.environ)
        return await import_exports(address, Archive(url), parse_days(keep), tell=tell, is_dry_run=dry_run)

    with database(dsn) as address:
        done = asyncio.run(run(address))
    if not done.exports:
        raise NotFound(f"no export was found at {url}: one that has no manifest.json was not finished")
    if as_json:
        import msgspec

        print(msgspec.json.encode(done).decode())
        return
    verb = "would be imported" if dry_run else "imported"
    exports = "1 export" if done.exports == 1 else f"{done.exports:,} exports"
    print(f"{done.runs:,} runs {verb} from {exports}, {done.present:,} were there already")
    if done.missing_payloads:
        print(
            f"{done.missing_payloads:,} references lead to content that this database does not have: "
            "exports hold the references of large values, not their content"
        )

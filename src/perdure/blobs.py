"""Tables as blobs: pyarrow, Polars and pandas, as Arrow IPC or Parquet. Needs `pip install 'perdure[arrow]'`.

    from perdure import blobs

    blob = blobs.from_table(table)              # a pyarrow Table, or a Polars or pandas frame
    table = blobs.to_arrow(blob)                # in a thread or process task
    frame = blobs.to_polars(blob)

Reading blocks, so call `to_*` in a task that is a plain function; an async task calls it in a thread (`asyncio.to_thread`).
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final, Literal

from perdure.core.errors import InvalidInput
from perdure.core.packages import missing
from perdure.sdk.payloads.blobs import Blob

ARROW: Final = "application/vnd.apache.arrow.file"
PARQUET: Final = "application/vnd.apache.parquet"

__all__ = ["from_table", "to_arrow", "to_pandas", "to_polars"]


def from_table(table: Any, *, name: str = "", format: Literal["arrow", "parquet"] = "arrow") -> Blob:
    """A blob of a pyarrow Table, or of a Polars or pandas frame.

    Args:
        table: the table.
        name: the file name.
        format: `arrow` is the fastest to read, `parquet` the smallest.
    """
    pyarrow = _pyarrow()
    found = _as_arrow(table, pyarrow)
    media_type = {"arrow": ARROW, "parquet": PARQUET}.get(format)
    if media_type is None:
        raise InvalidInput(f"format={format!r}: write arrow or parquet")
    with Blob.writer(name or f"table.{format}", media_type=media_type) as out:
        if format == "parquet":
            _parquet().write_table(found, pyarrow.PythonFile(out, mode="w"))
        else:
            with pyarrow.ipc.new_file(pyarrow.PythonFile(out, mode="w"), found.schema) as writer:
                writer.write_table(found)
    return out.blob


def to_arrow(blob: Blob, *, columns: list[str] | None = None) -> Any:
    """The pyarrow Table of a blob. Of Parquet only the `columns` that are wanted are loaded."""
    pyarrow = _pyarrow()
    with blob.open() as file:
        if blob.media_type == PARQUET:
            return _parquet().read_table(file, columns=columns)
        if blob.media_type != ARROW:
            raise InvalidInput(
                f"{blob!r} is not a table: its media type is neither {ARROW} nor {PARQUET}. Make it with blobs.from_table()"
            )
        table = pyarrow.ipc.open_file(file).read_all()
    return table.select(columns) if columns is not None else table


def to_polars(blob: Blob, *, columns: list[str] | None = None) -> Any:
    """The Polars DataFrame of a blob."""
    return import_module("polars").from_arrow(to_arrow(blob, columns=columns))


def to_pandas(blob: Blob, *, columns: list[str] | None = None) -> Any:
    """The pandas DataFrame of a blob."""
    return to_arrow(blob, columns=columns).to_pandas()


def _as_arrow(table: Any, pyarrow: Any) -> Any:
    if isinstance(table, pyarrow.Table):
        return table
    module = type(table).__module__.partition(".")[0]
    if module == "polars":
        return table.to_arrow()
    if module == "pandas":
        return pyarrow.Table.from_pandas(table)
    raise InvalidInput(f"a {type(table).__name__} is not a table: give a pyarrow Table, or a Polars or pandas frame")


def _pyarrow() -> Any:
    try:
        pyarrow = import_module("pyarrow")
        import_module("pyarrow.ipc")
    except ImportError:
        raise missing("a table as a blob", "arrow") from None
    return pyarrow


def _parquet() -> Any:
    return import_module("pyarrow.parquet")

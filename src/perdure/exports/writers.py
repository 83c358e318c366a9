"""Parts of an export in memory: JSON lines compressed by gzip, or Parquet. Blocking, and used from a thread."""

from __future__ import annotations

import gzip
import io
from collections.abc import Iterator
from hashlib import sha256
from importlib import import_module
from typing import Any, Final, Protocol

from perdure.core.errors import InvalidInput
from perdure.core.packages import missing
from perdure.core.retention import FORMATS, ExportFormat
from perdure.exports import records
from perdure.exports.records import Plain, RunRows

LEVEL: Final = 2
"""Of gzip: a third of the time of the usual level, for objects a fifth larger."""
ROW_GROUP_RUNS: Final = 2_000
ROW_GROUP_BYTES: Final = 8 * 1024 * 1024
"""Bytes of records that wait for their row group."""


def format_of(text: str) -> ExportFormat:
    for known in FORMATS:
        if text == known:
            return known
    raise InvalidInput(f"{text[:50]!r} is not a format of exports; these are: {', '.join(FORMATS)}")


class _Writer(Protocol):
    def add(self, rows: RunRows) -> None: ...
    def size(self) -> int: ...
    def finish(self) -> bytes: ...


class PartWriter:
    """One object of an export, run by run in the order of their ids."""

    def __init__(self, format: ExportFormat) -> None:
        self._writer: _Writer = ParquetPart() if format == "parquet" else JsonlPart()
        self.runs = self.events = self.tasks = 0
        self.first = self.last = b""

    def add(self, runs: list[RunRows]) -> int:
        """Returns the bytes that the object has so far, about."""
        for rows in runs:
            self._writer.add(rows)
            self.runs += 1
            self.events += rows.run["events"]
            self.tasks += len(rows.tasks)
            self.first = self.first or rows.run_id
            self.last = rows.run_id
        return self._writer.size()

    def finish(self) -> tuple[bytes, bytes]:
        """The object, and its SHA-256."""
        data = self._writer.finish()
        return data, sha256(data).digest()


class JsonlPart:
    def __init__(self) -> None:
        self._out = io.BytesIO()
        self._zip = gzip.GzipFile(fileobj=self._out, mode="wb", compresslevel=LEVEL, mtime=0)

    def add(self, rows: RunRows) -> None:
        self._zip.write(records.encode(records.record_of(rows)) + b"\n")

    def size(self) -> int:
        return self._out.tell()

    def finish(self) -> bytes:
        self._zip.close()
        return self._out.getvalue()


class ParquetPart:
    """A row per run: columns to query, tasks as a list of structs, and the whole record as JSON, from which an import restores the run."""

    def __init__(self) -> None:
        pa, pq = _arrow()
        self._pa, self._out = pa, io.BytesIO()
        self._schema = _schema(pa)
        self._parquet = pq.ParquetWriter(self._out, self._schema, compression="zstd")
        self._rows: list[Plain] = []
        self._bytes = 0

    def add(self, rows: RunRows) -> None:
        record = records.record_of(rows)
        text = records.encode(record)
        self._rows.append(_columns(record, rows, text))
        self._bytes += len(text)
        if len(self._rows) >= ROW_GROUP_RUNS or self._bytes >= ROW_GROUP_BYTES:
            self._flush()

    def size(self) -> int:
        return self._out.tell() + self._bytes // 8

    def _flush(self) -> None:
        if self._rows:
            self._parquet.write_table(self._pa.Table.from_pylist(self._rows, schema=self._schema))
        self._rows, self._bytes = [], 0

    def finish(self) -> bytes:
        self._flush()
        self._parquet.close()
        return self._out.getvalue()


def _columns(record: Plain, rows: RunRows, text: bytes) -> Plain:
    out: Plain = {name: record[name] for name in _TEXTS}
    for name in ("created", "finished"):
        out[f"{name}_at"] = record[f"{name}_us"]
    out["events"] = record["events"]
    out["attributes"] = rows.run["attributes"]
    out["tasks"] = [
        {
            **{name: task[name] for name in ("seq", "name", "node", "queue", "status", "attempts", "worker", "error")},
            **{f"{name}_at": task[f"{name}_us"] for name in ("scheduled", "started", "finished")},
        }
        for task in record["tasks"]
    ]
    out["record"] = text.decode()
    return out


_TEXTS: Final = (
    "run_id",
    "namespace",
    "workflow",
    "version",
    "kind",
    "key",
    "parent_id",
    "status",
    "error_code",
    "error",
    "successor",
    "head",
)


def _schema(pa: Any) -> Any:
    text, moment = pa.string(), pa.timestamp("us", tz="UTC")
    task = pa.struct(
        [
            ("seq", pa.int32()),
            *((name, text) for name in ("name", "node", "queue", "status")),
            ("attempts", pa.int32()),
            *((name, text) for name in ("worker", "error")),
            *((f"{name}_at", moment) for name in ("scheduled", "started", "finished")),
        ]
    )
    return pa.schema(
        [
            *((name, text) for name in _TEXTS),
            ("created_at", moment),
            ("finished_at", moment),
            ("events", pa.int32()),
            ("attributes", text),
            ("tasks", pa.list_(task)),
            ("record", pa.large_string()),
        ]
    )


def _arrow() -> tuple[Any, Any]:
    try:
        return import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError:
        raise missing("an export as Parquet", "arrow") from None


def read_part(data: bytes, format: ExportFormat) -> Iterator[Plain]:
    """The records of an object."""
    if format == "parquet":
        _, pq = _arrow()
        for batch in pq.ParquetFile(io.BytesIO(data)).iter_batches(batch_size=100, columns=["record"]):
            for text in batch.column(0).to_pylist():
                yield records.decode(text.encode())
    else:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as lines:
            for line in lines:
                yield records.decode(line)

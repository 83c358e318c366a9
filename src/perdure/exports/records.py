"""A run with everything that is kept of it, and its record in an export: one JSON object.

A record has the events decoded, without fields that have their default, and each row of the history with its hash. Bytes that are text stand as `{"text": ...}`, others as
`{"base64": ...}`. Encoding the events again must give the bytes that the hash covers; where it would not, as after a change of the
codec, the record has the bytes themselves too (`body`). What the database has sealed is decoded as well, and stands beside it as it was
(`sealed`), because that is what the hash covers. So an import restores exactly what was exported.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from functools import cache
from typing import Any, Final

import msgspec

from perdure.core import ids
from perdure.core.chain import BEGINNING, link
from perdure.core.errors import InvalidInput
from perdure.wire.codec import decode_events, encode_events, event_from_fields, told_fields

Plain = dict[str, Any]
"""JSON: an object."""


class HistoryLine(msgspec.Struct, frozen=True):
    seq: int
    last: int
    epoch: int
    at_us: int
    body: bytes
    """Encoded events, as perdure.wire.codec has them."""
    hash: bytes
    sealed: bytes | None = None
    """What the database has in place of the body, and the hash covers, if that is encrypted or compressed there."""

    @property
    def stored(self) -> bytes:
        return self.body if self.sealed is None else self.sealed


class RunRows(msgspec.Struct, kw_only=True):
    """The rows of one ended run, as the database has them. Ids are bytes, moments are Unix microseconds."""

    run: Plain
    """Columns of the table `run`, with `namespace` (its name) and `input_hash` of its key, which may be null."""
    history: list[HistoryLine] = []
    tasks: list[Plain] = []
    attempts: list[Plain] = []
    states: list[tuple[str, bytes | None]] = []
    node_counts: list[tuple[str, str, int, int]] = []
    """(node, what, bin, n)"""
    logs: list[Plain] = []
    payloads: list[tuple[str, bytes, int | None]] = []
    """(store, SHA-256, size) of stored content that the run refers to"""

    @property
    def run_id(self) -> bytes:
        ident: bytes = self.run["run_id"]
        return ident


RUN_COLUMNS: Final = [
    "run_id",
    "ns",
    "workflow",
    "version",
    "kind",
    "key",
    "parent_id",
    "parent_seq",
    "status",
    "created_at",
    "finished_at",
    "epoch",
    "events",
    "error_code",
    "error",
    "successor",
    "attributes",
    "head",
]
TASK_COLUMNS: Final = [
    "id",
    "seq",
    "name",
    "queue",
    "status",
    "attempts",
    "lost",
    "epoch",
    "scheduled_at",
    "started_at",
    "finished_at",
    "worker",
    "cpu_us",
    "error",
    "error_code",
    "error_type",
    "traceback",
    "node",
    "copied",
]
ATTEMPT_COLUMNS: Final = [
    "id",
    "epoch",
    "attempt",
    "seq",
    "name",
    "node",
    "outcome",
    "started_at",
    "finished_at",
    "worker",
    "cpu_us",
    "error",
    "error_code",
    "error_type",
    "traceback",
]
LOG_COLUMNS: Final = ["seq", "attempt", "n", "at", "lines", "body"]
_IDS: Final = frozenset({"run_id", "parent_id", "successor", "id"})
_HEX: Final = frozenset({"head", "input_hash"})
_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(dict[str, Any])


def record_of(rows: RunRows) -> Plain:
    """The record, as JSON types."""
    run = _shown(rows.run)
    if isinstance(run["attributes"], str):
        run["attributes"] = msgspec.Raw(run["attributes"].encode())
    run["history"] = [_line(line) for line in rows.history]
    run["tasks"] = [_shown(task) for task in rows.tasks]
    run["attempts"] = [_shown(attempt) for attempt in rows.attempts]
    run["state"] = {name: None if value is None else _text(value) for name, value in rows.states}
    run["node_counts"] = rows.node_counts
    run["logs"] = [_shown(log) for log in rows.logs]
    run["payloads"] = [
        {"store": store or "database", "sha256": sha256.hex(), "size": size} for store, sha256, size in rows.payloads
    ]
    return run


def encode(record: Plain) -> bytes:
    return _encoder.encode(record)


def decode(line: bytes) -> Plain:
    try:
        return _decoder.decode(line)
    except msgspec.MsgspecError as e:
        raise InvalidInput(f"a record of the export is no JSON object: {e}") from None


@cache
def _plan(columns: tuple[str, ...]) -> tuple[tuple[str, str, Callable[[Any], Any] | None], ...]:
    """Column, its name in a record, and what makes JSON of it."""
    out: list[tuple[str, str, Callable[[Any], Any] | None]] = []
    for name in columns:
        if name in _IDS:
            out.append((name, name, ids.text))
        elif name == "at" or name.endswith("_at"):
            out.append((name, f"{name.removesuffix('_at')}_us", None))
        elif name in _HEX:
            out.append((name, name, bytes.hex))
        else:
            out.append((name, name, _text if name == "body" else None))
    return tuple(out)


def _shown(row: Plain) -> Plain:
    """Moments get the suffix `_us`, ids and hashes become text."""
    out: Plain = {}
    for name, shown, convert in _plan(tuple(row)):
        value = row[name]
        out[shown] = value if convert is None or value is None else convert(value)
    return out


def _read(record: Plain, columns: list[str]) -> Plain:
    """The columns of a row, from what `_shown` made of them."""
    out: Plain = {}
    for name in columns:
        if name in _IDS:
            out[name] = None if record[name] is None else ids.parse(record[name])
        elif name == "at" or name.endswith("_at"):
            out[name] = record[f"{name.removesuffix('_at')}_us"]
        elif name in _HEX:
            out[name] = None if record[name] is None else bytes.fromhex(record[name])
        else:
            value = record[name]
            out[name] = _bytes(value) if isinstance(value, dict) and name == "body" else value
    return out


def _text(value: bytes) -> Plain:
    try:
        return {"text": value.decode()}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}


def _bytes(value: Plain) -> bytes:
    text = value.get("text")
    return text.encode() if text is not None else base64.b64decode(value["base64"])


def _line(line: HistoryLine) -> Plain:
    events = decode_events(line.body)
    out: Plain = {
        "seq": line.seq,
        "last": line.last,
        "epoch": line.epoch,
        "at_us": line.at_us,
        "hash": line.hash.hex(),
        "events": [{"type": type(e).__name__, "data": told_fields(e)} for e in events],
    }
    if encode_events(events) != line.body:
        out["body"] = base64.b64encode(line.body).decode()
    if line.sealed is not None:
        out["sealed"] = base64.b64encode(line.sealed).decode()
    return out


def rows_of(record: Plain) -> RunRows:
    """The rows of a run from its record. InvalidInput for a record that is damaged: its hashes must be those of its events."""
    try:
        run = _read(record, RUN_COLUMNS)
        run["namespace"] = record["namespace"]
        run["input_hash"] = None if record["input_hash"] is None else bytes.fromhex(record["input_hash"])
        if run["attributes"] is not None:
            run["attributes"] = _encoder.encode(run["attributes"]).decode()
        rows = RunRows(
            run=run,
            history=[_history_line(line) for line in record["history"]],
            tasks=[_read(task, TASK_COLUMNS) for task in record["tasks"]],
            attempts=[_read(attempt, ATTEMPT_COLUMNS) for attempt in record["attempts"]],
            states=[(name, None if value is None else _bytes(value)) for name, value in record["state"].items()],
            node_counts=[(node, what, n_bin, n) for node, what, n_bin, n in record["node_counts"]],
            logs=[_read(log, LOG_COLUMNS) for log in record["logs"]],
            payloads=[
                ("" if p["store"] == "database" else p["store"], bytes.fromhex(p["sha256"]), p["size"])
                for p in record["payloads"]
            ],
        )
    except (KeyError, TypeError, ValueError, AttributeError, AssertionError) as e:
        name = record.get("run_id", "a run")
        raise InvalidInput(f"the record of {name} is not one of an export: {type(e).__name__}: {e}") from None
    check_chain(rows)
    return rows


def _history_line(line: Plain) -> HistoryLine:
    body, sealed = line.get("body"), line.get("sealed")
    if body is not None:
        data = base64.b64decode(body)
    else:
        data = encode_events([event_from_fields(e["type"], e["data"]) for e in line["events"]])
    return HistoryLine(
        line["seq"],
        line["last"],
        line["epoch"],
        line["at_us"],
        data,
        bytes.fromhex(line["hash"]),
        None if sealed is None else base64.b64decode(sealed),
    )


def check_chain(rows: RunRows) -> None:
    """Each row of the history has its hash, and the run that of the last row."""
    before, before_us, seq = BEGINNING, 0, 1
    for line in rows.history:
        made = link(before, before_us, rows.run_id, rows.run["ns"], line.seq, line.last, line.epoch, line.stored)
        if made != line.hash or line.seq != seq:
            raise _changed(rows, f"event {line.seq} of its history does not have the hash that was recorded")
        before, before_us, seq = line.hash, line.at_us, line.last + 1
    if rows.run["head"] not in (None, before) or rows.run["events"] != seq - 1:
        raise _changed(rows, f"its history ends with event {seq - 1}, and the run had {rows.run['events']}")


def _changed(rows: RunRows, what: str) -> InvalidInput:
    return InvalidInput(
        f"the record of {ids.text(rows.run_id)} was changed after its export: {what}. Nothing of it was imported"
    )

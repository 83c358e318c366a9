"""Blobs: what they are made of, how they travel in values, and where they may be read."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import msgspec
import pydantic
import pytest

from perdure import Blob, blobs
from perdure.core.payloads import MARK, opened
from perdure.errors import InvalidInput, PayloadCorrupt, PayloadMismatch, PerdureError, WorkflowRuleBroken
from perdure.payloads.content import UnsentPayload
from perdure.sdk.payloads import Converter, Signature
from perdure.sdk.payloads.access import NO_ACCESS, blob_access


@dataclasses.dataclass
class Data:
    blob: Blob
    more: Any = None


class Struct(msgspec.Struct):
    blobs: list[Blob]


class Model(pydantic.BaseModel):
    blob: Blob
    by_name: dict[str, Blob] = {}


def made(text: str = "hello", **about: str) -> Blob:
    return Blob.from_bytes(text.encode(), **about)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (Blob, made()),
        (Any, made()),
        (Any, {"a": [made(), {"$payload": 0}, {"$payload$": 1}], "b": "$payload"}),
        (Data, Data(made(), {"x": made("other")})),
        (Struct, Struct([made(), made("b"), made()])),
        (Model, Model(blob=made(), by_name={"x": made("x", name="x.csv")})),
        (Blob | None, made()),
        (Blob | int, made()),
        (dict[str, Blob], {"x": made()}),
    ],
)
def test_a_value_with_blobs_comes_back_as_it_was(kind: Any, value: Any) -> None:
    payload = Converter.of(kind).encode(value)
    assert payload.startswith(MARK) and isinstance(payload, UnsentPayload)
    assert Converter.of(kind).decode(bytes(payload)) == value


def test_the_same_blob_twice_is_one_reference_and_the_same_value_the_same_bytes() -> None:
    payload = Converter.of(Struct).encode(Struct([made(), made("b"), made()]))
    assert len(opened(payload).references) == 2
    assert payload == Converter.of(Struct).encode(Struct([made(), made("b"), made()]))


def test_arguments_may_be_blobs_with_and_without_annotations() -> None:
    def fn(a, b: Blob, *rest: Blob, c: Blob | str = "", **more: Any) -> None: ...  # type: ignore[no-untyped-def]

    signature = Signature(fn)
    call = signature.encode_call((made("a"), made("b"), made("r")), {"c": made("c"), "d": {"e": made("e")}})
    args, kwargs = signature.decode_call(bytes(call))
    assert args == (made("a"), made("b"), made("r")) and kwargs == {"c": made("c"), "d": {"e": made("e")}}
    calls = Signature(lambda x: None).encode_calls([made("1"), made("2")])
    assert len(calls) == 2 and all(c.startswith(MARK) for c in calls)


def test_a_blob_where_none_is_expected_is_refused() -> None:
    with pytest.raises(PayloadMismatch):
        Converter.of(dict[str, str]).encode({"x": made()})  # type: ignore[dict-item]
    with pytest.raises(PayloadMismatch):
        Converter.of(Blob).decode(b'{"$payload":0}')


def test_content_is_read_whole_in_parts_and_saved(tmp_path: Path) -> None:
    with Blob.writer("a.txt") as out:
        out.write(b"one ")
        out.write(b"two three")
    blob = out.blob
    assert (blob.size, blob.name, blob.media_type) == (13, "a.txt", "text/plain")
    assert blob.read_text() == "one two three" and blob == made("one two three", name="a.txt")
    with blob.open() as file:
        file.seek(4)
        assert file.read(3) == b"two" and file.tell() == 7
    assert blob.save_to(tmp_path / "copy").read_bytes() == b"one two three"
    assert Blob.from_path(tmp_path / "copy", name="a.txt") == blob
    assert list(tmp_path.iterdir()) == [tmp_path / "copy"]


async def test_the_asynchronous_forms_read_the_same(tmp_path: Path) -> None:
    async with Blob.writer() as out:
        out.write(b"x" * 3_000_000)
    assert await out.blob.aread_bytes() == b"x" * 3_000_000
    assert sum([len(p) async for p in out.blob.astream(1_500_000, 10)]) == 10
    assert (await out.blob.asave_to(tmp_path / "x")).stat().st_size == 3_000_000


def test_a_file_that_changes_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"before")
    blob = Blob.from_path(path)
    path.unlink()
    with pytest.raises(PayloadCorrupt, match="changed"):
        blob.read_bytes()


def test_a_writer_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(ValueError), Blob.writer() as out:
        out.write(b"x")
        raise ValueError
    with pytest.raises(PerdureError, match="not complete"):
        _ = out.blob
    assert not list(tmp_path.iterdir())


def test_the_file_of_a_blob_goes_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with Blob.writer() as out:
        out.write(b"x")
    assert list(tmp_path.iterdir())
    del out
    assert not list(tmp_path.iterdir())


def test_workflow_code_neither_reads_nor_makes_blobs() -> None:
    payload = bytes(Converter.of(Blob).encode(made()))
    token = blob_access.set(NO_ACCESS)
    try:
        blob = Converter.of(Blob).decode(payload)
        assert blob.size == 5
        for act in (blob.read_bytes, lambda: blob.open().read(), lambda: made(), Blob.writer):
            with pytest.raises(WorkflowRuleBroken, match="task"):
                act()
    finally:
        blob_access.reset(token)


def test_a_blob_without_a_client_says_what_to_do() -> None:
    with pytest.raises(PerdureError, match="async with"):
        Converter.of(Blob).decode(bytes(Converter.of(Blob).encode(made()))).read_bytes()


@pytest.mark.parametrize("format", ["arrow", "parquet"])
def test_tables_survive(format: Any) -> None:
    import pandas
    import polars
    import pyarrow

    table = pyarrow.table({"n": [1, 2, 3], "text": ["a", "b", None]})
    blob = blobs.from_table(table, format=format)
    assert blobs.to_arrow(blob) == table
    assert blobs.to_arrow(blob, columns=["n"]).column_names == ["n"]
    frame = polars.from_arrow(table)
    assert blobs.to_polars(blobs.from_table(frame, format=format)).equals(frame)
    assert blobs.to_pandas(blobs.from_table(pandas.DataFrame({"n": [1, 2]}), format=format))["n"].tolist() == [1, 2]


def test_what_is_no_table_is_refused() -> None:
    with pytest.raises(InvalidInput, match="not a table"):
        blobs.from_table([1, 2])
    with pytest.raises(InvalidInput, match="not a table"):
        blobs.to_arrow(made())

"""The form of payloads that refer to stored content."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core import payload_fields
from perdure.core import payloads as p
from perdure.core.commands import COMMAND_TYPES
from perdure.core.deferred_starts import BatchSpec
from perdure.core.errors import InvalidInput, PayloadTooLarge
from perdure.core.events import EVENT_TYPES, TasksSucceeded
from perdure.core.payloads import NeedPayload, Placed, Reference
from perdure.core.work import StartRequest


def reference(content: bytes, **about: Any) -> Reference:
    return Reference(p.digest_of(content), len(content), **about)


CONTENT = b'{"deep":[1,2,3]}'
VALUE, BLOB = reference(CONTENT), reference(b"blob", is_blob=True, name="b.bin")
leaves = (
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.text()
    | st.sampled_from([Placed(VALUE), Placed(BLOB)])
)
keys = st.text() | st.sampled_from(["$payload", "$payload$", "$payload$$"])
trees = st.recursive(leaves, lambda inner: st.lists(inner) | st.dictionaries(keys, inner), max_leaves=20)


@given(trees)
def test_a_tree_comes_back_as_it_was(tree: Any) -> None:
    payload = p.encode_tree(tree)
    assert p.decode_tree(payload) == tree
    assert payload == p.encode_tree(p.decode_tree(payload)), "the same value gives the same bytes"


@given(trees)
def test_a_spliced_payload_has_the_content_in_its_place(tree: Any) -> None:
    payload = p.encode_tree(tree)
    if not p.values_of(payload):
        return

    def filled(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: filled(v) for k, v in value.items()}
        if isinstance(value, list):
            return [filled(v) for v in value]
        return msgspec.json.decode(CONTENT) if value == Placed(VALUE) else value

    spliced = p.spliced(payload, {VALUE.sha256: CONTENT})
    assert p.decode_tree(spliced) == filled(tree) and not p.values_of(spliced)


@given(st.text() | st.integers() | st.lists(st.text()))
def test_no_json_text_is_taken_for_an_envelope(value: Any) -> None:
    text = msgspec.json.encode(value)
    assert not p.is_by_reference(text) and not p.any_by_reference([text]) and p.MARK not in text


def test_bytes_that_are_no_envelope_are_refused() -> None:
    for damaged in (p.MARK, p.MARK + b"\x00", p.MARK + b"\x93"):
        with pytest.raises(InvalidInput):
            p.opened(damaged)


def test_a_replay_agrees_with_what_was_stored_since() -> None:
    large, small = msgspec.json.encode("x" * 1000), b"1"
    asked = b'{"a":' + large + b',"b":' + small + b"}"
    stored = p.encode_tree({"a": Placed(reference(large)), "b": 1})
    assert p.agree([p.whole(reference(asked)), stored, asked], [asked] * 3)
    assert not p.agree([stored], [asked.replace(b"1}", b"2}")])
    assert not p.agree([stored], [asked.replace(b'"x', b'"y', 1)])
    assert not p.agree([stored], [b"[1]"]) and not p.agree([p.whole(VALUE)], [b"{}"]) and not p.agree([], [b"1"])


def test_large_members_are_taken_out_and_small_ones_stay() -> None:
    big = msgspec.json.encode({"data": "x" * 5000, "customer": "ada"})
    large = p.large_members(big, 1000)
    assert large is not None and list(large) == ["data"]
    stored = p.with_stored(big, {"data": reference(bytes(large["data"]))})
    assert p.decode_tree(stored) == {"data": Placed(reference(bytes(large["data"]))), "customer": "ada"}
    with_blob = p.encode_tree({"data": "x" * 5000, "file": Placed(BLOB), "list": [Placed(BLOB), "y" * 300]})
    large = p.large_members(with_blob, 1000)
    assert large is not None and list(large) == ["data"]
    stored = p.with_stored(with_blob, {"data": reference(bytes(large["data"]))})
    assert p.agree([stored], [with_blob]) and p.decode_tree(stored)["file"] == Placed(BLOB)
    assert not p.agree(
        [stored], [p.encode_tree({"data": "z" * 5000, "file": Placed(BLOB), "list": [Placed(BLOB), "y" * 300]})]
    )
    many = msgspec.json.encode({str(n): "x" * 100 for n in range(100)})
    assert p.large_members(many, 1000) is None and p.large_members(b"[1]", 1000) is None


def test_what_was_loaded_is_read_and_passed_on_as_a_reference() -> None:
    payload = p.encode_tree({"rows": Placed(VALUE)})
    with pytest.raises(NeedPayload) as needed:
        p.inside(p.decode_tree(payload)["rows"])
    assert needed.value.references == [VALUE]
    loaded = p.with_contents(payload, {VALUE.sha256: CONTENT})
    rows = p.decode_tree(loaded)["rows"]
    assert p.inside(rows) == {"deep": [1, 2, 3]} and p.encode_tree({"rows": rows}) == payload
    assert p.without_contents(loaded) == payload
    assert p.inside(Placed(BLOB)) == {"name": "b.bin", "size": 4, "sha256": BLOB.hex, "media_type": "application/json"}


def test_values_that_no_run_holds_cannot_refer_to_content() -> None:
    p.refuse_reference(b"1", "it")
    with pytest.raises(PayloadTooLarge, match="no run keeps"):
        p.refuse_reference(p.whole(VALUE), "it")


def test_every_field_of_bytes_that_users_fill_is_in_the_table() -> None:
    """Ids, specs and attributes are bytes too; anything else must be in the table, or its content is lost with retention."""
    other = {"run_id", "parent_id", "continued_from", "known_as", "attributes", "change", "spec", "rerun_of", "lineage"}
    other |= {"first", "question", "unread"}  # values of recorded signals, stored apart when they were sent
    for kind in (*EVENT_TYPES, *COMMAND_TYPES):
        fields = {f.name for f in msgspec.structs.fields(kind) if "bytes" in str(f.type)}
        assert fields - other == set(payload_fields.FIELDS.get(kind, ())), kind


def test_payloads_of_a_record_are_found_and_replaced() -> None:
    event = TasksSucceeded([1, 2], [b"1", p.whole(VALUE)])
    assert list(payload_fields.payloads_of(event)) == event.results
    assert payload_fields.replaced(event, lambda x: b"0").results == [b"0", b"0"]
    assert payload_fields.may_be_heavy([event], 1000) and not payload_fields.may_be_heavy(
        [TasksSucceeded([1], [b"1"])], 1000
    )


def test_the_input_of_a_deferred_start_is_not_stored() -> None:
    start = StartRequest(workflow="w", version="v", input=b"1" * 100)
    assert list(payload_fields.payloads_of(start)) == [start.input]
    assert list(payload_fields.payloads_of(msgspec.structs.replace(start, later=BatchSpec("k", 2, 1)))) == []

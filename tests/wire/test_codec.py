"""Every event type survives the database and the JSON export; a newer record is refused, an older one decodes."""

from __future__ import annotations

import types
from enum import IntEnum
from typing import Any, get_args, get_origin

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core import events as ev
from perdure.core import messages
from perdure.core.errors import Failure, InvalidInput
from perdure.core.retry import TaskOptions
from perdure.wire import codec

TEXT = st.text(alphabet=st.characters(codec="utf-8"), max_size=20)
PAYLOAD = st.binary(max_size=40) | st.text(alphabet=st.characters(codec="utf-8"), max_size=20).map(str.encode)
NUMBER = st.integers(-(1 << 63), (1 << 63) - 1)


def values_of(hint: Any) -> st.SearchStrategy[Any]:
    """Any value of a field's declared type."""
    if isinstance(hint, types.UnionType):
        return st.one_of(*(values_of(part) for part in get_args(hint)))
    if get_origin(hint) is list:
        return st.lists(values_of(get_args(hint)[0]), max_size=4)
    if get_origin(hint) is tuple:
        return st.lists(values_of(get_args(hint)[0]), max_size=4).map(tuple)
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return structs_of(hint)
    simple: dict[Any, st.SearchStrategy[Any]] = {
        str: TEXT,
        bytes: PAYLOAD,
        int: NUMBER,
        bool: st.booleans(),
        float: st.floats(allow_nan=False, allow_infinity=False),
        type(None): st.none(),
    }
    if isinstance(hint, type) and issubclass(hint, IntEnum):
        return st.sampled_from(hint)
    return simple[hint]


def structs_of(kind: type[Any]) -> st.SearchStrategy[Any]:
    return st.builds(kind, **{f.name: values_of(f.type) for f in msgspec.structs.fields(kind)})


EVENTS = st.one_of(*(structs_of(kind) for kind in ev.EVENT_TYPES))


def test_the_union_and_the_tuple_list_the_same_types_under_different_tags() -> None:
    assert set(get_args(ev.Event)) == set(ev.EVENT_TYPES)
    tags = [kind.__struct_config__.tag for kind in ev.EVENT_TYPES]
    assert len(set(tags)) == len(tags)


def test_tags_never_change() -> None:
    """What is in somebody's database is read by its tag. Add lines, never edit them."""
    assert {kind.__name__: kind.__struct_config__.tag for kind in ev.EVENT_TYPES} == {
        "RunStarted": 1,
        "CancelRequested": 2,
        "RunSucceeded": 3,
        "RunFailed": 4,
        "RunCancelled": 5,
        "RunContinued": 6,
        "RunRetried": 7,
        "RunBegan": 8,
        "RunTerminated": 9,
        "RunForked": 15,
        "EndWithdrawn": 18,
        "NodeOverridden": 16,
        "TasksScheduled": 10,
        "TasksSucceeded": 11,
        "TaskFailed": 12,
        "TasksCancelled": 13,
        "TasksSkipped": 14,
        "VersionChanged": 17,
        "TimerStarted": 20,
        "TimerFired": 21,
        "TimerCancelled": 22,
        "ChildStarted": 30,
        "ChildSucceeded": 31,
        "ChildFailed": 32,
        "ChildCancelled": 33,
        "ChildCancelRequested": 34,
        "SignalReceived": 40,
        "PromiseCreated": 41,
        "PromiseResolved": 42,
        "UpdateReceived": 43,
        "UpdateAnswered": 44,
        "OperationRecorded": 50,
        "StateSet": 51,
        "StateCleared": 52,
        "PatchRecorded": 53,
        "AttributesSet": 54,
    }


@pytest.mark.parametrize("kind", ev.EVENT_TYPES, ids=lambda k: k.__name__)
def test_every_event_type_survives_the_database(kind: type[Any]) -> None:
    @given(structs_of(kind))
    def check(event: Any) -> None:
        assert codec.decode_events(codec.encode_events([event])) == [event]

    check()


@pytest.mark.parametrize("kind", ev.EVENT_TYPES, ids=lambda k: k.__name__)
def test_every_event_type_survives_the_json_export(kind: type[Any]) -> None:
    @given(structs_of(kind))
    def check(event: Any) -> None:
        history = [ev.Recorded(1, 5, event)]
        run_id, back = codec.history_from_json(codec.history_to_json("run", history))
        assert run_id == "run"
        assert back == history
        assert codec.encode_events([back[0].event]) == codec.encode_events([event]), "and is written alike again"

    check()


@given(st.lists(EVENTS, max_size=8), st.integers(1, 1 << 30), st.integers(0, 1 << 60))
def test_the_events_of_one_row_are_numbered_from_its_first(events: list[Any], seq: int, at_us: int) -> None:
    rows = codec.decode_row(seq, at_us, codec.encode_events(events))
    assert [r.event for r in rows] == events
    assert [r.seq for r in rows] == list(range(seq, seq + len(events)))
    assert {r.at_us for r in rows} <= {at_us}


@given(structs_of(TaskOptions))
def test_options_survive(options: TaskOptions) -> None:
    assert codec.decode_options(codec.encode_options(options)) == options


@pytest.mark.parametrize("kind", get_args(messages.Message), ids=lambda k: k.__name__)
def test_every_mail_survives(kind: type[Any]) -> None:
    @given(structs_of(kind))
    def check(letter: Any) -> None:
        assert codec.decode_message(codec.encode_message(letter)) == letter

    check()


@pytest.mark.parametrize("version", [b"\x00", b"\x02", b"\xff", b""])
@pytest.mark.parametrize("decode", [codec.decode_events, codec.decode_message, codec.decode_options])
def test_a_record_of_an_unknown_version_is_refused(version: bytes, decode: Any) -> None:
    body = codec.encode_events([ev.TimerFired(1)])[1:]
    with pytest.raises(InvalidInput, match="newer than this Perdure understands"):
        decode(version + body if version else b"")


def test_an_old_record_without_the_newer_fields_decodes_with_their_defaults() -> None:
    old = codec.VERSION + msgspec.msgpack.encode([[1, "crawl", "v1", b"{}"], [50, 3, "roll", b"4"]])
    assert codec.decode_events(old) == [ev.RunStarted("crawl", "v1", b"{}"), ev.OperationRecorded(3, "roll", b"4")]


def test_a_record_with_fields_of_the_future_is_read_without_them() -> None:
    newer = codec.VERSION + msgspec.msgpack.encode([[21, 7, "a field of some later release"]])
    assert codec.decode_events(newer) == [ev.TimerFired(7)]


def test_the_export_shows_payloads_as_text_and_other_bytes_as_base64() -> None:
    history = [
        ev.Recorded(1, 10, ev.RunStarted("crawl", "v1", b'{"url":"a"}')),
        ev.Recorded(2, 11, ev.SignalReceived("raw", b"\xff\xfe")),
        ev.Recorded(3, 12, ev.RunFailed(Failure("run_failed", "boom", "ValueError"))),
    ]
    document = msgspec.json.decode(codec.history_to_json("r", history))
    assert document["events"][0]["data"]["input"] == {"text": '{"url":"a"}'}
    assert document["events"][1]["data"]["value"] == {"base64": "//4="}
    assert document["events"][2]["data"]["failure"]["message"] == "boom"


@pytest.mark.parametrize("data", [b"{}", b"[]", b'{"perdure_history": 2, "events": []}', b"7"])
def test_a_document_that_is_no_history_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidInput, match="not a Perdure history"):
        codec.history_from_json(data)

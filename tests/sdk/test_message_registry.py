"""What a worker publishes of the messages that its code reads."""

from __future__ import annotations

import datetime as dt
import decimal
import uuid
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal, NamedTuple, TypedDict

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

import perdure
from perdure import Approval, NamedEvent, Promise, Signal, Update, workflow
from perdure.core.limits import MESSAGE_NAMES_MAX
from perdure.core.published_messages import MessageChecks, PublishedMessages, decode
from perdure.sdk.message_registry import TYPES_PER_NAME_MAX, messages
from perdure.sdk.payloads import Converter
from perdure.sdk.worker.definitions import WorkerDefinitions
from perdure.sdk.worker.dynamic_messages import makes_messages


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests of this process define messages too."""
    for name in ("_names", "_encoded"):
        monkeypatch.setattr(messages, name, {})
    monkeypatch.setattr(messages, "_makers", set())
    monkeypatch.setattr(messages, "_is_full", False)


def published(*, is_open: bool = False) -> PublishedMessages:
    found = decode(messages.encoded("any", is_open=is_open))
    assert found is not None
    return found


def fits(kind: Any, value: bytes) -> bool:
    Signal("fits", kind)
    return MessageChecks(published()).misfit("signal", "fits", value) == ""


# -- names -------------------------------------------------------------------------------------------------------------


def test_what_a_program_defines_is_published_by_kind() -> None:
    Signal("shipped", dict)
    Promise("answer", int)
    Update("rename", str, int)
    Approval("release")
    NamedEvent("paid", float)
    assert published() == PublishedMessages(
        signals={"shipped": ({"type": "object"},)},
        promises={"answer": ({"type": "integer"},)},
        updates={"rename": ({"type": "string"},)},
        approvals=("release",),
        events=("paid",),
    )


def test_the_second_question_of_an_approval_and_waits_for_events_have_names_of_their_own() -> None:
    Approval("release")
    checks = MessageChecks(published())
    for name in ("release", "release#2", "release[3]", "release[3]#2", "event:paid#1@00000000"):
        assert checks.knows("promise", name)
    assert not checks.knows("promise", "relase") and not checks.knows("signal", "release")
    assert checks.unknown("promise", "relase") == "Did you mean 'release'? It reads release."
    assert checks.unknown("signal", "x") == "It reads no signals."


def test_a_refusal_lists_ten_names() -> None:
    for n in range(12):
        Signal(f"n{n:02}", int)
    assert MessageChecks(published()).unknown("signal", "zzz").endswith("n08, n09 and 2 more.")


def test_a_name_with_two_types_takes_values_of_both_and_one_with_many_any() -> None:
    Signal("go", int)
    Signal("go", str)
    checks = MessageChecks(published())
    assert not checks.misfit("signal", "go", b"1") and not checks.misfit("signal", "go", b'"x"')
    assert checks.misfit("signal", "go", b"[]") == "the value must be integer, not array"
    for kind in (bool, float, list, dict)[:TYPES_PER_NAME_MAX]:
        Signal("go", kind)
    assert published().signals == {"go": ()}


def test_what_a_program_keeps_is_bounded() -> None:
    for n in range(MESSAGE_NAMES_MAX):
        Signal(f"n{n}", int)
    assert not published().open
    Signal("one more", int)
    assert published().open and len(messages._names) == MESSAGE_NAMES_MAX


def test_a_class_that_is_defined_anew_replaces_the_former() -> None:
    def define(kind: Any) -> None:
        Signal("go", msgspec.defstruct("Cell", [("x", kind)], module="notebook"))

    define(int)
    define(str)
    assert [s["$defs"]["Cell"]["properties"]["x"] for s in published().signals["go"]] == [{"type": "string"}]


def test_schemas_beyond_the_limit_are_left_out_and_names_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.sdk.message_registry.MESSAGE_SCHEMAS_BYTES_MAX", 30)
    Signal("a", int)
    Signal("b", dict[str, list[int]])
    assert published().signals == {"a": ({"type": "integer"},), "b": ()}


# -- code that makes names ---------------------------------------------------------------------------------------------

static = Signal("static", int)


def helper(n: int) -> Any:
    return Promise(f"p{n}", int).wait()


class Asker:
    def ask(self, n: int) -> Any:
        return helper(n)


asker = Asker()


@workflow(name="mr_static")
async def reads() -> int:
    return await static.next()


@workflow(name="mr_direct")
async def direct(n: int) -> int:
    return await Signal(f"s{n}", int).next()


@workflow(name="mr_module")
async def by_module(n: int) -> int:
    return await perdure.Signal(f"s{n}", int).next()


@workflow(name="mr_nested")
async def nested(n: int) -> int:
    async def inner() -> int:
        return sum([await helper(i) for i in range(n)])

    return await inner()


@workflow(name="mr_object")
async def by_object(n: int) -> int:
    result: int = await asker.ask(n)
    return result


@workflow(name="mr_import")
async def by_import() -> None:
    from tests.sdk import not_loaded_yet  # type: ignore[attr-defined]  # noqa: F401


@pytest.mark.parametrize(
    ("one", "makes"),
    [(reads, False), (direct, True), (by_module, True), (nested, True), (by_object, True), (by_import, True)],
    ids=lambda v: getattr(v, "name", str(v)),
)
def test_code_that_makes_messages_while_it_runs_is_found(one: Any, makes: bool) -> None:
    assert makes_messages(one.fn) is makes
    served = WorkerDefinitions(None, None)
    served.adopt(one)
    found = decode(served.code[one.name].messages)
    assert found is not None and found.open is makes


# -- schemas refuse nothing that types read ----------------------------------------------------------------------------


class Color(Enum):
    RED = "red"


class Point(NamedTuple):
    x: int
    y: float = 0.0


class Movie(TypedDict, total=False):
    name: str


@dataclass
class Parcel:
    id: int
    weight: decimal.Decimal
    at: dt.datetime
    tags: set[str]
    point: Point | None = None


class Card(msgspec.Struct, tag=True, rename="camel", forbid_unknown_fields=True):
    card_number: str
    valid_until: dt.date


class Cash(msgspec.Struct, tag=True):
    paid: decimal.Decimal


class Model(pydantic.BaseModel):
    price: decimal.Decimal = pydantic.Field(alias="thePrice", gt=0)
    at: dt.datetime
    color: Color = Color.RED


moments = st.datetimes(timezones=st.sampled_from([dt.UTC, None]))
decimals = st.decimals(allow_nan=False, allow_infinity=False, places=2)
texts = st.text(st.characters(codec="utf-8"))
VALUES: list[tuple[Any, Any]] = [
    (int, st.integers(-(2**63), 2**64 - 1)),
    (float, st.floats(allow_nan=False, allow_infinity=False)),
    (str | None, st.none() | texts),
    (bytes, st.binary()),
    (dt.datetime, moments),
    (dt.timedelta, st.timedeltas(max_value=dt.timedelta(days=10**5), min_value=dt.timedelta(days=-(10**5)))),
    (dt.time, st.times()),
    (uuid.UUID, st.uuids()),
    (Literal["a", 1], st.sampled_from(["a", 1])),
    (dict[int, list[Color]], st.dictionaries(st.integers(-(2**53), 2**53), st.lists(st.just(Color.RED)))),
    (Movie, st.fixed_dictionaries({}, optional={"name": texts})),
    (Parcel, st.builds(Parcel, st.integers(0, 9), decimals, moments, st.sets(texts), st.none() | st.just(Point(1, 2)))),
    (Card | Cash, st.builds(Card, texts, st.dates()) | st.builds(Cash, decimals)),
    (Model, st.builds(lambda p, a: Model(thePrice=p, at=a), decimals.filter(lambda d: d > 0), moments)),
    (list[Model], st.just([])),
]


@given(st.data())
def test_what_a_typed_sender_writes_fits(data: st.DataObject) -> None:
    kind, values = data.draw(st.sampled_from(VALUES))
    messages._names.clear()
    messages._encoded.clear()
    assert fits(kind, Converter.of(kind).encode(data.draw(values)))


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (decimal.Decimal, b"5"),
        (set[int], b"[1,1]"),
        (uuid.UUID, b'"00000000000000000000000000000001"'),
        (dt.datetime, b'"2026-01-01T00:00:00"'),
    ],
)
def test_what_a_type_reads_more_liberally_than_a_schema_fits(kind: Any, value: bytes) -> None:
    Converter.of(kind).decode(value)
    assert fits(kind, value)


@pytest.mark.parametrize(
    ("kind", "value"),
    [(dict, b'"oops"'), (Parcel, b'{"id":1}'), (Card | Cash, b'{"type":"Coin"}'), (Model, b'{"at":1}'), (int, b"nope")],
)
def test_what_a_type_does_not_read_does_not_fit(kind: Any, value: bytes) -> None:
    with pytest.raises(perdure.errors.PayloadMismatch):
        Converter.of(kind).decode(value)
    assert not fits(kind, value)


class Lenient(pydantic.BaseModel):
    words: list[str]

    @pydantic.field_validator("words", mode="before")
    @classmethod
    def split(cls, value: Any) -> Any:
        return value.split() if isinstance(value, str) else value


class ByName(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(populate_by_name=True)
    price: int = pydantic.Field(alias="thePrice")


@pytest.mark.parametrize("kind", [Lenient, list[Lenient], ByName])
def test_a_type_that_reads_by_code_of_the_user_has_no_schema(kind: Any) -> None:
    Signal("go", kind)
    assert published().signals == {"go": ()}


class Tree(msgspec.Struct):
    children: list[Tree] = []


def test_a_schema_that_cannot_be_checked_judges_nothing() -> None:
    assert fits(Tree, b'{"children":[]}') and fits(Tree, b"1")

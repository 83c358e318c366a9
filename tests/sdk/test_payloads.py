from __future__ import annotations

import dataclasses
import enum
import functools
import math
import os
import subprocess
import sys
import uuid
from collections import OrderedDict
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Annotated, Any, Generic, Literal, NamedTuple, Optional, TypedDict, TypeVar
from zoneinfo import ZoneInfo

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.errors import InvalidInput, PayloadMismatch, PayloadTooLarge
from perdure.core.limits import PAYLOAD_BYTES_MAX
from perdure.sdk.payloads import Converter, Signature, converters

T = TypeVar("T")


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1


@dataclasses.dataclass
class Page:
    url: str
    size: int = 0
    tags: list[str] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class SpecialPage(Page):
    secret: str = ""


@dataclasses.dataclass(frozen=True)
class Site:
    home: Page
    score: float | None = None


@dataclasses.dataclass(eq=False)
class NoEquality:
    x: float


@dataclasses.dataclass
class Box(Generic[T]):
    content: T


@dataclasses.dataclass
class Cat:
    lives: int


@dataclasses.dataclass
class Dog:
    name: str
    chip: bytes = b""


@dataclasses.dataclass
class OtherCat:
    lives: int


@dataclasses.dataclass
class Node:
    value: int
    children: list[Node] = dataclasses.field(default_factory=list)


class Point(msgspec.Struct):
    x: int
    y: int


class Address(TypedDict):
    street: str


class Pair(NamedTuple):
    left: int
    right: str


class User(pydantic.BaseModel):
    name: str
    born: date | None = None


class Renamed(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    full_name: str = pydantic.Field(alias="fullName")

    @pydantic.computed_field  # type: ignore[prop-decorator]
    @property
    def shout(self) -> str:
        return self.full_name.upper()


@dataclasses.dataclass
class Team:
    lead: User
    others: list[User]


def round_trip(annotation: Any, value: Any) -> Any:
    converter = Converter.of(annotation)
    return converter.decode(converter.encode(value))


EXAMPLES = [
    (int, 3),
    (int, 2**64),
    (int, -(2**200)),
    (str, "a\x00b é 🎉"),
    (float, 1.5),
    (float, 2),
    (bool, True),
    (None, None),
    (bytes, b"\x00\xff"),
    (Optional[int], None),  # noqa: UP045
    (int | str | None, "x"),
    (Literal["a", "b"], "a"),
    (list[int], [1, 2]),
    (dict[str, list[int]], {"a": [1]}),
    (dict[int, str], {1: "a"}),
    (tuple[int, str], (1, "a")),
    (set[str], {"a", "b"}),
    (frozenset[int], frozenset({1, 2})),
    (datetime, datetime(2024, 2, 29, 1, 2, 3, 456, tzinfo=UTC)),
    (datetime, datetime(2024, 2, 29, 1, 2, 3)),
    (datetime, datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Paris"))),
    (date, date(2024, 2, 29)),
    (time, time(1, 2, 3)),
    (timedelta, timedelta(days=-3, microseconds=1)),
    (timedelta, timedelta.max),
    (uuid.UUID, uuid.UUID(int=7)),
    (Decimal, Decimal("1.10")),
    (Colour, Colour.BLUE),
    (Level, Level.LOW),
    (Page, Page("u", 1, ["t"])),
    (Site, Site(Page("u"), 0.5)),
    (Box[int], Box(1)),
    (Box[Page], Box(Page("u"))),
    (Node, Node(1, [Node(2)])),
    (Point, Point(1, 2)),
    (Address, {"street": "s"}),
    (Pair, Pair(1, "r")),
    (User, User(name="n", born=date(2000, 1, 1))),
    (Renamed, Renamed(fullName="n")),
    (list[User], [User(name="n")]),
    (User | None, User(name="n")),
    (Team, Team(User(name="a"), [User(name="b")])),
    (Cat | Dog, Cat(9)),
    (Cat | Dog, Dog("rex", b"\xff\x00")),
    (list[Cat | Dog], [Dog("rex"), Cat(9)]),
    (User | Cat, User(name="n")),
    (User | int, 4),
    (Any, {"a": [1, 2.5, None, True, "x"], "b": {"c": []}}),
    (object, [1]),
    (list, [1, "a"]),
    (dict, {"a": 1}),
    (Annotated[int, msgspec.Meta(gt=0)], 4),
    (list[int], (1, 2)),
]


@pytest.mark.parametrize(("annotation", "value"), EXAMPLES)
def test_a_value_comes_back_equal_and_of_the_same_type(annotation: Any, value: Any) -> None:
    back = round_trip(annotation, value)
    if annotation == list[int]:
        assert back == list(value)
    elif isinstance(value, datetime):
        assert back.isoformat() == value.isoformat()
    else:
        assert back == value
        assert type(back) is type(value) or annotation is float


def test_an_object_without_equality_is_compared_by_its_fields() -> None:
    assert round_trip(NoEquality, NoEquality(1.5)).x == 1.5


def test_a_decimal_nan_survives_although_it_never_equals_itself() -> None:
    assert round_trip(Decimal, Decimal("NaN")).is_nan()


def test_a_tuple_without_annotation_comes_back_as_a_list() -> None:
    assert round_trip(Any, {"a": (1, (2,))}) == {"a": [1, [2]]}


def test_an_ordered_dict_is_a_dict() -> None:
    assert round_trip(dict[str, int], OrderedDict(a=1)) == {"a": 1}


REFUSED = [
    (int, "3", "Expected `int`, got `str`"),
    (int, True, "bool"),
    (str, 3, "Expected `str`, got `int`"),
    (str, uuid.UUID(int=1), "`uuid.UUID` would come back as a `str`"),
    (str, b"abc", "bytes"),
    (list[int], [1, "a"], "$[1]"),
    (list[int], {1}, "set"),
    (Page, Page(3), "$.url"),  # type: ignore[arg-type]
    (Page, {"url": "u"}, "Page"),
    (Page, SpecialPage("u", secret="s"), "SpecialPage"),
    (Site, Site(Page("u", size="x")), "$.home.size"),  # type: ignore[arg-type]
    (Address, {"street": "s", "extra": 1}, "'extra'"),
    (Literal["a"], "b", "Invalid enum value"),
    (Any, {1: 2}, "key 1 (int)"),
    (Any, {"a": {1, 2}}, "set"),
    (Any, Page("u"), "Page"),
    (Any, datetime(2024, 1, 1), "datetime"),
    (Any, uuid.UUID(int=1), "UUID"),
    (Any, b"abc", "bytes"),
    (Any, Pair(1, "a"), "Pair"),
    (Any, User(name="n"), "User"),
    (Any, ValueError("x"), "ValueError"),
    (Any, print, "builtin_function_or_method"),
    (Any, object(), "`object` is not data"),
    (Exception, ValueError("x"), "ValueError"),
    (Any, [10**5000], "4300"),
    (User, User.model_construct(name=3), "name"),  # type: ignore[arg-type]
    (User, "x", "User"),
    (Cat | Dog, Page("u"), "Page"),
    (Cat | OtherCat, OtherCat(1), "OtherCat"),
    (Annotated[int, msgspec.Meta(gt=0)], -1, ">= 1"),
    (str, "\ud800", "surrogate"),
    (Any, ["\ud800"], "surrogate"),
]


@pytest.mark.parametrize(("annotation", "value", "said"), REFUSED)
def test_a_value_that_does_not_fit_is_refused_by_the_sender(annotation: Any, value: Any, said: str) -> None:
    with pytest.raises(PayloadMismatch) as caught:
        Converter.of(annotation).encode(value)
    assert said in str(caught.value)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    ("annotation", "wrap"),
    [
        (float, lambda v: v),
        (float | None, lambda v: v),
        (Any, lambda v: v),
        (Any, lambda v: {"a": [v]}),
        (list[float], lambda v: [v]),
        (Site, lambda v: Site(Page("u"), v)),
        (NoEquality, lambda v: NoEquality(v)),
    ],
)
def test_nan_is_refused_instead_of_becoming_null(annotation: Any, wrap: Any, value: float) -> None:
    with pytest.raises(PayloadMismatch, match="no JSON form"):
        Converter.of(annotation).encode(wrap(value))


def test_a_value_that_contains_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(PayloadMismatch, match="contains itself"):
        Converter.of(Any).encode(loop)


@pytest.mark.parametrize(
    ("annotation", "data", "said"),
    [
        (int, b'"3"', "Expected `int`, got `str`"),
        (list[Page], b'[{"url":"a"},{"url":3}]', "$[1].url"),
        (Page, b"{}", "missing required field `url`"),
        (Page, b'{"url":', "truncated"),
        (int, b"", "truncated"),
        (User, b'{"name":3}', "$.name"),
        (Cat | Dog, b'{"lives":"9"}', "lives"),
        (Team, b'{"lead":{"name":1},"others":[]}', "$.lead"),
        (Any, b"[" * 5000, "does not fit"),  # too deep for one Python, cut short for another
    ],
)
def test_the_reader_names_the_path_of_what_does_not_fit(annotation: Any, data: bytes, said: str) -> None:
    with pytest.raises(PayloadMismatch) as caught:
        Converter.of(annotation).decode(data)
    assert said in str(caught.value)


def test_a_payload_over_the_limit_names_the_limit_the_size_and_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(converters, "PAYLOAD_OBJECT_BYTES_MAX", 1_000)
    assert len(Converter.of(str).encode("x" * 998)) == 1_000
    with pytest.raises(PayloadTooLarge) as caught:
        Converter.of(str).encode("x" * 999)
    text = str(caught.value)
    assert "1,001" in text and "PAYLOAD_OBJECT_BYTES_MAX" in text and "Split it" in text


def test_a_union_of_dataclasses_without_pydantic_names_both_ways_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydantic", None)
    with pytest.raises(InvalidInput) as caught:
        Converter(Cat | Dog)
    assert "pip install 'perdure[pydantic]'" in str(caught.value)
    assert "tag=True" in str(caught.value)


@pytest.mark.usefixtures("interpreter")
def test_pydantic_is_not_imported_unless_a_type_needs_it() -> None:
    script = (
        "import sys; from perdure.sdk.payloads import Converter; Converter.of(list[int]).encode([1]);"
        "assert 'pydantic' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.usefixtures("interpreter")
def test_a_set_is_written_alike_by_every_process() -> None:
    script = (
        "from perdure.sdk.payloads import Converter as C; import sys;"
        "sys.stdout.write(C.of(dict[str, set[str]]).encode({'k': {'a', 'b', 'c', 'd'}}).decode())"
    )
    written = {
        subprocess.run(
            [sys.executable, "-c", script], check=True, capture_output=True, env={**os.environ, "PYTHONHASHSEED": seed}
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert written == {b'{"k":["a","b","c","d"]}'}


def test_a_dict_keeps_its_order() -> None:
    assert list(round_trip(dict[str, int], {"b": 1, "a": 2})) == ["b", "a"]


def test_a_converter_is_built_once_per_annotation() -> None:
    assert Converter.of(list[int]) is Converter.of(list[int])


def test_an_annotation_that_cannot_be_hashed_still_works() -> None:
    assert round_trip(Annotated[int, []], 1) == 1


# -- properties ------------------------------------------------------------------------------------------------------

text = st.text()
finite = st.floats(allow_nan=False, allow_infinity=False)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | finite | text,
    lambda inner: st.lists(inner) | st.dictionaries(text, inner),
    max_leaves=20,
)
pages = st.builds(Page, text, st.integers(), st.lists(text))
offsets = st.integers(-1439, 1439).map(lambda m: timezone(timedelta(minutes=m)))


def typed(annotation: Any, values: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, Any]]:
    return values.map(lambda v: (annotation, v))


@given(
    st.one_of(
        typed(Any, json_values),
        typed(int, st.integers()),
        typed(float, finite),
        typed(str, text),
        typed(bytes, st.binary()),
        typed(Page, pages),
        typed(Site, st.builds(Site, pages, st.none() | finite)),
        typed(dict[str, Page], st.dictionaries(text, pages)),
        typed(dict[int, str], st.dictionaries(st.integers(-(2**63), 2**63 - 1), text)),
        typed(tuple[int, ...], st.lists(st.integers()).map(tuple)),
        typed(set[int], st.sets(st.integers())),
        typed(datetime, st.datetimes(timezones=st.none() | offsets)),
        typed(date, st.dates()),
        typed(time, st.times()),
        typed(timedelta, st.timedeltas()),
        typed(Decimal, st.decimals(allow_nan=False)),
        typed(uuid.UUID, st.uuids()),
        typed(User, st.builds(User, name=text, born=st.none() | st.dates())),
        typed(list[Cat | Dog], st.lists(st.builds(Cat, st.integers()) | st.builds(Dog, text, st.binary()))),
    )
)
def test_whatever_is_accepted_comes_back_equal(pair: tuple[Any, Any]) -> None:
    annotation, value = pair
    assert round_trip(annotation, value) == value


anything = st.recursive(
    st.none()
    | st.floats()
    | text
    | st.binary()
    | st.uuids()
    | st.sets(st.integers())
    | st.just(Page("u"))
    | st.integers(),
    lambda inner: st.lists(inner) | st.dictionaries(text | st.integers(), inner),
    max_leaves=8,
)


@given(anything)
def test_an_untyped_value_is_either_exact_or_refused(value: Any) -> None:
    try:
        data = Converter.of(Any).encode(value)
    except PayloadMismatch:
        return
    assert Converter.of(Any).decode(data) == value


# -- signatures ------------------------------------------------------------------------------------------------------


async def fetch(url: str, depth: int = 1) -> Page: ...


def untyped(a, b=2): ...  # type: ignore[no-untyped-def]


def only_positional(a: int, b: int = 5, /, c: int = 6) -> None: ...


def only_keyword(a: int, *, b: str, c: int = 1) -> None: ...


def variadic(a: int, b: int = 2, *rest: int, flag: bool = False, **more: str) -> None: ...


def with_union(pet: Cat | Dog, n: int = 0) -> Cat | Dog: ...


def with_model(user: User) -> list[User]: ...


def later(x: Later) -> Later: ...


@dataclasses.dataclass
class Later:
    n: int


def call(fn: Any, *args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    signature = Signature.of(fn)
    return signature.decode_call(signature.encode_call(args, kwargs))


def test_arguments_travel_by_name_and_defaults_do_not_travel() -> None:
    assert Signature.of(fetch).encode_call(("u",), {}) == b'{"url":"u"}'
    assert Signature.of(fetch).encode_call((), {"depth": 1, "url": "u"}) == b'{"url":"u","depth":1}'


@pytest.mark.parametrize(
    ("fn", "args", "kwargs", "received"),
    [
        (fetch, ("u",), {}, (("u", 1), {})),
        (fetch, (), {"url": "u", "depth": 3}, (("u", 3), {})),
        (untyped, (1,), {"b": [None]}, ((1, [None]), {})),
        (only_positional, (1,), {"c": 3}, ((1, 5, 3), {})),
        (only_keyword, (1,), {"b": "x"}, ((1,), {"b": "x"})),
        (only_keyword, (1,), {"b": "x", "c": 4}, ((1,), {"b": "x", "c": 4})),
        (variadic, (1,), {}, ((1, 2), {})),
        (variadic, (1, 7, 8, 9), {"flag": True, "other": "o"}, ((1, 7, 8, 9), {"flag": True, "other": "o"})),
        (with_union, (Dog("rex"),), {}, ((Dog("rex"), 0), {})),
        (with_union, (Cat(9), 3), {}, ((Cat(9), 3), {})),
        (with_model, (User(name="n"),), {}, ((User(name="n"),), {})),
        (later, (Later(1),), {}, ((Later(1),), {})),
        (functools.partial(fetch, depth=4), ("u",), {}, (("u",), {})),
        (lambda: None, (), {}, ((), {})),
    ],
)
def test_a_call_arrives_as_it_was_made(fn: Any, args: Any, kwargs: Any, received: Any) -> None:
    assert call(fn, *args, **kwargs) == received


@pytest.mark.parametrize(
    ("fn", "args", "kwargs", "said"),
    [
        (fetch, (), {}, "missing a required argument: 'url'"),
        (fetch, ("u", 1, 2), {}, "too many positional arguments"),
        (fetch, ("u",), {"speed": 1}, "unexpected keyword argument 'speed'"),
        (fetch, ("u",), {"url": "v"}, "multiple values for argument 'url'"),
        (only_keyword, (1, "x"), {}, "too many positional arguments"),
        (only_keyword, (1,), {}, "missing a required"),
        (only_positional, (), {"a": 1}, "'a'"),
        (fetch, (3,), {}, "$.url"),
        (variadic, (1, 2, "x"), {}, "$.rest[0]"),
        (variadic, (1,), {"more_of": 3}, "more"),
        (with_union, (3,), {}, "`pet`"),
    ],
)
def test_a_wrong_call_is_refused_before_it_is_sent(fn: Any, args: Any, kwargs: Any, said: str) -> None:
    with pytest.raises(PayloadMismatch) as caught:
        Signature.of(fn).encode_call(args, kwargs)
    assert said in str(caught.value)
    assert fn.__name__ in str(caught.value)


@pytest.mark.parametrize(
    ("fn", "data", "said"),
    [
        (fetch, b"{}", "missing required field `url`"),
        (fetch, b'{"url":"u","speed":1}', "unknown field `speed`"),
        (fetch, b'{"url":1}', "$.url"),
        (with_union, b'{"pet":{"wings":2}}', "`pet`"),
    ],
)
def test_a_wrong_call_is_refused_when_it_is_read(fn: Any, data: bytes, said: str) -> None:
    with pytest.raises(PayloadMismatch) as caught:
        Signature.of(fn).decode_call(data)
    assert said in str(caught.value)


def test_a_hand_written_call_may_skip_a_positional_parameter() -> None:
    assert Signature.of(only_positional).decode_call(b'{"a":1,"c":2}') == ((1, 5, 2), {})
    assert Signature.of(variadic).decode_call(b'{"a":1,"rest":[3]}') == ((1, 2, 3), {})


def test_results_are_checked_at_both_ends() -> None:
    signature = Signature.of(fetch)
    assert signature.decode_result(signature.encode_result(Page("u"))) == Page("u")
    with pytest.raises(PayloadMismatch, match=r"the result of fetch\(\)"):
        signature.encode_result("page")
    with pytest.raises(PayloadMismatch, match=r"the result of fetch\(\)"):
        signature.decode_result(b"3")


def test_a_function_that_returns_none_sends_null() -> None:
    assert Signature.of(only_keyword).encode_result(None) == b"null"
    assert Signature.of(untyped).encode_result(None) == b"null"


@pytest.mark.parametrize(
    ("fn", "items"),
    [
        (fetch, ["a", "b"]),
        (untyped, [1, {"a": 2}]),
        (only_positional, [1]),
        (variadic, [1]),
        (with_union, [Cat(1), Dog("d")]),
        (lambda *xs: None, [1, 2]),
        (fetch, []),
    ],
)
def test_bulk_calls_are_the_same_bytes_as_single_ones(fn: Any, items: list[Any]) -> None:
    signature = Signature.of(fn)
    assert signature.encode_calls(iter(items)) == [signature.encode_call((item,), {}) for item in items]


def test_bulk_calls_refuse_a_function_of_two_required_arguments() -> None:
    def two(a: int, b: int) -> None: ...

    with pytest.raises(PayloadMismatch, match="one positional argument"):
        Signature.of(two).encode_calls([1])


def test_bulk_calls_name_the_argument_that_does_not_fit() -> None:
    with pytest.raises(PayloadMismatch, match="the argument `url` of fetch"):
        Signature.of(fetch).encode_calls(["a", 3])


def test_bulk_calls_may_be_larger_than_what_a_history_takes() -> None:
    """The worker stores them before it sends them."""
    call = Signature.of(fetch).encode_calls(["x" * PAYLOAD_BYTES_MAX])[0]
    assert call == Signature.of(fetch).encode_call(("x" * PAYLOAD_BYTES_MAX,), {})


def test_bulk_results_say_which_item_is_wrong() -> None:
    signature = Signature.of(fetch)
    good = signature.encode_result(Page("u"))
    assert signature.decode_results([good, good]) == [Page("u"), Page("u")]
    with pytest.raises(PayloadMismatch, match="item 1"):
        signature.decode_results([good, b"3"])


def test_a_local_class_that_cannot_be_resolved_names_the_parameter() -> None:
    class Local(msgspec.Struct):
        x: int

    def takes(thing: Local) -> None: ...

    with pytest.raises(InvalidInput, match="the parameter `thing`"):
        Signature.of(takes).encode_call((Local(1),), {})


def test_a_local_class_that_the_function_uses_is_resolved() -> None:
    class Local(msgspec.Struct):
        x: int

    def takes(thing: Local) -> Local:
        return Local(thing.x)

    assert call(takes, Local(1)) == ((Local(1),), {})


def test_a_signature_is_compiled_once_per_function() -> None:
    assert Signature.of(fetch) is Signature.of(fetch)


@pytest.mark.parametrize("fn", [time.fromisoformat, math.sqrt, len, functools.partial(int, base=2), str.upper])
def test_builtins_carry_untyped_results(fn: Any) -> None:
    assert Signature.of(fn).decode_result(Signature.of(fn).encode_result([1])) == [1]


def test_a_callable_object_has_a_signature_too() -> None:
    class Adder:
        def __call__(self, a: int, b: int = 1) -> int:
            return a + b

    assert call(Adder(), 2) == ((2, 1), {})
    assert Signature.of(Adder()).encode_result(3) == b"3"
    with pytest.raises(PayloadMismatch):
        Signature.of(Adder()).encode_result("3")


def test_a_method_has_a_signature_too() -> None:
    class Adder:
        def add(self, a: int) -> int:
            return a

    assert call(Adder().add, 2) == ((2,), {})

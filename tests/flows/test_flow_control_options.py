"""What people say about flow control, in Python and in flows: what is recorded, and what is refused with which words."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from perdure import Fair, Limit, RateLimit, task, workflow
from perdure.core.flow_control.options import FlowControlSpec
from perdure.core.flow_control.options import LimitOption as RecordedLimit
from perdure.core.flow_control.options import RateOption as RecordedRate
from perdure.core.retry import TaskOptions
from perdure.errors import FlowError, InvalidInput
from perdure.flows.compile import compile_value
from perdure.flows.flow_control import canonical, number_or_expression, with_root
from perdure.flows.model import TaskCall


def call(customer: str, order: dict[str, Any], size: int = 1) -> None: ...


async def run(customer: str) -> None: ...


def test_nothing_said_is_nothing_recorded() -> None:
    assert task(call).effective.control is None
    assert task(priority=0)(call).effective == TaskOptions()
    assert workflow(run).control is None


def test_all_that_can_be_said_of_a_task() -> None:
    made = task(
        limit=[Limit(3, by="customer"), Limit(10, key="db")],
        rate=RateLimit(100, per="1m", key="api", units="size", burst=5),
        priority=7,
        fair="order.region",
        weight="input.size * 2",
    )(call)
    assert made.effective.control == FlowControlSpec(
        limits=(RecordedLimit(max=3, by="input.customer"), RecordedLimit(max=10, key="db")),
        rates=(RecordedRate(count=100, per_us=60_000_000, key="api", units="input.size", burst=5),),
        priority=7,
        fair="input.order.region",
        weight="input.size * 2",
    )


def test_what_is_recorded_survives_its_encoding() -> None:
    options = task(limit=Limit(3, by="customer"), rate=RateLimit(0.5, units=2.5), fair=Fair("customer", 2))(
        call
    ).effective
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(options), type=TaskOptions) == options
    assert options.control is not None
    assert (options.control.rates[0].units, options.control.weight) == ("2.5", "2")


def test_options_of_one_call_lie_over_those_of_the_task() -> None:
    one = task(limit=Limit(3), priority=1)(call)
    other = one.options(priority=9)
    assert one.effective.control == FlowControlSpec(limits=(RecordedLimit(max=3),), priority=1)
    assert other.effective.control == FlowControlSpec(limits=(RecordedLimit(max=3),), priority=9)


def test_a_workflow_keeps_what_is_said_of_its_runs() -> None:
    made = workflow(limit=Limit(1, by="customer", policy="cancel_oldest"), priority=-5)(run)
    assert made.control == FlowControlSpec(
        limits=(RecordedLimit(max=1, by="input.customer", policy="cancel_oldest"),), priority=-5
    )
    assert made.options(timeout="1m").control == made.control


def anything(**whatever: Any) -> None: ...


def test_a_function_that_takes_any_name_takes_any_name() -> None:
    made = task(limit=Limit(1, by="tenant"))(anything).effective.control
    assert made is not None
    assert made.limits[0].by == "input.tenant"


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (
            lambda: task(limit=Limit(1, by="custmer"))(call),
            "task call: by of a limit: there is no parameter 'custmer'; did you mean 'customer'?",
        ),
        (lambda: task(limit=Limit(1, by="lower(customer)"))(call), 'did you mean "input.customer"?'),
        (lambda: task(limit=Limit(1, by="customer +"))(call), "is not an expression"),
        (lambda: task(limit=3)(call), r"write Limit\(3\)"),  # type: ignore[arg-type]
        (lambda: task(rate=[100])(call), r"write RateLimit\(100\)"),  # type: ignore[list-item]
        (lambda: task(limit=Limit(1, policy="skip"))(call), "a task that finds its limit reached waits"),
        (lambda: task(limit=[Limit(1)] * 6)(call), "LIMITS_PER_TASK_MAX=5"),
        (lambda: task(priority=101)(call), "from -100 to 100"),
        (lambda: task(priority=1.5)(call), "whole number"),  # type: ignore[arg-type]
        (lambda: task(weight=2)(call), 'fair="customer"'),
        (lambda: task(fair=Fair("customer", 2), weight=3)(call), "said twice"),
        (lambda: task(fair="customer", weight=0)(call), "must lie between"),
        (lambda: task(fair="customer", weight="tier")(call), "no parameter 'tier'"),
        (lambda: task(rate=RateLimit(1, units="weigth"))(call), "no parameter 'weigth'"),
        (lambda: task(rate=RateLimit(1, units=-1))(call), "must lie between 0"),
        (lambda: Limit(0), "pause it"),
        (lambda: Limit(True), "whole number"),
        (lambda: Limit(1, policy="wait"), "choose one of queue, cancel_oldest, cancel_newest, skip"),  # type: ignore[arg-type]
        (lambda: Limit(1, key="k" * 201), "invalid Limit key name"),
        (lambda: RateLimit(0), "pause it"),
        (lambda: RateLimit(1, per="0s"), "the time"),
        (lambda: RateLimit(1, burst=0.5), "at once"),
    ],
)
def test_what_cannot_work_is_refused_where_it_is_written(said: Any, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        said()


def test_bare_paths_begin_at_the_input() -> None:
    assert with_root("customer") == "input.customer"
    assert with_root(" order.customer ") == "input.order.customer"
    assert with_root("input.customer") == "input.customer"
    assert with_root("true") == "true"
    assert with_root("a + b") == "a + b"
    assert canonical("input.a==1", "x") == canonical("input.a == 1", "x")


def test_numbers_are_recorded_as_they_are() -> None:
    assert number_or_expression(1, "x", None, 0, 10) == "1"
    assert number_or_expression("2.50", "x", None, 0, 10) == "2.5"
    assert float(number_or_expression(0.1234567891, "x", None, 0, 10)) == 0.1234567891
    with pytest.raises(InvalidInput):
        number_or_expression("nan", "x", None, 0, 10)


# -- flows ---------------------------------------------------------------------------------------------------------


def compiled(task_fields: dict[str, Any], **document: Any) -> Any:
    return compile_value({"flow": "f", "tasks": {"t": task_fields}, **document}).flow


def control_of(fields: dict[str, Any]) -> FlowControlSpec | None:
    verb = compiled({"python": "m:f", **fields}).body.nodes[0].verb
    assert isinstance(verb, TaskCall)
    return verb.options.control


def test_a_flow_says_the_same_of_a_task() -> None:
    assert control_of({}) is None
    assert control_of({"limit": 3}) == FlowControlSpec(limits=(RecordedLimit(max=3),))
    assert control_of(
        {
            "limit": [3, {"max": 1, "by": "customer", "key": "db"}],
            "rate": {"count": 100, "per": "1m", "units": "size", "by": "region", "burst": 2},
            "priority": -3,
            "fair": {"by": "customer", "weight": "tier"},
        }
    ) == FlowControlSpec(
        limits=(RecordedLimit(max=3), RecordedLimit(max=1, by="input.customer", key="db")),
        rates=(RecordedRate(count=100, per_us=60_000_000, by="input.region", units="input.size", burst=2),),
        priority=-3,
        fair="input.customer",
        weight="input.tier",
    )
    assert control_of({"fair": "customer", "weight": 2}) == FlowControlSpec(fair="input.customer", weight="2")


def test_a_flow_says_it_of_its_runs_at_the_top() -> None:
    flow = compiled(
        {"value": 1}, input={"customer": {"type": "string"}}, limit={"max": 1, "by": "customer", "policy": "skip"}
    )
    assert flow.control == FlowControlSpec(limits=(RecordedLimit(max=1, by="input.customer", policy="skip"),))
    assert compiled({"value": 1}).control is None


@pytest.mark.parametrize(
    ("fields", "document", "words"),
    [
        ({"limit": 0}, {}, "whole number from 1"),
        ({"limit": {}}, {}, "max of a limit"),
        ({"limit": "3"}, {}, "a number of how many at a time"),
        ({"limit": {"max": 1, "polcy": "skip"}}, {}, "did you mean 'policy'?"),
        ({"limit": {"max": 1, "policy": "skip"}}, {}, "put the limit at the top of the flow"),
        ({"limit": {"max": 1, "by": "a +"}}, {}, "is not an expression"),
        ({"limit": [1] * 6}, {}, "5 is the most"),
        ({"rate": 100}, {}, "count: 100, per: 1s"),
        ({"rate": {"count": 0}}, {}, "above 0"),
        ({"rate": {"count": 1, "per": "0s"}}, {}, "no time at all"),
        ({"rate": {"count": 1, "units": [1]}}, {}, "a number, or an expression"),
        ({"priority": 101}, {}, "from -100 to 100"),
        ({"weight": 2}, {}, "add fair:"),
        ({"fair": {"weight": 2}}, {}, "what takes turns"),
        ({"fair": {"by": "a"}, "weight": 2}, {}, "keep one of them"),
        (
            {},
            {"limit": {"max": 1, "by": "custmer"}, "input": {"customer": {"type": "string"}}},
            "did you mean 'customer'?",
        ),
        ({}, {"limit": {"max": 1, "policy": "wait"}}, "one of queue"),
    ],
)
def test_a_flow_that_says_it_wrong_is_refused(fields: dict[str, Any], document: dict[str, Any], words: str) -> None:
    with pytest.raises(FlowError) as found:
        compiled({"python": "m:f", **fields}, **document)
    assert words in str(found.value)


@pytest.mark.parametrize("key", ["limit", "rate", "priority", "fair", "weight"])
def test_flow_control_goes_with_tasks_only(key: str) -> None:
    with pytest.raises(FlowError, match=f"{key} does not go with sleep"):
        compiled({"sleep": "1s", key: 1})

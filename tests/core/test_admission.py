"""The pure part of a claim: limits hold whatever is asked, keys share by weight, priority ages, rates are kept to the unit."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from perdure.core.flow_control.admission import AGING_US, LOOK_AGAIN_US, Admission, Bucket, LimitUse, QueuedGroup, admit
from perdure.core.flow_control.groups import (
    FlowControlGroup,
    FlowControlRule,
    FlowControlRules,
    LimitNeed,
    burst_of,
    run_group,
    task_group,
)
from perdure.core.flow_control.options import FlowControlSpec, LimitOption, RateOption

NOW = 1_000_000_000
KIND = (1, "default", "send")


def group(control: FlowControlSpec, data: bytes = b"{}") -> FlowControlGroup:
    return task_group(control, 1, "default", "send", "flow", data)


def waiting(
    control: FlowControlSpec, due: int, *, turn: float = 0.0, since: int = NOW, data: bytes = b"{}"
) -> QueuedGroup:
    return QueuedGroup(group(control, data), turn, [since] * due, since)


def granted(
    groups: list[QueuedGroup],
    *,
    held: dict[str, int] | None = None,
    buckets: dict[tuple[int, str], Bucket] | None = None,
    rules: list[FlowControlRule] | None = None,
    free: int = 1_000,
    now: int = NOW,
) -> list[Admission]:
    book = FlowControlRules({(r.ns, r.scope, r.name): r for r in rules or []})
    return admit(
        groups,
        {w.group.id: book.of(w.group) for w in groups},
        {(1, key): LimitUse(n, (b"\x01" * 16,)) for key, n in (held or {}).items()},
        {} if buckets is None else buckets,
        {KIND: free},
        free,
        now,
    )


# -- limits --------------------------------------------------------------------------------------------------------


def test_a_limit_lets_through_what_is_left_of_it_and_says_who_holds_the_rest() -> None:
    (g,) = granted([waiting(FlowControlSpec(limits=(LimitOption(max=3),)), 10)], held={"task/send": 1})
    assert g.take == 2
    assert g.reason is not None
    assert (g.reason.code, g.reason.key, g.reason.max, g.reason.holders) == ("limit", "task/send", 3, ("01" * 16,))
    assert g.next_us == NOW + LOOK_AGAIN_US


def test_each_value_of_by_has_a_limit_of_its_own() -> None:
    control = FlowControlSpec(limits=(LimitOption(max=2, by="input.customer"),))
    groups = [waiting(control, 5, data=b'{"customer":"%s"}' % c) for c in (b"a", b"b")]
    assert [g.take for g in granted(groups)] == [2, 2]
    assert [n.key for w in groups for n in w.group.needs.limits] == ["task/send:a", "task/send:b"]


def test_limits_are_hierarchical_the_narrowest_bites() -> None:
    control = FlowControlSpec(limits=(LimitOption(max=3), LimitOption(max=2, by="input.customer")))
    groups = [waiting(control, 5, data=b'{"customer":"%s"}' % c) for c in (b"a", b"b")]
    rules = [FlowControlRule(ns=1, scope="queue", name="default", concurrency=10)]
    assert sum(g.take for g in granted(groups, rules=rules)) == 3
    assert sum(g.take for g in granted(groups, rules=rules, held={"queue/default": 9})) == 1


def test_limits_of_one_key_are_shared_between_tasks() -> None:
    one = FlowControlSpec(limits=(LimitOption(max=4, key="database"),))
    other = task_group(one, 1, "default", "receive", "flow", b"{}")
    assert [n.key for n in group(one).needs.limits] == [n.key for n in other.needs.limits] == ["key/database"]


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 8), st.integers(0, 30), st.integers(1, 4)), max_size=12),
    st.integers(0, 60),
    st.integers(0, 9),
)
def test_no_limit_is_ever_exceeded_and_nothing_is_left_that_could_begin(
    shape: list[tuple[int, int, int, int]], free: int, held: int
) -> None:
    groups: list[QueuedGroup] = []
    for i, (customer, max_, due, weight) in enumerate(shape):
        limits = (LimitOption(max=max_, by="input.customer"), LimitOption(max=7, key="all"))
        control = FlowControlSpec(limits=limits, fair="input.n", weight=str(weight))
        groups.append(waiting(control, due, data=b'{"customer":%d,"n":%d}' % (customer, i)))
    out = granted(groups, free=free, held={"key/all": held})
    assert sum(g.take for g in out) <= min(free, max(0, 7 - held))
    for customer in range(4):
        mine = [(g, s) for g, s in zip(out, shape, strict=True) if s[0] == customer]
        taken = sum(g.take for g, _ in mine)
        assert taken <= max((s[1] for _, s in mine), default=0)
        for g, s in mine:
            if (
                g.take < s[2]
            ):  # something is left: a slot of the worker, the shared limit or its own limit stands in the way
                none_free = sum(x.take for x in out) == free
                assert none_free or g.reason is not None
                if not none_free:
                    shared = sum(x.take for x in out) + held >= 7
                    assert shared or taken >= s[1]


def test_the_value_of_by_may_be_anything() -> None:
    control = FlowControlSpec(limits=(LimitOption(max=2, by="input.customer.id"),))
    keys = [
        group(control, data).needs.limits[0].key for data in (b"{}", b"[]", b"not json", b'{"customer":{"id":[1]}}')
    ]
    assert keys == ["task/send:null"] * 3 + ["task/send:[1]"]
    long = group(control, b'{"customer":{"id":"%s"}}' % (b"x" * 5_000)).needs.limits[0].key
    other = group(control, b'{"customer":{"id":"%s"}}' % (b"x" * 5_001)).needs.limits[0].key
    assert len(long) < 250 and long != other


def test_an_offer_is_looked_into() -> None:
    control = FlowControlSpec(limits=(LimitOption(max=2, by="input.customer"),))
    assert group(control, b'{"**":{"customer":"a"}}') == group(control, b'{"customer":"a"}')


# -- fairness and priority -----------------------------------------------------------------------------------------


def test_keys_share_by_weight_however_long_their_lines_are() -> None:
    long = waiting(FlowControlSpec(fair="input.k", weight="1"), 1_000, data=b'{"k":"long"}')
    short = waiting(FlowControlSpec(fair="input.k", weight="1"), 10, data=b'{"k":"short"}')
    heavy = waiting(FlowControlSpec(fair="input.k", weight="3"), 1_000, data=b'{"k":"heavy"}')
    takes = [g.take for g in granted([long, short, heavy], free=50)]
    assert takes == [10, 10, 30]


@given(st.lists(st.integers(1, 5), min_size=2, max_size=6), st.integers(20, 300))
def test_shares_follow_weights_to_within_one_turn(weights: list[int], rounds: int) -> None:
    groups = [
        waiting(FlowControlSpec(fair="input.k", weight=str(w)), 10_000, data=b'{"k":%d}' % i)
        for i, w in enumerate(weights)
    ]
    takes = [g.take for g in granted(groups, free=rounds)]
    total = sum(weights)
    for take, weight in zip(takes, weights, strict=True):
        assert abs(take - rounds * weight / total) <= weight + 1


def test_a_turn_is_remembered_from_claim_to_claim() -> None:
    control = FlowControlSpec(fair="input.k")
    groups = [waiting(control, 100, data=b'{"k":"%s"}' % k) for k in (b"a", b"b")]
    first = granted(groups, free=3)
    again = [QueuedGroup(g.group, g.turn, [NOW] * 100, NOW) for g in first]
    assert sum(g.take for g in first) == 3
    second = granted(again, free=3)
    assert [a.take + b.take for a, b in zip(first, second, strict=True)] == [3, 3]


def test_higher_priority_goes_first_until_the_lower_has_waited_long_enough() -> None:
    low, high = FlowControlSpec(priority=0), FlowControlSpec(priority=5)
    assert [g.take for g in granted([waiting(low, 10), waiting(high, 10)], free=10)] == [0, 10]
    aged = NOW - 5 * AGING_US
    takes = [g.take for g in granted([waiting(low, 10, since=aged), waiting(high, 10)], free=10)]
    assert takes == [5, 5]  # equals by now, and they share
    older = NOW - 6 * AGING_US
    assert [g.take for g in granted([waiting(low, 10, since=older), waiting(high, 10)], free=10)] == [10, 0]


def test_what_finds_no_free_slot_stays_due_without_a_reason() -> None:
    (g,) = granted([waiting(FlowControlSpec(priority=1), 5)], free=2)
    assert (g.take, g.reason, g.next_us) == (2, None, NOW)


def test_what_is_due_later_is_looked_at_then() -> None:
    w = QueuedGroup(group(FlowControlSpec(priority=1)), 0.0, [NOW, NOW + 5_000], NOW)
    (g,) = granted([w])
    assert (g.take, g.next_us) == (1, NOW + 5_000)
    (empty,) = granted([QueuedGroup(group(FlowControlSpec(priority=1)), 0.0, [NOW], NOW)])
    assert (empty.take, empty.next_us) == (1, None)


# -- rates ---------------------------------------------------------------------------------------------------------


@given(st.floats(1, 500), st.integers(500_000, 10_000_000), st.integers(1_000, 400_000))
def test_over_any_time_a_rate_lets_through_what_it_says(count: float, per_us: int, step_us: int) -> None:
    """However often somebody looks: never more than came in and was in the bucket, and no less than that minus a step's worth."""
    control = FlowControlSpec(rates=(RateOption(count=count, per_us=per_us),))
    buckets: dict[tuple[int, str], Bucket] = {}
    taken, now = 0, NOW
    for _ in range(40):
        w = QueuedGroup(group(control), 0.0, [NOW] * 2_000, NOW)
        (g,) = granted([w], buckets=buckets, free=2_000, now=now)
        taken += g.take
        now += step_us
    elapsed = now - step_us - NOW
    came = elapsed * count / per_us
    burst = burst_of(count, per_us)
    assert taken <= math.floor(came + burst + 1e-6)
    if step_us * count / per_us <= burst - 1:  # nothing ran over
        assert taken >= math.floor(came + burst) - 1


def test_a_rate_says_when_it_will_be_refilled() -> None:
    control = FlowControlSpec(rates=(RateOption(count=10, per_us=1_000_000, burst=2),))
    (g,) = granted([waiting(control, 5)])
    assert g.take == 2
    assert g.reason is not None and g.reason.code == "rate"
    assert g.reason.until_us == g.next_us == NOW + 100_000


def test_units_count_and_what_is_more_than_the_bucket_holds_still_goes() -> None:
    control = FlowControlSpec(rates=(RateOption(count=10, per_us=1_000_000, burst=5, units="input.size"),))
    buckets: dict[tuple[int, str], Bucket] = {}
    (g,) = granted([waiting(control, 3, data=b'{"size":2}')], buckets=buckets)
    assert g.take == 2 and buckets[1, "task/send"].tokens == 1.0
    huge: dict[tuple[int, str], Bucket] = {}
    (g,) = granted([waiting(control, 2, data=b'{"size":20}')], buckets=huge)
    assert g.take == 1 and huge[1, "task/send"].tokens == -15.0


# -- rules ---------------------------------------------------------------------------------------------------------


def test_a_pause_stops_everything_and_says_who_paused_it_and_why() -> None:
    rules = [
        FlowControlRule(ns=1, scope="queue", name="default", paused_by="ada", paused_us=NOW, pause_reason="upgrade")
    ]
    (g,) = granted([waiting(FlowControlSpec(), 5)], rules=rules)
    assert g.take == 0 and g.reason is not None
    assert (g.reason.code, g.reason.key, g.reason.by, g.reason.text) == ("paused", "queue/default", "ada", "upgrade")


def test_a_paused_workflow_holds_its_tasks_but_its_concurrency_is_about_runs() -> None:
    paused = FlowControlRules(
        {(1, "workflow", "flow"): FlowControlRule(ns=1, scope="workflow", name="flow", concurrency=1, paused_by="ada")}
    )
    assert [r.concurrency for r in paused.for_task(1, "default", "send", "flow")] == [None]
    assert [r.concurrency for r in paused.for_run(1, "flow")] == [1]
    assert paused.for_task(1, "default", "send", "other") == []
    assert paused.for_task(2, "default", "send", "flow") == []


def test_a_line_of_runs_counts_under_its_workflow() -> None:
    made = run_group(FlowControlSpec(limits=(LimitOption(max=1, policy="skip"),)), 1, "flow", b"{}")
    assert made.needs.limits == (LimitNeed("workflow/flow", 1, "skip"),)


def test_the_same_needs_meet_in_one_line_and_others_do_not() -> None:
    a = FlowControlSpec(limits=(LimitOption(max=3, by="input.c"),))
    assert group(a, b'{"c":1,"x":1}').id == group(a, b'{"c":1,"x":2}').id
    assert group(a, b'{"c":1}').id != group(a, b'{"c":2}').id
    assert group(a).id != group(FlowControlSpec(limits=(LimitOption(max=4, by="input.c"),))).id
    assert group(FlowControlSpec(priority=1)).id != group(FlowControlSpec(priority=2)).id


def test_a_bucket_never_holds_more_than_its_burst_however_long_nobody_takes_anything() -> None:
    control = FlowControlSpec(rates=(RateOption(count=10, per_us=1_000_000, burst=2),))
    buckets = {(1, "task/send"): Bucket(0.0, NOW - 3_600_000_000)}
    (g,) = granted([waiting(control, 50)], buckets=buckets)
    assert g.take == 2
    assert buckets[1, "task/send"].tokens == 0.0

"""A query in SQL answers what its meaning says, over runs and attributes of every kind."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from decimal import Decimal
from typing import Any, NamedTuple

import asyncpg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.core import ids
from perdure.core.durations import datetime_of
from perdure.core.run_query import And, Node, Not, Op, Or, Search, Term, parse
from perdure.store.run_lists import PostgresRunLists
from perdure.store.run_query_sql import hints_of

NOW_US = 1_790_000_000_000_000
T0_MS = NOW_US // 1000 - 100


class Run(NamedTuple):
    id: bytes
    workflow: str
    version: str
    key: str | None
    status: str
    finished_us: int | None
    error_code: str | None
    stuck: str | None
    paused: bool
    waiting_on: str | None
    parent: bytes | None
    attributes: dict[str, Any] | None


# -- the meaning of a query --------------------------------------------------------------------------------------------


def matches(node: Node, run: Run) -> bool:
    match node:
        case And():
            return all(matches(part, run) for part in node.parts)
        case Or():
            return any(matches(part, run) for part in node.parts)
        case Not():
            return not matches(node.part, run)
        case Search():
            return any(
                node.text in (t or "").lower() for t in (run.key, run.workflow, run.stuck)
            ) or run.id.hex().startswith(node.text)
        case Term():
            return holds(node, run)


def holds(term: Term, run: Run) -> bool:
    if term.field == "attr":
        value = (run.attributes or {}).get(term.attribute)
    else:
        value = {
            "status": run.status,
            "workflow": run.workflow,
            "version": run.version,
            "key": run.key,
            "id": run.id.hex(),
            "parent": run.parent.hex() if run.parent else None,
            "created": ids.unix_ms_of(run.id) * 1000,
            "finished": run.finished_us,
            "error_code": run.error_code,
            "waiting_on": run.waiting_on,
            "stuck": run.stuck is not None,
            "paused": run.paused,
        }[term.field]
    if term.op is Op.EXISTS or value is None:
        return value is not None
    asked = term.value
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = Decimal(repr(value))
    if isinstance(asked, int) and not isinstance(asked, bool):
        asked = Decimal(asked)
    if type(value) is not type(asked):
        return False
    match term.op:
        case Op.EQUAL:
            return bool(value == asked)
        case Op.PREFIX:
            return str(value).startswith(str(asked))
        case Op.LESS:
            return bool(value < asked)
        case Op.LESS_OR_EQUAL:
            return bool(value <= asked)
        case Op.MORE:
            return bool(value > asked)
        case _:
            return bool(value >= asked)


# -- runs and queries --------------------------------------------------------------------------------------------------

NAMES = ("a", "b", "c d")
TEXTS = ("", "x", "X", "xy", "é", "zz", "10", "true", "-1", "𝄞", "￿")
NUMBERS = (0, 1, -1, 10, 1.5, -1.5, 1e10, 1e-7, 10.0, 2**62)
WORDS = ("order", "Order", "pay", "pa")
VALUES = st.sampled_from((*TEXTS, *NUMBERS, True, False, None))
ATTRIBUTES = st.none() | st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=3)
MOMENTS = st.integers(NOW_US - 110_000, NOW_US + 10_000)


@st.composite
def runs(draw: st.DrawFn) -> list[Run]:
    found: list[Run] = []
    for i in range(draw(st.integers(1, 25))):
        status = draw(st.sampled_from(("pending", "running", "success", "failed", "cancelled")))
        ended = status in ("success", "failed", "cancelled")
        active = not ended
        found.append(
            Run(
                ids.run_id(T0_MS + draw(st.integers(0, 100)), 0, i + 1),
                draw(st.sampled_from(WORDS)),
                draw(st.sampled_from(("1", "2"))),
                draw(st.none() | st.sampled_from(TEXTS[1:])),
                status,
                draw(MOMENTS) if ended else None,
                "run_failed" if status == "failed" else None,
                draw(st.none() | st.just("a reason")) if active else None,
                active and draw(st.booleans()),
                draw(st.none() | st.sampled_from(("timer", "signal"))) if active else None,
                draw(st.none() | st.integers(1, 3).map(lambda n: ids.run_id(T0_MS, 0, n))),
                draw(ATTRIBUTES),
            )
        )
    return found


ORDER = ("=", "!=", "<", "<=", ">", ">=")
RELATIVE = st.sampled_from(("-50ms", "-0.0501s", "now", "-1h")) | MOMENTS.map(lambda us: datetime_of(us).isoformat())


def quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def given_value(value: Any) -> str:
    return quoted(value) if isinstance(value, str) else json.dumps(value)


TERMS = st.one_of(
    st.tuples(
        st.sampled_from(NAMES),
        st.sampled_from((*ORDER, "prefix")),
        st.sampled_from((*TEXTS, *NUMBERS)),
    ).map(lambda t: f'attr."{t[0]}" {t[1]} {quoted(str(t[2])) if t[1] == "prefix" else given_value(t[2])}'),
    st.tuples(st.sampled_from(NAMES), st.sampled_from(("=", "!=")), st.booleans()).map(
        lambda t: f'attr."{t[0]}" {t[1]} {json.dumps(t[2])}'
    ),
    st.sampled_from(NAMES).map(lambda n: f'attr."{n}" exists'),
    st.tuples(st.sampled_from(NAMES), st.lists(st.sampled_from((*TEXTS, *NUMBERS)), min_size=1, max_size=3)).map(
        lambda t: f'attr."{t[0]}" in ({", ".join(map(given_value, t[1]))})'
    ),
    st.lists(st.sampled_from(("pending", "running", "success", "failed", "cancelled")), min_size=1, max_size=3).map(
        lambda s: f"status in ({', '.join(s)})"
    ),
    st.sampled_from(
        (
            "status = failed",
            "status != success",
            "stuck",
            "not stuck",
            "stuck = false",
            "finished exists",
            "paused",
            "paused != true",
        )
    ),
    st.tuples(
        st.sampled_from(("workflow", "version", "key", "error_code")), st.sampled_from((*ORDER, "prefix"))
    ).flatmap(
        lambda t: st.sampled_from((*WORDS, *TEXTS, "1", "run_failed")).map(lambda v: f"{t[0]} {t[1]} {quoted(v)}")
    ),
    st.sampled_from(("key exists", "error_code exists", "waiting_on exists", "waiting_on = timer", "parent exists")),
    st.tuples(st.sampled_from(("created", "finished")), st.sampled_from(ORDER), RELATIVE).map(" ".join),
    st.tuples(st.sampled_from(("id", "parent")), st.integers(0, 100), st.integers(1, 25)).map(
        lambda t: f"{t[0]} = {ids.text(ids.run_id(T0_MS + t[1], 0, t[2]))}"
    ),
    st.integers(0, 100).map(lambda ms: f"id prefix {ids.run_id(T0_MS + ms, 0, 1).hex()[:12]}"),
)
QUERIES = st.recursive(
    TERMS,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(("and", "or")), inner).map(lambda t: f"({t[0]}) {t[1]} ({t[2]})"),
        inner.map(lambda q: f"not ({q})"),
    ),
    max_leaves=6,
)

INSERT_ACTIVE = """
insert into perdure.run_queue (run_id, ns, workflow, version, key, status, created_at, wake_at, stuck, paused_at, paused_by, waiting_on, parent_id, attributes)
select r.run_id, 1, r.workflow, r.version, r.key, r.status, now(), 'infinity', r.stuck, case when r.paused then now() end, case when r.paused then 'ann' end, r.waiting_on, r.parent_id, nullif(r.attributes, 'null')
  from jsonb_to_recordset($1::text::jsonb) as r(run_id uuid, workflow text, version text, key text, status text, stuck text, paused boolean,
                                                waiting_on text, parent_id uuid, attributes jsonb) where r.status in ('pending', 'running')
"""
INSERT_ENDED = """
insert into perdure.run (run_id, ns, workflow, version, key, status, created_at, finished_at, epoch, events, error_code, parent_id, attributes)
select r.run_id, 1, r.workflow, r.version, r.key, r.status, now(), 'epoch'::timestamptz + r.finished_us * interval '1 microsecond', 1, 1,
       r.error_code, r.parent_id, nullif(r.attributes, 'null')
  from jsonb_to_recordset($1::text::jsonb) as r(run_id uuid, workflow text, version text, key text, status text, finished_us bigint,
                                                error_code text, parent_id uuid, attributes jsonb) where r.status not in ('pending', 'running')
"""


class Lists(NamedTuple):
    lists: PostgresRunLists
    c: Any

    async def fill(self, found: list[Run]) -> None:
        await self.c.execute("truncate perdure.run_queue, perdure.run")
        rows = json.dumps(
            [
                r._asdict()
                | {"run_id": r.id.hex(), "id": None, "parent": None, "parent_id": r.parent and r.parent.hex()}
                for r in found
            ]
        )
        await self.c.execute(INSERT_ACTIVE, rows)
        await self.c.execute(INSERT_ENDED, rows)

    async def pages(self, node: Node, limit: int) -> list[bytes]:
        found: list[bytes] = []
        below: bytes | None = None
        while True:
            page = await self.lists.runs(1, node, below, limit)
            found += [item.run_id for item in page.items]
            if page.next is None:
                return found
            below = page.next


@pytest.fixture
async def lists(dsn: str) -> AsyncIterator[Lists]:
    one = PostgresRunLists(dsn)
    await one.open()
    c = await asyncpg.connect(dsn)
    yield Lists(one, c)
    await c.close()
    await one.close()


async def test_sql_answers_what_the_query_means(lists: Lists) -> None:
    loop = asyncio.get_running_loop()

    @settings(max_examples=60)
    @given(runs(), st.lists(QUERIES, min_size=1, max_size=8), st.integers(1, 7))
    def check(found: list[Run], texts: list[str], limit: int) -> None:
        async def compare() -> None:
            await lists.fill(found)
            for text in texts:
                node = parse(text, NOW_US)
                expected = sorted((r.id for r in found if matches(node, r)), reverse=True)
                assert await lists.pages(node, limit) == expected, text

        asyncio.run_coroutine_threadsafe(compare(), loop).result()

    await asyncio.to_thread(check)


@settings(max_examples=100)
@given(runs(), QUERIES)
def test_what_is_known_of_the_matches_is_true_of_all_of_them(found: list[Run], text: str) -> None:
    node = parse(text, NOW_US)
    hints = hints_of(node)
    for run in found:
        if matches(node, run):
            assert run.status in hints.statuses, text
            assert hints.low <= run.id < hints.high, text
            assert hints.workflow in (None, run.workflow), text


async def test_a_rare_attribute_is_found_through_its_index(lists: Lists) -> None:
    """Beyond the rows that a page may look at."""
    await lists.c.execute(
        """insert into perdure.run (run_id, ns, workflow, version, status, created_at, finished_at, epoch, events, attributes)
           select (lpad(to_hex($1::bigint + i), 12, '0') || '70008' || lpad(to_hex(i), 15, '0'))::uuid, 1, 'w', '1', 'success', now(), now(), 1, 1,
                  jsonb_build_object('n', i) from generate_series(1, 12000) i""",
        T0_MS,
    )
    page = await lists.lists.runs(1, parse("attr.n in (3, 11000) and status = success", NOW_US), None, 10)
    assert [json.loads(item.attributes) for item in page.items] == [{"n": 11000}, {"n": 3}]
    assert page.next is None

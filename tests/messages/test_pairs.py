"""Every act on a run with every kind of message, through every door of the kind: the outcome is that of the table, in the same words."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any, Final

import asyncpg
import pytest

from perdure.core.message_life import FATES, Ending, Fate, InboxKind
from tests.fakes.failures import Failures
from tests.messages import pairs
from tests.messages.acts import INBOX, Acts, Cell, amount, parent, reader, step
from tests.messages.facts import Facts, late_child, waiter
from tests.messages.pair_doors import REFUSED, Doors
from tests.messages.pairs import DOORS, FACTS, TABLE, Act, Door, Fact, Kind
from tests.server.parity.stage import stage

AT_ONCE: Final = 8
CELL_S: Final = 60.0
"""One that hangs fails by itself."""
ENDINGS: Final = {
    Ending.SUCCESS: (Act.SUCCESS,),
    Ending.FAILED: (Act.FAILURE,),
    Ending.CANCELLED: (Act.CANCEL, Act.TERMINATE, Act.CANCELLED_CHILD, Act.TERMINATED_CHILD),
    Ending.CONTINUED: (Act.CONTINUE,),
}
SEEN: Final = {
    Fate.DECIDE_AGAIN: {pairs.DELIVERED},
    Fate.SET_ASIDE: {pairs.SET_ASIDE, pairs.FOUND_AGAIN},
    Fate.FORWARD: {pairs.DELIVERED, pairs.IN_EFFECT},
    Fate.DROP: {pairs.NO_EFFECT, pairs.FINISHED},
}
"""What a sender sees of a fate."""
RUN: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}")


def test_the_table_has_an_outcome_for_every_pair() -> None:
    for act in Act:
        assert TABLE[act].keys() == set(Kind), act.value
    assert {found for row in TABLE.values() for found in row.values()} == pairs.MEANINGS.keys()
    assert pairs.WHEN.keys() == set(Act)
    assert DOORS.keys() == set(Kind)


def test_the_table_agrees_with_the_life_of_a_message() -> None:
    for kind, inbox in INBOX.items():
        for ending, acts in ENDINGS.items():
            for act in acts:
                assert TABLE[act][kind] in SEEN[FATES[inbox][ending]], (act.value, kind.value)
    assert FATES.keys() - INBOX.values() == {InboxKind.CHILD, InboxKind.TASK}, "no door sends the others"


@pytest.mark.usefixtures("thorough")
@pytest.mark.parametrize("act", Act, ids=lambda act: act.name.lower())
async def test_an_act_has_the_same_outcome_at_every_door(act: Act, dsn: str, tmp_path: Path) -> None:
    cells = [(kind, door) for kind in Kind for door in pairs.doors(act, kind)]
    done: dict[tuple[Kind, Door], Cell] = {}
    with Failures() as failures:
        async with stage(dsn) as one, asyncpg.create_pool(dsn, min_size=1, max_size=10) as pool:
            for definition in (reader, parent, step, amount):
                one.perdure.serve(definition)
            await one.perdure.engine.refresh()
            doors = Doors(one, pool, tmp_path)
            acts, places = Acts(one, doors, pool), asyncio.Semaphore(AT_ONCE)

            async def check(kind: Kind, door: Door) -> None:
                async with places, asyncio.timeout(CELL_S):
                    cell, found = await acts.perform(act, kind, door)
                    wanted = pairs.outcome(act, kind, door)
                    if cell.sent.refused == REFUSED:  # a door without codes: the texts are compared below
                        found = wanted if wanted.startswith(REFUSED) else f"{REFUSED}: {cell.sent.text}"
                    assert found == wanted, cell.sent
                    done[kind, door] = cell

            results = await asyncio.gather(*(check(*cell) for cell in cells), return_exceptions=True)
        for (kind, door), result in zip(cells, results, strict=True):
            with failures.of(f"{kind.value} through {door.value}"):
                if isinstance(result, BaseException):
                    raise result
        _compare_words(done, failures)


@pytest.mark.usefixtures("thorough")
async def test_a_fact_has_the_outcome_of_the_table(dsn: str, tmp_path: Path) -> None:
    cells = [(act, fact) for act, row in FACTS.items() for fact in row]
    with Failures() as failures:
        async with stage(dsn) as one, asyncpg.create_pool(dsn, min_size=1, max_size=10) as pool:
            for definition in (waiter, late_child, step):
                one.perdure.serve(definition)
            await one.perdure.engine.refresh()
            facts, places = Facts(one, Doors(one, pool, tmp_path), pool), asyncio.Semaphore(AT_ONCE)

            async def find(act: Act, fact: Fact) -> str:
                async with places, asyncio.timeout(CELL_S):
                    return await facts.arrive(act, fact)

            results = await asyncio.gather(*(find(*cell) for cell in cells), return_exceptions=True)
        for (act, fact), result in zip(cells, results, strict=True):
            with failures.of(f"{act.value}: {fact.value}"):
                if isinstance(result, BaseException):
                    raise result
                assert result == FACTS[act][fact]


def _compare_words(done: dict[tuple[Kind, Door], Cell], failures: Any) -> None:
    """A refusal says the same at every door; the command line and SQL say more."""
    first: dict[Kind, str] = {}
    for door in Door:
        for kind in Kind:
            if (kind, door) in done and done[kind, door].sent.refused:
                with failures.of(f"words of {kind.value} through {door.value}"):
                    text = RUN.sub("RUN", done[kind, door].sent.text)
                    assert text
                    assert first.setdefault(kind, text) in text

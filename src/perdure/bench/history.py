"""How long it takes to take up a run with a long history: read its rows, decode them, and decide it anew from the first event."""

from __future__ import annotations

import time
from typing import Any, Final

import msgspec

from perdure.app.embedded import Perdure
from perdure.core import chain
from perdure.core import commands as cm
from perdure.core import events as ev
from perdure.engine.commits.rows import AppendRow, Batch, StartRow
from perdure.flows.compile import compile_value, version_of
from perdure.flows.decide.decider import Decider
from perdure.wire.codec import decode_row, encode_events

EVENTS: Final = 50_000
EVENTS_PER_ROW: Final = 4
"""As a run that makes one step per commit leaves them."""
ROWS_PER_COMMIT: Final = 1_000
STEP_US: Final = 1_000
COUNTER: Final[dict[str, Any]] = {
    "flow": "perdure.bench.counter",
    "max_steps": 50_000,
    "state": {"n": 0},
    "graph": {
        "start": "step",
        "nodes": {
            "step": {"python": "perdure.bench.noop", "with": {"n": "${ shared.n }"}, "set": {"n": "${ shared.n + 1 }"}}
        },
        "edges": [{"from": "step", "to": "step"}],
    },
}
"""A graph that goes round for ever: three events per step."""


class Load(msgspec.Struct, frozen=True):
    events: int
    rows: int
    read_ms: float
    decode_ms: float
    decide_ms: float
    total_ms: float


async def measure_load(client: Perdure, events: int = EVENTS) -> Load:
    run_id = client.engine.new_run_id()
    flow = compile_value(COUNTER, name=COUNTER["flow"]).flow
    history = _history(Decider(flow, run_id), events)
    await _write(client, run_id, history)
    began = time.perf_counter()
    loaded = (await client.store.load([run_id])).history[run_id]
    read = time.perf_counter()
    records = [r for row in loaded for r in decode_row(row.seq, row.at_us, row.body)]
    decoded = time.perf_counter()
    commands = Decider(flow, run_id).activate(records, replay=True)
    decided = time.perf_counter()
    assert len(records) == events and not commands
    return Load(
        events=events,
        rows=len(loaded),
        read_ms=_ms(read - began),
        decode_ms=_ms(decoded - read),
        decide_ms=_ms(decided - decoded),
        total_ms=_ms(decided - began),
    )


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 1)


def _history(decider: Decider, events: int) -> list[ev.Event]:
    """What such a run would have written, up to exactly so many events."""
    out: list[ev.Event] = [ev.RunStarted(COUNTER["flow"], version_of(COUNTER), b"{}")]
    fact: ev.Event = out[0]
    while True:
        for c in decider.activate([ev.Recorded(len(out), len(out) * STEP_US, fact)], replay=len(out) == 1):
            out.append(_recorded(c))
        if len(out) >= events:
            return out[:events]
        last = next(e for e in reversed(out) if isinstance(e, ev.TasksScheduled))
        fact = ev.TasksSucceeded([last.first], [b"0"])
        out.append(fact)


def _recorded(c: cm.Command) -> ev.Event:
    if isinstance(c, cm.ScheduleTasks):
        return ev.TasksScheduled(c.first, c.name, c.queue, c.inputs, c.options, c.nodes, c.index)
    assert isinstance(c, cm.SetState)
    return ev.StateSet(c.name, c.value)


async def _write(client: Perdure, run_id: bytes, history: list[ev.Event]) -> None:
    """Written through the engine's store, under a separate session."""
    ns, store = client.engine.ns, client.store
    session = (await store.register("bench", 60.0, 0)).id
    batch = Batch()
    body = encode_events(history[:1])
    head = chain.first(run_id, ns, 1, body)
    batch.starts.append(
        StartRow(
            run_id=run_id,
            ns=ns,
            workflow=COUNTER["flow"],
            version=version_of(COUNTER),
            kind="flow",
            key=None,
            input_hash=b"",
            parent_id=None,
            parent_seq=None,
            own=True,
            body=body,
            attributes=None,
            group_id=None,
            deadline_at=None,
            hash=head,
            pin="",
        )
    )
    at, number = 1, 1
    while at < len(history):
        part = history[at : at + EVENTS_PER_ROW]
        # No chain: this database is never verified.
        batch.appends.append(AppendRow(run_id, at + 1, at + len(part), ns, 1, encode_events(part), head))
        at += len(part)
        if len(batch.appends) >= ROWS_PER_COMMIT or at >= len(history):
            await store.commit(session, number, batch)
            number, batch = number + 1, Batch()

"""The timeline of a run."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

import msgspec

from perdure.core import events as ev
from perdure.core import ids
from perdure.core.api import timeline as acts
from perdure.core.api.timeline import BINS_MAX, GetTimeline, Timeline, TimelineNode
from perdure.core.errors import PerdureError
from perdure.core.lifecycle import TASK_TERMINAL, TaskStatus
from perdure.core.payloads import NeedPayload
from perdure.core.run_retry import effective
from perdure.core.timeline.nodes import lanes, outlined, tally_lanes, timeline
from perdure.core.timeline.rows import SMALL_EVENTS, NodeOutline, TimelineRows
from perdure.core.timeline.steps import (
    Place,
    RunStep,
    causes,
    history_steps,
    node_name,
    scheduled_counts,
    task_steps,
    unwritten_tasks,
    with_causes,
)
from perdure.engine.api.api import NamespaceApi, handles
from perdure.engine.api.definitions import REPLAY_S_MAX, compiled_flow
from perdure.engine.runs.turns import within
from perdure.flows.decide.decider import DecisionTooLarge
from perdure.flows.decide.progress import FlowPlaces, places_of
from perdure.flows.drawing.chart import chart_of
from perdure.flows.drawing.outline import outline_of
from perdure.flows.model import Flow

log = logging.getLogger("perdure.server")

BINS_MIN: Final = 4
_replaying: Final = asyncio.Semaphore(1)
"""Replays for readers happen one at a time."""


@handles(acts.GET)
async def get_timeline(api: NamespaceApi, r: GetTimeline) -> Timeline:
    run_id = await api.run_id(r.run)
    rows = await api.ports.reads.timeline(api.ns, run_id)
    if rows is None:
        raise ids.no_run(run_id)
    item = rows.item
    flow = await compiled_flow(api, item.workflow, item.version)
    places = await _places(rows, flow) if flow is not None else None
    bins = min(max(r.bins, BINS_MIN), BINS_MAX)
    found = (
        await asyncio.to_thread(_folded, rows, flow, places, bins)
        if _is_long(rows)
        else _folded(rows, flow, places, bins)
    )
    if item.finished_us is not None or all(n.status in TASK_TERMINAL for n in found.nodes):
        return found
    expected = await api.ports.reads.expected_us(api.ns, item.workflow, run_id)
    nodes = [msgspec.structs.replace(n, expected_us=expected.get(n.node)) for n in found.nodes]
    return msgspec.structs.replace(found, nodes=nodes)


def _is_long(rows: TimelineRows) -> bool:
    """Worth a thread of its own."""
    return rows.tallies is not None or len(rows.tasks) > 200 or len(rows.history or ()) > 200


async def _places(rows: TimelineRows, flow: Flow) -> FlowPlaces | None:
    """None where the run is too long to be replayed for a reader."""
    history = rows.history
    if history is None or rows.tallies is not None or len(history) > SMALL_EVENTS:
        return None
    try:
        async with _replaying:
            return await asyncio.to_thread(places_of, flow, rows.item.run_id, history, within(REPLAY_S_MAX))
    except (PerdureError, NeedPayload, DecisionTooLarge) as error:  # the timeline is useful without
        log.warning("cannot replay run %s for its timeline: %s", ids.text(rows.item.run_id), error)
        return None


def _folded(rows: TimelineRows, flow: Flow | None, places: FlowPlaces | None, bins: int) -> Timeline:
    seen = effective(rows.history) if rows.history is not None else []
    outline = outline_of(chart_of(flow.body)) if flow is not None else []
    labels = None if flow is None else places.labels if places is not None else _guessed(seen, outline)
    waits = history_steps(seen, rows.now_us, labels)
    if places is not None:
        waits += _signals(places, seen, rows)
    if rows.tallies is None:
        steps = _task_steps(rows, seen, is_code=flow is None)
        found = lanes(sorted([*steps, *waits], key=lambda s: s.since_us), bins)
    else:
        steps = []
        found = [*tally_lanes(rows, scheduled_counts(seen), bins), *lanes(waits, bins)]
        found.sort(key=lambda n: n.first_us or 0)
    if flow is not None:
        statuses = places.statuses if places is not None else {}
        found = outlined(found, outline, statuses, rows.item.finished_us is not None)
    return timeline(rows, found, [*_work(steps), *_lane_work(found)])


def _task_steps(rows: TimelineRows, seen: list[ev.Recorded], *, is_code: bool) -> list[RunStep]:
    known = {t.seq for t in rows.tasks}
    missing = [] if rows.item.finished_us is not None else unwritten_tasks(rows.item, seen, known)
    steps = task_steps([*rows.tasks, *missing], rows.attempts, rows.now_us)
    return with_causes(steps, causes(seen)) if is_code else steps


def _guessed(history: Sequence[ev.Recorded], outline: Sequence[NodeOutline]) -> dict[Place, str]:
    """Without a replay: the only node that can have asked for it."""
    sleeps = [o.path for o in outline if o.kind == "timer"]
    found: dict[Place, str] = {}
    for r in history:
        e = r.event
        if isinstance(e, ev.TimerStarted) and len(sleeps) == 1:
            found["timer", e.seq] = sleeps[0]
        elif isinstance(e, ev.ChildStarted):
            calls = [o.path for o in outline if o.kind == "child" and (o.detail or o.path) == e.workflow]
            if len(calls) == 1:
                found["child", e.seq] = calls[0]
        elif isinstance(e, ev.PromiseCreated):
            kind = "approval" if e.kind == ev.PromiseKind.APPROVAL else "promise"
            asking = [o.path for o in outline if o.kind == kind]
            if len(asking) == 1:
                found["promise", e.name] = asking[0]
    return found


def _signals(places: FlowPlaces, history: Sequence[ev.Recorded], rows: TimelineRows) -> list[RunStep]:
    """Waits of nodes for signals, until the first of the name that came after."""
    came = [(r.at_us, r.event.name) for r in history if isinstance(r.event, ev.SignalReceived)]
    end_us = rows.item.finished_us
    found: list[RunStep] = []
    for seq, wait in enumerate(places.signals):
        at = next((at for at, name in came if name == wait.signal and at >= wait.since_us), None)
        status = (
            TaskStatus.SUCCESS if at is not None else TaskStatus.RUNNING if end_us is None else TaskStatus.CANCELLED
        )
        end = at if at is not None else end_us
        found.append(
            RunStep(
                node=node_name(wait.label),
                kind="signal",
                seq=seq,
                status=status,
                since_us=wait.since_us,
                started_us=wait.since_us,
                finished_us=end,
                segments=[
                    acts.Segment("waiting", wait.since_us, max(end if end is not None else rows.now_us, wait.since_us))
                ],
            )
        )
    return found


def _work(steps: Sequence[RunStep]) -> list[tuple[int, int]]:
    return [(start, end) for s in steps for start, end, _ in s.work()]


def _lane_work(found: Sequence[TimelineNode]) -> list[tuple[int, int]]:
    """Times in which lanes that know no single attempts were at work."""
    spans: list[tuple[int, int]] = []
    for n in found:
        if n.bins is not None:
            at = n.bins.from_us
            for running in n.bins.running:
                if running:
                    spans.append((at, at + n.bins.bin_us))
                at += n.bins.bin_us
        elif n.kind in ("task", "child"):
            spans += [(s.from_us, s.to_us) for s in n.segments if s.kind not in ("queued", "backoff", "waiting")]
    return spans

"""Golden histories: every recorded history must decode and replay with today's code. Files are added, never edited."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from perdure import replay, task, wf, workflow
from perdure.core import commands as cm
from perdure.core import events as ev
from perdure.core import ids
from perdure.core.declared import Declared
from perdure.core.retry import TaskOptions
from perdure.core.run_retry import ENDED_BY_ENGINE, effective
from perdure.errors import InvalidInput, NondeterminismError
from perdure.flows.compile import compile_value
from perdure.flows.decide.decider import Decider
from perdure.testing.replayer import replay_one
from perdure.wire.codec import decode_events, encode_events, history_from_json, history_to_json
from tests.replay.workflows import ALL, Order, price

HISTORIES = sorted((Path(__file__).parent / "histories").glob("*.json"))
FLOW_HISTORIES = sorted((Path(__file__).parent / "flow_histories").glob("*.json"))
"""With the document that decided them beside the history."""
DECLARED = Declared(options=TaskOptions(max_attempts=1), said=("max_attempts",))
"""Of the recorder's tasks: `retry=1`. A decider reads declarations of tasks only where nothing is recorded yet."""


def text_of(path: Path) -> bytes:
    data = path.read_bytes()
    return msgspec.json.encode(msgspec.json.decode(data)["history"]) if path in FLOW_HISTORIES else data


def load(path: Path) -> tuple[str, list[ev.Recorded]]:
    return history_from_json(text_of(path))


def commits(history: list[ev.Recorded]) -> list[int]:
    """How many events were there after each commit but the last. Events of one commit have one time."""
    return [i for i in range(1, len(history)) if history[i - 1].at_us != history[i].at_us]


@pytest.mark.parametrize("path", HISTORIES, ids=lambda p: p.stem)
def test_a_recorded_history_replays_to_the_same_commands(path: Path) -> None:
    run_id, history = load(path)
    started = history[0].event
    assert isinstance(started, ev.RunStarted)
    replay_one(ALL[started.workflow], ids.parse(run_id), history, where=path.name)


@pytest.mark.parametrize("path", HISTORIES, ids=lambda p: p.stem)
def test_every_prefix_of_a_history_replays_without_complaint(path: Path) -> None:
    """A crash may have happened after any commit, so the code must accept its history up to there."""
    run_id, history = load(path)
    started = history[0].event
    assert isinstance(started, ev.RunStarted)
    for end in commits(history):
        replay_one(ALL[started.workflow], ids.parse(run_id), history[:end], where=f"{path.name} up to {end}")


@pytest.mark.parametrize("path", [*HISTORIES, *FLOW_HISTORIES], ids=lambda p: p.stem)
def test_json_and_binary_forms_of_a_history_are_equal(path: Path) -> None:
    run_id, history = load(path)
    assert history_from_json(history_to_json(run_id, history)) == (run_id, history)
    assert _is_extended(msgspec.json.decode(text_of(path)), msgspec.json.decode(history_to_json(run_id, history)))
    events = [r.event for r in history]
    assert decode_events(encode_events(events)) == events


def decided(path: Path, history: list[ev.Recorded]) -> list[cm.Command]:
    """What a decider that has never seen the run asks for, given this much of its history. Raises where they disagree."""
    kept = msgspec.json.decode(path.read_bytes())
    started = history[0].event
    assert isinstance(started, ev.RunStarted)
    flow = compile_value(kept["document"], name=started.workflow).flow
    decider = Decider(flow, ids.parse(kept["history"]["run_id"]), lambda task: DECLARED)
    return decider.activate(effective(history), replay=True)


def _started(what: object) -> Any:
    """What a command starts or an event says was started, in one form; None for all others."""
    match what:
        case cm.ScheduleTasks() | ev.TasksScheduled():
            return ("task", what.first, what.name, what.queue, what.inputs, what.options, what.nodes, what.index)
        case cm.SkipTasks() | ev.TasksSkipped():
            return ("skip", what.first, what.nodes, what.reason)
        case cm.StartTimer() | ev.TimerStarted():
            return ("timer", what.seq, what.fire_at_us)
        case cm.StartChild() | ev.ChildStarted():
            return ("child", what.seq, what.workflow, what.input)
        case cm.CreatePromise() | ev.PromiseCreated():
            return ("promise", what.seq, what.name)
        case cm.SetState() | ev.StateSet():
            return ("state", what.name, what.value)
        case _:
            return None


ENDS: dict[type, type] = {
    ev.RunSucceeded: cm.CompleteRun,
    ev.RunFailed: cm.FailRun,
    ev.RunCancelled: cm.CancelRun,
}


@pytest.mark.parametrize("path", FLOW_HISTORIES, ids=lambda p: p.stem)
def test_the_whole_history_of_a_flow_brings_nothing_new(path: Path) -> None:
    """But the end of the run, which is the same."""
    history = load(path)[1]
    commands = decided(path, history)
    end = history[-1].event
    if not isinstance(end, ev.TERMINAL):
        assert commands == []
        return
    (closing,) = commands
    assert type(closing) is ENDS[type(end)]
    match closing, end:
        case cm.CompleteRun(), ev.RunSucceeded():
            assert closing.result == end.result
        case cm.FailRun(), ev.RunFailed():
            assert (closing.failure, closing.cause) == (end.failure, end.cause)
        case cm.CancelRun(), ev.RunCancelled():
            assert closing.reason == end.reason
        case _:
            raise AssertionError(closing)


@pytest.mark.parametrize("path", FLOW_HISTORIES, ids=lambda p: p.stem)
def test_a_decider_rebuilt_after_any_commit_asks_for_what_was_recorded_next(path: Path) -> None:
    history = load(path)[1]
    asked = 0
    for end in commits(history):
        wanted = [s for c in decided(path, history[:end]) if (s := _started(c)) is not None]
        followed = [s for r in history[end:] if (s := _started(r.event)) is not None]
        assert wanted == followed[: len(wanted)], f"after {end} events"
        asked += len(wanted)
    assert asked, "a decider that asks for nothing would pass"


def test_flow_histories_were_retried_and_timed_out() -> None:
    """What the tests above would not miss if it were gone."""
    ends = [r.event for path in FLOW_HISTORIES for r in load(path)[1] if isinstance(r.event, ev.RunFailed)]
    assert {e.failure.code for e in ends} & ENDED_BY_ENGINE
    retries = [r.event for path in FLOW_HISTORIES for r in load(path)[1] if isinstance(r.event, ev.RunRetried)]
    assert len(retries) >= 3 and any(r.retried_children for r in retries)
    assert all(r.cut == 0 for r in retries)


def test_a_changed_document_disagrees_with_the_history(tmp_path: Path) -> None:
    (path,) = (p for p in FLOW_HISTORIES if p.stem == "dag-1")
    kept = msgspec.json.decode(path.read_bytes())
    kept["document"]["tasks"]["big"]["with"]["name"] = "bigger"
    changed = tmp_path / "changed.json"
    changed.write_bytes(msgspec.json.encode(kept))
    with pytest.raises(NondeterminismError, match=r"(?s)expected.*actual"):
        decided(changed, load(path)[1])


def test_there_is_a_golden_history_for_every_event_type() -> None:
    seen = {type(r.event) for path in (*HISTORIES, *FLOW_HISTORIES) for r in load(path)[1]}
    missing = {t.__name__ for t in ev.EVENT_TYPES} - {t.__name__ for t in seen}
    assert not missing, f"record a history with {missing} (python -m tests.replay.record)"


def test_the_binary_form_of_every_event_type_never_changes_but_by_growing() -> None:
    """Lines of type and hex; a type that has grown since has several. Any other change makes old databases unreadable."""
    golden = [line.split() for line in (Path(__file__).parent / "binary.txt").read_text().splitlines()]
    assert {name for name, _ in golden} == {t.__name__ for t in ev.EVENT_TYPES}
    for name, text in golden:
        (event,) = decode_events(bytes.fromhex(text))
        assert type(event).__name__ == name
        (old,), (new,) = (msgspec.msgpack.decode(data[1:]) for data in (bytes.fromhex(text), encode_events([event])))
        assert _has_grown_from(old, new)
        assert len(new) == len(old) or any(
            encode_events(decode_events(bytes.fromhex(t))).hex() == t for n, t in golden if n == name
        )


def _has_grown_from(old: object, new: object) -> bool:
    """Structs are arrays, within each other too: what was there is there, in its place; more may follow."""
    if isinstance(old, list) and isinstance(new, list):
        return len(new) >= len(old) and all(map(_has_grown_from, old, new))
    return old == new


def _is_extended(old: object, new: object) -> bool:
    """Everything that was there is there still."""
    match old, new:
        case dict(), dict():
            return all(key in new and _is_extended(value, new[key]) for key, value in old.items())
        case list(), list():
            return len(old) == len(new) and all(map(_is_extended, old, new))
        case _:
            return old == new


async def test_replay_takes_a_glob_and_says_how_many() -> None:
    assert await replay(ALL["messaged"], histories=str(Path(__file__).parent / "histories" / "messaged-*.json")) == 2


async def test_replay_without_any_history_is_an_error() -> None:
    with pytest.raises(InvalidInput, match="no history matches"):
        await replay(ALL["leaf"], histories="nowhere/*.json")


async def test_replay_shows_expected_and_actual_when_the_code_has_changed() -> None:
    @task(name="other_price")
    async def other_price(order: Order) -> float:
        return 1.0

    @workflow(name="chained")
    async def changed(order: Order) -> float:
        return await other_price(order)

    with pytest.raises(NondeterminismError, match=r"(?s)task 0.*expected.*'price'.*actual.*'other_price'"):
        await replay(changed, histories=str(Path(__file__).parent / "histories" / "chained-1.json"))


async def test_replay_notices_that_the_code_stops_earlier_than_the_history() -> None:
    @workflow(name="chained")
    async def shorter(order: Order) -> float:
        return await price(order)

    with pytest.raises(NondeterminismError, match=r"(?s)expected.*TasksScheduled.*actual.*ended with CompleteRun"):
        await replay(shorter, histories=str(Path(__file__).parent / "histories" / "chained-1.json"))


async def test_a_patched_change_replays_old_histories_on_the_old_path() -> None:
    @workflow(name="chained")
    async def patched(order: Order) -> float:
        if wf.patched("sleep first"):
            await wf.sleep("1h")
        result: float = await ALL["chained"].fn(order)
        return result

    assert await replay(patched, histories=str(Path(__file__).parent / "histories" / "chained-1.json")) == 1

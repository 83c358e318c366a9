"""Golden histories: whatever was ever recorded must decode and replay with today's code. Files are added, never edited."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from perdure import InvalidInput, NondeterminismError, replay, task, wf, workflow
from perdure.core import events as ev
from perdure.core import ids
from perdure.testing.replayer import replay_one
from perdure.wire.codec import decode_events, encode_events, history_from_json, history_to_json
from tests.replay.workflows import ALL, Order, price

HISTORIES = sorted((Path(__file__).parent / "histories").glob("*.json"))


def load(path: Path) -> tuple[str, list[ev.Recorded]]:
    return history_from_json(path.read_bytes())


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
    ends = {i for i in range(1, len(history)) if history[i - 1].at_us != history[i].at_us}
    for end in sorted(ends):
        replay_one(ALL[started.workflow], ids.parse(run_id), history[:end], where=f"{path.name} up to {end}")


@pytest.mark.parametrize("path", HISTORIES, ids=lambda p: p.stem)
def test_json_and_binary_forms_of_a_history_are_equal(path: Path) -> None:
    run_id, history = load(path)
    assert history_from_json(history_to_json(run_id, history)) == (run_id, history)
    assert _is_extended(msgspec.json.decode(path.read_bytes()), msgspec.json.decode(history_to_json(run_id, history)))
    events = [r.event for r in history]
    assert decode_events(encode_events(events)) == events


def test_there_is_a_golden_history_for_every_event_type() -> None:
    seen = {type(r.event) for path in HISTORIES for r in load(path)[1]}
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
        assert new[: len(old)] == old
        assert len(new) == len(old) or any(
            encode_events(decode_events(bytes.fromhex(t))).hex() == t for n, t in golden if n == name
        )


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

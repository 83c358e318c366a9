"""Updates without a database: handlers inside a run, their replay, the journal's matching, and those who wait for answers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from perdure import EngineSettings, Signal, State, Update, task, wf, workflow
from perdure.core import commands as cm
from perdure.core import events as ev
from perdure.core import ids
from perdure.core.api import messages
from perdure.core.api.messages import AskUpdate, UpdateReply
from perdure.core.errors import Conflict, Failure, NotFound, UpdateFailed, update_error
from perdure.core.journal import Journal
from perdure.core.limits import WAITING_NAMES_MAX
from perdure.core.messages import UpdateMessage
from perdure.core.run_retry import effective, plan
from perdure.core.runstate import RunState
from perdure.core.waits import MessageWaits
from perdure.core.work import Decided, UpdateAnswer
from perdure.engine.api import messages as handlers
from perdure.engine.api.api import EMBEDDED, Caller, NamespaceApi
from perdure.engine.services.updates import Place, SettledUpdate, Updates, UpdateSent
from perdure.errors import InvalidInput, PerdureError, RunFinished, UpdateRejected
from perdure.sdk.workflow import guards
from perdure.sdk.workflow.instance import WorkflowInstance
from perdure.sdk.workflow.messages import update_names
from perdure.wire import acts, protocol
from perdure.wire.parts import decision_parts
from tests.fakes.waiting import forever, turns, until
from tests.fakes.workflow_world import RUN_ID, World, assert_replays, keep_private

NEXT_ID = ids.run_id(1_700_000_001_000, 0, 8)


@pytest.fixture(autouse=True, scope="module")
def guarded() -> Iterator[None]:
    """As in a worker."""
    guards.install()
    yield
    guards.uninstall()


rename = Update("rename", str, str)
add = Update("add", int, int)
done = Signal("done", bool)
total = State("total", 0)


@task(name="unit_updates_double")
def double(n: int) -> int:
    return 2 * n


@workflow(name="unit_updates_counter")
async def counter() -> int:
    async def plus(n: int) -> int:
        more = await double(n)
        total.set(total.get() + more)
        return total.get()

    def small(n: int) -> None:
        if n > 100:
            raise UpdateRejected(f"{n} is too much")

    await wf.sleep("1s")
    add.handle(plus, validate=small)
    await done.next()
    return total.get()


@workflow(name="unit_updates_pull")
async def pull(limit: int) -> list[str]:
    seen: list[str] = []
    async for request in rename:
        if request.value.startswith("no"):
            request.reject("it begins with no")
        else:
            request.reply(request.value.upper())
            request.reply("again")  # the first answer stands
        seen.append(request.value)
        if len(seen) == limit:
            break
    return seen


def asked(id: str, name: str, value: bytes) -> ev.UpdateReceived:
    return ev.UpdateReceived(id, name, value)


def answers(world: World) -> dict[str, Any]:
    found = {r.event.id: r.event for r in world.history if isinstance(r.event, ev.UpdateAnswered)}
    return {id: e.value if e.failure is None else (e.failure.code, e.failure.message) for id, e in found.items()}


# -- inside a run ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [None, *range(8)])
def test_handlers_await_steps_and_replay_to_the_same_answers(seed: int | None) -> None:
    world = World(counter)
    world.script = [
        asked("a", "add", b"1"),
        asked("b", "add", b"200"),
        asked("c", "add", b'"three"'),
        asked("d", "add", b"4"),
        asked("e", "rename", b'"x"'),
    ]
    world.run(seed)
    assert len(answers(world)) == 4
    world.script.append(ev.SignalReceived("done", b"true"))
    world.run(seed)
    assert world.result == 10
    said = answers(world)
    assert {said["a"], said["d"]} in ({b"2", b"10"}, {b"8", b"10"})
    assert said["b"] == ("update_rejected", "200 is too much")
    assert said["c"][0] == "update_rejected"
    assert "e" not in said, "nobody handles it, and the engine answers it when the run ends"
    assert_replays(world)


def test_an_update_that_the_program_does_not_define_is_refused_at_once_and_in_every_replay() -> None:
    world = World(counter)
    world.script = [asked("a", "renmae", b"1"), asked("b", "add", b"1")]
    world.run()
    refusal = "the code of this run has no update 'renmae'; did you mean 'rename'?"
    assert answers(world) == {"a": ("update_rejected", refusal), "b": b"2"}
    world.script.append(ev.SignalReceived("done", b"true"))
    world.run()
    assert_replays(world)
    Update("renmae", int, int)  # a later version of the program has it
    try:
        runtime = WorkflowInstance(world.run_id, world.workflow)
        assert runtime.activate(world.history, replay=True).stuck is None
        runtime.evict()
    finally:
        update_names.discard("renmae")


def test_updates_are_taken_one_by_one_and_answered_once() -> None:
    world = World(pull, 3)
    world.script = [
        asked("1", "rename", b'"x"'),
        asked("2", "rename", b'"no"'),
        asked("bad", "rename", b"5"),
        asked("3", "rename", b'"y"'),
    ]
    world.run()
    assert world.result == ["x", "no", "y"]
    assert answers(world) == {
        "1": b'"X"',
        "2": ("update_rejected", "it begins with no"),
        "bad": answers(world)["bad"],
        "3": b'"Y"',
    }
    assert answers(world)["bad"][0] == "update_rejected"
    assert_replays(world)


@workflow(name="unit_updates_raises")
async def raises() -> None:
    def bad(n: int) -> int:
        return 1 // n

    def forbidden(text: str) -> str:
        wf.continue_as_new()
        return text

    add.handle(bad)
    rename.handle(forbidden)
    await done.next()


def test_what_a_handler_raises_is_the_answer_and_the_run_goes_on() -> None:
    world = World(raises)
    world.script = [
        asked("1", "add", b"0"),
        asked("2", "rename", b'"x"'),
        asked("3", "add", b"1"),
        ev.SignalReceived("done", b"true"),
    ]
    world.run()
    said = answers(world)
    assert said["1"][0] == "update_failed"
    assert "division" in said["1"][1]
    assert said["2"][0] == "workflow_rule_broken"
    assert said["3"] == b"1"
    assert world.closing == cm.CompleteRun(b"null")
    assert_replays(world)


@workflow(name="unit_updates_continues")
async def continues() -> None:
    async def slow(n: int) -> int:
        await forever()

    add.handle(slow)
    await done.next()
    wf.continue_as_new()


def test_a_run_that_continues_answers_what_it_began_and_nothing_else() -> None:
    world = World(continues)
    world.deliver()
    world.add(asked("begun", "add", b"1")).add(asked("waits", "rename", b'"x"')).add(ev.SignalReceived("done", b"true"))
    world.deliver()
    assert set(answers(world)) == {"begun"}
    assert answers(world)["begun"][0] == "run_finished"
    assert list(world.state.updates) == ["waits"]
    assert isinstance(world.closing, cm.ContinueAsNew)


def test_a_validator_that_awaits_is_refused_where_it_is_given() -> None:
    async def validator(n: int) -> None: ...

    with pytest.raises(InvalidInput, match="a validator cannot await"):
        add.handle(lambda n: n, validate=validator)
    with pytest.raises(PerdureError, match="works inside a workflow only"):
        add.handle(lambda n: n)


# -- what the code says it waits for -----------------------------------------------------------------------------------


@workflow(name="unit_updates_waits")
async def waits() -> str:
    with pytest.raises(TimeoutError):
        await done.next(timeout="1m")
    first = asyncio.ensure_future(Signal("left", str).next())
    second = asyncio.ensure_future(rename.next())
    await asyncio.wait([first, second], return_when=asyncio.FIRST_COMPLETED)
    second.cancel()
    return await Signal("right", str).next()


def test_a_completion_names_what_the_code_waits_for() -> None:
    world = World(waits)
    assert world.deliver().waiting == ["signal:done"]
    world.add(ev.TimerFired(0))
    assert world.deliver().waiting == ["signal:left", "update:rename"]
    world.add(ev.SignalReceived("left", b'"x"'))
    assert world.deliver().waiting == ["signal:right"], "whoever gave up waits no more"
    assert world.runtime.run.signals.waits.waiting_names() == ["right"]
    world.add(ev.SignalReceived("right", b'"y"'))
    assert world.deliver().waiting == []
    assert world.result == "y"


@workflow(name="unit_updates_many")
async def many(n: int) -> None:
    await asyncio.gather(*(Signal(f"s{i}", int).next() for i in range(n)))


def test_the_list_of_what_is_waited_for_is_bounded() -> None:
    assert len(World(many, 3 * WAITING_NAMES_MAX).deliver().waiting) == WAITING_NAMES_MAX


@workflow(name="unit_updates_steps")
async def steps(n: int) -> int:
    return sum([await double(i) for i in range(n)])


def test_a_run_that_waits_for_no_message_pays_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(self: Any, is_done: Any) -> None:
        raise AssertionError("looked")

    monkeypatch.setattr(MessageWaits, "forget_if", never)
    world = World(steps, 3)
    world.run()
    assert world.result == 6
    assert world.stuck is None


def test_what_is_waited_for_travels_with_a_decision() -> None:
    plain, waiting = Decided(RUN_ID, []), Decided(RUN_ID, [], waiting=["signal:a", "update:b"])
    up = protocol.decode_up(protocol.encode_up(protocol.Up(decisions=[(1, plain, False), (2, waiting, False)])))
    assert [d.waiting for _, d, _ in up.decisions] == [[], ["signal:a", "update:b"]]
    commands: list[cm.Command] = [cm.SetState("s", b"x" * 400_000)] * 5
    parts = list(decision_parts(3, Decided(RUN_ID, commands, waiting=["signal:a"])))
    assert len(parts) > 1
    assert parts[-1][1].waiting == ["signal:a"]


# -- the journal -------------------------------------------------------------------------------------------------------

REFUSED = Failure("update_rejected", "no")


def loaded(*events: ev.Event) -> Journal:
    journal = Journal()
    journal.load([ev.Recorded(i + 1, 0, e) for i, e in enumerate(events)])
    return journal


def test_an_answer_is_matched_by_id_in_any_order() -> None:
    journal = loaded(ev.UpdateAnswered("a", b"1"), ev.UpdateAnswered("b", b"", REFUSED))
    journal.answer_update("b", b"", Failure("update_failed", "another word for it"))
    assert journal.is_replaying
    journal.answer_update("a", b"2", None)
    assert not journal.is_replaying
    journal.answer_update("c", b"3", None)
    assert journal.take_commands() == [cm.AnswerUpdate("c", b"3", None)]
    assert journal.mismatch is None


@pytest.mark.parametrize(("recorded", "given"), [(None, REFUSED), (REFUSED, None)])
def test_an_answer_of_another_kind_is_a_mismatch(recorded: Failure | None, given: Failure | None) -> None:
    journal = loaded(ev.UpdateAnswered("a", b"1", recorded))
    with pytest.raises(PerdureError, match="the answer to update a"):
        journal.answer_update("a", b"1", given)
    assert journal.mismatch is not None


def test_an_answer_that_the_code_no_longer_gives_is_a_mismatch() -> None:
    world = World(pull, 1)
    world.script = [asked("1", "rename", b'"x"')]
    world.run()
    changed = WorkflowInstance(RUN_ID, waits)
    replayed = changed.activate(world.history, replay=True)
    assert replayed.stuck is not None
    assert replayed.stuck.code == "nondeterminism"
    assert "the answer to update 1" in replayed.stuck.message


# -- the state of a run, and retries -----------------------------------------------------------------------------------


def test_state_knows_what_is_open_and_what_was_answered() -> None:
    state = RunState()
    for event in (
        ev.RunStarted("w", "1", b""),
        asked("a", "add", b"1"),
        asked("b", "add", b"2"),
        ev.UpdateAnswered("a", b"1"),
    ):
        state.apply(event)
    assert list(state.updates) == ["b"]
    assert state.updates["b"].value == b"2"
    assert state.answered == {"a"}
    with pytest.raises(PerdureError, match="not outstanding"):
        state.apply(ev.UpdateAnswered("a", b"1"))


def test_a_retry_keeps_the_questions_and_takes_back_the_answers() -> None:
    events: list[ev.Event] = [
        ev.RunStarted("w", "1", b""),
        asked("before", "add", b"1"),
        ev.UpdateAnswered("before", b"1"),
        ev.TimerStarted(0, 5),
        ev.TimerFired(0),
        asked("after", "add", b"2"),
        ev.UpdateAnswered("after", b"2"),
        ev.RunFailed(Failure("run_failed", "timeout"), 5),
    ]
    history = [ev.Recorded(i + 1, 10 * i, e) for i, e in enumerate(events)]
    history.append(ev.Recorded(len(events) + 1, 1_000, plan(history)))
    left = [r.event for r in effective(history)]
    assert asked("after", "add", b"2") in left
    assert ev.UpdateAnswered("before", b"1") in left
    assert ev.UpdateAnswered("after", b"2") not in left
    state = RunState()
    for event in left:
        state.apply(event)
    assert list(state.updates) == ["after"]


def test_what_was_refused_is_raised_as_what_it_was() -> None:
    assert isinstance(update_error(Failure("update_rejected", "no")), UpdateRejected)
    assert isinstance(update_error(Failure("run_finished", "over")), RunFinished)
    assert isinstance(update_error(Failure("conflict", "old")), Conflict)
    failed = update_error(Failure("update_failed", "why", "ValueError"))
    assert isinstance(failed, UpdateFailed)
    assert str(failed) == "ValueError: why"


def test_questions_and_answers_travel() -> None:
    request = AskUpdate(ids.text(RUN_ID), "name", b"1", "id", 70)
    assert acts.decode_request(messages.UPDATE, acts.encode(request)) == request
    for answer in (None, UpdateAnswer(b"1"), UpdateAnswer(b"", Failure("update_failed", "m", "T", "t"))):
        reply = UpdateReply(answer)
        assert acts.decode_reply(messages.UPDATE, acts.encode(reply)) == reply


# -- those who wait ----------------------------------------------------------------------------------------------------


class FakePort:
    """Answers by id; runs that are over, with or without a successor."""

    def __init__(self) -> None:
        self.answers: dict[Place, UpdateAnswer] = {}
        self.known: set[Place] = set()
        self.over: dict[bytes, bytes | None] = {}
        self.posted: list[Place] = []
        self.looks = 0

    async def ask(self, place: Place, name: str, body: bytes) -> UpdateSent:
        active = place[1] not in self.over
        if active and place not in self.known:
            self.posted.append(place)
            self.known.add(place)
        return UpdateSent(active, place in self.known, self.answers.get(place))

    async def find(self, place: Place) -> UpdateSent:
        return UpdateSent(place[1] not in self.over, place in self.known, self.answers.get(place))

    async def settled(self, places: Sequence[Place]) -> list[SettledUpdate]:
        self.looks += 1
        return [
            SettledUpdate(p, self.answers.get(p), self.over.get(p[1]))
            for p in places
            if p in self.answers or p[1] in self.over
        ]

    async def states(self, ns: int, run_id: bytes, after: str, limit: int) -> list[tuple[str, bytes]]:
        return []


class FakeStore:
    def __init__(self, port: FakePort) -> None:
        self.port = port

    async def describe(self, run_id: bytes, ns: int) -> Any:
        return SimpleNamespace(successor=self.port.over.get(run_id))


def waiting() -> tuple[FakePort, Updates]:
    port = FakePort()
    return port, Updates(port, FakeStore(port), lambda run_id: None)  # type: ignore[arg-type]


def question(id: str = "x") -> UpdateMessage:
    return UpdateMessage(id, "rename", b"1")


async def test_an_answer_from_here_is_told_at_once_and_from_elsewhere_soon() -> None:
    port, updates = waiting()
    here = asyncio.ensure_future(updates.ask(1, RUN_ID, question(), 10))
    also = asyncio.ensure_future(updates.ask(1, RUN_ID, question(), 10))
    there = asyncio.ensure_future(updates.ask(1, NEXT_ID, question(), 10))
    await turns(2)
    updates.answered(1, RUN_ID, [("x", b"1", None)])
    assert await here == await also == UpdateAnswer(b"1")
    assert port.looks == 0
    port.answers[1, NEXT_ID, "x"] = UpdateAnswer(b"2")
    assert await there == UpdateAnswer(b"2")
    assert port.posted == [(1, RUN_ID, "x"), (1, NEXT_ID, "x")]
    assert updates._polling is None, "no caller waits, so nothing is polled"
    assert not updates._places


async def test_those_who_wait_follow_a_run_to_its_successor_and_learn_of_its_end() -> None:
    port, updates = waiting()
    one = asyncio.ensure_future(updates.ask(1, RUN_ID, question(), 10))
    await until(lambda: port.posted)
    port.over[RUN_ID] = NEXT_ID
    await until(lambda: (1, NEXT_ID, "x") in updates._waiting)
    two = asyncio.ensure_future(updates.ask(1, RUN_ID, question("y"), 10))
    await until(lambda: (1, NEXT_ID, "y") in port.posted)
    port.answers[1, NEXT_ID, "y"] = UpdateAnswer(b"9")
    assert await two == UpdateAnswer(b"9")
    assert await updates.find(1, RUN_ID, "y") == UpdateAnswer(b"9")
    assert await updates.find(1, RUN_ID, "x") is None
    port.over[NEXT_ID] = None
    end = await one
    assert end is not None
    assert end.failure is not None
    assert end.failure.code == "run_finished"
    assert (await updates.find(1, RUN_ID, "x")) == end
    with pytest.raises(RunFinished):
        await updates.ask(1, RUN_ID, question("z"), 10)
    with pytest.raises(NotFound):
        await updates.find(1, RUN_ID, "z")


async def test_no_time_at_all_still_asks() -> None:
    port, updates = waiting()
    assert await updates.ask(1, RUN_ID, question(), 0) is None
    assert port.posted == [(1, RUN_ID, "x")]
    assert updates._polling is None


@pytest.mark.parametrize(
    ("key", "name", "value", "error"),
    [
        ("", "n", b"1", InvalidInput),
        ("x" * 201, "n", b"1", InvalidInput),
        ("x", "n\x00", b"1", InvalidInput),
    ],
)
async def test_what_can_never_be_asked_is_refused(key: str, name: str, value: bytes, error: type[PerdureError]) -> None:
    port, updates = waiting()
    engine: Any = SimpleNamespace(updates=updates, settings=EngineSettings())
    api = NamespaceApi(SimpleNamespace(engine=engine, ports=None), 1, Caller(EMBEDDED, "default", "sdk"))  # type: ignore[arg-type]
    with pytest.raises(error):
        await handlers.update(api, AskUpdate(ids.text(RUN_ID), name, value, key, 1))
    assert port.posted == []


keep_private(globals())

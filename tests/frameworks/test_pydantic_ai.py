"""Agents of Pydantic AI inside workflows."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pydantic_ai import Agent, ModelRetry, RunContext
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo, DeltaToolCalls, FunctionModel

from perdure import Perdure, Retry, export_history, replay, workflow
from perdure.core import events as ev
from perdure.core.api.runs import LogItem, LogPosition
from perdure.core.work import LogLine
from perdure.errors import NotRegistered, RunFailed
from perdure.frameworks.pydantic_ai import Budget, PerdureDurability, ToolApprovals, stream_text
from perdure.frameworks.pydantic_ai.budgets import add_charge, read_spent
from perdure.frameworks.pydantic_ai.stamps import Stamps
from perdure.frameworks.pydantic_ai.streaming import TextPiece, _ReadResponse
from perdure.frameworks.pydantic_ai.wire import plain
from perdure.sdk import registry
from perdure.sdk.client.handles import Handle
from tests.fakes.waiting import until

LIMIT = "60s"
calls: Counter[str] = Counter()


@pytest.fixture(autouse=True)
def clean_slate() -> None:
    calls.clear()


@pytest.fixture
async def client(dsn: str) -> AsyncIterator[Perdure]:
    async with Perdure(dsn) as one:
        yield one


def returns(messages: list[ModelMessage]) -> dict[str, Any]:
    """What the tools returned, by their names."""
    return {p.tool_name: p.content for m in messages for p in m.parts if isinstance(p, ToolReturnPart)}


def answer(text: str) -> ModelResponse:
    return ModelResponse(parts=[TextPart(text)])


async def scheduled(handle: Handle[Any]) -> list[tuple[str, int]]:
    """Name and attempts of each task of a run."""
    events = [r.event for r in await handle.history()]
    return [(e.name, e.options.max_attempts) for e in events if isinstance(e, ev.TasksScheduled) for _ in e.inputs]


# -- model requests and tool calls are tasks --------------------------------------------------------------------------


@dataclass
class Customer:
    name: str
    tags: set[str]


def asks_for_everything(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    calls["model"] += 1
    if not returns(messages):
        return ModelResponse(
            parts=[
                ToolCallPart("greet", {"word": "hello"}),
                ToolCallPart("shy", {}),
                ToolCallPart("add", {"a": 1, "b": 2}),
            ]
        )
    return answer(f"{info.instructions}: {returns(messages)}")


helper = Agent(
    FunctionModel(asks_for_everything),
    name="helper",
    deps_type=Customer,
    capabilities=[PerdureDurability(model={"retry": 4}, tool={"retry": 2})],
)


@helper.instructions
def in_short(ctx: RunContext[Customer]) -> str:
    return f"for {ctx.deps.name}"


@helper.tool(metadata={"perdure": {"retry": 7}})
async def greet(ctx: RunContext[Customer], word: str) -> str:
    return f"{word} {ctx.deps.name} {sorted(ctx.deps.tags)}"


@helper.tool_plain
def shy() -> str:
    calls["shy"] += 1
    if calls["shy"] == 1:
        raise ModelRetry("not yet")
    return "here"


@helper.tool_plain(metadata={"perdure": False})
def add(a: int, b: int) -> int:
    return a + b


@workflow(name="agents.helped")
async def helped(name: str) -> list[str]:
    customer = Customer(name, {"new", "kind", "rich"})
    first = await helper.run("help me", deps=customer)
    second = await helper.run("again", deps=customer, message_history=first.all_messages())
    return [first.output, second.output]


async def test_model_requests_and_tool_calls_are_tasks_and_the_loop_replays(client: Perdure, tmp_path: Path) -> None:
    handle = await helped.start("Ada")
    first, second = await handle.result(LIMIT)
    assert first == second == "for Ada: {'greet': \"hello Ada ['kind', 'new', 'rich']\", 'shy': 'not yet', 'add': 3}"
    assert await scheduled(handle) == [
        ("helper.model", 4),
        ("helper.tool", 7),
        ("helper.tool", 2),
        ("helper.model", 4),
        ("helper.model", 4),
    ], "the tool that runs in the workflow is no task"
    assert calls == {"model": 3, "shy": 1}
    (tmp_path / "history.json").write_bytes(await export_history(handle))
    assert await replay(helped, histories=str(tmp_path / "*.json")) == 1
    assert calls == {"model": 3, "shy": 1}, "a replay calls neither the model nor a tool"


async def test_an_agent_works_as_usual_outside_of_a_workflow() -> None:
    result = await helper.run("help me", deps=Customer("Ada", set()))
    assert "hello Ada" in result.output


def flaky(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    calls["flaky"] += 1
    if calls["flaky"] < 3:
        raise ConnectionError("the model is away")
    return answer("at last")


patient = Agent(
    FunctionModel(flaky), name="patient", capabilities=[PerdureDurability(model={"retry": Retry(3, delay="10ms")})]
)


@workflow(name="agents.patience")
async def patience() -> str:
    return (await patient.run("are you there?")).output


async def test_a_model_request_is_retried_by_its_own_policy(client: Perdure) -> None:
    handle = await patience.start()
    assert await handle.result(LIMIT) == "at last"
    assert calls["flaky"] == 3
    assert await scheduled(handle) == [("patient.model", 3)]


def calls_a_clock(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    return ModelResponse(parts=[ToolCallPart("clock", {})])


careless = Agent(FunctionModel(calls_a_clock), name="careless", capabilities=[PerdureDurability()])


@careless.tool_plain(metadata={"perdure": False})
async def clock() -> float:
    return time.time()


@workflow(name="agents.carelessness")
async def carelessness() -> str:
    return (await careless.run("what time is it?")).output


async def test_a_tool_that_runs_in_the_workflow_is_guarded_like_it(client: Perdure) -> None:
    with pytest.raises(RunFailed, match=r"workflow code called time.time\(\) at .* in clock"):
        await (await carelessness.start()).result(LIMIT)


reader = Agent(
    FunctionModel(lambda messages, info: answer(str(sum(len(str(m)) for m in messages) > 400_000))),
    name="reader",
    capabilities=[PerdureDurability()],
)


@workflow(name="agents.reading")
async def reading(size: int) -> str:
    return (await reader.run("x" * size)).output


async def test_a_long_conversation_goes_through_the_payload_store(client: Perdure) -> None:
    assert await (await reading.start(400_000)).result(LIMIT) == "True"


class Socket:
    pass


opener = Agent(FunctionModel(asks_for_everything), name="opener", deps_type=Socket, capabilities=[PerdureDurability()])


@workflow(name="agents.opening")
async def opening() -> str:
    return (await opener.run("open it", deps=Socket())).output


async def test_dependencies_that_have_no_json_form_are_refused_with_a_way_out(client: Perdure) -> None:
    with pytest.raises(RunFailed, match="of agent 'opener' has no JSON form.* Use a dataclass"):
        await (await opening.start()).result(LIMIT)


async def test_two_agents_of_one_name_are_ambiguous_and_a_reloaded_one_is_not() -> None:
    def make() -> None:
        Agent(FunctionModel(flaky), name="twin", capabilities=[PerdureDurability()])

    make()
    make()
    assert registry.tasks.get("twin.model").name == "twin.model"
    Agent(FunctionModel(flaky), name="twin", capabilities=[PerdureDurability()])
    with pytest.raises(NotRegistered, match="two tasks are called 'twin.model'.*of the agent at"):
        registry.tasks.get("twin.model")


# -- approvals --------------------------------------------------------------------------------------------------------

payments = ToolApprovals("payment", assignees=["ada"])


def pays(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    calls["pays"] += 1
    if not returns(messages):
        return ModelResponse(parts=[ToolCallPart("pay", {"euros": 3}), ToolCallPart("pay", {"euros": 4})])
    return answer(" / ".join(str(p.content) for p in messages[-1].parts if isinstance(p, ToolReturnPart)))


def payer_with(name: str, approvals: ToolApprovals) -> Agent[None, str]:
    made = Agent(FunctionModel(pays), name=name, capabilities=[PerdureDurability(approvals=approvals)])

    @made.tool_plain(requires_approval=True)
    async def pay(euros: int) -> str:
        calls["paid"] += euros
        return f"paid {euros}"

    return made


payer = payer_with("payer", payments)
hasty = payer_with("hasty", ToolApprovals("payment", timeout=timedelta(milliseconds=1)))


@workflow(name="agents.paying")
async def paying() -> str:
    return (await payer.run("pay them")).output


@workflow(name="agents.haste")
async def haste() -> str:
    return (await hasty.run("pay them")).output


async def test_a_tool_waits_for_approval_and_the_agent_hears_of_a_rejection(client: Perdure) -> None:
    handle = await paying.start()

    async def both_asked() -> bool:
        return sum(isinstance(r.event, ev.PromiseCreated) for r in await handle.history()) == 2

    await until(both_asked)
    assert calls["paid"] == 0
    await payments.approval.reject(handle.id, by="ada", comment="too little")
    await payments.approval.approve(handle.id, by="ada", nth=2)
    said = await handle.result(LIMIT)
    assert said == "The tool call was rejected by a person. too little / paid 4"
    assert calls == {"paid": 4, "pays": 2}


async def test_a_tool_that_is_not_approved_in_time_is_not_called(client: Perdure) -> None:
    said = await (await haste.start()).result(LIMIT)
    assert "Nothing was decided" in said and calls["paid"] == 0


# -- streaming --------------------------------------------------------------------------------------------------------

seen_first_attempt: list[asyncio.Event] = []


async def stutters(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str | DeltaToolCalls]:
    calls["stutters"] += 1
    if calls["stutters"] == 1:
        yield "Good\nmor"
        await seen_first_attempt[0].wait()
        raise ConnectionError("the line is cut")
    for word in ("Good\n", "evening, ", "Ada"):
        yield word


speaker = Agent(
    FunctionModel(stream_function=stutters),
    name="speaker",
    capabilities=[PerdureDurability(model={"retry": Retry(2, delay="10ms")}, stream=True)],
)


@workflow(name="agents.speaking")
async def speaking() -> str:
    return (await speaker.run("say something")).output


async def test_text_is_streamed_and_a_retried_attempt_restarts_it(client: Perdure) -> None:
    seen_first_attempt[:] = [asyncio.Event()]
    handle = await speaking.start()
    text, pieces = "", list[TextPiece]()
    async for piece in stream_text(handle):
        pieces.append(piece)
        text = piece.text if piece.restart else text + piece.text
        seen_first_attempt[0].set()
    assert text == await handle.result(LIMIT) == "Good\nevening, Ada"
    assert pieces[0] == TextPiece("Good\nmor", 0, 1)
    assert [p.restart for p in pieces].count(True) == 1 and [p.done for p in pieces] == [False] * (len(pieces) - 1) + [
        True
    ]
    afterwards = [p async for p in stream_text(handle, "speaker")]
    assert afterwards[-1].done
    text = ""
    for piece in afterwards:
        text = piece.text if piece.restart else text + piece.text
    assert text == "Good\nevening, Ada", "who comes late gets the same text"
    assert [p async for p in stream_text(handle, "another")] == []


def line(text: str, attempt: int) -> LogItem:
    return LogItem(
        0, "speaker.model_stream", attempt, LogPosition(0, 0, attempt, 0, 0), LogLine(0, "tokens", "info", text)
    )


def test_a_reader_gets_lost_text_from_the_record() -> None:
    whole = _ReadResponse()
    assert whole.grow(line('"Good"', 1)) == TextPiece("Good", 0, 1)
    assert whole.close(0, "Good night") == TextPiece(" night", 0, 1, done=True)
    gap = _ReadResponse()
    gap.grow(line('"Good"', 1))
    gap.grow(line('"ight"', 1))
    assert gap.close(0, "Good night") == TextPiece("Good night", 0, 1, restart=True, done=True)
    assert gap.grow(line('"cut', 1)) is None
    late = _ReadResponse()
    late.grow(line('"b"', 2))
    assert late.grow(line('"a"', 1)) is None, "a line of an attempt that was given up"
    assert _ReadResponse().close(0, "all") == TextPiece("all", 0, 0, done=True), "it came after the end"


# -- budgets ----------------------------------------------------------------------------------------------------------


def ten_tokens(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    calls["tokens"] += 10
    return answer("that was dear")


strict = Budget("strict", 25, per="1000d", by=lambda ctx: ctx.deps, when_spent="fail", cost=lambda _: 10)
lenient = Budget("lenient", 10, per="1s", by=lambda ctx: ctx.deps, cost=lambda _: 10)
spender = Agent(
    FunctionModel(ten_tokens), name="spender", deps_type=str, capabilities=[PerdureDurability(budget=strict)]
)
waiter = Agent(
    FunctionModel(ten_tokens), name="waiter", deps_type=str, capabilities=[PerdureDurability(budget=lenient)]
)


@workflow(name="agents.spending")
async def spending(customer: str, times: int) -> int:
    for _ in range(times):
        await spender.run("spend", deps=customer)
    return times


@workflow(name="agents.waiting")
async def waiting(customer: str, times: int) -> int:
    for _ in range(times):
        await waiter.run("spend", deps=customer)
    return times


async def test_a_budget_is_charged_after_the_call_and_refuses_when_it_is_spent(client: Perdure) -> None:
    assert await (await spending.start("ada", 2)).result(LIMIT) == 2
    assert await strict.spent("ada") == 20
    with pytest.raises(RunFailed, match="'ada' has spent 30 of 25 of the budget 'strict'; the next window begins at"):
        await (await spending.start("ada", 2)).result(LIMIT)
    assert await strict.spent("ada") == 30 and calls["tokens"] == 30
    assert await (await spending.start("grace", 1)).result(LIMIT) == 1, "each key has its own"


async def test_a_charge_that_is_repeated_counts_once(client: Perdure) -> None:
    ends = datetime.now(UTC) + timedelta(days=1)
    for id in ("one", "one", "two", "one"):
        await add_charge.fn("strict", "linus", ends, 5.0, id)
    assert await read_spent.fn("strict", "linus", ends) == 10


async def test_a_call_waits_for_the_next_window_of_its_budget(client: Perdure) -> None:
    handle = await waiting.start("ada", 3)
    assert await handle.result(LIMIT) == 3
    events = [r.event for r in await handle.history()]
    charges = [e.inputs[0] for e in events if isinstance(e, ev.TasksScheduled) and e.name == "perdure.budget.charge"]
    windows = [msgspec.json.decode(data)["ends"] for data in charges]
    assert len(set(windows)) == 3, "one call spends the budget of a window"


# -- what is sent is the same at every replay -------------------------------------------------------------------------


def test_messages_of_a_run_get_the_time_of_the_run_once() -> None:
    mine = ModelRequest(parts=[UserPromptPart("hello")], run_id="mine")
    older = ModelRequest(parts=[UserPromptPart("hello")], run_id="older")
    before = older.parts[0].timestamp
    first, later = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC)
    stamps = Stamps("mine")
    stamps.apply([mine, older], first)
    stamps.apply([mine, older], later)
    assert mine.parts[0].timestamp == first and older.parts[0].timestamp == before


def test_sets_are_written_sorted() -> None:
    assert plain({"a": {"z", "b"}, "n": [frozenset({3, 1, 2})]}) == {"a": ["b", "z"], "n": [[1, 2, 3]]}

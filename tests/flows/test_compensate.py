"""`compensate:` in documents: how it is read, what is taken back whatever happens, and what people see of it."""

from __future__ import annotations

import random
from typing import Any

import pytest

from perdure import TestEnv, flow, task
from perdure.cli.run_tree import undo_text
from perdure.core import commands as cm
from perdure.core import events as ev
from perdure.core.undo import stack_of
from perdure.errors import Conflict, RunFailed
from perdure.flows.compile import compile_flow
from perdure.flows.problems import FlowError
from perdure.flows.source import read
from tests.flows import random_dags
from tests.flows.case import Case, Expect
from tests.flows.pure import Run, World
from tests.flows.reference import Ok
from tests.server.rest_live import live

SEEDS = 250


# -- reading -----------------------------------------------------------------------------------------------------------


def problems_of(compensate: str, node: str = "") -> list[str]:
    text = f"flow: f\ntasks:\n  a: {{{node}compensate: {compensate}}}\n"
    with pytest.raises(FlowError) as caught:
        compile_flow(read(text, name="f.yaml"))
    return [f"{p.line}:{p.column} {p.message}" + (f" ({p.hint})" if p.hint else "") for p in caught.value.problems]


@pytest.mark.parametrize(
    ("compensate", "wrong"),
    [
        ("7", "3:19 compensate of task 'a' is the number 7; it must be a mapping"),
        ("{}", "does not say what to do (give it one of python, http, run, job, service)"),
        ("{flow: other}", "unknown key 'flow' in compensate of task 'a'"),
        ("{pyton: x}", "unknown key 'pyton' in compensate of task 'a' (did you mean 'python'?)"),
        ("{python: x, run: [y]}", "compensate of task 'a' has python and run; a node does one thing"),
        ("{python: x, with: {n: '${ nobody }'}}", "unknown name 'nobody'"),
        ("{python: x, with: {n: '${ item }'}}", "'item' is known in a node with foreach or parallel only"),
        ("{python: x, with: {n: '${ a }'}}", "task 'a' reads its own output"),
        ("{python: x, retry: 0}", "retry (executions in all) is the number 0"),
        ("{run: 'rm ${ output }'}", "the shell text of compensate of task 'a' holds ${ }"),
        ("'a b:c'", "it must be module:function, or the name of a task"),
    ],
)
def test_mistakes_are_told_with_their_place(compensate: str, wrong: str) -> None:
    assert any(wrong in p for p in problems_of(compensate)), problems_of(compensate)


@pytest.mark.parametrize("verb", ["value: 1, ", "sleep: 1s, ", "wait: x, ", "approval: x, "])
def test_only_what_does_something_can_be_taken_back(verb: str) -> None:
    assert any("compensate does not go with" in p for p in problems_of("un", verb))


def test_output_and_error_are_known_in_compensate_alone() -> None:
    text = "flow: f\ntasks:\n  a: {with: {n: '${ error }'}, compensate: {python: un, with: {o: '${ output }', e: '${ error }'}}}\n"
    with pytest.raises(FlowError) as caught:
        compile_flow(read(text, name="f.yaml"))
    assert [p.message for p in caught.value.problems] == ["unknown name 'error'"]


def test_a_key_cannot_look_like_an_undo() -> None:
    text = 'flow: f\ngraph: {start: "undo:a", nodes: {"undo:a": {value: 1}}}\n'
    with pytest.raises(FlowError, match="marks tasks that compensate"):
        compile_flow(read(text, name="f.yaml"))


# -- at random ---------------------------------------------------------------------------------------------------------


class Script(dict[str, Any]):
    """What the case says, and that some undos fail."""

    def __init__(self, case: random_dags.Case) -> None:
        self._case = case

    def __contains__(self, label: object) -> bool:
        return True

    def __getitem__(self, label: str) -> dict[str, Any]:
        if label.startswith("undo:"):
            return {"fail": "it stays"} if random.Random(label).random() < 0.1 else {"ok": None}
        found = self._case.script(label)
        return {"ok": found.value} if isinstance(found, Ok) else {"fail": found.message}


def compensated(body: dict[str, Any]) -> dict[str, Any]:
    """The same, and every task can be taken back; some of the calls cannot be computed."""
    tasks: dict[str, Any] = {}
    for i, (key, node) in enumerate(body["tasks"].items()):
        made = dict(node or {})
        if "tasks" in made:
            made = compensated(made)
        elif not {"choice", "value"} & made.keys():
            spread = {"foreach", "parallel"} & made.keys()
            given = {"got": "${ output }", **({"i": "${ index }"} if spread else {})}
            made["compensate"] = [{"python": "un", "with": given}, {"python": "un"}, "jobs:un"][i % 3]
        tasks[key] = made
    return {**body, "tasks": tasks}


class RandomWorld(World):
    def play(self, rng: random.Random, cancel: bool) -> Run:
        """Whatever can happen happens in any order, and in any groups."""
        run = self.main
        for _ in range(20_000):
            if run.closing is not None:
                return run
            self.together = rng.random() < 0.5
            if cancel and rng.random() < 0.04:
                cancel = False
                run.ask_to_stop("enough")
            if run.inbox and rng.random() < 0.7:
                run.deliver()
            elif run.state.tasks:
                seq = rng.choice(sorted(run.state.tasks))
                self.end(run, seq, self.case.script[self._names(run, seq)[0]])
            elif run.state.timers:
                run.add(ev.TimerFired(min(run.state.timers)))
            elif not run.inbox:
                raise AssertionError("the run hangs")
        raise AssertionError("the run does not end")


@pytest.mark.keep
@pytest.mark.parametrize("forgets", ["never", "before"])
def test_whatever_a_flow_did_is_taken_back_when_it_fails_or_is_cancelled(forgets: Any) -> None:
    ends: dict[str, int] = {}
    undone = 0
    for seed in range(SEEDS):
        case = random_dags.make(seed, 15)
        rng = random.Random(seed)
        played = Case("", compensated(case.document), Expect("", ""), case.given, {}, Script(case))
        run = RandomWorld(played, "random", forgets).play(rng, cancel=seed % 3 == 0)
        ends[type(run.closing).__name__] = ends.get(type(run.closing).__name__, 0) + 1
        undone += check(run, seed)
    assert len(ends) == 3, ends
    assert undone > 100


def check(run: Run, seed: int) -> int:
    lines = stack_of(run.history)
    if isinstance(run.closing, cm.CompleteRun):
        assert all(line.status == "kept" for line in lines), seed
        return 0
    assert all(line.status in ("undone", "failed") for line in lines), (seed, lines)
    by = [line.by for line in lines]
    assert by == sorted(by, reverse=True), f"seed {seed}: not in the reverse order"
    undos = [e for r in run.history if isinstance(e := r.event, ev.TasksScheduled) and e.nodes[0].startswith("undo:")]
    assert len(undos) == len(lines), seed
    closing = run.closing
    assert isinstance(closing, cm.FailRun | cm.CancelRun)
    text = closing.failure.message if isinstance(closing, cm.FailRun) else closing.reason
    assert ("undoing" in text) == any(line.status == "failed" for line in lines), seed
    return len(lines)


# -- on an engine ------------------------------------------------------------------------------------------------------

freed: list[str] = []


@task(name="compensate_hold")
async def hold(seat: str) -> str:
    return f"ref-{seat}"


@task(name="compensate_free")
async def free(seat: str, result: str) -> None:
    freed.append(result)


@task(name="compensate_refuse", retry=1)
async def refuse() -> None:
    raise ValueError("no")


FLOW = {
    "flow": "compensate_seats",
    "input": {"seats": {"type": "array"}, "end": {"type": "string"}},
    "tasks": {
        "hold": {
            "foreach": "input.seats",
            "concurrency": 1,
            "python": "compensate_hold",
            "with": {"seat": "${ item }"},
            "compensate": "seats:compensate_free",
        },
        "last": {"depends_on": "hold", "choice": [{"when": "input.end == 'fail'", "then": "bad"}, {"else": "late"}]},
        "bad": {"python": "compensate_refuse", "with": {}},
        "late": {"sleep": "10d"},
    },
}


async def test_a_flow_past_its_deadline_takes_back_what_it_did(dsn: str) -> None:
    freed.clear()
    async with TestEnv(dsn) as env:
        await env.deploy(FLOW)
        seats = flow("compensate_seats").options(timeout="1h")
        handle = await env.start(seats, seats=["a", "b"], end="late")
        await env.advance("2h")
        with pytest.raises(RunFailed, match="the run did not end before its deadline"):
            await handle.result()
        history = await handle.history()
        assert any(isinstance(r.event, ev.CancelRequested) and r.event.deadline for r in history)
    assert freed == ["ref-b", "ref-a"]


async def test_a_child_is_taken_back_at_the_deadline_of_its_parent(dsn: str) -> None:
    freed.clear()
    tasks = {
        "child": {
            "flow": "compensate_child",
            "with": {},
            "compensate": {"python": "compensate_free", "with": {"seat": "x", "result": "${ output.x }"}},
        },
        "late": {"depends_on": "child", "sleep": "10d"},
    }
    async with TestEnv(dsn) as env:
        await env.deploy({"flow": "compensate_child", "tasks": {"x": {"value": "all of it"}}})
        await env.deploy({"flow": "compensate_parent", "tasks": tasks})
        handle = await env.start(flow("compensate_parent").options(timeout="1h"))
        await env.advance("2h")
        with pytest.raises(RunFailed, match="the run did not end before its deadline"):
            await handle.result()
    assert freed == ["all of it"]


async def test_people_see_the_stack_and_an_undone_run_is_not_retried(dsn: str) -> None:
    freed.clear()
    async with live(dsn) as served:
        await served.perdure.deploy(FLOW)
        shown = await served.ended("compensate_seats", input={"seats": ["a", "b"], "end": "fail"})
        assert shown["status"] == "failed"
        assert shown["undo"] == [
            {"task": 0, "name": "hold[0]", "undo": "compensate_free", "status": "undone", "by": 5, "error": None},
            {"task": 1, "name": "hold[1]", "undo": "compensate_free", "status": "undone", "by": 4, "error": None},
        ]
        tasks = (await served.get(f"/runs/{shown['id']}/tasks"))["items"]
        assert [t["node"] for t in tasks if t["name"] == "compensate_free"] == ["undo:hold[1]", "undo:hold[0]"]
        refused = await served.post(f"/runs/{shown['id']}/retry", status=409)
        assert "start it anew" in refused["detail"]
        with pytest.raises(Conflict, match="start it anew"):
            await (await served.perdure.get(shown["id"])).retry()
    assert freed == ["ref-b", "ref-a"]
    assert "hold[1] undone, hold[0] undone" in undo_text(shown["undo"])

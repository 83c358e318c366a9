"""Cases of the conformance corpus: a flow, what the world does, and the commands that have to come of it.

A case is a YAML file under corpus/:

    about: one sentence: what it pins down
    flow: |                     the document, as text for the real reader, or as a mapping
    flows: {name: document}     children, by name
    input: {...}                absent: {}
    script:                     how tasks end, by label; whatever is not listed succeeds with {"did": <label>}
      label: {ok: value} | {fail: message, type: ValueError} | {hang: true} | {attempts: [...]}
    acts:                       one at a time, whenever no scripted task is left to end
      - {signal: {name, value}} | {resolve: {name, value}} | {advance: 1h} | {cancel: why} | {retry: true} | {end: {label: {ok: 1}}} | {cancel_child: name}
    expect:
      status: success | failed | cancelled | running
      result: the value           error: {code, message (a part of it)}       tasks: {label: {queue, max_attempts, ...}}
      commands: |                 one per line, in order, exactly

Labels are those of nodes: `a`, `spread[2]`, `outer.inner`, `outer[3].inner[0]`; `*` in a script stands for any index. Tasks of a child are
`child/label`, or `child#1/label` for the child with sequence number 1. `"$input"` in a script's value is the task's payload; what a
task that was offered values (`{"**": {...}}`) echoes is what was offered. `attempts` lists how executions end, one after the other; the last one repeats.

Commands, one to a line (JSON is compared as values):

    task label {...}            one task; `label=name` where the task is not called like its node; `**{...}` is short for {"**": {...}}
    task label[0..2] {} {} {}   a bulk: one command for all of them; `{} x3` is short for three of these
    skip a, b: reason           the reason may be left out, or be a part of the real one
    timer 90s                   from the moment of the last fact
    child name {...}            promise name            state key=json
    cancel task a, b[0..1]      cancel timer            cancel child name
    complete json               fail code               cancelled reason
    retry                       the run is opened again; what runs again is asked for anew

What one fact brings about stands in this order: what is started, then what is skipped, then what is written into the state. Cancellations
stand where they are asked for; those just before the end of a run are ordered: tasks, timers, children.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import yaml

from perdure.core import events as ev
from perdure.flows.compile import compile_flow, compile_value
from perdure.flows.model import Flow
from perdure.flows.source import read

CORPUS = Path(__file__).parent / "corpus"
OFFER = "**"
LAST = (9, 0)

Outcome = dict[str, Any]


class Expect(msgspec.Struct, forbid_unknown_fields=True):
    status: str
    commands: str
    result: Any = msgspec.UNSET
    error: dict[str, str] = {}
    tasks: dict[str, dict[str, Any]] = {}


class Case(msgspec.Struct, forbid_unknown_fields=True):
    about: str
    flow: Any
    expect: Expect
    input: Any = msgspec.field(default_factory=dict)
    flows: dict[str, Any] = {}
    script: dict[str, Outcome] = {}
    acts: list[dict[str, Any]] = []
    not_yet: str = ""
    """What the decider does instead, where it does not do this yet."""


def paths() -> list[Path]:
    return sorted(CORPUS.glob("*/*.yaml"))


def name_of(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"


@cache
def load(path: Path) -> Case:
    """Read once for all the ways in which a case is played: none of them changes it."""
    return msgspec.convert(yaml.safe_load(path.read_text()), Case)


def compiled(document: Any, name: str) -> Flow:
    """Text goes through the reader that users' files go through."""
    if isinstance(document, str):
        return compile_flow(read(document, name=f"{name}.yaml"), name=name).flow
    return compile_value(document, name=name).flow


# -- scripts -------------------------------------------------------------------------------------------------------


def scripted(script: dict[str, Outcome], names: list[str]) -> Outcome:
    """How a task ends that goes by any of these names, the most telling one first."""
    for name in names:
        if name in script:
            return script[name]
        anywhere = re.sub(r"\[\d+]", "[*]", name)
        if anywhere in script:
            return script[anywhere]
    return {"ok": {"did": names[-1]}}


def of_attempt(outcome: Outcome, executions: int) -> Outcome:
    """How the n-th execution (from 1) ends."""
    listed = outcome.get("attempts")
    return outcome if listed is None else listed[min(executions, len(listed)) - 1]


def value_of(outcome: Outcome, payload: bytes) -> bytes:
    return msgspec.json.encode(_echoed(outcome["ok"], msgspec.json.decode(payload)))


def _echoed(value: Any, payload: Any) -> Any:
    if value == "$input":
        return payload.get(OFFER, payload) if isinstance(payload, dict) else payload
    if isinstance(value, dict):
        return {k: _echoed(v, payload) for k, v in value.items()}
    if isinstance(value, list):
        return [_echoed(v, payload) for v in value]
    return value


# -- commands as lines ---------------------------------------------------------------------------------------------


def label(event: ev.TasksScheduled, seq: int) -> str:
    return ev.label(event, seq)


def lines_of(history: list[ev.Recorded]) -> list[str]:
    """What a run asked for, read from its history. Cancellations that close a run come in one order, whoever asked for them."""
    labels: dict[int, str] = {}
    children: dict[int, str] = {}
    stopped: set[int] = set()
    heard_us = 0
    out: list[tuple[str, tuple[int, int]]] = []
    """Lines; those of cancellations with their place among the ones that close a run."""

    def say(line: str, place: tuple[int, int] = LAST) -> None:
        out.append((line, place))

    for record in history:
        event = record.event
        match event:
            case ev.TasksScheduled():
                labels |= {s: label(event, s) for s in range(event.first, event.first + len(event.inputs))}
                for line in _task_lines(event):
                    say(line)
            case ev.TasksSkipped():
                for node in event.nodes:
                    say(f"skip {node}: {event.reason}")
            case ev.TasksCancelled():
                for seq in sorted(event.seqs):
                    say(f"cancel task {labels[seq]}", (0, seq))
            case ev.TimerStarted():
                say(f"timer {(event.fire_at_us - heard_us) / 1e6:g}s")
            case ev.TimerCancelled():
                say("cancel timer", (1, event.seq))
            case ev.ChildStarted():
                children[event.seq] = event.workflow
                stopped.discard(event.seq)
                say(f"child {event.workflow} {_json(event.input)}")
            case ev.ChildCancelRequested() if event.seq not in stopped:
                stopped.add(event.seq)
                say(f"cancel child {children[event.seq]}", (2, event.seq))
            case ev.PromiseCreated():
                say(f"promise {event.name}")
            case ev.StateSet():
                say(f"state {event.name}={_json(event.value)}")
            case ev.StateCleared():
                say(f"clear {event.name}")
            case ev.RunSucceeded():
                say(f"complete {_json(event.result)}")
            case ev.RunFailed():
                say(f"fail {event.failure.code}")
            case ev.RunCancelled():
                say(f"cancelled {event.reason}".rstrip())
            case ev.RunRetried():
                say("retry")
            case _:
                pass
        if isinstance(event, (*ev.FACTS, ev.RunRetried)):
            heard_us = record.at_us
        if isinstance(event, ev.TERMINAL):
            first = len(out) - 1
            while first and out[first - 1][1] is not LAST:
                first -= 1
            out[first:] = sorted(out[first:], key=lambda line: line[1])
    return [line for line, _ in out]


def _task_lines(event: ev.TasksScheduled) -> Iterator[str]:
    """A line for each node; the executions of a spread share one."""
    if event.index < 0:
        for node, data in zip(event.nodes, event.inputs, strict=True):
            yield f"task {node}{_handler(event, node)} {_json(data)}"
        return
    (node,) = event.nodes
    last = event.index + len(event.inputs) - 1
    place = f"[{event.index}]" if last == event.index else f"[{event.index}..{last}]"
    yield " ".join(["task", node + place + _handler(event, node), *(_json(data) for data in event.inputs)])


def _handler(event: ev.TasksScheduled, node: str) -> str:
    return "" if event.name == node.rpartition(".")[2] else f"={event.name}"


def _json(data: bytes) -> str:
    value = msgspec.json.decode(data)
    if isinstance(value, dict) and list(value) == [OFFER]:
        return OFFER + _text(value[OFFER])
    return _text(value)


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def expected_lines(text: str) -> list[str]:
    """The lines of a case in the form that `lines_of` writes."""
    lines = (line.strip() for line in text.splitlines())
    return [out for line in lines if line and not line.startswith("#") for out in _parsed(line)]


def _parsed(line: str) -> Iterator[str]:
    verb, _, rest = line.partition(" ")
    match verb:
        case "task":
            name, _, payloads = rest.partition(" ")
            yield " ".join(["task", name, *_values(payloads)])
        case "skip":
            nodes, _, reason = rest.partition(": ")
            yield from (f"skip {node}: {reason}" for node in _listed(nodes))
        case "cancel" if rest.startswith("task "):
            yield from (f"cancel task {one}" for one in _listed(rest.removeprefix("task ")))
        case "child":
            name, _, payload = rest.partition(" ")
            yield " ".join(["child", name, *_values(payload)])
        case "state":
            key, _, value = rest.partition("=")
            yield f"state {key}={next(_values(value))}"
        case "complete":
            yield f"complete {next(_values(rest))}"
        case "cancel" | "timer" | "promise" | "clear" | "fail" | "cancelled" | "retry":
            yield line
        case _:
            raise ValueError(f"{verb!r} is no command: {line}")


_TIMES = re.compile(r"x(\d+)\s*")
_RANGE = re.compile(r"(.*)\[(\d+)\.\.(\d+)]$")


def _listed(text: str) -> Iterator[str]:
    for name in text.split(","):
        name = name.strip()
        if found := _RANGE.match(name):
            first, last = int(found[2]), int(found[3])
            yield from (f"{found[1]}[{i}]" for i in range(first, last + 1))
        else:
            yield name


def _values(text: str) -> Iterator[str]:
    decoder = json.JSONDecoder()
    text = text.strip()
    while text:
        prefix = OFFER if text.startswith(OFFER) else ""
        value, end = decoder.raw_decode(text, len(prefix))
        text = text[end:].lstrip()
        times = _TIMES.match(text)
        text = text[times.end() :] if times else text
        yield from [prefix + _text(value)] * (int(times[1]) if times else 1)


def agree(expected: str, actual: str) -> bool:
    """Only of a skip's reason may a case leave something out."""
    if not expected.startswith("skip "):
        return expected == actual
    (node, _, reason), (actual_node, _, actual_reason) = expected.partition(": "), actual.partition(": ")
    return node.rstrip(":") == actual_node and reason in actual_reason


def differences(expected: list[str], actual: list[str]) -> list[str]:
    """Both lists side by side from the first line that differs; empty when none does."""
    for i in range(max(len(expected), len(actual))):
        if i >= len(expected) or i >= len(actual) or not agree(expected[i], actual[i]):
            return [
                f"line {i + 1} of the commands differs",
                *(f"     {line}" for line in actual[max(0, i - 3) : i]),
                *(f"want {line}" for line in expected[i:]),
                *(f"got  {line}" for line in actual[i:]),
            ]
    return []

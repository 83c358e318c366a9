"""One history against code or a flow, on the loop and by the decider that would run it: the first thing that differs.

No task runs and nothing is written. What is asked for beyond the end of the history is new, and no difference.
"""

from __future__ import annotations

from collections.abc import Iterable
from time import perf_counter
from typing import Any, Final

import msgspec

from perdure.core import commands as cm
from perdure.core import events as ev
from perdure.core.errors import NondeterminismError, PerdureError, RecordedError, clip
from perdure.core.payloads import agree
from perdure.core.run_retry import ENDED_BY_ENGINE, effective
from perdure.flows.decide.decider import Decider, DecisionTooLarge
from perdure.flows.decide.run_input import input_problem
from perdure.programs.check.findings import Kind, SourceLine
from perdure.programs.check.observed import Asked, ObservedJournal, command_text, is_users, raising_line, waiting_line
from perdure.programs.check.targets import FlowTarget
from perdure.sdk.definitions import Workflow
from perdure.sdk.workflow import guards
from perdure.sdk.workflow.instance import WorkflowInstance
from perdure.sdk.workflow.phases import Running

REPLAY_S_MAX: Final = 60
"""Seconds that the replay of one history may take."""
_FACTS: Final = frozenset(ev.FACTS)
_ENDS: Final[dict[type, type]] = {
    ev.RunSucceeded: cm.CompleteRun,
    ev.RunFailed: cm.FailRun,
    ev.RunCancelled: cm.CancelRun,
    ev.RunContinued: cm.ContinueAsNew,
}


class Divergence(msgspec.Struct, frozen=True, kw_only=True):
    kind: Kind = "diverges"
    where: str
    """Which command, or what."""
    expected: str
    got: str
    place: SourceLine | None = None
    record: ev.Recorded | None = None


def replay_code(
    workflow: Workflow[..., Any], run_id: bytes, history: list[ev.Recorded], waits: Iterable[str] = ()
) -> Divergence | None:
    """`waits`: signals and updates that the code waited for when the run was last decided."""
    guards.install()
    history = effective(history)
    problem = _input_problem(workflow, history[0])
    if problem is not None:
        return problem
    instance: WorkflowInstance
    journal = ObservedJournal(lambda: instance.run.event_seq, has_code=True)
    instance = WorkflowInstance(run_id, workflow, journal=journal)
    try:
        instance.give(history, replay=True)
        done = instance.advance(perf_counter() + REPLAY_S_MAX)
        if done is None:
            raise PerdureError(f"the replay took more than REPLAY_S_MAX={REPLAY_S_MAX} s")
        stopped = _stopped_at(instance)
        if journal.mismatch is not None:
            return _diverged(journal, journal.mismatch, history, stopped)
        if done.stuck is not None:
            return Divergence(kind="fails", where="the code", expected="", got=done.stuck.message, place=stopped)
        return _ended(instance, history, done.commands, stopped) or _unawaited(waits, done.waiting, history, stopped)
    finally:
        instance.evict()


def _input_problem(workflow: Workflow[..., Any], first: ev.Recorded) -> Divergence | None:
    assert isinstance(first.event, ev.RunStarted)
    try:
        workflow.signature.decode_call(first.event.input)
    except PerdureError as error:
        return Divergence(
            kind="input",
            where="the input",
            expected=first.event.input.decode(errors="replace")[:200],
            got=clip(str(error)),
            place=_definition(workflow),
            record=first,
        )
    return None


def _definition(workflow: Workflow[..., Any]) -> SourceLine:
    code = workflow.fn.__code__
    return SourceLine(code.co_filename, code.co_firstlineno)


def _stopped_at(instance: WorkflowInstance) -> SourceLine | None:
    """Where the code waits, or raised, or its definition."""
    phase = instance.run.phase
    main = phase.main if isinstance(phase, Running) else None
    if main is None:
        return _definition(instance.run.workflow)
    if main.done() and not main.cancelled() and (error := main.exception()) is not None:
        return raising_line(error) or _definition(instance.run.workflow)
    return waiting_line(main.get_coro()) or _definition(instance.run.workflow)


def _diverged(
    journal: ObservedJournal, error: NondeterminismError, history: list[ev.Recorded], stopped: SourceLine | None
) -> Divergence:
    record = journal.records.get(error.where)
    asked = journal.refused or _instead(journal, record, history)
    if asked is None and (closing := journal.closing) is not None:
        place = _traced(closing.failure.traceback) if isinstance(closing, cm.FailRun) else None
        got = command_text(closing)
        return Divergence(where=error.where, expected=error.expected, got=got, place=place or stopped, record=record)
    if asked is None:
        return Divergence(where=error.where, expected=error.expected, got=error.actual, place=stopped, record=record)
    return Divergence(
        where=error.where, expected=error.expected, got=asked.text, place=asked.place or stopped, record=record
    )


def _instead(journal: ObservedJournal, record: ev.Recorded | None, history: list[ev.Recorded]) -> Asked | None:
    """What the code asked for when, by its history, it asked for what it never asked for now."""
    since = max(
        (r.seq for r in history if record is not None and r.seq < record.seq and type(r.event) in _FACTS), default=0
    )
    return next((asked for asked in journal.asked if asked.at >= since), None)


def _ended(
    instance: WorkflowInstance, history: list[ev.Recorded], commands: list[cm.Command], stopped: SourceLine | None
) -> Divergence | None:
    last = history[-1]
    closing = commands[-1] if commands and isinstance(commands[-1], tuple(_ENDS.values())) else None
    if not isinstance(last.event, ev.TERMINAL):
        return _failing(instance, closing, stopped, last)
    return end_differs(last, closing, stopped)


def _failing(
    instance: WorkflowInstance, closing: cm.Command | None, stopped: SourceLine | None, last: ev.Recorded
) -> Divergence | None:
    """Code that fails by itself where the run waits. A failure that the history has may well end the run."""
    if not isinstance(closing, cm.FailRun) or isinstance(last.event, ev.CancelRequested):
        return None
    failure = closing.failure
    if failure.type in _RECORDED or closing.cause:
        return None
    return Divergence(
        kind="fails",
        where="the code",
        expected="the run goes on",
        got=f"{failure.type or failure.code}: {failure.message}",
        place=_traced(failure.traceback) or stopped,
        record=last,
    )


def _traced(traceback: str) -> SourceLine | None:
    """The innermost line of the user's code in the text of a traceback."""
    found = [
        (file, int(number.strip()))
        for line in traceback.splitlines()
        if line.strip().startswith('File "')
        for file, _, rest in [line.strip()[6:].partition('", line ')]
        for number in [rest.partition(",")[0]]
        if number.strip().isdigit()
    ]
    mine = [SourceLine(file, number) for file, number in found if is_users(file)]
    return mine[-1] if mine else None


_RECORDED: Final = frozenset({RecordedError.__name__, *(kind.__name__ for kind in RecordedError.__subclasses__())})


def end_differs(last: ev.Recorded, closing: cm.Command | None, stopped: SourceLine | None) -> Divergence | None:
    """A finished history must be finished by the code as well, in the same way."""
    expected = _ENDS.get(type(last.event))
    if expected is None or (isinstance(last.event, ev.RunFailed) and last.event.failure.code in ENDED_BY_ENGINE):
        return None
    got = command_text(closing) if closing is not None else "the run goes on"
    if type(closing) is not expected:
        return Divergence(where="the end", expected=type(last.event).__name__, got=got, place=stopped, record=last)
    if not isinstance(last.event, ev.RunSucceeded) or not isinstance(closing, cm.CompleteRun):
        return None
    if agree([last.event.result], [closing.result]):
        return None
    shown = last.event.result.decode(errors="replace")[:200]
    return Divergence(where="the result", expected=shown, got=got, place=stopped, record=last)


def _unawaited(
    waits: Iterable[str], now: list[str], history: list[ev.Recorded], stopped: SourceLine | None
) -> Divergence | None:
    """A message that the run waits for and that the code would not take any more."""
    missing = sorted(set(waits) - set(now))
    if not missing or isinstance(history[-1].event, ev.TERMINAL):
        return None
    return Divergence(
        kind="wait_removed",
        where=missing[0].replace(":", " "),
        expected=f"a wait for {', '.join(missing)}",
        got=f"a wait for {', '.join(now)}" if now else "no wait for a signal or an update",
        place=stopped,
        record=history[-1],
    )


def replay_flow(
    target: FlowTarget, run_id: bytes, history: list[ev.Recorded], waits: Iterable[str] = ()
) -> Divergence | None:
    history = effective(history)
    first = history[0]
    assert isinstance(first.event, ev.RunStarted)
    top = SourceLine(target.file, 1)
    if problem := input_problem(target.flow, first.event.input):
        shown = first.event.input.decode(errors="replace")[:200]
        return Divergence(kind="input", where="the input", expected=shown, got=problem, place=top, record=first)
    decider: Decider
    journal = ObservedJournal(lambda: decider.at, has_code=False)
    decider = Decider(target.flow, run_id, journal=journal)
    try:
        commands = decider.activate(history, replay=True)
    except NondeterminismError as error:
        found = _diverged(journal, error, history, top)
        got = found.got if found.got != "nothing" else "the flow does not ask for it"
        return msgspec.structs.replace(found, got=got, place=_node_place(target, journal, found))
    except DecisionTooLarge as error:
        return Divergence(kind="fails", where="the flow", expected="", got=str(error), place=top)
    if isinstance(history[-1].event, ev.TERMINAL):
        return end_differs(history[-1], commands[-1] if commands else None, top)
    return _unawaited(waits, decider.waiting, history, top)


def _node_place(target: FlowTarget, journal: ObservedJournal, found: Divergence) -> SourceLine:
    """Of the node that asks, or else of the node that the history names."""
    record = found.record.event if found.record is not None else None
    asked = journal.refused or next((a for a in journal.asked if a.text == found.got), None)
    recorded = record.nodes if isinstance(record, ev.TasksScheduled | ev.TasksSkipped) else []
    for label in (*(asked.nodes if asked is not None else ()), *recorded):
        line = target.line_of(label)
        if line > 1:
            return SourceLine(target.file, line)
    return SourceLine(target.file, 1)

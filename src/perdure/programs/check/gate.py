"""The deploy gate: collects paths, replays samples of each, and makes the report."""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import redirect_stdout
from time import perf_counter, sleep  # bound here, before workflow guards wrap them
from typing import Final

from perdure.core import ids
from perdure.core.errors import PerdureError
from perdure.core.events import Recorded
from perdure.core.limits import PATHS_MAX
from perdure.programs.check.collect import CheckScope, Collected, Path, collect, history_of, served, waits_of
from perdure.programs.check.findings import CheckedPath, CheckFinding, CheckReport
from perdure.programs.check.replays import Divergence, replay_code, replay_flow
from perdure.programs.check.static import not_deterministic, removed_tasks, removed_workflows
from perdure.programs.check.targets import Targets
from perdure.programs.http_client import ApiError, HttpApi

UNCHECKED_SHOWN: Final = 20
"""Runs that are listed as not checked; the rest are counted."""
CONFIRM_S: Final = 1.5
"""A run whose history has not grown for this long waits."""
CONFIRM_TRIES: Final = 3


def check(api: HttpApi, targets: Targets, wanted: CheckScope, progress: Callable[[str], None]) -> CheckReport:
    """Raises what the server's answers raise. Output of the code that is replayed is dropped."""
    began = perf_counter()
    found = collect(api, wanted, targets.names, progress)
    gate = _Gate(api, targets, progress, pinned=wanted.pinned)
    with redirect_stdout(io.StringIO()):
        for path in sorted(found.paths.values(), key=lambda p: -p.runs):
            gate.replay(path)
    findings = [*gate.findings, *_static(api, targets, wanted, found)]
    return CheckReport(
        workflows=targets.names,
        runs=found.runs,
        paths=gate.paths,
        replayed=gate.replayed,
        pinned=gate.left,
        seconds=round(perf_counter() - began, 3),
        findings=findings,
        unchecked=[*_incomplete(found), *gate.unchecked[:UNCHECKED_SHOWN], *_rest(gate.unchecked)],
    )


def _static(api: HttpApi, targets: Targets, wanted: CheckScope, found: Collected) -> list[CheckFinding]:
    names = [n for n in targets.workflows if not wanted.workflows or n in wanted.workflows]
    serves = served(api, targets.workflows, targets.tasks)
    paths = found.paths.values()
    return [
        *not_deterministic(targets, names),
        *removed_workflows(targets, paths, serves),
        *removed_tasks(targets, paths, serves),
    ]


def _incomplete(found: Collected) -> list[str]:
    said = [f"run {u['id']} of {u['workflow']}: its history cannot be read: {u['why']}" for u in found.unreadable]
    if found.left_out:
        said.append(
            f"{found.left_out:,} runs have taken paths beyond the first PATHS_MAX={PATHS_MAX:,}; check less at a time with --workflow or --since"
        )
    return said


def _rest(unchecked: list[str]) -> list[str]:
    more = len(unchecked) - UNCHECKED_SHOWN
    return [f"and {more:,} more"] if more > 0 else []


class _Gate:
    def __init__(self, api: HttpApi, targets: Targets, progress: Callable[[str], None], *, pinned: bool) -> None:
        self._api, self._targets, self._progress, self._pinned = api, targets, progress, pinned
        self.left: dict[str, dict[str, int]] = {}
        """Pinned runs that are not replayed: workflow -> version -> runs."""
        self.paths: list[CheckedPath] = []
        self.findings: list[CheckFinding] = []
        self.unchecked: list[str] = []
        self.replayed = 0

    def replay(self, path: Path) -> None:
        """The first sample of a path that differs speaks for it."""
        is_known = path.workflow in (self._targets.flows if path.kind == "flow" else self._targets.workflows)
        if not is_known:
            return
        if path.pinned and not self._pinned:
            left = self.left.setdefault(path.workflow, {})
            for version, runs in path.versions.items():
                left[version] = left.get(version, 0) + runs
            return
        replayed, breaks = 0, 0
        for run, _, _ in path.samples:
            try:
                differs = self._replay(path, run)
            except ApiError as error:
                if error.status != 404:  # else it has ended, and was deleted, since the walk
                    raise
                continue
            except PerdureError as error:
                self.unchecked.append(f"run {run} of {path.workflow}: {error}")
                continue
            replayed += 1
            if differs is not None:
                breaks += 1
                self.findings.append(_finding(path, run, differs))
                break
        self.replayed += replayed
        self.paths.append(
            CheckedPath(
                workflow=path.workflow,
                fingerprint=path.fingerprint,
                path=path.steps,
                runs=path.runs,
                replayed=replayed,
                ended=path.ended,
                breaks=breaks,
            )
        )
        self._progress(f"{len(self.paths):,} paths checked, {self.replayed:,} histories replayed")

    def _replay(self, path: Path, run: str) -> Divergence | None:
        history = history_of(self._api, run)
        differs = self._compared(path, run, history, path.waits)
        for _ in range(CONFIRM_TRIES):
            if differs is None or differs.kind != "wait_removed":
                return differs
            # No record shows a wait: what the run waited for during the walk says nothing about a history that was read later.
            sleep(CONFIRM_S)
            before, waits, history = len(history), waits_of(self._api, run), history_of(self._api, run)
            differs = self._compared(path, run, history, waits)
            if len(history) == before:
                return differs
        return None  # it keeps going on, so it does not wait

    def _compared(self, path: Path, run: str, history: list[Recorded], waits: tuple[str, ...]) -> Divergence | None:
        if not history:
            return None
        if path.kind == "flow":
            return replay_flow(self._targets.flows[path.workflow], ids.parse(run), history, waits)
        return replay_code(self._targets.workflows[path.workflow], ids.parse(run), history, waits)


def _finding(path: Path, run: str, d: Divergence) -> CheckFinding:
    record = d.record
    return CheckFinding(
        kind=d.kind,
        severity="warning" if path.ended else "break",
        workflow=path.workflow,
        message=_message(path, d),
        runs=0 if path.ended else path.runs,
        path=path.steps,
        fingerprint=path.fingerprint,
        run=run,
        expected=d.expected,
        got=d.got,
        event=record.seq if record is not None else 0,
        event_type=type(record.event).__name__ if record is not None else "",
        event_at_us=record.at_us if record is not None else 0,
        place=d.place,
        advice=_advice(path, d),
    )


def _message(path: Path, d: Divergence) -> str:
    match d.kind:
        case "input":
            return f"{path.workflow} cannot take the input that the runs were started with"
        case "fails":
            return f"{path.workflow} fails where the runs are now"
        case "wait_removed":
            return f"{path.workflow} does not wait for the {d.where} any more that the runs wait for"
        case _:
            return f"{path.workflow} and the history disagree at {d.where}"


def _advice(path: Path, d: Divergence) -> tuple[str, ...]:
    if path.kind == "flow":
        return (
            "pin: runs keep the version of the flow that they were started with; leave them there, and they end with it",
            "rename: deploy the new flow under another name, if runs must move to it",
        )
    if d.kind == "input":
        return (
            "give a new parameter a default, keep the old name, or let the type accept both forms",
            "pin: keep the old code for these runs until they have ended",
        )
    if d.kind == "fails":
        return ("repair the code at this line, or keep the old path behind `if not wf.patched(...)`",)
    patch = 'patch: keep what the runs did and guard the change: `if wf.patched("a name"): new code, else: old code`'
    return (
        patch,
        "pin: keep the old code for these runs until they have ended, or name the new workflow anew: @workflow(name=...)",
        "continue as new: let long runs call wf.continue_as_new() with the old code first, then deploy",
    )

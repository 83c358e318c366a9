"""Findings without a replay: forbidden calls, workflows and tasks that nothing would serve."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from perdure.core.errors import PerdureError
from perdure.core.jobs import SERVICE_TASK
from perdure.programs.check.collect import Path, Served
from perdure.programs.check.findings import CheckFinding, SourceLine
from perdure.programs.check.targets import Targets
from perdure.sdk.workflow.code_check import forbidden_calls

_BUILT_IN = ("perdure.", SERVICE_TASK)


def not_deterministic(targets: Targets, names: Iterable[str]) -> Iterator[CheckFinding]:
    for name in names:
        workflow = targets.workflows.get(name)
        if workflow is None:
            continue
        definition = SourceLine(workflow.fn.__code__.co_filename, workflow.fn.__code__.co_firstlineno)
        try:
            for call in forbidden_calls(workflow.fn):
                yield CheckFinding(
                    kind="not_deterministic",
                    workflow=name,
                    message=f"{call.function} calls {call.name}: a replay would get another answer",
                    got=call.name,
                    place=SourceLine(call.file, call.line),
                    advice=(call.fix,),
                )
        except PerdureError as error:
            yield CheckFinding(kind="not_deterministic", workflow=name, message=str(error), place=definition)


def removed_workflows(targets: Targets, paths: Iterable[Path], served: Served) -> Iterator[CheckFinding]:
    """Python workflows with runs in flight that neither the targets nor another worker have. Flows are in the database."""
    runs: dict[str, int] = {}
    samples: dict[str, str] = {}
    for path in paths:
        missing = path.kind == "code" and path.workflow not in targets.workflows and not path.ended
        if missing and targets.has_code and path.workflow not in served.workflows:
            runs[path.workflow] = runs.get(path.workflow, 0) + path.runs
            samples.setdefault(path.workflow, path.samples[0][0])
    for name, count in runs.items():
        yield CheckFinding(
            kind="workflow_removed",
            workflow=name,
            message=f"no target defines the workflow {name}, and no other worker serves it",
            runs=count,
            run=samples[name],
            advice=(
                f"keep the function of {name} until its runs have ended, or give its successor the old name: @workflow(name={name!r})",
                "if another program serves it, connect its worker, or name what this deploy is about with --workflow",
            ),
        )


def removed_tasks(targets: Targets, paths: Iterable[Path], served: Served) -> Iterator[CheckFinding]:
    """Scheduled tasks that nothing would serve: of the targets' workflows, or served today by a worker that the deploy replaces."""
    if not targets.has_code:
        return
    known = {*targets.workflows, *targets.flows}
    runs: dict[tuple[str, str], int] = {}
    samples: dict[tuple[str, str], str] = {}
    for path in paths:
        for task in path.pending:
            if path.ended or task in targets.tasks or task in served.tasks or task.startswith(_BUILT_IN):
                continue
            if path.workflow in known or task in served.replaced_tasks:
                key = (path.workflow, task)
                runs[key] = runs.get(key, 0) + path.runs
                samples.setdefault(key, path.samples[0][0])
    for (workflow, task), count in runs.items():
        yield CheckFinding(
            kind="task_removed",
            workflow=workflow,
            message=f"the task {task} is scheduled in runs in flight, no target defines it, and no other worker serves it",
            runs=count,
            run=samples[workflow, task],
            expected=f"task {task!r}",
            advice=(
                f"keep the task {task} until no run waits for it, or give its successor the old name: @task(name={task!r})",
            ),
        )

"""Jobs for workflow code: work that an executor runs outside of the worker."""

from __future__ import annotations

from typing import Any, Unpack

from perdure.core.jobs import job_task
from perdure.core.names import checked_name
from perdure.sdk import wf
from perdure.sdk.options import CallOptions
from perdure.sdk.workflow.step import Step


def job(executor: str, spec: dict[str, Any], **options: Unpack[CallOptions]) -> Step[Any]:
    """Run a job by an executor of a worker, and wait for its result without holding a slot.

        rows = await perdure.job("kubernetes", {"image": "etl:7", "command": ["etl", "load"], "input": {"day": day}}, timeout="2h")

    Args:
        executor: the name that `perdure worker --executor` has, such as `objects`, `kubernetes` or `cloud-run`.
        spec: what to run; its keys are those of the executor.
        options: those of `task.options()`.

    Returns a step, whose value is the job's output. It raises like that of any task.
    """
    return wf.call(job_task(checked_name("executor", executor)), spec, **options)

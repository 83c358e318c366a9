"""What a Job and its pods mean. Pure: no request is made here.

annotation perdure/lost                                      lost, for good
Job is Complete                                              done: the result has to be read
annotation perdure/cancelled, and no pod runs                stopped
Job is Failed, or its pod is                                 failed, unless the infrastructure ended the pod: then lost
no pod runs, and START_S_MAX have passed                     never started: lost
the Job is gone                                              lost
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec

LOST_MARK: Final = "perdure/lost"
CANCEL_MARK: Final = "perdure/cancelled"
INFRASTRUCTURE: Final = frozenset(
    {
        "Evicted",
        "NodeLost",
        "NodeShutdown",
        "Shutdown",
        "Terminated",
        "Preempting",
        "NodeAffinity",
        "UnexpectedAdmissionError",
    }
)
"""Reasons of a pod's end that are no fault of the work."""
NO_END: Final = "ContainerStatusUnknown"
"""The node forgot how the container ended."""
HOPELESS: Final = frozenset({"InvalidImageName"})
"""A container that waits for this reason never starts, however long it waits."""
GONE_S: Final = 120.0
"""A pod that is being deleted, and was not by its executor, is lost after so long: its node does not answer."""


class Name(msgspec.Struct, rename="camel"):
    name: str
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    resource_version: str = ""
    creation_timestamp: str = ""
    deletion_timestamp: str | None = None


class Condition(msgspec.Struct, rename="camel"):
    type: str
    status: str = ""
    reason: str = ""
    message: str = ""


class JobStatus(msgspec.Struct, rename="camel"):
    conditions: list[Condition] | None = None
    start_time: str | None = None


class JobView(msgspec.Struct, rename="camel"):
    """The part of a Job that matters here."""

    metadata: Name
    status: JobStatus = msgspec.field(default_factory=JobStatus)


class Waiting(msgspec.Struct):
    reason: str = ""
    message: str = ""


class Terminated(msgspec.Struct, rename="camel"):
    exit_code: int = 0
    reason: str = ""
    message: str = ""


class RunningState(msgspec.Struct, rename="camel"):
    started_at: str | None = None


class PodContainerState(msgspec.Struct):
    waiting: Waiting | None = None
    running: RunningState | None = None
    terminated: Terminated | None = None


class ContainerStatus(msgspec.Struct):
    state: PodContainerState = msgspec.field(default_factory=PodContainerState)


class PodStatus(msgspec.Struct, rename="camel"):
    phase: str = ""
    reason: str = ""
    message: str = ""
    start_time: str | None = None
    conditions: list[Condition] | None = None
    container_statuses: list[ContainerStatus] | None = None


class PodView(msgspec.Struct):
    metadata: Name
    status: PodStatus = msgspec.field(default_factory=PodStatus)

    @property
    def container(self) -> PodContainerState:
        found = self.status.container_statuses
        return found[0].state if found else PodContainerState()

    @property
    def is_over(self) -> bool:
        return self.status.phase in ("Succeeded", "Failed")


class Runs(msgspec.Struct, frozen=True):
    started_us: int = 0


class Done(msgspec.Struct, frozen=True):
    """The work exited with 0."""

    pod: PodView | None


class Broke(msgspec.Struct, frozen=True):
    """The work failed."""

    pod: PodView | None
    text: str
    kind: str
    is_final: bool = False


class Gone(msgspec.Struct, frozen=True):
    why: str
    is_marked: bool = False
    """The Job says so itself: nothing has to be written."""


class Stopped(msgspec.Struct, frozen=True):
    pass


Verdict = Runs | Done | Broke | Gone | Stopped


def judge(job: JobView | None, pods: Sequence[PodView], now_s: float, start_s: float) -> Verdict:
    if job is None:
        return Gone("the Job is not in the cluster: it was deleted", is_marked=True)
    marks = job.metadata.annotations
    if LOST_MARK in marks:
        return Gone(marks[LOST_MARK], is_marked=True)
    pod = max(pods, key=lambda p: p.metadata.creation_timestamp, default=None)
    ended = {c.type: c for c in job.status.conditions or [] if c.status == "True"}
    if "Complete" in ended:
        return Done(pod)
    if CANCEL_MARK in marks:
        return Stopped() if all(p.is_over for p in pods) else Runs()
    if "Failed" in ended or (pod is not None and pod.status.phase == "Failed"):
        return _failed(ended.get("Failed"), pod)
    if (
        pod is not None
        and pod.metadata.deletion_timestamp
        and now_s - _seconds(pod.metadata.deletion_timestamp) > GONE_S
    ):
        return Gone("the pod is being deleted, and its node does not answer")
    return _waiting(job, pod, now_s, start_s)


def needs_pods(verdict: Verdict, pods: Sequence[PodView]) -> bool:
    """Whether the end of a Job was judged without the end of its pods."""
    if isinstance(verdict, Runs) or (isinstance(verdict, Gone) and verdict.is_marked):
        return False
    return not pods or not all(pod.is_over for pod in pods)


def _failed(condition: Condition | None, pod: PodView | None) -> Verdict:
    if condition is not None and condition.reason == "DeadlineExceeded":
        return Broke(pod, "the Job did not end within its timeout", "TimeoutError")
    if pod is None:
        return Gone(f"the pod was deleted while it ran: {condition.message if condition else ''}")
    if why := _disruption(pod):
        return Gone(why)
    end = pod.container.terminated
    if end is None:
        return Gone(
            f"the pod ended without its container: {pod.status.reason or (condition.message if condition else '')}"
        )
    if end.reason == "OOMKilled":
        return Broke(pod, "the container used more memory than its limit (OOMKilled)", "OOMKilled")
    return Broke(pod, f"the container exited with code {end.exit_code}", "ExitCode")


def _disruption(pod: PodView) -> str:
    """Why the cluster ended the pod; empty: it did not."""
    status = pod.status
    for condition in status.conditions or []:
        if condition.type == "DisruptionTarget" and condition.status == "True":
            return f"the pod was disrupted: {condition.reason}: {condition.message}"
    if status.reason in INFRASTRUCTURE:
        return f"the pod was ended by the cluster: {status.reason}: {status.message}"
    end = pod.container.terminated
    return "the node forgot how the container ended" if end is not None and end.reason == NO_END else ""


def _waiting(job: JobView, pod: PodView | None, now_s: float, start_s: float) -> Verdict:
    container = pod.container if pod is not None else PodContainerState()
    if pod is not None and (
        container.running is not None or container.terminated is not None or pod.status.phase == "Succeeded"
    ):
        begun = container.running.started_at if container.running is not None else pod.status.start_time
        return Runs(int(_seconds(begun) * 1e6))
    waits = container.waiting
    if waits is not None and waits.reason in HOPELESS:
        return Broke(pod, f"the container cannot start: {waits.reason}: {waits.message}", waits.reason, is_final=True)
    if now_s - _seconds(job.metadata.creation_timestamp) > start_s:
        return Gone(f"the job never started: {_why_waiting(pod, waits)} for {start_s:g} s")
    return Runs()


def _why_waiting(pod: PodView | None, waits: Waiting | None) -> str:
    if pod is None:
        return "it has had no pod"
    if waits is not None and waits.reason:
        return f"its container has waited ({waits.reason}: {waits.message})"
    scheduled = [c for c in pod.status.conditions or [] if c.type == "PodScheduled" and c.status == "False"]
    return f"no node has taken its pod ({scheduled[0].message})" if scheduled else "its pod has not begun"


def _seconds(text: str | None) -> float:
    return datetime.fromisoformat(text).astimezone(UTC).timestamp() if text else 0.0

"""What a Job and its pods mean."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from perdure.executors.kubernetes.states import Broke, Done, Gone, JobView, PodView, Runs, Stopped, judge

CREATED = "2026-11-16T12:00:00Z"
NOW = 1_794_830_460.0
"""A minute later."""


def job(*conditions: dict[str, str], **annotations: str) -> JobView:
    marks = {f"perdure/{name}": why for name, why in annotations.items()}
    meta = {"name": "j", "creationTimestamp": CREATED, "annotations": marks}
    return msgspec.convert({"metadata": meta, "status": {"conditions": list(conditions)}}, JobView)


def pod(phase: str, state: Any = None, **more: Any) -> PodView:
    deleted = more.pop("deleted", None)
    status = {"phase": phase, **more}
    if state is not None:
        status["containerStatuses"] = [{"state": state}]
    meta = {"name": "p", "creationTimestamp": CREATED, "deletionTimestamp": deleted}
    return msgspec.convert({"metadata": meta, "status": status}, PodView)


COMPLETE = {"type": "Complete", "status": "True"}
FAILED = {"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded", "message": "m"}
EXIT_3 = {"terminated": {"exitCode": 3, "reason": "Error"}}
DISRUPTED = [{"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler", "message": "m"}]


def verdict(one: JobView | None, *pods: PodView, start_s: float = 300) -> Any:
    return judge(one, pods, NOW, start_s)


def test_an_exit_code_is_a_failure() -> None:
    found = verdict(job(FAILED), pod("Failed", EXIT_3))
    assert isinstance(found, Broke) and "code 3" in found.text and not found.is_final


def test_too_much_memory_is_a_failure_of_the_work() -> None:
    found = verdict(job(FAILED), pod("Failed", {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}))
    assert isinstance(found, Broke) and found.kind == "OOMKilled"


@pytest.mark.parametrize(
    "lost",
    [
        pod("Failed", None, reason="Evicted", message="low on memory"),
        pod("Failed", EXIT_3, reason="NodeShutdown"),
        pod("Failed", EXIT_3, conditions=DISRUPTED),
        pod("Failed", {"terminated": {"exitCode": 137, "reason": "ContainerStatusUnknown"}}),
        pod("Failed", None),
    ],
)
def test_what_the_cluster_ends_is_lost(lost: PodView) -> None:
    assert isinstance(verdict(job(FAILED), lost), Gone)
    assert isinstance(verdict(job(), lost), Gone), "the Job controller has not seen it yet"


def test_a_pod_that_vanished_is_lost() -> None:
    assert isinstance(verdict(job(FAILED)), Gone)
    assert isinstance(verdict(None), Gone)


def test_a_pod_whose_node_does_not_answer_is_lost_after_a_while() -> None:
    running = {"running": {"startedAt": CREATED}}
    assert isinstance(verdict(job(), pod("Running", running, deleted="2026-11-16T12:00:30Z")), Runs)
    assert isinstance(verdict(job(), pod("Running", running, deleted="2026-11-16T11:50:00Z")), Gone)


def test_an_image_that_cannot_be_pulled_never_starts() -> None:
    waiting = pod("Pending", {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}})
    assert verdict(job(), waiting) == Runs()
    found = verdict(job(), waiting, start_s=30)
    assert isinstance(found, Gone) and "ImagePullBackOff" in found.why and not found.is_marked


def test_a_name_that_is_no_image_fails_at_once() -> None:
    found = verdict(job(), pod("Pending", {"waiting": {"reason": "InvalidImageName", "message": "m"}}))
    assert isinstance(found, Broke) and found.is_final


def test_a_pod_that_no_node_takes_says_why() -> None:
    full = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes have a GPU"}]
    found = verdict(job(), pod("Pending", conditions=full), start_s=30)
    assert isinstance(found, Gone) and "0/3 nodes have a GPU" in found.why


def test_a_deadline_is_a_timeout() -> None:
    found = verdict(job({**FAILED, "reason": "DeadlineExceeded"}))
    assert isinstance(found, Broke) and found.kind == "TimeoutError"


def test_a_mark_is_final_and_a_result_is_kept() -> None:
    assert isinstance(verdict(job(COMPLETE, lost="why"), pod("Succeeded")), Gone)
    assert isinstance(verdict(job(COMPLETE, cancelled="why"), pod("Succeeded")), Done)
    assert verdict(job(cancelled="why"), pod("Running")) == Runs()
    assert verdict(job(cancelled="why")) == Stopped()


def test_a_running_pod_says_since_when() -> None:
    assert verdict(job(), pod("Running", {"running": {"startedAt": CREATED}})) == Runs(1_794_830_400_000_000)

"""What kube-controller-manager does for Jobs: makes and deletes their pods, says how they ended, and collects garbage."""

from __future__ import annotations

import copy
import sys
from collections import defaultdict
from datetime import datetime
from typing import Any, Final

from tests.executors.kubernetes_emulator.api import ENDED, Api, DeleteOptions
from tests.executors.kubernetes_emulator.resources import JOBS, PODS, Object, Resource, Target
from tests.executors.kubernetes_emulator.status import ApiError

TICK_S: Final = 0.2
"""Deadlines are looked at so often."""


class Controllers:
    def __init__(self, api: Api) -> None:
        self.api, self.store = api, api.store
        self._owned: dict[str, list[Object]] = {}
        """Pods by the uid of their owner, as they were when this round began."""
        self._owners: set[str] = set()

    async def run(self) -> None:
        while True:
            known = self.store.version
            self._owned = self._by_owner()
            for job in self.store.list(JOBS):
                self._guarded(self._sync, job)
            self._owners = {job["metadata"]["uid"] for job in self.store.list(JOBS)}
            for pod in self.store.list(PODS):
                self._guarded(self._collect, pod)
            await self.store.news(known, TICK_S)

    def _guarded(self, act: Any, obj: Object) -> None:
        """What fails is tried again, as a controller does."""
        try:
            act(obj)
        except ApiError as e:
            print(f"controller: {obj['metadata']['name']}: {e}", file=sys.stderr, flush=True)

    def _sync(self, job: Object) -> None:
        pods = self._owned[job["metadata"]["uid"]]
        if job["metadata"].get("deletionTimestamp"):
            self._finalize(job, pods)
        elif end := _finished_at(job):
            ttl_s = job["spec"].get("ttlSecondsAfterFinished")
            if ttl_s is not None and self._age_s(end) >= ttl_s:
                self.api.delete(_target(JOBS, job), DeleteOptions(propagation="Foreground"))
        else:
            self._work(job, pods)

    def _work(self, job: Object, pods: list[Object]) -> None:
        spec, status = job["spec"], copy.deepcopy(job["status"])
        active = [p for p in pods if p["status"]["phase"] not in ENDED and "deletionTimestamp" not in p["metadata"]]
        succeeded, failed = (sum(p["status"]["phase"] == phase for p in pods) for phase in ENDED)
        status.setdefault("startTime", self.api.timestamp())
        wanted = min(spec["parallelism"], max(0, spec.get("completions", 1) - succeeded))
        if failed > spec["backoffLimit"]:
            self._end(status, "Failed", "BackoffLimitExceeded", "Job has reached the specified backoff limit")
            wanted = 0
        elif self._age_s(status["startTime"]) >= spec.get("activeDeadlineSeconds", float("inf")):
            self._end(status, "Failed", "DeadlineExceeded", "Job was active longer than specified deadline")
            wanted = 0
        elif succeeded >= spec.get("completions", 1):
            self._end(status, "Complete", "", "")
            status["completionTime"] = self.api.timestamp()
        counts = {"active": min(len(active), wanted), "succeeded": succeeded, "failed": failed}
        status = {k: v for k, v in status.items() if k not in counts} | {k: v for k, v in counts.items() if v}
        # Pods first: a Job is said to have failed only once its pods are being ended.
        for pod in active[wanted:]:
            self._delete(pod)
        if status != job["status"]:
            self.store.put(JOBS, {**job, "status": status})
        for _ in range(wanted - len(active)):
            self._create_pod(job)

    def _end(self, status: dict[str, Any], kind: str, reason: str, message: str) -> None:
        now = self.api.timestamp()
        condition = {"type": kind, "status": "True", "lastProbeTime": now, "lastTransitionTime": now}
        condition |= {"reason": reason, "message": message} if reason else {}
        status["conditions"] = [*status.get("conditions", []), condition]

    def _create_pod(self, job: Object) -> None:
        meta, template = job["metadata"], copy.deepcopy(job["spec"]["template"])
        owner = {"apiVersion": JOBS.api_version, "kind": JOBS.kind, "name": meta["name"], "uid": meta["uid"]}
        owner |= {"controller": True, "blockOwnerDeletion": True}
        given = {"generateName": f"{meta['name']}-", "ownerReferences": [owner]}
        body = {"metadata": {**template["metadata"], **given}, "spec": template["spec"]}
        self.api.create(Target(PODS, meta["namespace"], "", ""), body)

    def _finalize(self, job: Object, pods: list[Object]) -> None:
        """The garbage collector's part of a deletion that is not in the background."""
        finalizers = job["metadata"].get("finalizers", [])
        if "orphan" in finalizers:
            for pod in pods:
                others = [o for o in pod["metadata"]["ownerReferences"] if o["uid"] != job["metadata"]["uid"]]
                self.store.put(PODS, {**pod, "metadata": {**pod["metadata"], "ownerReferences": others}})
        elif "foregroundDeletion" in finalizers and pods:
            for pod in pods:
                self._delete(pod)
            return
        rest = [f for f in finalizers if f not in ("orphan", "foregroundDeletion")]
        if rest != finalizers:
            self.api.replace(JOBS, {**job, "metadata": {**job["metadata"], "finalizers": rest}})

    def _collect(self, pod: Object) -> None:
        """A pod whose owners are all gone."""
        owners = {owner["uid"] for owner in pod["metadata"].get("ownerReferences", [])}
        if owners and not owners & self._owners:
            self._delete(pod)

    def _delete(self, pod: Object) -> None:
        if "deletionTimestamp" not in pod["metadata"]:
            self.api.delete(_target(PODS, pod), DeleteOptions())

    def _by_owner(self) -> dict[str, list[Object]]:
        found: dict[str, list[Object]] = defaultdict(list)
        for pod in self.store.list(PODS):
            for owner in pod["metadata"].get("ownerReferences", []):
                found[owner["uid"]].append(pod)
        return found

    def _age_s(self, at: str) -> float:
        return (self.api.now() - datetime.fromisoformat(at)).total_seconds()


def _finished_at(job: Object) -> str:
    ends = (c for c in job["status"].get("conditions", []) if c["type"] in ("Complete", "Failed"))
    return next((str(c["lastTransitionTime"]) for c in ends), "")


def _target(resource: Resource, obj: Object) -> Target:
    return Target(resource, obj["metadata"]["namespace"], obj["metadata"]["name"], "")

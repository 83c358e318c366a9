"""What the API fills in when an object is created."""

from __future__ import annotations

from typing import Any, Final

from tests.executors.kubernetes_emulator.resources import JOBS, PODS, Object, Resource
from tests.executors.kubernetes_emulator.status import Cause

GRACE_S: Final = 30
JOB_LABEL, UID_LABEL = "job-name", "controller-uid"


def set_defaults(resource: Resource, obj: Object) -> list[Cause]:
    """Changes `obj`; what a user may not set is a problem. A status that came with it is dropped."""
    # Go has no word for what is missing: an object without a spec is one with an empty spec.
    if resource == JOBS:
        obj["status"] = {}
        obj.setdefault("spec", {}).setdefault("template", {})
    if resource == PODS:
        obj["status"] = {"phase": "Pending"}
        _pod(obj.setdefault("spec", {"containers": []}))
    return _job(obj) if resource == JOBS else []


def _job(obj: Object) -> list[Cause]:
    spec, meta = obj["spec"], obj["metadata"]
    if "selector" in spec and not spec.get("manualSelector"):
        return [Cause("FieldValueInvalid", "spec.selector", "Invalid value: `selector` not auto-generated")]
    single = {"parallelism": 1, "completions": 1} if not spec.keys() & {"parallelism", "completions"} else {}
    for name, value in {"parallelism": 1, "backoffLimit": 6, **single}.items():
        spec.setdefault(name, value)
    template = spec["template"]
    labels = template.setdefault("metadata", {}).setdefault("labels", {})
    labels |= {UID_LABEL: meta["uid"], JOB_LABEL: meta.get("name", "")}
    spec.setdefault("selector", {"matchLabels": {UID_LABEL: meta["uid"]}})
    _pod(template.setdefault("spec", {"containers": []}))
    return []


def _pod(spec: dict[str, Any]) -> None:
    defaults = {"restartPolicy": "Always", "terminationGracePeriodSeconds": GRACE_S, "dnsPolicy": "ClusterFirst"}
    for name, value in defaults.items():
        spec.setdefault(name, value)
    for container in spec.get("containers") or []:
        container.setdefault("terminationMessagePolicy", "File")
        container.setdefault("terminationMessagePath", "/dev/termination-log")

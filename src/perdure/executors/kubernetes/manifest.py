"""The Job of an attempt."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from perdure.core import ids
from perdure.executors.objects.layout import SPEC_ENV
from perdure.executors.objects.spec import Work, read_work
from perdure.executors.port import Job, JobRefused

MANAGED: Final = "app.kubernetes.io/managed-by"
SELECTOR: Final = f"{MANAGED}=perdure"
RUN, TASK, ATTEMPT = "perdure/run", "perdure/task", "perdure/attempt"
CONTAINER: Final = "work"
ENTRY: Final = ["perdure", "job"]
"""The command of a container whose result comes from the object store."""
INPUT_BYTES_MAX: Final = 96 * 1024
"""Bytes of input of a job without an object store: it is a variable of the container."""


class Pod(msgspec.Struct, frozen=True, kw_only=True):
    """Keys of a spec that are about the container rather than the work."""

    image: str | None = None
    result: str | None = None
    """`store` or `log`: where the result comes from."""
    resources: dict[str, Any] | None = None
    """`requests` and `limits`, as in a pod."""
    service_account: str | None = None
    node_selector: dict[str, str] | None = None
    tolerations: list[dict[str, Any]] | None = None
    image_pull_policy: str | None = None
    image_pull_secrets: list[str] | None = None
    env_from: list[str] | None = None
    """Secrets of the namespace whose entries become variables."""
    priority_class: str | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    grace_s: int | None = None


POD_KEYS: Final = frozenset(f.name for f in msgspec.structs.fields(Pod))


class Wanted(msgspec.Struct, frozen=True):
    """What a call asks for."""

    pod: Pod
    work: Work
    uses_store: bool


def read_spec(job: Job, image: str, has_store: bool) -> Wanted:
    """Raises Refused. `image` is the default."""
    spec = job.spec
    try:
        pod = msgspec.convert({k: v for k, v in spec.items() if k in POD_KEYS}, Pod)
    except msgspec.ValidationError as e:
        raise JobRefused(f"perdure.job.kubernetes cannot be run as it is: {e}") from e
    work = read_work({k: v for k, v in spec.items() if k not in POD_KEYS}, "kubernetes")
    if not (pod.image or image):
        raise JobRefused("perdure.job.kubernetes has no image: give `image`, or the worker's option kubernetes.image")
    if pod.result not in (None, "store", "log"):
        raise JobRefused(f"result is {pod.result!r}; it can be store or log")
    if pod.result == "store" and not has_store:
        raise JobRefused("result is store, and the worker has no object store: give it the option kubernetes.store")
    uses_store = has_store if pod.result is None else pod.result == "store"
    if work.python is not None and not uses_store:
        raise JobRefused("python needs an object store: give the worker the option kubernetes.store, or use a command")
    return Wanted(pod, work, uses_store)


def make_manifest(
    job: Job, wanted: Wanted, *, image: str, spec_url: str, ttl_s: int, env_from: tuple[str, ...]
) -> dict[str, Any]:
    """The Job as the API takes it. It runs one pod once: another attempt is another Job."""
    pod, labels = wanted.pod, _labels(job, wanted.pod.labels or {})
    template = {
        "restartPolicy": "Never",
        "containers": [_container(job, wanted, pod.image or image, spec_url, env_from)],
        "serviceAccountName": pod.service_account,
        "nodeSelector": pod.node_selector,
        "tolerations": pod.tolerations,
        "imagePullSecrets": [{"name": name} for name in pod.image_pull_secrets or []] or None,
        "priorityClassName": pod.priority_class,
        "terminationGracePeriodSeconds": pod.grace_s,
        "automountServiceAccountToken": None if pod.service_account else False,
    }
    spec = {
        "parallelism": 1,
        "completions": 1,
        "backoffLimit": 0,
        "ttlSecondsAfterFinished": ttl_s,
        "activeDeadlineSeconds": int(job.timeout_s) + 1 if job.timeout_s else None,
        "podFailurePolicy": {
            "rules": [{"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]
        },
        "template": {
            "metadata": {"labels": labels, **_some({"annotations": pod.annotations})},
            "spec": _some(template),
        },
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": job.name, "labels": labels},
        "spec": _some(spec),
    }


def _container(job: Job, wanted: Wanted, image: str, spec_url: str, env_from: tuple[str, ...]) -> dict[str, Any]:
    pod = wanted.pod
    secrets = [*env_from, *(pod.env_from or [])]
    container = {
        "name": CONTAINER,
        "image": image,
        "imagePullPolicy": pod.image_pull_policy,
        "command": list(ENTRY) if wanted.uses_store else _command(wanted.work),
        "workingDir": None if wanted.uses_store else wanted.work.cwd,
        "env": _variables(job, wanted, spec_url),
        "envFrom": [{"secretRef": {"name": name}} for name in secrets] or None,
        "resources": pod.resources,
        "terminationMessagePolicy": "File",
    }
    return _some(container)


def _command(work: Work) -> list[str]:
    if isinstance(work.command, str):
        return ["/bin/sh", "-c", work.command]
    # $(NAME) in an argument is a reference that the cluster resolves; $$ is a plain dollar.
    return [_literal(word) for word in work.command or []]


def _variables(job: Job, wanted: Wanted, spec_url: str) -> list[dict[str, str]]:
    a = job.assignment
    found = {
        "PERDURE_JOB": job.name,
        "PERDURE_RUN_ID": ids.text(a.run_id),
        "PERDURE_TASK_ID": ids.text(ids.derive(a.run_id, ids.TASK, a.seq)),
        "PERDURE_ATTEMPT": str(a.attempt),
    }
    if wanted.uses_store:
        found[SPEC_ENV] = spec_url
    else:
        found |= {name: _literal(value) for name, value in (wanted.work.env or {}).items()}
        found["PERDURE_INPUT"] = _literal(_input(wanted.work))
    return [{"name": name, "value": value} for name, value in found.items()]


def _input(work: Work) -> str:
    merged = {**(work.input if isinstance(work.input, dict) else {}), **work.upstream} if work.upstream else work.input
    data = msgspec.json.encode(merged)
    if len(data) > INPUT_BYTES_MAX:
        raise JobRefused(
            f"the input has {len(data)} bytes; without an object store INPUT_BYTES_MAX={INPUT_BYTES_MAX} are allowed"
        )
    return data.decode()


def _literal(value: object) -> str:
    text = ("true" if value else "false") if isinstance(value, bool) else str(value)
    return text.replace("$(", "$$(")


def _labels(job: Job, given: dict[str, str]) -> dict[str, str]:
    a = job.assignment
    return {
        **given,
        MANAGED: "perdure",
        RUN: ids.text(a.run_id),
        TASK: ids.text(ids.derive(a.run_id, ids.TASK, a.seq)),
        ATTEMPT: str(a.attempt),
    }


def _some(fields: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if value is not None}

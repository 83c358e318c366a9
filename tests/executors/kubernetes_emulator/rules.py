"""What the API checks beyond schemas. Pure. Quantities and label selectors have no schema either."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from decimal import Decimal
from typing import Any, Final

from tests.executors.kubernetes_emulator.resources import JOBS, PODS, Object, Resource
from tests.executors.kubernetes_emulator.status import Cause, bad_request

DNS_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?\Z")
DNS_SUBDOMAIN: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*\Z")
LABEL: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?\Z")
VARIABLE: Final = re.compile(r"[-._a-zA-Z][-._a-zA-Z0-9]*\Z")
QUANTITY: Final = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+))(Ki|Mi|Gi|Ti|Pi|Ei|[numkMGTPE]|[eE][+-]?\d+)?\Z")
LABEL_MAX: Final = 63
SUBDOMAIN_MAX: Final = 253
ANNOTATIONS_BYTES_MAX: Final = 256 * 1024
SUFFIXES: Final = {"n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
BINARY: Final = ("Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
EFFECTS: Final = ("NoSchedule", "PreferNoSchedule", "NoExecute")
IMMUTABLE: Final = {JOBS: ("completions", "selector", "template")}
POD_MUTABLE: Final = ("activeDeadlineSeconds", "tolerations")


def problems(resource: Resource, obj: Object) -> list[Cause]:
    found = list(_metadata(obj["metadata"]))
    if resource == JOBS:
        found += _job(obj["spec"])
    elif resource == PODS:
        found += _pod(obj["spec"], "spec")
    return found


def changes(resource: Resource, before: Object, after: Object) -> list[Cause]:
    """Of fields that may not change."""
    old, new = before.get("spec", {}), after.get("spec", {})
    if resource == PODS:
        kept = [
            {k: v for k, v in spec.items() if k not in POD_MUTABLE}
            for spec in (_without_images(old), _without_images(new))
        ]
        return [Cause("Forbidden", "spec", "pod updates may not change other fields")] if kept[0] != kept[1] else []
    names = (name for name in IMMUTABLE.get(resource, ()) if old.get(name) != new.get(name))
    return [_wrong(f"spec.{name}", new.get(name), "field is immutable") for name in names]


def check_quantities(obj: Object) -> None:
    """They are read with the body: one that is none is a bad request."""
    spec = obj.get("spec") or {}
    for container in (spec.get("template", {}).get("spec") or spec).get("containers") or []:
        for kind in ("requests", "limits"):
            for name, text in ((container.get("resources") or {}).get(kind) or {}).items():
                if not QUANTITY.match(str(text)):
                    raise bad_request(f"quantities must match the regular expression: {name}: {text!r}")


def label_key_problem(key: str) -> str:
    prefix, slash, name = key.rpartition("/")
    if slash and not _is_subdomain(prefix):
        return f"prefix part of {key!r} must be a DNS-1123 subdomain"
    if not LABEL.match(name) or len(name) > LABEL_MAX:
        return f"name part of {key!r} must consist of at most {LABEL_MAX} alphanumeric characters, '-', '_' or '.'"
    return ""


def label_value_problem(value: str) -> str:
    if value and (not LABEL.match(value) or len(value) > LABEL_MAX):
        return f"{value!r}: a valid label must be an empty string or at most {LABEL_MAX} alphanumeric characters, '-', '_' or '.'"
    return ""


def _metadata(meta: dict[str, Any]) -> Iterator[Cause]:
    if not meta.get("name"):
        yield Cause("FieldValueRequired", "metadata.name", "Required value: name or generateName is required")
    elif not _is_subdomain(meta["name"]):
        yield _wrong(
            "metadata.name", meta["name"], "a DNS-1123 subdomain must consist of lower case alphanumeric characters"
        )
    yield from _labels(meta.get("labels"), "metadata.labels")
    yield from _annotations(meta.get("annotations"), "metadata.annotations")


def _labels(labels: dict[str, str] | None, field: str) -> Iterator[Cause]:
    for key, value in (labels or {}).items():
        for problem in filter(None, (label_key_problem(key), label_value_problem(value))):
            yield _wrong(field, key, problem)


def _annotations(annotations: dict[str, str] | None, field: str) -> Iterator[Cause]:
    for key in annotations or {}:
        if problem := label_key_problem(key.lower()):
            yield _wrong(field, key, problem)
    if sum(len(k.encode()) + len(v.encode()) for k, v in (annotations or {}).items()) > ANNOTATIONS_BYTES_MAX:
        yield Cause("FieldValueTooLong", field, f"Too long: must have at most {ANNOTATIONS_BYTES_MAX} bytes")


def _job(spec: dict[str, Any]) -> Iterator[Cause]:
    for name in ("parallelism", "completions", "backoffLimit", "activeDeadlineSeconds", "ttlSecondsAfterFinished"):
        if (spec.get(name) or 0) < 0:
            yield _wrong(f"spec.{name}", spec[name], "must be greater than or equal to 0")
    template = spec["template"]
    yield from _labels((template.get("metadata") or {}).get("labels"), "spec.template.labels")
    yield from _annotations((template.get("metadata") or {}).get("annotations"), "spec.template.annotations")
    pod = template["spec"]
    yield from _pod(pod, "spec.template.spec")
    yield from _one_of(pod.get("restartPolicy"), ("OnFailure", "Never"), "spec.template.spec.restartPolicy")
    yield from _failure_policy(spec.get("podFailurePolicy"), pod)


def _failure_policy(policy: dict[str, Any] | None, pod: dict[str, Any]) -> Iterator[Cause]:
    field = "spec.podFailurePolicy"
    if policy is not None and pod.get("restartPolicy") != "Never":
        yield _wrong(
            f"{field}.restartPolicy", pod.get("restartPolicy"), "only Never is supported with a podFailurePolicy"
        )
    for n, rule in enumerate((policy or {}).get("rules") or []):
        yield from _one_of(rule["action"], ("Count", "FailIndex", "FailJob", "Ignore"), f"{field}.rules[{n}].action")
        if bool(rule.get("onExitCodes")) == bool(rule.get("onPodConditions")):
            yield _wrong(f"{field}.rules[{n}]", rule, "specifying one of OnExitCodes and OnPodConditions is required")
        for condition in rule.get("onPodConditions") or []:
            yield from _one_of(
                condition.get("status", "True"), ("False", "True", "Unknown"), f"{field}.rules[{n}].status"
            )


def _pod(spec: dict[str, Any], field: str) -> Iterator[Cause]:
    if not spec.get("containers"):
        yield Cause("FieldValueRequired", f"{field}.containers", "Required value")
    names = [container["name"] for container in spec.get("containers") or []]
    for n, container in enumerate(spec.get("containers") or []):
        yield from _container(container, f"{field}.containers[{n}]")
        if container["name"] in names[:n]:
            yield Cause(
                "FieldValueDuplicate", f"{field}.containers[{n}].name", f'Duplicate value: "{container["name"]}"'
            )
    yield from _one_of(spec.get("restartPolicy"), ("Always", "OnFailure", "Never"), f"{field}.restartPolicy")
    yield from _labels(spec.get("nodeSelector"), f"{field}.nodeSelector")
    for name in ("serviceAccountName", "priorityClassName"):
        yield from _subdomain(spec.get(name), f"{field}.{name}")
    for n, toleration in enumerate(spec.get("tolerations") or []):
        yield from _toleration(toleration, f"{field}.tolerations[{n}]")


def _container(container: dict[str, Any], field: str) -> Iterator[Cause]:
    if not DNS_LABEL.match(container["name"]) or len(container["name"]) > LABEL_MAX:
        yield _wrong(
            f"{field}.name", container["name"], "a DNS-1123 label must consist of lower case characters or '-'"
        )
    image = container.get("image") or ""
    if not image:
        yield Cause("FieldValueRequired", f"{field}.image", "Required value")
    elif image != image.strip():
        yield _wrong(f"{field}.image", image, "must not have leading or trailing whitespace")
    yield from _one_of(
        container.get("imagePullPolicy"), ("Always", "IfNotPresent", "Never"), f"{field}.imagePullPolicy"
    )
    policies = ("FallbackToLogsOnError", "File")
    yield from _one_of(container.get("terminationMessagePolicy"), policies, f"{field}.terminationMessagePolicy")
    for n, one in enumerate(container.get("env") or []):
        if not VARIABLE.match(one["name"]) or one["name"].startswith("..") or one["name"] == ".":
            yield _wrong(f"{field}.env[{n}].name", one["name"], "a valid environment variable name is required")
    for n, one in enumerate(container.get("envFrom") or []):
        for kind in ("secretRef", "configMapRef"):
            if kind in one:
                yield from _subdomain(one[kind].get("name"), f"{field}.envFrom[{n}].{kind}.name", is_needed=True)
    yield from _resources(container.get("resources") or {}, f"{field}.resources")


def _resources(resources: dict[str, Any], field: str) -> Iterator[Cause]:
    limits, requests = (resources.get(kind) or {} for kind in ("limits", "requests"))
    for kind, named in (("limits", limits), ("requests", requests)):
        for name, text in named.items():
            if (
                "/" not in name
                and name not in ("cpu", "memory", "ephemeral-storage")
                and not name.startswith("hugepages-")
            ):
                yield _wrong(f"{field}.{kind}[{name}]", name, "must be a standard resource for containers")
            if _quantity(text) < 0:
                yield _wrong(f"{field}.{kind}[{name}]", text, "must be greater than or equal to 0")
    for name in requests.keys() & limits.keys():
        if _quantity(requests[name]) > _quantity(limits[name]):
            yield _wrong(f"{field}.requests", requests[name], f"must be less than or equal to {name} limit")


def _toleration(toleration: dict[str, Any], field: str) -> Iterator[Cause]:
    operator, key = toleration.get("operator") or "Equal", toleration.get("key") or ""
    if key and (problem := label_key_problem(key)):
        yield _wrong(f"{field}.key", key, problem)
    if not key and operator != "Exists":
        yield _wrong(f"{field}.operator", operator, "operator must be Exists when `key` is empty")
    if operator == "Exists" and toleration.get("value"):
        yield _wrong(f"{field}.operator", toleration, "value must be empty when `operator` is 'Exists'")
    yield from _one_of(operator, ("Equal", "Exists"), f"{field}.operator")
    if toleration.get("effect"):
        yield from _one_of(toleration["effect"], EFFECTS, f"{field}.effect")
    if toleration.get("tolerationSeconds") is not None and toleration.get("effect") != "NoExecute":
        yield _wrong(
            f"{field}.effect", toleration.get("effect"), "effect must be 'NoExecute' when `tolerationSeconds` is set"
        )


def _subdomain(text: str | None, field: str, *, is_needed: bool = False) -> Iterator[Cause]:
    if not text and is_needed:
        yield Cause("FieldValueRequired", field, "Required value")
    elif text and not _is_subdomain(text):
        yield _wrong(field, text, "a DNS-1123 subdomain must consist of lower case alphanumeric characters, '-' or '.'")


def _one_of(value: str | None, allowed: Iterable[str], field: str) -> Iterator[Cause]:
    if value is not None and value not in allowed:
        listed = ", ".join(f'"{one}"' for one in allowed)
        yield Cause("FieldValueNotSupported", field, f'Unsupported value: "{value}": supported values: {listed}')


def _is_subdomain(text: str) -> bool:
    return len(text) <= SUBDOMAIN_MAX and DNS_SUBDOMAIN.match(text) is not None


def _quantity(text: Any) -> Decimal:
    found = QUANTITY.match(str(text))
    assert found is not None, text
    number, suffix = Decimal(found[1]), found[2] or ""
    if suffix in BINARY:
        return number * 1024 ** (1 + BINARY.index(suffix))
    if suffix[:1] in ("e", "E") and suffix != "E":
        return number.scaleb(int(suffix[1:]))
    return number.scaleb(SUFFIXES.get(suffix, 0))


def _without_images(spec: dict[str, Any]) -> dict[str, Any]:
    return {**spec, "containers": [{**c, "image": ""} for c in spec.get("containers", [])]}


def _wrong(field: str, value: object, why: str) -> Cause:
    return Cause("FieldValueInvalid", field, f"Invalid value: {value!r}: {why}")

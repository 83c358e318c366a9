"""The verbs of the API on objects in memory. Raises ApiError as the real server answers."""

from __future__ import annotations

import copy
import secrets
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from tests.executors.kubernetes_emulator import status
from tests.executors.kubernetes_emulator.defaults import set_defaults
from tests.executors.kubernetes_emulator.resources import JOBS, NAMESPACES, PODS, Key, Object, Resource, Target, key_of
from tests.executors.kubernetes_emulator.rules import changes, check_quantities, problems
from tests.executors.kubernetes_emulator.schema import check_schema
from tests.executors.kubernetes_emulator.selectors import Selector
from tests.executors.kubernetes_emulator.status import ApiError, Cause
from tests.executors.kubernetes_emulator.store import Store

NAME_TRIES: Final = 8
PAGES_MAX: Final = 100
"""Lists that are being read in pages; the oldest is forgotten."""
PRIORITY_CLASSES: Final = ("system-node-critical", "system-cluster-critical")
PROPAGATION: Final = {"Foreground": "foregroundDeletion", "Orphan": "orphan", "Background": ""}
"""The finalizer that makes the garbage collector act before the object is removed."""
ENDED: Final = ("Succeeded", "Failed")


class DeleteOptions(NamedTuple):
    propagation: str | None = None
    grace_s: int | None = None
    uid: str | None = None
    version: str | None = None


class Api:
    def __init__(self, store: Store, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self.store, self.now = store, now
        self._pages: dict[str, tuple[int, list[Object]]] = {}

    def create(self, target: Target, body: Object) -> Object:
        resource, namespace = target.resource, target.namespace
        obj = _readable(resource, body)
        meta = obj["metadata"]
        if meta.setdefault("namespace", namespace) != namespace:
            raise status.bad_request(
                "the namespace of the provided object does not match the namespace sent on the request"
            )
        if namespace and self.store.get(Key(NAMESPACES, "", namespace)) is None:
            raise status.not_found(NAMESPACES, namespace)
        if meta.get("resourceVersion"):
            raise status.internal("resourceVersion should not be set on objects to be created")
        self._name(resource, meta)
        _check_priority(resource, obj)
        meta |= {"uid": str(uuid.uuid4()), "creationTimestamp": self.timestamp()}
        causes = set_defaults(resource, obj) + problems(resource, obj)
        _refuse(resource, obj, causes)
        if self.store.get(key_of(resource, obj)) is not None:
            raise status.already_exists(resource, meta["name"])
        return self.store.put(resource, obj)

    def get(self, target: Target) -> Object:
        found = self.store.get(Key(target.resource, target.namespace, target.name))
        if found is None:
            raise status.not_found(target.resource, target.name)
        return found

    def list(self, target: Target, selector: Selector, limit: int, token: str) -> Object:
        version, found = self._page(token) if token else (self.store.version, self._matching(target, selector))
        page, rest = (found[:limit], found[limit:]) if limit else (found, [])
        meta: dict[str, Any] = {"resourceVersion": str(version)}
        if rest:
            meta |= {"continue": self._keep(version, rest), "remainingItemCount": len(rest)}
        items = [{k: v for k, v in item.items() if k not in ("kind", "apiVersion")} for item in page]
        resource = target.resource
        return {"kind": f"{resource.kind}List", "apiVersion": resource.api_version, "metadata": meta, "items": items}

    def patch(self, target: Target, patch: Object) -> Object:
        """A merge patch."""
        before = self.get(target)
        merged = merge(before, {"status": patch.get("status")} if target.subresource else patch)
        if not target.subresource and "status" in before:
            merged["status"] = before["status"]
        after = _patched(target.resource, merged)
        _check_identity(target, before, after)
        _refuse(target.resource, after, problems(target.resource, after) + changes(target.resource, before, after))
        return before if after == before else self.replace(target.resource, after)

    def replace(self, resource: Resource, obj: Object) -> Object:
        """One that is being deleted goes when its last finalizer does."""
        meta = obj["metadata"]
        stored = self.store.put(resource, obj)
        if meta.get("deletionTimestamp") and not meta.get("finalizers") and not meta.get("deletionGracePeriodSeconds"):
            return self.store.remove(key_of(resource, obj))
        return stored

    def delete(self, target: Target, options: DeleteOptions) -> tuple[Object, bool]:
        """The object, and whether it is gone."""
        before = self.get(target)
        _check_preconditions(target.resource, before, options)
        obj = copy.deepcopy(before)
        meta = obj["metadata"]
        grace_s = _grace_s(target.resource, before, options.grace_s)
        default = (
            "Orphan" if target.resource == JOBS else "Background"
        )  # batch/v1 keeps the default of its first release
        if finalizer := PROPAGATION[options.propagation or default]:
            meta["finalizers"] = sorted({*meta.get("finalizers", []), finalizer})
        if not grace_s and not meta.get("finalizers"):
            return self.store.remove(key_of(target.resource, before)), True
        if "deletionTimestamp" not in meta or grace_s < meta.get("deletionGracePeriodSeconds", 0):
            meta["deletionTimestamp"] = self.timestamp(grace_s)
            meta["deletionGracePeriodSeconds"] = grace_s
        return (before if obj == before else self.replace(target.resource, obj)), False

    def bind(self, target: Target, body: Object) -> None:
        node = (body.get("target") or {}).get("name")
        if body.get("kind", "Binding") != "Binding":
            raise status.bad_request(f'{body.get("kind")} in version "v1" cannot be handled as a Binding')
        if (body.get("metadata") or {}).get("name") != target.name:
            raise status.bad_request("name in URL does not match name in Binding object")
        if not node:
            raise status.internal("target.name: Required value")
        pod = copy.deepcopy(self.get(target))
        if found := pod["spec"].get("nodeName"):
            raise status.conflict(PODS, target.name, f"pod {target.name} is already assigned to node {found!r}")
        pod["spec"]["nodeName"] = node
        scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": self.timestamp()}
        pod["status"]["conditions"] = [scheduled]
        self.store.put(PODS, pod)

    def timestamp(self, in_s: float = 0) -> str:
        return (self.now() + timedelta(seconds=in_s)).strftime("%Y-%m-%dT%H:%M:%SZ")

    def _matching(self, target: Target, selector: Selector) -> list[Object]:
        found = self.store.list(target.resource, target.namespace)
        return [obj for obj in found if selector.matches(obj["metadata"].get("labels") or {})]

    def _page(self, token: str) -> tuple[int, list[Object]]:
        if not token.startswith("page-"):
            raise status.bad_request("continue key is not valid")
        if token not in self._pages:
            raise status.expired("The provided continue parameter is too old to display a consistent list result.")
        return self._pages[token]

    def _keep(self, version: int, rest: list[Object]) -> str:
        token = f"page-{secrets.token_hex(8)}"
        self._pages[token] = (version, rest)
        while len(self._pages) > PAGES_MAX:
            del self._pages[next(iter(self._pages))]
        return token

    def forget_pages(self) -> None:
        self._pages.clear()

    def _name(self, resource: Resource, meta: dict[str, Any]) -> None:
        """By `generateName`, where there is no name."""
        for _ in range(NAME_TRIES if meta.get("generateName") and not meta.get("name") else 0):
            name = meta["generateName"] + secrets.token_hex(3)[:5]
            if self.store.get(Key(resource, meta["namespace"], name)) is None:
                meta["name"] = name
                return


def merge(base: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, dict):
        return patch
    found = dict(base) if isinstance(base, dict) else {}
    for key, value in patch.items():
        if value is None:
            found.pop(key, None)
        else:
            found[key] = merge(found.get(key), value)
    return found


def _readable(resource: Resource, body: Object) -> Object:
    """Its own copy, without nulls, which mean that nothing is said."""
    obj = {"kind": resource.kind, "apiVersion": resource.api_version, "metadata": {}, **_without_nulls(body)}
    check_schema(resource, obj)
    check_quantities(obj)
    return obj


def _patched(resource: Resource, merged: Object) -> Object:
    """A patch that makes an object unreadable is invalid; only an unknown field is a bad request."""
    try:
        return _readable(resource, merged)
    except ApiError as e:
        if "Additional properties" in str(e):
            raise
        name = merged.get("metadata", {}).get("name", "")
        raise status.invalid(resource.kind, resource.group, name, [Cause("FieldValueInvalid", "patch", str(e))]) from e


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_nulls(v) for k, v in value.items() if v is not None}
    return [_without_nulls(one) for one in value] if isinstance(value, list) else value


def _refuse(resource: Resource, obj: Object, causes: list[Cause]) -> None:
    if causes:
        raise status.invalid(resource.kind, resource.group, obj["metadata"].get("name", ""), causes)


def _check_priority(resource: Resource, obj: Object) -> None:
    name = obj.get("spec", {}).get("priorityClassName")
    if resource == PODS and name and name not in PRIORITY_CLASSES:
        raise status.forbidden(PODS, obj["metadata"].get("name", ""), f"no PriorityClass with name {name} was found")


def _check_identity(target: Target, before: Object, after: Object) -> None:
    old, new = before["metadata"], after["metadata"]
    for field in ("name", "namespace"):
        if new.get(field) != old.get(field):
            raise status.bad_request(f"the {field} of the object does not match the {field} on the URL")
    if new.get("uid") != old["uid"]:
        cause = Cause("FieldValueInvalid", "metadata.uid", f"Invalid value: {new.get('uid')!r}: field is immutable")
        raise status.invalid(target.resource.kind, target.resource.group, target.name, [cause])
    if new.get("resourceVersion") != old["resourceVersion"]:
        why = "the object has been modified; please apply your changes to the latest version and try again"
        raise status.conflict(target.resource, target.name, why)


def _check_preconditions(resource: Resource, obj: Object, options: DeleteOptions) -> None:
    meta = obj["metadata"]
    for wanted, found in ((options.uid, meta["uid"]), (options.version, meta["resourceVersion"])):
        if wanted is not None and wanted != found:
            raise status.conflict(resource, meta["name"], f"Precondition failed: {wanted} is not {found}")


def _grace_s(resource: Resource, obj: Object, asked: int | None) -> int:
    """Only a pod on a node that has not ended has time to stop."""
    if resource != PODS or not obj["spec"].get("nodeName") or obj["status"].get("phase") in ENDED:
        return 0
    return asked if asked is not None else int(obj["spec"]["terminationGracePeriodSeconds"])

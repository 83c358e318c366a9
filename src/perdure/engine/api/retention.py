"""Acts on retention: how long ended runs are kept, and what is being exported and removed.

An administrator of a namespace sets its policies; that of all namespaces belongs to credentials that are bound to none.
"""

from __future__ import annotations

from typing import Final

from perdure.core.api import retention as acts
from perdure.core.api.retention import (
    GetRetentionStatus,
    ListPolicies,
    PolicyPage,
    PolicyRef,
    PolicyView,
    RetentionJobView,
    RetentionStatus,
    SetPolicy,
)
from perdure.core.errors import Forbidden, InvalidInput, LimitReached, NotFound
from perdure.core.names import checked_name
from perdure.core.retention import checked_days, shown_days
from perdure.core.retention_limits import RETENTION_POLICIES_MAX
from perdure.core.suggestions import did_you_mean
from perdure.engine.api.api import NamespaceApi, handles, page_limit
from perdure.engine.retention_port import RetentionJob

EVERYWHERE: Final = "everywhere"
SCOPES: Final = (EVERYWHERE, "namespace", "workflow")
UNNAMED: Final = "-"
"""In place of a name, where a scope has none."""


@handles(acts.LIST)
async def list_policies(api: NamespaceApi, r: ListPolicies) -> PolicyPage:
    return PolicyPage(await api.ports.retention.policies(api.ns), api.engine.settings.retention_days)


@handles(acts.SET)
async def set_policy(api: NamespaceApi, r: SetPolicy) -> PolicyView:
    """It holds for runs that have ended already, too."""
    ns, workflow = _place(api, r.scope, r.name)
    days = checked_days(r.days)
    policy = await api.ports.retention.set_policy(ns, workflow, days, api.by)
    if policy is None:
        raise LimitReached(
            f"this namespace has RETENTION_POLICIES_MAX={RETENTION_POLICIES_MAX} policies; remove one that is not needed"
        )
    await api.record("retention.set", _shown(r.scope, workflow), keep=shown_days(days))
    return policy


@handles(acts.REMOVE)
async def remove_policy(api: NamespaceApi, r: PolicyRef) -> None:
    """The next wider policy counts from now on."""
    ns, workflow = _place(api, r.scope, r.name)
    if not await api.ports.retention.remove_policy(ns, workflow):
        raise NotFound(
            f"{_shown(r.scope, workflow)} has no retention policy of its own; `perdure retention list` shows the existing ones"
        )
    await api.record("retention.remove", _shown(r.scope, workflow))


@handles(acts.STATUS)
async def status(api: NamespaceApi, r: GetRetentionStatus) -> RetentionStatus:
    """Jobs are those of the whole database: a day holds runs of all namespaces."""
    found = await api.ports.retention.jobs(page_limit(r.limit))
    settings = api.engine.settings
    return RetentionStatus(
        [_view(job) for job in found], await api.ports.retention.export_address(), settings.retention_format
    )


def _place(api: NamespaceApi, scope: str, name: str) -> tuple[int, str]:
    """The number of the namespace, 0 for all of them, and the workflow."""
    if scope not in SCOPES:
        raise InvalidInput(
            f"{scope[:50]!r} cannot have a retention policy; these can: {', '.join(SCOPES)}. {did_you_mean(scope, SCOPES)}".strip()
        )
    if scope == "workflow":
        return api.ns, checked_name("workflow", name)
    if name not in ("", UNNAMED):
        raise InvalidInput(f"a policy of scope {scope} has no name; write {UNNAMED} and not {name[:50]!r}")
    if scope == EVERYWHERE and api.caller.principal.namespace is not None:
        raise Forbidden("the policy of all namespaces is set with a credential that is bound to none of them")
    return (0 if scope == EVERYWHERE else api.ns), ""


def _shown(scope: str, workflow: str) -> str:
    return f"{scope}/{workflow}" if workflow else scope


def _view(job: RetentionJob) -> RetentionJobView:
    return RetentionJobView(
        id=job.id,
        name=job.name,
        action=job.action,
        status=job.status,
        expected=job.expected,
        exported=job.runs,
        exported_bytes=job.bytes_,
        removed=job.removed,
        kept=job.kept,
        address=job.url,
        format=job.format,
        error=job.error,
        created_us=job.created_us,
        updated_us=job.updated_us,
        finished_us=job.finished_us,
    )

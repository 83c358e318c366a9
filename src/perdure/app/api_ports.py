"""The ports of the API on PostgreSQL, over one pool."""

from __future__ import annotations

from perdure.app.secret_box import SecretBox
from perdure.engine.api.api import ApiPorts
from perdure.engine.api.audit import Audit
from perdure.store.api_keys import Keys, PostgresAuditLog
from perdure.store.approvals import PostgresApprovals
from perdure.store.bulk_jobs import PostgresBulkJobs
from perdure.store.dead_letters import PostgresDeadLetters
from perdure.store.definitions import PostgresDefinitions
from perdure.store.flow_control_rules import PostgresFlowControlRules
from perdure.store.outbox import PostgresOutbox
from perdure.store.postgres import PostgresStore
from perdure.store.reads import PostgresReads
from perdure.store.retention import PostgresRetention
from perdure.store.saved_views import PostgresSavedViews
from perdure.store.services import PostgresServices
from perdure.store.sql_requests import PostgresSqlRequests


def api_ports(
    store: PostgresStore,
    *,
    reads: PostgresReads | None = None,
    definitions: PostgresDefinitions | None = None,
    secrets: SecretBox | None = None,
    is_audited: bool = True,
) -> ApiPorts:
    """`reads` and `definitions` may have pools of their own, so that they do not wait for commits."""
    pool = store.pool
    return ApiPorts(
        store=store,
        reads=reads or PostgresReads(pool),
        definitions=definitions or PostgresDefinitions(pool),
        approvals=PostgresApprovals(pool),
        rules=PostgresFlowControlRules(pool),
        dead_letters=PostgresDeadLetters(pool),
        services=PostgresServices(pool),
        outbox=PostgresOutbox(pool),
        retention=PostgresRetention(pool),
        views=PostgresSavedViews(pool),
        bulk_jobs=PostgresBulkJobs(pool),
        sql_requests=PostgresSqlRequests(pool),
        keys=Keys(pool),
        audit=Audit(PostgresAuditLog(pool)),
        secrets=secrets or SecretBox(),
        is_audited=is_audited,
    )

"""Every column of the schema that can hold text or bytes: sealed, or in the clear for a reason.

A test holds this against the schema, so that a new column has to be decided about. docs/how-to/encrypt-payloads.md prints it.
"""

from __future__ import annotations

from typing import Final

SEALED: Final[dict[str, tuple[str, ...]]] = {
    "bulk_job": ("payload",),
    "decided_approval": ("spec", "votes"),
    "deferred_start": ("request", "input"),
    "deferred_start_input": ("input",),
    "event_start": ("error",),
    "history": ("body",),
    "idempotency": ("answer",),
    "inbox": ("body",),
    "named_event": ("body",),
    "notification": ("data",),
    "payload_chunk": ("data",),
    "promise": ("spec",),
    "run": ("error",),
    "run_queue": ("stuck",),
    "run_state": ("value",),
    "schedule": ("input", "error"),
    "service_callback": ("result", "error"),
    "set_aside_message": ("body",),
    "task": ("error", "traceback"),
    "task_attempt": ("error", "traceback"),
    "task_log": ("body",),
    "task_queue": ("options", "input", "error", "details"),
    "update_answer": ("value", "failure"),
    "vote": ("value", "comment"),
}
"""Table -> columns that hold user data. Of `spec`, the members that statements look at stay in the clear; of `stuck`, the code; of `data` and
`votes`, all but texts that are sealed elsewhere."""

NAMES: Final = "names and ids: statements find rows by them"
ATTRIBUTES: Final = "search attributes: statements find runs by them"
PEOPLE: Final = "who may or did act, and the reason an operator gave"
DEFINITIONS: Final = "definitions: the code of flows, schedules, calendars, rules and queries, not the data of runs"
MACHINERY: Final = "words and hashes of Perdure itself"
SECRETS: Final = "sealed with PERDURE_SECRET_KEY, hashed, or a key of Perdure itself"
DIGESTS: Final = "a digest of user data: who can guess the data can confirm the guess"
OUTSIDE: Final = "written in the transactions of applications, which have no key"

IN_CLEAR: Final[dict[str, dict[str, str]]] = {
    NAMES: {
        "api_key": "id name",
        "bulk_job": "key signal",
        "bulk_job_run": "message",
        "calendar": "name",
        "decided_approval": "name",
        "dedup": "workflow key",
        "deferred_start": "workflow key argument",
        "engine_backlog": "queue name",
        "event_look": "name event",
        "event_start": "workflow version",
        "flow_control_bucket": "key",
        "flow_control_group": "queue name workflow fair needs",
        "flow_control_rule": "name",
        "flow_control_slot": "key",
        "idempotency": "key",
        "inbox": "name",
        "message_key": "key",
        "named_event": "name key source after_name",
        "namespace": "name",
        "node_count": "node",
        "notification": "workflow hook occurrence",
        "notification_rule": "name workflows",
        "promise": "name event",
        "retention_job": "name",
        "retention_look": "name",
        "retention_policy": "workflow",
        "run": "workflow version key",
        "run_count": "workflow",
        "run_duration": "workflow",
        "run_key": "key",
        "run_queue": "workflow version key pin",
        "run_state": "name",
        "saved_view": "name",
        "schedule": "name workflow version origin",
        "service_callback": "job",
        "service_instance": "id url services",
        "set_aside_message": "name",
        "task": "name queue worker node error_type",
        "task_attempt": "name worker node error_type",
        "task_queue": "name queue node worker trace",
        "task_type": "name",
        "update_answer": "id",
        "vote": "name",
        "web_session": "name namespace",
        "webhook": "name",
        "worker": "name host sdk queues tasks workflows versions build_id",
        "workflow": "name current previous ramp",
        "workflow_version": "workflow version build_id on_events",
    },
    ATTRIBUTES: {"run": "attributes", "run_queue": "attributes", "schedule": "attributes"},
    PEOPLE: {
        "api_key": "created_by",
        "audit": "actor action target detail",
        "bulk_job": "reason created_by",
        "calendar": "updated_by",
        "decided_approval": "assignees escalate_to voters",
        "flow_control_rule": "paused_by pause_reason updated_by",
        "notification_rule": "created_by address",
        "promise": "assignees escalate_to",
        "retention_policy": "updated_by",
        "run_queue": "paused_by pause_reason",
        "saved_view": "updated_by",
        "schedule": "created_by paused_by pause_reason",
        "vote": "who via",
        "web_session": "subject",
        "webhook": "created_by",
    },
    DEFINITIONS: {
        "bulk_job": "query",
        "calendar": "spec",
        "notification_rule": "kinds target",
        "saved_view": "query",
        "schedule": "spec",
        "task_type": "signature options",
        "webhook": "event key scheme signal",
        "workflow": "description",
        "workflow_version": "document source control parameters messages hooks subscriptions",
    },
    MACHINERY: {
        "api_key": "role scopes",
        "audit_chain": "hash",
        "audit_head": "hash",
        "bulk_job": "action status error",
        "bulk_job_run": "outcome",
        "deferred_start": "kind",
        "engine_session": "engine",
        "event_start": "outcome",
        "flow_control_group": "kind blocked reason",
        "flow_control_rule": "scope",
        "history": "hash",
        "inbox": "kind",
        "migration": "name checksum",
        "node_count": "what",
        "notification": "kind status error",
        "payload_key": "master",
        "promise": "kind",
        "retention": "parent",
        "retention_export": "url",
        "retention_job": "action status rules url format error",
        "retention_part": "object sha256",
        "run": "kind status error_code head",
        "run_queue": "kind status waiting_on wait_reasons full_signals head",
        "schedule": "spec_hash",
        "schedule_fire": "how outcome",
        "service_callback": "phase",
        "set_aside_message": "kind reason",
        "task": "status error_code",
        "task_attempt": "outcome error_code",
        "task_queue": "status blocked",
        "used_link": "id",
        "web_session": "role",
        "worker": "blocked",
        "workflow": "kind",
        "workflow_version": "kind hash",
    },
    SECRETS: {
        "api_key": "hash",
        "notification_rule": "secret",
        "payload_key": "wrapped",
        "secret": "name value",
        "web_session": "hash key_id",
        "webhook": "secret old_secret",
    },
    DIGESTS: {
        "decided_approval": "question",
        "idempotency": "hash",
        "payload": "store sha256",
        "promise": "wait_key question",
        "payload_chunk": "store sha256",
        "payload_garbage": "store sha256",
        "payload_part": "store sha256 part_store part_sha256",
        "payload_use": "store sha256",
        "run_key": "input_hash",
    },
    OUTSIDE: {"sql_request": "act name run_key payload key options by error", "task_effect": "result"},
}
"""Reason -> table -> columns."""


def is_text(table: str, column: str) -> bool:
    """Whether a sealed column holds words within text, not bytes."""
    return column in ("comment", "error", "spec", "stuck", "traceback", "votes") or (table, column) == (
        "notification",
        "data",
    )

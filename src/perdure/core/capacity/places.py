"""Where each table lives when there are many databases; docs/concepts/scale.md says how rows are found.

run     with the run whose id they hold: the id names the shard
engine  with the engines of that database; each database has engines of its own
key     on the home of a key: a slot of the hash of its name
copy    written on one shard, the home of the namespace, and read from copies on the others
local   on every shard about itself
"""

from __future__ import annotations

from typing import Final, Literal

Home = Literal["run", "key", "copy", "every", "local"]
HOMES: Final[dict[str, Home]] = {
    "namespace": "copy",
    "engine_session": "local",
    "commit_log": "local",
    "worker": "local",
    "engine_backlog": "local",
    "workflow": "copy",
    "workflow_version": "copy",
    "task_type": "copy",
    "run_queue": "run",
    "run": "run",
    "run_count": "local",
    "run_duration": "local",
    "run_key": "key",
    "saved_view": "copy",
    "bulk_job": "every",
    "bulk_job_run": "run",
    "history": "run",
    "run_state": "run",
    "payload": "run",
    "payload_chunk": "run",
    "payload_garbage": "run",
    "payload_key": "local",
    "payload_part": "run",
    "payload_use": "run",
    "task_queue": "run",
    "task": "run",
    "task_attempt": "run",
    "node_count": "run",
    "task_log": "run",
    "inbox": "run",
    "message_key": "run",
    "promise": "run",
    "vote": "run",
    "decided_approval": "run",
    "used_link": "run",
    "secret": "copy",
    "update_answer": "run",
    "named_event": "every",
    "event_start": "key",
    "webhook": "copy",
    "service_instance": "copy",
    "service_callback": "run",
    "flow_control_rule": "copy",
    "flow_control_group": "run",
    "flow_control_slot": "key",
    "flow_control_bucket": "key",
    "deferred_start": "key",
    "deferred_start_input": "key",
    "dedup": "key",
    "sql_request": "local",
    "task_effect": "run",
    "calendar": "copy",
    "schedule": "key",
    "schedule_fire": "key",
    "notification_rule": "copy",
    "notification": "run",
    "api_key": "copy",
    "web_session": "key",
    "idempotency": "key",
    "audit": "local",
    "audit_chain": "local",
    "audit_head": "local",
    "retention": "local",
}

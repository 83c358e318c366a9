"""Database roles with no more rights than they need.

    owner    ran `perdure migrate`; owns the schema; no process needs it afterwards
    engine   what engines and servers connect as: reads and writes rows, changes no schema, rewrites no history and no audit
    reader   for people and dashboards: selects, and does not see the hashes of keys
    caller   for applications with tables in the same database: starts runs and sends messages in its transactions, and nothing else

All are groups that cannot log in: grant them to the users that do. `perdure migrate --roles` applies the tables below and
takes away everything else, so that it is right again after every migration. A table that is missing here is closed to all roles.

Identifiers cannot be parameters; the ones spliced in here are this module's own, and role names that passed ROLE_NAME.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from asyncpg import exceptions as pg

from perdure.core.errors import InvalidInput, MigrationError
from perdure.store.connect import connect
from perdure.store.queries import execute, fetch_row

ENGINE_ROLE: Final = "perdure_engine"
READER_ROLE: Final = "perdure_reader"
CALLER_ROLE: Final = "perdure_caller"
ROLE_NAME = re.compile(r"(?!pg_)[a-z_][a-z0-9_]{0,62}")

_ROWS: Final = "select, insert, update, delete"

ENGINE_GRANTS: Final = {
    "migration": "select",
    "namespace": "select, insert, update (name, deleted_at)",
    "workflow": "select, insert, update",
    "workflow_version": "select, insert, update (control, parameters, messages, hash, pinned, build_id, seen_at, hooks, subscriptions, on_events)",
    "task_type": "select, insert, update",
    "engine_session": _ROWS,
    "commit_log": "select, insert, delete",
    "run_queue": _ROWS,
    "active_run_list": "select",
    "ended_run_list": "select",
    "run": "select, insert, delete",  # a run that is opened again moves back
    "run_count": _ROWS,
    "run_duration": _ROWS,
    "run_key": _ROWS,
    "run_chain": _ROWS,
    "history": "select, insert",
    "task": "select, insert, delete",  # and what failed in it is written anew
    "task_attempt": "select, insert, delete",  # one that counted as lost and was not
    "attempt": "select",
    "task_queue": _ROWS,
    "inbox": _ROWS,
    "set_aside_message": _ROWS,
    "promise": _ROWS,
    "vote": _ROWS,
    "decided_approval": _ROWS,
    "message_key": _ROWS,
    "used_link": _ROWS,
    "secret": "select, insert",
    "named_event": _ROWS,
    "event_look": _ROWS,
    "event_start": _ROWS,
    "webhook": _ROWS,
    "service_instance": _ROWS,
    "service_callback": _ROWS,
    "update_answer": _ROWS,
    "flow_control_rule": _ROWS,
    "flow_control_group": _ROWS,
    "flow_control_slot": _ROWS,
    "flow_control_bucket": _ROWS,
    "deferred_start": _ROWS,
    "deferred_start_input": _ROWS,
    "dedup": _ROWS,
    "sql_request": _ROWS,
    "task_effect": _ROWS,
    "calendar": _ROWS,
    "saved_view": _ROWS,
    "bulk_job": _ROWS,
    "bulk_job_run": _ROWS,
    "schedule": _ROWS,
    "schedule_fire": _ROWS,
    "notification_rule": _ROWS,
    "notification": _ROWS,
    "node_count": _ROWS,
    "run_state": _ROWS,
    "payload": _ROWS,
    "payload_chunk": _ROWS,
    "payload_garbage": _ROWS,
    "payload_part": _ROWS,
    "payload_use": "select, insert",
    "worker": _ROWS,
    "engine_backlog": _ROWS,
    "task_log": "select, insert, delete",
    "api_key": "select, insert, update (last_used_at, revoked_at)",
    "web_session": "select, insert, update (used_at), delete",
    "audit": "select, insert",
    "audit_chain": "select",
    "audit_head": "select",
    "retention": "select",
    "retention_policy": _ROWS,
    "retention_job": "select, insert, update",
    "retention_export": _ROWS,
    "retention_part": "select, insert, delete",
    "retention_kept": "select, delete",
    "retention_look": "select, insert, update",
    "retention_hold": _ROWS,
    "idempotency": _ROWS,
    "payload_key": "select, insert, update (master, wrapped, rewrapped_at)",
}
"""Table -> what an engine may do with its rows. Partitions are reached through their table."""

_OF_ATTEMPTS: Final = ("attempt_outcome(text, text)", "is_attempt(text, int, timestamptz, text)")
CALLER_FUNCTIONS: Final = (
    "start(text, jsonb, text, jsonb)",
    "requested_start(uuid)",
    "signal(text, text, jsonb, text, jsonb)",
    "signal(uuid, text, jsonb, text, jsonb)",
    "emit(text, jsonb, text, jsonb)",
    "begin_effect(uuid, int)",
    "end_effect(uuid, int, bytea)",
)
ENGINE_FUNCTIONS: Final = (
    "clock()",
    "create_partition(text, text, uuid, uuid)",
    "drop_partition(text, text)",
    "delete_run(uuid, integer, uuid, uuid)",
    "retention_rules(double precision)",
    "is_expired(jsonb, int, text, timestamptz, timestamptz)",
    "begin_removal(uuid, int)",
    "drop_expired(uuid, int, text)",
    "delete_expired(uuid, int, int)",
    "import_namespace(int, text)",
    "votes(uuid, text)",
    "count_runs(int[], text[], text[], timestamptz[], timestamptz[], int)",
    "first_id(timestamptz)",
    "note_ends(uuid[], int[], text[], text[], text[], text[], timestamptz[], timestamptz, int[], text[], text[], uuid[])",
    "chain(bytea, timestamptz, uuid, int, int, int, int, bytea)",
    *_OF_ATTEMPTS,
    *CALLER_FUNCTIONS,
)

_KEY_COLUMNS: Final = (
    "id, ns, name, role, scopes, rate_per_s, created_at, created_by, expires_at, revoked_at, last_used_at"
)
READER_GRANTS: Final = {
    **dict.fromkeys(ENGINE_GRANTS, "select"),
    "api_key": f"select ({_KEY_COLUMNS})",
    "secret": "select (name, created_at)",
    "payload_key": "select (id, master, created_at, rewrapped_at)",
    "webhook": "select (ns, name, event, key, scheme, signal, old_until, created_at, created_by)",
    "notification_rule": "select (id, ns, name, workflows, kinds, late_after_us, target, address, created_at, created_by, dropped)",
    "web_session": "select (subject, name, key_id, role, namespace, created_at, used_at, expires_at)",
}
READER_FUNCTIONS: Final = ("clock()", *_OF_ATTEMPTS)


async def apply_roles(
    dsn: str, engine_role: str = ENGINE_ROLE, reader_role: str = READER_ROLE, caller_role: str = CALLER_ROLE
) -> None:
    """Create the roles where necessary and give them exactly the rights above. Needs the schema's owner, and CREATEROLE for new roles."""
    names = (engine_role, reader_role, caller_role)
    for role in names:
        if not ROLE_NAME.fullmatch(role):
            raise InvalidInput(
                f"{role!r} cannot name a role: use lower-case letters, digits and _, and do not begin with pg_"
            )
    if len(set(names)) < len(names):
        raise InvalidInput(f"two of the roles {', '.join(names)} are one: it would have the rights of both")
    async with connect(dsn) as c:
        try:
            # The lock of the migrations: tables that come meanwhile get their rights too.
            async with c.transaction(isolation="read_committed"):
                await execute(c, "lock_migrations")
                await _apply(c, engine_role, ENGINE_GRANTS, ENGINE_FUNCTIONS)
                await _apply(c, reader_role, READER_GRANTS, READER_FUNCTIONS)
                await _apply(c, caller_role, {}, CALLER_FUNCTIONS)
        except pg.InsufficientPrivilegeError as e:
            raise InvalidInput(
                f"{e}. Connect as the role that migrated this database; to create roles it needs CREATEROLE, or create "
                f"{', '.join(names)} beforehand."
            ) from e
        except (pg.UndefinedTableError, pg.InvalidSchemaNameError, pg.UndefinedFunctionError) as e:
            raise MigrationError(f"{e}: run `perdure migrate` on this database first") from e


async def _apply(c: Any, role: str, grants: dict[str, str], functions: tuple[str, ...]) -> None:
    found = await fetch_row(c, "inspect_role", role=role)
    if found is None:
        await c.execute(f"create role {role} nologin")
    elif found["powerful"]:
        raise InvalidInput(
            f"role {role} is a superuser, may create roles or databases, or is or belongs to the owner of Perdure's tables: nothing can be taken "
            "from it. Choose another name."
        )
    for statement in statements(role, grants, functions):
        await c.execute(statement)


def statements(role: str, grants: dict[str, str], functions: tuple[str, ...]) -> Iterator[str]:
    """First nothing, then exactly this."""
    yield f"revoke all on schema perdure from {role}"
    yield f"revoke all on all tables in schema perdure from {role}"
    yield f"revoke all on all sequences in schema perdure from {role}"
    yield f"revoke all on all functions in schema perdure from {role}"
    yield f"grant usage on schema perdure to {role}"
    for table, rights in grants.items():
        yield f"grant {rights} on perdure.{table} to {role}"
    for function in functions:
        yield f"grant execute on function perdure.{function} to {role}"

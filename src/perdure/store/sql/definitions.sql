-- Workflows by name, requests by idempotency key. None of it is on the path of a run.

-- name: register_workflow
-- A version of code. True when it is new. A deleted workflow is restored. `kind` of a workflow is that of its current version.
with added as (
  insert into perdure.workflow_version (ns, workflow, version, kind) values (:ns, :workflow, :version, 'code') on conflict do nothing returning version
),
named as (
  insert into perdure.workflow (ns, name, kind, current, description) values (:ns, :workflow, 'code', :version, :description)
  on conflict (ns, name) do update
    set kind = excluded.kind, current = excluded.current, description = coalesce(excluded.description, workflow.description), deleted_at = null
)
select exists(select from added) as added;

-- name: deploy_workflow
-- A version of a flow with its document. `activate` makes it the current one, which the first one always is.
with added as (
  insert into perdure.workflow_version (ns, workflow, version, kind, document, source, control, timeout_us)
  values (:ns, :workflow, :version, :kind, :document, :source, :control, :timeout_us)
  on conflict do nothing returning version
),
named as (
  insert into perdure.workflow (ns, name, kind, current, description) values (:ns, :workflow, :kind, :version, :description)
  on conflict (ns, name) do update
    set kind = case when :activate then excluded.kind else workflow.kind end, current = case when :activate then excluded.current else workflow.current end,
        description = case when :activate then excluded.description else workflow.description end, deleted_at = null
)
select exists(select from added) as added;

-- name: set_current_version
-- Point a workflow at a version that it has.
update perdure.workflow w set current = v.version, kind = v.kind, deleted_at = null
  from perdure.workflow_version v
 where w.ns = :ns and w.name = :name and v.ns = w.ns and v.workflow = w.name and v.version = :version
returning w.name;

-- name: current_versions
select name, current from perdure.workflow where ns = :ns and name = any(:names::text[]) and deleted_at is null;

-- name: get_definition
select version, kind, document, source, registered_at from perdure.workflow_version where ns = :ns and workflow = :workflow and version = :version;

-- name: save_task_types
-- Only what changed is written: workers say the same again and again.
insert into perdure.task_type (ns, name, signature, options)
select :ns, u.name, u.signature, u.options from unnest(:types.name::text[], :types.signature::text[], :types.options::text[]) as u(name, signature, options) order by u.name
on conflict (ns, name) do update set signature = excluded.signature, options = excluded.options, seen_at = now()
  where task_type.signature <> excluded.signature or task_type.options is distinct from excluded.options
    or task_type.seen_at < now() - interval '1 day';

-- name: save_task_options
-- The tasks of one process and the options that they declare. Locks rows of task_type in the order of their names; only what changed is written.
insert into perdure.task_type (ns, name, signature, options)
select :ns, u.name, '{}', u.options from unnest(:tasks.name::text[], :tasks.options::text[]) as u(name, options) order by u.name
on conflict (ns, name) do update set options = excluded.options, seen_at = now()
  where task_type.options is distinct from excluded.options;

-- name: task_options
-- What tasks of a namespace declare; few have anything to declare (partial index). No locks.
select name, options from perdure.task_type where ns = :ns and options is not null order by name limit :limit;

-- name: task_types
select name, signature from perdure.task_type where ns = :ns order by name limit :limit;

-- name: delete_workflow
update perdure.workflow set deleted_at = now() where ns = :ns and name = :name and deleted_at is null returning name;

-- name: insert_request
-- The first one to use a key leaves its digest. Null when another request used it at this very moment: ask again.
with added as (
  insert into perdure.idempotency (ns, key, hash) values (:ns, :key, :hash) on conflict do nothing returning hash
)
select exists(select from added) as first, coalesce((select hash from added), (select hash from perdure.idempotency where ns = :ns and key = :key)) as hash;

-- name: send_message_once
-- A message and the key under which it was sent, both or neither. KEY SHARE on the run keeps it from ending meanwhile.
with target as (
  select run_id, ns from perdure.run_queue where run_id = :run_id and ns = :ns for key share
),
added as (
  insert into perdure.idempotency (ns, key, hash, status) select ns, :key, :hash, 202 from target on conflict do nothing returning hash
),
sent as (
  insert into perdure.inbox (ns, run_id, body) select ns, run_id, :body from target where exists(select from added)
)
select exists(select from target) as active, exists(select from added) as sent,
       coalesce((select hash from added), (select hash from perdure.idempotency where ns = :ns and key = :key)) as hash;

-- name: delete_old_requests
delete from perdure.idempotency i using (
  select ns, key from perdure.idempotency where created_at < now() - make_interval(secs => :age_s::float8) order by created_at limit :limit
) o where i.ns = o.ns and i.key = o.key;

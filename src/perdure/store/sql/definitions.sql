-- Workflows by name, requests by idempotency key. None of it is on the path of a run.

-- name: register_workflow
-- A version of code. True when it is new. A deleted workflow is restored. `kind` of a workflow is that of its current version.
with added as (
  insert into perdure.workflow_version (ns, workflow, version, kind) values (:ns, :workflow, :version, 'code') on conflict do nothing returning version
),
named as (
  insert into perdure.workflow (ns, name, kind, current, description) values (:ns, :workflow, 'code', :version, :description)
  on conflict (ns, name) do update
    set kind = excluded.kind, current = excluded.current, description = coalesce(excluded.description, workflow.description), deleted_at = null,
        previous = case when workflow.current <> excluded.current then workflow.current else workflow.previous end, ramp = null, ramp_percent = 0
)
select exists(select from added) as added;

-- name: deploy_workflow
-- A version of a flow with its document. `activate` makes it the current one, which the first one always is.
with added as (
  insert into perdure.workflow_version (ns, workflow, version, kind, document, source, control, timeout_us, hooks, subscriptions, on_events)
  values (:ns, :workflow, :version, :kind, :document, :source, :control, :timeout_us, :hooks::text::jsonb, :subscriptions, :on_events)
  on conflict do nothing returning version
),
named as (
  insert into perdure.workflow (ns, name, kind, current, description) values (:ns, :workflow, :kind, :version, :description)
  on conflict (ns, name) do update
    set kind = case when :activate then excluded.kind else workflow.kind end, current = case when :activate then excluded.current else workflow.current end,
        description = case when :activate then excluded.description else workflow.description end, deleted_at = null,
        previous = case when :activate and workflow.current <> excluded.current then workflow.current else workflow.previous end,
        ramp = case when :activate then null else workflow.ramp end, ramp_percent = case when :activate then 0 else workflow.ramp_percent end
)
select exists(select from added) as added;

-- name: set_current_version
-- All new runs get this version of the workflow. `rollback` forgets which one was current before.
update perdure.workflow w
   set previous = case when :rollback then null when w.current <> v.version then w.current else w.previous end,
       current = v.version, kind = v.kind, deleted_at = null, ramp = null, ramp_percent = 0, by_hand = not :automatic
  from perdure.workflow_version v
 where w.ns = :ns and w.name = :name and v.ns = w.ns and v.workflow = w.name and v.version = :version
returning w.name;

-- name: set_ramp
-- A part of new runs gets this version, or none does (null).
update perdure.workflow w set ramp = :version, ramp_percent = :percent, by_hand = true, deleted_at = null
 where w.ns = :ns and w.name = :name and w.current is distinct from :version
   and (:version::text is null or exists (select from perdure.workflow_version v where v.ns = w.ns and v.workflow = w.name and v.version = :version))
returning w.name;

-- name: newest_served
-- The version that would be current if none had been set by hand: the newest that a worker serves, else the newest.
select v.version from perdure.workflow_version v
 where v.ns = :ns and v.workflow = :name
 order by exists(select from perdure.worker k where k.ns = v.ns and k.versions->>v.workflow = v.version) desc, v.registered_at desc limit 1;

-- name: version_state
select w.name, w.kind, w.current, w.previous, w.ramp, w.ramp_percent, w.by_hand from perdure.workflow w where w.ns = :ns and w.name = :name;

-- name: count_versions
-- The newest versions, with the workers that serve each, and runs in flight: those that are pinned to it, and others. Each is counted up
-- to count_max; runs in the memory of engines are counted in full.
with held as materialized (
  select q.version, q.pin, count(*)::int as runs from perdure.run_queue q where q.owner is not null and q.ns = :ns and q.workflow = :workflow group by 1, 2
),
loose as materialized (
  select l.version, count(*)::int as runs from (
    select q.version from perdure.run_queue q where q.ns = :ns and q.workflow = :workflow and q.pin = '' and q.owner is null limit :count_max) l group by 1
)
select v.version, v.kind, v.registered_at, v.hash, v.pinned, v.build_id, v.seen_at,
       (select count(*)::int from perdure.worker k where k.ns = v.ns and k.versions->>v.workflow = v.version) as workers,
       (select count(*)::int from (
          select from perdure.run_queue q where q.ns = v.ns and q.workflow = v.workflow and q.pin = v.version and q.owner is null limit :count_max) p)
         + coalesce((select sum(h.runs)::int from held h where h.pin = v.version), 0) as runs_pinned,
       coalesce((select l.runs from loose l where l.version = v.version), 0)
         + coalesce((select sum(h.runs)::int from held h where h.version = v.version and h.pin = ''), 0) as runs_loose
  from perdure.workflow_version v
 where v.ns = :ns and v.workflow = :workflow order by v.registered_at desc, v.version limit :limit;

-- name: move_runs
-- Runs that no engine holds and that are pinned to one version are pinned to another. They change when they are claimed. They are
-- reached by id, for an engine may claim them at this moment.
-- Locks: the runs FOR UPDATE SKIP LOCKED.
with found as materialized (
  select q.run_id from perdure.run_queue q
   where q.ns = :ns and q.workflow = :workflow and q.pin = :version and q.owner is null limit :limit for update skip locked
)
update perdure.run_queue q set pin = :to from found f where q.run_id = f.run_id and q.owner is null returning q.run_id;

-- name: current_versions
select w.name, w.current, w.ramp, w.ramp_percent, w.by_hand, coalesce(v.pinned, false) as pinned, coalesce(r.pinned, false) as ramp_pinned
  from perdure.workflow w
  left join perdure.workflow_version v on v.ns = w.ns and v.workflow = w.name and v.version = w.current
  left join perdure.workflow_version r on r.ns = w.ns and r.workflow = w.name and r.version = w.ramp
 where w.ns = :ns and w.name = any(:names::text[]) and w.deleted_at is null;

-- name: get_definition
select version, kind, document, source, registered_at from perdure.workflow_version where ns = :ns and workflow = :workflow and version = :version;

-- name: get_subscriptions
select subscriptions from perdure.workflow_version where ns = :ns and workflow = :workflow and version = :version;

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
-- seals: body message
-- A message and the key under which it was sent, both or neither. KEY SHARE on the run keeps it from ending meanwhile.
-- `outcome`: the limit that keeps the message from the run; 0: none.
with target as (
  select run_id, ns, perdure.limit_outcome(owner is null and perdure.is_inbox_full(run_id, :pending_max), full_signals, 'signal', :name) as outcome
    from perdure.run_queue where run_id = :run_id and ns = :ns for key share
),
added as (
  insert into perdure.idempotency (ns, key, hash, status) select ns, :key, :hash, 202 from target where outcome = 0 on conflict do nothing returning hash
),
sent as (
  insert into perdure.inbox (ns, run_id, body, kind, name) select ns, run_id, :body, 'signal', :name from target where exists(select from added)
)
select exists(select from target) as active, exists(select from added) as sent,
       coalesce((select hash from added), (select hash from perdure.idempotency where ns = :ns and key = :key)) as hash,
       coalesce((select outcome from target), 0) as outcome;

-- name: delete_old_requests
delete from perdure.idempotency i using (
  select ns, key from perdure.idempotency where created_at < now() - make_interval(secs => :age_s::float8) order by created_at limit :limit
) o where i.ns = o.ns and i.key = o.key;

-- What people and programs ask. Nothing here decides anything.

-- name: namespace_id
select id from perdure.namespace where name = :name and deleted_at is null;

-- name: create_namespace
insert into perdure.namespace (name) values (:name) on conflict (name) do update set name = excluded.name returning id;

-- name: register_versions
-- What a process serves is the current version of its workflows; one that was deleted comes back to life.
with added as (
  insert into perdure.workflow_version as v (ns, workflow, version, kind, control, parameters)
  select :ns, u.workflow, u.version, 'code', u.control, u.parameters
    from unnest(:versions.workflow::text[], :versions.version::text[], :versions.control::text[], :versions.parameters::text[]) as u(workflow, version, control, parameters) order by u.workflow
  on conflict (ns, workflow, version) do update set control = excluded.control, parameters = excluded.parameters
   where (v.control, v.parameters) is distinct from (excluded.control, excluded.parameters)
)
insert into perdure.workflow (ns, name, kind, current)
select :ns, u.workflow, 'code', u.version from unnest(:versions.workflow::text[], :versions.version::text[]) as u(workflow, version) order by u.workflow
on conflict (ns, name) do update set current = excluded.current, kind = excluded.kind, deleted_at = null
  where (workflow.current <> excluded.current and workflow.kind = 'code') or workflow.deleted_at is not null;

-- name: workflow_parameters
-- What a version of a Python workflow takes, as its workers last said.
select parameters from perdure.workflow_version where ns = :ns and workflow = :workflow and version = :version;

-- name: run_by_key
select k.run_id, k.input_hash from perdure.run_key k where k.ns = :ns and k.key = :key;

-- name: get_run
select run_id, ns, workflow, version, key, status, created_at, null::timestamptz as finished_at, null::int as events,
       null::text as error_code, null::text as error, stuck, wake_at, owner, epoch, null::uuid as successor
  from perdure.run_queue where run_id = :run_id and ns = :ns
union all
select run_id, ns, workflow, version, key, status, created_at, finished_at, events, error_code, error, null, null, null, epoch, successor
  from perdure.run where run_id = :run_id and ns = :ns;

-- name: ended_runs
-- Which of these runs have ended (or are stuck), for those who wait for their results.
select r.run_id, r.status, null::text as stuck from perdure.run r where r.ns = :ns and r.run_id = any(:run_ids::uuid[])
union all
select q.run_id, q.status, q.stuck from perdure.run_queue q where q.ns = :ns and q.run_id = any(:run_ids::uuid[]) and q.stuck is not null;

-- name: history_after
select seq, last, at, body from perdure.history where run_id = :run_id and ns = :ns and last > :after order by seq limit :limit;

-- name: read_state
select value from perdure.run_state where run_id = :run_id and ns = :ns and name = :name;

-- name: release_run_key
-- A start that replaces the holder of its key first takes the key away from it.
delete from perdure.run_key where ns = :ns and key = :key and run_id = :run_id returning run_id;

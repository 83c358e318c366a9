-- Workflows by name, requests by idempotency key. None of it is on the path of a run.

-- name: register_workflow
-- True when the version is new. A deleted workflow comes back to life. `kind` of a workflow is that of its current version.
with added as (
  insert into perdure.workflow_version (ns, workflow, version, kind) values ($1, $2, $3, $4) on conflict do nothing returning version
),
named as (
  insert into perdure.workflow (ns, name, kind, current, description) values ($1, $2, $4, $3, $5)
  on conflict (ns, name) do update
    set kind = excluded.kind, current = excluded.current, description = coalesce(excluded.description, workflow.description), deleted_at = null
)
select exists(select from added) as added;

-- name: delete_workflow
update perdure.workflow set deleted_at = now() where ns = $1 and name = $2 and deleted_at is null returning name;

-- name: remember_request
-- The first one to use a key leaves its digest. Null when another request used it at this very moment: ask again.
with added as (
  insert into perdure.idempotency (ns, key, hash) values ($1, $2, $3) on conflict do nothing returning hash
)
select exists(select from added) as first, coalesce((select hash from added), (select hash from perdure.idempotency where ns = $1 and key = $2)) as hash;

-- name: post_once
-- A message and the key under which it was sent, both or neither. KEY SHARE on the run keeps it from ending meanwhile.
with target as (
  select run_id, ns from perdure.run_queue where run_id = $4 and ns = $1 for key share
),
added as (
  insert into perdure.idempotency (ns, key, hash, status) select ns, $2, $3, 202 from target on conflict do nothing returning hash
),
sent as (
  insert into perdure.inbox (ns, run_id, body) select ns, run_id, $5 from target where exists(select from added)
)
select exists(select from target) as active, exists(select from added) as sent,
       coalesce((select hash from added), (select hash from perdure.idempotency where ns = $1 and key = $2)) as hash;

-- name: forget_requests
-- Keys older than $1 seconds, a batch at a time.
delete from perdure.idempotency i using (
  select ns, key from perdure.idempotency where created_at < now() - make_interval(secs => $1::float8) order by created_at limit $2
) o where i.ns = o.ns and i.key = o.key;

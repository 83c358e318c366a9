-- What people and programs ask. Nothing here decides anything.

-- name: namespace_id
select id from perdure.namespace where name = :name and deleted_at is null;

-- name: create_namespace
insert into perdure.namespace (name) values (:name) on conflict (name) do update set name = excluded.name returning id;

-- name: register_versions
-- Versions of code that a process serves; a deleted workflow comes back to life. Nothing is written if one of them is registered with
-- other code: those are returned. Where none was set by hand, the newest version is current, or an older one that is served while no
-- worker serves the current one.
with offered as materialized (
  select u.* from unnest(:versions.workflow::text[], :versions.version::text[], :versions.control::text[], :versions.parameters::text[],
                         :versions.hash::text[], :versions.pinned::bool[], :versions.build_id::text[], :versions.hooks::text[],
                         :versions.subscriptions::text[], :versions.on_events::text[], :versions.messages::text[])
                    as u(workflow, version, control, parameters, hash, pinned, build_id, hooks, subscriptions, on_events, messages)
),
refused as materialized (
  select u.workflow, u.version from offered u join perdure.workflow_version v on v.ns = :ns and v.workflow = u.workflow and v.version = u.version
   where v.hash <> u.hash
),
added as (
  insert into perdure.workflow_version as v (ns, workflow, version, kind, control, parameters, hash, pinned, build_id, seen_at, hooks, subscriptions, on_events,
                                             messages)
  select :ns, u.workflow, u.version, 'code', u.control, u.parameters, u.hash, u.pinned, u.build_id, now(), u.hooks::jsonb, u.subscriptions,
         -- Arrays of arrays have one length, so the names of each come as JSON.
         (select array_agg(n) from jsonb_array_elements_text(u.on_events::jsonb) n), u.messages
    from offered u where not exists (select from refused) order by u.workflow, u.version
  on conflict (ns, workflow, version) do update
     set control = excluded.control, parameters = excluded.parameters, hash = coalesce(v.hash, excluded.hash), pinned = excluded.pinned,
         build_id = excluded.build_id, seen_at = excluded.seen_at, hooks = excluded.hooks, subscriptions = excluded.subscriptions,
         on_events = excluded.on_events, messages = excluded.messages
   where (v.control, v.parameters, v.pinned, v.build_id, v.hooks, v.subscriptions, v.messages) is distinct from
         (excluded.control, excluded.parameters, excluded.pinned, excluded.build_id, excluded.hooks, excluded.subscriptions, excluded.messages)
      or v.hash is null or v.seen_at is null or v.seen_at < now() - interval '30 seconds'
),
named as (
  insert into perdure.workflow (ns, name, kind, current)
  select :ns, u.workflow, 'code', u.version
    from offered u left join perdure.workflow w on w.ns = :ns and w.name = u.workflow
    left join perdure.workflow_version own on own.ns = :ns and own.workflow = u.workflow and own.version = u.version
    left join perdure.workflow_version now on now.ns = :ns and now.workflow = u.workflow and now.version = w.current
   where not exists (select from refused)
     and (w.name is null or w.deleted_at is not null
          or (w.kind = 'code' and w.current <> u.version and not w.by_hand
              and (own.version is null or own.registered_at >= now.registered_at
                   or not exists (select from perdure.worker k where k.ns = :ns and k.versions->>u.workflow = w.current
                                     and (select e.expires_at > pg_catalog.now() from perdure.engine_session e where e.id = k.session_id)))))
   order by u.workflow
  on conflict (ns, name) do update
     set previous = workflow.current, current = excluded.current, kind = excluded.kind, deleted_at = null, by_hand = false, ramp = null,
         ramp_percent = 0
   where not workflow.by_hand or workflow.deleted_at is not null
)
select workflow, version from refused;

-- name: workflow_published
-- What a version of a Python workflow takes and reads, and whether its runs are pinned, as its workers last said.
select parameters, messages, pinned from perdure.workflow_version where ns = :ns and workflow = :workflow and version = :version;

-- name: run_by_key
select k.run_id, k.input_hash from perdure.run_key k where k.ns = :ns and k.key = :key;

-- name: get_run
-- `head`: the last run of the chain that the run began. The first run of a chain may have been removed by retention: the chain's id stays.
select run_id, ns, workflow, version, key, status, created_at, null::timestamptz as finished_at, null::int as events,
       null::text as error_code, null::text as error, stuck, wake_at, owner, epoch, null::uuid as successor, paused_by, null::uuid as head
  from perdure.run_queue where run_id = :run_id and ns = :ns
union all
select run_id, ns, workflow, version, key, status, created_at, finished_at, events, error_code, error, null, null, null, epoch, successor, null,
       case when successor is not null then (select c.head from perdure.run_chain c where c.run_id = r.run_id) end
  from perdure.run r where run_id = :run_id and ns = :ns
union all
select c.run_id, c.ns, h.workflow, h.version, h.key, 'success', h.created_at, h.created_at, null, null, null, null, null, null, 0, c.head, null,
       c.head
  from perdure.run_chain c
 cross join lateral (select q.workflow, q.version, q.key, q.created_at from perdure.run_queue q where q.run_id = c.head
                     union all select e.workflow, e.version, e.key, e.created_at from perdure.run e where e.run_id = c.head) h
 where c.run_id = :run_id and c.ns = :ns and not exists (select from perdure.run x where x.run_id = c.run_id);

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

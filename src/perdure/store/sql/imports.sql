-- The import of exported runs. All statements of one page of runs are one transaction.

-- name: imported_before
-- Runs that this database has, ended or active.
select r.run_id, false as active, r.ns, r.events, r.head from perdure.run r where r.run_id = any(:run_ids::uuid[])
union all
select q.run_id, true, q.ns, 0, null from perdure.run_queue q where q.run_id = any(:run_ids::uuid[]);

-- name: import_runs
-- A run that another import has written in the meantime is left out.
-- seals: runs.error error
insert into perdure.run (run_id, ns, workflow, version, kind, key, parent_id, parent_seq, status, created_at, finished_at, epoch, events, error_code,
                         error, successor, attributes, head)
select u.run_id, u.ns, u.workflow, u.version, u.kind, u.key, u.parent_id, u.parent_seq, u.status, u.created_at, u.finished_at, u.epoch, u.events,
       u.error_code, u.error, u.successor, u.attributes::jsonb, u.head
  from unnest(:runs.run_id::uuid[], :runs.ns::int[], :runs.workflow::text[], :runs.version::text[], :runs.kind::text[], :runs.key::text[],
              :runs.parent_id::uuid[], :runs.parent_seq::int[], :runs.status::text[], :runs.created_at::timestamptz[],
              :runs.finished_at::timestamptz[], :runs.epoch::int[], :runs.events::int[], :runs.error_code::text[], :runs.error::text[],
              :runs.successor::uuid[], :runs.attributes::text[], :runs.head::bytea[])
         as u(run_id, ns, workflow, version, kind, key, parent_id, parent_seq, status, created_at, finished_at, epoch, events, error_code, error,
              successor, attributes, head)
on conflict do nothing
returning run_id;

-- name: import_history
-- As it was stored where it was exported: the hashes cover that.
insert into perdure.history (run_id, seq, last, ns, epoch, at, body, hash)
select u.run_id, u.seq, u.last, u.ns, u.epoch, u.at, u.body, u.hash
  from unnest(:rows.run_id::uuid[], :rows.seq::int[], :rows.last::int[], :rows.ns::int[], :rows.epoch::int[], :rows.at::timestamptz[],
              :rows.body::bytea[], :rows.hash::bytea[]) as u(run_id, seq, last, ns, epoch, at, body, hash);

-- name: import_tasks
-- seals: rows.error error, rows.traceback error
insert into perdure.task (run_id, ns, id, seq, name, queue, status, attempts, lost, epoch, scheduled_at, started_at, finished_at, worker, cpu_us,
                          error, error_code, error_type, traceback, node, copied)
select * from unnest(:rows.run_id::uuid[], :rows.ns::int[], :rows.id::uuid[], :rows.seq::int[], :rows.name::text[], :rows.queue::text[],
                     :rows.status::text[], :rows.attempts::int[], :rows.lost::int[], :rows.epoch::int[], :rows.scheduled_at::timestamptz[],
                     :rows.started_at::timestamptz[], :rows.finished_at::timestamptz[], :rows.worker::text[], :rows.cpu_us::bigint[],
                     :rows.error::text[], :rows.error_code::text[], :rows.error_type::text[], :rows.traceback::text[], :rows.node::text[],
                     :rows.copied::boolean[]);

-- name: import_attempts
-- seals: rows.error error, rows.traceback error
insert into perdure.task_attempt (run_id, ns, id, epoch, attempt, seq, name, node, outcome, started_at, finished_at, worker, cpu_us, error, error_code,
                                  error_type, traceback)
select * from unnest(:rows.run_id::uuid[], :rows.ns::int[], :rows.id::uuid[], :rows.epoch::int[], :rows.attempt::int[], :rows.seq::int[],
                     :rows.name::text[], :rows.node::text[], :rows.outcome::text[], :rows.started_at::timestamptz[],
                     :rows.finished_at::timestamptz[], :rows.worker::text[], :rows.cpu_us::bigint[], :rows.error::text[],
                     :rows.error_code::text[], :rows.error_type::text[], :rows.traceback::text[]);

-- name: import_states
-- seals: rows.value state
insert into perdure.run_state (run_id, ns, name, value)
select * from unnest(:rows.run_id::uuid[], :rows.ns::int[], :rows.name::text[], :rows.value::bytea[]);

-- name: import_node_counts
insert into perdure.node_count (run_id, ns, node, what, bin, n)
select * from unnest(:rows.run_id::uuid[], :rows.ns::int[], :rows.node::text[], :rows.what::text[], :rows.bin::int[], :rows.n::bigint[]);

-- name: import_logs
-- seals: rows.body log
insert into perdure.task_log (run_id, ns, seq, attempt, n, at, lines, body)
select * from unnest(:rows.run_id::uuid[], :rows.ns::int[], :rows.seq::int[], :rows.attempt::int[], :rows.n::int[], :rows.at::timestamptz[],
                     :rows.lines::int[], :rows.body::bytea[]);

-- name: import_uses
-- Uses of stored content that is still here. Answers how many uses there are of content that is not.
with given as (
  select u.run_id, u.ns, u.store, u.sha256, p.sha256 is not null as is_here
    from unnest(:rows.run_id::uuid[], :rows.ns::int[], :rows.store::text[], :rows.sha256::bytea[]) as u(run_id, ns, store, sha256)
    left join perdure.payload p on p.ns = u.ns and p.sha256 = u.sha256 and p.store = u.store and (p.is_complete or p.store <> '')
), used as (
  insert into perdure.payload_use (run_id, ns, store, sha256) select g.run_id, g.ns, g.store, g.sha256 from given g where g.is_here
  on conflict do nothing
)
select count(*) from given g where not g.is_here;

-- name: import_keys
-- A key that another run has since is left to it.
insert into perdure.run_key (ns, key, run_id, input_hash)
select u.ns, u.key, u.run_id, u.input_hash
  from unnest(:rows.ns::int[], :rows.key::text[], :rows.run_id::uuid[], :rows.input_hash::bytea[]) as u(ns, key, run_id, input_hash)
on conflict do nothing;

-- name: hold_imported
-- Retention leaves these runs alone; `days` null: for ever.
insert into perdure.retention_hold as h (run_id, until)
select u.run_id, coalesce(now() + :days::float8 * interval '1 day', 'infinity') from unnest(:run_ids::uuid[]) as u(run_id)
on conflict (run_id) do update set until = greatest(h.until, excluded.until);

-- name: import_namespace
select perdure.import_namespace(:number, :name) as done;

-- What the bench writes without an engine: the yardstick's own tables and statements, and copies of an ended run.
-- The yardstick's tables are made for one measurement and dropped with the database they are in.

-- name: bare_server
-- `is_near`: the server's processes are on this machine, so that their pids mean something here.
select current_setting('server_version') as version, current_setting('fsync') as fsync,
       current_setting('synchronous_commit') as synchronous_commit, current_setting('shared_buffers') as shared_buffers,
       pg_backend_pid() as pid,
       coalesce(host(inet_server_addr()) = '::1' or inet_server_addr() <<= '127.0.0.0/8', true) as is_near;

-- name: bare_planner
-- As on the engine's connections: a batch is small against its table, and no plan that reads a whole table is wanted.
select set_config(name, 'off', false) from unnest(array['enable_seqscan', 'enable_hashjoin', 'enable_mergejoin', 'jit']) name;

-- name: bare_drop
drop schema if exists perdure_bare cascade;

-- name: bare_schema
create schema perdure_bare;

-- name: bare_task_table
-- A task as a queue on PostgreSQL keeps it: one row from its creation to its end.
create table perdure_bare.task (
  id           uuid primary key,
  run_id       uuid not null,
  seq          int not null,
  name         text not null,
  status       smallint not null default 0,
  attempt      smallint not null default 0,
  input        bytea not null,
  result       bytea,
  scheduled_at timestamptz not null default now(),
  started_at   timestamptz,
  finished_at  timestamptz
);

-- name: bare_task_index
create index task_pending on perdure_bare.task (id) where status = 0;

-- name: bare_history_table
create table perdure_bare.history (
  run_id  uuid not null,
  seq     int not null,
  kind    smallint not null,
  task_id uuid not null,
  body    bytea not null,
  at      timestamptz not null default now(),
  primary key (run_id, seq)
);

-- name: bare_insert
-- Every column for every row: tasks of a queue have inputs and names of their own.
insert into perdure_bare.task (id, run_id, seq, name, input)
select u.id, u.run_id, u.seq, u.name, u.input
  from unnest(:tasks.id::uuid[], :tasks.run_id::uuid[], :tasks.seq::int[], :tasks.name::text[], :tasks.input::bytea[]) as u(id, run_id, seq, name, input);

-- name: bare_claim
-- Locks: the oldest pending rows FOR UPDATE SKIP LOCKED, as every queue with more than one worker must.
with due as (
  select id from perdure_bare.task where status = 0 order by id limit :limit for update skip locked
)
update perdure_bare.task t set status = 1, attempt = t.attempt + 1, started_at = now()
  from due where t.id = due.id
returning t.id, t.run_id, t.seq, t.name, t.input;

-- name: bare_complete
update perdure_bare.task t set status = 2, result = u.result, finished_at = now()
  from unnest(:results.id::uuid[], :results.result::bytea[]) as u(id, result) where t.id = u.id;

-- name: bare_completed
select count(*) from perdure_bare.task where status = 2 and result is not null;

-- name: bare_copy_run
-- :run_id an ended run, :first to :last the numbers of its copies, :midnight_ms the Unix millisecond of the first copy's id, :step_us microseconds
-- between copies. Run, history and tasks are copied under new ids of the ordinary form.
with copies as materialized (
  select (lpad(to_hex(:midnight_ms::bigint + k * :step_us::bigint / 1000), 12, '0') || '70008' || left(md5(k || ' ' || :run_id::uuid), 15))::uuid as run_id
    from generate_series(:first::int, :last::int) as k
),
runs as (
  insert into perdure.run (run_id, ns, workflow, version, kind, key, parent_id, parent_seq, status, created_at, finished_at, epoch,
                           events, error_code, error, successor)
  select c.run_id, r.ns, r.workflow, r.version, r.kind, r.key, r.parent_id, r.parent_seq, r.status, r.created_at, r.finished_at, r.epoch,
         r.events, r.error_code, r.error, r.successor
    from perdure.run r, copies c where r.run_id = :run_id
),
histories as (
  insert into perdure.history (run_id, seq, last, ns, epoch, at, body, hash)
  select c.run_id, h.seq, h.last, h.ns, h.epoch, h.at, h.body, h.hash
    from copies c, perdure.history h where h.run_id = :run_id
)
insert into perdure.task (id, ns, run_id, seq, name, queue, status, attempts, lost, epoch, scheduled_at, started_at, finished_at,
                          error)
select (left(replace(c.run_id::text, '-', ''), 16) || '8' || left(md5(c.run_id || ' ' || t.seq), 15))::uuid,
       t.ns, c.run_id, t.seq, t.name, t.queue, t.status, t.attempts, t.lost, t.epoch, t.scheduled_at, t.started_at,
       t.finished_at, t.error
  from copies c, perdure.task t where t.run_id = :run_id;

-- name: bare_tasks_kept
select count(*) from perdure.task;

-- name: bare_sleeping
-- Runs that no engine owns and that are not due.
select count(*) from perdure.run_queue where owner is null and wake_at > perdure.clock();

-- name: bare_sizes
-- Bytes of the whole database, and of the table of active runs with its indexes.
select pg_database_size(current_database()) as of_database, pg_total_relation_size('perdure.run_queue') as of_runs;

-- name: bare_now
select (extract(epoch from perdure.clock()) * 1000000)::bigint as now_us;

-- name: bare_ends
-- :workflow a workflow: how many runs of it ended well, and when the last one did.
select count(*) as runs, (extract(epoch from max(finished_at)) * 1000000)::bigint as last_us
  from perdure.run where workflow = :workflow and status = 'success';

-- name: bare_has_runs
-- :workflow a workflow: whether runs of it are active.
select exists(select from perdure.run_queue where workflow = :workflow);

-- name: bare_engines
select count(*) from perdure.engine_session where expires_at > now();

-- name: bare_histories
-- :workflow a workflow: the rows of all its ended runs.
select h.seq, (extract(epoch from h.at) * 1000000)::bigint as at_us, h.body
  from perdure.run r, perdure.history h where r.workflow = :workflow and h.run_id = r.run_id order by h.run_id, h.seq;

-- name: bare_vacuum
vacuum (analyze);

-- name: bare_checkpoint
checkpoint;

-- name: bare_written
-- Bytes of WAL since the server was made, and the number of the next transaction that writes.
select pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint as wal_bytes,
       pg_snapshot_xmax(pg_current_snapshot())::text::bigint as transactions;

-- name: bare_vacuum_rows
-- The tables whose growth counts; all others take ten times as long.
vacuum (analyze) perdure.history, perdure.run, perdure.task, perdure.node_count, perdure.run_state, perdure.schedule_fire, perdure.audit,
  perdure.audit_chain, perdure.run_queue;

-- name: bare_tables
-- Bytes and rows of each table of Perdure with its indexes, partitions taken together. Rows are as exact as the last vacuum left them.
select coalesce(p.relname, c.relname)::text as name, sum(pg_total_relation_size(c.oid))::bigint as bytes, sum(greatest(c.reltuples, 0))::bigint as row_count
  from pg_class c left join pg_inherits i on i.inhrelid = c.oid left join pg_class p on p.oid = i.inhparent
 where c.relnamespace = 'perdure'::regnamespace and c.relkind = 'r' group by 1;

-- What `perdure doctor` looks at. Every statement only reads, and asks for no privilege beyond that of an ordinary role.

-- name: settings
select current_setting('server_version_num')::int as version_number,
       current_setting('server_version') as version,
       current_setting('fsync') as fsync,
       current_setting('synchronous_commit') as synchronous_commit,
       current_setting('full_page_writes') as full_page_writes;

-- name: clock
select extract(epoch from clock_timestamp())::float8;

-- name: oldest_horizon
-- What holds back the oldest row version that vacuum may remove, the worst first. A transaction has no `age_s` of
-- its own where it is prepared or belongs to a replication slot.
select * from (
  select 'transaction of pid ' || pid as holder, age(backend_xmin) as age_xids,
         extract(epoch from now() - xact_start)::float8 as age_s,
         left(regexp_replace(query, '\s+', ' ', 'g'), 80) as query
    from pg_stat_activity where backend_xmin is not null and pid <> pg_backend_pid() and xact_start is not null
  union all
  select 'prepared transaction ' || gid, age(transaction), extract(epoch from now() - prepared)::float8, ''
    from pg_prepared_xacts
  union all
  select 'replication slot ' || slot_name, age(xmin), null, '' from pg_replication_slots where xmin is not null
) h order by age_xids desc limit 1;

-- name: dead_rows
select relname as table, n_dead_tup as dead, n_live_tup as live, last_autovacuum
  from pg_stat_user_tables
 where schemaname = 'perdure' and n_dead_tup > 10000 and n_dead_tup > n_live_tup
 order by n_dead_tup desc limit 5;

-- name: invalid_indexes
select c.oid::regclass::text as index
  from pg_index i join pg_class c on c.oid = i.indexrelid join pg_namespace n on n.oid = c.relnamespace
 where n.nspname = 'perdure' and not i.indisvalid
 order by 1;

-- name: connections
select (select count(*) from pg_stat_activity where backend_type = 'client backend') as used,
       current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int as usable;

-- name: history_partitions
-- One row per partition of perdure.history; none where the table is missing or is not partitioned.
select c.relname as name, pg_get_expr(c.relpartbound, c.oid) as bound
  from pg_inherits i join pg_class c on c.oid = i.inhrelid
 where i.inhparent = to_regclass('perdure.history') and c.relispartition
 order by 1;

-- name: has_runs
select to_regclass('perdure.run_queue') is not null;

-- name: stuck_runs
-- By workflow, over at most 10,000 of them; the commonest first.
select workflow, count(*)::int as runs, min(stuck) as example
  from (select workflow, stuck from perdure.run_queue where stuck is not null limit 10000) s
 group by workflow order by runs desc, workflow limit 5;

-- name: overdue_tasks
-- Tasks that are overdue although no flow control holds them back; at most 10,000 are looked at.
select queue, name, count(*)::int as tasks, max(extract(epoch from perdure.clock() - run_at))::float8 as age_s
  from (select queue, name, run_at from perdure.task_queue
         where owner is null and group_id is null and run_at < perdure.clock() - make_interval(secs => :seconds) limit 10000) t
 group by queue, name order by age_s desc limit 5;

-- name: blocked_workers
select name, host, pid from perdure.worker where coalesce(blocked, '') <> '' order by name limit 5;

-- name: set_probe
select set_config('perdure.probe', :mark, false), pg_backend_pid() as pid;

-- name: read_probe
select current_setting('perdure.probe', true) as value, pg_backend_pid() as pid;

-- name: server_identity
-- Tells one server from another, and from itself before a restart.
select concat_ws(' ', host(inet_server_addr()), inet_server_port(), pg_postmaster_start_time()) as server;

-- name: settings_hold
-- Whether each setting has its value for this statement.
select coalesce(bool_and(current_setting(u.name, true) = u.value), true) as held
  from unnest(:settings.name::text[], :settings.value::text[]) as u(name, value);

-- name: retention_state
-- No row: there are no tables of retention yet.
select (select count(*) from perdure.retention_policy) as policies,
       exists (select from perdure.retention_policy p where p.ns = 0 and p.days is null and p.updated_by = 'migration 0003') as is_forever,
       (select x.url from perdure.retention_export x) as url,
       (select sum(j.removed)::bigint from perdure.retention_job j where j.status = 'done') as removed, o.name, o.error
  from (select 1) one
  left join perdure.retention_job o on o.status in ('exporting', 'removing')
 where to_regclass('perdure.retention_policy') is not null;

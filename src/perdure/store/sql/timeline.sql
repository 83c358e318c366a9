-- A run over time. Task ids of a run lie between `low` and `high`, perhaps with those of another run of the same millisecond.

-- name: timeline_size
-- How many tasks have a row, counted up to `limit`.
select (select count(*)::int from (select from perdure.task where id >= :low and id <= :high and run_id = :run_id and ns = :ns limit :limit) t)
     + (select count(*)::int from (select from perdure.task_queue where run_id = :run_id and ns = :ns limit :limit) q) as tasks;

-- name: timeline_ended
select id, seq, name, queue, status, attempts, lost, scheduled_at, started_at, finished_at, case when starts_with(error, 'perdure:sealed:') then error else left(error, 300) end as error, worker, node, copied
  from perdure.task where id >= :low and id <= :high and run_id = :run_id and ns = :ns;

-- name: timeline_queued
select id, seq, name, queue, status, attempt, lost, scheduled_at, started_at, run_at, case when starts_with(error, 'perdure:sealed:') then error else left(error, 300) end as error, worker, null::bytea as details,
       null as blocked, node
  from perdure.task_queue where run_id = :run_id and ns = :ns;

-- name: timeline_attempts
select seq, epoch, attempt, outcome, started_at, finished_at, worker from perdure.task_attempt
 where id >= :low and id <= :high and run_id = :run_id and ns = :ns limit :limit;

-- name: timeline_attempts_of
select seq, epoch, attempt, outcome, started_at, finished_at, worker from perdure.task_attempt
 where id = any(:ids::uuid[]) and run_id = :run_id and ns = :ns limit :limit;

-- name: run_node_counts
-- What was counted when tasks ended.
select node, what, bin, n from perdure.node_count where run_id = :run_id and ns = :ns and n > 0 limit :limit;

-- name: failed_samples
-- Errors of some failed tasks among the first `scan_limit` rows.
select coalesce(case when t.node like '%[%' then regexp_replace(t.node, '\[\d+\]', '', 'g') else t.node end, t.name) as node, case when starts_with(t.error, 'perdure:sealed:') then t.error else left(t.error, 300) end as error
  from (select node, name, status, error from perdure.task where id >= :low and id <= :high and run_id = :run_id and ns = :ns limit :scan_limit) t
 where t.status = 'failed' limit :limit;

-- name: tally_attempts
-- Attempts that were not the last of their task, of which it is known when they began, by node and sixteenths of a second; at most `limit`.
with earlier as materialized (
  select coalesce(case when node like '%[%' then regexp_replace(node, '\[\d+\]', '', 'g') else node end, name) as node, outcome, started_at,
         floor((date_part('epoch', started_at) - :from_s::float8) * 16)::bigint as start_part,
         floor((date_part('epoch', finished_at) - :from_s::float8) * 16)::bigint as end_part
    from perdure.task_attempt where id >= :low and id <= :high and run_id = :run_id and ns = :ns and started_at is not null limit :limit
)
select t.node, t.start_part, null::bigint as end_part, count(*)::int as attempts, 0 as failed, min(t.started_at) as started_at
  from earlier t group by 1, 2
union all
select t.node, null, t.end_part, count(*)::int, count(*) filter (where t.outcome not in ('success', 'cancelled'))::int, null
  from earlier t group by 1, 3
 limit :rows;

-- name: tally_queued
-- Tasks that wait for an engine or a retry, or have been running for a while, by node, status and the second of their beginning.
with queued as materialized (
  select coalesce(case when node like '%[%' then regexp_replace(node, '\[\d+\]', '', 'g') else node end, name) as node, status,
         case when status = 'pending' then attempt - 1 else attempt end as attempts, scheduled_at,
         case when status <> 'pending' then started_at end as started_at,
         case when status <> 'pending' then floor((date_part('epoch', started_at) - :from_s::float8) * 16)::bigint end as start_part
    from perdure.task_queue where run_id = :run_id and ns = :ns limit :limit
)
select t.node, t.status, t.start_part, count(*)::int as tasks, max(t.attempts) as attempts, min(t.scheduled_at) as first_at, min(t.started_at) as started_at
  from queued t group by 1, 2, 3 limit :rows;

-- name: latest_node_durations
-- How long nodes took in the latest ended runs of a workflow, by the last attempts of their tasks: at most `tasks` of each run.
with latest as materialized (
  select run_id from perdure.ended_run_list
   where run_id < :below and (ns, workflow, run_id) >= (:ns, :workflow, :low) and (ns, workflow, run_id) < (:ns, :workflow, :below)
   order by ns desc, workflow desc, run_id desc limit :runs
)
select t.node, (date_part('epoch', max(t.finished_at) - min(t.started_at)) * 1e6)::bigint as took_us
  from latest l cross join lateral (
    select coalesce(case when x.node like '%[%' then regexp_replace(x.node, '\[\d+\]', '', 'g') else x.node end, x.name) as node, x.started_at, x.finished_at
      from perdure.task x
     where x.id >= overlay(l.run_id::text placing '0000-000000000000' from 20)::uuid and x.id <= overlay(l.run_id::text placing 'ffff-ffffffffffff' from 20)::uuid
       and x.run_id = l.run_id and x.ns = :ns and x.started_at is not null limit :tasks) t
 group by l.run_id, t.node;

-- name: notable_ended
-- Ended tasks of a node, failed ones first, then those whose last attempt took longest, then by number. After a position, if there is one. At most
-- `scan_limit` tasks of the run are looked at. `took` is in microseconds.
select s.* from (
  select t.*, case when t.status = 'failed' then 0 when t.started_at is not null then 1 else 2 end as rank,
         coalesce((date_part('epoch', t.finished_at - t.started_at) * 1e6)::bigint, 0) as took
    from (
      select id, seq, name, queue, status, attempts, lost, scheduled_at, started_at, finished_at, error, worker, node, copied
        from perdure.task where id >= :low and id <= :high and run_id = :run_id and ns = :ns limit :scan_limit) t
   where t.status = any(:statuses::text[])
     and (:node::text is null or coalesce(case when t.node like '%[%' then regexp_replace(t.node, '\[\d+\]', '', 'g') else t.node end, t.name) = :node)) s
 where (s.rank, -s.took, s.seq) > (:rank::int, -:took::bigint, :after::int)
 order by s.rank, s.took desc, s.seq limit :limit;

-- name: notable_queued
-- The same of tasks that have not ended. Those that run count with how long they have, as of `now`.
select s.* from (
  select t.*, case when t.status <> 'pending' and t.started_at is not null then 1 else 2 end as rank,
         case when t.status <> 'pending' then greatest(coalesce((date_part('epoch', :now::timestamptz - t.started_at) * 1e6)::bigint, 0), 0) else 0 end as took
    from (
      select id, seq, name, queue, status, attempt, lost, scheduled_at, started_at, run_at, error, worker, details, blocked, node
        from perdure.task_queue where run_id = :run_id and ns = :ns limit :scan_limit) t
   where t.status = any(:statuses::text[])
     and (:node::text is null or coalesce(case when t.node like '%[%' then regexp_replace(t.node, '\[\d+\]', '', 'g') else t.node end, t.name) = :node)) s
 where (s.rank, -s.took, s.seq) > (:rank::int, -:took::bigint, :after::int)
 order by s.rank, s.took desc, s.seq limit :limit;

-- name: ended_tasks_of_node
select id, seq, name, queue, status, attempts, lost, scheduled_at, started_at, finished_at, error, worker, node, copied
  from perdure.task
 where id >= :low and id <= :high and run_id = :run_id and ns = :ns and seq > :after and status = any(:statuses::text[])
   and coalesce(case when node like '%[%' then regexp_replace(node, '\[\d+\]', '', 'g') else node end, name) = :node
 order by seq limit :limit;

-- name: queued_tasks_of_node
select id, seq, name, queue, status, attempt, lost, scheduled_at, started_at, run_at, error, worker, details, blocked, node
  from perdure.task_queue
 where run_id = :run_id and ns = :ns and seq > :after and status = any(:statuses::text[])
   and coalesce(case when node like '%[%' then regexp_replace(node, '\[\d+\]', '', 'g') else node end, name) = :node
 order by seq limit :limit;

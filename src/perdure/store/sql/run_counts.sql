-- Numbers of runs. Those that ended are counted when they end (commit_batch), are retried (retry_run) or are deleted (perdure.delete_run);
-- active ones are few and counted in run_queue, up to a limit.

-- name: ended_run_bins
-- Ended runs by time of creation. An empty workflow stands for all together.
select date_bin(:bin_s * interval '1 second', c.at, 'epoch') as at, sum(c.success)::bigint as success, sum(c.failed)::bigint as failed,
       sum(c.cancelled)::bigint as cancelled
  from perdure.run_count c
 where c.ns = :ns and c.workflow = :workflow and c.at >= :from_at and c.at < :to_at
 group by 1;

-- name: active_run_bins
-- Of the newest `limit` active runs with ids from `low` to below `high`, those of the workflow by time of creation. `scanned` is how many
-- were looked at. An empty workflow: all of them.
with scanned as materialized (
  select q.workflow, q.created_at, q.status from perdure.run_queue q
   where (q.ns, q.run_id) >= (:ns, :low::uuid) and (q.ns, q.run_id) < (:ns, :high::uuid) order by q.ns desc, q.run_id desc limit :limit
)
select e.scanned, b.*
  from (select count(*) as scanned from scanned) e
  left join lateral (
    select date_bin(:bin_s * interval '1 second', s.created_at, 'epoch') as at, count(*) filter (where s.status = 'pending') as pending,
           count(*) filter (where s.status = 'running') as running
      from scanned s where :workflow::text = '' or s.workflow = :workflow
     group by 1) b on true;

-- name: run_durations_by_day
-- Of the runs of one workflow that succeeded: how many of each size, by day of creation.
select d.day, array_agg(d.size) as sizes, array_agg(d.n) as counts
  from (select c.day, c.size, sum(c.n)::bigint as n from perdure.run_duration c
         where c.ns = :ns and c.workflow = :workflow and c.day >= :from_at group by c.day, c.size) d
 group by d.day;

-- name: run_durations_by_workflow
-- The same since a day, for each workflow; one that nothing is known of has no row.
select w.name as workflow, d.sizes, d.counts
  from (select f.name from perdure.workflow f where f.ns = :ns and f.deleted_at is null order by f.ns, f.name limit :limit) w
 cross join lateral (
   select array_agg(s.size) as sizes, array_agg(s.n) as counts
     from (select c.size, sum(c.n)::bigint as n from perdure.run_duration c
            where c.ns = :ns and c.workflow = w.name and c.day >= :from_at group by c.size) s) d
 where d.sizes is not null;

-- name: namespace_counts
-- Of each kind at most its limit is looked at. A task that failed is a dead letter if its run failed as well; of runs
-- with ids from `low` on, because each further day costs time.
with active as materialized (
  select q.status from perdure.run_queue q where q.ns = :ns limit :active_max
),
failed_tasks as materialized (
  select t.run_id from perdure.task t where t.ns = :ns and t.status = 'failed' and t.id >= :low::uuid
   order by t.finished_at desc, t.id desc limit :failed_max
)
select (select count(*) from active) as active, (select count(*) from active where status = 'pending') as pending,
       (select greatest(coalesce(sum(c.failed), 0), 0)::bigint from perdure.run_count c
         where c.ns = :ns and c.workflow = '' and c.at >= date_bin('15 minutes', perdure.clock() - interval '24 hours', 'epoch')) as failed_24h,
       (select count(*) from (select from perdure.promise p
                               where p.ns = :ns and p.kind = 'approval' and p.resolved_at is null
                                 and (p.deadline_at is null or p.deadline_at > perdure.clock()) limit :approvals_max) a) as approvals,
       (select count(*) from failed_tasks) as failed_tasks,
       (select count(*) from failed_tasks f
         cross join lateral (select from perdure.run r where r.run_id = f.run_id and r.run_id >= :low::uuid and r.ns = :ns and r.status = 'failed'
                                and r.successor is null offset 0) r) as dead_letters,
       (select count(*) from perdure.worker w where w.ns = :ns
           and (select e.expires_at > now() from perdure.engine_session e where e.id = w.session_id)) as workers,
       (select count(*) from perdure.engine_session e where e.expires_at > now()) as engines;

-- name: merge_run_counts
-- Rows of runs created before `below` that stand for less than `into_s` seconds become rows that stand for that many. Late ones, of runs that
-- end or are retried long after their creation, are merged likewise. One engine at a time; a row that a commit is writing waits for the next round.
with turn as materialized (
  select pg_try_advisory_xact_lock(hashtext('perdure.run_counts')) as is_ours
),
taken as (
  delete from perdure.run_count c
   where c.ctid = any(array(
     select o.ctid from perdure.run_count o
      where (select is_ours from turn) and o.merged_s < :into_s and o.at < :below
      order by o.merged_s, o.at limit :limit for update skip locked))
  returning c.ns, c.workflow, date_bin(:into_s * interval '1 second', c.at, 'epoch') as at, c.success, c.failed, c.cancelled
),
merged as (
  insert into perdure.run_count as c (ns, workflow, at, merged_s, writer, success, failed, cancelled)
  select t.ns, t.workflow, t.at, :into_s, 0, sum(t.success), sum(t.failed), sum(t.cancelled) from taken t group by t.ns, t.workflow, t.at
  on conflict (ns, workflow, at, merged_s, writer) do update
    set success = c.success + excluded.success, failed = c.failed + excluded.failed, cancelled = c.cancelled + excluded.cancelled
)
select count(*) as merged from taken;

-- name: merge_run_durations
-- Days that are over, likewise.
with turn as materialized (
  select pg_try_advisory_xact_lock(hashtext('perdure.run_counts')) as is_ours
),
taken as (
  delete from perdure.run_duration d
   where d.ctid = any(array(
     select o.ctid from perdure.run_duration o
      where (select is_ours from turn) and o.merged_s < :into_s and o.day < :below
      order by o.merged_s, o.day limit :limit for update skip locked))
  returning d.ns, d.workflow, d.day, d.size, d.n
),
merged as (
  insert into perdure.run_duration as d (ns, workflow, day, size, merged_s, writer, n)
  select t.ns, t.workflow, t.day, t.size, :into_s, 0, sum(t.n) from taken t group by t.ns, t.workflow, t.day, t.size
  on conflict (ns, workflow, day, size, merged_s, writer) do update set n = d.n + excluded.n
)
select count(*) as merged from taken;

-- name: delete_old_run_counts
with counts as (
  delete from perdure.run_count c where c.ctid = any(array(
    select o.ctid from perdure.run_count o where o.merged_s = 86400 and o.at < :below order by o.merged_s, o.at limit :limit))
  returning 1
),
durations as (
  delete from perdure.run_duration d where d.ctid = any(array(
    select o.ctid from perdure.run_duration o where o.merged_s = 86400 and o.day < :below order by o.merged_s, o.day limit :limit))
  returning 1
)
select (select count(*) from counts) + (select count(*) from durations) as deleted;

-- The latest runs of a workflow: their nodes, failures and inputs.

-- name: count_nodes
-- Tasks of runs by node and status, of each run at most `limit` ended ones and as many others.
select r.run_id, t.node, t.status, count(*)::int as tasks, max(t.attempts) as attempts, min(t.seq) as seq
  from unnest(:run_ids::uuid[]) as r(run_id) cross join lateral (
    (select coalesce(case when x.node like '%[%' then regexp_replace(x.node, '\[\d+\]', '', 'g') else x.node end, x.name) as node, x.status, x.attempts, x.seq
       from perdure.task x
      where x.id >= overlay(r.run_id::text placing '0000-000000000000' from 20)::uuid
        and x.id <= overlay(r.run_id::text placing 'ffff-ffffffffffff' from 20)::uuid and x.run_id = r.run_id and x.ns = :ns limit :limit)
    union all
    (select coalesce(case when q.node like '%[%' then regexp_replace(q.node, '\[\d+\]', '', 'g') else q.node end, q.name), q.status,
            case when q.status = 'pending' then q.attempt - 1 else q.attempt end, q.seq
       from perdure.task_queue q where q.run_id = r.run_id and q.ns = :ns limit :limit)) t
 group by r.run_id, t.node, t.status;

-- name: counted_nodes
-- What was counted of runs with many tasks when these ended.
select run_id, node, what as status, sum(n)::int as tasks, 0 as attempts, 2147483647 as seq from perdure.node_count
 where run_id = any(:run_ids::uuid[]) and ns = :ns and what in ('success', 'failed', 'skipped', 'cancelled') and n > 0 group by 1, 2, 3
union all
select run_id, node, 'success', 0, max(bin), 2147483647 from perdure.node_count
 where run_id = any(:run_ids::uuid[]) and ns = :ns and what = 'attempts' and n > 0 group by 1, 2;

-- name: count_first_nodes
-- The first tasks of such runs, which are not counted, and those that have not ended, of each run at most `limit`.
select t.run_id, coalesce(case when t.node like '%[%' then regexp_replace(t.node, '\[\d+\]', '', 'g') else t.node end, t.name) as node, t.status,
       count(*)::int as tasks, max(t.attempts) as attempts, min(t.seq) as seq
  from (
    select x.run_id, x.node, x.name, x.status, x.attempts, x.seq from perdure.task x
     where x.id = any(:ids::uuid[]) and x.run_id = any(:run_ids::uuid[]) and x.ns = :ns
    union all
    select q.run_id, q.node, q.name, q.status, case when q.status = 'pending' then q.attempt - 1 else q.attempt end, q.seq
      from unnest(:run_ids::uuid[]) as r(run_id)
      cross join lateral (select * from perdure.task_queue y where y.run_id = r.run_id and y.ns = :ns limit :limit) q) t
 group by 1, 2, 3;

-- name: latest_failures
-- Failed runs among the latest `scan_limit` ended ones of a workflow since an id, each with a failed task among `tasks` of its tasks, and with the
-- last row of its history where it has none.
with scanned as materialized (
  select run_id, status, finished_at, error_code, error from perdure.ended_run_list
   where run_id >= :low and (ns, workflow, run_id) >= (:ns, :workflow, :low) and (ns, workflow, run_id) < (:ns, :workflow, 'ffffffff-ffff-ffff-ffff-ffffffffffff'::uuid)
   order by ns desc, workflow desc, run_id desc limit :scan_limit
)
select c.scanned, f.*, h.body
  from (select count(*)::int as scanned from scanned) c
  left join (
    select s.run_id, s.finished_at, s.error_code, s.error, t.failed_node, t.error_type, t.task_error
      from (select * from scanned where status = 'failed' limit :limit) s
      left join lateral (
        select coalesce(case when x.node like '%[%' then regexp_replace(x.node, '\[\d+\]', '', 'g') else x.node end, x.name) as failed_node, x.error_type,
               case when starts_with(x.error, 'perdure:sealed:') then x.error else left(x.error, 1000) end as task_error
          from (
            select y.node, y.name, y.status, y.error_type, y.error from perdure.task y
             where y.id >= overlay(s.run_id::text placing '0000-000000000000' from 20)::uuid
               and y.id <= overlay(s.run_id::text placing 'ffff-ffffffffffff' from 20)::uuid and y.run_id = s.run_id and y.ns = :ns limit :tasks) x
         where x.status = 'failed' limit 1) t on true) f on true
  left join lateral (
    select l.body from perdure.history l where l.run_id = f.run_id and l.ns = :ns and f.failed_node is null order by l.seq desc limit 1) h on true;

-- name: first_events
-- The first row of each history that is not longer than `bytes_max`.
select h.run_id, h.body from perdure.history h
 where h.run_id = any(:run_ids::uuid[]) and h.ns = :ns and h.seq = 1 and octet_length(h.body) <= :bytes_max;

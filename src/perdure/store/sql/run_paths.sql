-- Histories of many runs, for their paths (core/run_paths.py). Nothing here locks.

-- name: path_runs
-- Walks run_queue_list, newest first.
with scanned as materialized (
  select run_id, workflow, version, kind, wait_reasons, kind = 'code' and pin <> '' as pinned from perdure.run_queue
   where run_id >= :low and run_id < :high and (ns, run_id) >= (:ns, :low) and (ns, run_id) < (:ns, :high)
   order by ns desc, run_id desc limit :scan_limit
)
select e.scanned, e.floor, m.*
  from (select (select count(*) from scanned) as scanned, (select f.run_id from scanned f order by f.run_id limit 1) as floor) e
  left join lateral (
    select s.* from scanned s where :workflows::text[] is null or s.workflow = any(:workflows::text[])
     order by s.run_id desc limit :limit) m on true
 order by m.run_id desc;

-- name: path_runs_ended
-- Walks run_list_by_workflow, newest first.
select :limit::bigint as scanned, null::uuid as floor, run_id, workflow, version, kind, null::text as wait_reasons, false as pinned from perdure.run
 where run_id >= :low and run_id < :high
   and (ns, workflow, run_id) >= (:ns, :workflow, :low) and (ns, workflow, run_id) < (:ns, :workflow, :high)
 order by ns desc, workflow desc, run_id desc limit :limit;

-- name: histories
-- The beginnings of histories, no more rows of each than begin within bytes_max, and the size of the whole.
select u.run_id, h.seq, h.at, h.body, h.size
  from unnest(:run_ids::uuid[]) as u(run_id)
 cross join lateral (
   select t.* from (
     select r.seq, r.at, r.body, sum(octet_length(r.body)) over (order by r.seq) - octet_length(r.body) as before,
            sum(octet_length(r.body)) over () as size
       from perdure.history r where r.run_id = u.run_id and r.ns = :ns) t
    where t.before < :bytes_max order by t.seq) h;

-- Dead letters: tasks that failed for good and brought their run down. A run that is retried takes its failed tasks out of here by itself.

-- name: dead_letters
-- Newest failure first, by task_failed: scan_limit rows below (before_at, before_id) are looked at and `limit` returned. `task` is a task
-- or a node, error_text part of the error in lower case; null is any.
with scanned as materialized (
  select id, run_id, seq, name, queue, attempts, lost, scheduled_at, finished_at, error, node
    from perdure.task
   where status = 'failed' and ns = :ns and (finished_at, id) < (:before_at::timestamptz, :before_id::uuid) and finished_at >= :since
   order by finished_at desc, id desc limit :scan_limit
)
select e.*, m.*
  from (select count(*)::int as scanned, min(s.finished_at) as low_at,
               (select l.id from scanned l order by l.finished_at, l.id limit 1) as low_id from scanned s) e
  left join lateral (
    select s.id, s.run_id, s.seq, s.name, s.queue, s.attempts, s.lost, s.scheduled_at, s.finished_at, s.error, s.node, r.workflow, r.key,
           r.parent_id
      from scanned s cross join lateral (
        select d.workflow, d.key, d.parent_id from perdure.run d
         where d.run_id = s.run_id and d.ns = :ns and d.status = 'failed' and d.successor is null offset 0) r
     where (:queue::text is null or s.queue = :queue)
       and (:task::text is null or s.name = :task or s.node = :task or split_part(s.node, '[', 1) = :task)
       and (:workflow::text is null or r.workflow = :workflow)
       and (:error_text::text is null or position(:error_text in lower(s.error)) > 0)
     order by s.finished_at desc, s.id desc limit :limit) m on true
 order by m.finished_at desc, m.id desc;

-- name: failed_roots
-- For each failed run the outermost failed run it belongs to: a retry of that one retries what failed below it.
with recursive up as (
  select u.run_id as leaf, u.run_id, 0 as depth from unnest(:run_ids::uuid[]) as u(run_id)
  union all
  select up.leaf, p.run_id, up.depth + 1
    from up, lateral (select r.parent_id from perdure.run r where r.run_id = up.run_id and r.ns = :ns offset 0) c,
         lateral (select q.run_id from perdure.run q where q.run_id = c.parent_id and q.ns = :ns and q.status = 'failed' and q.successor is null
                  offset 0) p
   where up.depth < :generations_max
)
select distinct on (leaf) leaf, run_id from up order by leaf, depth desc;

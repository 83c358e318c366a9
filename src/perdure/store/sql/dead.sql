-- Dead letters: tasks that failed for good and brought their run down. A run that is retried takes its failed tasks out of here by itself.

-- name: dead_letters
-- Newest failure first, by task_failed. $1 namespace, $2 failed at or after, $3 and $4 below this moment and id, $5 how many rows to look at,
-- $6 queue, $7 task or node, $8 workflow, $9 part of the error in lower case, $10 how many to answer. Null is any.
with scanned as materialized (
  select id, run_id, seq, name, queue, attempts, lost, scheduled_at, finished_at, error, node
    from perdure.task
   where status = 4 and ns = $1 and (finished_at, id) < ($3::timestamptz, $4::uuid) and finished_at >= $2
   order by finished_at desc, id desc limit $5
)
select e.*, m.*
  from (select count(*)::int as scanned, min(s.finished_at) as low_at,
               (select l.id from scanned l order by l.finished_at, l.id limit 1) as low_id from scanned s) e
  left join lateral (
    select s.id, s.run_id, s.seq, s.name, s.queue, s.attempts, s.lost, s.scheduled_at, s.finished_at, s.error, s.node, r.workflow, r.key,
           r.parent_id
      from scanned s cross join lateral (
        select d.workflow, d.key, d.parent_id from perdure.run d
         where d.run_id = s.run_id and d.ns = $1 and d.status = 3 and d.successor is null offset 0) r
     where ($6::text is null or s.queue = $6)
       and ($7::text is null or s.name = $7 or s.node = $7 or split_part(s.node, '[', 1) = $7)
       and ($8::text is null or r.workflow = $8)
       and ($9::text is null or position($9 in lower(s.error)) > 0)
     order by s.finished_at desc, s.id desc limit $10) m on true
 order by m.finished_at desc, m.id desc;

-- name: failed_roots
-- $2 failed runs -> the outermost failed run that each belongs to: a retry of that one retries what failed below it. $3 generations at most.
with recursive up as (
  select u.run_id as leaf, u.run_id, 0 as depth from unnest($2::uuid[]) as u(run_id)
  union all
  select up.leaf, p.run_id, up.depth + 1
    from up, lateral (select r.parent_id from perdure.run r where r.run_id = up.run_id and r.ns = $1 offset 0) c,
         lateral (select q.run_id from perdure.run q where q.run_id = c.parent_id and q.ns = $1 and q.status = 3 and q.successor is null
                  offset 0) p
   where up.depth < $3
)
select distinct on (leaf) leaf, run_id from up order by leaf, depth desc;

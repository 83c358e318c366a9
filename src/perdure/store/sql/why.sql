-- Why things wait. Codes and words are core/wait_reasons.py's; here are the rows they are made of.

-- name: run_waits
-- What is recorded about an active run. :run_id run, :ns namespace.
select q.status, q.workflow, q.version, q.stuck, q.waits, q.owner is not null as owned, q.wake_at <= perdure.clock() as due,
       q.line is not null and q.admitted_at is null as outside, l.reason,
       exists(select from perdure.worker w where w.ns = q.ns and q.workflow = any(w.workflows)) as served
  from perdure.run_queue q left join perdure.line l on l.id = q.line
 where q.run_id = :run_id and q.ns = :ns;

-- name: task_waits
-- Tasks of a run that wait for something, those that were due first come first. :run_id run, :ns namespace, :limit how many.
select t.name, t.queue, t.node, t.attempt, t.lost, t.options, t.run_at, perdure.clock() as now, l.reason,
       exists(select from perdure.worker w where w.ns = t.ns and t.queue = any(w.queues) and (t.name = any(w.tasks) or t.name like 'perdure.%')) as served
  from (select * from perdure.task_queue x where x.run_id = :run_id and x.ns = :ns and x.owner is null order by x.run_id, x.run_at limit :limit) t
  left join perdure.line l on l.id = t.line;

-- name: waiting_recorded
-- Runs that wait for something that is recorded with them. :ns namespace, :low lowest id, :high below this id, :limit how many, :reason the word.
select q.run_id from perdure.run_queue q where (ns, waiting_on, run_id) >= (:ns, :reason, :low) and (ns, waiting_on, run_id) < (:ns, :reason, :high)
   and q.waiting_on is not null
 order by ns desc, waiting_on desc, run_id desc limit :limit;

-- name: waiting_stuck
with scanned as materialized (
  select q.run_id, q.stuck from perdure.run_queue q where (ns, run_id) >= (:ns, :low) and (ns, run_id) < (:ns, :high) order by ns desc, run_id desc limit :scan_limit
)
select e.scanned, e.floor, m.run_id
  from (select (select count(*) from scanned) as scanned, (select f.run_id from scanned f order by f.run_id limit 1) as floor) e
  left join lateral (select s.run_id from scanned s where s.stuck is not null order by s.run_id desc limit :limit) m on true;

-- name: waiting_also
-- The same for what is seldom the first thing that a run waits for: walks active runs, :scan_limit at most; `floor`: how far it got. :reason the word.
with scanned as materialized (
  select q.run_id, q.waits from perdure.run_queue q where (ns, run_id) >= (:ns, :low) and (ns, run_id) < (:ns, :high) order by ns desc, run_id desc limit :scan_limit
)
select e.scanned, e.floor, m.run_id
  from (select (select count(*) from scanned) as scanned, (select f.run_id from scanned f order by f.run_id limit 1) as floor) e
  left join lateral (
    select s.run_id from scanned s where position('"on":"' || :reason::text || '"' in s.waits) > 0 order by s.run_id desc limit :limit) m on true;

-- name: waiting_in_line
-- Runs that wait to be let in, or whose tasks wait in lines, for a reason of flow control.
select distinct r.run_id from (
  select q.run_id from perdure.line l join perdure.run_queue q on q.line = l.id and q.admitted_at is null and q.stuck is null
   where l.ns = :ns and l.blocked is not null and l.kind = 1 and position('"code":"' || :reason::text || '"' in l.reason) > 0
  union all
  select t.run_id from perdure.line l join lateral (
      select x.run_id from perdure.task_queue x where x.line = l.id and x.owner is null order by x.run_at limit 1000
    ) t on true
   where l.ns = :ns and l.blocked is not null and l.kind = 0 and position('"code":"' || :reason::text || '"' in l.reason) > 0
) r where r.run_id >= :low and r.run_id < :high order by r.run_id desc limit :limit;

-- name: waiting_for_retry
-- Walks waiting tasks by run, :scan_limit at most; `floor`: how far it got. So do the two below.
with scanned as materialized (
  select t.run_id, t.ns, t.owner, t.attempt, t.run_at from perdure.task_queue t where t.run_id >= :low and t.run_id < :high order by t.run_id desc limit :scan_limit
)
select e.scanned, e.floor, m.run_id
  from (select (select count(*) from scanned) as scanned, (select f.run_id from scanned f order by f.run_id limit 1) as floor) e
  left join lateral (
    select distinct s.run_id from scanned s where s.ns = :ns and s.owner is null and s.attempt > 1 and s.run_at > perdure.clock()
     order by s.run_id desc limit :limit) m on true;

-- name: waiting_for_worker
-- :served: whether those whose workers are all busy, or those that nobody serves.
with scanned as materialized (
  select t.run_id, t.ns, t.owner, t.name, t.queue, t.run_at, t.line from perdure.task_queue t where t.run_id >= :low and t.run_id < :high
   order by t.run_id desc limit :scan_limit
)
select e.scanned, e.floor, m.run_id
  from (select (select count(*) from scanned) as scanned, (select f.run_id from scanned f order by f.run_id limit 1) as floor) e
  left join lateral (
    select distinct s.run_id from scanned s left join perdure.line l on l.id = s.line
     where s.ns = :ns and s.owner is null and s.run_at <= perdure.clock() and l.reason is null
       and :served = exists(select from perdure.worker w where w.ns = s.ns and s.queue = any(w.queues) and (s.name = any(w.tasks) or s.name like 'perdure.%'))
     order by s.run_id desc limit :limit) m on true;

-- name: waiting_for_code
-- Runs of code that are due and whose workflow no connected worker has.
with scanned as materialized (
  select q.run_id, q.ns, q.workflow, q.version, q.owner, q.stuck, q.wake_at from perdure.run_queue q
   where (ns, run_id) >= (:ns, :low) and (ns, run_id) < (:ns, :high) order by ns desc, run_id desc limit :scan_limit
)
select e.scanned, e.floor, m.run_id
  from (select (select count(*) from scanned) as scanned, (select f.run_id from scanned f order by f.run_id limit 1) as floor) e
  left join lateral (
    select s.run_id from scanned s
     where s.owner is null and s.stuck is null and s.wake_at <= perdure.clock() and left(s.version, 5) <> 'flow-'
       and not exists(select from perdure.worker w where w.ns = s.ns and s.workflow = any(w.workflows))
     order by s.run_id desc limit :limit) m on true;

-- name: run_items
-- :run_ids runs, :ns namespace.
select run_id, workflow, version, key, status, created_at, null::timestamptz as finished_at, attributes::text as attributes,
         null::text as error_code, null::text as error, stuck, wake_at, owner is not null as owned, epoch, null::int as events,
         parent_id, null::uuid as successor, waits
  from perdure.run_queue where run_id = any(:run_ids::uuid[]) and ns = :ns order by run_id desc;

-- name: count_waiting
-- How many runs wait for what, each counted up to :limit.
select w.ns, w.waiting_on, (select count(*)::int from (
         select from perdure.run_queue q where q.ns = w.ns and q.waiting_on = w.waiting_on limit :limit) c) as runs
  from (
    with recursive words as (
      (select ns, waiting_on from perdure.run_queue where waiting_on is not null order by ns, waiting_on limit 1)
      union all
      select n.ns, n.waiting_on from words k cross join lateral (
        select q.ns, q.waiting_on from perdure.run_queue q where q.waiting_on is not null and (q.ns, q.waiting_on) > (k.ns, k.waiting_on)
         order by q.ns, q.waiting_on limit 1) n
    ) select * from words limit 1000) w;

-- name: count_waiting_tasks
-- How many tasks wait in lines for what, each line counted up to :limit.
select l.ns, l.reason::jsonb->>'code' as waiting_on, sum(c.tasks)::int as tasks
  from perdure.line l cross join lateral (
    select count(*) as tasks from (select from perdure.task_queue t where t.line = l.id and t.owner is null limit :limit) x) c
 where l.blocked is not null and l.kind = 0 group by 1, 2;

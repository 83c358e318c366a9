-- Why runs and tasks wait: the rows behind core/wait_reasons.py.

-- name: run_wait_reasons
-- What is recorded about active runs.
select q.run_id, q.status, q.workflow, q.version, q.pin, q.kind, q.stuck, q.paused_by, q.pause_reason, q.start_at, perdure.clock() as now, q.wait_reasons, q.owner is not null as owned, q.wake_at <= perdure.clock() or exists(select from perdure.inbox i where i.run_id = q.run_id) as due,
       q.group_id is not null and q.admitted_at is null as is_queued, g.reason,
       exists(select from perdure.worker w where w.ns = q.ns and q.workflow = any(w.workflows) and q.pin in ('', w.versions->>q.workflow)) as served
  from perdure.run_queue q left join perdure.flow_control_group g on g.id = q.group_id
 where q.run_id = any(:run_ids::uuid[]) and q.ns = :ns;

-- name: task_wait_reasons
-- Tasks of runs that wait, up to `limit` of each, in the order they fell due.
select t.run_id, t.name, t.queue, t.node, t.attempt, t.lost, t.options, t.run_at, perdure.clock() as now, g.reason,
       exists(select from perdure.worker w where w.ns = t.ns and t.queue = any(w.queues) and (t.name = any(w.tasks) or t.name like 'perdure.%')) as served
  from unnest(:run_ids::uuid[]) as r(run_id)
  cross join lateral (select * from perdure.task_queue x where x.run_id = r.run_id and x.ns = :ns and x.owner is null order by x.run_id, x.run_at limit :limit) t
  left join perdure.flow_control_group g on g.id = t.group_id;

-- name: runs_waiting_first_for
-- Runs whose first wait reason is this one.
select q.run_id from perdure.run_queue q where (ns, waiting_on, run_id) >= (:ns, :reason, :low) and (ns, waiting_on, run_id) < (:ns, :reason, :high)
   and q.waiting_on is not null
 order by ns desc, waiting_on desc, run_id desc limit :limit;

-- name: stuck_run_ids
with scanned as materialized (
  select q.run_id, q.stuck from perdure.run_queue q where (ns, run_id) >= (:ns, :low) and (ns, run_id) < (:ns, :high) order by ns desc, run_id desc limit :scan_limit
)
select e.scanned, e.floor, m.run_id
  from (select (select count(*) from scanned) as scanned, (select f.run_id from scanned f order by f.run_id limit 1) as floor) e
  left join lateral (select s.run_id from scanned s where s.stuck is not null order by s.run_id desc limit :limit) m on true;

-- name: runs_waiting_also_for
-- Runs that also wait for this: walks active runs, scan_limit at most; `floor` is how far it got.
with scanned as materialized (
  select q.run_id, q.wait_reasons from perdure.run_queue q where (ns, run_id) >= (:ns, :low) and (ns, run_id) < (:ns, :high) order by ns desc, run_id desc limit :scan_limit
)
select e.scanned, e.floor, m.run_id
  from (select (select count(*) from scanned) as scanned, (select f.run_id from scanned f order by f.run_id limit 1) as floor) e
  left join lateral (
    select s.run_id from scanned s where s.wait_reasons::jsonb @> jsonb_build_array(jsonb_build_object('on', :reason::text)) order by s.run_id desc limit :limit) m on true;

-- name: runs_waiting_for_flow_control
-- Runs that flow control has not admitted, or whose tasks it holds back, for this reason; and runs that are paused themselves.
select distinct r.run_id from (
  select q.run_id from perdure.run_queue q where :reason::text = 'paused' and q.ns = :ns and q.paused_at is not null
     and q.run_id >= :low and q.run_id < :high
  union all
  select q.run_id from perdure.flow_control_group g join perdure.run_queue q on q.group_id = g.id and q.admitted_at is null and not q.halted
   where g.ns = :ns and g.blocked is not null and g.kind = 'run' and g.reason::jsonb->>'code' = :reason::text
  union all
  select t.run_id from perdure.flow_control_group g join lateral (
      select x.run_id from perdure.task_queue x where x.group_id = g.id and x.owner is null order by x.run_at limit 1000
    ) t on true
   where g.ns = :ns and g.blocked is not null and g.kind = 'task' and g.reason::jsonb->>'code' = :reason::text
) r where r.run_id >= :low and r.run_id < :high order by r.run_id desc limit :limit;

-- name: runs_waiting_for_retry
-- Walks waiting tasks by run, scan_limit at most; `floor` is how far it got. So do the two below.
with scanned as materialized (
  select t.run_id, t.ns, t.owner, t.attempt, t.run_at from perdure.task_queue t where t.run_id >= :low and t.run_id < :high order by t.run_id desc limit :scan_limit
)
select e.scanned, e.floor, m.run_id
  from (select (select count(*) from scanned) as scanned, (select f.run_id from scanned f order by f.run_id limit 1) as floor) e
  left join lateral (
    select distinct s.run_id from scanned s where s.ns = :ns and s.owner is null and s.attempt > 1 and s.run_at > perdure.clock()
     order by s.run_id desc limit :limit) m on true;

-- name: runs_waiting_for_worker
-- `served`: tasks whose workers are all busy; else tasks that no worker serves.
with scanned as materialized (
  select t.run_id, t.ns, t.owner, t.name, t.queue, t.run_at, t.group_id from perdure.task_queue t where t.run_id >= :low and t.run_id < :high
   order by t.run_id desc limit :scan_limit
)
select e.scanned, e.floor, m.run_id
  from (select (select count(*) from scanned) as scanned, (select f.run_id from scanned f order by f.run_id limit 1) as floor) e
  left join lateral (
    select distinct s.run_id from scanned s left join perdure.flow_control_group g on g.id = s.group_id
     where s.ns = :ns and s.owner is null and s.run_at <= perdure.clock() and g.reason is null
       and :served = exists(select from perdure.worker w where w.ns = s.ns and s.queue = any(w.queues) and (s.name = any(w.tasks) or s.name like 'perdure.%'))
     order by s.run_id desc limit :limit) m on true;

-- name: runs_waiting_for_code
-- Runs of code that are due and whose workflow no connected worker has: `pinned`: in the version that they need.
with scanned as materialized (
  select q.run_id, q.ns, q.workflow, q.pin, q.kind, q.owner, q.halted, q.wake_at from perdure.run_queue q
   where (ns, run_id) >= (:ns, :low) and (ns, run_id) < (:ns, :high) order by ns desc, run_id desc limit :scan_limit
)
select e.scanned, e.floor, m.run_id
  from (select (select count(*) from scanned) as scanned, (select f.run_id from scanned f order by f.run_id limit 1) as floor) e
  left join lateral (
    select s.run_id from scanned s
     where s.owner is null and not s.halted and s.kind = 'code' and (s.pin <> '') = :pinned
       and (s.wake_at <= perdure.clock() or exists(select from perdure.inbox i where i.run_id = s.run_id))
       and not exists(select from perdure.worker w where w.ns = s.ns and s.workflow = any(w.workflows) and s.pin in ('', w.versions->>s.workflow))
     order by s.run_id desc limit :limit) m on true;

-- name: run_items
select * from perdure.active_run_list s where run_id = any(:run_ids::uuid[]) and ns = :ns /*query*/ order by run_id desc;

-- name: count_waiting_runs
-- How many runs wait for each reason, each counted up to `limit`.
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
-- How many tasks of groups wait for each reason, each group counted up to `limit`.
select g.ns, g.reason::jsonb->>'code' as waiting_on, sum(c.tasks)::int as tasks
  from perdure.flow_control_group g cross join lateral (
    select count(*) as tasks from (select from perdure.task_queue t where t.group_id = g.id and t.owner is null limit :limit) x) c
 where g.blocked is not null and g.kind = 'task' group by 1, 2;

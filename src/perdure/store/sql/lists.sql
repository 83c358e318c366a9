-- Lists and pages for people. Every statement looks at a bounded number of rows.
--
-- Lists of runs share their parameters: ids from `low` to below `high`; `scan_limit` rows are looked at and `limit` of those that
-- match returned. Instead of /*query*/ stands the condition that store/run_query_sql.py makes of a query, about the row `s`, with
-- parameters of its own. Each answers how many rows it looked at and the lowest id among them, so that a page that found little says
-- where to go on. Where only the range of ids is asked for, it is written over the whole key of the index that is meant, so that the
-- planner takes no other. A workflow or a status is written as an equation instead: a walk over a range of rows (a, b, c) ends where a
-- changes, not where b does, hence one of a rare workflow would go through all others.

-- name: list_active
-- Walks run_queue_list.
with scanned as materialized (
  select * from perdure.active_run_list
   where run_id >= :low and run_id < :high and (ns, run_id) >= (:ns, :low) and (ns, run_id) < (:ns, :high)
   order by ns desc, run_id desc limit :scan_limit
)
select e.scanned, e.floor, m.*
  from (select (select count(*) from scanned) as scanned, (select f.run_id from scanned f order by f.run_id limit 1) as floor) e
  left join lateral (
    select s.* from scanned s
     where true /*query*/
     order by s.run_id desc limit :limit) m on true
 order by m.run_id desc;

-- name: list_ended
-- Walks run_list.
with scanned as materialized (
  select * from perdure.ended_run_list
   where run_id >= :low and run_id < :high and (ns, run_id) >= (:ns, :low) and (ns, run_id) < (:ns, :high)
   order by ns desc, run_id desc limit :scan_limit
)
select e.scanned, e.floor, m.*
  from (select (select count(*) from scanned) as scanned, (select f.run_id from scanned f order by f.run_id limit 1) as floor) e
  left join lateral (
    select s.* from scanned s
     where true /*query*/
     order by s.run_id desc limit :limit) m on true
 order by m.run_id desc;

-- name: list_ended_of_workflow
-- Walks run_list_by_workflow.
with scanned as materialized (
  select * from perdure.ended_run_list
   where ns = :ns and workflow = :workflow and run_id >= :low and run_id < :high
   order by run_id desc limit :scan_limit
)
select e.scanned, e.floor, m.*
  from (select (select count(*) from scanned) as scanned, (select f.run_id from scanned f order by f.run_id limit 1) as floor) e
  left join lateral (
    select s.* from scanned s
     where true /*query*/
     order by s.run_id desc limit :limit) m on true
 order by m.run_id desc;

-- name: list_ended_badly
-- Walks run_list_ended_badly; there is one status.
with scanned as materialized (
  select * from perdure.ended_run_list
   where status in ('failed', 'cancelled') and ns = :ns and status = :status and run_id >= :low and run_id < :high
   order by run_id desc limit :scan_limit
)
select e.scanned, e.floor, m.*
  from (select (select count(*) from scanned) as scanned, (select f.run_id from scanned f order by f.run_id limit 1) as floor) e
  left join lateral (
    select s.* from scanned s
     where true /*query*/
     order by s.run_id desc limit :limit) m on true
 order by m.run_id desc;

-- name: list_active_by_attributes
-- Through the inverted index, which knows no order: the caller keeps the range of ids, hence of days, small.
with found as materialized (
  select * from perdure.active_run_list
   where ns = :ns and run_id >= :low and run_id < :high and attributes is not null and attributes @> any(:attributes::text[]::jsonb[])
),
scanned as materialized (
  select * from found order by run_id desc limit :scan_limit
)
select e.scanned, e.floor, m.*
  from (select (select count(*) from scanned) as scanned, (select f.run_id from scanned f order by f.run_id limit 1) as floor) e
  left join lateral (
    select s.* from scanned s
     where true /*query*/
     order by s.run_id desc limit :limit) m on true
 order by m.run_id desc;

-- name: list_ended_by_attributes
-- Through the inverted index, which knows no order: the caller keeps the range of ids, hence of days, small.
with found as materialized (
  select * from perdure.ended_run_list
   where ns = :ns and run_id >= :low and run_id < :high and attributes is not null and attributes @> any(:attributes::text[]::jsonb[])
),
scanned as materialized (
  select * from found order by run_id desc limit :scan_limit
)
select e.scanned, e.floor, m.*
  from (select (select count(*) from scanned) as scanned, (select f.run_id from scanned f order by f.run_id limit 1) as floor) e
  left join lateral (
    select s.* from scanned s
     where true /*query*/
     order by s.run_id desc limit :limit) m on true
 order by m.run_id desc;

-- name: count_active
select count(*)::int as scanned, count(*) filter (where true /*query*/)::int as matched
  from (
    select * from perdure.active_run_list
     where run_id >= :low and run_id < :high and (ns, run_id) >= (:ns, :low) and (ns, run_id) < (:ns, :high)
     order by ns desc, run_id desc limit :scan_limit) s;

-- name: count_ended
select count(*)::int as scanned, count(*) filter (where true /*query*/)::int as matched
  from (
    select * from perdure.ended_run_list
     where run_id >= :low and run_id < :high and (ns, run_id) >= (:ns, :low) and (ns, run_id) < (:ns, :high)
     order by ns desc, run_id desc limit :scan_limit) s;

-- name: count_ended_of_workflow
select count(*)::int as scanned, count(*) filter (where true /*query*/)::int as matched
  from (
    select * from perdure.ended_run_list
     where ns = :ns and workflow = :workflow and run_id >= :low and run_id < :high
     order by run_id desc limit :scan_limit) s;

-- name: count_ended_badly
select count(*)::int as scanned, count(*) filter (where true /*query*/)::int as matched
  from (
    select * from perdure.ended_run_list
     where status in ('failed', 'cancelled') and ns = :ns and status = :status and run_id >= :low and run_id < :high
     order by run_id desc limit :scan_limit) s;

-- name: matching_run_ids
select s.run_id from perdure.active_run_list s where s.run_id = any(:run_ids::uuid[]) and s.ns = :ns /*query*/;

-- name: most_attempts
-- Per run, the number of the last attempt of a task that took most, as far as `limit` earlier attempts tell; 1 where there were none.
select r.run_id, coalesce((
         select max(a.attempt) + 1 from (
           select x.attempt from perdure.task_attempt x
            where x.id >= overlay(r.run_id::text placing '0000-000000000000' from 20)::uuid
              and x.id <= overlay(r.run_id::text placing 'ffff-ffffffffffff' from 20)::uuid and x.run_id = r.run_id and x.ns = :ns limit :limit) a), 1) as attempts
  from unnest(:run_ids::uuid[]) as r(run_id);

-- name: list_children
-- The runs that a run has started, newest first.
(select * from perdure.active_run_list where parent_id = :run_id and run_id < :below and ns = :ns order by run_id desc limit :limit)
union all
(select * from perdure.ended_run_list where parent_id = :run_id and run_id < :below and ns = :ns order by run_id desc limit :limit)
order by run_id desc limit :limit;

-- name: run_item
select * from perdure.active_run_list where run_id = :run_id and ns = :ns
union all
select * from perdure.ended_run_list where run_id = :run_id and ns = :ns;

-- name: find_runs
-- Runs whose id lies between two: those that begin with what a person typed.
(select run_id from perdure.run_queue where (ns, run_id) >= (:ns, :low) and (ns, run_id) <= (:ns, :high) order by ns desc, run_id desc limit :limit)
union
(select run_id from perdure.run where (ns, run_id) >= (:ns, :low) and (ns, run_id) <= (:ns, :high) and run_id >= :low and run_id <= :high
  order by ns desc, run_id desc limit :limit)
order by run_id desc limit :limit;

-- name: newest_run
(select run_id from perdure.run_queue where ns >= :ns and ns <= :ns order by ns desc, run_id desc limit 1)
union all
(select run_id from perdure.run where ns >= :ns and ns <= :ns order by ns desc, run_id desc limit 1)
order by run_id desc limit 1;

-- name: history_ends
-- The first and the last row of a history.
select f.body as first, l.body as last, l.last as events
  from (select body from perdure.history where run_id = :run_id and ns = :ns order by seq limit 1) f,
       (select body, last from perdure.history where run_id = :run_id and ns = :ns order by seq desc limit 1) l;

-- name: history_size
select coalesce(sum(octet_length(body)), 0)::bigint as bytes from perdure.history where run_id = :run_id and ns = :ns;

-- name: whole_history
select run_id, seq, last, at, body from perdure.history where run_id = :run_id and ns = :ns order by seq;

-- name: history_page
-- Rows from an event on, no more than begin within bytes_max.
select seq, last, at, body from (
  select r.*, sum(octet_length(r.body)) over (order by r.seq) - octet_length(r.body) as before
    from (select seq, last, at, body from perdure.history where run_id = :run_id and ns = :ns and last > :after order by seq limit :limit) r
) t where before < :bytes_max order by seq;

-- name: count_ended_tasks
-- Task ids of a run lie between `low` and `high`, perhaps with those of another run of the same millisecond.
select status, count(*)::int as tasks
  from (select status from perdure.task where id >= :low and id <= :high and run_id = :run_id and ns = :ns limit :limit) t group by status;

-- name: counted_ended_tasks
-- Of a run with many tasks: those that were counted when they ended.
select what as status, sum(n)::int as tasks from perdure.node_count
 where run_id = :run_id and ns = :ns and what in ('success', 'failed', 'skipped', 'cancelled') group by what;

-- name: count_first_tasks
-- The others of such a run.
select status, count(*)::int as tasks
  from perdure.task where id = any(:ids::uuid[]) and id >= :low and id <= :high and run_id = :run_id and ns = :ns group by status;

-- name: count_queued_tasks
select status, count(*)::int as tasks
  from (select status from perdure.task_queue where run_id = :run_id and ns = :ns limit :limit) t group by status;

-- name: ended_tasks
select id, seq, name, queue, status, attempts, lost, scheduled_at, started_at, finished_at, error, worker, node, copied
  from perdure.task where id = any(:ids::uuid[]) and run_id = :run_id and ns = :ns;

-- name: queued_tasks
select id, seq, name, queue, status, attempt, lost, scheduled_at, started_at, run_at, error, worker, details, blocked, node
  from perdure.task_queue where id = any(:ids::uuid[]) and run_id = :run_id and ns = :ns;

-- name: ended_tasks_by_status
select id, seq, name, queue, status, attempts, lost, scheduled_at, started_at, finished_at, error, worker, node, copied
  from perdure.task
 where id >= :low and id <= :high and run_id = :run_id and ns = :ns and seq > :after and status = any(:statuses::text[]) order by seq limit :limit;

-- name: queued_tasks_by_status
select id, seq, name, queue, status, attempt, lost, scheduled_at, started_at, run_at, error, worker, details, blocked, node
  from perdure.task_queue where run_id = :run_id and ns = :ns and seq > :after and status = any(:statuses::text[]) order by seq limit :limit;

-- name: tasks_named
-- By the name of the task or by the node of a flow, with or without its index in a foreach.
(select seq from perdure.task where id >= :low and id <= :high and run_id = :run_id and ns = :ns
    and (name = :name or node = :name or split_part(node, '[', 1) = :name) order by seq limit :limit)
union
(select seq from perdure.task_queue where run_id = :run_id and ns = :ns
    and (name = :name or node = :name or split_part(node, '[', 1) = :name) order by seq limit :limit)
order by seq limit :limit;

-- name: run_logs
-- From the chunk at a position on, in order of arrival.
select seq, attempt, n, at, body from perdure.task_log
 where run_id = :run_id and ns = :ns and (at, seq, attempt, n) >= (:after_at::timestamptz, :after_seq::int, :after_attempt::int, :after_n::int)
 order by at, seq, attempt, n limit :limit;

-- name: task_logs
-- The same of some tasks and, unless null, one attempt.
select seq, attempt, n, at, body from perdure.task_log
 where run_id = :run_id and ns = :ns and (at, seq, attempt, n) >= (:after_at::timestamptz, :after_seq::int, :after_attempt::int, :after_n::int)
   and seq = any(:seqs::int[]) and (:attempt::int is null or attempt = :attempt)
 order by at, seq, attempt, n limit :limit;

-- name: run_logs_newest
-- From the chunk at a position back, the last that arrived first.
select seq, attempt, n, at, body from perdure.task_log
 where run_id = :run_id and ns = :ns and (at, seq, attempt, n) <= (:after_at::timestamptz, :after_seq::int, :after_attempt::int, :after_n::int)
 order by at desc, seq desc, attempt desc, n desc limit :limit;

-- name: task_logs_newest
-- The same of some tasks and, unless null, one attempt.
select seq, attempt, n, at, body from perdure.task_log
 where run_id = :run_id and ns = :ns and (at, seq, attempt, n) <= (:after_at::timestamptz, :after_seq::int, :after_attempt::int, :after_n::int)
   and seq = any(:seqs::int[]) and (:attempt::int is null or attempt = :attempt)
 order by at desc, seq desc, attempt desc, n desc limit :limit;

-- name: list_workflows
-- `text` is part of the name in lower case, or null.
with held as materialized (
  select workflow, count(*) as runs from perdure.run_queue where owner is not null and ns = :ns group by workflow
)
select w.name, w.kind, w.current, w.description, w.created_at, w.deleted_at,
       (select count(*)::int from (select from perdure.workflow_version v where v.ns = :ns and v.workflow = w.name limit :count_max) v) as versions,
       (select count(*)::int from (select from perdure.run_queue q where q.ns = :ns and q.workflow = w.name and q.owner is null limit :count_max) q)
         + coalesce((select h.runs::int from held h where h.workflow = w.name), 0) as runs_active
  from perdure.workflow w
 where w.ns = :ns and w.name > :after and w.deleted_at is null and (:text::text is null or position(:text in lower(w.name)) > 0)
 order by w.name limit :limit;

-- name: get_workflow
select w.name, w.kind, w.current, w.description, w.created_at, w.deleted_at,
       (select count(*)::int from perdure.workflow_version v where v.ns = :ns and v.workflow = w.name) as versions,
       (select count(*)::int from (select from perdure.run_queue q where q.ns = :ns and q.workflow = :name and q.owner is null limit :count_max) q)
         + (select count(*)::int from perdure.run_queue q where q.owner is not null and q.ns = :ns and q.workflow = :name) as runs_active
  from perdure.workflow w where w.ns = :ns and w.name = :name;

-- name: workflow_names
select name from perdure.workflow where ns = :ns and deleted_at is null order by name limit :limit;

-- name: list_versions
select v.version, v.kind, v.registered_at, w.current is not null and v.version = w.current as current
  from perdure.workflow_version v left join perdure.workflow w on w.ns = v.ns and w.name = v.workflow
 where v.ns = :ns and v.workflow = :workflow order by v.registered_at desc, v.version limit :limit;

-- name: list_workers
select w.id, w.name, w.host, w.pid, w.sdk, w.queues, w.tasks, w.workflows, w.slots, w.slots_used, w.runs_held, w.draining, w.connected_at,
       w.seen_at, w.blocked, w.ended, w.failed, w.p50_us, w.p95_us, w.p99_us, (select s.engine from perdure.engine_session s where s.id = w.session_id) as engine
  from perdure.worker w where w.ns = :ns and w.id > :after order by w.id limit :limit;

-- name: get_worker
select w.id, w.name, w.host, w.pid, w.sdk, w.queues, w.tasks, w.workflows, w.slots, w.slots_used, w.runs_held, w.draining, w.connected_at,
       w.seen_at, w.blocked, w.ended, w.failed, w.p50_us, w.p95_us, w.p99_us, w.session_id,
       (select s.engine from perdure.engine_session s where s.id = w.session_id) as engine
  from perdure.worker w where w.ns = :ns and w.id = :id;

-- name: tasks_of_worker
-- Attempts of a worker that have a row. Those of its engine's session are looked at: no more than the slots of its workers.
select t.run_id, coalesce(r.workflow, '') as workflow, t.seq, t.name, t.node, t.attempt, t.started_at
  from (select * from perdure.task_queue q where q.owner = :session and q.ns = :ns and q.worker = :worker limit :limit) t
  left join perdure.run_queue r on r.run_id = t.run_id
 order by t.started_at nulls last, t.run_id, t.seq;

-- name: waiting_tasks
-- Kinds of tasks that wait, found by jumping from one to the next in task_queue_due, and those of flow-control groups; each counted
-- up to count_max.
with recursive ungrouped as (
  (select queue, name from perdure.task_queue where ns = :ns and owner is null and group_id is null and not held order by queue, name limit 1)
  union all
  select n.queue, n.name from ungrouped k cross join lateral (
    select t.queue, t.name from perdure.task_queue t
     where t.ns = :ns and t.owner is null and t.group_id is null and not t.held and (t.queue, t.name) > (k.queue, k.name)
     order by t.queue, t.name limit 1) n
),
kinds as (
  (select queue, name from ungrouped limit :limit)
  union
  (select g.queue, g.name from perdure.flow_control_group g where g.ns = :ns and g.kind = 'task' limit :count_max)
)
select k.queue, k.name,
       (select count(*)::int from (
          select from perdure.task_queue t
           where t.ns = :ns and t.queue = k.queue and t.name = k.name and t.owner is null and t.group_id is null and not t.held limit :count_max) c)
       + (select count(*)::int from (
          select from perdure.flow_control_group g cross join lateral (
              select from perdure.task_queue t where t.group_id = g.id and t.owner is null limit :count_max) x
           where g.ns = :ns and g.kind = 'task' and g.queue = k.queue and g.name = k.name limit :count_max) c) as pending,
       extract(epoch from perdure.clock() - least(
         (select t.run_at from perdure.task_queue t
           where t.ns = :ns and t.queue = k.queue and t.name = k.name and t.owner is null and t.group_id is null and not t.held order by t.run_at limit 1),
         (select g.head_at from perdure.flow_control_group g where g.ns = :ns and g.kind = 'task' and g.queue = k.queue and g.name = k.name
           order by g.head_at limit 1)))::float8 as age_s
  from kinds k order by k.queue, k.name limit :limit;

-- name: held_tasks
-- Bounded by the slots of the engines that are alive.
select queue, name, count(*)::int as running from perdure.task_queue where owner is not null and ns = :ns group by queue, name;

-- name: list_namespaces
select name, created_at from perdure.namespace where deleted_at is null and name > :after order by name limit :limit;

-- name: created_since
-- Active runs above an id, oldest first.
select * from perdure.active_run_list where (ns, run_id) > (:ns, :after_run_id) and ns <= :ns order by ns, run_id limit :limit;

-- name: ended_since
-- Runs that ended after a moment and an id, oldest end first; those of one commit ended at the same moment.
select * from perdure.ended_run_list
 where ns = :ns and finished_at >= :after_at and (finished_at, run_id) > (:after_at, :after_run_id::uuid)
 order by finished_at, run_id limit :limit;

-- name: run_days
-- The clock, and the name of the oldest partition of ended runs; null: there is the default one alone.
select perdure.clock() as clock,
       (select min(c.relname) from pg_inherits i join pg_class c on c.oid = i.inhrelid
         where i.inhparent = 'perdure.run'::regclass and c.relname ~ '^run_p[0-9]{8}$') as oldest;

-- name: read_clock
select perdure.clock() as clock;

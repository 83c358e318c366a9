-- Lists and pages for people. Every statement looks at a bounded number of rows, whatever the tables hold.
--
-- Lists of runs share their parameters: $1 namespace, $2 lowest id, $3 below this id, $4 statuses, $5 workflow, $6 attributes (any of these objects), $7 text in lower
-- case (null: any), $8 rows to look at, $9 rows to hand back. Each answers how many rows it looked at and the lowest id among them, so that a page
-- that found little says where to go on. The connections they run on plan each call anew: a filter that is not given costs nothing.
-- Ranges are written over the whole key of the index that is meant, so that no other will do, whatever the statistics say.

-- name: list_active
-- Walks run_queue_list.
with scanned as materialized (
  select run_id, workflow, version, key, status, created_at, null::timestamptz as finished_at, attributes::text as attributes,
         null::text as error_code, null::text as error, stuck, wake_at, owner is not null as owned, epoch, null::int as events,
         parent_id, null::uuid as successor, waits
    from perdure.run_queue
   where run_id >= $2 and run_id < $3 and (ns, run_id) >= ($1, $2) and (ns, run_id) < ($1, $3)
   order by ns desc, run_id desc limit $8
)
select e.scanned, e.floor, m.*
  from (select (select count(*) from scanned) as scanned, (select f.run_id from scanned f order by f.run_id limit 1) as floor) e
  left join lateral (
  select s.* from scanned s
   where ($4::smallint[] is null or s.status = any($4))
     and ($5::text is null or s.workflow = $5)
     and ($6::text[] is null or s.attributes::jsonb @> any($6::text[]::jsonb[]))
     and ($7::text is null or position($7 in lower(s.key)) > 0 or position($7 in lower(s.workflow)) > 0 or position($7 in lower(s.error)) > 0
          or position($7 in lower(s.stuck)) > 0 or starts_with(s.run_id::text, $7) or starts_with(replace(s.run_id::text, '-', ''), $7))
   order by s.run_id desc limit $9) m on true
 order by m.run_id desc;

-- name: list_ended
-- Walks run_list.
with scanned as materialized (
  select run_id, workflow, version, key, status, created_at, finished_at, attributes::text as attributes, error_code, error,
         null::text as stuck, null::timestamptz as wake_at, false as owned, epoch, events, parent_id, successor, null::text as waits
    from perdure.run
   where run_id >= $2 and run_id < $3 and (ns, run_id) >= ($1, $2) and (ns, run_id) < ($1, $3)
   order by ns desc, run_id desc limit $8
)
select e.scanned, e.floor, m.*
  from (select (select count(*) from scanned) as scanned, (select f.run_id from scanned f order by f.run_id limit 1) as floor) e
  left join lateral (
  select s.* from scanned s
   where ($4::smallint[] is null or s.status = any($4))
     and ($5::text is null or s.workflow = $5)
     and ($6::text[] is null or s.attributes::jsonb @> any($6::text[]::jsonb[]))
     and ($7::text is null or position($7 in lower(s.key)) > 0 or position($7 in lower(s.workflow)) > 0 or position($7 in lower(s.error)) > 0
          or position($7 in lower(s.stuck)) > 0 or starts_with(s.run_id::text, $7) or starts_with(replace(s.run_id::text, '-', ''), $7))
   order by s.run_id desc limit $9) m on true
 order by m.run_id desc;

-- name: list_ended_of_workflow
-- Walks run_list_by_workflow.
with scanned as materialized (
  select run_id, workflow, version, key, status, created_at, finished_at, attributes::text as attributes, error_code, error,
         null::text as stuck, null::timestamptz as wake_at, false as owned, epoch, events, parent_id, successor, null::text as waits
    from perdure.run
   where run_id >= $2 and run_id < $3 and (ns, workflow, run_id) >= ($1, $5, $2) and (ns, workflow, run_id) < ($1, $5, $3)
   order by ns desc, workflow desc, run_id desc limit $8
)
select e.scanned, e.floor, m.*
  from (select (select count(*) from scanned) as scanned, (select f.run_id from scanned f order by f.run_id limit 1) as floor) e
  left join lateral (
  select s.* from scanned s
   where ($4::smallint[] is null or s.status = any($4))
     and ($5::text is null or s.workflow = $5)
     and ($6::text[] is null or s.attributes::jsonb @> any($6::text[]::jsonb[]))
     and ($7::text is null or position($7 in lower(s.key)) > 0 or position($7 in lower(s.workflow)) > 0 or position($7 in lower(s.error)) > 0
          or position($7 in lower(s.stuck)) > 0 or starts_with(s.run_id::text, $7) or starts_with(replace(s.run_id::text, '-', ''), $7))
   order by s.run_id desc limit $9) m on true
 order by m.run_id desc;

-- name: list_ended_badly
-- Walks run_list_ended_badly; $4 holds one status.
with scanned as materialized (
  select run_id, workflow, version, key, status, created_at, finished_at, attributes::text as attributes, error_code, error,
         null::text as stuck, null::timestamptz as wake_at, false as owned, epoch, events, parent_id, successor, null::text as waits
    from perdure.run
   where status in (3, 4) and run_id >= $2 and run_id < $3 and (ns, status, run_id) >= ($1, ($4::smallint[])[1], $2) and (ns, status, run_id) < ($1, ($4::smallint[])[1], $3)
   order by ns desc, status desc, run_id desc limit $8
)
select e.scanned, e.floor, m.*
  from (select (select count(*) from scanned) as scanned, (select f.run_id from scanned f order by f.run_id limit 1) as floor) e
  left join lateral (
  select s.* from scanned s
   where ($4::smallint[] is null or s.status = any($4))
     and ($5::text is null or s.workflow = $5)
     and ($6::text[] is null or s.attributes::jsonb @> any($6::text[]::jsonb[]))
     and ($7::text is null or position($7 in lower(s.key)) > 0 or position($7 in lower(s.workflow)) > 0 or position($7 in lower(s.error)) > 0
          or position($7 in lower(s.stuck)) > 0 or starts_with(s.run_id::text, $7) or starts_with(replace(s.run_id::text, '-', ''), $7))
   order by s.run_id desc limit $9) m on true
 order by m.run_id desc;

-- name: list_active_by_attributes
-- Through the inverted index, which knows no order: the caller keeps the range of ids, hence of days, small.
with found as materialized (
  select * from perdure.run_queue where ns = $1 and run_id >= $2 and run_id < $3 and attributes is not null and attributes @> any($6::text[]::jsonb[])
),
scanned as materialized (
  select run_id, workflow, version, key, status, created_at, null::timestamptz as finished_at, attributes::text as attributes,
         null::text as error_code, null::text as error, stuck, wake_at, owner is not null as owned, epoch, null::int as events,
         parent_id, null::uuid as successor, waits
    from found order by run_id desc limit $8
)
select e.scanned, e.floor, m.*
  from (select (select count(*) from scanned) as scanned, (select f.run_id from scanned f order by f.run_id limit 1) as floor) e
  left join lateral (
  select s.* from scanned s
   where ($4::smallint[] is null or s.status = any($4))
     and ($5::text is null or s.workflow = $5)
     and ($6::text[] is null or s.attributes::jsonb @> any($6::text[]::jsonb[]))
     and ($7::text is null or position($7 in lower(s.key)) > 0 or position($7 in lower(s.workflow)) > 0 or position($7 in lower(s.error)) > 0
          or position($7 in lower(s.stuck)) > 0 or starts_with(s.run_id::text, $7) or starts_with(replace(s.run_id::text, '-', ''), $7))
   order by s.run_id desc limit $9) m on true
 order by m.run_id desc;

-- name: list_ended_by_attributes
-- Through the inverted index, which knows no order: the caller keeps the range of ids, hence of days, small.
with found as materialized (
  select * from perdure.run where ns = $1 and run_id >= $2 and run_id < $3 and attributes is not null and attributes @> any($6::text[]::jsonb[])
),
scanned as materialized (
  select run_id, workflow, version, key, status, created_at, finished_at, attributes::text as attributes, error_code, error,
         null::text as stuck, null::timestamptz as wake_at, false as owned, epoch, events, parent_id, successor, null::text as waits
    from found order by run_id desc limit $8
)
select e.scanned, e.floor, m.*
  from (select (select count(*) from scanned) as scanned, (select f.run_id from scanned f order by f.run_id limit 1) as floor) e
  left join lateral (
  select s.* from scanned s
   where ($4::smallint[] is null or s.status = any($4))
     and ($5::text is null or s.workflow = $5)
     and ($6::text[] is null or s.attributes::jsonb @> any($6::text[]::jsonb[]))
     and ($7::text is null or position($7 in lower(s.key)) > 0 or position($7 in lower(s.workflow)) > 0 or position($7 in lower(s.error)) > 0
          or position($7 in lower(s.stuck)) > 0 or starts_with(s.run_id::text, $7) or starts_with(replace(s.run_id::text, '-', ''), $7))
   order by s.run_id desc limit $9) m on true
 order by m.run_id desc;

-- name: run_item
select run_id, workflow, version, key, status, created_at, null::timestamptz as finished_at, attributes::text as attributes,
         null::text as error_code, null::text as error, stuck, wake_at, owner is not null as owned, epoch, null::int as events,
         parent_id, null::uuid as successor, waits
  from perdure.run_queue where run_id = $1 and ns = $2
union all
select run_id, workflow, version, key, status, created_at, finished_at, attributes::text as attributes, error_code, error,
         null::text as stuck, null::timestamptz as wake_at, false as owned, epoch, events, parent_id, successor, null::text as waits
  from perdure.run where run_id = $1 and ns = $2;

-- name: find_runs
-- Runs whose id lies between two: those that begin with what a person typed.
(select run_id from perdure.run_queue where (ns, run_id) >= ($1, $2) and (ns, run_id) <= ($1, $3) order by ns desc, run_id desc limit $4)
union
(select run_id from perdure.run where (ns, run_id) >= ($1, $2) and (ns, run_id) <= ($1, $3) and run_id >= $2 and run_id <= $3
  order by ns desc, run_id desc limit $4)
order by run_id desc limit $4;

-- name: newest_run
(select run_id from perdure.run_queue where ns >= $1 and ns <= $1 order by ns desc, run_id desc limit 1)
union all
(select run_id from perdure.run where ns >= $1 and ns <= $1 order by ns desc, run_id desc limit 1)
order by run_id desc limit 1;

-- name: history_ends
-- The first and the last row of a history: what started the run, and how it stands.
select f.body as first, l.body as last, l.last as events
  from (select body from perdure.history where run_id = $1 and ns = $2 order by seq limit 1) f,
       (select body, last from perdure.history where run_id = $1 and ns = $2 order by seq desc limit 1) l;

-- name: history_size
select coalesce(sum(octet_length(body)), 0)::bigint as bytes from perdure.history where run_id = $1 and ns = $2;

-- name: whole_history
select run_id, seq, last, at, body from perdure.history where run_id = $1 and ns = $2 order by seq;

-- name: history_page
-- Rows from an event on: at most $4, and no more than begin within $5 bytes.
select seq, last, at, body from (
  select r.*, sum(octet_length(r.body)) over (order by r.seq) - octet_length(r.body) as before
    from (select seq, last, at, body from perdure.history where run_id = $1 and ns = $2 and last > $3 order by seq limit $4) r
) t where before < $5 order by seq;

-- name: count_ended_tasks
-- Task ids of a run lie between $1 and $2; another run of the same millisecond may lie there too.
select status, count(*)::int as tasks
  from (select status from perdure.task where id >= $1 and id <= $2 and run_id = $3 and ns = $4 limit $5) t group by status;

-- name: count_queued_tasks
select status, count(*)::int as tasks
  from (select status from perdure.task_queue where run_id = $1 and ns = $2 limit $3) t group by status;

-- name: ended_tasks
select id, seq, name, queue, status, attempts, lost, scheduled_at, started_at, finished_at, error, node
  from perdure.task where id = any($1::uuid[]) and run_id = $2 and ns = $3;

-- name: queued_tasks
select id, seq, name, queue, status, attempt, lost, scheduled_at, started_at, run_at, error, worker, details, blocked, node
  from perdure.task_queue where id = any($1::uuid[]) and run_id = $2 and ns = $3;

-- name: ended_tasks_by_status
select id, seq, name, queue, status, attempts, lost, scheduled_at, started_at, finished_at, error, node
  from perdure.task
 where id >= $1 and id <= $2 and run_id = $3 and ns = $4 and seq > $5 and status = any($6::smallint[]) order by seq limit $7;

-- name: queued_tasks_by_status
select id, seq, name, queue, status, attempt, lost, scheduled_at, started_at, run_at, error, worker, details, blocked, node
  from perdure.task_queue where run_id = $1 and ns = $2 and seq > $3 and status = any($4::smallint[]) order by seq limit $5;

-- name: tasks_named
-- By the name of the task or by the node of a flow, with or without its place in a spread.
(select seq from perdure.task where id >= $1 and id <= $2 and run_id = $3 and ns = $4
    and (name = $5 or node = $5 or split_part(node, '[', 1) = $5) order by seq limit $6)
union
(select seq from perdure.task_queue where run_id = $3 and ns = $4
    and (name = $5 or node = $5 or split_part(node, '[', 1) = $5) order by seq limit $6)
order by seq limit $6;

-- name: run_logs
-- From the chunk at a position on, in order of arrival.
select seq, attempt, n, at, body from perdure.task_log
 where run_id = $1 and ns = $2 and (at, seq, attempt, n) >= ($3::timestamptz, $4::int, $5::int, $6::int)
 order by at, seq, attempt, n limit $7;

-- name: task_logs
-- The same of some tasks and, unless $9 is null, one attempt.
select seq, attempt, n, at, body from perdure.task_log
 where run_id = $1 and ns = $2 and (at, seq, attempt, n) >= ($3::timestamptz, $4::int, $5::int, $6::int)
   and seq = any($8::int[]) and ($9::int is null or attempt = $9)
 order by at, seq, attempt, n limit $7;

-- name: list_workflows
-- $2 part of the name in lower case or null, $3 above this name, $5 how many runs to count.
with held as materialized (
  select workflow, count(*) as runs from perdure.run_queue where owner is not null and ns = $1 group by workflow
)
select w.name, w.kind, w.current, w.description, w.created_at, w.deleted_at,
       (select count(*)::int from (select from perdure.workflow_version v where v.ns = $1 and v.workflow = w.name limit $5) v) as versions,
       (select count(*)::int from (select from perdure.run_queue q where q.ns = $1 and q.workflow = w.name and q.owner is null limit $5) q)
         + coalesce((select h.runs::int from held h where h.workflow = w.name), 0) as runs_active
  from perdure.workflow w
 where w.ns = $1 and w.name > $3 and w.deleted_at is null and ($2::text is null or position($2 in lower(w.name)) > 0)
 order by w.name limit $4;

-- name: get_workflow
-- $3 how many runs to count.
select w.name, w.kind, w.current, w.description, w.created_at, w.deleted_at,
       (select count(*)::int from perdure.workflow_version v where v.ns = $1 and v.workflow = w.name) as versions,
       (select count(*)::int from (select from perdure.run_queue q where q.ns = $1 and q.workflow = $2 and q.owner is null limit $3) q)
         + (select count(*)::int from perdure.run_queue q where q.owner is not null and q.ns = $1 and q.workflow = $2) as runs_active
  from perdure.workflow w where w.ns = $1 and w.name = $2;

-- name: workflow_names
select name from perdure.workflow where ns = $1 and deleted_at is null order by name limit $2;

-- name: list_versions
select v.version, v.kind, v.registered_at, w.current is not null and v.version = w.current as current
  from perdure.workflow_version v left join perdure.workflow w on w.ns = v.ns and w.name = v.workflow
 where v.ns = $1 and v.workflow = $2 order by v.registered_at desc, v.version limit $3;

-- name: list_workers
select w.id, w.name, w.host, w.pid, w.sdk, w.queues, w.tasks, w.workflows, w.slots, w.slots_used, w.runs_held, w.draining, w.connected_at,
       w.seen_at, w.blocked, (select s.engine from perdure.engine_session s where s.id = w.session_id) as engine
  from perdure.worker w where w.ns = $1 and w.id > $2 order by w.id limit $3;

-- name: waiting_tasks
-- Kinds of tasks that wait, found by jumping from one to the next in task_queue_due, and those that wait in lines; each counted up to $3.
with recursive unlined as (
  (select queue, name from perdure.task_queue where ns = $1 and owner is null and line is null order by queue, name limit 1)
  union all
  select n.queue, n.name from unlined k cross join lateral (
    select t.queue, t.name from perdure.task_queue t
     where t.ns = $1 and t.owner is null and t.line is null and (t.queue, t.name) > (k.queue, k.name) order by t.queue, t.name limit 1) n
),
kinds as (
  (select queue, name from unlined limit $2)
  union
  (select l.queue, l.name from perdure.line l where l.ns = $1 and l.kind = 0 limit $3)
)
select k.queue, k.name,
       (select count(*)::int from (
          select from perdure.task_queue t where t.ns = $1 and t.queue = k.queue and t.name = k.name and t.owner is null and t.line is null limit $3) c)
       + (select count(*)::int from (
          select from perdure.line l cross join lateral (
              select from perdure.task_queue t where t.line = l.id and t.owner is null limit $3) x
           where l.ns = $1 and l.kind = 0 and l.queue = k.queue and l.name = k.name limit $3) c) as pending,
       extract(epoch from perdure.clock() - least(
         (select t.run_at from perdure.task_queue t
           where t.ns = $1 and t.queue = k.queue and t.name = k.name and t.owner is null and t.line is null order by t.run_at limit 1),
         (select l.head_at from perdure.line l where l.ns = $1 and l.kind = 0 and l.queue = k.queue and l.name = k.name
           order by l.head_at limit 1)))::float8 as age_s
  from kinds k order by k.queue, k.name limit $2;

-- name: held_tasks
-- Bounded by the slots of the engines that are alive.
select queue, name, count(*)::int as running from perdure.task_queue where owner is not null and ns = $1 group by queue, name;

-- name: list_namespaces
select name, created_at from perdure.namespace where deleted_at is null and name > $1 order by name limit $2;

-- name: created_since
-- Active runs above an id, oldest first.
select run_id, workflow, version, key, status, created_at, null::timestamptz as finished_at, attributes::text as attributes,
         null::text as error_code, null::text as error, stuck, wake_at, owner is not null as owned, epoch, null::int as events,
         parent_id, null::uuid as successor, waits
  from perdure.run_queue where (ns, run_id) > ($1, $2) and ns <= $1 order by ns, run_id limit $3;

-- name: ended_since
-- Runs that ended after a moment and an id, oldest end first; those of one commit ended at the same moment.
select run_id, workflow, version, key, status, created_at, finished_at, attributes::text as attributes, error_code, error,
         null::text as stuck, null::timestamptz as wake_at, false as owned, epoch, events, parent_id, successor, null::text as waits
  from perdure.run where ns = $1 and finished_at >= $2 and (finished_at, run_id) > ($2, $3::uuid) order by finished_at, run_id limit $4;

-- name: read_clock
select perdure.clock() as clock;

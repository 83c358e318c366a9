-- How an engine gets work: due runs, runs with mail, queued tasks. Rows are locked where they are found and updated by ctid.

-- name: claim_runs
-- :session session, :workflows.ns and :workflows.workflow are pairs (namespace, workflow) whose code is at hand, :limit how many, :flows whether flows too.
-- Locks: own session FOR KEY SHARE, claimed rows FOR UPDATE SKIP LOCKED.
with fence as materialized (select id from perdure.engine_session where id = :session for key share),
due as materialized (
  select a.place from (
    select d.place from fence, unnest(:workflows.ns::int[], :workflows.workflow::text[]) as w(ns, workflow) cross join lateral (
      select q.ctid as place from perdure.run_queue q
       where q.ns = w.ns and q.workflow = w.workflow and q.owner is null and q.wake_at <= perdure.clock() and q.stuck is null
         and left(q.version, 5) <> 'flow-'
       order by q.wake_at limit :limit for update skip locked
    ) d
    union all
    select f.place from fence cross join lateral (
      select q.ctid as place from perdure.run_queue q
       where :flows and q.owner is null and q.stuck is null and left(q.version, 5) = 'flow-' and q.wake_at <= perdure.clock()
       order by q.wake_at limit :limit for update skip locked
    ) f
  ) a
  limit :limit
)
update perdure.run_queue q set owner = :session, status = 1, epoch = q.epoch + 1, wake_at = 'infinity', waiting_on = null, waits = null
  from due where q.ctid = due.place
returning q.run_id, q.ns, q.workflow, q.version, q.epoch, case when q.line is not null then array(select s.key from perdure.slot s where s.holder = q.run_id) end as keys;

-- name: claim_runs_with_mail
-- Runs that sleep while facts wait for them in the inbox. The inbox is small: its rows are consumed as soon as they are seen.
with fence as materialized (select id from perdure.engine_session where id = :session for key share),
mailed as materialized (select distinct i.run_id from perdure.inbox i),
due as materialized (
  -- From the few mailed runs to their rows, never from the many sleeping rows to the inbox.
  select d.place from fence, mailed m cross join lateral (
    select r.ctid as place from perdure.run_queue r where r.run_id = m.run_id offset 0
  ) at cross join lateral (
    select q.ctid as place from perdure.run_queue q
     where q.ctid = at.place and q.owner is null and q.stuck is null and not q.suspect
       and case when left(q.version, 5) = 'flow-' then :flows
                else exists(select from unnest(:workflows.ns::int[], :workflows.workflow::text[]) as w(ns, workflow) where w.ns = q.ns and w.workflow = q.workflow) end
     for update skip locked
  ) d
  limit :limit
)
update perdure.run_queue q set owner = :session, status = 1, epoch = q.epoch + 1, wake_at = 'infinity', waiting_on = null, waits = null
  from due where q.ctid = due.place and (q.line is null or q.admitted_at is not null)
returning q.run_id, q.ns, q.workflow, q.version, q.epoch, case when q.line is not null then array(select s.key from perdure.slot s where s.holder = q.run_id) end as keys;

-- name: claim_suspect
-- One run that engines did not survive, by itself. The same parameters. Suspects never fall due, so nobody claims them by the way.
-- Locks: own session FOR KEY SHARE, the claimed row FOR UPDATE SKIP LOCKED.
with fence as materialized (select id from perdure.engine_session where id = :session for key share),
due as materialized (
  select d.place from fence cross join lateral (
    select q.ctid as place from perdure.run_queue q
     where q.suspect and q.owner is null and q.stuck is null
       and case when left(q.version, 5) = 'flow-' then :flows
                else exists(select from unnest(:workflows.ns::int[], :workflows.workflow::text[]) as w(ns, workflow) where w.ns = q.ns and w.workflow = q.workflow) end
     order by q.run_id limit :limit for update skip locked
  ) d
)
update perdure.run_queue q set owner = :session, status = 1, epoch = q.epoch + 1, wake_at = 'infinity', waiting_on = null, waits = null
  from due where q.ctid = due.place
returning q.run_id, q.ns, q.workflow, q.version, q.epoch, case when q.line is not null then array(select s.key from perdure.slot s where s.holder = q.run_id) end as keys;

-- name: claim_tasks
-- :kinds.ns, :kinds.queue and :kinds.name are (namespace, queue, task name) that workers here serve, :kinds.free how many of each they can take; :limit how many in all.
with fence as materialized (select id from perdure.engine_session where id = :session for key share),
due as materialized (
  select d.place from fence, unnest(:kinds.ns::int[], :kinds.queue::text[], :kinds.name::text[], :kinds.free::int[]) as w(ns, queue, name, free) cross join lateral (
    select t.ctid as place from perdure.task_queue t
     where t.ns = w.ns and t.queue = w.queue and t.name = w.name and t.owner is null and t.line is null and t.run_at <= perdure.clock()
       and (t.expires_at is null or t.expires_at > perdure.clock())
     order by t.run_at limit w.free for update skip locked
  ) d
  limit :limit
)
update perdure.task_queue t set owner = :session, status = 1, worker = null, started_at = null, beat_at = null, blocked = null
  from due where t.ctid = due.place
returning t.id, t.ns, t.run_id, t.seq, t.name, t.queue, t.attempt, t.lost, t.scheduled_at, t.options, t.input, t.trace;

-- name: adopt_tasks
-- A worker that lost its engine brings what it is running. :ns namespace, :tasks.id task ids, :tasks.attempt their attempts. Only the very attempt that is running.
with fence as materialized (select id from perdure.engine_session where id = :session for key share)
update perdure.task_queue t set owner = :session, status = 2
  from fence, unnest(:tasks.id::uuid[], :tasks.attempt::int[]) as u(id, attempt)
 where t.id = u.id and t.ns = :ns and t.attempt = u.attempt and t.owner is not null
returning t.id, t.ns, t.run_id, t.seq, t.name, t.queue, t.attempt, t.lost, t.scheduled_at, t.options, t.input, t.trace;

-- name: known_tasks
select id from perdure.task_queue where ns = :ns and id = any(:ids::uuid[]);

-- name: next_due
-- When the next sleeping run or waiting task falls due, so that an idle engine can sleep exactly that long.
select perdure.clock() as clock,
  least(
    (select min(m.wake_at) from unnest(:workflows.ns::int[], :workflows.workflow::text[]) as w(ns, workflow) cross join lateral (
       select q.wake_at from perdure.run_queue q where q.ns = w.ns and q.workflow = w.workflow and q.owner is null and q.stuck is null
        order by q.wake_at limit 1) m),
    (select q.wake_at from perdure.run_queue q
      where :flows and q.owner is null and q.stuck is null and left(q.version, 5) = 'flow-' and q.wake_at < 'infinity'
      order by q.wake_at limit 1)) as run_at,
  (select min(m.run_at) from unnest(:kinds.ns::int[], :kinds.queue::text[], :kinds.name::text[]) as w(ns, queue, name) cross join lateral (
     select t.run_at from perdure.task_queue t where t.ns = w.ns and t.queue = w.queue and t.name = w.name and t.owner is null
        and t.line is null
      order by t.run_at limit 1) m) as task_at,
  (select l.next_at from perdure.line l where l.kind = 0 order by l.next_at limit 1) as line_at,
  (select max(d.priority) from (
     select l.priority from perdure.line l where l.kind = 0 and l.next_at <= perdure.clock() order by l.next_at limit 100) d) as line_priority,
  (select l.next_at from perdure.line l where l.kind = 1 order by l.next_at limit 1) as run_line_at,
  (select r.updated_at from perdure.flow_rule r where r.updated_at > '-infinity' order by r.updated_at desc limit 1) as rules_at,
  exists(select from perdure.run_queue q where q.suspect and q.owner is null and q.stuck is null and q.run_id > '00000000-0000-0000-0000-000000000000') as suspects,
  exists(select from perdure.inbox) as mail;

-- name: load_runs
-- All that there is about some runs, as of one moment: whoever takes a row out of task_queue or inbox writes in the same transaction what
-- became of it, so a task that has no row here has its end in the inbox or in the history here, or is lost.
-- part 0 tasks in the queue, 1 mail, 2 history; n orders the rows of a part within each run.
select 0 as part, t.run_id, t.seq::bigint as n, 0 as last, null::timestamptz as at, null::bytea as body, null::bytea as hash
  from perdure.task_queue t where t.run_id = any(:run_ids::uuid[])
union all
select 1, i.run_id, i.id, 0, null, i.body, null from perdure.inbox i where i.run_id = any(:run_ids::uuid[])
union all
select 2, h.run_id, h.seq, h.last, h.at, h.body, h.hash from perdure.history h where h.run_id = any(:run_ids::uuid[])
 order by part, n;

-- name: inbox_of_owner
-- Mail for runs this session owns.
select i.id, i.run_id, i.body from perdure.inbox i cross join lateral (
  select q.owner from perdure.run_queue q where q.run_id = i.run_id offset 0
) r
 where r.owner = :session
 order by i.id limit :limit;

-- name: existing_runs
select run_id from perdure.run_queue where ns = :ns and run_id = any(:run_ids::uuid[])
union all
select run_id from perdure.run where ns = :ns and run_id = any(:run_ids::uuid[]);

-- name: claimed_tasks_alive
-- Which of the tasks this session believes to hold are still its own; the others were cancelled or given away.
select id from perdure.task_queue where owner = :session and id = any(:ids::uuid[]);

-- name: last_rows
select distinct on (run_id) run_id, seq, at, body from perdure.history where run_id = any(:run_ids::uuid[]) order by run_id, seq desc;

-- name: workflow_controls
-- :ns namespace, :versions.workflow and :versions.version workflows and versions.
select v.workflow, v.version, v.control from unnest(:versions.workflow::text[], :versions.version::text[]) as u(workflow, version) cross join lateral (
  select x.workflow, x.version, x.control from perdure.workflow_version x
   where x.ns = :ns and x.workflow = u.workflow and x.version = u.version and x.control is not null offset 0) v;

-- How an engine gets work: due runs, runs with mail, queued tasks. Rows are locked where they are found and updated by ctid.

-- name: claim_runs
-- $1 session, $2 and $3 are pairs (namespace, workflow) whose code is at hand, $4 how many, $5 whether flows too.
-- Locks: own session FOR KEY SHARE, claimed rows FOR UPDATE SKIP LOCKED.
with fence as materialized (select id from perdure.engine_session where id = $1 for key share),
due as materialized (
  select a.place from (
    select d.place from fence, unnest($2::int[], $3::text[]) as w(ns, workflow) cross join lateral (
      select q.ctid as place from perdure.run_queue q
       where q.ns = w.ns and q.workflow = w.workflow and q.owner is null and q.wake_at <= perdure.clock() and q.stuck is null
         and left(q.version, 5) <> 'flow-'
       order by q.wake_at limit $4 for update skip locked
    ) d
    union all
    select f.place from fence cross join lateral (
      select q.ctid as place from perdure.run_queue q
       where $5 and q.owner is null and q.stuck is null and left(q.version, 5) = 'flow-' and q.wake_at <= perdure.clock()
       order by q.wake_at limit $4 for update skip locked
    ) f
  ) a
  limit $4
)
update perdure.run_queue q set owner = $1, status = 1, epoch = q.epoch + 1, wake_at = 'infinity'
  from due where q.ctid = due.place
returning q.run_id, q.ns, q.workflow, q.version, q.epoch;

-- name: claim_runs_with_mail
-- Runs that sleep while facts wait for them in the inbox. The inbox is small: its rows are consumed as soon as they are seen.
with fence as materialized (select id from perdure.engine_session where id = $1 for key share),
mailed as materialized (select distinct i.run_id from perdure.inbox i),
due as materialized (
  -- From the few mailed runs to their rows, never from the many sleeping rows to the inbox.
  select d.place from fence, mailed m cross join lateral (
    select q.ctid as place from perdure.run_queue q
     where q.run_id = m.run_id and q.owner is null and q.stuck is null
       and case when left(q.version, 5) = 'flow-' then $5
                else exists(select from unnest($2::int[], $3::text[]) as w(ns, workflow) where w.ns = q.ns and w.workflow = q.workflow) end
     for update skip locked
  ) d
  limit $4
)
update perdure.run_queue q set owner = $1, status = 1, epoch = q.epoch + 1, wake_at = 'infinity'
  from due where q.ctid = due.place
returning q.run_id, q.ns, q.workflow, q.version, q.epoch;

-- name: claim_tasks
-- $2, $3 and $4 are (namespace, queue, task name) that workers here serve, $5 how many of each they can take; $6 how many in all.
with fence as materialized (select id from perdure.engine_session where id = $1 for key share),
due as materialized (
  select d.place from fence, unnest($2::int[], $3::text[], $4::text[], $5::int[]) as w(ns, queue, name, free) cross join lateral (
    select t.ctid as place from perdure.task_queue t
     where t.ns = w.ns and t.queue = w.queue and t.name = w.name and t.owner is null and t.run_at <= perdure.clock()
     order by t.run_at limit w.free for update skip locked
  ) d
  limit $6
)
update perdure.task_queue t set owner = $1, status = 1, worker = null, started_at = null, beat_at = null, blocked = null
  from due where t.ctid = due.place
returning t.id, t.ns, t.run_id, t.seq, t.name, t.queue, t.attempt, t.lost, t.scheduled_at, t.options, t.input, t.trace;

-- name: adopt_tasks
-- A worker that lost its engine brings what it is running. $2 namespace, $3 task ids, $4 their attempts. Only the very attempt that is running.
with fence as materialized (select id from perdure.engine_session where id = $1 for key share)
update perdure.task_queue t set owner = $1, status = 2
  from fence, unnest($3::uuid[], $4::int[]) as u(id, attempt)
 where t.id = u.id and t.ns = $2 and t.attempt = u.attempt and t.owner is not null
returning t.id, t.ns, t.run_id, t.seq, t.name, t.queue, t.attempt, t.lost, t.scheduled_at, t.options, t.input, t.trace;

-- name: known_tasks
select id from perdure.task_queue where ns = $1 and id = any($2::uuid[]);

-- name: next_due
-- When the next sleeping run or waiting task falls due, so that an idle engine can sleep exactly that long.
select perdure.clock() as clock,
  least(
    (select min(m.wake_at) from unnest($1::int[], $2::text[]) as w(ns, workflow) cross join lateral (
       select q.wake_at from perdure.run_queue q where q.ns = w.ns and q.workflow = w.workflow and q.owner is null and q.stuck is null
        order by q.wake_at limit 1) m),
    (select q.wake_at from perdure.run_queue q
      where $6 and q.owner is null and q.stuck is null and left(q.version, 5) = 'flow-' and q.wake_at < 'infinity'
      order by q.wake_at limit 1)) as run_at,
  (select min(m.run_at) from unnest($3::int[], $4::text[], $5::text[]) as w(ns, queue, name) cross join lateral (
     select t.run_at from perdure.task_queue t where t.ns = w.ns and t.queue = w.queue and t.name = w.name and t.owner is null
      order by t.run_at limit 1) m) as task_at,
  exists(select from perdure.inbox) as mail;

-- name: load_queued_tasks
-- Must be read before history and inbox: a task that has no row here has its result there.
select run_id, seq from perdure.task_queue where run_id = any($1::uuid[]);

-- name: load_history
select run_id, seq, last, at, body from perdure.history where run_id = any($1::uuid[]) order by run_id, seq;

-- name: load_inbox
-- $2 after this row, $3 how many. Whatever was committed before the first page is in one of them.
select id, run_id, body from perdure.inbox where run_id = any($1::uuid[]) and id > $2 order by id limit $3;

-- name: inbox_of_owner
-- Mail for runs this session owns.
select i.id, i.run_id, i.body from perdure.inbox i cross join lateral (
  select q.owner from perdure.run_queue q where q.run_id = i.run_id offset 0
) r
 where r.owner = $1
 order by i.id limit $2;

-- name: existing_runs
select run_id from perdure.run_queue where ns = $1 and run_id = any($2::uuid[])
union all
select run_id from perdure.run where ns = $1 and run_id = any($2::uuid[]);

-- name: claimed_tasks_alive
-- Which of the tasks this session believes to hold are still its own; the others were cancelled or given away.
select id from perdure.task_queue where owner = $1 and id = any($2::uuid[]);

-- name: last_rows
select distinct on (run_id) run_id, seq, at, body from perdure.history where run_id = any($1::uuid[]) order by run_id, seq desc;

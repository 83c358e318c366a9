-- How an engine gets work: due runs, runs with messages, queued tasks. Rows are locked where they are found and updated by ctid.
-- A run that is to be terminated, or has not begun by its expires_at, is claimed by no engine: sql/endings.sql ends it.
--
-- `workflows` are (namespace, workflow, pin): versions of code that this engine's workers have, and an empty pin for each of their
-- workflows, for runs that are pinned to no version; `flows` says whether it also decides flows,
-- which need no worker. `kinds` are (namespace, queue, task name) that its workers serve.

-- name: claim_runs
-- Locks: own session FOR KEY SHARE, claimed rows FOR UPDATE SKIP LOCKED.
with fence as materialized (select id from perdure.engine_session where id = :session for key share),
due as materialized (
  select a.place from (
    select d.place from fence, unnest(:workflows.ns::int[], :workflows.workflow::text[], :workflows.pin::text[]) as w(ns, workflow, pin) cross join lateral (
      select q.ctid as place from perdure.run_queue q
       where q.ns = w.ns and q.workflow = w.workflow and q.pin = w.pin and q.owner is null and q.wake_at <= perdure.clock() and not q.halted
         and q.kind = 'code' and (q.expires_at is null or q.expires_at > perdure.clock())
         and not exists (select from perdure.inbox i where i.run_id = q.run_id and i.kind = 'terminate')
       order by q.wake_at limit :limit for update skip locked
    ) d
    union all
    select f.place from fence cross join lateral (
      select q.ctid as place from perdure.run_queue q
       where :flows and q.owner is null and not q.halted and q.kind = 'flow' and q.wake_at <= perdure.clock()
         and (q.expires_at is null or q.expires_at > perdure.clock())
         and not exists (select from perdure.inbox i where i.run_id = q.run_id and i.kind = 'terminate')
       order by q.wake_at limit :limit for update skip locked
    ) f
  ) a
  limit :limit
)
update perdure.run_queue q
   set owner = :session, status = 'running', epoch = q.epoch + 1, wake_at = 'infinity', expires_at = null, waiting_on = null, wait_reasons = null
  from due where q.ctid = due.place
returning q.run_id, q.ns, q.workflow, q.version, q.epoch, q.pin, q.full_signals,
          case when q.group_id is not null then array(select s.key from perdure.flow_control_slot s where s.holder = q.run_id) end as keys;

-- name: claim_runs_with_messages
-- Runs that sleep while messages wait for them. The inbox is small: its rows are consumed as soon as they are seen.
-- Locks: own session FOR KEY SHARE, claimed rows FOR UPDATE SKIP LOCKED.
with fence as materialized (select id from perdure.engine_session where id = :session for key share),
addressed as materialized (select distinct i.run_id from perdure.inbox i),
due as materialized (
  -- From the few runs with messages to their rows, never from the many sleeping rows to the inbox.
  select d.place from fence, addressed m cross join lateral (
    select r.ctid as place from perdure.run_queue r where r.run_id = m.run_id offset 0
  ) at cross join lateral (
    select q.ctid as place from perdure.run_queue q
     where q.ctid = at.place and q.owner is null and not q.halted and not q.suspect
       and (q.expires_at is null or q.expires_at > perdure.clock())
       and not exists (select from perdure.inbox i where i.run_id = q.run_id and i.kind = 'terminate')
       and case when q.kind = 'flow' then :flows
                else exists(select from unnest(:workflows.ns::int[], :workflows.workflow::text[], :workflows.pin::text[]) as w(ns, workflow, pin)
                             where w.ns = q.ns and w.workflow = q.workflow and w.pin = q.pin) end
     for update skip locked
  ) d
  limit :limit
)
update perdure.run_queue q
   set owner = :session, status = 'running', epoch = q.epoch + 1, wake_at = 'infinity', expires_at = null, waiting_on = null, wait_reasons = null
  from due where q.ctid = due.place and (q.group_id is null or q.admitted_at is not null)
   and (q.status = 'running' or q.start_at is null or q.start_at <= perdure.clock())
returning q.run_id, q.ns, q.workflow, q.version, q.epoch, q.pin, q.full_signals,
          case when q.group_id is not null then array(select s.key from perdure.flow_control_slot s where s.holder = q.run_id) end as keys;

-- name: claim_suspect
-- One run that engines may have died of, by itself. Suspects never fall due, so claim_runs does not find them.
-- Locks: own session FOR KEY SHARE, the claimed row FOR UPDATE SKIP LOCKED.
with fence as materialized (select id from perdure.engine_session where id = :session for key share),
due as materialized (
  select d.place from fence cross join lateral (
    select q.ctid as place from perdure.run_queue q
     where q.suspect and q.owner is null and not q.halted
       and not exists (select from perdure.inbox i where i.run_id = q.run_id and i.kind = 'terminate')
       and case when q.kind = 'flow' then :flows
                else exists(select from unnest(:workflows.ns::int[], :workflows.workflow::text[], :workflows.pin::text[]) as w(ns, workflow, pin)
                             where w.ns = q.ns and w.workflow = q.workflow and w.pin = q.pin) end
     order by q.run_id limit :limit for update skip locked
  ) d
)
update perdure.run_queue q
   set owner = :session, status = 'running', epoch = q.epoch + 1, wake_at = 'infinity', expires_at = null, waiting_on = null, wait_reasons = null
  from due where q.ctid = due.place
returning q.run_id, q.ns, q.workflow, q.version, q.epoch, q.pin, q.full_signals,
          case when q.group_id is not null then array(select s.key from perdure.flow_control_slot s where s.holder = q.run_id) end as keys;

-- name: claim_tasks
-- Tasks that nothing limits, at most `free` of each kind. Those of a flow-control group are claimed by claim_from_groups.
-- Locks: own session FOR KEY SHARE, claimed rows FOR UPDATE SKIP LOCKED.
with fence as materialized (select id from perdure.engine_session where id = :session for key share),
due as materialized (
  select d.place
    from fence, unnest(:kinds.ns::int[], :kinds.queue::text[], :kinds.name::text[], :kinds.free::int[]) as k(ns, queue, name, free)
   cross join lateral (
    select t.ctid as place from perdure.task_queue t
     where t.ns = k.ns and t.queue = k.queue and t.name = k.name and t.owner is null and t.group_id is null and not t.held and t.run_at <= perdure.clock()
       and (t.start_deadline_at is null or t.start_deadline_at > perdure.clock())
     order by t.run_at limit k.free for update skip locked
  ) d
  limit :limit
)
update perdure.task_queue t set owner = :session, status = 'dispatched', worker = null, started_at = perdure.clock(), beat_at = null, blocked = null
  from due where t.ctid = due.place
returning t.id, t.ns, t.run_id, t.seq, t.name, t.queue, t.attempt, t.lost, t.scheduled_at, t.options, t.input, t.trace;

-- name: put_back_tasks
-- Tasks that this session has just claimed and cannot read, for a while.
update perdure.task_queue t set owner = null, status = 'pending', started_at = null, run_at = perdure.clock() + :delay_s::float8 * interval '1 second'
 where t.id = any(:ids::uuid[]) and t.owner = :session;

-- name: adopt_tasks
-- A worker that lost its engine brings the tasks it is running: only the very attempt that is running is adopted.
with fence as materialized (select id from perdure.engine_session where id = :session for key share)
update perdure.task_queue t set owner = :session, status = 'running'
  from fence, unnest(:tasks.id::uuid[], :tasks.attempt::int[]) as u(id, attempt)
 where t.id = u.id and t.ns = :ns and t.attempt = u.attempt and t.owner is not null
returning t.id, t.ns, t.run_id, t.seq, t.name, t.queue, t.attempt, t.lost, t.scheduled_at, t.options, t.input, t.trace;

-- name: known_tasks
select id from perdure.task_queue where ns = :ns and id = any(:ids::uuid[]);

-- name: next_due
-- When the next sleeping run or waiting task falls due, so that an idle engine can sleep exactly that long.
select perdure.clock() as clock,
  least(
    (select min(m.wake_at) from unnest(:workflows.ns::int[], :workflows.workflow::text[], :workflows.pin::text[]) as w(ns, workflow, pin) cross join lateral (
       select q.wake_at from perdure.run_queue q where q.ns = w.ns and q.workflow = w.workflow and q.pin = w.pin and q.owner is null and not q.halted
        order by q.wake_at limit 1) m),
    (select q.wake_at from perdure.run_queue q
      where :flows and q.owner is null and not q.halted and q.kind = 'flow' and q.wake_at < 'infinity'
      order by q.wake_at limit 1)) as run_at,
  (select min(m.run_at) from unnest(:kinds.ns::int[], :kinds.queue::text[], :kinds.name::text[]) as k(ns, queue, name) cross join lateral (
     select t.run_at from perdure.task_queue t
      where t.ns = k.ns and t.queue = k.queue and t.name = k.name and t.owner is null and t.group_id is null and not t.held
      order by t.run_at limit 1) m) as task_at,
  (select g.next_at from perdure.flow_control_group g where g.kind = 'task' order by g.next_at limit 1) as task_group_at,
  (select max(d.priority) from (
     select g.priority from perdure.flow_control_group g where g.kind = 'task' and g.next_at <= perdure.clock()
      order by g.next_at limit 100) d) as task_group_priority,
  (select g.next_at from perdure.flow_control_group g where g.kind = 'run' order by g.next_at limit 1) as run_group_at,
  (select r.updated_at from perdure.flow_control_rule r where r.updated_at > '-infinity' order by r.updated_at desc limit 1) as rules_at,
  exists(select from perdure.run_queue q
          where q.suspect and q.owner is null and not q.halted and q.run_id > '00000000-0000-0000-0000-000000000000') as suspects,
  exists(select from perdure.inbox) as messages;

-- name: load_runs
-- Queued tasks, messages and history of some runs as of one moment. A transaction that takes a row out of task_queue or inbox also
-- writes what became of it, so a task without a row here has its end in the inbox or in the history, or is lost. `n` orders the rows
-- of a part within each run.
select 'task' as part, t.run_id, t.seq::bigint as n, 0 as last, null::timestamptz as at, null::bytea as body, null::bytea as hash
  from perdure.task_queue t where t.run_id = any(:run_ids::uuid[])
union all
select 'message', i.run_id, i.id, 0, null, i.body, null from perdure.inbox i where i.run_id = any(:run_ids::uuid[])
union all
select 'history', h.run_id, h.seq, h.last, h.at, h.body, h.hash from perdure.history h where h.run_id = any(:run_ids::uuid[])
 order by n;

-- name: inbox_of_session
-- Messages for runs that the session owns.
select i.id, i.run_id, i.body from perdure.inbox i cross join lateral (
  select q.owner from perdure.run_queue q where q.run_id = i.run_id offset 0
) r
 where r.owner = :session
 order by i.id limit :limit;

-- name: existing_runs
select run_id from perdure.run_queue where ns = :ns and run_id = any(:run_ids::uuid[])
union all
select run_id from perdure.run where ns = :ns and run_id = any(:run_ids::uuid[]);

-- name: held_task_ids
-- Which of these tasks the session still holds; the others were cancelled or reassigned.
select id from perdure.task_queue where owner = :session and id = any(:ids::uuid[]);

-- name: last_rows
select distinct on (run_id) run_id, seq, at, body from perdure.history where run_id = any(:run_ids::uuid[]) order by run_id, seq desc;

-- name: flow_control_options
-- Flow-control options of workflow versions; those that have none are left out.
select v.workflow, v.version, v.control from unnest(:versions.workflow::text[], :versions.version::text[]) as u(workflow, version)
 cross join lateral (
  select x.workflow, x.version, x.control from perdure.workflow_version x
   where x.ns = :ns and x.workflow = u.workflow and x.version = u.version and x.control is not null offset 0) v;

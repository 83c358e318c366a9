-- Engine sessions: register, heartbeat, leave, reap.

-- name: register_session
-- A fresh identity for an engine. Its lease runs by the database's clock. No row: the database needs newer code. A migration locks the table
-- against this insert before it looks for sessions of older code.
insert into perdure.engine_session (engine, expires_at, slots, slots_free, knows)
select :engine, now() + make_interval(secs => :lease_s::float8), :slots, :slots, :knows
 where :knows >= (select max(m.needs) from perdure.migration m)
returning id, now() as now, perdure.clock() as clock;

-- name: renew_session
-- Updates non-key columns only, so it never waits for a commit that holds FOR KEY SHARE. No row: the session was reaped.
update perdure.engine_session
   set heartbeat_at = now(), expires_at = now() + make_interval(secs => :lease_s::float8), slots = :slots, slots_free = :slots_free
 where id = :session
returning perdure.clock() as clock,
  (select count(*) from perdure.engine_session o where o.id <> :session and o.expires_at > now()) as others,
  (select count(*) from perdure.engine_session o where o.expires_at <= now()) as expired,
  (select coalesce(sum(o.slots_free), 0) from perdure.engine_session o where o.id <> :session and o.expires_at > now()) as others_free;

-- name: delete_expired_sessions
-- Waits for commits in flight under those sessions, because DELETE conflicts with FOR KEY SHARE. Skips a session that another
-- engine is already reaping. Must be followed, in the same transaction, by statements with a new snapshot.
delete from perdure.engine_session
 where id in (select id from perdure.engine_session where expires_at <= now() order by id for update skip locked)
returning id;

-- name: end_halted_transactions
-- A transaction of an engine that was halted between two messages of one statement: the server waits for the rest of it, and no timeout of
-- the server ends that, because the transaction does not count as idle. It holds the fence of its session, which cannot be reaped meanwhile.
-- Only connections of engines: a COPY that waits for its client looks the same.
select pg_terminate_backend(pid) as ended
  from pg_stat_activity
 where datname = current_database() and usename = current_user and application_name = 'perdure' and pid <> pg_backend_pid()
   and state = 'active' and wait_event = 'ClientRead'
   and greatest(xact_start, state_change) < clock_timestamp() - make_interval(secs => :halted_s::float8);

-- name: delete_session
delete from perdure.engine_session where id = :session returning id;

-- name: select_owned_tasks
select id, ns, run_id, seq, name, attempt, lost, options, scheduled_at, started_at, worker, perdure.clock() as clock
  from perdure.task_queue where owner = any(:sessions::bigint[]) order by id for update;

-- name: free_runs
-- Wakes the runs of sessions that are gone. The engine that claims a run learns from its history what was in flight.
update perdure.run_queue set owner = null, wake_at = perdure.clock() where owner = any(:sessions::bigint[]) returning run_id;

-- name: free_runs_of_dead_sessions
-- The same for sessions that died or lost their lease, which some of their runs may be the cause of. A run that
-- reaches takeovers_max is stuck. A takeover counts unless the run was seen to wait (`waiting_on` is written a second after it begins to, and goes
-- with the next claim) or has events that it did not have the last time.
-- Locks: the rows of the sessions' runs.
with lost as materialized (
  select q.run_id, h.events,
         case when q.waiting_on is not null then 0
              when h.events > q.seen_events then 1
              else q.takeovers + 1 end as takeovers
    from perdure.run_queue q cross join lateral (
      select coalesce(max(e.last), 0) as events from perdure.history e where e.run_id = q.run_id offset 0
    ) h
   where q.owner = any(:sessions::bigint[])
)
update perdure.run_queue q
   set owner = null, takeovers = l.takeovers, seen_events = l.events,
       suspect = l.takeovers >= :suspect_takeovers,
       wake_at = case when l.takeovers >= :suspect_takeovers then 'infinity' else perdure.clock() end,
       stuck = case when l.takeovers >= :takeovers_max then :quarantine_reason end
  from lost l where q.run_id = l.run_id
returning q.run_id, q.stuck;

-- name: requeue_tasks
-- start_us and close_us: how long a task may wait from now on, and from its scheduling on. The rows are locked (select_owned_tasks), so what
-- is read of the attempt that is lost is what it was. An attempt that goes on has no record.
with lost as materialized (
  select u.*, r.ctid as place, r.attempt as ended, r.ns, r.run_id, r.seq, r.name, r.node, r.started_at, r.worker
    from unnest(:tasks.id::uuid[], :tasks.attempt::int[], :tasks.lost::int[], :tasks.start_us::bigint[], :tasks.close_us::bigint[],
                :tasks.error_code::text[], :tasks.error::text[]) as u(id, attempt, lost, start_us, close_us, error_code, error),
         lateral (select x.*, x.ctid from perdure.task_queue x where x.id = u.id offset 0) r
),
lost_attempts as (
  insert into perdure.task_attempt (id, epoch, attempt, ns, run_id, seq, name, node, outcome, started_at, finished_at, worker, error,
                                    error_code)
  select l.id, q.epoch, l.ended, l.ns, l.run_id, l.seq, l.name, l.node, perdure.attempt_outcome('failed', l.error_code), l.started_at,
         perdure.clock(), l.worker, l.error, l.error_code
    from lost l cross join lateral (select r.epoch from perdure.run_queue r where r.run_id = l.run_id offset 0) q
   where l.ended <> l.attempt
  on conflict do nothing
)
update perdure.task_queue t
   set status = 'pending', owner = null, attempt = l.attempt, lost = l.lost, run_at = perdure.clock(),
       start_deadline_at = least(perdure.clock() + l.start_us * interval '1 microsecond', t.scheduled_at + l.close_us * interval '1 microsecond'),
       worker = null, started_at = null, beat_at = null, blocked = null
  from lost l where t.ctid = l.place;

-- name: fail_queued_tasks
-- seals: tasks.body message
-- Tasks that may not run again: the row goes and the failure travels to the run.
with gone as (
  delete from perdure.task_queue t
   using unnest(:tasks.id::uuid[], :tasks.body::bytea[]) as u(id, body),
         lateral (select r.ctid as place from perdure.task_queue r where r.id = u.id offset 0) at
   where t.ctid = at.place
  returning t.ns, t.run_id, u.body
)
insert into perdure.inbox (ns, run_id, body, kind) select ns, run_id, body, 'task' from gone;

-- name: delete_commit_log
delete from perdure.commit_log where session_id = any(:sessions::bigint[]);

-- name: trim_commit_log
-- Only the last few numbers can still be in doubt.
delete from perdure.commit_log where session_id = :session and n < :below;

-- name: write_behind
-- A transaction that writes: its COMMIT waits for the synchronous standby, and so for everything before it.
select pg_logical_emit_message(true, 'perdure', 'written behind');

-- name: claim_commit_number
-- Settles a COMMIT whose answer was lost. If this insert succeeds, that transaction did not take effect and never can, because
-- it would need the same row. If it finds the row, the transaction committed. It waits for one that is still in flight.
-- The message makes this a transaction that writes also if it finds the row: its own COMMIT waits for the synchronous standby, and so for
-- everything before it. The commit in doubt may be visible without being there, if its own wait was ended.
with claimed as (
  insert into perdure.commit_log (session_id, n)
  select id, :number from perdure.engine_session where id = :session
  on conflict do nothing
  returning n
)
select exists(select from perdure.engine_session where id = :session) as alive, exists(select from claimed) as claimed,
       pg_logical_emit_message(true, 'perdure', 'commit settled') is not null as is_written;

-- Tasks that waited too long: schedule to start, and schedule to close while nobody runs them.

-- name: next_expiry
-- The earliest moment by which a waiting task must have begun; the index holds only tasks that have one.
select perdure.clock() as clock,
       (select t.expires_at from perdure.task_queue t where t.owner is null and t.expires_at is not null order by t.expires_at limit 1) as at;

-- name: expired_tasks
-- :session session, :limit how many. Locks: own session FOR KEY SHARE, then the rows FOR UPDATE SKIP LOCKED: one that is being claimed is not
-- expired, one that is found here cannot be claimed. They go in the same transaction, by drop_tasks_into_inbox.
with fence as materialized (select id from perdure.engine_session where id = :session for key share)
select d.id, d.run_id, d.seq, d.queue, d.attempt, d.lost, d.scheduled_at, d.options, d.error, perdure.clock() as clock,
       (select l.reason from perdure.line l where l.id = d.line) as reason
  from fence cross join lateral (
    select t.id, t.run_id, t.seq, t.queue, t.attempt, t.lost, t.scheduled_at, t.options, t.error, t.line
      from perdure.task_queue t
     where t.owner is null and t.expires_at is not null and t.expires_at <= perdure.clock()
     order by t.expires_at limit :limit for update skip locked
  ) d;

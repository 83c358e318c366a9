-- Tasks that must begin by a deadline: schedule to start, and schedule to close while no worker runs them.

-- name: next_start_deadline
-- The earliest deadline of a waiting task; the index holds only tasks that have one.
select perdure.clock() as clock,
       (select t.start_deadline_at from perdure.task_queue t where t.owner is null and t.start_deadline_at is not null
         order by t.start_deadline_at limit 1) as at;

-- name: lock_tasks_past_start_deadline
-- Locks: own session FOR KEY SHARE, then the rows FOR UPDATE SKIP LOCKED: a task that is being claimed is not found, one that is
-- found cannot be claimed. fail_queued_tasks deletes them in the same transaction.
with fence as materialized (select id from perdure.engine_session where id = :session for key share)
select d.id, d.run_id, d.seq, d.queue, d.attempt, d.lost, d.scheduled_at, d.options, d.error, perdure.clock() as clock,
       (select g.reason from perdure.flow_control_group g where g.id = d.group_id) as reason
  from fence cross join lateral (
    select t.id, t.run_id, t.seq, t.queue, t.attempt, t.lost, t.scheduled_at, t.options, t.error, t.group_id
      from perdure.task_queue t
     where t.owner is null and t.start_deadline_at is not null and t.start_deadline_at <= perdure.clock()
     order by t.start_deadline_at limit :limit for update skip locked
  ) d;

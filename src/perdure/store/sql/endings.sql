-- Runs that no code can end. One transaction ends them; its statements run in this order:
--
--   lock_runs_to_end    locks the runs (skip locked)
--   load_runs           their history, messages and queued tasks
--   (engine/services/endings.py decides)
--   claim_runs_to_end   makes the session their owner, so that a commit may close them
--   commit_batch, commit_batch_rest
--   set_undo_wait       for the others
--
-- The owner that claim_runs_to_end sets is never seen outside: the same transaction deletes the row.

-- name: next_deadline
-- The next deadline of a run that no engine holds.
select perdure.clock() as clock,
       (select q.deadline_at from perdure.run_queue q where q.owner is null and q.deadline_at is not null and q.deadline_at > perdure.clock()
         order by q.deadline_at limit 1) as at;

-- name: lock_runs_to_end
-- `workflows` are pairs (namespace, workflow) whose code workers of this engine have.
-- A run has to end when its deadline has passed or it is cancelled: the request is in the inbox, and once it is in the history
-- `cancel_at` is set. A run is found here if its code cannot end it: it is stuck, flow control has not admitted it, or no connected
-- worker has its code. Flows need no worker.
-- Locks: own session FOR KEY SHARE, then the runs FOR UPDATE SKIP LOCKED: a run that is claimed or ended at this moment is left out.
with fence as materialized (select id from perdure.engine_session where id = :session for key share),
wanted as materialized (
  (select q.run_id from perdure.run_queue q where q.owner is null and q.deadline_at is not null and q.deadline_at <= perdure.clock()
    order by q.deadline_at limit 10000)  -- runs that an engine is about to claim are among them
  union
  select q.run_id from perdure.run_queue q where q.owner is null and q.cancel_at is not null
  union
  select i.run_id from perdure.inbox i where i.is_cancel
)
select d.*, perdure.clock() as clock,
       coalesce(d.cancel_at, (select min(i.at) from perdure.inbox i where i.run_id = d.run_id and i.is_cancel)) as cancel_requested_at,
       case when d.group_id is not null then array(select s.key from perdure.flow_control_slot s where s.holder = d.run_id) end as keys
  from fence, wanted w cross join lateral (
    select r.ctid as place from perdure.run_queue r where r.run_id = w.run_id offset 0
  ) at cross join lateral (
    select q.run_id, q.ns, q.workflow, q.version, q.epoch, q.parent_id, q.parent_seq, q.stuck, q.deadline_at, q.cancel_at, q.group_id,
           q.group_id is not null and q.admitted_at is null as is_queued
      from perdure.run_queue q
     where q.ctid = at.place and q.owner is null and q.run_id <> all(:left_out::uuid[])
       and (q.undo_wait_until is null or q.undo_wait_until <= perdure.clock())
       and (q.stuck is not null
            or (q.group_id is not null and q.admitted_at is null)
            or (q.kind = 'code'
                and not exists (select from unnest(:workflows.ns::int[], :workflows.workflow::text[]) as h(ns, workflow)
                                 where h.ns = q.ns and h.workflow = q.workflow)
                and not exists (select from perdure.worker k where k.ns = q.ns and q.workflow = any(k.workflows)
                                   and (select e.expires_at > now() from perdure.engine_session e where e.id = k.session_id))))
       for update skip locked
  ) d
 limit :limit;

-- name: claim_runs_to_end
-- Of runs that this transaction has locked.
update perdure.run_queue q set owner = :session, status = 'running', epoch = q.epoch + 1, stuck = null
  from unnest(:run_ids::uuid[]) as u(run_id), lateral (select r.ctid as place from perdure.run_queue r where r.run_id = u.run_id offset 0) at
 where q.ctid = at.place;

-- name: set_undo_wait
-- Of runs that this transaction has locked: until when it waits for a worker that can compensate what they did.
update perdure.run_queue q set undo_wait_until = u.until
  from unnest(:runs.run_id::uuid[], :runs.until::timestamptz[]) as u(run_id, until),
       lateral (select r.ctid as place from perdure.run_queue r where r.run_id = u.run_id offset 0) at
 where q.ctid = at.place;

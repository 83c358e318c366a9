-- Runs that no code can end. One transaction ends them; its statements run in this order:
--
--   lock_runs_to_end    locks the runs (skip locked)
--   load_runs           their history, messages and queued tasks
--   (engine/services/endings.py decides)
--   claim_runs_to_end   makes the session their owner, so that a commit may close them
--   commit_batch, commit_batch_rest
--   set_undo_wait       for those that wait for a worker
--   end_pauses          for those that their own code ends
--
-- The owner that claim_runs_to_end sets is never seen outside: the same transaction deletes the row.

-- name: next_deadline
-- The next deadline of a run that no engine holds, or the next moment by which one must have begun.
select perdure.clock() as clock,
       least((select q.deadline_at from perdure.run_queue q where q.owner is null and q.deadline_at is not null and q.deadline_at > perdure.clock()
               order by q.deadline_at limit 1),
             (select q.expires_at from perdure.run_queue q where q.owner is null and q.expires_at is not null and q.expires_at > perdure.clock()
               order by q.expires_at limit 1)) as at;

-- name: lock_runs_to_end
-- `workflows` are (namespace, workflow, pin) as in claims.sql.
-- A run has to end when its deadline has passed, when it has not begun by `expires_at`, or when it is to be cancelled or terminated:
-- the request is in the inbox, and once a cancel request is in the history `cancel_at` is set. A run is found here if it is to be
-- terminated or has expired, or if its code cannot end it: it is stuck, paused or delayed, flow control has not admitted it, or no
-- connected worker has its code, which is its version for a pinned run. Flows need no worker.
-- Locks: own session FOR KEY SHARE, then the runs FOR UPDATE SKIP LOCKED: a run that is claimed or ended at this moment is left out.
with fence as materialized (select id from perdure.engine_session where id = :session for key share),
wanted as materialized (
  (select q.run_id from perdure.run_queue q where q.owner is null and q.deadline_at is not null and q.deadline_at <= perdure.clock()
    order by q.deadline_at limit 10000)  -- runs that an engine is about to claim are among them
  union
  (select q.run_id from perdure.run_queue q where q.owner is null and q.expires_at is not null and q.expires_at <= perdure.clock()
    order by q.expires_at limit 10000)
  union
  select q.run_id from perdure.run_queue q where q.owner is null and q.cancel_at is not null
  union
  select i.run_id from perdure.inbox i where i.kind in ('cancel', 'terminate')
)
select d.*, perdure.clock() as clock,
       coalesce(d.cancel_at, (select min(i.at) from perdure.inbox i where i.run_id = d.run_id and i.kind in ('cancel', 'terminate'))) as cancel_requested_at,
       case when d.group_id is not null then array(select s.key from perdure.flow_control_slot s where s.holder = d.run_id) end as keys
  from fence, wanted w cross join lateral (
    select r.ctid as place from perdure.run_queue r where r.run_id = w.run_id offset 0
  ) at cross join lateral (
    select q.run_id, q.ns, q.workflow, q.version, q.epoch, q.parent_id, q.parent_seq, q.stuck, q.deadline_at, q.cancel_at, q.group_id,
           q.paused_at is not null as is_paused,
           q.status = 'pending' and (q.paused_at is not null or coalesce(q.start_at > perdure.clock(), false)) as is_delayed,
           q.status = 'pending' and coalesce(q.expires_at <= perdure.clock(), false) as is_expired,
           q.group_id is not null and q.admitted_at is null and q.paused_at is null as is_queued,
           s.is_terminated, s.is_unserved
      from perdure.run_queue q cross join lateral (
        select exists (select from perdure.inbox i where i.run_id = q.run_id and i.kind = 'terminate') as is_terminated,
               q.kind = 'code'
                and not exists (select from unnest(:workflows.ns::int[], :workflows.workflow::text[], :workflows.pin::text[]) as h(ns, workflow, pin)
                                 where h.ns = q.ns and h.workflow = q.workflow and h.pin = q.pin)
                and not exists (select from perdure.worker k where k.ns = q.ns and q.workflow = any(k.workflows) and q.pin in ('', k.versions->>q.workflow)
                                   and (select e.expires_at > now() from perdure.engine_session e where e.id = k.session_id)) as is_unserved
       offset 0) s
     where q.ctid = at.place and q.owner is null and q.run_id <> all(:left_out::uuid[])
       and (s.is_terminated or q.undo_wait_until is null or q.undo_wait_until <= perdure.clock())
       and (s.is_terminated or s.is_unserved or q.halted
            or (q.group_id is not null and q.admitted_at is null)
            or (q.status = 'pending' and (q.start_at > perdure.clock() or q.expires_at <= perdure.clock())))
       for update of q skip locked
  ) d
 limit :limit;

-- name: claim_runs_to_end
-- Of runs that this transaction has locked.
update perdure.run_queue q set owner = :session, status = 'running', epoch = q.epoch + 1, stuck = null, paused_at = null, paused_by = null
  from unnest(:run_ids::uuid[]) as u(run_id), lateral (select r.ctid as place from perdure.run_queue r where r.run_id = u.run_id offset 0) at
 where q.ctid = at.place;

-- name: set_undo_wait
-- Of runs that this transaction has locked: until when it waits for a worker that can compensate what they did.
update perdure.run_queue q set undo_wait_until = u.until
  from unnest(:runs.run_id::uuid[], :runs.until::timestamptz[]) as u(run_id, until),
       lateral (select r.ctid as place from perdure.run_queue r where r.run_id = u.run_id offset 0) at
 where q.ctid = at.place;

-- name: end_pauses
-- Of runs that this transaction has locked: they go on, without waiting for slots, so that their code ends them.
update perdure.run_queue q set paused_at = null, paused_by = null, pause_reason = null, group_id = null, wake_at = perdure.clock()
  from unnest(:run_ids::uuid[]) as u(run_id), lateral (select r.ctid as place from perdure.run_queue r where r.run_id = u.run_id offset 0) at
 where q.ctid = at.place;

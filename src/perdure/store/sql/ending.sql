-- Runs that no code can end. One transaction ends them; its statements run in this order:
--
--   unendable_runs      locks the runs (skip locked)
--   load_runs           their history, mail and queued tasks
--   (engine/services/endings.py decides)
--   take_to_end         makes the session their owner, so that a commit may close them
--   commit_batch, commit_batch_rest
--   wait_for_undo       for the others
--
-- The owner that take_to_end sets is never seen outside: the same transaction deletes the row.

-- name: next_deadline
-- The next deadline of a run that no engine holds.
select perdure.clock() as clock,
       (select q.deadline_at from perdure.run_queue q where q.owner is null and q.deadline_at is not null and q.deadline_at > perdure.clock()
         order by q.deadline_at limit 1) as at;

-- name: unendable_runs
-- :session session. :workflows.ns and :workflows.workflow are pairs (namespace, workflow) whose code workers of this engine have, :limit how many, :left_out runs to leave out.
-- Wanted is the end of a run whose deadline has passed or that was asked to stop: `cancel_at` is set once the request is in the history,
-- before that it is in the inbox. A run is found here if its code cannot end it: it is stuck, it waits to be let in, or no connected worker
-- has its code. Declarative runs need no worker.
-- Locks: own session FOR KEY SHARE, then the runs FOR UPDATE SKIP LOCKED: a run that is claimed or ended at this moment is left out.
with fence as materialized (select id from perdure.engine_session where id = :session for key share),
wanted as materialized (
  (select q.run_id from perdure.run_queue q where q.owner is null and q.deadline_at is not null and q.deadline_at <= perdure.clock()
    order by q.deadline_at limit 10000)  -- runs that an engine is about to claim are among them
  union
  select q.run_id from perdure.run_queue q where q.owner is null and q.cancel_at is not null
  union
  select i.run_id from perdure.inbox i where i.stops
)
select d.*, perdure.clock() as clock,
       coalesce(d.cancel_at, (select min(i.at) from perdure.inbox i where i.run_id = d.run_id and i.stops)) as asked_at,
       case when d.line is not null then array(select s.key from perdure.slot s where s.holder = d.run_id) end as keys
  from fence, wanted w cross join lateral (
    select r.ctid as place from perdure.run_queue r where r.run_id = w.run_id offset 0
  ) at cross join lateral (
    select q.run_id, q.ns, q.workflow, q.version, q.epoch, q.parent_id, q.parent_seq, q.stuck, q.deadline_at, q.cancel_at, q.line,
           q.line is not null and q.admitted_at is null as outside
      from perdure.run_queue q
     where q.ctid = at.place and q.owner is null and q.run_id <> all(:left_out::uuid[])
       and (q.patience_at is null or q.patience_at <= perdure.clock())
       and (q.stuck is not null
            or (q.line is not null and q.admitted_at is null)
            or (left(q.version, 5) <> 'flow-'
                and not exists (select from unnest(:workflows.ns::int[], :workflows.workflow::text[]) as h(ns, workflow) where h.ns = q.ns and h.workflow = q.workflow)
                and not exists (select from perdure.worker k where k.ns = q.ns and q.workflow = any(k.workflows)
                                   and (select e.expires_at > now() from perdure.engine_session e where e.id = k.session_id))))
       for update skip locked
  ) d
 limit :limit;

-- name: take_to_end
-- :session session, :run_ids runs that this transaction has locked.
update perdure.run_queue q set owner = :session, status = 1, epoch = q.epoch + 1, stuck = null
  from unnest(:run_ids::uuid[]) as u(run_id), lateral (select r.ctid as place from perdure.run_queue r where r.run_id = u.run_id offset 0) at
 where q.ctid = at.place;

-- name: wait_for_undo
-- :runs.run_id runs that this transaction has locked, :runs.until until when a worker may come for them.
update perdure.run_queue q set patience_at = u.until
  from unnest(:runs.run_id::uuid[], :runs.until::timestamptz[]) as u(run_id, until),
       lateral (select r.ctid as place from perdure.run_queue r where r.run_id = u.run_id offset 0) at
 where q.ctid = at.place;

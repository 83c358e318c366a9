-- What the verifier reads. Nothing here locks or writes; a page of runs is read in one snapshot.

-- name: verify_page
-- $1 after this run id, $2 how many. Ids that any table knows, so that a history without a run is met too.
select u.run_id from (
  (select q.run_id from perdure.run_queue q where q.run_id > $1 order by q.run_id limit $2)
  union
  (select r.run_id from perdure.run r where r.run_id > $1 order by r.run_id limit $2)
  union
  (select h.run_id from perdure.history h where h.run_id > $1 and h.seq = 1 order by h.run_id limit $2)
) u order by u.run_id limit $2;

-- name: verify_runs
select q.run_id, true as active, q.status, q.epoch, null::int as events, q.stuck,
       q.owner is null and q.stuck is null and q.wake_at <= perdure.clock() as due
  from perdure.run_queue q where q.run_id = any($1::uuid[])
union all
select r.run_id, false, r.status, r.epoch, r.events, null, false from perdure.run r where r.run_id = any($1::uuid[]);

-- name: verify_history
select h.run_id, h.seq, h.last, h.epoch, h.at, h.body from perdure.history h
 where h.run_id = any($1::uuid[]) order by h.run_id, h.seq;

-- name: verify_tasks
-- $1 and $2 bound the ids, which open with the first half of their run's id; $3 the runs.
select t.run_id, t.id, t.seq, t.name, t.status, t.attempts, t.lost, t.epoch from perdure.task t
 where t.id between $1 and $2 and t.run_id = any($3::uuid[]);

-- name: verify_queued
select t.run_id, t.seq from perdure.task_queue t where t.run_id = any($1::uuid[]);

-- name: verify_state
select s.run_id, s.name, sha256(s.value) as hash from perdure.run_state s
 where s.run_id = any($1::uuid[]) and s.value is not null;

-- name: verify_active
select q.run_id from perdure.run_queue q where q.run_id = any($1::uuid[]);

-- name: verify_known
-- How often each of these ids is a run.
select u.run_id, (select count(*) from perdure.run_queue q where q.run_id = u.run_id)
               + (select count(*) from perdure.run r where r.run_id = u.run_id) as times
  from unnest($1::uuid[]) as u(run_id);

-- name: verify_orphan_tasks
-- $1 after this task id, $2 how many are looked at: the last one, and those among them whose run is unknown.
with page as materialized (
  select t.id, t.run_id, t.seq from perdure.task t where t.id > $1 order by t.id limit $2
)
select p.id, p.run_id, p.seq,
       not exists (select from perdure.run_queue q where q.run_id = p.run_id)
       and not exists (select from perdure.run r where r.run_id = p.run_id) as orphan
  from page p order by p.id;

-- name: verify_fires
-- Runs ($1) that a schedule ($2) started for a nominal time ($3) which names another run, or none although older times are still on record.
-- Times are forgotten oldest first, so those tell whether this one was. A name may have been given to several schedules in turn.
select u.run_id, u.name,
       (select x.run_id::text from perdure.schedule s join perdure.schedule_fire x on x.schedule_id = s.id and x.nominal_at = u.nominal_at
         where s.ns = h.ns and s.name = u.name limit 1) as other
  from unnest($1::uuid[], $2::text[], $3::timestamptz[]) as u(run_id, name, nominal_at)
 cross join lateral (select f.ns from perdure.history f where f.run_id = u.run_id and f.seq = 1) h
 where not exists (select from perdure.schedule s join perdure.schedule_fire x on x.schedule_id = s.id and x.nominal_at = u.nominal_at
                    where s.ns = h.ns and s.name = u.name and x.run_id = u.run_id)
   and exists (select from perdure.schedule s join perdure.schedule_fire x on x.schedule_id = s.id and x.nominal_at <= u.nominal_at
                where s.ns = h.ns and s.name = u.name);

-- name: verify_leftovers
-- What must not be there when nothing is going on. $1 how many examples of each kind.
(select 'mail' as kind, i.run_id, 'inbox row ' || i.id as what from perdure.inbox i order by i.id limit $1)
union all
(select 'task', t.run_id, 'task ' || t.seq || ' waits in task_queue for a run that is not active'
   from perdure.task_queue t where not exists (select from perdure.run_queue q where q.run_id = t.run_id) limit $1)
union all
(select 'promise', p.run_id, 'promise ' || p.name || ' of a run that is not active'
   from perdure.promise p where not exists (select from perdure.run_queue q where q.run_id = p.run_id) limit $1)
union all
(select 'owner', q.run_id, 'owned by session ' || q.owner || ', which does not exist'
   from perdure.run_queue q
  where q.owner is not null and not exists (select from perdure.engine_session s where s.id = q.owner) limit $1)
union all
(select 'task owner', t.run_id, 'task ' || t.seq || ' is held by session ' || t.owner || ', which does not exist'
   from perdure.task_queue t
  where t.owner is not null and not exists (select from perdure.engine_session s where s.id = t.owner) limit $1)
union all
(select 'key', k.run_id, 'key ' || k.key || ' belongs to a run that does not exist'
   from perdure.run_key k where not exists (select from perdure.run_queue q where q.run_id = k.run_id)
    and not exists (select from perdure.run r where r.run_id = k.run_id) limit $1)
union all
(select 'commit number', '00000000-0000-0000-0000-000000000000', 'commit_log holds numbers of session ' || c.session_id || ', which does not exist'
   from perdure.commit_log c where not exists (select from perdure.engine_session s where s.id = c.session_id) limit $1);

-- name: verify_leftovers_examined
select (select count(*) from perdure.inbox) + (select count(*) from perdure.task_queue) + (select count(*) from perdure.promise)
     + (select count(*) from perdure.run_queue) + (select count(*) from perdure.run_key) as examined;

-- Bulk jobs: one act on every run that a query matches. An engine that works on a job is its owner; it writes only while it is.

-- name: start_bulk_job
-- seals: payload bulk_payload
-- No row: there are `most` unfinished ones already. A second job of the same key is not made.
insert into perdure.bulk_job (id, ns, key, action, query, reason, is_dry_run, created_at, created_by, signal, payload)
select :id::uuid, :ns::int, :key::text, :action::text, :query::text, :reason::text, :is_dry_run::boolean, perdure.clock(), :created_by::text,
       :signal::text, :payload::bytea
 where (select count(*) from perdure.bulk_job b where b.status in ('pending', 'running') and b.ns = :ns) < :most
on conflict (ns, key) where key is not null do nothing
returning *;

-- name: bulk_job_of_key
select * from perdure.bulk_job where ns = :ns and key = :key;

-- name: get_bulk_job
select * from perdure.bulk_job where id = :id and ns = :ns;

-- name: list_bulk_jobs
select * from perdure.bulk_job where ns = :ns and id < :below order by id desc limit :limit;

-- name: list_bulk_runs
select run_id, outcome, message from perdure.bulk_job_run
 where job_id = :id and run_id > :after and exists (select from perdure.bulk_job b where b.id = :id and b.ns = :ns)
 order by run_id limit :limit;

-- name: list_bulk_runs_by_outcome
select run_id, outcome, message from perdure.bulk_job_run
 where job_id = :id and outcome = :outcome and run_id > :after and exists (select from perdure.bulk_job b where b.id = :id and b.ns = :ns)
 order by run_id limit :limit;

-- name: cancel_bulk_job
update perdure.bulk_job set status = 'cancelled', finished_at = perdure.clock()
 where id = :id and ns = :ns and status in ('pending', 'running')
returning *;

-- name: claim_bulk_job
-- The one that has waited longest for its turn, of those without an owner that is alive.
-- Locks: its row, passing over those that other engines hold.
update perdure.bulk_job j set owner = :session, claimed_at = clock_timestamp()
 where exists (select from perdure.engine_session s where s.id = :session) and j.id = (
   select b.id from perdure.bulk_job b
    where b.status in ('pending', 'running')
      and (b.owner is null or b.owner = :session or not exists (select from perdure.engine_session s where s.id = b.owner))
    order by b.claimed_at nulls first, b.id limit 1 for update skip locked)
returning *;

-- name: add_bulk_runs
-- A page of runs that match. Without `below` they are the last ones: the job is found, and a dry run is over.
with job as (
  update perdure.bulk_job j
     set below = :below::uuid, matched = j.matched + cardinality(:runs.run_id::uuid[]),
         skipped = j.skipped + (select count(*) from unnest(:runs.message::text[]) m where m <> ''),
         status = case when :below::uuid is not null then j.status when j.is_dry_run then 'success' else 'running' end,
         finished_at = case when :below::uuid is null and j.is_dry_run then perdure.clock() end
   where j.id = :id and j.owner = :session and j.status = 'pending' and j.below is not distinct from :place::uuid
  returning j.id
),
added as (
  insert into perdure.bulk_job_run (job_id, run_id, outcome, message)
  select job.id, u.run_id, case when u.message = '' then 'pending' else 'skipped' end, u.message
    from job, unnest(:runs.run_id::uuid[], :runs.message::text[]) as u(run_id, message)
)
select id from job;

-- name: take_bulk_runs
-- The next runs of a job. `tries` is above 1 where an engine may have acted on the run before it died.
with job as (
  select j.id from perdure.bulk_job j where j.id = :id and j.owner = :session and j.status = 'running'
),
next as materialized (
  select r.run_id from perdure.bulk_job_run r, job where r.job_id = job.id and r.outcome = 'pending' order by r.tries, r.run_id limit :limit
)
update perdure.bulk_job_run r set tries = r.tries + 1 from next where r.job_id = :id and r.run_id = next.run_id
returning r.run_id, r.tries;

-- name: record_bulk_runs
-- What came of some runs. Also for a job that was cancelled meanwhile: its counts are those of what was done.
with job as materialized (
  select j.id from perdure.bulk_job j where j.id = :id and j.owner = :session for update
),
ended as (
  update perdure.bulk_job_run r set outcome = u.outcome, message = u.message
    from job, unnest(:runs.run_id::uuid[], :runs.outcome::text[], :runs.message::text[]) as u(run_id, outcome, message)
   where r.job_id = job.id and r.run_id = u.run_id and r.outcome = 'pending'
  returning r.outcome
)
update perdure.bulk_job j
   set done = j.done + (select count(*) from ended where outcome = 'done'),
       skipped = j.skipped + (select count(*) from ended where outcome = 'skipped'),
       failed = j.failed + (select count(*) from ended where outcome = 'failed')
  from job where j.id = job.id
returning j.id;

-- name: end_bulk_job
update perdure.bulk_job j
   set status = case when :error::text is null then 'success' else 'failed' end, error = :error, finished_at = perdure.clock(), owner = null
 where j.id = :id and j.owner = :session and j.status in ('pending', 'running')
returning j.id;

-- name: sent_by_bulk_job
-- Runs that a job has sent its message to.
select run_id from perdure.message_key where run_id = any(:run_ids::uuid[]) and key = :key;

-- name: matching_runs
select * from (
  select * from perdure.active_run_list where run_id = any(:run_ids::uuid[]) and ns = :ns
  union all
  select * from perdure.ended_run_list where run_id = any(:run_ids::uuid[]) and ns = :ns) s
 where true /*query*/;

-- name: delete_old_bulk_jobs
delete from perdure.bulk_job b
 where b.id = any(array(select o.id from perdure.bulk_job o where o.finished_at < now() - :age_s::float8 * interval '1 second' order by o.finished_at limit :limit));

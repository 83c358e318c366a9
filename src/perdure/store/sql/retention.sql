-- Retention: policies, and the job that exports and removes ended runs. The functions that remove are in the migrations: engines have no
-- right to delete history in any other way.

-- name: retention_rules
-- What the policies say, and the clock.
select perdure.retention_rules(:default_days::float8)::text as rules, now() as clock,
       (select max(p.updated_at) from perdure.retention_policy p) as changed_at;

-- name: list_retention_policies
-- Those of a namespace, and that of all namespaces.
select p.ns, p.workflow, p.days, p.updated_at, p.updated_by from perdure.retention_policy p where p.ns in (0, :ns) order by p.ns, p.workflow;

-- name: set_retention_policy
-- No row: the namespace has as many as it may have.
insert into perdure.retention_policy as p (ns, workflow, days, updated_at, updated_by)
select :ns, :workflow, :days::float8, now(), :by
 where exists (select from perdure.retention_policy o where o.ns = :ns and o.workflow = :workflow)
    or (select count(*) from perdure.retention_policy o where o.ns = :ns) < :policies_max
on conflict (ns, workflow) do update set days = excluded.days, updated_at = excluded.updated_at, updated_by = excluded.updated_by
returning p.ns, p.workflow, p.days, p.updated_at, p.updated_by;

-- name: remove_retention_policy
delete from perdure.retention_policy p where p.ns = :ns and p.workflow = :workflow returning p.ns;

-- name: retention_looks
select l.name, l.looked_at from perdure.retention_look l;

-- name: note_retention_look
insert into perdure.retention_look as l (name, looked_at) values (:name, :at)
on conflict (name) do update set looked_at = greatest(l.looked_at, excluded.looked_at);

-- name: count_expired
-- Ended runs of a range of ids: those that the rules would remove, and the others.
select count(*) filter (where e.expired) as expired, count(*) filter (where not e.expired) as kept
  from (select perdure.is_expired(:rules::text::jsonb, r.ns, r.workflow, r.finished_at, :cutoff)
               and not exists (select from perdure.retention_hold h where h.run_id = r.run_id and h.until > :cutoff) as expired
          from perdure.run r where r.run_id >= :low and r.run_id < :high) e;

-- name: insert_retention_job
-- No row: another job is open.
insert into perdure.retention_job (id, name, action, low, high, cutoff, default_days, rules, url, format, lease_until, expected)
values (:id, :name, :action, :low, :high, :cutoff, :default_days::float8, :rules::text::jsonb, :url, :format,
        now() + :lease_s::float8 * interval '1 second', :expected)
on conflict do nothing
returning id;

-- name: has_open_retention_job
select exists (select from perdure.retention_job j where j.status in ('exporting', 'removing')) as is_open;

-- name: claim_retention_job
-- The open job, unless an engine is at work on it.
update perdure.retention_job j set epoch = j.epoch + 1, lease_until = now() + :lease_s::float8 * interval '1 second'
 where j.status in ('exporting', 'removing') and j.lease_until < now()
returning j.id;

-- name: find_retention_job
select j.id, j.name, j.action, j.status, j.low, j.high, j.cutoff, j.rules::text as rules, j.url, j.format, j.epoch, j.exported_to, j.runs, j.events,
       j.tasks, j.bytes, j.expected, j.removed, j.kept, j.error, j.created_at, j.updated_at, j.finished_at
  from perdure.retention_job j where j.id = :id;

-- name: list_retention_jobs
-- Newest first.
select j.id, j.name, j.action, j.status, j.low, j.high, j.cutoff, j.rules::text as rules, j.url, j.format, j.epoch, j.exported_to, j.runs, j.events,
       j.tasks, j.bytes, j.expected, j.removed, j.kept, j.error, j.created_at, j.updated_at, j.finished_at
  from perdure.retention_job j order by j.created_at desc, j.id limit :limit;

-- name: keep_retention_job
-- Renew the lease. No row: another engine has the job, or it is over.
update perdure.retention_job j
   set lease_until = now() + :lease_s::float8 * interval '1 second', updated_at = now(), error = :error
 where j.id = :id and j.epoch = :epoch and j.status in ('exporting', 'removing')
returning j.id;

-- name: insert_retention_part
-- With what it adds to the job. No row: another engine has the job.
with moved as (
  update perdure.retention_job j
     set exported_to = :last::uuid, runs = j.runs + :runs::int, events = j.events + :events::bigint, tasks = j.tasks + :tasks::bigint,
         bytes = j.bytes + :bytes::bigint, lease_until = now() + :lease_s::float8 * interval '1 second', updated_at = now(), error = null
   where j.id = :id::uuid and j.epoch = :epoch::int and j.status = 'exporting'
  returning j.id
)
insert into perdure.retention_part (job_id, n, object, first, last, runs, events, tasks, bytes, sha256)
select m.id, :n::int, :object::text, :first::uuid, :last::uuid, :runs::int, :events::bigint, :tasks::bigint, :bytes::bigint, :sha256::bytea from moved m
returning job_id;

-- name: list_retention_parts
select p.n, p.object, p.first, p.last, p.runs, p.events, p.tasks, p.bytes, p.sha256 from perdure.retention_part p where p.job_id = :id order by p.n;

-- name: begin_removal
select perdure.begin_removal(:id, :epoch) as outcome;

-- name: drop_expired
select perdure.drop_expired(:id, :epoch, :parent) as outcome;

-- name: delete_expired
-- Locks: the rows of the ended runs, so that one is deleted or retried, never both.
select perdure.delete_expired(:id, :epoch, :batch) as n;

-- name: delete_dropped_keys
-- Keys of runs that are gone are free again. A page of the keys of a range of ids; null: there are no more.
with page as (
  select k.ns, k.key, k.run_id from perdure.run_key k where k.run_id >= :after and k.run_id < :high order by k.run_id limit :limit
), gone as (
  delete from perdure.run_key k using page p
   where k.ns = p.ns and k.key = p.key and k.run_id = p.run_id
     and not exists (select from perdure.run_queue q where q.run_id = p.run_id) and not exists (select from perdure.run r where r.run_id = p.run_id)
)
select case when count(*) = :limit::int then max(p.run_id::text)::uuid end as last from page p;

-- name: delete_dropped_messages
-- What was kept of runs of a range of ids that are gone: promises, votes, messages and ids of chains. How many runs; 0: there are no more.
with gone as materialized (
  select u.run_id from (
    select p.run_id from perdure.promise p where p.run_id >= :low and p.run_id < :high
    union select m.run_id from perdure.set_aside_message m where m.run_id >= :low and m.run_id < :high
    union select c.head from perdure.run_chain c where c.head >= :low and c.head < :high) u
   where not exists (select from perdure.run_queue q where q.run_id = u.run_id) and not exists (select from perdure.run r where r.run_id = u.run_id)
   limit :limit
), promises as (
  delete from perdure.promise p using gone g where p.run_id = g.run_id
), votes as (
  delete from perdure.vote v using gone g where v.run_id = g.run_id
), messages as (
  delete from perdure.set_aside_message m using gone g where m.run_id = g.run_id
), chains as (
  delete from perdure.run_chain c using gone g where c.head = g.run_id
)
select count(*)::int from gone;

-- name: end_retention_job
-- Its parts are in the manifest; its kept runs are where they belong.
with ended as (
  update perdure.retention_job j set status = :status, finished_at = now(), updated_at = now(), lease_until = now(), error = :error
   where j.id = :id and j.epoch = :epoch and j.status in ('exporting', 'removing')
  returning j.id
), parts as (
  delete from perdure.retention_part p using ended e where p.job_id = e.id
), kept as (
  delete from perdure.retention_kept k using ended e where k.job_id = e.id
)
select e.id from ended e;

-- name: delete_old_holds
delete from perdure.retention_hold h where h.until < now() - interval '1 day';

-- name: export_runs
-- The next expired runs of a job, by id.
select r.run_id, n.name as namespace, r.ns, r.workflow, r.version, r.kind, r.key, r.parent_id, r.parent_seq, r.status, r.created_at, r.finished_at,
       r.epoch, r.events, r.error_code, r.error, r.successor, r.attributes::text as attributes, r.head, k.input_hash
  from perdure.run r
  join perdure.namespace n on n.id = r.ns
  left join perdure.run_key k on r.key is not null and k.ns = r.ns and k.key = r.key and k.run_id = r.run_id
 where r.run_id > :after and r.run_id >= :low and r.run_id < :high
   and perdure.is_expired(:rules::text::jsonb, r.ns, r.workflow, r.finished_at, :cutoff)
   and not exists (select from perdure.retention_hold h where h.run_id = r.run_id and h.until > :cutoff)
 order by r.run_id limit :limit;

-- name: export_history
-- Of runs from `first` to `last`: with these bounds, here and below, one partition is read and not all.
select h.run_id, h.seq, h.last, h.epoch, h.at, h.body, h.hash from perdure.history h
 where h.run_id between :first and :last and h.run_id = any(:run_ids::uuid[]) order by h.run_id, h.seq;

-- name: export_tasks
-- `low` and `high` bound the ids, which open with the first half of their run's id.
select t.run_id, t.id, t.seq, t.name, t.queue, t.status, t.attempts, t.lost, t.epoch, t.scheduled_at, t.started_at, t.finished_at, t.worker, t.cpu_us,
       t.error, t.error_code, t.error_type, t.traceback, t.node, t.copied
  from perdure.task t where t.id between :low and :high and t.run_id = any(:run_ids::uuid[]) order by t.run_id, t.seq;

-- name: export_attempts
select a.run_id, a.id, a.epoch, a.attempt, a.seq, a.name, a.node, a.outcome, a.started_at, a.finished_at, a.worker, a.cpu_us, a.error, a.error_code,
       a.error_type, a.traceback
  from perdure.task_attempt a where a.id between :low and :high and a.run_id = any(:run_ids::uuid[]) order by a.run_id, a.seq, a.epoch, a.attempt;

-- name: export_states
select s.run_id, s.name, s.value from perdure.run_state s where s.run_id between :first and :last and s.run_id = any(:run_ids::uuid[]) order by s.run_id, s.name;

-- name: export_node_counts
select c.run_id, c.node, c.what, c.bin, c.n from perdure.node_count c where c.run_id between :first and :last and c.run_id = any(:run_ids::uuid[]) order by c.run_id, c.node, c.what, c.bin;

-- name: export_logs
select l.run_id, l.seq, l.attempt, l.n, l.at, l.lines, l.body from perdure.task_log l where l.run_id between :first and :last and l.run_id = any(:run_ids::uuid[])
 order by l.run_id, l.seq, l.attempt, l.n;

-- name: export_payloads
select u.run_id, u.store, u.sha256, p.size
  from perdure.payload_use u left join perdure.payload p on p.ns = u.ns and p.sha256 = u.sha256 and p.store = u.store
 where u.run_id between :first and :last and u.run_id = any(:run_ids::uuid[]) order by u.run_id, u.store, u.sha256;

-- name: export_namespaces
select n.name, n.id from perdure.namespace n;

-- name: read_export_address
select x.url from perdure.retention_export x;

-- name: set_export_address
insert into perdure.retention_export as x (url) values (:url)
on conflict (one) do update set url = excluded.url, updated_at = now() where x.url <> excluded.url;

-- name: remove_export_address
delete from perdure.retention_export;

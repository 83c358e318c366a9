-- Acts that programs asked for in SQL: perdure.start, perdure.signal, perdure.emit.

-- name: claim_sql_requests
-- In the order in which they are due, those that are claimed for the first time. One that was claimed before is claimed alone, when it is the
-- first that is due: its engine may have died of it, and a try counts against no other. Another engine tries after lease_s, if this one has not
-- carried them out. Locks the rows that are due; those that another engine has locked are left to it.
with due as (
  select x.ctid as place, x.tries > 0 as again, x.due_at, x.id from perdure.sql_request x where x.error is null and x.due_at <= perdure.clock()
   order by x.due_at, x.id limit :limit for update skip locked
),
first as (select f.place, f.again from due f order by f.due_at, f.id limit 1),
chosen as (select d.place from due d join first f on d.place = f.place or not (d.again or f.again)),
claimed as (
  update perdure.sql_request r set due_at = perdure.clock() + make_interval(secs => :lease_s::float8), tries = r.tries + 1
    from chosen d where r.ctid = d.place
  returning r.id, r.ns, r.act, r.name, r.run_id, r.run_key, r.payload, r.key, r.options, r.by, r.tries
)
select c.id, c.ns, n.name as namespace, c.act, c.name, c.run_id, c.run_key, c.payload, c.key, c.options::text as options, c.by, c.tries
  from claimed c join perdure.namespace n on n.id = c.ns order by c.id;

-- name: find_sql_start
-- The start of a run that was asked for, by the id or the key of the run, and whether that run is there. A start is carried out in one
-- transaction, so this sees one of them or neither. Of several starts under a key, the one that has not failed, then the newest.
select exists(select from perdure.run_queue q where q.run_id = :run_id::uuid and q.ns = :ns)
         or exists(select from perdure.run r where r.run_id = :run_id::uuid and r.ns = :ns)
         or exists(select from perdure.run_key k where k.ns = :ns and k.key = :key::text) as has_run,
       s.id, s.run_id, s.error, s.tries, s.due_at <= perdure.clock() as is_due, s.due_at
  from (select) as one
  left join lateral (
    select x.* from perdure.sql_request x where x.act = 'start' and x.ns = :ns and (x.run_id = :run_id::uuid or x.key = :key::text)
     order by x.error is null desc, x.id desc limit 1
  ) s on true;

-- name: claim_sql_start
-- This start alone, for a caller that names its run. Otherwise as claim_sql_requests: it locks the row if it is due, and leaves one that
-- another engine has locked to it.
with due as (
  select x.ctid as place from perdure.sql_request x where x.id = :id and x.error is null and x.due_at <= perdure.clock() for update skip locked
),
claimed as (
  update perdure.sql_request r set due_at = perdure.clock() + make_interval(secs => :lease_s::float8), tries = r.tries + 1
    from due d where r.ctid = d.place
  returning r.id, r.ns, r.act, r.name, r.run_id, r.run_key, r.payload, r.key, r.options, r.by, r.tries
)
select c.id, c.ns, n.name as namespace, c.act, c.name, c.run_id, c.run_key, c.payload, c.key, c.options::text as options, c.by, c.tries
  from claimed c join perdure.namespace n on n.id = c.ns;

-- name: delete_sql_request
-- It is carried out. No row: another engine has done it.
delete from perdure.sql_request where id = :id returning id;

-- name: delay_sql_request
update perdure.sql_request set due_at = perdure.clock() + make_interval(secs => :delay_s::float8), tries = tries - 1 where id = :id;

-- name: fail_sql_request
update perdure.sql_request set error = :error where id = :id;

-- name: pending_sql_start
-- A start that has not been carried out, by the id or the key of its run.
select id from perdure.sql_request
 where ns = :ns and act = 'start' and error is null and (run_id = :run_id::uuid or key = :key::text) limit 1;

-- name: delete_failed_sql_requests
delete from perdure.sql_request r
 where r.ctid = any(array(select x.ctid from perdure.sql_request x
                           where x.error is not null and x.at < perdure.clock() - :age_s::float8 * interval '1 second' order by x.at limit :limit));

-- name: delete_orphaned_effects
-- Effects of transactional tasks whose run is gone. Of the oldest rows: runs go in the order of their age.
delete from perdure.task_effect e
 using (select x.run_id, x.seq from perdure.task_effect x where x.at < now() - interval '1 day' order by x.at limit :limit) o
 where e.run_id = o.run_id and e.seq = o.seq
   and not exists(select from perdure.run_queue q where q.run_id = e.run_id) and not exists(select from perdure.run r where r.run_id = e.run_id);

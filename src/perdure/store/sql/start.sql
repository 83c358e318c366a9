-- Starts that are put off, and keys under which a second start is answered with the run of the first. Times are perdure.clock()'s.

-- name: lock_start_key
-- One start under a key at a time. $1 a text for namespace, workflow and key.
select pg_advisory_xact_lock(hashtextextended($1, 5));

-- name: open_start
-- The row that takes further starts under a key. Locks it; an engine that closes it at this moment is waited for.
select run_id, kind, items, bytes, argument, due_at <= perdure.clock() as is_due from perdure.start_later
 where ns = $1 and workflow = $2 and key = $3 and open for update;

-- name: close_start
-- It takes no more, and is due.
update perdure.start_later set open = false, due_at = perdure.clock() where run_id = $1;

-- name: put_off_start
-- The first under its key. $5 kind, $6 due in so many microseconds, $7 at the latest in so many.
insert into perdure.start_later (run_id, ns, workflow, key, kind, due_at, last_at, argument, items, bytes, request, input)
values ($1, $2, $3, $4, $5, perdure.clock() + $6::bigint * interval '1 microsecond', perdure.clock() + $7::bigint * interval '1 microsecond',
        $8, $9, $10, $11, $12)
returning due_at;

-- name: replace_start
-- A debounced start: this input instead of the last, and more patience, within bounds. $3 quiet time in microseconds.
update perdure.start_later set request = $2, input = $4, due_at = least(perdure.clock() + $3::bigint * interval '1 microsecond', last_at)
 where run_id = $1 returning due_at;

-- name: join_start
-- A batched start: more items. $5 whether there are enough now.
update perdure.start_later
   set request = $2, items = items + $3, bytes = bytes + $4, open = not $5::bool, due_at = case when $5::bool then perdure.clock() else due_at end
 where run_id = $1 returning due_at;

-- name: add_start_input
insert into perdure.start_input (run_id, n, input) values ($1, $2, $3);

-- name: remember_item
-- $2 the sender's own key of its items. No row: they are there already.
insert into perdure.idempotency (ns, key, hash, status, answer) values ($1, $2, $3, 202, $4) on conflict do nothing returning key;

-- name: remembered_item
select hash, answer from perdure.idempotency where ns = $1 and key = $2;

-- name: next_start
-- For idle engines: when the next one is due.
select perdure.clock() as clock, (select min(due_at) from perdure.start_later) as due_at;

-- name: take_due_starts
-- They are closed, and this engine has $2 seconds to make runs of them before another one tries.
update perdure.start_later s set open = false, due_at = perdure.clock() + make_interval(secs => $2::float8)
  from (select x.ctid as place from perdure.start_later x where x.due_at <= perdure.clock() order by x.due_at limit $1 for update skip locked) d
 where s.ctid = d.place
returning s.run_id, s.ns, s.kind, s.request, s.input;

-- name: start_inputs
select input from perdure.start_input where run_id = $1 order by n;

-- name: remove_start
-- No row: another engine has made the run.
with gone as (
  delete from perdure.start_later where run_id = $1 returning run_id
),
inputs as (
  delete from perdure.start_input i using gone g where i.run_id = g.run_id
)
select run_id from gone;

-- name: begin_run
-- A run that nobody owns yet, with its first event. $7 its line, where it has to wait to be let in. $8 its deadline. $9 the hash of that event's row.
with moment as materialized (select perdure.clock() as at),
queued as (
  insert into perdure.run_queue (run_id, ns, workflow, version, status, created_at, wake_at, epoch, attributes, line, deadline_at)
  select $1::uuid, $2::int, $3::text, $4::text, 0, m.at, case when $7::uuid is null then m.at else 'infinity' end, 0, $6::text::jsonb, $7::uuid,
         coalesce($8::timestamptz, case when left($4::text, 5) = 'flow-' then
           m.at + (select x.timeout_us from perdure.workflow_version x where x.ns = $2::int and x.workflow = $3::text and x.version = $4::text) * interval '1 microsecond' end)
    from moment m
)
insert into perdure.history (run_id, seq, last, ns, epoch, at, body, hash) select $1::uuid, 1, 1, $2::int, 0, m.at, $5::bytea, $9::bytea from moment m;

-- name: expected_runs
-- Which of these runs are there, or will come.
select run_id from perdure.run_queue where ns = $1 and run_id = any($2::uuid[])
union all
select run_id from perdure.run where ns = $1 and run_id = any($2::uuid[])
union all
select run_id from perdure.start_later where ns = $1 and run_id = any($2::uuid[]);

-- name: claim_dedup
-- No row: the key is taken. $5 for so many microseconds; 0: until the run has ended.
insert into perdure.dedup (ns, workflow, key, run_id, expires_at)
values ($1, $2, $3, $4, case when $5::bigint > 0 then perdure.clock() + $5::bigint * interval '1 microsecond' else 'infinity' end)
on conflict do nothing returning run_id;

-- name: lock_dedup
-- Whoever holds this lock sees, in its next statement, the run that the row names: both were written together.
select run_id, expires_at <= perdure.clock() as expired, expires_at = 'infinity' as until_end from perdure.dedup
 where ns = $1 and workflow = $2 and key = $3 for update;

-- name: over_runs
-- Which of these runs, and whatever they continued as, have ended.
with recursive chain(root, run_id, n) as (
  select u, u, 0 from unnest($1::uuid[]) as u
  union all
  select c.root, r.successor, c.n + 1 from chain c join perdure.run r on r.run_id = c.run_id where r.successor is not null and c.n < 1000
)
select c.root as run_id from chain c group by c.root
having not bool_or(exists(select from perdure.run_queue q where q.run_id = c.run_id));

-- name: pass_dedup
-- The key goes to another run.
update perdure.dedup
   set run_id = $4, expires_at = case when $5::bigint > 0 then perdure.clock() + $5::bigint * interval '1 microsecond' else 'infinity' end
 where ns = $1 and workflow = $2 and key = $3;

-- name: forget_dedups
-- Keys whose time has come.
delete from perdure.dedup d using (
  select ctid as place from perdure.dedup where expires_at <= perdure.clock() order by expires_at limit $1 for update skip locked
) x where d.ctid = x.place;

-- name: lasting_dedups
-- A page of keys that belong to a run until it ends, after $1 $2 $3. Locks them.
select ns, workflow, key, run_id from perdure.dedup
 where (ns, workflow, key) > ($1::int, $2::text, $3::text) and expires_at = 'infinity' order by ns, workflow, key limit $4 for update skip locked;

-- name: forget_lasting_dedups
-- Rows that this transaction has locked.
delete from perdure.dedup d using unnest($1::int[], $2::text[], $3::text[]) as u(ns, workflow, key)
 where d.ns = u.ns and d.workflow = u.workflow and d.key = u.key;

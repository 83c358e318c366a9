-- Starts that are put off, and keys under which a second start is answered with the run of the first. Times are perdure.clock()'s.

-- name: lock_start_key
-- One start under a key at a time. :key a text for namespace, workflow and key.
select pg_advisory_xact_lock(hashtextextended(:key, 5));

-- name: open_start
-- The row that takes further starts under a key. Locks it; an engine that closes it at this moment is waited for.
select run_id, kind, items, bytes, argument, due_at <= perdure.clock() as is_due from perdure.start_later
 where ns = :ns and workflow = :workflow and key = :key and open for update;

-- name: close_start
-- It takes no more, and is due.
update perdure.start_later set open = false, due_at = perdure.clock() where run_id = :run_id;

-- name: put_off_start
-- The first under its key. :kind kind, :due_us due in so many microseconds, :last_us at the latest in so many.
insert into perdure.start_later (run_id, ns, workflow, key, kind, due_at, last_at, argument, items, bytes, request, input)
values (:run_id, :ns, :workflow, :key, :kind, perdure.clock() + :due_us::bigint * interval '1 microsecond', perdure.clock() + :last_us::bigint * interval '1 microsecond',
        :argument, :items, :bytes, :request, :input)
returning due_at;

-- name: replace_start
-- A debounced start: this input instead of the last, and more patience, within bounds. :quiet_us quiet time in microseconds.
update perdure.start_later set request = :request, input = :input, due_at = least(perdure.clock() + :quiet_us::bigint * interval '1 microsecond', last_at)
 where run_id = :run_id returning due_at;

-- name: join_start
-- A batched start: more items. :enough whether there are enough now.
update perdure.start_later
   set request = :request, items = items + :items, bytes = bytes + :bytes, open = not :enough::bool, due_at = case when :enough::bool then perdure.clock() else due_at end
 where run_id = :run_id returning due_at;

-- name: add_start_input
insert into perdure.start_input (run_id, n, input) values (:run_id, :n, :input);

-- name: remember_item
-- :key the sender's own key of its items. No row: they are there already.
insert into perdure.idempotency (ns, key, hash, status, answer) values (:ns, :key, :hash, 202, :answer) on conflict do nothing returning key;

-- name: remembered_item
select hash, answer from perdure.idempotency where ns = :ns and key = :key;

-- name: next_start
-- For idle engines: when the next one is due.
select perdure.clock() as clock, (select min(due_at) from perdure.start_later) as due_at;

-- name: take_due_starts
-- They are closed, and this engine has :lease_s seconds to make runs of them before another one tries.
update perdure.start_later s set open = false, due_at = perdure.clock() + make_interval(secs => :lease_s::float8)
  from (select x.ctid as place from perdure.start_later x where x.due_at <= perdure.clock() order by x.due_at limit :limit for update skip locked) d
 where s.ctid = d.place
returning s.run_id, s.ns, s.kind, s.request, s.input;

-- name: start_inputs
select input from perdure.start_input where run_id = :run_id order by n;

-- name: remove_start
-- No row: another engine has made the run.
with gone as (
  delete from perdure.start_later where run_id = :run_id returning run_id
),
inputs as (
  delete from perdure.start_input i using gone g where i.run_id = g.run_id
)
select run_id from gone;

-- name: begin_run
-- A run that nobody owns yet, with its first event. :group_id its line, where it has to wait to be let in. :deadline_at its deadline. :hash the hash of that event's row.
with moment as materialized (select perdure.clock() as at),
queued as (
  insert into perdure.run_queue (run_id, ns, workflow, version, status, created_at, wake_at, epoch, attributes, line, deadline_at)
  select :run_id::uuid, :ns::int, :workflow::text, :version::text, 0, m.at, case when :group_id::uuid is null then m.at else 'infinity' end, 0, :attributes::text::jsonb, :group_id::uuid,
         coalesce(:deadline_at::timestamptz, case when left(:version::text, 5) = 'flow-' then
           m.at + (select x.timeout_us from perdure.workflow_version x where x.ns = :ns::int and x.workflow = :workflow::text and x.version = :version::text) * interval '1 microsecond' end)
    from moment m
)
insert into perdure.history (run_id, seq, last, ns, epoch, at, body, hash) select :run_id::uuid, 1, 1, :ns::int, 0, m.at, :body::bytea, :hash::bytea from moment m;

-- name: expected_runs
-- Which of these runs are there, or will come.
select run_id from perdure.run_queue where ns = :ns and run_id = any(:run_ids::uuid[])
union all
select run_id from perdure.run where ns = :ns and run_id = any(:run_ids::uuid[])
union all
select run_id from perdure.start_later where ns = :ns and run_id = any(:run_ids::uuid[]);

-- name: claim_dedup
-- No row: the key is taken. :duration_us for so many microseconds; 0: until the run has ended.
insert into perdure.dedup (ns, workflow, key, run_id, expires_at)
values (:ns, :workflow, :key, :run_id, case when :duration_us::bigint > 0 then perdure.clock() + :duration_us::bigint * interval '1 microsecond' else 'infinity' end)
on conflict do nothing returning run_id;

-- name: lock_dedup
-- Whoever holds this lock sees, in its next statement, the run that the row names: both were written together.
select run_id, expires_at <= perdure.clock() as expired, expires_at = 'infinity' as until_end from perdure.dedup
 where ns = :ns and workflow = :workflow and key = :key for update;

-- name: over_runs
-- Which of these runs, and whatever they continued as, have ended.
with recursive chain(root, run_id, n) as (
  select u, u, 0 from unnest(:run_ids::uuid[]) as u
  union all
  select c.root, r.successor, c.n + 1 from chain c join perdure.run r on r.run_id = c.run_id where r.successor is not null and c.n < 1000
)
select c.root as run_id from chain c group by c.root
having not bool_or(exists(select from perdure.run_queue q where q.run_id = c.run_id));

-- name: pass_dedup
-- The key goes to another run.
update perdure.dedup
   set run_id = :run_id, expires_at = case when :duration_us::bigint > 0 then perdure.clock() + :duration_us::bigint * interval '1 microsecond' else 'infinity' end
 where ns = :ns and workflow = :workflow and key = :key;

-- name: forget_dedups
-- Keys whose time has come.
delete from perdure.dedup d using (
  select ctid as place from perdure.dedup where expires_at <= perdure.clock() order by expires_at limit :limit for update skip locked
) x where d.ctid = x.place;

-- name: lasting_dedups
-- A page of keys that belong to a run until it ends, after :after_ns :after_workflow :after_key. Locks them.
select ns, workflow, key, run_id from perdure.dedup
 where (ns, workflow, key) > (:after_ns::int, :after_workflow::text, :after_key::text) and expires_at = 'infinity' order by ns, workflow, key limit :limit for update skip locked;

-- name: forget_lasting_dedups
-- Rows that this transaction has locked.
delete from perdure.dedup d using unnest(:keys.ns::int[], :keys.workflow::text[], :keys.key::text[]) as u(ns, workflow, key)
 where d.ns = u.ns and d.workflow = u.workflow and d.key = u.key;

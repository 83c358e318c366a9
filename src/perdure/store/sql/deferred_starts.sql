-- Deferred starts (debounce, batch), and dedup keys under which a second start returns the run of the first. Times follow perdure.clock().

-- name: lock_deferred_start_key
-- One start under a key at a time. `key` is made of namespace, workflow and key.
select pg_advisory_xact_lock(hashtextextended(:key, 5));

-- name: lock_deferred_start
-- The row that takes further starts under a key. Locks it; waits for an engine that closes it at this moment.
select run_id, kind, items, bytes, argument, due_at <= perdure.clock() as is_due from perdure.deferred_start
 where ns = :ns and workflow = :workflow and key = :key and open for update;

-- name: close_deferred_start
-- It takes no more, and is due.
update perdure.deferred_start set open = false, due_at = perdure.clock() where run_id = :run_id;

-- name: insert_deferred_start
-- seals: request deferred_request, input deferred_input
-- The first under its key. due_us and last_us are counted from now.
insert into perdure.deferred_start (run_id, ns, workflow, key, kind, due_at, last_at, argument, items, bytes, request, input)
values (:run_id, :ns, :workflow, :key, :kind, perdure.clock() + :due_us::bigint * interval '1 microsecond', perdure.clock() + :last_us::bigint * interval '1 microsecond',
        :argument, :items, :bytes, :request, :input)
returning due_at;

-- name: replace_deferred_start
-- seals: request deferred_request, input deferred_input
-- A debounced start: this input replaces the last, and the quiet time begins again, up to last_at.
update perdure.deferred_start set request = :request, input = :input, due_at = least(perdure.clock() + :quiet_us::bigint * interval '1 microsecond', last_at)
 where run_id = :run_id returning due_at;

-- name: extend_deferred_start
-- seals: request deferred_request
-- A batched start: more items. `enough` closes it.
update perdure.deferred_start
   set request = :request, items = items + :items, bytes = bytes + :bytes, open = not :enough::bool, due_at = case when :enough::bool then perdure.clock() else due_at end
 where run_id = :run_id returning due_at;

-- name: insert_deferred_start_input
-- seals: input deferred_input
insert into perdure.deferred_start_input (run_id, n, input) values (:run_id, :n, :input);

-- name: insert_item_key
-- seals: answer kept_answer
-- The sender's own key of its items. No row: they were received before.
insert into perdure.idempotency (ns, key, hash, status, answer) values (:ns, :key, :hash, 202, :answer) on conflict do nothing returning key;

-- name: item_key
select hash, answer from perdure.idempotency where ns = :ns and key = :key;

-- name: next_deferred_start
-- For idle engines: when the next one is due.
select perdure.clock() as clock, (select min(due_at) from perdure.deferred_start) as due_at;

-- name: claim_deferred_starts
-- Closes them. Another engine tries after lease_s, if this one has not created their runs.
update perdure.deferred_start s set open = false, due_at = perdure.clock() + make_interval(secs => :lease_s::float8)
  from (select x.ctid as place from perdure.deferred_start x where x.due_at <= perdure.clock() order by x.due_at limit :limit for update skip locked) d
 where s.ctid = d.place
returning s.run_id, s.ns, s.kind, s.request, s.input;

-- name: deferred_start_inputs
select input from perdure.deferred_start_input where run_id = :run_id order by n;

-- name: delete_deferred_start
-- No row: another engine has made the run.
with gone as (
  delete from perdure.deferred_start where run_id = :run_id returning run_id
),
inputs as (
  delete from perdure.deferred_start_input i using gone g where i.run_id = g.run_id
)
select run_id from gone;

-- name: insert_run
-- A run without an owner, with its first event.
with moment as materialized (select perdure.clock() as at),
queued as (
  insert into perdure.run_queue (run_id, ns, workflow, version, kind, key, status, created_at, wake_at, epoch, attributes, group_id, deadline_at, pin)
  select :run_id::uuid, :ns::int, :workflow::text, :version::text, :kind::text, :key::text, 'pending', m.at, case when :group_id::uuid is null then m.at else 'infinity' end, 0, :attributes::text::jsonb, :group_id::uuid,
         coalesce(:deadline_at::timestamptz, case when :kind::text = 'flow' then
           m.at + (select x.timeout_us from perdure.workflow_version x where x.ns = :ns::int and x.workflow = :workflow::text and x.version = :version::text) * interval '1 microsecond' end), :pin::text
    from moment m
)
insert into perdure.history (run_id, seq, last, ns, epoch, at, body, hash) select :run_id::uuid, 1, 1, :ns::int, 0, m.at, :body::bytea, :hash::bytea from moment m;

-- name: expected_runs
-- Which of these runs are there, or will come.
select run_id from perdure.run_queue where ns = :ns and run_id = any(:run_ids::uuid[])
union all
select run_id from perdure.run where ns = :ns and run_id = any(:run_ids::uuid[])
union all
select run_id from perdure.deferred_start where ns = :ns and run_id = any(:run_ids::uuid[]);

-- name: claim_dedup
-- No row: the key is taken. duration_us 0: until the run has ended.
insert into perdure.dedup (ns, workflow, key, run_id, expires_at)
values (:ns, :workflow, :key, :run_id, case when :duration_us::bigint > 0 then perdure.clock() + :duration_us::bigint * interval '1 microsecond' else 'infinity' end)
on conflict do nothing returning run_id;

-- name: lock_dedup
-- The next statement of the holder of this lock sees the run that the row names: both were written together.
select run_id, expires_at <= perdure.clock() as expired, expires_at = 'infinity' as until_end from perdure.dedup
 where ns = :ns and workflow = :workflow and key = :key for update;

-- name: finished_runs
-- Which of these runs have ended, and the runs they continued as.
with recursive chain(root, run_id, n) as (
  select u, u, 0 from unnest(:run_ids::uuid[]) as u
  union all
  select c.root, r.successor, c.n + 1 from chain c join perdure.run r on r.run_id = c.run_id where r.successor is not null and c.n < 1000
)
select c.root as run_id from chain c group by c.root
having not bool_or(exists(select from perdure.run_queue q where q.run_id = c.run_id));

-- name: reassign_dedup
-- The key goes to another run.
update perdure.dedup
   set run_id = :run_id, expires_at = case when :duration_us::bigint > 0 then perdure.clock() + :duration_us::bigint * interval '1 microsecond' else 'infinity' end
 where ns = :ns and workflow = :workflow and key = :key;

-- name: delete_expired_dedups
-- Keys whose time has come.
delete from perdure.dedup d using (
  select ctid as place from perdure.dedup where expires_at <= perdure.clock() order by expires_at limit :limit for update skip locked
) x where d.ctid = x.place;

-- name: lock_lasting_dedups
-- A page of keys that belong to a run until it ends. Locks them.
select ns, workflow, key, run_id from perdure.dedup
 where (ns, workflow, key) > (:after_ns::int, :after_workflow::text, :after_key::text) and expires_at = 'infinity' order by ns, workflow, key limit :limit for update skip locked;

-- name: delete_dedups
-- Rows that this transaction has locked.
delete from perdure.dedup d using unnest(:keys.ns::int[], :keys.workflow::text[], :keys.key::text[]) as u(ns, workflow, key)
 where d.ns = u.ns and d.workflow = u.workflow and d.key = u.key;

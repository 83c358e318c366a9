-- The retry of a failed run. Both statements run in one transaction, which writes nothing unless the run is still as it was read.

-- name: claim_free_key
-- Waits for a start that takes the key at this moment.
insert into perdure.run_key (ns, key, run_id, input_hash) values (:ns, :key, :run_id, :input_hash) on conflict do nothing;

-- name: take_back_key
-- The key of the run, which another run may have taken since. No row: that run is active. Locks: the key's row.
update perdure.run_key k set run_id = :run_id, input_hash = case when k.run_id = :run_id then k.input_hash else :input_hash end
 where k.ns = :ns and k.key = :key and (k.run_id = :run_id or not exists (select from perdure.run_queue q where q.run_id = k.run_id))
returning k.run_id;

-- name: retry_run
-- seals: body history
-- The run moves back from the archive, with `body` as its next events, `added` of them. `events` is how many it had when the retry was planned. Of two
-- retries at once the second waits for the first and then finds no row. The run has no owner. Its epoch is raised, so that attempts that
-- other engines record before a claim raises it again are not mixed up with those before the retry.
with failed_run as (
  delete from perdure.run r
   where r.run_id = :run_id and r.ns = :ns and r.status = 'failed' and r.successor is null and r.events = :events
  returning r.run_id, r.ns, r.workflow, r.version, r.kind, r.key, r.parent_id, r.parent_seq, r.created_at, r.epoch, r.events, r.head
),
active_run as (
  insert into perdure.run_queue (run_id, ns, workflow, version, kind, key, parent_id, parent_seq, status, created_at, wake_at, epoch,
                                 attributes, group_id, events, head, pin)
  select run_id, ns, workflow, version, kind, key, parent_id, parent_seq, 'running', created_at,
         case when :group_id::uuid is null then perdure.clock() else 'infinity' end, epoch + 1, :attributes::text::jsonb, :group_id, events, head, case when :pinned then version else '' end from failed_run
),
retry_event as (
  insert into perdure.history (run_id, seq, last, ns, epoch, at, body, hash)
  select r.run_id, r.events + 1, r.events + :added, r.ns, r.epoch, perdure.clock(), :body,
         perdure.chain(l.hash, l.at, r.run_id, r.ns, r.events + 1, r.events + :added, r.epoch, :body)
    from failed_run r cross join lateral (
      select h.hash, h.at from perdure.history h where h.run_id = r.run_id order by h.seq desc limit 1
    ) l
)
-- It does not count as failed any more.
select exists(select from failed_run) as retried,
       (select perdure.count_runs(array_agg(ns), array_agg(workflow), array_agg('failed'::text), array_agg(created_at), array_agg(created_at), -1)
          from failed_run having count(*) > 0);

-- name: retry_run_rest
-- seals: tasks.options task_options, tasks.input task_input, promises.spec spec, states.value state
-- What the effective history of the run, without the part that is retried, leaves behind. `stale_ids` and `stale_seqs` are tasks
-- that have not ended any more, `tasks` those to run; `released` are children that are let go.
with deleted_tasks as (
  delete from perdure.task t where t.id = any(:stale_ids::uuid[]) returning t.*
),
-- Attempts of the epochs before stay on record.
earlier_attempts as (
  insert into perdure.task_attempt (id, epoch, attempt, ns, run_id, seq, name, node, outcome, started_at, finished_at, worker, cpu_us, error,
                                    error_code, error_type, traceback)
  select t.id, t.epoch, t.attempts, t.ns, t.run_id, t.seq, t.name, t.node, perdure.attempt_outcome(t.status, t.error_code), t.started_at,
         t.finished_at, t.worker, t.cpu_us, t.error, t.error_code, t.error_type, t.traceback
    from deleted_tasks t where not t.copied and perdure.is_attempt(t.status, t.attempts, t.started_at, t.error_code)
  on conflict do nothing
),
-- An attempt that runs again writes its output under the same number.
deleted_logs as (
  delete from perdure.task_log l where l.run_id = :run_id::uuid and l.seq = any(:stale_seqs::int[])
),
queued_tasks as (
  insert into perdure.task_queue (id, ns, run_id, seq, name, queue, status, attempt, lost, run_at, scheduled_at, options, input,
                                  start_deadline_at, group_id)
  select u.id, :ns::int, :run_id::uuid, u.seq, u.name, u.queue, 'pending', 1, 0, perdure.clock(), perdure.clock(), u.options, u.input,
         perdure.clock() + u.wait_us * interval '1 microsecond', u.group_id
    from unnest(:tasks.id::uuid[], :tasks.seq::int[], :tasks.name::text[], :tasks.queue::text[], :tasks.options::bytea[],
                :tasks.input::bytea[], :tasks.wait_us::bigint[], :tasks.group_id::uuid[])
           as u(id, seq, name, queue, options, input, wait_us, group_id)
),
-- Rows of promises are those of the failed run, with votes and delegations. What the code still asks is open again; a question that was
-- taken back waits until the code asks it again (commit_batch_rest). An imported run has no rows, and one whose votes retention took.
promises as (
  insert into perdure.promise as p (run_id, name, ns, created_at, resolved_at, kind, spec, event, event_id, assignees, quorum, deadline_at,
                                    escalate_at, escalate_to, question, asked, authorized)
  select :run_id::uuid, u.name, :ns::int, perdure.clock(), case when u.resolved then perdure.clock() end, u.kind, u.spec,
         s.spec_json->>'event', u.event_id,
         case when u.kind = 'approval' then array(select jsonb_array_elements_text(coalesce(s.spec_json->'assignees', '[]'))) end,
         (s.spec_json->>'quorum')::int,
         to_timestamp((s.spec_json->>'deadline_us')::bigint / 1e6), to_timestamp((s.spec_json->>'escalate_us')::bigint / 1e6),
         case when u.kind = 'approval' then array(select jsonb_array_elements_text(coalesce(s.spec_json->'escalate_to', '[]'))) end,
         u.question, u.asked, u.authorized
    from unnest(:promises.name::text[], :promises.resolved::bool[], :promises.kind::text[], :promises.spec::text[],
                :promises.question::bytea[], :promises.asked::bool[], :promises.authorized::bool[], :promises.event_id::bigint[])
           as u(name, resolved, kind, spec, question, asked, authorized, event_id),
         lateral (select u.spec::jsonb as spec_json) s
  on conflict (run_id, name) do update
    set asked = excluded.asked, resolved_at = coalesce(p.resolved_at, excluded.resolved_at)
   where p.question = excluded.question
),
-- Requests to stop or to pause that came too late are void: the run had ended.
dropped_requests as (
  delete from perdure.inbox i where i.run_id = :run_id::uuid and i.kind in ('cancel', 'terminate', 'pause')
),
-- Messages that the run had not got before it failed, in the order in which they came.
returned_messages as (
  delete from perdure.set_aside_message m where m.run_id = :run_id::uuid returning m.*
),
pending_again as (
  insert into perdure.inbox (ns, run_id, body, at, kind, name)
  select m.ns, m.run_id, m.body, m.at, m.kind, m.name from returned_messages m order by m.id
),
states as (
  insert into perdure.run_state (run_id, name, ns, value)
  select :run_id::uuid, u.name, :ns::int, u.value from unnest(:states.name::text[], :states.value::bytea[]) as u(name, value)
  on conflict (run_id, name) do update set value = excluded.value
),
-- The code may start other children under the same ids.
released_keys as (
  delete from perdure.run_key k where k.run_id = any(:released::uuid[])
)
-- They have not ended any more, and are not counted as such.
select perdure.count_tasks(array_agg(t.run_id), array_agg(t.ns), array_agg(t.seq), array_agg(t.name), array_agg(t.node), array_agg(t.status),
                           array_agg(t.attempts), array_agg(t.started_at), array_agg(t.finished_at), -1)
  from deleted_tasks t;

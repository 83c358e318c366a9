-- A failed run goes on. Both statements run in one transaction, which writes nothing unless the run is found as it was read.

-- name: reopen_run
-- :run_id run, :ns namespace, :events the number of events it had when the retry was planned, :body the record of the retry, :group_id where it waits to be let in. Of two retries at once
-- the second one waits for the first and then finds no row. Nobody owns the run until somebody claims it, which makes its epoch one more.
with taken as (
  delete from perdure.run r
   where r.run_id = :run_id and r.ns = :ns and r.status = 3 and r.successor is null and r.events = :events
  returning r.run_id, r.ns, r.workflow, r.version, r.key, r.parent_id, r.parent_seq, r.created_at, r.epoch, r.events, r.attributes, r.head
),
opened as (
  insert into perdure.run_queue (run_id, ns, workflow, version, key, parent_id, parent_seq, status, created_at, wake_at, epoch, attributes, line, events, head)
  select run_id, ns, workflow, version, key, parent_id, parent_seq, 1, created_at, case when :group_id::uuid is null then perdure.clock() else 'infinity' end,
         epoch, attributes, :group_id, events, head from taken
),
written as (
  insert into perdure.history (run_id, seq, last, ns, epoch, at, body, hash)
  select t.run_id, t.events + 1, t.events + 1, t.ns, t.epoch, perdure.clock(), :body,
         perdure.chain(l.hash, l.at, t.run_id, t.ns, t.events + 1, t.events + 1, t.epoch, :body)
    from taken t cross join lateral (
      select h.hash, h.at from perdure.history h where h.run_id = t.run_id order by h.seq desc limit 1
    ) l
)
select exists(select from taken) as reopened;

-- name: reopen_rest
-- :run_id run, :ns namespace. Tasks that have not ended any more: :stale_ids ids, :stale_seqs numbers. Tasks that are to run: :tasks.id ids, :tasks.seq numbers, :tasks.name names,
-- :tasks.queue queues, :tasks.options options, :tasks.input inputs. :promises.name promises, :promises.kept whether they were kept. :states.name states, :states.value their values. :released children that are let go.
-- :promises.kind and :promises.spec: what makes the promises approvals or waits for events. :tasks.wait_us how long the tasks may wait; null for ever.
with unended as (
  delete from perdure.task t where t.id = any(:stale_ids::uuid[])
),
-- An attempt that runs again writes its output under the same number.
unlogged as (
  delete from perdure.task_log l where l.run_id = :run_id::uuid and l.seq = any(:stale_seqs::int[])
),
queued as (
  insert into perdure.task_queue (id, ns, run_id, seq, name, queue, status, attempt, lost, run_at, scheduled_at, options, input, expires_at, line)
  select u.id, :ns::int, :run_id::uuid, u.seq, u.name, u.queue, 0, 1, 0, perdure.clock(), perdure.clock(), u.options, u.input,
         perdure.clock() + u.wait_us * interval '1 microsecond', u.line
    from unnest(:tasks.id::uuid[], :tasks.seq::int[], :tasks.name::text[], :tasks.queue::text[], :tasks.options::bytea[], :tasks.input::bytea[], :tasks.wait_us::bigint[], :tasks.line::uuid[])
           as u(id, seq, name, queue, options, input, wait_us, line)
),
unpromised as (
  delete from perdure.promise p where p.run_id = :run_id::uuid and p.name <> all(:promises.name::text[])
),
promised as (
  insert into perdure.promise (run_id, name, ns, created_at, resolved_at, kind, spec, event, assignees, quorum, deadline_at, escalate_at, escalate_to)
  select :run_id::uuid, u.name, :ns::int, perdure.clock(), case when u.kept then perdure.clock() end, u.kind, u.spec, s.v->>'event',
         case when u.kind = 1 then array(select jsonb_array_elements_text(coalesce(s.v->'assignees', '[]'))) end, (s.v->>'quorum')::int,
         to_timestamp((s.v->>'deadline_us')::bigint / 1e6), to_timestamp((s.v->>'escalate_us')::bigint / 1e6),
         case when u.kind = 1 then array(select jsonb_array_elements_text(coalesce(s.v->'escalate_to', '[]'))) end
    from unnest(:promises.name::text[], :promises.kept::bool[], :promises.kind::smallint[], :promises.spec::text[]) as u(name, kept, kind, spec), lateral (select u.spec::jsonb as v) s
  on conflict (run_id, name) do update set resolved_at = excluded.resolved_at
),
stated as (
  insert into perdure.run_state (run_id, name, ns, value)
  select :run_id::uuid, u.name, :ns::int, u.value from unnest(:states.name::text[], :states.value::bytea[]) as u(name, value)
  on conflict (run_id, name) do update set value = excluded.value
),
-- The code may start other children under the same ids.
released as (
  delete from perdure.run_key k where k.run_id = any(:released::uuid[])
)
select 1;

-- A failed run goes on. Both statements run in one transaction, which writes nothing unless the run is found as it was read.

-- name: reopen_run
-- $1 run, $2 namespace, $3 the number of events it had when the retry was planned, $4 the record of the retry, $5 where it waits to be let in. Of two retries at once
-- the second one waits for the first and then finds no row. Nobody owns the run until somebody claims it, which makes its epoch one more.
with taken as (
  delete from perdure.run r
   where r.run_id = $1 and r.ns = $2 and r.status = 3 and r.successor is null and r.events = $3
  returning r.run_id, r.ns, r.workflow, r.version, r.key, r.parent_id, r.parent_seq, r.created_at, r.epoch, r.events, r.attributes, r.head
),
opened as (
  insert into perdure.run_queue (run_id, ns, workflow, version, key, parent_id, parent_seq, status, created_at, wake_at, epoch, attributes, line, events, head)
  select run_id, ns, workflow, version, key, parent_id, parent_seq, 1, created_at, case when $5::uuid is null then perdure.clock() else 'infinity' end,
         epoch, attributes, $5, events, head from taken
),
written as (
  insert into perdure.history (run_id, seq, last, ns, epoch, at, body, hash)
  select t.run_id, t.events + 1, t.events + 1, t.ns, t.epoch, perdure.clock(), $4,
         perdure.chain(l.hash, l.at, t.run_id, t.ns, t.events + 1, t.events + 1, t.epoch, $4)
    from taken t cross join lateral (
      select h.hash, h.at from perdure.history h where h.run_id = t.run_id order by h.seq desc limit 1
    ) l
)
select exists(select from taken) as reopened;

-- name: reopen_rest
-- $1 run, $2 namespace. Tasks that have not ended any more: $3 ids, $4 numbers. Tasks that are to run: $5 ids, $6 numbers, $7 names,
-- $8 queues, $9 options, $10 inputs. $11 promises, $12 whether they were kept. $13 states, $14 their values. $15 children that are let go.
-- $16 and $17: what makes the promises approvals or waits for events. $18 how long the tasks may wait; null for ever.
with unended as (
  delete from perdure.task t where t.id = any($3::uuid[])
),
-- An attempt that runs again writes its output under the same number.
unlogged as (
  delete from perdure.task_log l where l.run_id = $1::uuid and l.seq = any($4::int[])
),
queued as (
  insert into perdure.task_queue (id, ns, run_id, seq, name, queue, status, attempt, lost, run_at, scheduled_at, options, input, expires_at, line)
  select u.id, $2::int, $1::uuid, u.seq, u.name, u.queue, 0, 1, 0, perdure.clock(), perdure.clock(), u.options, u.input,
         perdure.clock() + u.wait_us * interval '1 microsecond', u.line
    from unnest($5::uuid[], $6::int[], $7::text[], $8::text[], $9::bytea[], $10::bytea[], $18::bigint[], $19::uuid[])
           as u(id, seq, name, queue, options, input, wait_us, line)
),
unpromised as (
  delete from perdure.promise p where p.run_id = $1::uuid and p.name <> all($11::text[])
),
promised as (
  insert into perdure.promise (run_id, name, ns, created_at, resolved_at, kind, spec, event, assignees, quorum, deadline_at, escalate_at, escalate_to)
  select $1::uuid, u.name, $2::int, perdure.clock(), case when u.kept then perdure.clock() end, u.kind, u.spec, s.v->>'event',
         case when u.kind = 1 then array(select jsonb_array_elements_text(coalesce(s.v->'assignees', '[]'))) end, (s.v->>'quorum')::int,
         to_timestamp((s.v->>'deadline_us')::bigint / 1e6), to_timestamp((s.v->>'escalate_us')::bigint / 1e6),
         case when u.kind = 1 then array(select jsonb_array_elements_text(coalesce(s.v->'escalate_to', '[]'))) end
    from unnest($11::text[], $12::bool[], $16::smallint[], $17::text[]) as u(name, kept, kind, spec), lateral (select u.spec::jsonb as v) s
  on conflict (run_id, name) do update set resolved_at = excluded.resolved_at
),
stated as (
  insert into perdure.run_state (run_id, name, ns, value)
  select $1::uuid, u.name, $2::int, u.value from unnest($13::text[], $14::bytea[]) as u(name, value)
  on conflict (run_id, name) do update set value = excluded.value
),
-- The code may start other children under the same ids.
released as (
  delete from perdure.run_key k where k.run_id = any($15::uuid[])
)
select 1;

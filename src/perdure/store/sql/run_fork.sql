-- A fork: a new run with a copy of another's first events. Both statements run in one transaction. No engine knows the run yet.

-- name: fork_run
-- The run, and its history with its own hash chain. The copies keep the times of the originals; the last row, and the run, are of now. A
-- fork under a key that is taken writes nothing. `deadline_at` follows from the copied start.
with new_key as (
  insert into perdure.run_key (ns, key, run_id, input_hash)
  select :ns::int, :key::text, :run_id::uuid, :input_hash::bytea where :key::text is not null
  on conflict do nothing
  returning run_id
),
forked as (
  insert into perdure.run_queue (run_id, ns, workflow, version, kind, key, status, created_at, wake_at, epoch, attributes, group_id, deadline_at,
                                 events, head, pin)
  select :run_id::uuid, :ns::int, :workflow::text, :version::text, :kind::text, :key::text, 'running', perdure.clock(),
         case when :group_id::uuid is null then perdure.clock() else 'infinity' end, 0, :attributes::text::jsonb, :group_id::uuid,
         :deadline_at::timestamptz, :events::int, :head::bytea, :pin::text
   where :key::text is null or exists (select from new_key)
  returning run_id
),
events as (
  insert into perdure.history (run_id, seq, last, ns, epoch, at, body, hash)
  select f.run_id, u.seq, u.last, :ns::int, 0, coalesce(u.at, perdure.clock()), u.body, u.hash
    from forked f, unnest(:rows.seq::int[], :rows.last::int[], :rows.at::timestamptz[], :rows.body::bytea[], :rows.hash::bytea[])
                     as u(seq, last, at, body, hash)
)
select exists(select from forked) as forked;

-- name: fork_run_rest
-- seals: copies.error error, tasks.options task_options, tasks.input task_input, promises.spec spec, states.value state
-- What the copied events leave behind. `copies` are tasks that ended before the fork: what no event tells about them is taken from the rows
-- of the other run (`source`), where those still exist. `tasks` go on here. Uses of stored content are locked by the caller.
with copies as (
  insert into perdure.task (id, ns, run_id, seq, name, queue, status, attempts, lost, epoch, scheduled_at, started_at, finished_at, error,
                            node, copied)
  select u.id, :ns::int, :run_id::uuid, u.seq, u.name, u.queue, u.status, a.attempts, least(coalesce(t.lost, 0), a.attempts), 0,
         u.scheduled_at, t.started_at, coalesce(u.finished_at, perdure.clock()), u.error, u.node, true
    from unnest(:copies.id::uuid[], :copies.source::uuid[], :copies.seq::int[], :copies.name::text[], :copies.queue::text[],
                :copies.status::text[], :copies.attempts::int[], :copies.scheduled_at::timestamptz[], :copies.finished_at::timestamptz[],
                :copies.error::text[], :copies.node::text[])
           as u(id, source, seq, name, queue, status, attempts, scheduled_at, finished_at, error, node)
    left join perdure.task t on t.id = u.source and t.ns = :ns::int and t.finished_at <= coalesce(u.finished_at, perdure.clock()) + interval '60 s',
         lateral (select coalesce(u.attempts, case when u.status = 'success' then greatest(t.attempts, 1) else coalesce(t.attempts, 0) end) as attempts) a
  returning run_id, ns, seq, name, node, status, attempts, started_at, finished_at
),
queued_tasks as (
  insert into perdure.task_queue (id, ns, run_id, seq, name, queue, status, attempt, lost, run_at, scheduled_at, options, input, node,
                                  start_deadline_at, group_id)
  select u.id, :ns::int, :run_id::uuid, u.seq, u.name, u.queue, 'pending', 1, 0, perdure.clock(), perdure.clock(), u.options, u.input, u.node,
         perdure.clock() + u.wait_us * interval '1 microsecond', u.group_id
    from unnest(:tasks.id::uuid[], :tasks.seq::int[], :tasks.name::text[], :tasks.queue::text[], :tasks.options::bytea[],
                :tasks.input::bytea[], :tasks.wait_us::bigint[], :tasks.group_id::uuid[], :tasks.node::text[])
           as u(id, seq, name, queue, options, input, wait_us, group_id, node)
),
promises as (
  insert into perdure.promise (run_id, name, ns, created_at, resolved_at, kind, spec, event, event_id, assignees, quorum, deadline_at,
                               escalate_at, escalate_to, question, asked, authorized)
  select :run_id::uuid, u.name, :ns::int, perdure.clock(), case when u.resolved then perdure.clock() end, u.kind, u.spec,
         s.spec_json->>'event', u.event_id,
         case when u.kind = 'approval' then array(select jsonb_array_elements_text(coalesce(s.spec_json->'assignees', '[]'))) end,
         (s.spec_json->>'quorum')::int,
         to_timestamp((s.spec_json->>'deadline_us')::bigint / 1e6), to_timestamp((s.spec_json->>'escalate_us')::bigint / 1e6),
         case when u.kind = 'approval' then array(select jsonb_array_elements_text(coalesce(s.spec_json->'escalate_to', '[]'))) end,
         u.question, u.asked, u.authorized
    from unnest(:promises.name::text[], :promises.resolved::bool[], :promises.kind::text[], :promises.spec::text[], :promises.question::bytea[],
                :promises.asked::bool[], :promises.authorized::bool[], :promises.event_id::bigint[])
           as u(name, resolved, kind, spec, question, asked, authorized, event_id),
         lateral (select u.spec::jsonb as spec_json) s
),
states as (
  insert into perdure.run_state (run_id, name, ns, value)
  select :run_id::uuid, u.name, :ns::int, u.value from unnest(:states.name::text[], :states.value::bytea[]) as u(name, value)
),
uses as (
  insert into perdure.payload_use (run_id, ns, store, sha256)
  select :run_id::uuid, :ns::int, u.store, u.sha256 from unnest(:uses.store::text[], :uses.sha256::bytea[]) as u(store, sha256)
)
select perdure.count_tasks(array_agg(t.run_id), array_agg(t.ns), array_agg(t.seq), array_agg(t.name), array_agg(t.node), array_agg(t.status),
                           array_agg(t.attempts), array_agg(t.started_at), array_agg(t.finished_at), 1)
  from copies t;

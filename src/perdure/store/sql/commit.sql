-- Everything an engine writes about its runs, in one statement, one round trip, one transaction.
--
-- Rows of hot tables are reached from the arrays through `lateral (... offset 0)` and then by ctid. That fixes the join order: these
-- tables are empty one moment and full the next, and a plan made for the one must not be run on the other. The rows are the
-- session's own, so nobody moves them meanwhile.

-- name: commit_batch
-- :session session, :number commit number. Each following group is a set of equally long arrays, one element per row.
-- Locks: own session row FOR KEY SHARE (first: every other part selects from `fence`), then the rows it names.
-- No fence row: nothing is written and `held` is false.
with fence as materialized (
  select id, perdure.clock() as at from perdure.engine_session where id = :session for key share
),
mark as (
  insert into perdure.commit_log (session_id, n) select id, :number::bigint from fence
),
-- Starts. A start under a key that is taken writes nothing; the caller learns it from `started`.
start_rows as materialized (
  select u.*, f.at
    from unnest(:starts.run_id::uuid[], :starts.ns::int[], :starts.workflow::text[], :starts.version::text[], :starts.key::text[], :starts.input_hash::bytea[], :starts.parent_id::uuid[], :starts.parent_seq::int[],
                :starts.own::bool[], :starts.body::bytea[], :starts.attributes::text[], :starts.line::uuid[], :starts.deadline_at::timestamptz[], :starts.hash::bytea[])
      as u(run_id, ns, workflow, version, key, input_hash, parent_id, parent_seq, own, body, attributes, line, deadline_at, hash), fence f
),
keyed as (
  insert into perdure.run_key (ns, key, run_id, input_hash)
  select ns, key, run_id, input_hash from start_rows where key is not null
  on conflict do nothing
  returning run_id
),
started as (
  insert into perdure.run_queue (run_id, ns, workflow, version, key, parent_id, parent_seq, status, created_at, wake_at, owner, epoch,
                                 attributes, line, deadline_at)
  select run_id, ns, workflow, version, key, parent_id, parent_seq, own::int, at, case when line is null then at else 'infinity' end,
         case when own then :session end, own::int, attributes::jsonb, line,
         -- Written out: PostgreSQL plans a function of SQL anew in every statement that calls it.
         coalesce(deadline_at, case when left(s.version, 5) = 'flow-' then
           at + (select x.timeout_us from perdure.workflow_version x where x.ns = s.ns and x.workflow = s.workflow and x.version = s.version) * interval '1 microsecond' end)
    from start_rows s where key is null or run_id in (select run_id from keyed)
  returning run_id
),
started_history as (
  insert into perdure.history (run_id, seq, last, ns, epoch, at, body, hash)
  select run_id, 1, 1, ns, own::int, at, body, hash
    from start_rows where key is null or run_id in (select run_id from keyed)
),
-- History of runs this session owns.
appended as (
  insert into perdure.history (run_id, seq, last, ns, epoch, at, body, hash)
  select u.run_id, u.seq, u.last, u.ns, u.epoch, f.at, u.body, u.hash
    from unnest(:appends.run_id::uuid[], :appends.seq::int[], :appends.last::int[], :appends.ns::int[], :appends.epoch::int[], :appends.body::bytea[], :appends.hash::bytea[])
      as u(run_id, seq, last, ns, epoch, body, hash), fence f
),
-- Runs that end: out of the hot table, into the archive.
closed as (
  delete from perdure.run_queue q
   using unnest(:closes.run_id::uuid[], :closes.status::smallint[], :closes.events::int[], :closes.error_code::text[], :closes.error::text[], :closes.successor::uuid[], :closes.head::bytea[])
           as u(run_id, status, events, error_code, error, successor, head), fence f,
         lateral (select r.ctid as place, r.owner from perdure.run_queue r where r.run_id = u.run_id offset 0) at
   where q.ctid = at.place and at.owner = f.id
  returning q.run_id, q.ns, q.workflow, q.version, q.key, q.parent_id, q.parent_seq, u.status as ended, q.created_at, f.at,
            q.epoch, u.events, u.error_code, u.error, u.successor, q.attributes, u.head
),
archived as (
  insert into perdure.run (run_id, ns, workflow, version, key, parent_id, parent_seq, status, created_at, finished_at, epoch,
                           events, error_code, error, successor, attributes, head)
  select * from closed
),
-- Runs let go: they sleep until wake_at, or are stuck with a reason.
released as (
  update perdure.run_queue q set owner = null, wake_at = u.wake_at, stuck = u.stuck, waiting_on = u.waiting_on, waits = u.waits,
         deadline_at = coalesce(u.deadline_at, q.deadline_at), events = u.events, head = u.head
    from unnest(:releases.run_id::uuid[], :releases.wake_at::timestamptz[], :releases.stuck::text[], :releases.waiting_on::text[], :releases.waits::text[], :releases.deadline_at::timestamptz[], :releases.events::int[], :releases.head::bytea[])
           as u(run_id, wake_at, stuck, waiting_on, waits, deadline_at, events, head), fence f,
         lateral (select r.ctid as place, r.owner from perdure.run_queue r where r.run_id = u.run_id offset 0) at
   where q.ctid = at.place and at.owner = f.id
),
-- Tasks that ended.
task_rows as (
  insert into perdure.task (id, ns, run_id, seq, name, queue, status, attempts, lost, epoch, scheduled_at, started_at, finished_at, error, node)
  select u.* from unnest(:tasks.id::uuid[], :tasks.ns::int[], :tasks.run_id::uuid[], :tasks.seq::int[], :tasks.name::text[], :tasks.queue::text[], :tasks.status::smallint[], :tasks.attempts::int[],
                         :tasks.lost::int[], :tasks.epoch::int[], :tasks.scheduled_at::timestamptz[], :tasks.started_at::timestamptz[], :tasks.finished_at::timestamptz[], :tasks.error::text[], :tasks.node::text[]) as u, fence
)
select exists(select from fence) as held, coalesce((select at from fence), now()) as at,
       (select coalesce(array_agg(run_id), '{}') from started) as started;

-- name: commit_batch_rest
-- The rarer parts of a commit. When there are any, it runs after commit_batch in the same transaction, and only if that one held
-- the session. It takes the fence itself, so that it writes nothing for a stale engine either.
with fence as materialized (
  select id, perdure.clock() as at from perdure.engine_session where id = :session for key share
),
-- Tasks that leave their slot or stay in it for a while. delay_us is counted from the database's clock.
queued as (
  insert into perdure.task_queue (id, ns, run_id, seq, name, queue, status, attempt, lost, run_at, owner, scheduled_at, options, input, error, trace, node, line, expires_at)
  select u.id, u.ns, u.run_id, u.seq, u.name, u.queue, u.status, u.attempt, u.lost, f.at + u.delay_us * interval '1 microsecond',
         case when u.status > 0 then :session end, u.scheduled_at, u.options, u.input, u.error, u.trace, u.node, u.line, u.expires_at
    from unnest(:queued.id::uuid[], :queued.ns::int[], :queued.run_id::uuid[], :queued.seq::int[], :queued.name::text[], :queued.queue::text[], :queued.status::smallint[], :queued.attempt::int[], :queued.lost::int[],
                :queued.delay_us::bigint[], :queued.scheduled_at::timestamptz[], :queued.options::bytea[], :queued.input::bytea[], :queued.error::text[], :queued.trace::text[], :queued.node::text[], :queued.line::uuid[],
                :queued.expires_at::timestamptz[])
      as u(id, ns, run_id, seq, name, queue, status, attempt, lost, delay_us, scheduled_at, options, input, error, trace, node, line, expires_at),
         fence f
  on conflict (id) do update
    set line = case when excluded.status = 0 then excluded.line else task_queue.line end,
        status = excluded.status, attempt = excluded.attempt, lost = excluded.lost, run_at = excluded.run_at,
        owner = excluded.owner, error = excluded.error, expires_at = excluded.expires_at, worker = null, started_at = null, beat_at = null,
        blocked = null
),
-- A claimed task of a run that lives elsewhere goes back for another attempt, if the claim still stands.
requeued as (
  update perdure.task_queue t
     set status = 0, owner = null, attempt = u.attempt, lost = u.lost, run_at = f.at + u.delay_us * interval '1 microsecond', error = u.error,
         expires_at = u.expires_at, worker = null, started_at = null, beat_at = null, blocked = null
    from unnest(:requeued.id::uuid[], :requeued.attempt::int[], :requeued.lost::int[], :requeued.delay_us::bigint[], :requeued.error::text[], :requeued.expires_at::timestamptz[])
           as u(id, attempt, lost, delay_us, error, expires_at), fence f,
         lateral (select r.ctid as place, r.owner from perdure.task_queue r where r.id = u.id offset 0) at
   where t.ctid = at.place and at.owner = f.id
),
unqueued as (
  delete from perdure.task_queue t where t.id = any(:unqueued::uuid[]) and exists(select from fence)
),
-- Results of tasks whose run lives elsewhere: only the engine that still holds the claim may report.
reported as (
  delete from perdure.task_queue t using unnest(:reports.id::uuid[], :reports.attempt::int[], :reports.body::bytea[]) as u(id, attempt, body), fence f,
         lateral (select r.ctid as place, r.owner, r.attempt from perdure.task_queue r where r.id = u.id offset 0) at
   where t.ctid = at.place and at.owner = f.id and at.attempt = u.attempt
  returning t.ns, t.run_id, u.body
),
report_rows as (
  insert into perdure.inbox (ns, run_id, body) select ns, run_id, body from reported
),
-- Facts that still wait for a run that continues go on to its successor, except those that this very commit consumes.
forwarded as (
  delete from perdure.inbox i
   using unnest(:ended.run_id::uuid[], :ended.successor::uuid[]) as u(run_id, successor), fence f,
         lateral (select r.ctid as place from perdure.inbox r where r.run_id = u.run_id offset 0) at
   where i.ctid = at.place and u.successor is not null and i.id <> all(:consumed::bigint[])
  returning i.id, i.ns, u.successor as run_id, i.body, i.stops
),
-- Facts for other runs. A run that has ended takes none; one that continued does, and upkeep forwards it to the successor. Forwarded ones come last: they are younger than what the ending run
-- hands to its successor, and ids are the order in which a run gets its mail.
posted as (
  insert into perdure.inbox (ns, run_id, body, stops)
  select m.ns, m.run_id, m.body, m.stops from (
    select q.ns, q.run_id, u.body, u.stops, 0 as line, u.n
      from unnest(:posts.run_id::uuid[], :posts.body::bytea[], :posts.stops::bool[]) with ordinality as u(run_id, body, stops, n), fence f,
           lateral (select r.ns, r.run_id from perdure.run_queue r where r.run_id = u.run_id
                    union all
                    select e.ns, e.run_id from perdure.run e where e.run_id = u.run_id and e.successor is not null offset 0) q
    union all
    select w.ns, w.run_id, w.body, w.stops, 1, w.id from forwarded w
  ) m
  order by m.line, m.n
),
consumed as (
  delete from perdure.inbox i where i.id = any(:consumed::bigint[]) and exists(select from fence)
),
-- Facts that were still waiting for runs that now end for good.
dropped as (
  delete from perdure.inbox i
   where i.run_id = any(array(select u.run_id from unnest(:ended.run_id::uuid[], :ended.successor::uuid[]) as u(run_id, successor) where u.successor is null))
     and exists(select from fence)
),
-- kind 1 and 2 bring a spec (core/approvals.py, core/named_events.py): the columns that people and events look for are taken from it.
promised as (
  insert into perdure.promise (run_id, name, ns, created_at, kind, spec, event, assignees, quorum, deadline_at, escalate_at, escalate_to)
  select u.run_id, u.name, u.ns, f.at, u.kind, u.spec, s.v->>'event',
         case when u.kind = 1 then array(select jsonb_array_elements_text(coalesce(s.v->'assignees', '[]'))) end, (s.v->>'quorum')::int,
         to_timestamp((s.v->>'deadline_us')::bigint / 1e6), to_timestamp((s.v->>'escalate_us')::bigint / 1e6),
         case when u.kind = 1 then array(select jsonb_array_elements_text(coalesce(s.v->'escalate_to', '[]'))) end
    from unnest(:promises.run_id::uuid[], :promises.name::text[], :promises.ns::int[], :promises.kind::smallint[], :promises.spec::text[]) as u(run_id, name, ns, kind, spec), fence f,
         lateral (select u.spec::jsonb as v) s
   where u.run_id <> all(:ended.run_id::uuid[])  -- what is created and gone in one commit is never there
  on conflict do nothing
),
-- An approval with assignees or a quorum that somebody who may not answer for others had resolved before it was asked: it is open.
unanswered as (
  update perdure.promise p
     set resolved_at = null, created_at = f.at, kind = 1, spec = u.spec, quorum = (s.v->>'quorum')::int,
         assignees = array(select jsonb_array_elements_text(coalesce(s.v->'assignees', '[]'))),
         deadline_at = to_timestamp((s.v->>'deadline_us')::bigint / 1e6), escalate_at = to_timestamp((s.v->>'escalate_us')::bigint / 1e6),
         escalate_to = array(select jsonb_array_elements_text(coalesce(s.v->'escalate_to', '[]')))
    from unnest(:promises.run_id::uuid[], :promises.name::text[], :promises.kind::smallint[], :promises.spec::text[]) as u(run_id, name, kind, spec), fence f,
         lateral (select u.spec::jsonb as v) s,
         lateral (select x.ctid as place, x.kind, x.sure from perdure.promise x where x.run_id = u.run_id and x.name = u.name offset 0) at
   where p.ctid = at.place and at.kind = 0 and not at.sure and u.kind = 1 and u.run_id <> all(:ended.run_id::uuid[])
     and (s.v ? 'assignees' or (s.v->>'quorum')::int > 1)
),
unpromised as (
  delete from perdure.promise p where p.run_id = any(:ended.run_id::uuid[]) and exists(select from fence)
),
unvoted as (
  delete from perdure.vote v where v.run_id = any(:ended.run_id::uuid[]) and exists(select from fence)
),
-- Not those of a run that continues: its senders still call it by the id of the first.
unkeyed as (
  delete from perdure.message_key k
   where k.run_id = any(array(select u.run_id from unnest(:ended.run_id::uuid[], :ended.successor::uuid[]) as u(run_id, successor) where u.successor is null))
     and exists(select from fence)
),
stated as (
  insert into perdure.run_state (run_id, name, ns, value)
  select u.run_id, u.name, u.ns, u.value from unnest(:states.run_id::uuid[], :states.name::text[], :states.ns::int[], :states.value::bytea[]) as u(run_id, name, ns, value), fence f
  on conflict (run_id, name) do update set value = excluded.value
),
-- Lines that something has joined. In order of their ids, so that two engines never wait for each other crosswise.
lined as (
  insert into perdure.line as l (id, ns, kind, queue, name, workflow, fair, weight, priority, needs, turn, head_at, next_at)
  select distinct on (u.id) u.id, u.ns, u.kind, u.queue, u.name, u.workflow, u.fair, u.weight, u.priority, u.needs,
         coalesce((select o.turn from perdure.line o where o.ns = u.ns and o.kind = u.kind and o.queue = u.queue and o.name = u.name
                      and o.priority = u.priority order by o.turn limit 1), 0),
         f.at, f.at + u.delay_us * interval '1 microsecond'
    from unnest(:lines.id::uuid[], :lines.ns::int[], :lines.kind::smallint[], :lines.queue::text[], :lines.name::text[], :lines.workflow::text[], :lines.fair::text[], :lines.weight::float8[], :lines.priority::smallint[],
                :lines.needs::text[], :lines.delay_us::bigint[])
           as u(id, ns, kind, queue, name, workflow, fair, weight, priority, needs, delay_us), fence f
   order by u.id, u.delay_us
  on conflict (id) do update set next_at = least(l.next_at, excluded.next_at)
),
-- Runs that stay in memory and wait: what for.
noted as (
  update perdure.run_queue q set waiting_on = u.waiting_on, waits = u.waits
    from unnest(:noted.run_id::uuid[], :noted.waiting_on::text[], :noted.waits::text[]) as u(run_id, waiting_on, waits), fence f,
         lateral (select r.ctid as place, r.owner from perdure.run_queue r where r.run_id = u.run_id offset 0) at
   where q.ctid = at.place and at.owner = f.id
),
-- Runs that were asked to stop, as their history now tells.
stopping as (
  update perdure.run_queue q set cancel_at = coalesce(q.cancel_at, f.at)
    from unnest(:stopping::uuid[]) as u(run_id), fence f,
         lateral (select r.ctid as place, r.owner from perdure.run_queue r where r.run_id = u.run_id offset 0) at
   where q.ctid = at.place and at.owner = f.id
),
-- Runs that begin with other code than they were started with.
versioned as (
  update perdure.run_queue q set version = u.version
    from unnest(:versions.run_id::uuid[], :versions.version::text[]) as u(run_id, version), fence f,
         lateral (select r.ctid as place, r.owner from perdure.run_queue r where r.run_id = u.run_id offset 0) at
   where q.ctid = at.place and at.owner = f.id
),
-- Answers to updates, for whoever asked. The first answer stands.
answered as (
  insert into perdure.update_answer (run_id, id, ns, at, value, failure)
  select u.run_id, u.id, u.ns, f.at, u.value, u.failure
    from unnest(:answers.run_id::uuid[], :answers.id::text[], :answers.ns::int[], :answers.value::bytea[], :answers.failure::bytea[]) as u(run_id, id, ns, value, failure), fence f
  on conflict (run_id, id) do update set at = excluded.at, value = excluded.value, failure = excluded.failure
    where update_answer.value is null and update_answer.failure is null
)
select exists(select from fence) as held, coalesce((select array_agg(run_id) from reported), '{}') as reported;

-- name: read_back
-- What commit_batch would have answered, had its answer not been lost. :started runs it was to start; :written.run_id and :written.seq history rows it was to write,
-- which all carry the moment of the commit.
select coalesce((select h.at from unnest(:written.run_id::uuid[], :written.seq::int[]) as u(run_id, seq), lateral (
                     select w.at from perdure.history w where w.run_id = u.run_id and w.seq = u.seq offset 0) h limit 1),
                perdure.clock()) as at,
       coalesce((select array_agg(r.run_id) from (
                   select q.run_id from perdure.run_queue q where q.run_id = any(:started::uuid[])
                   union all
                   select e.run_id from unnest(:started::uuid[]) as u(run_id), lateral (
                     select w.run_id from perdure.run w where w.run_id = u.run_id offset 0) e) r), '{}') as started;

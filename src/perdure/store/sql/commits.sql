-- Everything an engine writes about its runs, in one transaction of one or two statements.
--
-- A parameter `:tasks.queue` is the column `queue` of the rows in engine/commits/rows.py's Batch.tasks. Rows of hot tables are
-- reached from the arrays through `lateral (... offset 0)` and then by ctid. That fixes the join order: these tables are empty one
-- moment and full the next, and a plan made for the one must not be run on the other. The rows belong to the session, so no other
-- transaction moves them meanwhile. But heartbeats (update_attempts) move rows of task_queue, and a row that has moved while the commit
-- waited for it is not found by its ctid: these are reached by id. `= any(array)` and `coalesce` keep the plan to the index on id, for a
-- session may own many rows.

-- name: commit_batch
-- seals: closes.error error, releases.stuck stuck, tasks.error error, tasks.traceback error
-- Locks: own session row FOR KEY SHARE (first: every other part selects from `fence`), then the rows it names.
-- No fence row: nothing is written and `held` is false.
with fence as materialized (
  select id, perdure.clock() as at from perdure.engine_session where id = :session for key share
),
commit_number as (
  insert into perdure.commit_log (session_id, n) select id, :number::bigint from fence
),
-- Starts. A start under a key that is taken, or whose caller has given up, writes nothing; the caller learns it from `started`.
start_rows as materialized (
  select u.*, f.at
    from unnest(:starts.run_id::uuid[], :starts.ns::int[], :starts.workflow::text[], :starts.version::text[], :starts.kind::text[],
                :starts.key::text[], :starts.input_hash::bytea[], :starts.parent_id::uuid[], :starts.parent_seq::int[],
                :starts.own::bool[], :starts.body::bytea[], :starts.attributes::text[], :starts.group_id::uuid[],
                :starts.deadline_at::timestamptz[], :starts.hash::bytea[], :starts.start_at::timestamptz[], :starts.expires_at::timestamptz[],
                :starts.pin::text[], :starts.give_up_at::timestamptz[])
      as u(run_id, ns, workflow, version, kind, key, input_hash, parent_id, parent_seq, own, body, attributes, group_id, deadline_at, hash,
           start_at, expires_at, pin, give_up_at),
         fence f
   where u.give_up_at is null or u.give_up_at > f.at
),
new_keys as (
  insert into perdure.run_key (ns, key, run_id, input_hash)
  select ns, key, run_id, input_hash from start_rows where key is not null and input_hash <> ''
  on conflict do nothing
  returning run_id
),
started as (
  insert into perdure.run_queue (run_id, ns, workflow, version, kind, key, parent_id, parent_seq, status, created_at, wake_at, owner,
                                 epoch, attributes, group_id, deadline_at, start_at, expires_at, pin)
  select run_id, ns, workflow, version, kind, key, parent_id, parent_seq, case when own then 'running' else 'pending' end, at,
         case when group_id is null then coalesce(start_at, at) else 'infinity' end, case when own then :session end, own::int, attributes::jsonb, group_id,
         -- Written out: PostgreSQL plans a function of SQL anew in every statement that calls it.
         coalesce(deadline_at, case when kind = 'flow' then
           coalesce(start_at, at) + (select v.timeout_us from perdure.workflow_version v where v.ns = s.ns and v.workflow = s.workflow and v.version = s.version)
                * interval '1 microsecond' end),
         start_at, expires_at, pin
    from start_rows s where key is null or input_hash = '' or run_id in (select run_id from new_keys)
  returning run_id
),
first_events as (
  insert into perdure.history (run_id, seq, last, ns, epoch, at, body, hash)
  select run_id, 1, 1, ns, own::int, at, body, hash
    from start_rows where key is null or input_hash = '' or run_id in (select run_id from new_keys)
),
-- Events of runs that the session owns.
appended_events as (
  insert into perdure.history (run_id, seq, last, ns, epoch, at, body, hash)
  select u.run_id, u.seq, u.last, u.ns, u.epoch, f.at, u.body, u.hash
    from unnest(:appends.run_id::uuid[], :appends.seq::int[], :appends.last::int[], :appends.ns::int[], :appends.epoch::int[],
                :appends.body::bytea[], :appends.hash::bytea[])
      as u(run_id, seq, last, ns, epoch, body, hash), fence f
),
-- Runs that end move to the archive.
closed_runs as (
  delete from perdure.run_queue q
   using unnest(:closes.run_id::uuid[], :closes.status::text[], :closes.events::int[], :closes.error_code::text[], :closes.error::text[],
                :closes.successor::uuid[], :closes.head::bytea[], :closes.has_messages::bool[])
           as u(run_id, status, events, error_code, error, successor, head, has_messages), fence f,
         lateral (select r.ctid as place, r.owner from perdure.run_queue r where r.run_id = u.run_id offset 0) at
   where q.ctid = at.place and at.owner = f.id
  returning q.run_id, q.ns, q.workflow, q.version, q.kind, q.key, q.parent_id, q.parent_seq, u.status as ended, q.created_at, f.at,
            q.epoch, u.events, u.error_code, u.error, u.successor, q.attributes, u.head, u.has_messages
),
archived_runs as (
  insert into perdure.run (run_id, ns, workflow, version, kind, key, parent_id, parent_seq, status, created_at, finished_at, epoch,
                           events, error_code, error, successor, attributes, head)
  select run_id, ns, workflow, version, kind, key, parent_id, parent_seq, ended, created_at, at, epoch, events, error_code, error,
         successor, attributes, head from closed_runs
),
-- Runs that leave memory sleep until wake_at, or are stuck with a reason.
released_runs as (
  update perdure.run_queue q set owner = null, wake_at = u.wake_at, stuck = u.stuck, waiting_on = u.waiting_on,
         wait_reasons = u.wait_reasons, deadline_at = coalesce(u.deadline_at, q.deadline_at), events = u.events, head = u.head
    from unnest(:releases.run_id::uuid[], :releases.wake_at::timestamptz[], :releases.stuck::text[], :releases.waiting_on::text[],
                :releases.wait_reasons::text[], :releases.deadline_at::timestamptz[], :releases.events::int[], :releases.head::bytea[])
           as u(run_id, wake_at, stuck, waiting_on, wait_reasons, deadline_at, events, head), fence f,
         lateral (select r.ctid as place, r.owner from perdure.run_queue r where r.run_id = u.run_id offset 0) at
   where q.ctid = at.place and at.owner = f.id
),
ended_tasks as (
  insert into perdure.task (id, ns, run_id, seq, name, queue, status, attempts, lost, epoch, scheduled_at, started_at, finished_at,
                            worker, cpu_us, error, error_code, error_type, traceback, node)
  select u.*
    from unnest(:tasks.id::uuid[], :tasks.ns::int[], :tasks.run_id::uuid[], :tasks.seq::int[], :tasks.name::text[], :tasks.queue::text[],
                :tasks.status::text[], :tasks.attempts::int[], :tasks.lost::int[], :tasks.epoch::int[], :tasks.scheduled_at::timestamptz[],
                :tasks.started_at::timestamptz[], :tasks.finished_at::timestamptz[], :tasks.worker::text[], :tasks.cpu_us::bigint[],
                :tasks.error::text[], :tasks.error_code::text[], :tasks.error_type::text[], :tasks.traceback::text[], :tasks.node::text[]) as u, fence
),
-- Of runs with many tasks, counted by node.
node_counts as (
  insert into perdure.node_count as c (run_id, node, what, bin, ns, n)
  select u.* from unnest(:counts.run_id::uuid[], :counts.node::text[], :counts.what::text[], :counts.bin::int[], :counts.ns::int[], :counts.n::bigint[]) as u, fence
  on conflict (run_id, node, what, bin) do update set n = c.n + excluded.n
)
select exists(select from fence) as held, coalesce((select at from fence), now()) as at,
       (select coalesce(array_agg(run_id), '{}') from started) as started,
       (select perdure.count_runs(array_agg(ns), array_agg(workflow), array_agg(ended), array_agg(created_at), array_agg(at), 1)
          from closed_runs having count(*) > 0),
       -- The rows are locked by now. An end whose engine knows of messages is examined by commit_batch_rest, with what it consumes.
       (select perdure.refuse_ends(perdure.find_unread(array_agg(run_id))) from closed_runs where not has_messages having count(*) > 0),
       -- Notifications and hooks. Without a rule and without a hook this reads two empty indexes; the conditions on id and ns hold always, and
       -- lead to them.
       (select perdure.note_ends(array_agg(run_id), array_agg(ns), array_agg(workflow), array_agg(version), array_agg(key), array_agg(ended),
                                 array_agg(created_at), max(at), array_agg(events), array_agg(error_code), array_agg(error), array_agg(successor))
          from closed_runs
         where exists(select from perdure.notification_rule where id > 0)
            or exists(select from perdure.workflow_version where hooks is not null and ns > 0)
        having count(*) > 0);

-- name: commit_attributes
-- Search attributes that runs have changed. It runs before commit_batch, in the same transaction: a run that ends takes its row along
-- to the archive, and one that is released has no owner any more. Locks: own session row FOR KEY SHARE, then rows of run_queue by id.
with fence as materialized (
  select id from perdure.engine_session where id = :session for key share
)
update perdure.run_queue q set attributes = u.attributes::jsonb
  from unnest(:attributes.run_id::uuid[], :attributes.attributes::text[]) as u(run_id, attributes), fence f
 where q.run_id = u.run_id and q.run_id = any(:attributes.run_id::uuid[]) and coalesce(q.owner, 0) = f.id;

-- name: commit_batch_rest
-- seals: queued.options task_options, queued.input task_input, queued.error error, requeued.error error, requeued.traceback error
-- seals: attempts.error error, attempts.traceback error, reports.body message, messages.body message, promises.spec spec
-- seals: states.value state, answers.value update_value, answers.failure update_failure
-- The rarer parts of a commit. It runs after commit_batch, in the same transaction, if there is anything to write and the session
-- was held. It takes the fence again, so that it writes nothing for a stale engine either.
with fence as materialized (
  select id, perdure.clock() as at from perdure.engine_session where id = :session for key share
),
-- Tasks that wait for an engine or run for a while. delay_us is counted from the database's clock.
queued_tasks as (
  insert into perdure.task_queue (id, ns, run_id, seq, name, queue, status, attempt, lost, run_at, owner, scheduled_at, options, input,
                                  error, trace, node, group_id, start_deadline_at, started_at)
  select u.id, u.ns, u.run_id, u.seq, u.name, u.queue, u.status, u.attempt, u.lost, f.at + u.delay_us * interval '1 microsecond',
         case when u.status <> 'pending' then :session end, u.scheduled_at, u.options, u.input, u.error, u.trace, u.node, u.group_id,
         u.start_deadline_at, u.started_at
    from unnest(:queued.id::uuid[], :queued.ns::int[], :queued.run_id::uuid[], :queued.seq::int[], :queued.name::text[],
                :queued.queue::text[], :queued.status::text[], :queued.attempt::int[], :queued.lost::int[], :queued.delay_us::bigint[],
                :queued.scheduled_at::timestamptz[], :queued.options::bytea[], :queued.input::bytea[], :queued.error::text[],
                :queued.trace::text[], :queued.node::text[], :queued.group_id::uuid[], :queued.start_deadline_at::timestamptz[],
                :queued.started_at::timestamptz[])
      as u(id, ns, run_id, seq, name, queue, status, attempt, lost, delay_us, scheduled_at, options, input, error, trace, node, group_id,
           start_deadline_at, started_at), fence f
  on conflict (id) do update
    set group_id = case when excluded.status = 'pending' then excluded.group_id else task_queue.group_id end,
        status = excluded.status, attempt = excluded.attempt, lost = excluded.lost, run_at = excluded.run_at,
        owner = excluded.owner, error = excluded.error, start_deadline_at = excluded.start_deadline_at, worker = null,
        started_at = excluded.started_at, beat_at = null, blocked = null
),
-- A claimed task of a run that another engine owns goes back for another attempt, if the claim of that very attempt still stands.
requeued_tasks as (
  update perdure.task_queue t
     set status = 'pending', owner = null, attempt = u.attempt, lost = u.lost, run_at = f.at + u.delay_us * interval '1 microsecond',
         error = u.error, start_deadline_at = u.start_deadline_at, worker = null, started_at = null, beat_at = null, blocked = null
    from unnest(:requeued.id::uuid[], :requeued.attempt::int[], :requeued.lost::int[], :requeued.delay_us::bigint[],
                :requeued.start_deadline_at::timestamptz[], :requeued.ended::int[], :requeued.outcome::text[],
                :requeued.started_at::timestamptz[], :requeued.finished_at::timestamptz[], :requeued.worker::text[],
                :requeued.cpu_us::bigint[], :requeued.error::text[], :requeued.error_code::text[], :requeued.error_type::text[],
                :requeued.traceback::text[], :requeued.run_id::uuid[])
           as u(id, attempt, lost, delay_us, start_deadline_at, ended, outcome, started_at, finished_at, worker, cpu_us, error, error_code,
                error_type, traceback, run_id), fence f
   where t.id = u.id and t.id = any(:requeued.id::uuid[]) and coalesce(t.owner, 0) = f.id and t.attempt = u.ended
  returning t.id, t.ns, t.run_id, t.seq, t.name, t.node, t.attempt, u.ended, u.outcome, u.started_at, u.finished_at, u.worker, u.cpu_us,
            u.error, u.error_code, u.error_type, u.traceback
),
-- A task that ended otherwise makes an attempt void that another engine has under way.
dequeued_tasks as (
  delete from perdure.task_queue t
   using unnest(:dequeued.id::uuid[], :dequeued.attempt::int[]) as u(id, attempt), fence f
   where t.id = u.id and t.id = any(:dequeued.id::uuid[])
  returning t.id, t.ns, t.run_id, t.seq, t.name, t.node, t.attempt, t.started_at, t.worker, f.at,
            t.owner is not null and t.attempt <> u.attempt as is_void
),
-- Attempts that were not the last of their task. Of one whose run is in no memory here the run's row says the epoch.
ended_attempts as (
  insert into perdure.task_attempt (id, epoch, attempt, ns, run_id, seq, name, node, outcome, started_at, finished_at, worker, cpu_us, error,
                                    error_code, error_type, traceback)
  select u.* from unnest(:attempts.id::uuid[], :attempts.epoch::int[], :attempts.attempt::int[], :attempts.ns::int[], :attempts.run_id::uuid[],
                :attempts.seq::int[], :attempts.name::text[], :attempts.node::text[], :attempts.outcome::text[],
                :attempts.started_at::timestamptz[], :attempts.finished_at::timestamptz[], :attempts.worker::text[],
                :attempts.cpu_us::bigint[], :attempts.error::text[], :attempts.error_code::text[], :attempts.error_type::text[],
                :attempts.traceback::text[]) as u, fence
  union all
  select t.id, q.epoch, t.ended, t.ns, t.run_id, t.seq, t.name, t.node, t.outcome, t.started_at, t.finished_at, t.worker, t.cpu_us, t.error,
         t.error_code, t.error_type, t.traceback
    from requeued_tasks t cross join lateral (select r.epoch from perdure.run_queue r where r.run_id = t.run_id offset 0) q
   where t.ended <> t.attempt
  union all
  select t.id, coalesce(q.epoch, e.epoch, 0), t.attempt, t.ns, t.run_id, t.seq, t.name, t.node, 'cancelled', t.started_at, t.at, t.worker, null,
         null, null, null, null
    from dequeued_tasks t
    left join lateral (select r.epoch from perdure.run_queue r where r.run_id = t.run_id offset 0) q on true
    left join lateral (select r.epoch from perdure.run r where r.run_id = t.run_id and q.epoch is null offset 0) e on true
   where t.is_void
  on conflict do nothing
),
-- An attempt that counted as lost, and whose worker has brought its result since, has the row of its task.
recovered_attempts as (
  delete from perdure.task_attempt a
   using unnest(:recovered.id::uuid[], :recovered.attempt::int[], :recovered.since::timestamptz[]) as u(id, attempt, since), fence
   where a.id = u.id and a.id = any(:recovered.id::uuid[]) and a.attempt = u.attempt and a.outcome = 'lost' and a.finished_at > u.since
),
-- Results of tasks whose run another engine owns: only the engine that still holds the claim may report.
reported_tasks as (
  delete from perdure.task_queue t
   using unnest(:reports.id::uuid[], :reports.attempt::int[], :reports.body::bytea[]) as u(id, attempt, body), fence f
   where t.id = u.id and t.id = any(:reports.id::uuid[]) and coalesce(t.owner, 0) = f.id and t.attempt = u.attempt
  returning t.ns, t.run_id, u.body
),
report_messages as (
  insert into perdure.inbox (ns, run_id, body, kind) select ns, run_id, body, 'task' from reported_tasks
),
-- Messages of runs that end, except those that this very commit consumes. `fates` is the table of core/message_life.py.
ended_rows as materialized (
  select u.* from unnest(:ended.run_id::uuid[], :ended.ns::int[], :ended.ending::text[], :ended.gives_way::bool[], :ended.successor::uuid[],
                         :ended.first::uuid[], :ended.heir::uuid[])
                    as u(run_id, ns, ending, gives_way, successor, first, heir), fence
),
left_messages as materialized (
  select i.id, i.ns, i.run_id, i.kind, i.name, i.body, i.at, u.ending, u.successor,
         case when f.fate = 'decide' and not u.gives_way then case when u.heir is not null and i.kind = 'signal' then 'forward' else 'aside' end
              else f.fate end as fate
    from (select e.run_id, e.ending, e.gives_way, e.heir, coalesce(e.successor, e.heir) as successor from ended_rows e) u
   cross join lateral (select r.* from perdure.inbox r where r.run_id = u.run_id offset 0) i
    join unnest(:fates.ending::text[], :fates.kind::text[], :fates.fate::text[]) as f(ending, kind, fate) on f.ending = u.ending and f.kind = i.kind
   where i.id <> all(:consumed::bigint[])
),
taken_messages as (
  delete from perdure.inbox i using left_messages m where i.id = m.id and i.run_id = m.run_id and m.fate <> 'decide'
),
set_aside as (
  insert into perdure.set_aside_message (id, ns, run_id, kind, name, body, at, reason)
  select m.id, m.ns, m.run_id, m.kind, m.name, m.body, m.at, m.ending from left_messages m where m.fate = 'aside'
),
-- Messages for other runs. A run that has ended takes none; one that continued does, and upkeep forwards them to the successor.
-- Forwarded messages come last: they are younger than what the ending run hands to its successor, and a run receives its messages
-- in the order of their ids.
sent as (
  insert into perdure.inbox (ns, run_id, body, kind, name)
  select m.ns, m.run_id, m.body, m.kind, m.name from (
    select q.ns, q.run_id, u.body, u.kind, u.name, 0 as part, u.n
      from unnest(:messages.run_id::uuid[], :messages.body::bytea[], :messages.kind::text[], :messages.name::text[]) with ordinality
             as u(run_id, body, kind, name, n), fence f,
           lateral (select r.ns, r.run_id from perdure.run_queue r where r.run_id = u.run_id
                    union all
                    select e.ns, e.run_id from perdure.run e where e.run_id = u.run_id and e.successor is not null offset 0) q
    union all
    select w.ns, w.successor, w.body, w.kind, w.name, 1, w.id from left_messages w where w.fate = 'forward'
  ) m
  order by m.part, m.n
),
consumed as (
  delete from perdure.inbox i where i.id = any(:consumed::bigint[]) and exists(select from fence)
),
-- The key of a chain names its last run, and so does the id of its first.
moved_keys as (
  update perdure.run_key k set run_id = u.heir
    from ended_rows u
   where u.heir is not null and k.run_id = u.run_id and k.run_id = any(:ended.run_id::uuid[])
),
chains as (
  insert into perdure.run_chain (run_id, ns, head)
  select u.first, u.ns, u.successor
    from ended_rows u where u.successor is not null
  on conflict (run_id) do update set head = excluded.head
),
-- A value that the ending run did not take goes to its successor, and so does its row: the first value stands.
handed_on as materialized (
  select u.run_id, m.run_id as successor, m.name
    from unnest(:messages.run_id::uuid[], :messages.kind::text[], :messages.name::text[]) as m(run_id, kind, name)
    join ended_rows u on u.successor = m.run_id
   where m.kind = 'promise'
  union
  select m.run_id, m.successor, m.name from left_messages m where m.kind = 'promise' and m.fate = 'forward'
),
moved_promises as (
  update perdure.promise p set run_id = h.successor, asked = false
    from handed_on h
   where p.run_id = h.run_id and p.run_id = any(:ended.run_id::uuid[]) and p.name = h.name and p.kind = 'promise' and p.resolved_at is not null
),
-- A failed run may be retried: what it asked, and what was answered, is kept for that.
sleeping_promises as (
  update perdure.promise p set asked = false
    from ended_rows u
   where u.ending = 'failed' and p.run_id = u.run_id and p.run_id = any(:ended.run_id::uuid[]) and p.asked and p.resolved_at is null
),
ended_for_good as materialized (
  select coalesce(array_agg(u.run_id), '{}') as ids
    from ended_rows u where u.ending <> 'failed'
),
deleted_promises as (
  delete from perdure.promise p where p.run_id = any((select ids from ended_for_good)::uuid[])
     and not (p.kind = 'promise' and p.resolved_at is not null and exists (select from handed_on h where h.run_id = p.run_id and h.name = p.name))
),
deleted_votes as (
  delete from perdure.vote v where v.run_id = any((select ids from ended_for_good)::uuid[])
),
-- The keys of messages belong to the first run of a chain, and stay while it continues. They go along to the next run under the run's key,
-- which has its unread signals. Those of webhooks stay, too: a provider that lost the answer sends again, also when the run has ended.
moved_message_keys as (
  update perdure.message_key k set run_id = u.heir
    from ended_rows u
   where u.ending = 'success' and u.heir is not null and k.run_id = u.first and k.run_id = any(:ended.first::uuid[])
),
deleted_message_keys as (
  delete from perdure.message_key k
   where k.run_id = any(array(select u.run_id from ended_rows u where u.ending in ('success', 'cancelled') and u.heir is null))
     and k.key not like 'hook:%'
),
-- Promises that runs ask for, without those of runs that this commit ends. The spec of an approval or of an event (core/approvals.py,
-- core/named_events.py) fills the columns that lists and events look for.
promise_rows as materialized (
  select u.*, f.at, s.spec_json->>'event' as event, (s.spec_json->>'quorum')::int as quorum, s.spec_json ? 'assignees' as is_assigned,
         case when u.kind = 'approval' then array(select jsonb_array_elements_text(coalesce(s.spec_json->'assignees', '[]'))) end as assignees,
         case when u.kind = 'approval' then array(select jsonb_array_elements_text(coalesce(s.spec_json->'escalate_to', '[]'))) end as escalate_to,
         to_timestamp((s.spec_json->>'deadline_us')::bigint / 1e6) as deadline_at,
         to_timestamp((s.spec_json->>'escalate_us')::bigint / 1e6) as escalate_at
    from unnest(:promises.run_id::uuid[], :promises.name::text[], :promises.ns::int[], :promises.kind::text[], :promises.spec::text[],
                :promises.question::bytea[], :promises.is_resolved::bool[])
           as u(run_id, name, ns, kind, spec, question, is_resolved), fence f,
         lateral (select u.spec::jsonb as spec_json) s
   where u.run_id <> all(:ended.run_id::uuid[])
),
-- A row of that name is of a question that was asked before a retry: the same one, whose votes, delegations and answer still count, or
-- another one, whose place is taken. Or it is a value that came before the question: it stands, unless the question is for people whom
-- the sender of the value may not answer for.
new_promises as (
  insert into perdure.promise as p (run_id, name, ns, created_at, kind, spec, event, assignees, quorum, deadline_at, escalate_at, escalate_to,
                                    question, resolved_at)
  select run_id, name, ns, at, kind, spec, event, assignees, quorum, deadline_at, escalate_at, escalate_to, question, case when is_resolved then at end
    from promise_rows
  on conflict (run_id, name) do update
    set asked = true, event_id = case when p.question = excluded.question then p.event_id end, kind = excluded.kind, spec = excluded.spec, event = excluded.event, quorum = excluded.quorum, question = excluded.question,
        deadline_at = excluded.deadline_at, escalate_at = excluded.escalate_at,
        assignees = case when p.question = excluded.question and p.kind = excluded.kind then p.assignees else excluded.assignees end,
        escalate_to = case when p.question = excluded.question and p.kind = excluded.kind then p.escalate_to else excluded.escalate_to end,
        created_at = case when p.question = excluded.question and p.kind = excluded.kind then p.created_at else excluded.created_at end,
        resolved_at = case when p.question = excluded.question and p.kind = excluded.kind then coalesce(p.resolved_at, excluded.resolved_at)
                           when p.kind <> 'promise' then excluded.resolved_at
                           when p.authorized or excluded.kind <> 'approval' or (cardinality(excluded.assignees) = 0 and excluded.quorum = 1)
                             then coalesce(p.resolved_at, excluded.resolved_at)
                           else excluded.resolved_at end
),
outdated_votes as (
  delete from perdure.vote v
   using promise_rows u, lateral (select x.question from perdure.promise x where x.run_id = u.run_id and x.name = u.name offset 0) at
   where v.run_id = u.run_id and v.run_id = any(:promises.run_id::uuid[]) and v.name = u.name and at.question <> u.question
),
states as (
  insert into perdure.run_state (run_id, name, ns, value)
  select u.run_id, u.name, u.ns, u.value
    from unnest(:states.run_id::uuid[], :states.name::text[], :states.ns::int[], :states.value::bytea[]) as u(run_id, name, ns, value), fence f
  on conflict (run_id, name) do update set value = excluded.value
),
-- Flow-control groups that got members, in the order of their ids, so that two engines never wait for each other crosswise. A new
-- group begins at the smallest turn of its neighbours.
groups as (
  insert into perdure.flow_control_group as g (id, ns, kind, queue, name, workflow, fair, weight, priority, needs, turn, head_at, next_at)
  select distinct on (u.id) u.id, u.ns, u.kind, u.queue, u.name, u.workflow, u.fair, u.weight, u.priority, u.needs,
         coalesce((select o.turn from perdure.flow_control_group o
                    where o.ns = u.ns and o.kind = u.kind and o.queue = u.queue and o.name = u.name and o.priority = u.priority
                    order by o.turn limit 1), 0),
         f.at, f.at + u.delay_us * interval '1 microsecond'
    from unnest(:groups.id::uuid[], :groups.ns::int[], :groups.kind::text[], :groups.queue::text[], :groups.name::text[],
                :groups.workflow::text[], :groups.fair::text[], :groups.weight::float8[], :groups.priority::smallint[],
                :groups.needs::text[], :groups.delay_us::bigint[])
           as u(id, ns, kind, queue, name, workflow, fair, weight, priority, needs, delay_us), fence f
   order by u.id, u.delay_us
  on conflict (id) do update set next_at = least(g.next_at, excluded.next_at)
),
-- Changes of a run's row beside its end or release, all in one update: of two updates of a row in one statement only one takes
-- effect. A run that commit_batch has just released is still locked by this transaction.
changed_runs as (
  update perdure.run_queue q
     set waiting_on = case when u.has_waits then u.waiting_on else q.waiting_on end,
         wait_reasons = case when u.has_waits then u.wait_reasons else q.wait_reasons end,
         cancel_at = case when u.is_cancelled then coalesce(q.cancel_at, f.at) else q.cancel_at end,
         takeovers = case when u.is_settled then 0 else q.takeovers end,
         suspect = q.suspect and not u.is_settled,
         version = coalesce(u.version, q.version),
         pin = coalesce(u.pin, q.pin),
         paused_at = case when u.paused_by is not null then f.at else q.paused_at end,
         paused_by = coalesce(u.paused_by, q.paused_by),
         pause_reason = coalesce(u.pause_reason, q.pause_reason),
         full_signals = coalesce(u.full_signals, q.full_signals)
    from unnest(:changes.run_id::uuid[], :changes.is_released::bool[], :changes.has_waits::bool[], :changes.waiting_on::text[],
                :changes.wait_reasons::text[], :changes.is_cancelled::bool[], :changes.is_settled::bool[], :changes.version::text[],
                :changes.paused_by::text[], :changes.pause_reason::text[], :changes.pin::text[], :changes.full_signals::text[])
           as u(run_id, is_released, has_waits, waiting_on, wait_reasons, is_cancelled, is_settled, version, paused_by, pause_reason, pin,
                full_signals),
         fence f,
         lateral (select r.ctid as place, r.owner from perdure.run_queue r where r.run_id = u.run_id offset 0) at
   where q.ctid = at.place and (at.owner = f.id or u.is_released)
),
-- Stored content that events, messages and starts of this commit refer to. KEY SHARE keeps upkeep from deleting it meanwhile. If
-- `kept` is less than the uses, some content is gone: the caller looks again (lock_used_payloads) and gives the commit up.
kept_payloads as (
  select k.sha256
    from unnest(:uses.run_id::uuid[], :uses.ns::int[], :uses.store::text[], :uses.sha256::bytea[]) as u(run_id, ns, store, sha256), fence f,
         lateral (select p.sha256 from perdure.payload p where p.ns = u.ns and p.store = u.store and p.sha256 = u.sha256
                    and (p.is_complete or p.store <> '') for key share) k
),
uses as (
  insert into perdure.payload_use (run_id, ns, store, sha256)
  select u.run_id, u.ns, u.store, u.sha256
    from unnest(:uses.run_id::uuid[], :uses.ns::int[], :uses.store::text[], :uses.sha256::bytea[]) as u(run_id, ns, store, sha256), fence f
  on conflict do nothing
),
-- Answers to updates. The first answer stands.
answers as (
  insert into perdure.update_answer (run_id, id, ns, at, value, failure)
  select u.run_id, u.id, u.ns, f.at, u.value, u.failure
    from unnest(:answers.run_id::uuid[], :answers.id::text[], :answers.ns::int[], :answers.value::bytea[], :answers.failure::bytea[])
           as u(run_id, id, ns, value, failure), fence f
  on conflict (run_id, id) do update set at = excluded.at, value = excluded.value, failure = excluded.failure
    where update_answer.value is null and update_answer.failure is null
)
select exists(select from fence) as held, coalesce((select array_agg(run_id) from reported_tasks), '{}') as reported,
       (select count(*) from kept_payloads) as kept,
       -- Ends that have to give way: the caller takes the transaction back.
       coalesce((select array_agg(distinct m.run_id) from left_messages m where m.fate = 'decide'), '{}') as unread;

-- name: read_commit
-- What commit_batch would have answered, had its answer not been lost. `started` are runs it was to start, `written` history rows
-- it was to write, which all carry the moment of the commit.
select coalesce((select h.at from unnest(:written.run_id::uuid[], :written.seq::int[]) as u(run_id, seq), lateral (
                     select w.at from perdure.history w where w.run_id = u.run_id and w.seq = u.seq offset 0) h limit 1),
                perdure.clock()) as at,
       coalesce((select array_agg(r.run_id) from (
                   select q.run_id from perdure.run_queue q where q.run_id = any(:started::uuid[])
                   union all
                   select e.run_id from unnest(:started::uuid[]) as u(run_id), lateral (
                     select w.run_id from perdure.run w where w.run_id = u.run_id offset 0) e) r), '{}') as started;

-- Everything an engine writes about its runs, in one statement, one round trip, one transaction.
--
-- Rows of hot tables are reached from the arrays through `lateral (... offset 0)` and then by ctid. That fixes the join order: these
-- tables are empty one moment and full the next, and a plan made for the one must not be run on the other. The rows are the
-- session's own, so nobody moves them meanwhile.

-- name: commit_batch
-- $1 session, $2 commit number. Each following group is a set of equally long arrays, one element per row.
-- Locks: own session row FOR KEY SHARE (first: every other part selects from `fence`), then the rows it names.
-- No fence row: nothing is written and `held` is false.
with fence as materialized (
  select id, perdure.clock() as at from perdure.engine_session where id = $1 for key share
),
mark as (
  insert into perdure.commit_log (session_id, n) select id, $2::bigint from fence
),
-- Starts. A start under a key that is taken writes nothing; the caller learns it from `started`.
start_rows as materialized (
  select u.*, f.at
    from unnest($3::uuid[], $4::int[], $5::text[], $6::text[], $7::text[], $8::bytea[], $9::uuid[], $10::int[],
                $11::bool[], $12::bytea[], $43::text[])
      as u(run_id, ns, workflow, version, key, input_hash, parent_id, parent_seq, own, body, attributes), fence f
),
keyed as (
  insert into perdure.run_key (ns, key, run_id, input_hash)
  select ns, key, run_id, input_hash from start_rows where key is not null
  on conflict do nothing
  returning run_id
),
started as (
  insert into perdure.run_queue (run_id, ns, workflow, version, key, parent_id, parent_seq, status, created_at, wake_at, owner, epoch,
                                 attributes)
  select run_id, ns, workflow, version, key, parent_id, parent_seq, own::int, at, at,
         case when own then $1 end, own::int, attributes::jsonb
    from start_rows where key is null or run_id in (select run_id from keyed)
  returning run_id
),
started_history as (
  insert into perdure.history (run_id, seq, last, ns, epoch, at, body)
  select run_id, 1, 1, ns, own::int, at, body
    from start_rows where key is null or run_id in (select run_id from keyed)
),
-- History of runs this session owns.
appended as (
  insert into perdure.history (run_id, seq, last, ns, epoch, at, body)
  select u.run_id, u.seq, u.last, u.ns, u.epoch, f.at, u.body
    from unnest($13::uuid[], $14::int[], $15::int[], $16::int[], $17::int[], $18::bytea[])
      as u(run_id, seq, last, ns, epoch, body), fence f
),
-- Runs that end: out of the hot table, into the archive.
closed as (
  delete from perdure.run_queue q
   using unnest($19::uuid[], $20::smallint[], $21::int[], $22::text[], $23::text[], $24::uuid[])
           as u(run_id, status, events, error_code, error, successor), fence f,
         lateral (select r.ctid as place, r.owner from perdure.run_queue r where r.run_id = u.run_id offset 0) at
   where q.ctid = at.place and at.owner = f.id
  returning q.run_id, q.ns, q.workflow, q.version, q.key, q.parent_id, q.parent_seq, u.status as ended, q.created_at, f.at,
            q.epoch, u.events, u.error_code, u.error, u.successor, q.attributes
),
archived as (
  insert into perdure.run (run_id, ns, workflow, version, key, parent_id, parent_seq, status, created_at, finished_at, epoch,
                           events, error_code, error, successor, attributes)
  select * from closed
),
-- Runs let go: they sleep until wake_at, or are stuck with a reason.
released as (
  update perdure.run_queue q set owner = null, wake_at = u.wake_at, stuck = u.stuck
    from unnest($25::uuid[], $26::timestamptz[], $27::text[]) as u(run_id, wake_at, stuck), fence f,
         lateral (select r.ctid as place, r.owner from perdure.run_queue r where r.run_id = u.run_id offset 0) at
   where q.ctid = at.place and at.owner = f.id
),
-- Tasks that ended.
task_rows as (
  insert into perdure.task (id, ns, run_id, seq, name, queue, status, attempts, lost, epoch, scheduled_at, started_at, finished_at, error, node)
  select u.* from unnest($28::uuid[], $29::int[], $30::uuid[], $31::int[], $32::text[], $33::text[], $34::smallint[], $35::int[],
                         $36::int[], $37::int[], $38::timestamptz[], $39::timestamptz[], $40::timestamptz[], $41::text[], $42::text[]) as u, fence
)
select exists(select from fence) as held, coalesce((select at from fence), now()) as at,
       (select coalesce(array_agg(run_id), '{}') from started) as started;

-- name: commit_batch_rest
-- The rarer parts of a commit, run in the same transaction before commit_batch when there are any. It takes the fence itself,
-- so that it writes nothing for a stale engine either.
with fence as materialized (
  select id, perdure.clock() as at from perdure.engine_session where id = $1 for key share
),
-- Tasks that leave their slot or stay in it for a while. delay_us is counted from the database's clock.
queued as (
  insert into perdure.task_queue (id, ns, run_id, seq, name, queue, status, attempt, lost, run_at, owner, scheduled_at, options, input, error, trace, node)
  select u.id, u.ns, u.run_id, u.seq, u.name, u.queue, u.status, u.attempt, u.lost, f.at + u.delay_us * interval '1 microsecond',
         case when u.status > 0 then $1 end, u.scheduled_at, u.options, u.input, u.error, u.trace, u.node
    from unnest($2::uuid[], $3::int[], $4::uuid[], $5::int[], $6::text[], $7::text[], $8::smallint[], $9::int[], $10::int[],
                $11::bigint[], $12::timestamptz[], $13::bytea[], $14::bytea[], $15::text[], $16::text[], $17::text[])
      as u(id, ns, run_id, seq, name, queue, status, attempt, lost, delay_us, scheduled_at, options, input, error, trace, node), fence f
  on conflict (id) do update
    set status = excluded.status, attempt = excluded.attempt, lost = excluded.lost, run_at = excluded.run_at,
        owner = excluded.owner, error = excluded.error, worker = null, started_at = null, beat_at = null, blocked = null
),
-- A claimed task of a run that lives elsewhere goes back for another attempt, if the claim still stands.
requeued as (
  update perdure.task_queue t
     set status = 0, owner = null, attempt = u.attempt, lost = u.lost, run_at = f.at + u.delay_us * interval '1 microsecond', error = u.error,
         worker = null, started_at = null, beat_at = null, blocked = null
    from unnest($34::uuid[], $35::int[], $36::int[], $37::bigint[], $38::text[]) as u(id, attempt, lost, delay_us, error), fence f,
         lateral (select r.ctid as place, r.owner from perdure.task_queue r where r.id = u.id offset 0) at
   where t.ctid = at.place and at.owner = f.id
),
unqueued as (
  delete from perdure.task_queue t where t.id = any($18::uuid[]) and exists(select from fence)
),
-- Results of tasks whose run lives elsewhere: only the engine that still holds the claim may report.
reported as (
  delete from perdure.task_queue t using unnest($19::uuid[], $20::int[], $21::bytea[]) as u(id, attempt, body), fence f,
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
   using unnest($25::uuid[], $26::uuid[]) as u(run_id, successor), fence f,
         lateral (select r.ctid as place from perdure.inbox r where r.run_id = u.run_id offset 0) at
   where i.ctid = at.place and u.successor is not null and i.id <> all($24::bigint[])
  returning i.id, i.ns, u.successor as run_id, i.body
),
-- Facts for other runs. A run that has ended takes none; one that continued does, and upkeep forwards it to the successor. Forwarded ones come last: they are younger than what the ending run
-- hands to its successor, and ids are the order in which a run gets its mail.
posted as (
  insert into perdure.inbox (ns, run_id, body)
  select m.ns, m.run_id, m.body from (
    select q.ns, q.run_id, u.body, 0 as line, u.n
      from unnest($22::uuid[], $23::bytea[]) with ordinality as u(run_id, body, n), fence f,
           lateral (select r.ns, r.run_id from perdure.run_queue r where r.run_id = u.run_id
                    union all
                    select e.ns, e.run_id from perdure.run e where e.run_id = u.run_id and e.successor is not null offset 0) q
    union all
    select w.ns, w.run_id, w.body, 1, w.id from forwarded w
  ) m
  order by m.line, m.n
),
consumed as (
  delete from perdure.inbox i where i.id = any($24::bigint[]) and exists(select from fence)
),
-- Facts that were still waiting for runs that now end for good.
dropped as (
  delete from perdure.inbox i
   where i.run_id = any(array(select u.run_id from unnest($25::uuid[], $26::uuid[]) as u(run_id, successor) where u.successor is null))
     and exists(select from fence)
),
promised as (
  insert into perdure.promise (run_id, name, ns, created_at)
  select u.run_id, u.name, u.ns, f.at from unnest($27::uuid[], $28::text[], $29::int[]) as u(run_id, name, ns), fence f
   where u.run_id <> all($25::uuid[])  -- what is created and gone in one commit is never there
  on conflict do nothing
),
unpromised as (
  delete from perdure.promise p where p.run_id = any($25::uuid[]) and exists(select from fence)
),
stated as (
  insert into perdure.run_state (run_id, name, ns, value)
  select u.run_id, u.name, u.ns, u.value from unnest($30::uuid[], $31::text[], $32::int[], $33::bytea[]) as u(run_id, name, ns, value), fence f
  on conflict (run_id, name) do update set value = excluded.value
)
select exists(select from fence) as held, coalesce((select array_agg(run_id) from reported), '{}') as reported;

-- name: read_back
-- What commit_batch would have answered, had its answer not been lost. $1 runs it was to start; $2 and $3 history rows it was to write,
-- which all carry the moment of the commit.
select coalesce((select h.at from unnest($2::uuid[], $3::int[]) as u(run_id, seq), lateral (
                     select w.at from perdure.history w where w.run_id = u.run_id and w.seq = u.seq offset 0) h limit 1),
                perdure.clock()) as at,
       coalesce((select array_agg(r.run_id) from (
                   select q.run_id from perdure.run_queue q where q.run_id = any($1::uuid[])
                   union all
                   select e.run_id from unnest($1::uuid[]) as u(run_id), lateral (
                     select w.run_id from perdure.run w where w.run_id = u.run_id offset 0) e) r), '{}') as started;

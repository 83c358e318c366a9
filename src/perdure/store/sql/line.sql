-- Flow control: lines, slots, buckets. One transaction claims from lines; its statements run in this order:
--
--   look_at_lines / look_at_run_lines   locks the lines it finds (skip locked)
--   lock_keys                           advisory locks of every key those lines need, in order
--   read_keys                           a new snapshot: what is held, what is in the buckets
--   (core/flow_control/admission.py decides)
--   take_from_lines / let_in_runs       claims, takes slots and units, moves the lines on
--
-- Whoever waits for an advisory lock here holds lines, and nobody who holds an advisory lock waits for a line: no circle.

-- name: look_at_lines
-- $1 session, $2 $3 $4 kinds (namespace, queue, task) that workers here serve, $5 how many of each they can take, $6 lines of a kind to look at.
-- `times` are the due times of as many members as could begin, and one more.
with fence as materialized (select id from perdure.engine_session where id = $1 for key share),
wanted as materialized (
  select distinct c.id, w.free from fence, unnest($2::int[], $3::text[], $4::text[], $5::int[]) as w(ns, queue, name, free) cross join lateral (
    (select l.id from perdure.line l where l.ns = w.ns and l.kind = 0 and l.queue = w.queue and l.name = w.name and l.next_at <= perdure.clock()
      order by l.priority desc, l.turn limit $6)
    union all
    (select l.id from perdure.line l where l.ns = w.ns and l.kind = 0 and l.queue = w.queue and l.name = w.name and l.next_at <= perdure.clock()
      order by l.head_at limit $6 / 4)
  ) c
),
locked as materialized (
  select l.*, w.free from wanted w cross join lateral (
    select x.* from perdure.line x where x.id = w.id and x.next_at <= perdure.clock() for update skip locked
  ) l
)
select l.id, l.ns, l.kind, l.queue, l.name, l.workflow, l.fair, l.weight, l.priority, l.needs, l.turn, l.head_at, perdure.clock() as clock,
       array(select t.run_at from perdure.task_queue t where t.line = l.id and t.owner is null order by t.run_at limit l.free + 1) as times
  from locked l;

-- name: look_at_run_lines
-- $1 session, $2 how many lines, $3 how many runs of each at most.
with fence as materialized (select id from perdure.engine_session where id = $1 for key share),
locked as materialized (
  select l.* from fence cross join lateral (
    select x.* from perdure.line x where x.kind = 1 and x.next_at <= perdure.clock() order by x.next_at limit $2 for update skip locked
  ) l
)
select l.id, l.ns, l.kind, l.queue, l.name, l.workflow, l.fair, l.weight, l.priority, l.needs, l.turn, l.head_at, perdure.clock() as clock,
       array(select q.created_at from perdure.run_queue q where q.line = l.id and q.admitted_at is null and q.stuck is null order by q.run_id limit $3 + 1) as times
  from locked l;

-- name: lock_keys
-- $1 hashes of keys, in order.
select pg_advisory_xact_lock(k) from unnest($1::bigint[]) as k;

-- name: read_keys
-- $1 namespaces, $2 keys.
select u.ns, u.key, s.held, s.holders, b.tokens, b.at
  from unnest($1::int[], $2::text[]) as u(ns, key)
 cross join lateral (
   select count(*) as held, (array_agg(x.run_id order by x.at))[1:3] as holders from perdure.slot x where x.ns = u.ns and x.key = u.key
 ) s
  left join perdure.bucket b on b.ns = u.ns and b.key = u.key;

-- name: take_from_lines
-- $1 session. $2 lines, $3 how many of each. $4 $5: (line, key) of the slots that each of its members takes.
-- The slots of a member go with its row: see the triggers of task_queue.
with claimed as (
  update perdure.task_queue t set owner = $1, status = 1, worker = null, started_at = null, beat_at = null, blocked = null
    from (select d.place from unnest($2::uuid[], $3::int[]) as u(line, take) cross join lateral (
            select x.ctid as place from perdure.task_queue x where x.line = u.line and x.owner is null and x.run_at <= perdure.clock()
               and (x.expires_at is null or x.expires_at > perdure.clock())
             order by x.run_at, x.id limit u.take for update skip locked
          ) d) due
   where t.ctid = due.place
  returning t.id, t.ns, t.run_id, t.seq, t.name, t.queue, t.attempt, t.lost, t.scheduled_at, t.options, t.input, t.trace, t.line
),
slots as (
  insert into perdure.slot (ns, key, holder, run_id, at)
  select distinct c.ns, k.key, c.id, c.run_id, now() from claimed c join unnest($4::uuid[], $5::text[]) as k(line, key) on k.line = c.line
)
select * from claimed;

-- name: let_in_runs
-- The same for runs: they are let in, and claimed later like any other. $1 lines, $2 how many of each. $3 $4: (line, key).
with entered as (
  update perdure.run_queue q set admitted_at = perdure.clock(), wake_at = perdure.clock()
    from (select d.place from unnest($1::uuid[], $2::int[]) as u(line, take) cross join lateral (
            select x.ctid as place from perdure.run_queue x where x.line = u.line and x.admitted_at is null and x.stuck is null
             order by x.run_id limit u.take for update skip locked
          ) d) due
   where q.ctid = due.place
  returning q.run_id, q.ns, q.line
),
slots as (
  insert into perdure.slot (ns, key, holder, run_id, at)
  select distinct e.ns, k.key, e.run_id, e.run_id, now() from entered e join unnest($3::uuid[], $4::text[]) as k(line, key) on k.line = e.line
)
select run_id from entered;

-- name: move_lines
-- $1 lines, $2 their turn, $3 when their first is due, $4 when to look again (null: they seem empty), $5 what holds them up, $6 why.
with moved as (
  update perdure.line l
     set turn = u.turn, head_at = u.head_at, next_at = coalesce(u.next_at, perdure.clock() + interval '1 second'), blocked = u.blocked,
         reason = u.reason, blocked_at = case when u.blocked is null then null else coalesce(l.blocked_at, perdure.clock()) end
    from unnest($1::uuid[], $2::float8[], $3::timestamptz[], $4::timestamptz[], $5::text[], $6::text[]) as u(id, turn, head_at, next_at, blocked, reason)
   where l.id = u.id
)
select 1;

-- name: drop_empty_lines
-- $1 lines that seem empty, locked by this transaction. Members under way may come back, so a line stays while there are any.
delete from perdure.line l
 where l.id = any($1::uuid[])
   and not exists (select from perdure.task_queue t where t.line = l.id and t.owner is null)
   and not exists (select from perdure.task_queue t where t.line = l.id and t.owner is not null)
   and not exists (select from perdure.run_queue q where q.line = l.id and q.admitted_at is null and q.stuck is null);

-- name: stale_lines
-- Lines that nobody has looked at for a while: no worker serves them, or nothing is left in them. $1 how many.
select l.id from perdure.line l where l.next_at < perdure.clock() - interval '1 minute' order by l.next_at limit $1 for update skip locked;

-- name: touch_lines
update perdure.line l set next_at = perdure.clock() where l.id = any($1::uuid[]);

-- name: pour
-- $1 namespaces, $2 keys, $3 what is left in their buckets, $4 as of when.
insert into perdure.bucket (ns, key, tokens, at)
select u.ns, u.key, u.tokens, u.at from unnest($1::int[], $2::text[], $3::float8[], $4::timestamptz[]) as u(ns, key, tokens, at)
on conflict (ns, key) do update set tokens = excluded.tokens, at = excluded.at;

-- name: wake_lines
-- $1 namespaces, $2 keys of which something was freed. Only a wake-up: a line that is missed here is looked at within a second.
update perdure.line l set next_at = perdure.clock()
 where l.id in (
   select x.id from unnest($1::int[], $2::text[]) as u(ns, key) cross join lateral (
     select b.id from perdure.line b where b.ns = u.ns and b.blocked = u.key and b.next_at > perdure.clock() limit 100 for update skip locked
   ) x);

-- name: oldest_holders
-- Runs that hold a key and have not been asked to make room for $3 others. $1 namespace, $2 key.
update perdure.slot s set asked = true
 where s.ns = $1 and s.key = $2 and s.holder in (
   select x.holder from perdure.slot x where x.ns = $1 and x.key = $2 and not x.asked order by x.at, x.holder
    limit greatest(0, $3::int - (select count(*) from perdure.slot y where y.ns = $1 and y.key = $2 and y.asked)))
returning s.run_id;

-- name: turn_away
-- Runs that wait in a line and are not to wait: they are woken without a slot, to be cancelled. $1 line, $2 how many may stay.
update perdure.run_queue q set line = null, wake_at = perdure.clock()
 where q.run_id in (select x.run_id from perdure.run_queue x where x.line = $1 and x.admitted_at is null and x.stuck is null order by x.run_id offset $2)
returning q.run_id, q.ns;

-- name: post_cancels
insert into perdure.inbox (ns, run_id, body, stops) select q.ns, q.run_id, $2, true from perdure.run_queue q where q.run_id = any($1::uuid[]);

-- name: held_by
-- Who holds a key, for a start that is not to wait. $1 namespace, $2 key.
select count(*) as held, (array_agg(s.run_id order by s.at))[1:3] as holders from perdure.slot s where s.ns = $1 and s.key = $2;

-- name: rules
select ns, scope, name, concurrency, rate, per_us, burst, paused_by, paused_at, pause_reason from perdure.flow_rule
 where concurrency is not null or rate is not null or paused_by is not null;

-- name: unlined_tasks
-- Waiting tasks without a line that a new rule is about. $1 namespace, $2 scope, $3 name, $4 how many.
select t.id, t.queue, t.name, q.workflow, t.options, t.input, t.run_at from perdure.task_queue t join perdure.run_queue q on q.run_id = t.run_id
 where t.ns = $1 and t.owner is null and t.line is null
   and case $2::text when 'namespace' then true when 'queue' then t.queue = $3 when 'task' then t.name = $3 else q.workflow = $3 end
 limit $4 for update of t skip locked;

-- name: line_up
-- $1 tasks, $2 their lines.
update perdure.task_queue t set line = u.line from unnest($1::uuid[], $2::uuid[]) as u(id, line) where t.id = u.id and t.owner is null;

-- name: put_lines
insert into perdure.line as l (id, ns, kind, queue, name, workflow, fair, weight, priority, needs, turn, head_at, next_at)
select u.id, u.ns, u.kind, u.queue, u.name, u.workflow, u.fair, u.weight, u.priority, u.needs, 0, perdure.clock(), perdure.clock()
  from unnest($1::uuid[], $2::int[], $3::smallint[], $4::text[], $5::text[], $6::text[], $7::text[], $8::float8[], $9::smallint[], $10::text[])
         as u(id, ns, kind, queue, name, workflow, fair, weight, priority, needs)
 order by u.id
on conflict (id) do update set next_at = least(l.next_at, excluded.next_at);

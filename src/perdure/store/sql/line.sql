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
-- :session session, :kinds.ns :kinds.queue :kinds.name kinds (namespace, queue, task) that workers here serve, :kinds.free how many of each they can take, :groups_per_kind lines of a kind to look at.
-- `times` are the due times of as many members as could begin, and one more.
with fence as materialized (select id from perdure.engine_session where id = :session for key share),
wanted as materialized (
  select distinct c.id, w.free from fence, unnest(:kinds.ns::int[], :kinds.queue::text[], :kinds.name::text[], :kinds.free::int[]) as w(ns, queue, name, free) cross join lateral (
    (select l.id from perdure.line l where l.ns = w.ns and l.kind = 0 and l.queue = w.queue and l.name = w.name and l.next_at <= perdure.clock()
      order by l.priority desc, l.turn limit :groups_per_kind)
    union all
    (select l.id from perdure.line l where l.ns = w.ns and l.kind = 0 and l.queue = w.queue and l.name = w.name and l.next_at <= perdure.clock()
      order by l.head_at limit :groups_per_kind / 4)
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
-- :session session, :groups_max how many lines, :runs_per_group how many runs of each at most.
with fence as materialized (select id from perdure.engine_session where id = :session for key share),
locked as materialized (
  select l.* from fence cross join lateral (
    select x.* from perdure.line x where x.kind = 1 and x.next_at <= perdure.clock() order by x.next_at limit :groups_max for update skip locked
  ) l
)
select l.id, l.ns, l.kind, l.queue, l.name, l.workflow, l.fair, l.weight, l.priority, l.needs, l.turn, l.head_at, perdure.clock() as clock,
       array(select q.created_at from perdure.run_queue q where q.line = l.id and q.admitted_at is null and q.stuck is null order by q.run_id limit :runs_per_group + 1) as times
  from locked l;

-- name: lock_keys
-- :hashes hashes of keys, in order.
select pg_advisory_xact_lock(k) from unnest(:hashes::bigint[]) as k;

-- name: read_keys
-- :keys.ns namespaces, :keys.key keys.
select u.ns, u.key, s.held, s.holders, b.tokens, b.at
  from unnest(:keys.ns::int[], :keys.key::text[]) as u(ns, key)
 cross join lateral (
   select count(*) as held, (array_agg(x.run_id order by x.at))[1:3] as holders from perdure.slot x where x.ns = u.ns and x.key = u.key
 ) s
  left join perdure.bucket b on b.ns = u.ns and b.key = u.key;

-- name: take_from_lines
-- :session session. :groups.id lines, :groups.take how many of each. :slots.group_id :slots.key: (line, key) of the slots that each of its members takes.
-- The slots of a member go with its row: see the triggers of task_queue.
with claimed as (
  update perdure.task_queue t set owner = :session, status = 1, worker = null, started_at = null, beat_at = null, blocked = null
    from (select d.place from unnest(:groups.id::uuid[], :groups.take::int[]) as u(line, take) cross join lateral (
            select x.ctid as place from perdure.task_queue x where x.line = u.line and x.owner is null and x.run_at <= perdure.clock()
               and (x.expires_at is null or x.expires_at > perdure.clock())
             order by x.run_at, x.id limit u.take for update skip locked
          ) d) due
   where t.ctid = due.place
  returning t.id, t.ns, t.run_id, t.seq, t.name, t.queue, t.attempt, t.lost, t.scheduled_at, t.options, t.input, t.trace, t.line
),
slots as (
  insert into perdure.slot (ns, key, holder, run_id, at)
  select distinct c.ns, k.key, c.id, c.run_id, now() from claimed c join unnest(:slots.group_id::uuid[], :slots.key::text[]) as k(line, key) on k.line = c.line
)
select * from claimed;

-- name: let_in_runs
-- The same for runs: they are let in, and claimed later like any other. :groups.id lines, :groups.take how many of each. :slots.group_id :slots.key: (line, key).
with entered as (
  update perdure.run_queue q set admitted_at = perdure.clock(), wake_at = perdure.clock()
    from (select d.place from unnest(:groups.id::uuid[], :groups.take::int[]) as u(line, take) cross join lateral (
            select x.ctid as place from perdure.run_queue x where x.line = u.line and x.admitted_at is null and x.stuck is null
             order by x.run_id limit u.take for update skip locked
          ) d) due
   where q.ctid = due.place
  returning q.run_id, q.ns, q.line
),
slots as (
  insert into perdure.slot (ns, key, holder, run_id, at)
  select distinct e.ns, k.key, e.run_id, e.run_id, now() from entered e join unnest(:slots.group_id::uuid[], :slots.key::text[]) as k(line, key) on k.line = e.line
)
select run_id from entered;

-- name: move_lines
-- :groups.id lines, :groups.turn their turn, :groups.head_at when their first is due, :groups.next_at when to look again (null: they seem empty), :groups.blocked what holds them up, :groups.reason why.
with moved as (
  update perdure.line l
     set turn = u.turn, head_at = u.head_at, next_at = coalesce(u.next_at, perdure.clock() + interval '1 second'), blocked = u.blocked,
         reason = u.reason, blocked_at = case when u.blocked is null then null else coalesce(l.blocked_at, perdure.clock()) end
    from unnest(:groups.id::uuid[], :groups.turn::float8[], :groups.head_at::timestamptz[], :groups.next_at::timestamptz[], :groups.blocked::text[], :groups.reason::text[]) as u(id, turn, head_at, next_at, blocked, reason)
   where l.id = u.id
)
select 1;

-- name: drop_empty_lines
-- :ids lines that seem empty, locked by this transaction. Members under way may come back, so a line stays while there are any.
delete from perdure.line l
 where l.id = any(:ids::uuid[])
   and not exists (select from perdure.task_queue t where t.line = l.id and t.owner is null)
   and not exists (select from perdure.task_queue t where t.line = l.id and t.owner is not null)
   and not exists (select from perdure.run_queue q where q.line = l.id and q.admitted_at is null and q.stuck is null);

-- name: stale_lines
-- Lines that nobody has looked at for a while: no worker serves them, or nothing is left in them. :limit how many.
select l.id from perdure.line l where l.next_at < perdure.clock() - interval '1 minute' order by l.next_at limit :limit for update skip locked;

-- name: touch_lines
update perdure.line l set next_at = perdure.clock() where l.id = any(:ids::uuid[]);

-- name: pour
-- :buckets.ns namespaces, :buckets.key keys, :buckets.tokens what is left in their buckets, :buckets.at as of when.
insert into perdure.bucket (ns, key, tokens, at)
select u.ns, u.key, u.tokens, u.at from unnest(:buckets.ns::int[], :buckets.key::text[], :buckets.tokens::float8[], :buckets.at::timestamptz[]) as u(ns, key, tokens, at)
on conflict (ns, key) do update set tokens = excluded.tokens, at = excluded.at;

-- name: wake_lines
-- :keys.ns namespaces, :keys.key keys of which something was freed. Only a wake-up: a line that is missed here is looked at within a second.
update perdure.line l set next_at = perdure.clock()
 where l.id in (
   select x.id from unnest(:keys.ns::int[], :keys.key::text[]) as u(ns, key) cross join lateral (
     select b.id from perdure.line b where b.ns = u.ns and b.blocked = u.key and b.next_at > perdure.clock() limit 100 for update skip locked
   ) x);

-- name: oldest_holders
-- Runs that hold a key and have not been asked to make room for :wanted others. :ns namespace, :key key.
update perdure.slot s set asked = true
 where s.ns = :ns and s.key = :key and s.holder in (
   select x.holder from perdure.slot x where x.ns = :ns and x.key = :key and not x.asked order by x.at, x.holder
    limit greatest(0, :wanted::int - (select count(*) from perdure.slot y where y.ns = :ns and y.key = :key and y.asked)))
returning s.run_id;

-- name: turn_away
-- Runs that wait in a line and are not to wait: they are woken without a slot, to be cancelled. :group_id line, :kept how many may stay.
update perdure.run_queue q set line = null, wake_at = perdure.clock()
 where q.run_id in (select x.run_id from perdure.run_queue x where x.line = :group_id and x.admitted_at is null and x.stuck is null order by x.run_id offset :kept)
returning q.run_id, q.ns;

-- name: post_cancels
insert into perdure.inbox (ns, run_id, body, stops) select q.ns, q.run_id, :body, true from perdure.run_queue q where q.run_id = any(:run_ids::uuid[]);

-- name: held_by
-- Who holds a key, for a start that is not to wait. :ns namespace, :key key.
select count(*) as held, (array_agg(s.run_id order by s.at))[1:3] as holders from perdure.slot s where s.ns = :ns and s.key = :key;

-- name: rules
select ns, scope, name, concurrency, rate, per_us, burst, paused_by, paused_at, pause_reason from perdure.flow_rule
 where concurrency is not null or rate is not null or paused_by is not null;

-- name: unlined_tasks
-- Waiting tasks without a line that a new rule is about. :ns namespace, :scope scope, :name name, :limit how many.
select t.id, t.queue, t.name, q.workflow, t.options, t.input, t.run_at from perdure.task_queue t join perdure.run_queue q on q.run_id = t.run_id
 where t.ns = :ns and t.owner is null and t.line is null
   and case :scope::text when 'namespace' then true when 'queue' then t.queue = :name when 'task' then t.name = :name else q.workflow = :name end
 limit :limit for update of t skip locked;

-- name: line_up
-- :tasks.id tasks, :tasks.line their lines.
update perdure.task_queue t set line = u.line from unnest(:tasks.id::uuid[], :tasks.line::uuid[]) as u(id, line) where t.id = u.id and t.owner is null;

-- name: put_lines
insert into perdure.line as l (id, ns, kind, queue, name, workflow, fair, weight, priority, needs, turn, head_at, next_at)
select u.id, u.ns, u.kind, u.queue, u.name, u.workflow, u.fair, u.weight, u.priority, u.needs, 0, perdure.clock(), perdure.clock()
  from unnest(:groups.id::uuid[], :groups.ns::int[], :groups.kind::smallint[], :groups.queue::text[], :groups.name::text[], :groups.workflow::text[], :groups.fair::text[], :groups.weight::float8[], :groups.priority::smallint[], :groups.needs::text[])
         as u(id, ns, kind, queue, name, workflow, fair, weight, priority, needs)
 order by u.id
on conflict (id) do update set next_at = least(l.next_at, excluded.next_at);

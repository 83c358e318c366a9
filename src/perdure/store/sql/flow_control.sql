-- Flow control: groups of waiting tasks and runs, slots of limits, buckets of rates. One transaction claims from groups; its
-- statements run in this order:
--
--   lock_task_groups / lock_run_groups   locks the groups it finds (skip locked)
--   lock_keys                            advisory locks of every key those groups need, in order
--   read_keys                            in a new snapshot: slots taken, tokens left
--   (core/flow_control/admission.py decides)
--   claim_from_groups / admit_runs       claims members and takes their slots
--   update_groups, put_buckets
--
-- A transaction that waits for an advisory lock holds groups; one that holds an advisory lock never waits for a group. So there is
-- no deadlock.

-- name: lock_task_groups
-- The next groups of each kind by turn, and those that have waited longest. `times` are the due times of as many members as the
-- workers can take, and one more.
with fence as materialized (select id from perdure.engine_session where id = :session for key share),
wanted as materialized (
  select distinct c.id, k.free
    from fence, unnest(:kinds.ns::int[], :kinds.queue::text[], :kinds.name::text[], :kinds.free::int[]) as k(ns, queue, name, free)
   cross join lateral (
    (select g.id from perdure.flow_control_group g
      where g.ns = k.ns and g.kind = 'task' and g.queue = k.queue and g.name = k.name and g.next_at <= perdure.clock()
      order by g.priority desc, g.turn limit :groups_per_kind)
    union all
    (select g.id from perdure.flow_control_group g
      where g.ns = k.ns and g.kind = 'task' and g.queue = k.queue and g.name = k.name and g.next_at <= perdure.clock()
      order by g.head_at limit :groups_per_kind / 4)
  ) c
),
locked as materialized (
  select g.*, w.free from wanted w cross join lateral (
    select x.* from perdure.flow_control_group x where x.id = w.id and x.next_at <= perdure.clock() for update skip locked
  ) g
)
select g.id, g.ns, g.kind, g.queue, g.name, g.workflow, g.fair, g.weight, g.priority, g.needs, g.turn, g.head_at, perdure.clock() as clock,
       array(select t.run_at from perdure.task_queue t where t.group_id = g.id and t.owner is null and not t.held order by t.run_at limit g.free + 1) as times
  from locked g;

-- name: lock_run_groups
with fence as materialized (select id from perdure.engine_session where id = :session for key share),
locked as materialized (
  select g.* from fence cross join lateral (
    select x.* from perdure.flow_control_group x where x.kind = 'run' and x.next_at <= perdure.clock()
     order by x.next_at limit :groups_max for update skip locked
  ) g
)
select g.id, g.ns, g.kind, g.queue, g.name, g.workflow, g.fair, g.weight, g.priority, g.needs, g.turn, g.head_at, perdure.clock() as clock,
       array(select q.created_at from perdure.run_queue q where q.group_id = g.id and q.admitted_at is null and not q.halted
                and (q.start_at is null or q.start_at <= perdure.clock()) order by q.run_id limit :runs_per_group + 1) as times
  from locked g;

-- name: lock_keys
-- `hashes` are sorted.
select pg_advisory_xact_lock(k) from unnest(:hashes::bigint[]) as k;

-- name: read_keys
select u.ns, u.key, s.held, s.holders, b.tokens, b.at
  from unnest(:keys.ns::int[], :keys.key::text[]) as u(ns, key)
 cross join lateral (
   select count(*) as held, (array_agg(x.run_id order by x.at))[1:3] as holders
     from perdure.flow_control_slot x where x.ns = u.ns and x.key = u.key
 ) s
  left join perdure.flow_control_bucket b on b.ns = u.ns and b.key = u.key;

-- name: claim_from_groups
-- Claims `take` members of each group. `slots` are the keys of which each member takes a slot; triggers free the slots with the row.
with claimed as (
  update perdure.task_queue t
     set owner = :session, status = 'dispatched', worker = null, started_at = perdure.clock(), beat_at = null, blocked = null
    from (select d.place from unnest(:groups.id::uuid[], :groups.take::int[]) as u(id, take) cross join lateral (
            select x.ctid as place from perdure.task_queue x where x.group_id = u.id and x.owner is null and not x.held and x.run_at <= perdure.clock()
               and (x.start_deadline_at is null or x.start_deadline_at > perdure.clock())
             order by x.run_at, x.id limit u.take for update skip locked
          ) d) due
   where t.ctid = due.place
  returning t.id, t.ns, t.run_id, t.seq, t.name, t.queue, t.attempt, t.lost, t.scheduled_at, t.options, t.input, t.trace, t.group_id
),
slots as (
  insert into perdure.flow_control_slot (ns, key, holder, run_id, at)
  select distinct c.ns, k.key, c.id, c.run_id, now()
    from claimed c join unnest(:slots.group_id::uuid[], :slots.key::text[]) as k(group_id, key) on k.group_id = c.group_id
)
select * from claimed;

-- name: admit_runs
-- The same for runs, which are only woken here and claimed later like any other.
with admitted as (
  update perdure.run_queue q set admitted_at = perdure.clock(), wake_at = perdure.clock()
    from (select d.place from unnest(:groups.id::uuid[], :groups.take::int[]) as u(id, take) cross join lateral (
            select x.ctid as place from perdure.run_queue x where x.group_id = u.id and x.admitted_at is null and not x.halted
               and (x.start_at is null or x.start_at <= perdure.clock())
             order by x.run_id limit u.take for update skip locked
          ) d) due
   where q.ctid = due.place
  returning q.run_id, q.ns, q.group_id
),
slots as (
  insert into perdure.flow_control_slot (ns, key, holder, run_id, at)
  select distinct a.ns, k.key, a.run_id, a.run_id, now()
    from admitted a join unnest(:slots.group_id::uuid[], :slots.key::text[]) as k(group_id, key) on k.group_id = a.group_id
)
select run_id from admitted;

-- name: update_groups
-- next_at is null for a group that seems empty: it is tried again in a second.
update perdure.flow_control_group g
   set turn = u.turn, head_at = u.head_at, next_at = coalesce(u.next_at, perdure.clock() + interval '1 second'), blocked = u.blocked,
       reason = u.reason, blocked_at = case when u.blocked is null then null else coalesce(g.blocked_at, perdure.clock()) end
  from unnest(:groups.id::uuid[], :groups.turn::float8[], :groups.head_at::timestamptz[], :groups.next_at::timestamptz[],
              :groups.blocked::text[], :groups.reason::text[]) as u(id, turn, head_at, next_at, blocked, reason)
 where g.id = u.id;

-- name: delete_empty_groups
-- Of groups that this transaction has locked. A running member may come back, so its group stays.
delete from perdure.flow_control_group g
 where g.id = any(:ids::uuid[])
   and not exists (select from perdure.task_queue t where t.group_id = g.id and t.owner is null)
   and not exists (select from perdure.task_queue t where t.group_id = g.id and t.owner is not null)
   and not exists (select from perdure.run_queue q where q.group_id = g.id and q.admitted_at is null and not q.halted);

-- name: lock_stale_groups
-- Groups that no engine has tried for a while: no worker serves them, or they are empty.
select g.id from perdure.flow_control_group g where g.next_at < perdure.clock() - interval '1 minute'
 order by g.next_at limit :limit for update skip locked;

-- name: touch_groups
update perdure.flow_control_group g set next_at = perdure.clock() where g.id = any(:ids::uuid[]);

-- name: put_buckets
insert into perdure.flow_control_bucket (ns, key, tokens, at)
select u.ns, u.key, u.tokens, u.at
  from unnest(:buckets.ns::int[], :buckets.key::text[], :buckets.tokens::float8[], :buckets.at::timestamptz[]) as u(ns, key, tokens, at)
on conflict (ns, key) do update set tokens = excluded.tokens, at = excluded.at;

-- name: wake_groups
-- After slots of these keys were freed. Only a hint: a group that is missed here is tried within a second.
update perdure.flow_control_group g set next_at = perdure.clock()
 where g.id in (
   select x.id from unnest(:keys.ns::int[], :keys.key::text[]) as u(ns, key) cross join lateral (
     select b.id from perdure.flow_control_group b where b.ns = u.ns and b.blocked = u.key and b.next_at > perdure.clock()
      limit 100 for update skip locked
   ) x);

-- name: mark_oldest_holders
-- Marks the oldest holders of a key as yielding until `wanted` of them are; answers the newly marked.
update perdure.flow_control_slot s set yielding = true
 where s.ns = :ns and s.key = :key and s.holder in (
   select x.holder from perdure.flow_control_slot x where x.ns = :ns and x.key = :key and not x.yielding order by x.at, x.holder
    limit greatest(0, :wanted::int - (select count(*) from perdure.flow_control_slot y where y.ns = :ns and y.key = :key and y.yielding)))
returning s.run_id;

-- name: reject_waiting_runs
-- Takes runs beyond the first `kept` out of their group and wakes them without a slot, to be cancelled.
update perdure.run_queue q set group_id = null, wake_at = perdure.clock()
 where q.run_id in (select x.run_id from perdure.run_queue x where x.group_id = :group_id and x.admitted_at is null and not x.halted
                     order by x.run_id offset :kept)
returning q.run_id, q.ns;

-- name: send_cancels
-- seals: body message
insert into perdure.inbox (ns, run_id, body, kind)
select q.ns, q.run_id, :body, 'cancel' from perdure.run_queue q where q.run_id = any(:run_ids::uuid[]);

-- name: slot_holders
select count(*) as held, (array_agg(s.run_id order by s.at))[1:3] as holders
  from perdure.flow_control_slot s where s.ns = :ns and s.key = :key;

-- name: flow_control_rules
select ns, scope, name, concurrency, rate, per_us, burst, paused_by, paused_at, pause_reason from perdure.flow_control_rule
 where concurrency is not null or rate is not null or paused_by is not null;

-- name: lock_ungrouped_tasks
-- Waiting tasks without a group that a new rule is about.
select t.id, t.queue, t.name, q.workflow, t.options, t.input, t.run_at
  from perdure.task_queue t join perdure.run_queue q on q.run_id = t.run_id
 where t.ns = :ns and t.owner is null and t.group_id is null
   and case :scope::text when 'namespace' then true when 'queue' then t.queue = :name when 'task' then t.name = :name
                         else q.workflow = :name end
 limit :limit for update of t skip locked;

-- name: assign_groups
update perdure.task_queue t set group_id = u.group_id
  from unnest(:tasks.id::uuid[], :tasks.group_id::uuid[]) as u(id, group_id) where t.id = u.id and t.owner is null;

-- name: put_groups
insert into perdure.flow_control_group as g (id, ns, kind, queue, name, workflow, fair, weight, priority, needs, turn, head_at, next_at)
select u.id, u.ns, u.kind, u.queue, u.name, u.workflow, u.fair, u.weight, u.priority, u.needs, 0, perdure.clock(), perdure.clock()
  from unnest(:groups.id::uuid[], :groups.ns::int[], :groups.kind::text[], :groups.queue::text[], :groups.name::text[],
              :groups.workflow::text[], :groups.fair::text[], :groups.weight::float8[], :groups.priority::smallint[], :groups.needs::text[])
         as u(id, ns, kind, queue, name, workflow, fair, weight, priority, needs)
 order by u.id
on conflict (id) do update set next_at = least(g.next_at, excluded.next_at);

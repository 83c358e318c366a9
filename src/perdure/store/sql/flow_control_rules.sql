-- Rules of flow control that people set at run time. Engines find changes by the largest updated_at, so a row is emptied, never deleted,
-- and its time is later than that of every change before it: changes go one after the other, under an advisory lock.

-- name: lock_flow_control_rules
select pg_advisory_xact_lock(hashtextextended('perdure.flow_control_rule', 6));

-- name: next_rule_change
-- Later than every change there is. Asked under the lock, in a statement of its own: its snapshot sees the last change.
select greatest(clock_timestamp(), (select max(updated_at) from perdure.flow_control_rule) + interval '1 microsecond') as at;

-- name: set_rule
-- Sets all limits at once: null is no limit. A pause stays.
insert into perdure.flow_control_rule (ns, scope, name, concurrency, rate, per_us, burst, updated_by, updated_at)
values (:ns, :scope, :name, :concurrency, :rate, :per_us, :burst, :updated_by, :updated_at)
on conflict (ns, scope, name) do update
  set concurrency = excluded.concurrency, rate = excluded.rate, per_us = excluded.per_us, burst = excluded.burst,
      updated_by = excluded.updated_by, updated_at = excluded.updated_at;

-- name: clear_rule
-- No row: there was nothing to take back.
update perdure.flow_control_rule set concurrency = null, rate = null, per_us = null, burst = null, updated_by = :updated_by, updated_at = :updated_at
 where ns = :ns and scope = :scope and name = :name and (concurrency is not null or rate is not null)
returning name;

-- name: pause_scope
-- The first who paused it stays on record; the reason is the last one given.
insert into perdure.flow_control_rule (ns, scope, name, paused_at, paused_by, pause_reason, updated_by, updated_at)
values (:ns, :scope, :name, perdure.clock(), :paused_by, :pause_reason, :paused_by, :updated_at)
on conflict (ns, scope, name) do update
  set paused_at = coalesce(flow_control_rule.paused_at, excluded.paused_at), paused_by = coalesce(flow_control_rule.paused_by, excluded.paused_by),
      pause_reason = coalesce(excluded.pause_reason, flow_control_rule.pause_reason), updated_by = excluded.updated_by, updated_at = excluded.updated_at;

-- name: unpause_scope
-- No row: it was not paused.
update perdure.flow_control_rule set paused_at = null, paused_by = null, pause_reason = null, updated_by = :updated_by, updated_at = :updated_at
 where ns = :ns and scope = :scope and name = :name and paused_by is not null
returning name;

-- name: limit_keys_in_use
-- Keys of limits that are held, found by jumping from one to the next in the primary key, and of those that groups wait for.
with recursive held as (
  (select key from perdure.flow_control_slot where ns = :ns order by ns, key limit 1)
  union all
  select n.key from held h cross join lateral (
    select s.key from perdure.flow_control_slot s where s.ns = :ns and s.key > h.key order by s.ns, s.key limit 1) n
)
(select key from held limit :limit)
union
(select distinct g.blocked from perdure.flow_control_group g where g.ns = :ns and g.blocked is not null limit :limit)
order by key limit :limit;

-- name: limit_use
-- Per key, slots that are held and members of groups that wait, each counted up to `count_max`, and a group's needs, which say the limit.
select k.key,
       (select count(*)::int from (select from perdure.flow_control_slot s where s.ns = :ns and s.key = k.key limit :count_max) h) as held,
       (select count(*)::int from (
          select from perdure.flow_control_group g cross join lateral (
            (select 1 from perdure.task_queue t where g.kind = 'task' and t.group_id = g.id and t.owner is null limit :count_max)
            union all
            (select 1 from perdure.run_queue q where g.kind = 'run' and q.group_id = g.id and q.admitted_at is null and not q.halted limit :count_max)) m
           where g.ns = :ns and g.blocked = k.key limit :count_max) w) as waiting,
       (select g.needs from perdure.flow_control_group g where g.ns = :ns and g.blocked = k.key limit 1) as needs
  from unnest(:keys::text[]) as k(key);

-- name: limit_holders
-- Per key, the runs that hold most of it.
select k.key, h.run_id, h.held, coalesce(q.workflow, '') as workflow
  from unnest(:keys::text[]) as k(key) cross join lateral (
    select x.run_id, count(*)::int as held
      from (select s.run_id from perdure.flow_control_slot s where s.ns = :ns and s.key = k.key limit :count_max) x
     group by x.run_id order by count(*) desc, x.run_id limit :limit) h
  left join perdure.run_queue q on q.run_id = h.run_id
 order by k.key, h.held desc, h.run_id;

-- name: list_rules
-- A page by scope and name.
select scope, name, concurrency, rate, per_us, burst, paused_at, paused_by, pause_reason, updated_at, updated_by from perdure.flow_control_rule
 where ns = :ns and (scope, name) > (:after_scope::text, :after_name::text) and (concurrency is not null or rate is not null or paused_by is not null)
 order by scope, name limit :limit;

-- name: get_rule
select scope, name, concurrency, rate, per_us, burst, paused_at, paused_by, pause_reason, updated_at, updated_by from perdure.flow_control_rule
 where ns = :ns and scope = :scope and name = :name and (concurrency is not null or rate is not null or paused_by is not null);

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

-- name: list_rules
-- A page by scope and name.
select scope, name, concurrency, rate, per_us, burst, paused_at, paused_by, pause_reason, updated_at, updated_by from perdure.flow_control_rule
 where ns = :ns and (scope, name) > (:after_scope::text, :after_name::text) and (concurrency is not null or rate is not null or paused_by is not null)
 order by scope, name limit :limit;

-- name: get_rule
select scope, name, concurrency, rate, per_us, burst, paused_at, paused_by, pause_reason, updated_at, updated_by from perdure.flow_control_rule
 where ns = :ns and scope = :scope and name = :name and (concurrency is not null or rate is not null or paused_by is not null);

-- Notification rules and the outbox.
--
-- Rows of the outbox are written by the functions perdure.note_ends, note_stuck, note_approval and note_missed, and by note_late below.
-- Lock order: rows of notification_rule, then of notification. No transaction takes a lock of a run after them, but one that starts the run of a hook.

-- name: put_notification_rule
-- A rule that exists keeps its secret if its target stays the same. No row: the namespace has as many rules as it may have.
with before as materialized (
  select r.id, r.target, r.secret from perdure.notification_rule r where r.ns = :ns and r.name = :name
),
put as (
  insert into perdure.notification_rule as r (ns, name, workflows, kinds, late_after_us, target, address, secret, created_by)
  select :ns, :name, :workflows::text[], :kinds::text[], :late_after_us::bigint, :target, :address, :secret::bytea, :created_by
   where exists(select from before) or (select count(*) from perdure.notification_rule o where o.ns = :ns) < :rules_max::int
  on conflict (ns, name) do update
    set workflows = excluded.workflows, kinds = excluded.kinds, late_after_us = excluded.late_after_us, address = excluded.address,
        secret = case when r.target = 'webhook' and excluded.target = 'webhook' and not :rotate::bool then r.secret else excluded.secret end,
        target = excluded.target
  returning r.*
)
select p.*, 0::bigint as pending, 0::bigint as dead,
       not exists(select from before b where b.target = 'webhook' and p.target = 'webhook' and not :rotate::bool) as has_new_secret
  from put p;

-- name: notification_rules
-- Counts are of the waiting and the dead only: both have an index.
select r.*, (select count(*) from perdure.notification n where n.rule_id = r.id and n.status = 'pending') as pending,
       (select count(*) from perdure.notification n where n.rule_id = r.id and n.status = 'dead') as dead
  from perdure.notification_rule r
 where r.ns = :ns and r.name > :after and (:name::text is null or r.name = :name)
 order by r.name limit :limit;

-- name: delete_notification_rule
-- What waits goes with it. A commit that has read the rule a moment ago may still write a row; sweep_notifications deletes it.
with gone as (
  delete from perdure.notification_rule r where r.ns = :ns and r.name = :name returning r.id
),
rows as (
  delete from perdure.notification n using gone g where n.rule_id = g.id
)
select id from gone;

-- name: next_notification
-- The clock, whether there is a rule or a hook at all, and when the next row is due. Without rules and hooks it reads empty indexes.
select perdure.clock() as clock, (exists(select from perdure.notification_rule) or exists(select from perdure.workflow_version where hooks is not null)) as has_rules,
       exists(select from perdure.notification_rule r where 'run.late' = any(r.kinds)) as has_late,
       (select min(d.due_at) from (
          select (select n.due_at from perdure.notification n where n.rule_id = r.id and n.status = 'pending' order by n.due_at limit 1) as due_at
            from (select id from perdure.notification_rule where not :only_hooks::bool union all select 0) r(id)
           where r.id <> all(:full::bigint[])) d) as due_at;

-- name: claim_notifications
-- Due rows, so many per rule that no rule has more than :per_rule at hand in this engine (`busy`: how many it has). A claimed row is due again
-- when its lease is over, unless its end was recorded. Locks: rows of notification; those that another engine locks are passed over.
with due as materialized (
  select x.n
    from perdure.notification_rule r
    left join unnest(:busy.rule_id::bigint[], :busy.n::int[]) as b(rule_id, n) on b.rule_id = r.id
    cross join lateral (
      select n.n from perdure.notification n
       where n.rule_id = r.id and n.status = 'pending' and n.due_at <= perdure.clock()
       order by n.due_at limit greatest(:per_rule::int - coalesce(b.n, 0), 0) for update skip locked
    ) x
   limit :limit
),
claimed as (
  update perdure.notification t set attempts = t.attempts + 1, due_at = perdure.clock() + :lease_s::float8 * interval '1 second'
    from due d where t.n = d.n
  returning t.*
)
select c.n, c.id, c.rule_id, c.ns, c.kind, c.run_id, c.workflow, c.data::text as data, c.at, c.attempts, c.earlier_attempts,
       r.name as rule, r.target, r.address, r.secret, s.name as namespace
  from claimed c join perdure.notification_rule r on r.id = c.rule_id join perdure.namespace s on s.id = c.ns;

-- name: claim_hooks
-- The same for runs to be started. Locks: rows of notification; those that another engine locks are passed over.
with due as materialized (
  select n.n from perdure.notification n
   where n.rule_id = 0 and n.status = 'pending' and n.due_at <= perdure.clock() order by n.due_at limit :limit for update skip locked
)
update perdure.notification t set attempts = t.attempts + 1, due_at = perdure.clock() + :lease_s::float8 * interval '1 second'
  from due d where t.n = d.n
returning t.n, t.id, t.ns, t.kind, t.run_id, t.workflow, t.hook, t.occurrence, t.data::text as data, t.at, t.attempts, t.earlier_attempts;

-- name: end_notification
-- How an attempt ended. No row: another engine has claimed it since, and has the say. delay_us is counted from the database's clock.
update perdure.notification t
   set status = :status, error = :error, due_at = perdure.clock() + :delay_us::bigint * interval '1 microsecond',
       ended_at = case when :status::text <> 'pending' then perdure.clock() end
 where t.n = :n and t.attempts = :attempts and t.status = 'pending'
returning t.n;

-- name: note_late
-- Active runs that take longer than a rule allows. Each such rule is looked at by one engine at a time, a few times in its time, so that
-- the active runs are not read all the time. A run is late once for a rule. Locks: rows of notification_rule, passing over those that
-- another engine looks at.
with rules as materialized (
  select r.* from perdure.notification_rule r
   where 'run.late' = any(r.kinds) and r.late_after_us is not null
     and r.late_checked_at <= perdure.clock() - least(greatest(r.late_after_us / 20, 1000000), 60000000) * interval '1 microsecond'
   for update skip locked
),
looked as (
  update perdure.notification_rule r set late_checked_at = perdure.clock() from rules l where r.id = l.id
),
added as (
  insert into perdure.notification (rule_id, ns, kind, run_id, occurrence, workflow, data, at, due_at)
  select r.id, q.ns, 'run.late', q.run_id, '', q.workflow,
         jsonb_strip_nulls(jsonb_build_object('version', q.version, 'key', q.key, 'status', q.status, 'late_after_s', r.late_after_us / 1e6,
           'created_us', (extract(epoch from q.created_at) * 1000000)::bigint)), perdure.clock(), perdure.clock()
    from rules r cross join lateral (
      select a.* from perdure.run_queue a
       -- Ids open with their time; an engine's clock may be a little ahead.
       where a.ns = r.ns and a.run_id < perdure.first_id(perdure.clock() - r.late_after_us * interval '1 microsecond' + interval '1 minute')
         and greatest(a.created_at, a.start_at) <= perdure.clock() - r.late_after_us * interval '1 microsecond'
         and (a.workflow = any(r.workflows) or '*' = any(r.workflows))
         and not exists (select from perdure.notification n where n.run_id = a.run_id and n.rule_id = r.id and n.kind = 'run.late')
       limit :limit
    ) q
  on conflict do nothing
  returning n
)
select count(*) from added;

-- name: notifications
-- Newest first.
select n.n, n.id, coalesce(r.name, '') as rule, n.kind, n.workflow, n.run_id, n.hook, n.data::text as data, n.at, n.status,
       n.attempts - n.earlier_attempts as attempts, case when n.status = 'pending' then n.due_at end as due_at, n.ended_at, n.error
  from perdure.notification n left join perdure.notification_rule r on r.id = n.rule_id
 where n.ns = :ns and (:before::bigint is null or n.n < :before) and (:rule::text is null or r.name = :rule)
   and (:status::text is null or n.status = :status)
 order by n.n desc limit :limit;

-- name: retry_notifications
-- Dead ones get the full number of attempts again, and begin at once.
update perdure.notification t set status = 'pending', due_at = perdure.clock(), earlier_attempts = t.attempts, ended_at = null
 where t.ns = :ns and t.status = 'dead' and (:id::uuid is null or t.id = :id)
   and (:rule::text is null or t.rule_id = (select r.id from perdure.notification_rule r where r.ns = :ns and r.name = :rule))
returning t.n;

-- name: sweep_notifications
-- Ended rows after their time, and rows of rules that are gone. A late run keeps its row while it is active: it must not get another.
-- Locks: rows of notification, passing over those that another engine sweeps.
delete from perdure.notification t using (
  select n.ctid as place from perdure.notification n
   where n.status <> 'pending' and n.ended_at < perdure.clock() - :kept_s::float8 * interval '1 second'
     and not (n.kind = 'run.late' and exists (select from perdure.run_queue q where q.run_id = n.run_id))
   order by n.ended_at limit :limit for update skip locked
) x where t.ctid = x.place;

-- name: drop_notifications
-- A rule keeps its newest :pending_max waiting rows; what it loses is counted. Rows of rules that are gone go as well.
with over as materialized (
  select r.id, (select n.n from perdure.notification n where n.rule_id = r.id and n.status = 'pending' order by n.n desc offset :pending_max limit 1) as last
    from perdure.notification_rule r
),
dropped as (
  delete from perdure.notification n using over o
   where o.last is not null and n.rule_id = o.id and n.status = 'pending' and n.n <= o.last
  returning n.rule_id
),
counted as (
  update perdure.notification_rule r set dropped = r.dropped + d.count
    from (select rule_id, count(*) as count from dropped group by rule_id) d where r.id = d.rule_id
),
orphans as (
  delete from perdure.notification n
   where n.status = 'pending' and n.rule_id <> 0 and not exists (select from perdure.notification_rule r where r.id = n.rule_id)
)
select rule_id, count(*) as count from dropped group by rule_id;

-- name: start_hook
-- The row of a hook that was claimed by this attempt. It is done in the transaction that starts its run.
update perdure.notification t set status = 'done', error = null, ended_at = perdure.clock()
 where t.n = :n and t.attempts = :attempts and t.status = 'pending'
returning t.n;

-- Schedules: what fires when, what has fired, calendars.
--
-- Lock order: rows of schedule (skip locked where engines race), then run_queue, inbox and flow_control_group. No transaction takes them the other way.

-- name: next_fire
select perdure.clock() as clock,
  (select s.fire_at from perdure.schedule s
    where s.paused_at is null and s.deleted_at is null and s.fire_at is not null order by s.fire_at limit 1) as fire_at;

-- name: due_schedules
-- Locks what it finds; what another engine is firing is passed over. No current version: no such workflow, or its namespace was deleted.
with due as materialized (
  select s.* from perdure.schedule s
   where s.paused_at is null and s.deleted_at is null and s.fire_at <= perdure.clock() order by s.fire_at limit :limit for update skip locked
)
select d.id, d.ns, d.name, d.workflow, d.version, w.current, v.control, v.pinned, w.ramp, w.ramp_percent, r.control as ramp_control,
       r.pinned as ramp_pinned, d.input, d.timeout_us, d.attributes, d.spec, d.origin, d.next_at,
       perdure.clock() as clock
  from due d
  left join lateral (
    select k.current, k.ramp, k.ramp_percent from perdure.workflow k
     where k.ns = d.ns and k.name = d.workflow and k.deleted_at is null
       and exists (select from perdure.namespace n where n.id = d.ns and n.deleted_at is null) offset 0
  ) w on true
  left join lateral (
    select x.control, x.pinned from perdure.workflow_version x
     where x.ns = d.ns and x.workflow = d.workflow and x.version = coalesce(nullif(d.version, ''), w.current) offset 0
  ) v on true
  left join lateral (
    select x.control, x.pinned from perdure.workflow_version x
     where x.ns = d.ns and x.workflow = d.workflow and x.version = w.ramp offset 0
  ) r on true
 order by d.fire_at;

-- name: schedule_to_start
-- One of them, for a start by hand. Locked against being fired, changed or deleted meanwhile.
with found as materialized (
  select s.* from perdure.schedule s where s.ns = :ns and s.name = :name and s.deleted_at is null for update
)
select d.id, d.ns, d.name, d.workflow, d.version, w.current, v.control, v.pinned, w.ramp, w.ramp_percent, r.control as ramp_control,
       r.pinned as ramp_pinned, d.input, d.timeout_us, d.attributes, d.spec, d.origin, d.next_at,
       perdure.clock() as clock
  from found d
  left join lateral (
    select k.current, k.ramp, k.ramp_percent from perdure.workflow k where k.ns = d.ns and k.name = d.workflow and k.deleted_at is null offset 0
  ) w on true
  left join lateral (
    select x.control, x.pinned from perdure.workflow_version x
     where x.ns = d.ns and x.workflow = d.workflow and x.version = coalesce(nullif(d.version, ''), w.current) offset 0
  ) v on true
  left join lateral (
    select x.control, x.pinned from perdure.workflow_version x
     where x.ns = d.ns and x.workflow = d.workflow and x.version = w.ramp offset 0
  ) r on true;

-- name: calendars_by_name
select c.ns, c.name, c.spec from unnest(:calendars.ns::int[], :calendars.name::text[]) as u(ns, name) cross join lateral (
  select k.ns, k.name, k.spec from perdure.calendar k where k.ns = u.ns and k.name = u.name offset 0
) c;

-- name: active_of_schedules
-- Runs of these schedules that have not ended, looked for among the latest of each.
select u.id, a.run_id from unnest(:ids::bigint[]) as u(id) cross join lateral (
  select q.run_id from (
    select f.run_id from perdure.schedule_fire f
     where f.schedule_id = u.id and f.run_id is not null and f.how <> 'backfill'
     order by f.nominal_at desc limit :looked_at
  ) l cross join lateral (select r.run_id from perdure.run_queue r where r.run_id = l.run_id offset 0) q
) a;

-- name: add_fires
-- A nominal time that is taken gives no row. A backfill may take one that had no run (missed, skipped).
insert into perdure.schedule_fire (schedule_id, nominal_at, ns, run_id, how, outcome, at)
select u.schedule_id, u.nominal_at, u.ns, u.run_id, u.how, u.outcome, perdure.clock()
  from unnest(:fires.schedule_id::bigint[], :fires.nominal_at::timestamptz[], :fires.ns::int[], :fires.run_id::uuid[], :fires.how::text[], :fires.outcome::text[])
    as u(schedule_id, nominal_at, ns, run_id, how, outcome)
on conflict (schedule_id, nominal_at) do update
  set run_id = excluded.run_id, how = excluded.how, outcome = excluded.outcome, at = excluded.at
  where :backfill and schedule_fire.run_id is null and excluded.run_id is not null
returning schedule_id, nominal_at;

-- name: start_scheduled
-- Runs as any start writes them. One in a flow-control group sleeps until it is admitted.
with fresh as materialized (
  select u.*, perdure.clock() as at
    from unnest(:runs.run_id::uuid[], :runs.ns::int[], :runs.workflow::text[], :runs.version::text[], :runs.body::bytea[], :runs.kind::text[], :runs.attributes::text[], :runs.group_id::uuid[], :runs.deadline_at::timestamptz[], :runs.hash::bytea[], :runs.pin::text[])
      as u(run_id, ns, workflow, version, body, kind, attributes, group_id, deadline_at, hash, pin)
),
queued as (
  insert into perdure.run_queue (run_id, ns, workflow, version, kind, status, created_at, wake_at, epoch, attributes, group_id, deadline_at, pin)
  select run_id, ns, workflow, version, kind, 'pending', at, case when group_id is null then at else 'infinity' end, 0, attributes::jsonb, group_id,
         coalesce(deadline_at, case when kind = 'flow' then
           at + (select x.timeout_us from perdure.workflow_version x where x.ns = fresh.ns and x.workflow = fresh.workflow and x.version = fresh.version) * interval '1 microsecond' end), pin from fresh
)
insert into perdure.history (run_id, seq, last, ns, epoch, at, body, hash) select run_id, 1, 1, ns, 0, at, body, hash from fresh;

-- name: cancel_runs
-- seals: body message
-- KEY SHARE keeps a run from ending between the look and the insert.
with target as (
  select r.run_id, r.ns from unnest(:run_ids::uuid[]) as u(run_id) cross join lateral (
    select q.run_id, q.ns from perdure.run_queue q where q.run_id = u.run_id for key share
  ) r
)
insert into perdure.inbox (ns, run_id, body, kind) select ns, run_id, :body, 'cancel' from target;

-- name: advance_schedules
-- seals: schedules.error schedule_error
update perdure.schedule s
   set next_at = u.next_at, fire_at = u.fire_at, fired = s.fired + u.fired, missed = s.missed + u.missed, skipped = s.skipped + u.skipped,
       error = u.error
  from unnest(:schedules.id::bigint[], :schedules.next_at::timestamptz[], :schedules.fire_at::timestamptz[], :schedules.fired::bigint[], :schedules.missed::bigint[], :schedules.skipped::bigint[], :schedules.error::text[])
    as u(id, next_at, fire_at, fired, missed, skipped, error),
       lateral (select x.ctid as place from perdure.schedule x where x.id = u.id offset 0) at
 where s.ctid = at.place;

-- name: postpone_schedules
-- seals: error schedule_error
update perdure.schedule set error = :error, fire_at = perdure.clock() + :delay_us::bigint * interval '1 microsecond'
 where id = any(:ids::bigint[]) and fire_at <= perdure.clock();

-- name: delete_old_fires
delete from perdure.schedule_fire f using (
  select o.schedule_id, o.nominal_at from perdure.schedule s cross join lateral (
    select x.schedule_id, x.nominal_at from perdure.schedule_fire x
     where x.schedule_id = s.id and x.nominal_at < now() - make_interval(secs => :keep_days::float8 * 86400) limit :limit
  ) o limit :limit
) gone
 where f.schedule_id = gone.schedule_id and f.nominal_at = gone.nominal_at
returning 1;

-- name: schedules_clock
select perdure.clock() as clock;

-- name: schedule_count
select count(*) as count from perdure.schedule where ns = :ns and deleted_at is null;

-- name: put_schedule
-- seals: input schedule_input
-- By name. next_at and fire_at stay unless the spec changed. No row: it comes from elsewhere, and only from there can it be changed.
insert into perdure.schedule as s (ns, name, workflow, version, input, timeout_us, attributes, spec, spec_hash, origin, created_by, next_at, fire_at,
                                   created_at, updated_at)
values (:ns, :name, :workflow, :version, :input, :timeout_us, :attributes, :spec, :spec_hash, :origin, :created_by, :next_at, :fire_at, perdure.clock(), perdure.clock())
on conflict (ns, name) where deleted_at is null do update
  set workflow = excluded.workflow, version = excluded.version, input = excluded.input, timeout_us = excluded.timeout_us,
      attributes = excluded.attributes, spec = excluded.spec, spec_hash = excluded.spec_hash, origin = excluded.origin,
      next_at = case when s.spec_hash = excluded.spec_hash then s.next_at else excluded.next_at end,
      fire_at = case when s.spec_hash = excluded.spec_hash then s.fire_at else excluded.fire_at end,
      error = null, updated_at = perdure.clock()
  where s.origin = excluded.origin or (s.origin in ('api', 'code') and excluded.origin in ('api', 'code'))
returning s.*;

-- name: get_schedule
select * from perdure.schedule where ns = :ns and name = :name and deleted_at is null;

-- name: lock_schedule
select *, perdure.clock() as clock from perdure.schedule where ns = :ns and name = :name and deleted_at is null for update;

-- name: list_schedules
-- An empty `workflow` is any.
select * from perdure.schedule
 where ns = :ns and name > :after and deleted_at is null and (:workflow = '' or workflow = :workflow) order by name limit :limit;

-- name: schedule_names
select name from perdure.schedule where ns = :ns and deleted_at is null order by name limit :limit;

-- name: pause_schedule
update perdure.schedule
   set paused_at = coalesce(paused_at, perdure.clock()), paused_by = coalesce(paused_by, :paused_by), pause_reason = case when paused_at is null then :reason else pause_reason end
 where ns = :ns and name = :name and deleted_at is null
returning *;

-- name: resume_schedule
update perdure.schedule set paused_at = null, paused_by = null, pause_reason = null, next_at = :next_at, fire_at = :fire_at, error = null
 where id = :id
returning *;

-- name: move_schedule
update perdure.schedule set next_at = :next_at, fire_at = :fire_at where id = :id;

-- name: delete_schedule
update perdure.schedule set deleted_at = perdure.clock() where ns = :ns and name = :name and deleted_at is null returning id;

-- name: delete_schedules_of
-- Those of one origin, except `kept`.
update perdure.schedule set deleted_at = perdure.clock()
 where ns = :ns and origin = :origin and deleted_at is null and name <> all(:kept::text[]);

-- name: fired_times
-- Which of these nominal times of a schedule have had a run.
select f.nominal_at, f.run_id from perdure.schedule s cross join lateral (
  select x.nominal_at, x.run_id from perdure.schedule_fire x where x.schedule_id = s.id and x.nominal_at = any(:times::timestamptz[]) and x.run_id is not null
) f
 where s.ns = :ns and s.name = :name and s.deleted_at is null;

-- name: list_fires
-- The run's status is null when there is no such run, or retention has dropped it.
select f.nominal_at, f.at, f.how, f.outcome, f.run_id, coalesce(q.status, r.status) as status
  from (select * from perdure.schedule_fire x where x.schedule_id = :schedule_id and x.nominal_at < :before order by x.nominal_at desc limit :limit) f
  left join lateral (select a.status from perdure.run_queue a where a.run_id = f.run_id offset 0) q on true
  left join lateral (select e.status from perdure.run e where e.run_id = f.run_id offset 0) r on true
 order by f.nominal_at desc;

-- name: list_calendars
select name, spec, updated_at, updated_by from perdure.calendar where ns = :ns and name > :after order by name limit :limit;

-- name: get_calendar
select name, spec, updated_at, updated_by from perdure.calendar where ns = :ns and name = :name;

-- name: put_calendar
insert into perdure.calendar (ns, name, spec, updated_at, updated_by) values (:ns, :name, :spec, perdure.clock(), :updated_by)
on conflict (ns, name) do update set spec = excluded.spec, updated_at = excluded.updated_at, updated_by = excluded.updated_by
returning name, spec, updated_at, updated_by;

-- name: lock_calendar
select name from perdure.calendar where ns = :ns and name = :name for update;

-- name: delete_calendar
delete from perdure.calendar where ns = :ns and name = :name returning name;

-- name: lock_schedules_page
-- Schedules of a namespace, to look at their specs one page after the other.
select id, name, spec, next_at, paused_at, perdure.clock() as clock from perdure.schedule
 where ns = :ns and id > :after_id and deleted_at is null order by id limit :limit for update;

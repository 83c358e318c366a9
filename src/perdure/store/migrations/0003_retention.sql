-- Retention by policy, export of ended runs before they are removed, import.
-- needs: 0001
--
-- A job removes the ended runs of one range of ids, in most cases those of one day. It freezes what it removes: runs that its rules call
-- expired at its `cutoff`. New runs end after the cutoff, so the set cannot grow, and a crash finds the same set again.
--
--   exporting   objects are written, one part after the other. Skipped without an export address.
--   removing    all objects are there and were read back. A day is dropped as a whole; runs that are kept are carried forward first.
--   done        or abandoned: a policy changed before anything was removed, and what was exported is deleted again.

-- How long ended runs are kept. The most specific row counts: of a workflow, of its namespace, of all namespaces (ns 0); without any, the
-- setting of the engines.
create table perdure.retention_policy (
  ns         int not null,
  workflow   text not null default '',
  days       double precision check (days > 0),
  updated_at timestamptz not null default now(),
  updated_by text not null,
  primary key (ns, workflow),
  check (ns > 0 or workflow = '')
);
comment on column perdure.retention_policy.ns is '0: all namespaces';
comment on column perdure.retention_policy.workflow is 'empty: the namespace itself';
comment on column perdure.retention_policy.days is 'after the end of a run; null: it is kept for ever';

-- A database whose runs were kept for ever until now keeps them: an upgrade removes nothing.
insert into perdure.retention_policy (ns, days, updated_by)
select 0, null, 'migration 0003' where not exists (select from perdure.retention)
   and (exists (select from perdure.run) or exists (select from perdure.run_queue));

create table perdure.retention_job (
  id           uuid primary key,
  name         text not null,
  action       text not null check (action in ('drop', 'delete')),
  status       text not null default 'exporting' check (status in ('exporting', 'removing', 'done', 'abandoned')),
  low          uuid not null,
  high         uuid not null,
  cutoff       timestamptz not null,
  default_days double precision,
  rules        jsonb not null,
  url          text,
  format       text,
  epoch        int not null default 1,
  lease_until  timestamptz not null,
  expected     bigint not null default 0,
  exported_to  uuid not null default '00000000-0000-0000-0000-000000000000',
  removed_to   uuid not null default '00000000-0000-0000-0000-000000000000',
  runs         bigint not null default 0,
  events       bigint not null default 0,
  tasks        bigint not null default 0,
  bytes        bigint not null default 0,
  removed      bigint not null default 0,
  kept         bigint not null default 0,
  error        text,
  created_at   timestamptz not null default now(),
  updated_at   timestamptz not null default now(),
  finished_at  timestamptz
) with (fillfactor = 50);
comment on column perdure.retention_job.name is 'the day of its runs, or rest: runs whose day has no partition any more';
comment on column perdure.retention_job.action is 'drop: the partition of the day; delete: run by run';
comment on column perdure.retention_job.cutoff is 'the moment at which runs must be older than their policy says';
comment on column perdure.retention_job.rules is 'the policies when it began, as perdure.retention_rules has them';
comment on column perdure.retention_job.url is 'where its runs are exported to; null: nowhere';
comment on column perdure.retention_job.epoch is 'counts the engines that took it up; one that has another number is no longer at work on it';
comment on column perdure.retention_job.expected is 'runs that were expired when it began';
comment on column perdure.retention_job.exported_to is 'runs up to this one are in parts';
comment on column perdure.retention_job.removed_to is 'runs up to this one are deleted; of no use to a job that drops';
comment on column perdure.retention_job.kept is 'runs that were carried forward when the day was dropped';
-- One at a time.
create unique index retention_job_open on perdure.retention_job ((true)) where status in ('exporting', 'removing');
create index retention_job_list on perdure.retention_job (created_at);

-- Where ended runs are exported to, as the engine says that was started last. Engines with another setting, or none, remove nothing.
create table perdure.retention_export (
  one        boolean primary key default true check (one),
  url        text not null,
  updated_at timestamptz not null default now()
);

-- Objects of exports, until their manifest is written and read back.
create table perdure.retention_part (
  job_id   uuid not null references perdure.retention_job on delete cascade,
  n        int not null,
  object   text not null,
  first    uuid not null,
  last     uuid not null,
  runs     int not null,
  events   bigint not null,
  tasks    bigint not null,
  bytes    bigint not null,
  sha256   bytea not null,
  primary key (job_id, n)
);

-- Runs of a day that are kept when it is dropped, found before the day is locked.
create table perdure.retention_kept (
  job_id uuid not null references perdure.retention_job on delete cascade,
  run_id uuid not null,
  primary key (job_id, run_id)
);

-- When a range was last looked through for expired runs.
create table perdure.retention_look (
  name      text primary key,
  looked_at timestamptz not null
);

-- Runs that no policy removes before a moment: imported ones.
create table perdure.retention_hold (
  run_id uuid primary key,
  until  timestamptz not null default 'infinity'
);
create index retention_hold_until on perdure.retention_hold (until) where until < 'infinity';

-- What the policies say, by `ns/workflow`, `ns/` and `/`. A JSON null: for ever.
create function perdure.retention_rules(default_days double precision) returns jsonb
language sql stable set search_path = pg_catalog, perdure, pg_temp as $$
  select jsonb_build_object('/', default_days)
         || coalesce(jsonb_object_agg(case when p.ns = 0 then '/' else p.ns || '/' || p.workflow end, p.days), '{}')
    from retention_policy p;
$$;

create function perdure.is_expired(rules jsonb, ns int, workflow text, finished_at timestamptz, cutoff timestamptz) returns boolean
language sql stable parallel safe as $$
  select coalesce(finished_at <= cutoff - (coalesce(rules->(ns || '/' || workflow), rules->(ns || '/'), rules->'/') #>> '{}')::float8
                                            * interval '1 day', false);
$$;

-- The kept runs of a job that drops a day, found without a lock: of the ended ones those that have not expired. perdure.drop_expired adds
-- what ends or is retried later.
create function perdure.begin_removal(of_job uuid, of_epoch int) returns text
language plpgsql security definer set search_path = pg_catalog, perdure, pg_temp as $$
declare
  job retention_job;
begin
  select * into job from retention_job j where j.id = of_job and j.epoch = of_epoch and j.status = 'exporting' for update;
  if not found then
    return 'lost';
  end if;
  if retention_rules(job.default_days) <> job.rules then
    return 'changed';
  end if;
  if job.action = 'drop' then
    insert into retention_kept (job_id, run_id)
    select job.id, r.run_id from run r
     where r.run_id >= job.low and r.run_id < job.high
       and (not is_expired(job.rules, r.ns, r.workflow, r.finished_at, job.cutoff) or r.run_id > job.exported_to and job.url is not null)
    on conflict do nothing;
  end if;
  update retention_job j set status = 'removing', updated_at = now() where j.id = job.id;
  return 'begun';
end $$;

-- Drops the partition of one table for a job. `run` comes first: it decides which runs are kept, and from then on rows of runs that end
-- go to the default partition. Of the other tables the rows of runs that are active, or that `run` kept, are carried forward.
-- 'busy': a lock was not to be had; try again. 'changed': a policy was changed, and nothing was removed.
create function perdure.drop_expired(of_job uuid, of_epoch int, parent text) returns text
language plpgsql security definer set search_path = pg_catalog, perdure, pg_temp set lock_timeout = '1s' as $$
declare
  job retention_job;
  name text;
  ended timestamptz;
  kept uuid[];
  carried bigint := 0;
begin
  select * into job from retention_job j where j.id = of_job and j.epoch = of_epoch and j.status = 'removing' and j.action = 'drop' for update;
  if not found then
    return 'lost';
  end if;
  name := parent || '_p' || replace(job.name, '-', '');
  ended := partition_day(parent, name) + interval '24 hours';
  if ended > now() or job.low <> first_id(ended - interval '24 hours') or job.high <> first_id(ended) then
    raise exception 'the day of % is not over, or not that of the job', name using errcode = 'invalid_parameter_value';
  end if;
  if not pg_try_advisory_xact_lock(hashtext('perdure.partitions')) then
    return 'busy';
  end if;
  if not exists (select from pg_inherits i where i.inhparent = format('perdure.%I', parent)::regclass
                    and i.inhrelid = to_regclass(format('perdure.%I', name))) then
    return 'gone';
  end if;
  if parent = 'run' then
    lock table retention_policy in share mode;
    if retention_rules(job.default_days) <> job.rules then
      return 'changed';
    end if;
    execute format('alter table perdure.%I detach partition perdure.%I', parent, name);
    execute format($q$
      select array_agg(u.run_id) from (
        select k.run_id from retention_kept k where k.job_id = $1
        union select h.run_id from retention_hold h where h.run_id >= $2 and h.run_id < $3 and h.until > $4
        union select r.run_id from namespace n join perdure.%I r on r.ns = n.id and r.finished_at > $4 - interval '1 hour') u $q$, name)
      into kept using job.id, job.low, job.high, job.cutoff;
  else
    execute format('alter table perdure.%I detach partition perdure.%I', parent, name);
    select array_agg(u.run_id) into kept from (
      select q.run_id from run_queue q where q.run_id >= job.low and q.run_id < job.high
      union all select r.run_id from run r where r.run_id >= job.low and r.run_id < job.high) u;
  end if;
  if kept is not null then
    if parent in ('task', 'task_attempt') then
      -- The id of a task opens with the first half of its run's.
      execute format($q$
        insert into perdure.%I select p.* from unnest($1) u(run_id),
          lateral (select p.* from perdure.%I p
                    where p.id >= (left(u.run_id::text, 18) || '-0000-000000000000')::uuid
                      and p.id <= (left(u.run_id::text, 18) || '-ffff-ffffffffffff')::uuid and p.run_id = u.run_id) p $q$, parent, name)
        using kept;
    else
      execute format('insert into perdure.%I select p.* from unnest($1) u(run_id) join perdure.%I p on p.run_id = u.run_id', parent, name)
        using kept;
    end if;
    get diagnostics carried = row_count;
  end if;
  execute format('drop table perdure.%I', name);
  insert into retention as r (parent, below, dropped_at) values (drop_expired.parent, job.high, now())
  on conflict on constraint retention_pkey do update set below = greatest(r.below, excluded.below), dropped_at = excluded.dropped_at;
  if parent = 'run' then
    update retention_job j set kept = carried, removed = greatest(j.runs, j.expected), updated_at = now() where j.id = job.id;
  end if;
  return 'dropped';
end $$;

-- Deletes the next expired runs of a job, at most `batch`, with all their rows. How many; 0: there are no more. -1: a policy was
-- changed. -2: another engine has the job.
-- Locks: the rows of the ended runs, so that one is deleted or retried, never both.
create function perdure.delete_expired(of_job uuid, of_epoch int, batch int) returns int
language plpgsql security definer set search_path = pg_catalog, perdure, pg_temp as $$
declare
  job retention_job;
  found_ids uuid[];
begin
  select * into job from retention_job j where j.id = of_job and j.epoch = of_epoch and j.status = 'removing' and j.action = 'delete' for update;
  if not found then
    return -2;
  end if;
  if retention_rules(job.default_days) <> job.rules then
    return -1;
  end if;
  select array_agg(f.run_id) into found_ids from (
    select r.run_id from run r
     where r.run_id > job.removed_to and r.run_id >= job.low and r.run_id < job.high and (job.url is null or r.run_id <= job.exported_to)
       and is_expired(job.rules, r.ns, r.workflow, r.finished_at, job.cutoff)
       and not exists (select from retention_hold h where h.run_id = r.run_id and h.until > job.cutoff)
     order by r.run_id limit batch for update of r) f;
  if found_ids is null then
    return 0;
  end if;
  delete from history h where h.run_id = any(found_ids);
  delete from task t using unnest(found_ids) u(run_id)
   where t.run_id = u.run_id and t.id >= (left(u.run_id::text, 18) || '-0000-000000000000')::uuid
     and t.id <= (left(u.run_id::text, 18) || '-ffff-ffffffffffff')::uuid;
  delete from task_attempt t using unnest(found_ids) u(run_id)
   where t.run_id = u.run_id and t.id >= (left(u.run_id::text, 18) || '-0000-000000000000')::uuid
     and t.id <= (left(u.run_id::text, 18) || '-ffff-ffffffffffff')::uuid;
  delete from node_count c where c.run_id = any(found_ids);
  delete from run_state s where s.run_id = any(found_ids);
  delete from task_log l where l.run_id = any(found_ids);
  delete from payload_use u where u.run_id = any(found_ids);
  delete from retention_hold h where h.run_id = any(found_ids);
  delete from promise p where p.run_id = any(found_ids);
  delete from vote v where v.run_id = any(found_ids);
  delete from set_aside_message m where m.run_id = any(found_ids);
  delete from run_chain c where c.head = any(found_ids);
  delete from run r where r.run_id = any(found_ids);
  update retention_job j set removed = j.removed + cardinality(found_ids), removed_to = found_ids[cardinality(found_ids)], updated_at = now()
   where j.id = job.id;
  return cardinality(found_ids);
end $$;

-- Engines of 0.1.0 know one age for all runs and no export: they drop nothing any more, and an engine of this version does.
create or replace function perdure.drop_partition(parent text, name text) returns boolean
language plpgsql security definer set search_path = pg_catalog, perdure, pg_temp as $$
begin
  perform partition_day(parent, name);
  return false;
end $$;

-- A namespace under the number that it has in an export: hashes of histories cover that number. False when the number or the name is taken.
create function perdure.import_namespace(number int, called text) returns boolean
language plpgsql security definer set search_path = pg_catalog, perdure, pg_temp as $$
begin
  insert into namespace (id, name) overriding system value values (number, called) on conflict do nothing;
  if not found then
    return false;
  end if;
  perform setval(pg_get_serial_sequence('perdure.namespace', 'id'), (select max(n.id) from namespace n));
  return true;
end $$;

revoke execute on function perdure.begin_removal(uuid, int), perdure.drop_expired(uuid, int, text), perdure.delete_expired(uuid, int, int),
  perdure.retention_rules(double precision), perdure.is_expired(jsonb, int, text, timestamptz, timestamptz),
  perdure.import_namespace(int, text) from public;

-- The server: attributes and lists of runs, workers, task output, API keys, audit, idempotent requests.
--
-- Nothing here is on the path of a commit except run_queue.attributes, which travels with its row.

alter table perdure.namespace
  add column created_at timestamptz not null default now(),
  add column deleted_at timestamptz;

-- A workflow by name. `current` is the version new runs get when they name none; a deleted workflow takes no new runs.
create table perdure.workflow (
  ns          int not null,
  name        text not null,
  kind        text not null default 'code' check (kind in ('code', 'dag', 'graph')),
  current     text not null,
  description text,
  created_at  timestamptz not null default now(),
  deleted_at  timestamptz,
  primary key (ns, name)
);
insert into perdure.workflow (ns, name, kind, current, created_at)
select distinct on (ns, workflow) ns, workflow, kind, version, registered_at
  from perdure.workflow_version order by ns, workflow, registered_at desc;

-- What a user says about a run, to find it by. A flat JSON object; null where there is none.
alter table perdure.run_queue add column attributes jsonb;
alter table perdure.run       add column attributes jsonb;

-- Lists of runs, newest first, by whatever they are filtered by. Their keys never change, so they cost an insert and no update.
create index run_queue_list          on perdure.run_queue (ns, run_id);
create index run_list                on perdure.run (ns, run_id);
create index run_list_by_workflow    on perdure.run (ns, workflow, run_id);
create index run_list_ended_badly    on perdure.run (ns, status, run_id) where status in (3, 4);
create index run_list_by_end         on perdure.run (ns, finished_at);
create index run_queue_by_attributes on perdure.run_queue using gin (attributes jsonb_path_ops) where attributes is not null;
create index run_by_attributes       on perdure.run using gin (attributes jsonb_path_ops) where attributes is not null;

-- What is known of an attempt that has been running for a while; brought up to date every few seconds, by the engine that has it.
alter table perdure.task_queue
  add column worker     text,
  add column started_at timestamptz,
  add column beat_at    timestamptz,
  add column details    bytea,
  add column blocked    text;
alter table perdure.task_queue add column trace text;
comment on column perdure.task_queue.trace is 'W3C traceparent of the run''s span, where its start was traced';

-- Workers that are connected. Rows belong to an engine session and go with it.
create table perdure.worker (
  session_id   bigint not null,
  id           uuid not null,
  ns           int not null,
  name         text not null,
  host         text not null,
  pid          int not null,
  sdk          text not null,
  queues       text[] not null,
  tasks        text[] not null,
  workflows    text[] not null,
  slots        int not null,
  slots_used   int not null,
  runs_held    int not null,
  draining     boolean not null,
  connected_at timestamptz not null,
  seen_at      timestamptz not null,
  blocked      text,
  primary key (ns, id)
);
create index worker_session on perdure.worker (session_id);

-- What tasks printed and logged: chunks of lines, per attempt. seq -1 is the workflow's own code.
-- body: JSON array of [at_us, stream, level, text].
create table perdure.task_log (
  run_id  uuid not null,
  seq     int not null,
  attempt int not null,
  n       int not null,
  ns      int not null,
  at      timestamptz not null default now(),
  lines   int not null,
  body    bytea not null,
  primary key (run_id, seq, attempt, n, ns)
) partition by range (run_id);
create table perdure.task_log_default partition of perdure.task_log default;
-- A run's lines in order of arrival, and what arrived since.
create index task_log_by_time on perdure.task_log (run_id, at, seq, attempt, n);

-- API keys: the secret is never stored, only its SHA-256. id is the public half by which a key is found.
create table perdure.api_key (
  id           text primary key,
  ns           int,
  name         text not null,
  role         text not null check (role in ('viewer', 'operator', 'developer', 'worker', 'admin')),
  scopes       text[],
  hash         bytea not null,
  rate_per_s   double precision,
  created_at   timestamptz not null default now(),
  created_by   text not null,
  expires_at   timestamptz,
  revoked_at   timestamptz,
  last_used_at timestamptz
);
comment on column perdure.api_key.ns is 'null: every namespace';

-- Who did what. Append-only: the trigger refuses everything else, whoever asks.
create table perdure.audit (
  id     bigint generated always as identity primary key,
  at     timestamptz not null default now(),
  ns     int,
  actor  text not null,
  action text not null,
  target text not null,
  detail jsonb
);
create index audit_list on perdure.audit (ns, id);
create function perdure.refuse_change() returns trigger language plpgsql as $$
begin
  raise exception 'perdure.% is append-only', tg_table_name using errcode = 'insufficient_privilege';
end $$;
create trigger audit_append_only before update or delete or truncate on perdure.audit
  for each statement execute function perdure.refuse_change();

-- Requests that carry an Idempotency-Key: the first answer is the answer.
create table perdure.idempotency (
  ns         int not null,
  key        text not null,
  hash       bytea not null,
  created_at timestamptz not null default now(),
  status     int,
  answer     bytea,
  primary key (ns, key)
);
create index idempotency_age on perdure.idempotency (created_at);

-- Engines make and drop partitions, and need not be allowed to change the schema for it: these functions do it for them, for the
-- tables that grow and for names that follow from a day, and nothing else. Whoever has no grant cannot call them.

-- The smallest id of a moment; see core/ids.py.
create function perdure.first_id(at timestamptz) returns uuid language sql immutable parallel safe
  return (lpad(to_hex((extract(epoch from at) * 1000)::bigint), 12, '0') || repeat('0', 20))::uuid;

-- The day that a partition's name tells, once the name is known to be one of ours.
create function perdure.partition_day(parent text, name text) returns timestamptz
language plpgsql immutable set search_path = pg_catalog, perdure, pg_temp as $$
begin
  if parent is null or name is null or parent not in ('history', 'run', 'task', 'run_state', 'task_log')
     or name !~ ('^' || parent || '_p[0-9]{8}$') then
    raise exception '% is not a partition of perdure.%', name, parent using errcode = 'invalid_parameter_value';
  end if;
  return make_date(left(right(name, 8), 4)::int, left(right(name, 4), 2)::int, right(name, 2)::int)::timestamp at time zone 'UTC';
end $$;

-- Made beside and then attached: attaching does not block writers of the other partitions. False: it is there already.
-- Locks: one advisory lock for all changes of partitions, then the table for the moment of attaching.
create function perdure.create_partition(parent text, name text, low uuid, high uuid) returns boolean
language plpgsql security definer set search_path = pg_catalog, perdure, pg_temp set lock_timeout = '5s' as $$
declare
  day constant timestamptz := perdure.partition_day(parent, name);
begin
  if day > now() + interval '400 days' or low is distinct from perdure.first_id(day)
     or high is distinct from perdure.first_id(day + interval '24 hours') then
    raise exception 'the bounds of % are not those of its day', name using errcode = 'invalid_parameter_value';
  end if;
  perform pg_advisory_xact_lock(hashtext('perdure.partitions'));
  if exists (select from pg_inherits i where i.inhparent = format('perdure.%I', parent)::regclass
                and i.inhrelid = to_regclass(format('perdure.%I', name))) then
    return false;
  end if;
  execute format('create table perdure.%I (like perdure.%I including defaults including constraints)', name, parent);
  execute format('alter table perdure.%I attach partition perdure.%I for values from (%L) to (%L)', parent, name, low, high);
  return true;
end $$;

-- A day that is over. Rows of runs that are still active move to the default partition first. False: somebody else is at it.
-- Detached, the table takes no more writes of its range: late ones go to the default partition.
create function perdure.drop_partition(parent text, name text) returns boolean
language plpgsql security definer set search_path = pg_catalog, perdure, pg_temp set lock_timeout = '5s' as $$
declare
  ended constant timestamptz := perdure.partition_day(parent, name) + interval '24 hours';
  active uuid[];
begin
  if ended > now() then
    raise exception 'the day of % is not over', name using errcode = 'invalid_parameter_value';
  end if;
  if not pg_try_advisory_xact_lock(hashtext('perdure.partitions'))
     or not exists (select from pg_inherits i where i.inhparent = format('perdure.%I', parent)::regclass
                       and i.inhrelid = to_regclass(format('perdure.%I', name))) then
    return false;
  end if;
  execute format('alter table perdure.%I detach partition perdure.%I', parent, name);
  select array_agg(q.run_id) into active from perdure.run_queue q where q.run_id < perdure.first_id(ended);
  if active is not null then
    execute format('insert into perdure.%I select p.* from perdure.%I p where p.run_id = any($1)', parent, name) using active;
  end if;
  execute format('drop table perdure.%I', name);
  return true;
end $$;

revoke execute on function perdure.first_id(timestamptz), perdure.partition_day(text, text),
  perdure.create_partition(text, text, uuid, uuid), perdure.drop_partition(text, text) from public;

-- The spine: sessions, runs, history, tasks, inbox.
--
-- Hot tables hold active work only and stay small: engine_session, run_queue, task_queue, inbox, promise.
-- Everything that grows is append-only and range-partitioned by id, hence by time, because an id opens with its
-- millisecond: history, run, task, run_state. Retention drops whole partitions. The default partition of each takes rows of
-- runs that outlived theirs, so that nothing is ever refused for want of a partition.
--
-- Ownership: run_queue.owner and task_queue.owner name a row of engine_session. Every write of an engine first locks
-- its own session row FOR KEY SHARE; the reaper DELETEs an expired session, hence waits for commits in flight, and frees its
-- rows in the same transaction. A stale engine finds no session row and writes nothing.
--
-- Lock order everywhere: engine_session, then run_queue, then task_queue, then inbox.

create schema if not exists perdure;

-- The clock that timers, retries and history follow. It is the database's own; a test environment may shift it for its own
-- connections (set perdure.clock_offset = '1 day'). Sessions expire by the unshifted now().
create function perdure.clock() returns timestamptz language sql stable parallel safe
  return now() + coalesce(nullif(current_setting('perdure.clock_offset', true), ''), '0')::interval;

create table perdure.namespace (
  id   int generated always as identity primary key,
  name text not null unique check (length(name) between 1 and 200)
);
insert into perdure.namespace (name) values ('default');

create table perdure.engine_session (
  id           bigint generated always as identity primary key,
  engine       text not null,
  started_at   timestamptz not null default now(),
  heartbeat_at timestamptz not null default now(),
  expires_at   timestamptz not null,
  slots        int not null default 0,
  slots_free   int not null default 0
) with (fillfactor = 50);

-- One row per commit of an engine. It answers, exactly, whether a COMMIT whose answer was lost took effect: whoever
-- inserts (session, n) first has it, and the other one is refused by the primary key.
create table perdure.commit_log (
  session_id bigint not null,
  n          bigint not null,
  primary key (session_id, n)
);

create table perdure.workflow_version (
  ns            int not null,
  workflow      text not null,
  version       text not null,
  kind          text not null check (kind in ('code', 'dag', 'graph')),
  registered_at timestamptz not null default now(),
  primary key (ns, workflow, version)
);

-- Active runs, one row each, sleeping or not. A sleeping run is a row with a future wake_at and no owner.
-- status: 0 pending, 1 running.
create table perdure.run_queue (
  run_id      uuid primary key,
  ns          int not null,
  workflow    text not null,
  version     text not null,
  key         text,
  parent_id   uuid,
  parent_seq  int,
  status      smallint not null default 0 check (status in (0, 1)),
  created_at  timestamptz not null,
  wake_at     timestamptz not null,
  owner       bigint,
  epoch       int not null default 0,
  stuck       text,
  check (owner is null or status = 1),
  check (stuck is null or owner is null)
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
create index run_queue_due on perdure.run_queue (ns, workflow, wake_at) where owner is null;
create index run_queue_owned on perdure.run_queue (owner) where owner is not null;

-- Runs that have ended. status: 2 success, 3 failed, 4 cancelled.
create table perdure.run (
  run_id      uuid not null primary key,
  ns          int not null,
  workflow    text not null,
  version     text not null,
  key         text,
  parent_id   uuid,
  parent_seq  int,
  status      smallint not null check (status in (2, 3, 4)),
  created_at  timestamptz not null,
  finished_at timestamptz not null,
  epoch       int not null,
  events      int not null,
  error_code  text,
  error       text,
  successor   uuid
) partition by range (run_id);
create table perdure.run_default partition of perdure.run default;

-- Runs that were started under an id of the user's own.
create table perdure.run_key (
  ns         int not null,
  key        text not null,
  run_id     uuid not null,
  input_hash bytea not null,
  primary key (ns, key)
);
create index run_key_run on perdure.run_key (run_id);

-- One row holds the events seq..last of a run that one commit wrote. epoch is the run's ownership epoch at the time.
create table perdure.history (
  run_id uuid not null,
  seq    int not null check (seq > 0),
  last   int not null check (last >= seq),
  ns     int not null,
  epoch  int not null,
  at     timestamptz not null,
  body   bytea not null,
  primary key (run_id, seq)
) partition by range (run_id);
create table perdure.history_default partition of perdure.history default;

-- Tasks that have ended, one row each, written once in their final state.
-- status: 3 success, 4 failed, 5 skipped, 6 cancelled. attempts counts executions begun, lost the workers lost.
create table perdure.task (
  id           uuid not null primary key,
  ns           int not null,
  run_id       uuid not null,
  seq          int not null,
  name         text not null,
  queue        text not null,
  status       smallint not null check (status in (3, 4, 5, 6)),
  attempts     int not null check (attempts >= 0),
  lost         int not null,
  epoch        int not null,
  scheduled_at timestamptz not null,
  started_at   timestamptz,
  finished_at  timestamptz not null,
  error        text
) partition by range (id);
create table perdure.task_default partition of perdure.task default;

-- Tasks that are waiting for any engine, waiting for a retry, or have been running for a while.
-- status: 0 pending, 1 dispatched, 2 running. Claimable when owner is null and run_at has come.
create table perdure.task_queue (
  id           uuid primary key,
  ns           int not null,
  run_id       uuid not null,
  seq          int not null,
  name         text not null,
  queue        text not null,
  status       smallint not null check (status in (0, 1, 2)),
  attempt      int not null check (attempt >= 1),
  lost         int not null,
  run_at       timestamptz not null,
  owner        bigint,
  scheduled_at timestamptz not null,
  options      bytea not null,
  input        bytea not null,
  error        text,
  check ((owner is null) = (status = 0))
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
create index task_queue_due on perdure.task_queue (ns, queue, name, run_at) where owner is null;
create index task_queue_run on perdure.task_queue (run_id);
create index task_queue_owned on perdure.task_queue (owner) where owner is not null;

-- Facts on their way into a run: signals, cancel requests, promise values, child results, task results from elsewhere.
-- The run's owner moves them into the history in its own commit. Rows are found by existence, never by a cursor over id.
create table perdure.inbox (
  id     bigint generated always as identity primary key,
  ns     int not null,
  run_id uuid not null,
  body   bytea not null,
  at     timestamptz not null default now()
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
create index inbox_run on perdure.inbox (run_id);

create table perdure.promise (
  run_id      uuid not null,
  name        text not null,
  ns          int not null,
  created_at  timestamptz not null,
  resolved_at timestamptz,
  primary key (run_id, name)
);

create table perdure.run_state (
  run_id uuid not null,
  name   text not null,
  ns     int not null,
  value  bytea,
  primary key (run_id, name)
) partition by range (run_id);
create table perdure.run_state_default partition of perdure.run_state default;

-- Perdure in PostgreSQL.
--
-- A run is an execution of a workflow. Its history is a list of events, appended by the one engine that owns the run; replaying
-- the events restores the run. Everything else in this schema is a queue, an index or a view of that history.
--
--   start       run_queue gets a row (pending), history its first event.
--   claim       an engine with free capacity sets run_queue.owner to its session: the run is running.
--   work        tasks begin in the memory of the owner. One that waits for another engine, waits for a retry or runs for a while
--               also has a row in task_queue, from which any engine may claim it.
--   commit      a few times per second an engine writes everything its runs did, in one statement (sql/commits.sql).
--   sleep       a run that waits leaves memory: owner is null again and wake_at says when it is due, 'infinity' for a message.
--   message     signals, results of children and cancel requests are rows of inbox until the owner moves them into the history.
--   end         the row moves from run_queue to run, together with the last event.
--
-- Ownership. run_queue.owner and task_queue.owner name a row of engine_session. Every write of an engine first locks its own
-- session row FOR KEY SHARE. The reaper DELETEs an expired session, hence waits for commits in flight, and frees its rows in the
-- same transaction. An engine that was stalled finds no session row and writes nothing.
--
-- Lock order: engine_session, run_queue, task_queue, inbox, then everything else. flow_control_group rows are locked before the
-- advisory locks of keys (sql/flow_control.sql). Migrations lock tables in the same order.
--
-- Hot tables hold active work only and stay small: engine_session, run_queue, task_queue, inbox, promise. Tables that grow are
-- append-only and partitioned by id, hence by day, because an id opens with its millisecond: run, history, task, task_attempt, node_count,
-- run_state, task_log, payload_use. Retention drops whole partitions. The default partition takes rows of runs that outlived their day.
--
-- Conventions. ns is a namespace's number. Times end in _at and follow perdure.clock(); durations end in _us, microseconds.
-- A column that holds one of a few words has a CHECK that lists them. Payloads are bytes that only clients decode.

create schema if not exists perdure;

-- The clock that timers, retries and history follow. It is the database's own; a test may shift it for its own connections
-- (set perdure.clock_offset = '1 day'). Sessions expire by the unshifted now().
create function perdure.clock() returns timestamptz language sql stable parallel safe
  return now() + coalesce(nullif(current_setting('perdure.clock_offset', true), ''), '0')::interval;

create table perdure.namespace (
  id         int generated always as identity primary key,
  name       text not null unique check (length(name) between 1 and 200),
  created_at timestamptz not null default now(),
  deleted_at timestamptz
);
insert into perdure.namespace (name) values ('default');


-- Engines

create table perdure.engine_session (
  id           bigint generated always as identity primary key,
  engine       text not null,
  started_at   timestamptz not null default now(),
  heartbeat_at timestamptz not null default now(),
  expires_at   timestamptz not null,
  slots        int not null default 0,
  slots_free   int not null default 0,
  knows        int not null default 1  -- the last migration that its code knows
) with (fillfactor = 50);

-- One row per commit. It decides whether a COMMIT whose answer was lost took effect: the engine tries to insert the same number
-- again, and the primary key lets only one of the two have it.
create table perdure.commit_log (
  session_id bigint not null,
  n          bigint not null,
  primary key (session_id, n)
);

-- Connected workers, written by the engine they are connected to. A row goes with its session.
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
  versions     jsonb not null default '{}',
  build_id     text not null default '',
  ended        int not null default 0,
  failed       int not null default 0,
  p50_us       bigint,
  p95_us       bigint,
  p99_us       bigint,
  primary key (ns, id)
);
comment on column perdure.worker.versions is 'workflow -> the version of it that the worker serves';
comment on column perdure.worker.ended is 'attempts of the last five minutes; failed and the percentiles of their durations are of these';
comment on column perdure.worker.blocked is 'the stack that blocks the worker''s event loop';
create index worker_session on perdure.worker (session_id);

-- Tasks in the memory of an engine that have no row in task_queue, per kind: those that wait there, and attempts under way. Written every
-- few seconds. Rows go with the session.
create table perdure.engine_backlog (
  session_id bigint not null,
  ns         int not null,
  queue      text not null,
  name       text not null,
  waiting    int not null,
  running    int not null,
  oldest_at  timestamptz,
  primary key (session_id, ns, queue, name)
);
comment on column perdure.engine_backlog.oldest_at is 'since when the task waits that has waited longest';


-- Definitions

-- A workflow by name. `current` is the version of new runs that name none, but for the part of them that gets the ramped one. A deleted
-- workflow takes no new runs.
create table perdure.workflow (
  ns          int not null,
  name        text not null,
  kind        text not null default 'code' check (kind in ('code', 'dag', 'graph')),
  current     text not null,
  description text,
  created_at  timestamptz not null default now(),
  deleted_at  timestamptz,
  previous    text,
  ramp        text,
  ramp_percent double precision not null default 0 check (ramp_percent between 0 and 100),
  by_hand     boolean not null default false,
  primary key (ns, name)
);
comment on column perdure.workflow.previous is 'the version that was current before; a rollback goes back to it';
comment on column perdure.workflow.ramp is 'the version that ramp_percent of new runs get';
comment on column perdure.workflow.by_hand is 'current or ramp was set by hand: a version that a worker registers does not become current';

-- Versions that a worker has served (code) or that were deployed (dag, graph).
create table perdure.workflow_version (
  ns            int not null,
  workflow      text not null,
  version       text not null,
  kind          text not null check (kind in ('code', 'dag', 'graph')),
  registered_at timestamptz not null default now(),
  document      text,
  source        text,
  control       text,
  timeout_us    bigint,
  parameters    text,
  messages      text,
  hash          text,
  pinned        boolean not null default false,
  build_id      text,
  seen_at       timestamptz,
  hooks         jsonb,
  subscriptions text,
  on_events     text[],
  primary key (ns, workflow, version)
);
create index workflow_version_hooks on perdure.workflow_version (ns, workflow, version) where hooks is not null;
create index workflow_version_events on perdure.workflow_version using gin (on_events) where on_events is not null;
comment on column perdure.workflow_version.hooks is 'status in which a run ends -> workflow of which a run starts then';
comment on column perdure.workflow_version.subscriptions is 'named events that start runs, as JSON of core/subscriptions.py';
comment on column perdure.workflow_version.on_events is 'the names of those events';
comment on column perdure.workflow_version.hash is 'of the code; other code under the same version is refused';
comment on column perdure.workflow_version.pinned is 'runs stay with the version that they began with';
comment on column perdure.workflow_version.build_id is 'of the worker that last registered it';
comment on column perdure.workflow_version.seen_at is 'when a worker last served it';
comment on column perdure.workflow_version.document is 'a flow as canonical JSON';
comment on column perdure.workflow_version.source is 'a flow as its author wrote it';
comment on column perdure.workflow_version.control is 'flow-control options of its runs as JSON';
comment on column perdure.workflow_version.timeout_us is 'how long a run of a flow may take';
comment on column perdure.workflow_version.parameters is 'parameters of a Python workflow as JSON of core/parameters.py; a start that does not fit is refused';
comment on column perdure.workflow_version.messages is 'messages that a Python workflow reads as JSON of core/published_messages.py; others are refused';

-- Tasks as workers last described them: arguments as JSON Schema, for editors and the checks of `with:`, and the options that a
-- task declares where it is defined, which a flow records with every task it schedules.
create table perdure.task_type (
  ns        int not null,
  name      text not null,
  signature text not null,
  options   text,
  seen_at   timestamptz not null default now(),
  primary key (ns, name)
);
create index task_type_options on perdure.task_type (ns, name) where options is not null;


-- Runs

-- Active runs, one row each. A sleeping run has no owner and a wake_at in the future.
create table perdure.run_queue (
  run_id          uuid primary key,
  ns              int not null,
  workflow        text not null,
  version         text not null,
  kind            text not null default 'code' check (kind in ('code', 'flow')),
  key             text,
  parent_id       uuid,
  parent_seq      int,
  status          text not null default 'pending' check (status in ('pending', 'running')),
  created_at      timestamptz not null,
  wake_at         timestamptz not null,
  owner           bigint,
  epoch           int not null default 0,
  stuck           text,
  paused_at       timestamptz,
  paused_by       text,
  pause_reason    text,
  halted          boolean not null generated always as (stuck is not null or paused_at is not null) stored,
  start_at        timestamptz,
  expires_at      timestamptz,
  attributes      jsonb,
  waiting_on      text,
  wait_reasons    text,
  group_id        uuid,
  admitted_at     timestamptz,
  deadline_at     timestamptz,
  cancel_at       timestamptz,
  undo_wait_until timestamptz,
  takeovers       smallint not null default 0,
  seen_events     int not null default 0,
  suspect         boolean not null default false,
  events          int,
  head            bytea,
  pin             text not null default '',
  full_signals    text,
  check (owner is null or status = 'running'),
  check (owner is null or not halted),
  check ((paused_at is null) = (paused_by is null))
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
comment on column perdure.run_queue.kind is 'code: needs a worker that has the workflow; flow: any engine decides it';
comment on column perdure.run_queue.pin is 'the version of code that alone may execute it; empty: any version';
comment on column perdure.run_queue.epoch is 'counts the claims; an event carries the epoch it was written in';
comment on column perdure.run_queue.stuck is 'why it cannot go on';
comment on column perdure.run_queue.paused_at is 'since when an operator holds it';
comment on column perdure.run_queue.halted is 'stuck or paused: it is not claimed until it is resumed';
comment on column perdure.run_queue.start_at is 'it does not begin before; null: at once';
comment on column perdure.run_queue.expires_at is 'it fails if it has not begun by then; the first claim empties it';
comment on column perdure.run_queue.attributes is 'a flat JSON object of the user, to find the run by';
comment on column perdure.run_queue.waiting_on is 'the first wait reason, by which lists are filtered; null while an engine decides the run';
comment on column perdure.run_queue.wait_reasons is 'all of them: JSON of core/wait_reasons.py';
comment on column perdure.run_queue.full_signals is 'signals of which its code has left too many unread, as JSON: no more of them are taken';
comment on column perdure.run_queue.group_id is 'its flow-control group; null: nothing limits it';
comment on column perdure.run_queue.admitted_at is 'when flow control admitted it';
comment on column perdure.run_queue.deadline_at is 'the run must have ended by then';
comment on column perdure.run_queue.cancel_at is 'when a cancel request moved from the inbox into the history';
comment on column perdure.run_queue.undo_wait_until is 'until then the engine waits for a worker that can compensate what the run did';
comment on column perdure.run_queue.takeovers is 'times in a row that an engine died or lost its lease while it loaded or decided the run, without a new event';
comment on column perdure.run_queue.seen_events is 'how many events the run had at the last takeover';
comment on column perdure.run_queue.suspect is 'it is claimed alone, because engines may have died of it';
comment on column perdure.run_queue.events is 'last event when the run was last released; its history may be longer';
comment on column perdure.run_queue.head is 'hash of the history row of that event';
create index run_queue_due           on perdure.run_queue (ns, workflow, pin, wake_at) where owner is null;
create index run_queue_flows         on perdure.run_queue (wake_at) where owner is null and not halted and kind = 'flow';
create index run_queue_owned         on perdure.run_queue (owner) where owner is not null;
create index run_queue_list          on perdure.run_queue (ns, run_id);
create index run_queue_by_attributes on perdure.run_queue using gin (attributes jsonb_path_ops) where attributes is not null;
create index run_queue_waiting       on perdure.run_queue (ns, waiting_on, run_id) where waiting_on is not null;
create index run_queue_group         on perdure.run_queue (group_id, run_id) where group_id is not null and admitted_at is null and not halted;
create index run_queue_deadline      on perdure.run_queue (deadline_at) where owner is null and deadline_at is not null;
create index run_queue_cancelled     on perdure.run_queue (run_id) where owner is null and cancel_at is not null;
create index run_queue_suspects      on perdure.run_queue (run_id) where suspect and owner is null and not halted;
create index run_queue_paused        on perdure.run_queue (ns, run_id) where paused_at is not null;
create index run_queue_expires       on perdure.run_queue (expires_at) where owner is null and expires_at is not null;
create index run_queue_children      on perdure.run_queue (parent_id, run_id) where parent_id is not null;

-- Runs that have ended.
create table perdure.run (
  run_id      uuid not null primary key,
  ns          int not null,
  workflow    text not null,
  version     text not null,
  kind        text not null default 'code' check (kind in ('code', 'flow')),
  key         text,
  parent_id   uuid,
  parent_seq  int,
  status      text not null check (status in ('success', 'failed', 'cancelled')),
  created_at  timestamptz not null,
  finished_at timestamptz not null,
  epoch       int not null,
  events      int not null,
  error_code  text,
  error       text,
  successor   uuid,
  attributes  jsonb,
  head        bytea
) partition by range (run_id);
comment on column perdure.run.successor is 'the run that this one continued as';
comment on column perdure.run.head is 'hash of the last history row';
create table perdure.run_default partition of perdure.run default;
-- Lists, newest first. The keys never change: an index costs one insert per run and no update.
create index run_list             on perdure.run (ns, run_id);
create index run_list_by_workflow on perdure.run (ns, workflow, run_id);
create index run_list_ended_badly on perdure.run (ns, status, run_id) where status in ('failed', 'cancelled');
create index run_list_by_end      on perdure.run (ns, finished_at);
create index run_children         on perdure.run (parent_id, run_id) where parent_id is not null;
create index run_by_attributes    on perdure.run using gin (attributes jsonb_path_ops) where attributes is not null;

-- Active and ended runs with the same columns, for lists.
create view perdure.active_run_list as
select run_id, ns, workflow, version, key, status, created_at, null::timestamptz as finished_at, attributes, null::text as error_code,
       null::text as error, stuck, paused_at, wake_at, owner is not null as owned, epoch, null::int as events, parent_id,
       null::uuid as successor, wait_reasons, waiting_on
  from perdure.run_queue;
create view perdure.ended_run_list as
select run_id, ns, workflow, version, key, status, created_at, finished_at, attributes, error_code, error, null::text as stuck,
       null::timestamptz as paused_at, null::timestamptz as wake_at, false as owned, epoch, events, parent_id, successor,
       null::text as wait_reasons, null::text as waiting_on
  from perdure.run;

-- How many runs have ended, by workflow and time of creation. A statement that ends, retries or deletes a run changes these numbers in the same
-- transaction, so that lists and charts need not count runs and a crash cannot make them differ. A row belongs to the connection that
-- wrote it (writer): two transactions never wait for each other's. Upkeep merges them (sql/run_counts.sql).
create table perdure.run_count (
  ns        int not null,
  workflow  text not null,
  at        timestamptz not null,
  merged_s  int not null default 0,
  writer    int not null,
  success   bigint not null default 0,
  failed    bigint not null default 0,
  cancelled bigint not null default 0,
  primary key (ns, workflow, at, merged_s, writer)
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02);
comment on column perdure.run_count.workflow is 'empty: all workflows together';
comment on column perdure.run_count.at is 'when the runs were created, rounded down to 15 minutes, and to merged_s where that is more';
comment on column perdure.run_count.merged_s is 'how many seconds upkeep has merged into the row; 0: none yet';
comment on column perdure.run_count.writer is 'the backend process that writes the row; 0: upkeep';
comment on column perdure.run_count.failed is 'a run that is retried or deleted is taken off, perhaps in another row: the sum counts';
create index run_count_merged on perdure.run_count (merged_s, at);

-- How long runs took that succeeded, by workflow and day of creation. `size` is perdure.duration_size; see core/run_counts.py.
create table perdure.run_duration (
  ns       int not null,
  workflow text not null,
  day      timestamptz not null,
  size     smallint not null,
  merged_s int not null default 0,
  writer   int not null,
  n        bigint not null,
  primary key (ns, workflow, day, size, merged_s, writer)
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02);
comment on column perdure.run_duration.day is 'its first moment, UTC';
comment on column perdure.run_duration.writer is 'as in run_count, like merged_s';
create index run_duration_merged on perdure.run_duration (merged_s, day);
create function perdure.duration_size(begin_at timestamptz, end_at timestamptz) returns smallint language sql immutable parallel safe
  return floor(8 * ln(greatest(date_part('epoch', end_at - begin_at) * 1e6, 1)) / ln(2::float8))::smallint;

-- Counts runs that have ended (sign 1), or takes back those that are retried or deleted (-1). The plans of a function in PL/pgSQL are kept,
-- and a commit that ends no run does not call it.
create function perdure.count_runs(namespaces int[], workflows text[], statuses text[], begun timestamptz[], ended timestamptz[], sign int) returns void
language plpgsql as $$
begin
  insert into perdure.run_count as c (ns, workflow, at, writer, success, failed, cancelled)
  select u.ns, coalesce(u.workflow, ''), u.bin, pg_backend_pid(), sign * count(*) filter (where u.status = 'success'),
         sign * count(*) filter (where u.status = 'failed'), sign * count(*) filter (where u.status = 'cancelled')
    from (select r.ns, r.workflow, r.status, date_bin('15 minutes', r.begun_at, 'epoch') as bin
            from unnest(namespaces, workflows, statuses, begun) as r(ns, workflow, status, begun_at)) u
   group by grouping sets ((u.ns, u.bin, u.workflow), (u.ns, u.bin))
  on conflict on constraint run_count_pkey do update
    set success = c.success + excluded.success, failed = c.failed + excluded.failed, cancelled = c.cancelled + excluded.cancelled;
  if 'success' = any(statuses) then
    insert into perdure.run_duration as c (ns, workflow, day, size, writer, n)
    select r.ns, r.workflow, date_bin('1 day', r.begun_at, 'epoch'), perdure.duration_size(r.begun_at, r.ended_at), pg_backend_pid(), sign * count(*)
      from unnest(namespaces, workflows, statuses, begun, ended) as r(ns, workflow, status, begun_at, ended_at)
     where r.status = 'success' group by 1, 2, 3, 4
    on conflict on constraint run_duration_pkey do update set n = c.n + excluded.n;
  end if;
end $$;

-- The last run of a chain (wf.continue_as_new), by the id of its first, which senders use. Written by each commit that continues the chain.
create table perdure.run_chain (
  run_id uuid primary key,
  ns     int not null,
  head   uuid not null
) with (fillfactor = 50);
create index run_chain_head on perdure.run_chain (head);

-- Runs that were started under an id of the user's own. The key of a chain names its last run.
create table perdure.run_key (
  ns         int not null,
  key        text not null,
  run_id     uuid not null,
  input_hash bytea not null,
  primary key (ns, key)
);
create index run_key_run on perdure.run_key (run_id);

-- Queries with a name, by which people find runs (core/run_query).
create table perdure.saved_view (
  ns         int not null,
  name       text not null,
  query      text not null,
  updated_at timestamptz not null,
  updated_by text not null,
  primary key (ns, name)
);

-- One act on every run that a query matches (engine/api/bulk_work.py). Its runs are found once, those up to the moment of its creation.
create table perdure.bulk_job (
  id          uuid primary key,
  ns          int not null,
  key         text,
  action      text not null check (action in ('cancel', 'terminate', 'pause', 'resume', 'retry', 'delete', 'signal')),
  query       text not null,
  reason      text not null,
  is_dry_run  boolean not null,
  status      text not null default 'pending' check (status in ('pending', 'running', 'success', 'failed', 'cancelled')),
  error       text,
  created_at  timestamptz not null,
  created_by  text not null,
  finished_at timestamptz,
  below       uuid,
  owner       bigint,
  claimed_at  timestamptz,
  matched     int not null default 0,
  done        int not null default 0,
  skipped     int not null default 0,
  failed      int not null default 0,
  signal      text,
  payload     bytea,
  check ((signal is not null) = (action = 'signal'))
);
create unique index bulk_job_key on perdure.bulk_job (ns, key) where key is not null;
create index bulk_job_list on perdure.bulk_job (ns, id);
create index bulk_job_unfinished on perdure.bulk_job (claimed_at nulls first, id) where status in ('pending', 'running');
create index bulk_job_finished on perdure.bulk_job (finished_at) where finished_at is not null;

create table perdure.bulk_job_run (
  job_id  uuid not null references perdure.bulk_job on delete cascade,
  run_id  uuid not null,
  outcome text not null check (outcome in ('pending', 'done', 'skipped', 'failed')),
  message text not null,
  tries   int not null default 0,
  primary key (job_id, run_id)
);
create index bulk_job_run_pending on perdure.bulk_job_run (job_id, tries, run_id) where outcome = 'pending';
create index bulk_job_run_outcome on perdure.bulk_job_run (job_id, outcome, run_id);

-- The hash of a history row; core/chain.py computes the same. before and before_at are hash and time of the row before; for the
-- first row sixteen zero bytes and 1970.
create function perdure.chain(before bytea, before_at timestamptz, run_id uuid, ns int, seq int, last int, epoch int, body bytea) returns bytea
language sql immutable parallel safe
  return substr(sha256(before || int8send((extract(epoch from before_at) * 1000000)::bigint) || int4send(ns) || int4send(seq)
                       || int4send(last) || int4send(epoch) || uuid_send(run_id) || body), 1, 16);

-- One row holds the events seq..last of a run that one commit wrote, and perdure.chain of them: an edited, removed or inserted
-- row breaks the chain.
create table perdure.history (
  run_id uuid not null,
  seq    int not null check (seq > 0),
  last   int not null check (last >= seq),
  ns     int not null,
  epoch  int not null,
  at     timestamptz not null,
  body   bytea not null,
  hash   bytea not null,
  primary key (run_id, seq)
) partition by range (run_id);
create table perdure.history_default partition of perdure.history default;

-- The latest value of each state that a run has set; null where it was deleted.
create table perdure.run_state (
  run_id uuid not null,
  name   text not null,
  ns     int not null,
  value  bytea,
  primary key (run_id, name)
) partition by range (run_id);
create table perdure.run_state_default partition of perdure.run_state default;


-- Payloads by reference (core/payloads.py)

-- Content that payloads of a namespace refer to, by its SHA-256. store: empty, then its bytes are in payload_chunk; else its folder
-- in an object store, which no other row has or will have: see payload_garbage. A row exists before the content does, so that an
-- upload that was never recorded is found. check_at: when upkeep next asks whether a run or another payload still uses it; every
-- announcement puts that off.
create table perdure.payload (
  ns          int not null,
  store       text not null,
  sha256      bytea not null check (length(sha256) = 32),
  size        bigint not null check (size >= 0),
  is_complete boolean not null default false,
  created_at  timestamptz not null default now(),
  check_at    timestamptz not null,
  primary key (ns, sha256, store)
);
comment on column perdure.payload.is_complete is 'all chunks are here and have the checksum; of an object store always false';
create index payload_check on perdure.payload (check_at);

create table perdure.payload_chunk (
  ns     int not null,
  store  text not null default '' check (store = ''),
  sha256 bytea not null,
  n      int not null check (n >= 0),
  data   bytea not null,
  primary key (ns, store, sha256, n),
  foreign key (ns, sha256, store) references perdure.payload on delete cascade
);
-- Compressed content gains nothing from being compressed again, and most of it is read in ranges.
alter table perdure.payload_chunk alter column data set storage external;

-- Objects that nothing may refer to any more, until they are deleted in their store. An object store knows no transactions, and an
-- engine that was halted may ask it to delete at any later time: therefore content that is stored again gets another folder.
create table perdure.payload_garbage (
  store    text not null,
  sha256   bytea not null,
  check_at timestamptz not null,
  primary key (store, sha256)
);
comment on column perdure.payload_garbage.check_at is 'when upkeep deletes it if the engine that noted it down has not';
create index payload_garbage_check on perdure.payload_garbage (check_at);

-- What a stored value refers to in turn.
create table perdure.payload_part (
  ns          int not null,
  store       text not null,
  sha256      bytea not null,
  part_store  text not null,
  part_sha256 bytea not null,
  primary key (ns, store, sha256, part_store, part_sha256),
  foreign key (ns, sha256, store) references perdure.payload on delete cascade
);
create index payload_part_of on perdure.payload_part (ns, part_sha256, part_store);

-- Which runs refer to which content; written in the transaction of the event that does. Dropped with the runs.
create table perdure.payload_use (
  run_id uuid not null,
  ns     int not null,
  store  text not null,
  sha256 bytea not null,
  primary key (run_id, store, sha256)
) partition by range (run_id);
create table perdure.payload_use_default partition of perdure.payload_use default;
create index payload_use_of on perdure.payload_use (ns, sha256, store);


-- Tasks

-- Tasks that wait for an engine or for a retry, or have been running for a while. Claimable: no owner, and run_at has come.
create table perdure.task_queue (
  id                uuid primary key,
  ns                int not null,
  run_id            uuid not null,
  seq               int not null,
  name              text not null,
  queue             text not null,
  status            text not null check (status in ('pending', 'dispatched', 'running')),
  attempt           int not null check (attempt >= 1),
  lost              int not null,
  run_at            timestamptz not null,
  owner             bigint,
  scheduled_at      timestamptz not null,
  options           bytea not null,
  input             bytea not null,
  error             text,
  trace             text,
  node              text,
  group_id          uuid,
  start_deadline_at timestamptz,
  held              boolean not null default false,
  worker            text,
  started_at        timestamptz,
  beat_at           timestamptz,
  details           bytea,
  blocked           text,
  check ((owner is null) = (status = 'pending'))
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
comment on column perdure.task_queue.lost is 'workers lost while they ran it';
comment on column perdure.task_queue.trace is 'W3C traceparent of the run''s span, where its start was traced';
comment on column perdure.task_queue.node is 'the node of a flow, with its index in a foreach';
comment on column perdure.task_queue.group_id is 'its flow-control group; null: nothing limits it';
comment on column perdure.task_queue.start_deadline_at is 'not begun by then: the task fails (schedule to start, schedule to close)';
comment on column perdure.task_queue.held is 'its run is paused: it is not claimed';
comment on column perdure.task_queue.worker is 'who runs the attempt; like the columns below, brought up to date every few seconds';
create index task_queue_due            on perdure.task_queue (ns, queue, name, run_at) where owner is null and group_id is null and not held;
create index task_queue_run            on perdure.task_queue (run_id);
create index task_queue_owned          on perdure.task_queue (owner) where owner is not null;
create index task_queue_group          on perdure.task_queue (group_id, run_at, id) where owner is null and group_id is not null;
create index task_queue_group_running  on perdure.task_queue (group_id) where owner is not null and group_id is not null;
create index task_queue_start_deadline on perdure.task_queue (start_deadline_at) where owner is null and start_deadline_at is not null;

-- Tasks that have ended, one row each, written once in their final state. The row is also the record of the last attempt, which began
-- at started_at; earlier ones are rows of task_attempt.
create table perdure.task (
  id           uuid not null primary key,
  ns           int not null,
  run_id       uuid not null,
  seq          int not null,
  name         text not null,
  queue        text not null,
  status       text not null check (status in ('success', 'failed', 'skipped', 'cancelled')),
  attempts     int not null check (attempts >= 0),
  lost         int not null,
  epoch        int not null,
  scheduled_at timestamptz not null,
  started_at   timestamptz,
  finished_at  timestamptz not null,
  worker       text,
  cpu_us       bigint,
  error        text,
  error_code   text,
  error_type   text,
  traceback    text,
  node         text,
  copied       boolean not null default false
) partition by range (id);
comment on column perdure.task.attempts is 'executions begun';
comment on column perdure.task.copied is 'it ended in the run that this one is a fork of';
comment on column perdure.task.lost is 'workers lost while they ran it';
create table perdure.task_default partition of perdure.task default;
-- Dead letters.
create index task_failed on perdure.task (ns, finished_at, id) where status = 'failed';

-- Attempts that ended and were not the last of their task: failed and tried again, lost with their worker, void because the task ended
-- otherwise. Written in the transaction that decides so. A retry of the run moves the rows of task that it takes back here; attempts are
-- counted from 1 again then, under a higher epoch.
create table perdure.task_attempt (
  id          uuid not null,
  epoch       int not null,
  attempt     int not null check (attempt >= 1),
  ns          int not null,
  run_id      uuid not null,
  seq         int not null,
  name        text not null,
  node        text,
  outcome     text not null check (outcome in ('success', 'error', 'timeout', 'lost', 'cancelled')),
  started_at  timestamptz,
  finished_at timestamptz not null,
  worker      text,
  cpu_us      bigint,
  error       text,
  error_code  text,
  error_type  text,
  traceback   text,
  primary key (id, epoch, attempt)
) partition by range (id);
comment on column perdure.task_attempt.id is 'of the task';
comment on column perdure.task_attempt.epoch is 'of the run when the end of the attempt was recorded';
comment on column perdure.task_attempt.started_at is 'null: the engine that had it is gone, and it is not known whether it began';
create table perdure.task_attempt_default partition of perdure.task_attempt default;

-- Ended tasks of runs with many, counted by node: those that are number 1,000 or later in their run. Earlier ones are read one by one, so that
-- a run with few pays nothing. Changed in the transaction that writes, copies or takes back the rows of task; only the
-- owner of a run, or the retry of one without an owner, writes its rows.
create table perdure.node_count (
  run_id uuid not null,
  node   text not null,
  what   text not null check (what in ('start', 'end', 'success', 'failed', 'skipped', 'cancelled', 'duration', 'attempts')),
  bin    int not null,
  ns     int not null,
  n      bigint not null,
  primary key (run_id, node, what, bin)
) partition by range (run_id);
comment on column perdure.node_count.node is 'of a flow, without its index in a foreach; the name of a task of code';
comment on column perdure.node_count.what is 'start, end: of the last attempts that began; a status; duration: of tasks that succeeded; attempts: that a task took';
comment on column perdure.node_count.bin is 'perdure.age_bin of the moment, counted from the time in the id of the run; perdure.duration_size; the number of attempts; 0 for a status other than failed';
comment on column perdure.node_count.n is 'tasks';
create table perdure.node_count_default partition of perdure.node_count default;

-- A part of the life of a run, by microseconds since its beginning: sixteenths of a second at first, then 128 parts of each doubling. Whole
-- numbers, so that core/timeline/bins.py finds the same.
create function perdure.age_bin(age_us bigint) returns int language sql immutable parallel safe
  return (select (o.octave * 128 + (o.parts >> o.octave))::int
            from (select p.parts, greatest(length(ltrim(p.parts::bit(64)::text, '0')) - 8, 0) as octave
                    from (select greatest(age_us, 0) * 16 / 1000000 as parts) p) o
           where age_us is not null);

-- Counts ended tasks (sign 1), or takes them back (sign -1), where tasks are copied or taken back; engine/commits/node_counts.py counts those
-- that a commit writes.
create function perdure.count_tasks(run_ids uuid[], namespaces int[], seqs int[], names text[], nodes text[], statuses text[], tries int[],
                                    starts timestamptz[], ends timestamptz[], sign int) returns void language plpgsql as $$
#variable_conflict use_column
begin
  with given as materialized (
    select u.run_id, u.ns, coalesce(case when u.node like '%[%' then regexp_replace(u.node, '\[\d+\]', '', 'g') else u.node end, u.name) as node,
           u.status, u.attempts, ('x' || left(replace(u.run_id::text, '-', ''), 12))::bit(48)::bigint * 1000 as base_us,
           (extract(epoch from u.started_at) * 1000000)::bigint as start_us, (extract(epoch from u.finished_at) * 1000000)::bigint as end_us
      from unnest(run_ids, namespaces, seqs, names, nodes, statuses, tries, starts, ends)
             as u(run_id, ns, seq, name, node, status, attempts, started_at, finished_at)
     where u.seq >= 1000
  ),
  binned as materialized (
    select g.run_id, g.ns, g.node, g.status, g.attempts, perdure.age_bin(g.start_us - g.base_us) as start_bin,
           perdure.age_bin(g.end_us - g.base_us) as end_bin,
           case when g.status = 'success' then floor(8 * ln(greatest(g.end_us - g.start_us, 1)::float8) / ln(2::float8))::int end as duration
      from given g
  )
  insert into perdure.node_count as c (run_id, node, what, bin, ns, n)
  select p.run_id, p.node, p.what, p.bin, p.ns, sign * count(*)
    from (
      select t.run_id, t.node, 'start' as what, t.start_bin as bin, t.ns from binned t
      union all
      select t.run_id, t.node, 'end', t.end_bin, t.ns from binned t where t.start_bin is not null
      union all
      select t.run_id, t.node, t.status, case when t.status = 'failed' then t.end_bin else 0 end, t.ns from binned t
      union all
      select t.run_id, t.node, 'duration', t.duration, t.ns from binned t
      union all
      select t.run_id, t.node, 'attempts', t.attempts, t.ns from binned t) p
   where p.bin is not null
   group by 1, 2, 3, 4, 5
   order by 1, 2, 3, 4
  on conflict (run_id, node, what, bin) do update set n = c.n + excluded.n;
end $$;

-- How an attempt ended, by the status of its task and the code of the error.
create function perdure.attempt_outcome(status text, error_code text) returns text language sql immutable parallel safe
  return case when status <> 'failed' then status
              when error_code = 'task_lost' then 'lost'
              when error_code = 'task_timeout' then 'timeout'
              else 'error' end;

-- Whether the row of a task is also the record of an attempt: not if the task was cancelled or its time was over while it waited for one.
create function perdure.is_attempt(status text, attempts int, started_at timestamptz, error_code text) returns boolean
language sql immutable parallel safe
  return attempts > 0 and (started_at is not null or status = 'success' or coalesce(error_code, '') = 'task_lost');

-- What tasks printed and logged: chunks of lines per attempt. seq -1 is the workflow's own code.
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
-- A run's lines in the order of arrival, and those since a position.
create index task_log_by_time on perdure.task_log (run_id, at, seq, attempt, n);

-- Every attempt that is known: ended ones, and those that have a row in task_queue because they have been running for a while; their
-- outcome is null. log_first and log_last are chunks of task_log. The output of attempts that a retry of the run took back is gone.
create view perdure.attempt as
select a.ns, a.run_id, a.seq, a.id, a.name, a.node, a.epoch, a.attempt, a.outcome, a.worker, a.started_at, a.finished_at,
       coalesce(a.finished_at, perdure.clock()) - a.started_at as wall, a.cpu_us, a.is_last,
       a.error_code, a.error_type, a.error, a.traceback,
       case when a.has_log then (select min(l.n) from perdure.task_log l where l.run_id = a.run_id and l.seq = a.seq and l.attempt = a.attempt) end as log_first,
       case when a.has_log then (select max(l.n) from perdure.task_log l where l.run_id = a.run_id and l.seq = a.seq and l.attempt = a.attempt) end as log_last,
       case when a.has_log then (select sum(l.lines)::int from perdure.task_log l where l.run_id = a.run_id and l.seq = a.seq and l.attempt = a.attempt) end as log_lines
  from (
    select t.ns, t.run_id, t.seq, t.id, t.name, t.node, t.epoch, t.attempts as attempt,
           perdure.attempt_outcome(t.status, t.error_code) as outcome, t.worker, t.started_at, t.finished_at, t.cpu_us,
           t.error_code, t.error_type, t.error, t.traceback, true as has_log, true as is_last
      from perdure.task t where not t.copied and perdure.is_attempt(t.status, t.attempts, t.started_at, t.error_code)
    union all
    select e.ns, e.run_id, e.seq, e.id, e.name, e.node, e.epoch, e.attempt, e.outcome, e.worker, e.started_at, e.finished_at, e.cpu_us,
           e.error_code, e.error_type, e.error, e.traceback,
           not exists (select from perdure.task_attempt n where n.id = e.id and n.attempt = e.attempt and n.epoch > e.epoch)
           and not exists (select from perdure.task t where t.id = e.id and t.attempts = e.attempt and t.epoch > e.epoch)
           and not exists (select from perdure.task_queue q where q.id = e.id and q.attempt <= e.attempt), false
      from perdure.task_attempt e
    union all
    select q.ns, q.run_id, q.seq, q.id, q.name, q.node, r.epoch, q.attempt, null, q.worker, q.started_at, null, null,
           null, null, null, null, true, false
      from perdure.task_queue q join perdure.run_queue r on r.run_id = q.run_id where q.owner is not null
  ) a;


-- Messages and promises

-- Messages for a run: signals, cancel requests, promise values, results of children, results of tasks that ran elsewhere. The
-- run's owner moves them into the history in its own commit. Rows are found by existence, never by a cursor over id.
create table perdure.inbox (
  id        bigint generated always as identity primary key,
  ns        int not null,
  run_id    uuid not null,
  body      bytea not null,
  at        timestamptz not null default now(),
  kind      text not null check (kind in ('signal', 'promise', 'answer', 'update', 'cancel', 'terminate', 'pause', 'child', 'task')),
  name      text
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
comment on column perdure.inbox.kind is 'from it follows what becomes of the message when the run ends: core/message_life.py';
comment on column perdure.inbox.name is 'of the signal, promise, approval or update';
create index inbox_run  on perdure.inbox (run_id);
create index inbox_stop on perdure.inbox (run_id, kind) where kind in ('cancel', 'terminate');

-- Whether as many messages wait for a run as may. Asked only of runs that no engine has in memory: an engine reads the messages of its own.
create function perdure.is_inbox_full(run uuid, pending_max bigint) returns boolean language plpgsql stable as $$
begin
  return exists(select from perdure.inbox i where i.run_id = run offset pending_max - 1);
end $$;

-- What a sender is answered for the limits of its run: an outcome of core/message_limits.py. Every statement asks it that writes a message of a
-- sender who waits for an answer. PostgreSQL writes it out in place of the call, so a message pays no call.
create function perdure.limit_outcome(is_full boolean, full_signals text, kind text, name text) returns int language sql immutable parallel safe
  return case when kind in ('cancel', 'terminate') then 0
              when is_full then 4
              when kind = 'signal' and full_signals::jsonb ? name then 5
              else 0 end;

-- Messages that were acknowledged, and whose run ended before its code got them. A retry of the run moves them back into the inbox. They go
-- with the run.
create table perdure.set_aside_message (
  id           bigint primary key,
  ns           int not null,
  run_id       uuid not null,
  kind         text not null,
  name         text,
  body         bytea not null,
  at           timestamptz not null,
  set_aside_at timestamptz not null default now(),
  reason       text not null
);
comment on column perdure.set_aside_message.id is 'as in the inbox: the order in which messages came';
comment on column perdure.set_aside_message.at is 'when it was sent';
comment on column perdure.set_aside_message.reason is 'how the run ended: failed, cancelled, success, continued';
create index set_aside_message_run on perdure.set_aside_message (run_id, id);

-- Runs that an end would leave unread messages of: called in the statement that ends them, while it has the locks of their rows. A volatile
-- function sees what was committed until now, so a message whose sender had the row's KEY SHARE lock before is among them.
create function perdure.find_unread(ended uuid[]) returns uuid[] language plpgsql as $$
begin
  return array(select distinct i.run_id from perdure.inbox i
                where i.run_id = any(ended) and i.kind in ('signal', 'promise', 'answer', 'update'));
end $$;

-- Refuses a commit whose ends would leave messages unread. The engine writes those ends by themselves, message by message.
create function perdure.refuse_ends(unread uuid[]) returns boolean language plpgsql as $$
begin
  if cardinality(unread) > 0 then
    raise exception 'perdure: runs with unread messages cannot end' using errcode = 'PD001', detail = array_to_string(unread, ',');
  end if;
  return false;
end $$;

-- Keys that senders gave to their messages: a second message under a key is the first one, sent again. Rows go when the run ends for good.
-- Those of a run that continues or has failed stay, under the id that senders know, until they are old; so do those of webhooks, which
-- begin with `hook:`.
create table perdure.message_key (
  run_id uuid not null,
  key    text not null,
  at     timestamptz not null default now(),
  primary key (run_id, key)
);
create index message_key_age on perdure.message_key (at);
create index message_key_hook on perdure.message_key (key) where key like 'hook:%';

-- Values that runs wait for. An approval may be answered by its assignees, and from escalate_at on by those of escalate_to.
create table perdure.promise (
  run_id      uuid not null,
  name        text not null,
  ns          int not null,
  created_at  timestamptz not null,
  resolved_at timestamptz,
  kind        text not null default 'promise' check (kind in ('promise', 'approval', 'event')),
  spec        text,
  event       text,
  event_id    bigint,
  since       timestamptz generated always as
                (case when kind = 'event' then coalesce(to_timestamp((spec::jsonb->>'since_us')::bigint / 1e6), created_at) end) stored,
  wait_key    text generated always as (case when kind = 'event' then spec::jsonb->>'key' end) stored,
  assignees   text[],
  quorum      int,
  deadline_at timestamptz,
  escalate_at timestamptz,
  escalate_to text[],
  authorized  boolean not null default false,
  asked       boolean not null default true,
  question    bytea not null default '',
  primary key (run_id, name)
);
comment on column perdure.promise.asked is 'the run asks for it. False: it was resolved before it was asked for, or its run has failed, and a retry has not asked for it again';
comment on column perdure.promise.question is 'digest of what it asks (core/questions.py); empty for a plain promise. Votes belong to the question, not to the name';
comment on column perdure.promise.spec is 'JSON of core/approvals.py or core/named_events.py, as in the history';
comment on column perdure.promise.event is 'the named event that resolves it';
comment on column perdure.promise.event_id is 'the row of named_event that resolved it';
comment on column perdure.promise.since is 'a wait for a named event gets events from this moment on';
comment on column perdure.promise.wait_key is 'digest of what the wait asks for: waits of a run with the same key get each event once';
comment on column perdure.promise.authorized is 'resolved by a caller that may answer for others; an approval with assignees that is requested later stays resolved';
create index promise_open_approvals on perdure.promise (ns, created_at, run_id, name) where kind = 'approval' and resolved_at is null and asked;
create index promise_deadlines      on perdure.promise (ns, deadline_at, run_id, name) where kind = 'approval' and resolved_at is null and asked and deadline_at is not null;
create index promise_open_events    on perdure.promise (ns, event, run_id, name) where kind = 'event' and resolved_at is null and asked;
create index promise_events         on perdure.promise (run_id, event_id) where event_id is not null;

-- Answers to approvals, one per person. They go with the question; the audit log keeps them.
create table perdure.vote (
  run_id   uuid not null,
  name     text not null,
  who      text not null,
  approved boolean not null,
  value    bytea,
  comment  text,
  via      text not null,
  at       timestamptz not null default now(),
  primary key (run_id, name, who)
);

-- Approvals that are no longer open, for some days: the promise and its votes go with the run. The triggers write a row when the promise
-- is resolved, in any way, and when one whose deadline has passed goes with its run.
create table perdure.decided_approval (
  run_id      uuid not null,
  name        text not null,
  ns          int not null,
  created_at  timestamptz not null,
  resolved_at timestamptz,
  decided_at  timestamptz not null,
  spec        text not null,
  assignees   text[],
  escalate_to text[],
  voters      text[] not null,
  votes       jsonb not null,
  question    bytea not null default '',
  primary key (run_id, name, question)
);
comment on column perdure.decided_approval.resolved_at is 'null: its deadline passed';
create index decided_approval_list on perdure.decided_approval (ns, decided_at, run_id, name);
create index decided_approval_age  on perdure.decided_approval (decided_at);

create function perdure.votes(of_run uuid, of_name text) returns jsonb language sql stable parallel safe
  begin atomic
    select coalesce(jsonb_agg(jsonb_build_object('who', v.who, 'approved', v.approved, 'comment', coalesce(v.comment, ''), 'via', v.via,
                                                 'at_us', (extract(epoch from v.at) * 1000000)::bigint) order by v.at, v.who), '[]')
      from perdure.vote v where v.run_id = of_run and v.name = of_name;
  end;

create function perdure.keep_decision() returns trigger language plpgsql as $$
declare
  votes jsonb := perdure.votes(old.run_id, old.name);
  resolved timestamptz := case when tg_op = 'UPDATE' then new.resolved_at end;
begin
  insert into perdure.decided_approval (run_id, name, ns, created_at, resolved_at, decided_at, spec, assignees, escalate_to, voters, votes, question)
  values (old.run_id, old.name, old.ns, old.created_at, resolved, coalesce(resolved, old.deadline_at), old.spec, old.assignees, old.escalate_to,
          array(select jsonb_array_elements(votes)->>'who'), votes, old.question)
  on conflict (run_id, name, question) do update
    set created_at = excluded.created_at, resolved_at = excluded.resolved_at, decided_at = excluded.decided_at, spec = excluded.spec,
        assignees = excluded.assignees, escalate_to = excluded.escalate_to, voters = excluded.voters, votes = excluded.votes;
  return null;
end $$;
create trigger promise_resolved after update of resolved_at on perdure.promise for each row
  when (old.kind = 'approval' and old.spec is not null and old.resolved_at is null and new.resolved_at is not null)
  execute function perdure.keep_decision();
create trigger promise_expired after delete on perdure.promise for each row
  when (old.kind = 'approval' and old.spec is not null and old.resolved_at is null and old.deadline_at <= perdure.clock())
  execute function perdure.keep_decision();

-- Signed links that were used: a link works once.
create table perdure.used_link (
  id         bytea primary key,
  at         timestamptz not null default now(),
  expires_at timestamptz not null
);
create index used_link_expires on perdure.used_link (expires_at);

-- Secrets of this installation, made at first use: the key that links are signed with.
create table perdure.secret (
  name       text primary key,
  value      bytea not null,
  created_at timestamptz not null default now()
);

-- Updates by the id their caller gave. The row is made with the request; value and failure come with the answer. Rows go by age,
-- not with the run: the caller may still be waiting.
create table perdure.update_answer (
  run_id  uuid not null,
  id      text not null,
  ns      int not null,
  at      timestamptz not null default now(),
  value   bytea,
  failure bytea,
  primary key (run_id, id)
);
create index update_answer_age on perdure.update_answer (at);


-- Named events

-- Events that runs wait for by name. Any engine matches an event against the waits, page by page; after_run and after_name say
-- how far it is.
create table perdure.named_event (
  id         bigint generated always as identity primary key,
  ns         int not null,
  name       text not null,
  key        text,
  body       bytea not null,
  source     text not null,
  at         timestamptz not null default now(),
  matched    int not null default 0,
  after_run  uuid,
  after_name text,
  done_at    timestamptz,
  xid        bigint not null default pg_current_xact_id()::text::bigint,
  unique (ns, name, key)
);
comment on column perdure.named_event.xid is 'the transaction that emitted it: an event that a snapshot does not show has at least the xmin of the snapshot';
create index named_event_open on perdure.named_event (id) where done_at is null;
create index named_event_list on perdure.named_event (ns, id);
create index named_event_name on perdure.named_event (ns, name, id);
create index named_event_age  on perdure.named_event (at);
create index named_event_past on perdure.named_event (ns, name, at, id);
create index named_event_late on perdure.named_event (ns, name, xid);

-- Waits that look back for an event: a row is a to-do for any engine, written with the wait and deleted when nothing is left to look at. A look
-- goes twice over the events since `promise.since`: over all that are there, then over those that came meanwhile (is_final). The argument
-- that no event falls between looks and the matching of new events stands at event_waits in store/sql/named_events.sql.
create table perdure.event_look (
  id         bigint generated always as identity primary key,
  run_id     uuid not null,
  name       text not null,
  ns         int not null,
  event      text not null,
  after_at   timestamptz not null,
  after_id   bigint not null default 0,
  late_xid   bigint,
  is_final   boolean not null default false,
  unique (run_id, name)
);
comment on column perdure.event_look.name is 'of the promise';
comment on column perdure.event_look.after_at is 'with after_id, how far the look has come';
comment on column perdure.event_look.late_xid is 'events that the first look may have missed are of this transaction or a later one';

create function perdure.look_back() returns trigger language plpgsql as $$
begin
  insert into perdure.event_look (run_id, name, ns, event, after_at) values (new.run_id, new.name, new.ns, new.event, new.since)
  on conflict (run_id, name) do update set after_at = excluded.after_at, after_id = 0, late_xid = null, is_final = false;
  return null;
end $$;
create trigger promise_looks_back after insert on perdure.promise for each row
  when (new.kind = 'event' and new.resolved_at is null and new.since < new.created_at) execute function perdure.look_back();
create trigger promise_looks_back_again after update on perdure.promise for each row
  when (new.kind = 'event' and new.resolved_at is null and new.asked and (not old.asked or old.question <> new.question)
        and new.since < perdure.clock()) execute function perdure.look_back();

-- Workflows whose current version subscribed to an event when it was emitted. A row without an outcome is to be decided: a run, or
-- none. Row and run are written together, so an event has one run of a workflow at most. A row whose event does not match is deleted.
create table perdure.event_start (
  event_id bigint not null,
  workflow text not null,
  ns       int not null,
  version  text not null,
  due_at   timestamptz not null,
  tries    int not null default 0,
  outcome  text check (outcome in ('started', 'attached', 'failed')),
  run_id   uuid,
  error    text,
  primary key (event_id, workflow),
  check ((outcome is not null and outcome <> 'failed') = (run_id is not null)),
  check ((outcome is not distinct from 'failed') = (error is not null))
);
create index event_start_due on perdure.event_start (due_at) where outcome is null;
comment on column perdure.event_start.version is 'the version whose subscriptions count';
comment on column perdure.event_start.due_at is 'when an engine may decide it; later while one does';
comment on column perdure.event_start.outcome is 'started: a new run; attached: an active run stands for the event; failed: see error';

-- Webhooks: a request signed with the secret becomes an event or a signal. While a secret is replaced, the old one is valid as well.
create table perdure.webhook (
  ns         int not null,
  name       text not null,
  event      text not null,
  key        text not null,
  scheme     text not null,
  signal     text,
  secret     bytea not null,
  old_secret bytea,
  old_until  timestamptz,
  created_at timestamptz not null default now(),
  created_by text not null,
  primary key (ns, name),
  check ((event = '') = (signal is not null))
);

comment on column perdure.webhook.event is 'the name of the event, with expressions over body and headers of the request; empty beside a signal';
comment on column perdure.webhook.key is 'an expression: requests with the same key are one event or one signal';
comment on column perdure.webhook.scheme is 'JSON of SignatureScheme in core/webhooks.py';
comment on column perdure.webhook.signal is 'JSON of SignalTarget in core/webhook_signals.py; null: a request becomes an event';


-- HTTP services

-- Instances that registered themselves. Whether one is online follows from its last heartbeat and the clock of this database.
create table perdure.service_instance (
  ns            int not null,
  id            text not null,
  url           text not null,
  services      text[] not null,
  load          double precision not null default 0,
  registered_at timestamptz not null default now(),
  heartbeat_at  timestamptz not null default now(),
  primary key (ns, id)
) with (fillfactor = 70);

-- Jobs that a service accepted, to report their end later. A closed one takes no more reports: its attempt is over.
create table perdure.service_callback (
  ns         int not null,
  job        text not null,
  phase      text not null check (phase in ('waiting', 'ended', 'closed')),
  result     bytea,
  error      text,
  updated_at timestamptz not null default now(),
  primary key (ns, job)
);
create index service_callback_updated on perdure.service_callback (updated_at);


-- Flow control

-- Limits, rates and pauses that were set at run time. name is '' for the namespace itself. Engines find changes by the largest
-- updated_at, so a row is emptied and never deleted.
create table perdure.flow_control_rule (
  ns           int not null,
  scope        text not null check (scope in ('namespace', 'queue', 'workflow', 'task')),
  name         text not null,
  concurrency  int check (concurrency >= 1),
  rate         double precision check (rate > 0),
  per_us       bigint check (per_us > 0),
  burst        double precision check (burst >= 1),
  paused_at    timestamptz,
  paused_by    text,
  pause_reason text,
  updated_at   timestamptz not null default now(),
  updated_by   text not null,
  primary key (ns, scope, name),
  check ((rate is null) = (per_us is null)),
  check ((paused_at is null) = (paused_by is null))
);
create index flow_control_rule_changed on perdure.flow_control_rule (updated_at);

-- A group: waiting tasks, or waiting runs, that flow control treats alike. Its id is a hash of what they have in common. The row
-- exists while members wait.
create table perdure.flow_control_group (
  id         uuid primary key,
  ns         int not null,
  kind       text not null check (kind in ('task', 'run')),
  queue      text not null,
  name       text not null,
  workflow   text not null,
  fair       text not null default '',
  weight     double precision not null default 1 check (weight > 0),
  priority   smallint not null default 0,
  needs      text not null default '{}',
  turn       double precision not null default 0,
  head_at    timestamptz not null,
  next_at    timestamptz not null,
  blocked    text,
  reason     text,
  blocked_at timestamptz
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
comment on column perdure.flow_control_group.fair is 'the fairness key; groups of different keys take turns';
comment on column perdure.flow_control_group.needs is 'limits and rates that the members declare: JSON of core/flow_control';
comment on column perdure.flow_control_group.turn is 'virtual time of weighted fairness';
comment on column perdure.flow_control_group.head_at is 'when the first member fell due';
comment on column perdure.flow_control_group.next_at is 'when to try it again';
comment on column perdure.flow_control_group.blocked is 'the key that held it up last';
comment on column perdure.flow_control_group.reason is 'why, as JSON';
create index flow_control_group_turn    on perdure.flow_control_group (ns, kind, queue, name, priority desc, turn);
create index flow_control_group_oldest  on perdure.flow_control_group (ns, kind, queue, name, head_at);
create index flow_control_group_next    on perdure.flow_control_group (kind, next_at);
create index flow_control_group_blocked on perdure.flow_control_group (ns, blocked) where blocked is not null;

-- Slots of a limit that are taken. A row is made in the transaction that claims a task or admits a run. The triggers below delete
-- it in the transaction that ends the attempt or the run, so no slot outlives its holder.
create table perdure.flow_control_slot (
  ns       int not null,
  key      text not null,
  holder   uuid not null,
  run_id   uuid not null,
  at       timestamptz not null default now(),
  yielding boolean not null default false,
  primary key (ns, key, holder)
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
comment on column perdure.flow_control_slot.yielding is 'its run was cancelled to make room';
create index flow_control_slot_holder on perdure.flow_control_slot (holder);

create function perdure.free_task_slots() returns trigger language plpgsql as $$
begin
  delete from perdure.flow_control_slot where holder = old.id;
  return null;
end $$;
create trigger task_queue_freed after update on perdure.task_queue for each row
  when (old.group_id is not null and old.owner is not null and new.owner is null) execute function perdure.free_task_slots();
create trigger task_queue_gone after delete on perdure.task_queue for each row
  when (old.group_id is not null and old.owner is not null) execute function perdure.free_task_slots();

create function perdure.free_run_slots() returns trigger language plpgsql as $$
begin
  delete from perdure.flow_control_slot where holder = old.run_id;
  return null;
end $$;
create trigger run_queue_gone after delete on perdure.run_queue for each row
  when (old.group_id is not null and old.admitted_at is not null) execute function perdure.free_run_slots();

-- A stuck or paused run does not execute, so it gives its slots back. When it is resumed it waits for them again.
create function perdure.give_slots_back() returns trigger language plpgsql as $$
begin
  delete from perdure.flow_control_slot where holder = new.run_id;
  new.admitted_at := null;
  return new;
end $$;
create trigger run_queue_halted before update of stuck, paused_at on perdure.run_queue for each row
  when (old.stuck is null and old.paused_at is null and (new.stuck is not null or new.paused_at is not null)
        and new.group_id is not null and new.admitted_at is not null)
  execute function perdure.give_slots_back();

-- Waiting tasks of a paused run are not claimed. The trigger runs after the statement, so it also finds tasks that the statement queues.
create function perdure.hold_tasks() returns trigger language plpgsql as $$
begin
  update perdure.task_queue set held = new.paused_at is not null where run_id = new.run_id;
  return null;
end $$;
create trigger run_queue_paused after update of paused_at on perdure.run_queue for each row
  when ((old.paused_at is null) <> (new.paused_at is null)) execute function perdure.hold_tasks();

-- Token buckets of rates: what was left at `at`. What has flowed in since follows from the rate.
create table perdure.flow_control_bucket (
  ns     int not null,
  key    text not null,
  tokens double precision not null,
  at     timestamptz not null,
  primary key (ns, key)
) with (fillfactor = 50);


-- Deferred starts

-- Starts that are debounced (the last input within a quiet time counts) or batched (all inputs of a key start one run). run_id is
-- the id of the run to come. One open row per key takes further starts; a closed one only waits for an engine.
create table perdure.deferred_start (
  run_id   uuid primary key,
  ns       int not null,
  workflow text not null,
  key      text not null,
  kind     text not null check (kind in ('debounce', 'batch')),
  open     boolean not null default true,
  due_at   timestamptz not null,
  last_at  timestamptz not null,
  argument text,
  items    int not null default 0,
  bytes    int not null default 0,
  request  bytea not null,
  input    bytea
) with (fillfactor = 70);
comment on column perdure.deferred_start.last_at is 'debounced starts do not move due_at beyond this';
create unique index deferred_start_open on perdure.deferred_start (ns, workflow, key) where open;
create index deferred_start_due on perdure.deferred_start (due_at);

-- The inputs of a batch, in the order they came.
create table perdure.deferred_start_input (
  run_id uuid not null,
  n      int not null,
  input  bytea not null,
  primary key (run_id, n)
);

-- Keys under which a second start returns the run of the first: until expires_at, or ('infinity') until that run has ended.
create table perdure.dedup (
  ns         int not null,
  workflow   text not null,
  key        text not null,
  run_id     uuid not null,
  expires_at timestamptz not null,
  primary key (ns, workflow, key)
);
create index dedup_expires on perdure.dedup (expires_at);


-- Acts that programs ask for in SQL

-- perdure.start, perdure.signal and perdure.emit write these rows, in transactions of their callers: what they ask for happens if and only
-- if that transaction commits. Any engine carries them out. A row that cannot be carried out stays with its error for a while.
create table perdure.sql_request (
  id       bigint generated always as identity primary key,
  ns       int not null,
  act      text not null check (act in ('start', 'signal', 'emit')),
  name     text not null check (length(name) between 1 and 200),
  run_id   uuid,
  run_key  text,
  payload  text not null,
  key      text check (length(key) between 1 and 200),
  options  jsonb not null,
  by       text not null,
  at       timestamptz not null,
  due_at   timestamptz not null,
  tries    int not null default 0,
  error    text,
  check (act <> 'start' or run_id is not null)
);
comment on column perdure.sql_request.name is 'of the workflow, the signal or the event';
comment on column perdure.sql_request.run_id is 'the run to be started, or the run that gets the signal';
comment on column perdure.sql_request.run_key is 'in place of run_id: the key of the run that gets the signal';
comment on column perdure.sql_request.payload is 'JSON';
create index sql_request_due on perdure.sql_request (due_at, id) where error is null;
create index sql_request_key on perdure.sql_request (ns, key) where act = 'start';
create index sql_request_run on perdure.sql_request (run_id) where act = 'start';
create index sql_request_age on perdure.sql_request (at) where error is not null;

create function perdure.sql_namespace(options jsonb, allowed text[]) returns int language plpgsql stable as $$
declare
  found int;
  wrong text;
begin
  select o into wrong from jsonb_object_keys(options) o where o <> all(allowed) limit 1;
  if wrong is not null then
    raise exception 'perdure: unknown option "%"', wrong using errcode = 'invalid_parameter_value', hint = 'Options are: ' || array_to_string(allowed, ', ');
  end if;
  select id into found from perdure.namespace where name = coalesce(options->>'namespace', 'default') and deleted_at is null;
  if found is null then
    raise exception 'perdure: there is no namespace "%"', options->>'namespace' using errcode = 'invalid_parameter_value', hint = 'Create it with `perdure namespace create`.';
  end if;
  return found;
end $$;

-- A run of a workflow, under an id that is known now. It is started after the transaction has committed. Under a key that has a run
-- already, or that was given by a transaction before, no other run is started, and the id of that one is returned.
create function perdure.start(workflow text, input jsonb default '{}', key text default null, options jsonb default '{}') returns uuid
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
  space int := perdure.sql_namespace(options, array['namespace', 'timeout', 'attributes', 'delay']);
  made  uuid;
  begins timestamptz := perdure.clock() + coalesce((options->>'delay')::interval, interval '0');
begin
  if workflow is null or not exists(select from perdure.workflow w where w.ns = space and w.name = workflow and w.deleted_at is null) then
    raise exception 'perdure: no workflow "%" is registered', workflow
      using errcode = 'undefined_object', hint = 'Connect a worker that defines it, or deploy the flow.';
  end if;
  if jsonb_typeof(input) is distinct from 'object' then
    raise exception 'perdure: the input of % must be a JSON object of arguments by name', workflow using errcode = 'invalid_parameter_value';
  end if;
  if octet_length(input::text) > 262144 then
    raise exception 'perdure: the input of % is over 262144 bytes', workflow
      using errcode = 'program_limit_exceeded', hint = 'Store it in a table of yours and pass its key.';
  end if;
  if (options->>'timeout')::interval <= interval '0' or jsonb_typeof(options->'attributes') <> 'object' then
    raise exception 'perdure: timeout is a positive interval, and attributes are an object' using errcode = 'invalid_parameter_value';
  end if;
  if key is not null then
    -- One transaction at a time under a key. Engines do not take this lock, so an open transaction holds up none of them.
    perform pg_advisory_xact_lock(hashtextextended(space || E'\n' || key, 6));
    select k.run_id into made from perdure.run_key k where k.ns = space and k.key = start.key;
    if made is null then
      select r.run_id into made from perdure.sql_request r where r.ns = space and r.key = start.key and r.act = 'start' and r.error is null;
    end if;
    if made is not null then
      return made;
    end if;
  end if;
  made := encode(substring(int8send((extract(epoch from clock_timestamp()) * 1000)::bigint) from 3) || '\x7000'::bytea
                 || substring(uuid_send(gen_random_uuid()) from 9), 'hex')::uuid;
  insert into perdure.sql_request (ns, act, name, run_id, payload, key, options, by, at, due_at)
  values (space, 'start', workflow, made, input::text, key,
          jsonb_strip_nulls(jsonb_build_object('timeout_us', (extract(epoch from (options->>'timeout')::interval) * 1000000)::bigint,
                                               'attributes', options->'attributes')), session_user, perdure.clock(), begins);
  return made;
end $$;

-- A start that was asked for and has not become a run: what was asked for, and the error if it cannot be carried out. Null: there is none, or
-- another role has asked for it.
create function perdure.requested_start(run uuid) returns jsonb
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
  select jsonb_build_object('workflow', r.name, 'input', r.payload, 'at', r.at, 'error', r.error)
    from perdure.sql_request r where r.act = 'start' and r.run_id = run and r.by = session_user;
$$;

-- A signal to a run, which is named by its id, or by `key:` and its key.
create function perdure.signal(run text, signal text, payload jsonb default 'null', key text default null, options jsonb default '{}') returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  space int := perdure.sql_namespace(options, array['namespace']);
begin
  if run is null or signal is null or payload is null then
    raise exception 'perdure: a signal needs a run, a name and a payload (JSON null: ''null''::jsonb)' using errcode = 'null_value_not_allowed';
  end if;
  if octet_length(payload::text) > 262144 then
    raise exception 'perdure: the payload of % is over 262144 bytes', signal using errcode = 'program_limit_exceeded';
  end if;
  insert into perdure.sql_request (ns, act, name, run_id, run_key, payload, key, options, by, at, due_at)
  values (space, 'signal', signal, case when run not like 'key:%' then run::uuid end, case when run like 'key:%' then substr(run, 5) end,
          payload::text, key, '{}', session_user, perdure.clock(), perdure.clock());
end $$;

create function perdure.signal(run uuid, signal text, payload jsonb default 'null', key text default null, options jsonb default '{}') returns void
language sql as $$ select perdure.signal(run::text, signal, payload, key, options) $$;

-- A named event, for runs that wait for it and workflows that subscribe to it.
create function perdure.emit(event text, payload jsonb default 'null', key text default null, options jsonb default '{}') returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  space int := perdure.sql_namespace(options, array['namespace']);
begin
  if event is null or payload is null then
    raise exception 'perdure: an event needs a name and a payload (JSON null: ''null''::jsonb)' using errcode = 'null_value_not_allowed';
  end if;
  if octet_length(payload::text) > 262144 then
    raise exception 'perdure: the payload of % is over 262144 bytes', event using errcode = 'program_limit_exceeded';
  end if;
  insert into perdure.sql_request (ns, act, name, payload, key, options, by, at, due_at)
  values (space, 'emit', event, payload::text, key, '{}', session_user, perdure.clock(), perdure.clock());
end $$;


-- Effects of transactional tasks: a row is committed together with what the task did to tables of the application.
create table perdure.task_effect (
  run_id uuid not null,
  seq    int not null,
  at     timestamptz not null default now(),
  result bytea,
  primary key (run_id, seq)
);
comment on column perdure.task_effect.result is 'encoded result of the task; null only within the transaction that writes it';
create index task_effect_age on perdure.task_effect (at);

-- The recorded result of the task, or null: then its code has to run, in this transaction. Waits for another attempt that is at it.
create function perdure.begin_effect(run uuid, number int) returns bytea
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  insert into perdure.task_effect (run_id, seq) values (run, number) on conflict do nothing;
  return (select e.result from perdure.task_effect e where e.run_id = run and e.seq = number);
end $$;

create function perdure.end_effect(run uuid, number int, recorded bytea) returns void
language sql security definer set search_path = pg_catalog, pg_temp as $$
  update perdure.task_effect set result = recorded where run_id = run and seq = number and result is null;
$$;


-- Schedules

create table perdure.calendar (
  ns         int not null,
  name       text not null,
  spec       text not null,
  updated_at timestamptz not null default now(),
  updated_by text not null,
  primary key (ns, name)
);

create table perdure.schedule (
  id           bigint generated always as identity primary key,
  ns           int not null,
  name         text not null,
  workflow     text not null,
  version      text not null default '',
  input        bytea not null,
  timeout_us   bigint not null default 0 check (timeout_us >= 0),
  attributes   text,
  spec         text not null,
  spec_hash    bytea not null,
  origin       text not null default 'api',
  created_at   timestamptz not null default now(),
  created_by   text not null,
  updated_at   timestamptz not null default now(),
  paused_at    timestamptz,
  paused_by    text,
  pause_reason text,
  next_at      timestamptz,
  fire_at      timestamptz,
  fired        bigint not null default 0,
  missed       bigint not null default 0,
  skipped      bigint not null default 0,
  error        text,
  deleted_at   timestamptz
);
comment on column perdure.schedule.version is 'empty: the version that is current when it fires';
comment on column perdure.schedule.timeout_us is 'of its runs; 0: none';
comment on column perdure.schedule.spec is 'JSON of core/schedules';
comment on column perdure.schedule.spec_hash is 'tells whether a deployment changed the spec';
comment on column perdure.schedule.origin is 'api, code, or flow: and the name of the flow whose triggers name it';
comment on column perdure.schedule.next_at is 'the next nominal time; null when there is none';
comment on column perdure.schedule.fire_at is 'next_at plus its jitter';
create unique index schedule_name on perdure.schedule (ns, name) where deleted_at is null;
create index schedule_due on perdure.schedule (fire_at) where paused_at is null and deleted_at is null and fire_at is not null;
create index schedule_origin on perdure.schedule (ns, origin) where deleted_at is null;

-- One row per nominal time of a schedule: what came of it.
create table perdure.schedule_fire (
  schedule_id bigint not null,
  nominal_at  timestamptz not null,
  ns          int not null,
  run_id      uuid,
  how         text not null check (how in ('fired', 'trigger', 'backfill')),
  outcome     text not null check (outcome in ('started', 'skipped', 'missed')),
  at          timestamptz not null default now(),
  primary key (schedule_id, nominal_at)
);
comment on column perdure.schedule_fire.outcome is 'skipped: the run before was still active';
-- The latest runs of a schedule, for the overlap policy. Those of a backfill are about other times.
create index schedule_fire_run on perdure.schedule_fire (schedule_id, nominal_at) where run_id is not null and how <> 'backfill';


-- Notifications

-- Which facts about runs are sent where. The secret, which signs or is the address, is sealed.
create table perdure.notification_rule (
  id              bigint generated always as identity primary key,
  ns              int not null,
  name            text not null,
  workflows       text[] not null,
  kinds           text[] not null,
  late_after_us   bigint check (late_after_us > 0),
  target          text not null check (target in ('webhook', 'email', 'slack')),
  address         text not null,
  secret          bytea,
  created_at      timestamptz not null default now(),
  created_by      text not null,
  late_checked_at timestamptz not null default '-infinity',
  dropped         bigint not null default 0,
  unique (ns, name)
);
comment on column perdure.notification_rule.workflows is 'names, or * for all';
comment on column perdure.notification_rule.late_after_us is 'a run that is active for longer is late';
comment on column perdure.notification_rule.address is 'a URL or email addresses; of a Slack URL only the host';
comment on column perdure.notification_rule.dropped is 'pending notifications that were deleted, because there were too many';

-- The outbox: one row per rule and fact, written in the transaction of the fact. A row of rule 0 is a hook: a run of the workflow `hook` is
-- to be started. attempts is also the fence of a claim: only the engine that made this attempt may record how it ended.
create table perdure.notification (
  n                bigint generated always as identity primary key,
  id               uuid not null unique default gen_random_uuid(),
  rule_id          bigint not null,
  ns               int not null,
  kind             text not null,
  run_id           uuid,
  occurrence       text not null,
  workflow         text not null,
  hook             text,
  data             jsonb not null,
  at               timestamptz not null,
  status           text not null default 'pending' check (status in ('pending', 'done', 'dead')),
  due_at           timestamptz not null,
  attempts         int not null default 0,
  earlier_attempts int not null default 0,
  ended_at         timestamptz,
  error            text
) with (fillfactor = 70);
comment on column perdure.notification.id is 'the id that receivers see; it is the same in every attempt';
comment on column perdure.notification.occurrence is 'tells facts of one kind about one run apart: the number of its last event, its epoch, the name of an approval';
comment on column perdure.notification.due_at is 'the next attempt; of a claimed row, when the claim ends';
comment on column perdure.notification.earlier_attempts is 'attempts before the last retry by hand, which do not count';
create unique index notification_fact on perdure.notification (run_id, rule_id, kind, occurrence);
create index notification_due  on perdure.notification (rule_id, due_at) where status = 'pending';
create index notification_dead on perdure.notification (rule_id) where status = 'dead';
create index notification_list on perdure.notification (ns, n);
create index notification_age  on perdure.notification (ended_at) where status <> 'pending';

-- Rows of the outbox about runs that end. commit_batch calls it only where there is a rule or a hook. A run that continues has not ended.
create function perdure.note_ends(run_ids uuid[], namespaces int[], workflows text[], versions text[], keys text[], statuses text[],
                                  begun timestamptz[], ended_at timestamptz, last_events int[], codes text[], errors text[], successors uuid[])
returns void language plpgsql as $$
begin
  insert into perdure.notification (rule_id, ns, kind, run_id, occurrence, workflow, hook, data, at, due_at)
  select t.rule_id, u.ns, t.kind, u.run_id, u.events::text, u.workflow, t.hook,
         jsonb_strip_nulls(jsonb_build_object('version', u.version, 'key', u.key, 'status', u.status, 'error_code', u.code, 'error', u.error,
           'created_us', (extract(epoch from u.created_at) * 1000000)::bigint, 'finished_us', (extract(epoch from ended_at) * 1000000)::bigint)),
         ended_at, ended_at
    from unnest(run_ids, namespaces, workflows, versions, keys, statuses, begun, last_events, codes, errors, successors)
           as u(run_id, ns, workflow, version, key, status, created_at, events, code, error, successor)
    cross join lateral (
      select r.id as rule_id, k.kind, null::text as hook
        from perdure.notification_rule r
        cross join unnest(array['run.' || case u.status when 'success' then 'succeeded' else u.status end,
                                case when u.code in ('run_timeout', 'run_expired') then 'run.deadline_missed' end]) as k(kind)
       where r.ns = u.ns and k.kind = any(r.kinds) and (u.workflow = any(r.workflows) or '*' = any(r.workflows))
      union all
      select 0, 'hook.' || u.status, v.hooks->>u.status
        from perdure.workflow_version v
       where v.ns = u.ns and v.workflow = u.workflow and v.version = u.version and v.hooks is not null and v.hooks ? u.status
         and coalesce(u.key, '') not like 'perdure.hook:%'
    ) t
   where u.successor is null
  on conflict do nothing;
end $$;

-- A run that is stuck, however that came about.
create function perdure.note_stuck() returns trigger language plpgsql as $$
begin
  insert into perdure.notification (rule_id, ns, kind, run_id, occurrence, workflow, data, at, due_at)
  select r.id, new.ns, 'run.stuck', new.run_id, new.epoch::text, new.workflow,
         jsonb_strip_nulls(jsonb_build_object('version', new.version, 'key', new.key, 'status', 'stuck', 'error', new.stuck,
           'created_us', (extract(epoch from new.created_at) * 1000000)::bigint)), perdure.clock(), perdure.clock()
    from perdure.notification_rule r
   where r.ns = new.ns and 'run.stuck' = any(r.kinds) and (new.workflow = any(r.workflows) or '*' = any(r.workflows))
  on conflict do nothing;
  return null;
end $$;
create trigger run_queue_stuck after update on perdure.run_queue for each row
  when (new.stuck is not null and old.stuck is null) execute function perdure.note_stuck();

-- An approval that a run asks for. The row may have been resolved before it was asked for, and be open again.
create function perdure.note_approval() returns trigger language plpgsql as $$
begin
  insert into perdure.notification (rule_id, ns, kind, run_id, occurrence, workflow, data, at, due_at)
  select r.id, q.ns, 'approval.asked', q.run_id, new.name || ' ' || q.epoch, q.workflow,
         jsonb_strip_nulls(jsonb_build_object('version', q.version, 'key', q.key, 'status', q.status, 'approval', new.name,
           'assignees', to_jsonb(new.assignees), 'title', new.spec::jsonb->>'title',
           'created_us', (extract(epoch from q.created_at) * 1000000)::bigint)), perdure.clock(), perdure.clock()
    from perdure.run_queue q join perdure.notification_rule r on r.ns = q.ns
   where q.run_id = new.run_id and 'approval.asked' = any(r.kinds) and (q.workflow = any(r.workflows) or '*' = any(r.workflows))
  on conflict do nothing;
  return null;
end $$;
create trigger promise_asked after insert on perdure.promise for each row
  when (new.kind = 'approval' and new.resolved_at is null) execute function perdure.note_approval();
create trigger promise_asked_again after update on perdure.promise for each row
  when (new.kind = 'approval' and new.resolved_at is null and new.asked
        and (old.kind <> 'approval' or not old.asked or old.question <> new.question)) execute function perdure.note_approval();

-- A time of a schedule that passed without a run.
create function perdure.note_missed() returns trigger language plpgsql as $$
begin
  insert into perdure.notification (rule_id, ns, kind, occurrence, workflow, data, at, due_at)
  select r.id, s.ns, 'schedule.missed', s.id || ' ' || extract(epoch from new.nominal_at), s.workflow,
         jsonb_build_object('schedule', s.name, 'nominal_us', (extract(epoch from new.nominal_at) * 1000000)::bigint), new.at, new.at
    from perdure.schedule s join perdure.notification_rule r on r.ns = s.ns
   where s.id = new.schedule_id and 'schedule.missed' = any(r.kinds) and (s.workflow = any(r.workflows) or '*' = any(r.workflows));
  return null;
end $$;
create trigger schedule_fire_missed after insert on perdure.schedule_fire for each row
  when (new.outcome = 'missed') execute function perdure.note_missed();


-- Access

-- API keys. The secret is never stored, only its SHA-256; id is the public half by which a key is found.
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

-- Sessions of browsers. The id is in the cookie alone; hash is its SHA-256. A session of an API key has the rights of the key, looked up at each use.
create table perdure.web_session (
  hash       bytea primary key,
  subject    text not null,
  name       text not null,
  key_id     text,
  role       text check (role in ('viewer', 'operator', 'developer', 'worker', 'admin')),
  namespace  text,
  created_at timestamptz not null default now(),
  used_at    timestamptz not null default now(),
  expires_at timestamptz not null,
  check ((key_id is null) <> (role is null))
);
comment on column perdure.web_session.namespace is 'null: every namespace';
create index web_session_subject on perdure.web_session (subject, created_at);
create index web_session_expiry on perdure.web_session (expires_at);

-- Requests that carry an Idempotency-Key, with the first answer.
create table perdure.idempotency (
  ns         int not null,
  key        text not null,
  hash       bytea not null,
  created_at timestamptz not null default now(),
  status     int,
  answer     bytea,
  primary key (ns, key)
);
comment on column perdure.idempotency.status is 'the HTTP status of the answer';
create index idempotency_age on perdure.idempotency (created_at);

-- Who did what. Append-only: the trigger refuses every change, also those of the owner.
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
create index audit_at   on perdure.audit (at);

-- The hash chain of the audit log. n counts its lines in the order in which their transactions committed; the head holds the last.
create table perdure.audit_chain (
  n    bigint primary key,
  id   bigint not null unique,
  hash bytea not null
);
create table perdure.audit_head (
  one  boolean primary key default true check (one),
  n    bigint not null,
  hash bytea not null
);
insert into perdure.audit_head (n, hash) values (0, '\x0000000000000000000000000000000000000000000000000000000000000000');

create function perdure.refuse_change() returns trigger language plpgsql as $$
begin
  raise exception 'perdure.% is append-only', tg_table_name using errcode = 'insufficient_privilege';
end $$;
create trigger audit_append_only before update or delete or truncate on perdure.audit
  for each statement execute function perdure.refuse_change();
create trigger audit_chain_append_only before update or delete or truncate on perdure.audit_chain
  for each statement execute function perdure.refuse_change();

create function perdure.audit_text(line perdure.audit) returns bytea language sql stable parallel safe
  return convert_to(jsonb_build_array(line.id, (extract(epoch from line.at) * 1000000)::bigint, line.ns, line.actor, line.action, line.target,
                                      line.detail)::text, 'UTF8');
create function perdure.audit_hash(before bytea, line perdure.audit) returns bytea language sql stable parallel safe
  return sha256(before || perdure.audit_text(line));

-- Runs at the end of the transaction, so that the head is locked last and only for the moment of the commit: two writers of the log
-- cannot wait for each other crosswise. The first line chains all of its transaction: visible lines without a place in the chain are
-- its own, because others write line and place in one commit. Definer's rights: writers of the log may not touch its chain.
create function perdure.chain_audit() returns trigger language plpgsql security definer set search_path = pg_catalog, perdure, pg_temp as $$
declare
  head perdure.audit_head;
  ids bigint[];
  texts bytea[];
  one bytea;
  hashes bytea[];
begin
  if exists (select from perdure.audit_chain c where c.id = new.id) then
    return null;
  end if;
  select * into head from perdure.audit_head for update;
  select array_agg(a.id order by a.id), array_agg(perdure.audit_text(a) order by a.id) into ids, texts
    from perdure.audit a where a.id >= new.id and not exists (select from perdure.audit_chain c where c.id = a.id);
  foreach one in array texts loop
    head.hash := sha256(head.hash || one);
    hashes := hashes || head.hash;
  end loop;
  insert into perdure.audit_chain (n, id, hash) select head.n + u.i, u.id, u.hash from unnest(ids, hashes) with ordinality as u(id, hash, i);
  update perdure.audit_head set n = head.n + cardinality(ids), hash = head.hash;
  return null;
end $$;
create constraint trigger audit_chained after insert on perdure.audit deferrable initially deferred
  for each row execute function perdure.chain_audit();


-- Partitions
--
-- Engines create and drop partitions without the right to change the schema: these functions do it for the tables that grow, under
-- names that follow from a day, and nothing else. Only roles with a grant may call them.

-- What retention has dropped: ids of this table below `below` may be gone.
create table perdure.retention (
  parent     text primary key,
  below      uuid not null,
  dropped_at timestamptz not null
);

-- The smallest id of a moment; see core/ids.py.
create function perdure.first_id(at timestamptz) returns uuid language sql immutable parallel safe
  return (lpad(to_hex((extract(epoch from at) * 1000)::bigint), 12, '0') || repeat('0', 20))::uuid;

-- The day of a partition, from its name. Names that are not a partition of the table are refused.
create function perdure.partition_day(parent text, name text) returns timestamptz
language plpgsql immutable set search_path = pg_catalog, perdure, pg_temp as $$
begin
  if parent is null or name is null or parent not in ('history', 'run', 'task', 'task_attempt', 'node_count', 'run_state', 'task_log', 'payload_use')
     or name !~ ('^' || parent || '_p[0-9]{8}$') then
    raise exception '% is not a partition of perdure.%', name, parent using errcode = 'invalid_parameter_value';
  end if;
  return make_date(left(right(name, 8), 4)::int, left(right(name, 4), 2)::int, right(name, 2)::int)::timestamp at time zone 'UTC';
end $$;

-- False when it exists. The table is created first and then attached, which does not block writers of other partitions.
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

-- Drops a day that is over. Rows of runs that are still active move to the default partition first. A detached table takes no
-- more writes of its range: late ones go to the default partition. False when another engine is changing partitions.
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
  insert into perdure.retention as r (parent, below, dropped_at) values (drop_partition.parent, perdure.first_id(ended), now())
  on conflict on constraint retention_pkey do update set below = greatest(r.below, excluded.below), dropped_at = excluded.dropped_at;
  return true;
end $$;

-- Deletes an ended run with everything that is kept of it, and nothing else: an engine has no right to delete history in any other way. Stored
-- payloads go when upkeep finds that nothing uses them any more. The tasks' ids are those from low to high.
-- Locks: the row of the ended run, so that it is deleted or retried, never both.
create function perdure.delete_run(run uuid, of_ns integer, low uuid, high uuid) returns text
language plpgsql security definer set search_path = pg_catalog, perdure, pg_temp as $$
declare
  parent uuid;
  next_run uuid;
  ended_well boolean;
begin
  select r.parent_id, r.successor, r.status = 'success' into parent, next_run, ended_well from perdure.run r where r.run_id = run and r.ns = of_ns for update;
  if not found then
    return case when exists (select from perdure.run_queue q where q.run_id = run and q.ns = of_ns) then 'active' else 'unknown' end;
  end if;
  if exists (select from perdure.run_queue q where q.run_id = run) then
    return 'active';
  end if;
  -- A failed parent may be retried, and would execute a child again that has ended well.
  if exists (select from perdure.run_queue q where q.run_id = parent)
     or ended_well and exists (select from perdure.run r where r.run_id = parent and r.status = 'failed') then
    return 'awaited';
  end if;
  -- Later runs of its chain.
  while next_run is not null loop
    if exists (select from perdure.run_queue q where q.run_id = next_run) then
      return 'continued';
    end if;
    next_run := (select r.successor from perdure.run r where r.run_id = next_run);
  end loop;
  perform perdure.count_runs(array[r.ns], array[r.workflow], array[r.status], array[r.created_at], array[r.finished_at], -1)
     from perdure.run r where r.run_id = run;
  delete from perdure.history h where h.run_id = run;
  delete from perdure.task t where t.id between low and high and t.run_id = run;
  delete from perdure.task_attempt t where t.id between low and high and t.run_id = run;
  delete from perdure.node_count c where c.run_id = run;
  delete from perdure.run_state s where s.run_id = run;
  delete from perdure.task_log l where l.run_id = run;
  delete from perdure.payload_use u where u.run_id = run;
  delete from perdure.run_key k where k.run_id = run;
  delete from perdure.run_chain c where c.head = run;
  delete from perdure.message_key k where k.run_id = run;
  delete from perdure.inbox i where i.run_id = run;
  delete from perdure.set_aside_message m where m.run_id = run;
  delete from perdure.promise p where p.run_id = run;
  delete from perdure.event_look l where l.run_id = run;
  delete from perdure.vote v where v.run_id = run;
  delete from perdure.decided_approval d where d.run_id = run;
  delete from perdure.update_answer a where a.run_id = run;
  delete from perdure.dedup d where d.run_id = run;
  delete from perdure.task_effect f where f.run_id = run;
  delete from perdure.notification t where t.run_id = run and t.status <> 'pending';
  delete from perdure.run r where r.run_id = run;
  return 'deleted';
end $$;

revoke execute on function perdure.first_id(timestamptz), perdure.partition_day(text, text),
  perdure.create_partition(text, text, uuid, uuid), perdure.drop_partition(text, text), perdure.delete_run(uuid, integer, uuid, uuid),
  perdure.chain_audit(),
  perdure.start(text, jsonb, text, jsonb),
  perdure.signal(text, text, jsonb, text, jsonb),
  perdure.signal(uuid, text, jsonb, text, jsonb),
  perdure.emit(text, jsonb, text, jsonb),
  perdure.begin_effect(uuid, int),
  perdure.end_effect(uuid, int, bytea) from public;

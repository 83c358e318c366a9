-- Time, waits and flow control: why a run waits, approvals, events from outside, schedules, lines, slots, buckets.

-- ---- why a run waits --------------------------------------------------------------------------------------------------
-- Written by the engine that lets go of a run (or sees it wait): what the run waits for, by core/wait_reasons.py. `waiting_on` is the one word that
-- lists are filtered by; `waits` a JSON array with all of it. Both go when the run is claimed again.
alter table perdure.run_queue
  add column waiting_on text,
  add column waits      text;
create index run_queue_waiting on perdure.run_queue (ns, waiting_on, run_id) where waiting_on is not null;

-- ---- flow control -----------------------------------------------------------------------------------------------------
-- What people set about a namespace, queue, workflow or task: at most so many at a time, so many per time, or none for now.
-- name is '' for the namespace itself.
create table perdure.flow_rule (
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
create index flow_rule_changed on perdure.flow_rule (updated_at);

-- A line: waiting tasks, or waiting runs, that have everything in common that flow control looks at. Its id is a hash of just that.
-- A line exists while something waits in it. kind: 0 tasks, 1 runs. needs: JSON of the limits and rates that its members carry themselves.
-- turn: virtual time of weighted fairness. next_at: when it is worth looking at again. blocked: the key that held it up last, with the
-- reason as the claim put it (JSON). Lock order: engine_session, then lines (skip locked), then advisory locks of keys in order.
create table perdure.line (
  id         uuid primary key,
  ns         int not null,
  kind       smallint not null check (kind in (0, 1)),
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
create index line_turn    on perdure.line (ns, kind, queue, name, priority desc, turn);
create index line_oldest  on perdure.line (ns, kind, queue, name, head_at);
create index line_next    on perdure.line (kind, next_at);
create index line_blocked on perdure.line (ns, blocked) where blocked is not null;

alter table perdure.task_queue
  add column line       uuid,
  add column expires_at timestamptz;
comment on column perdure.task_queue.line is 'null: nothing limits it';
comment on column perdure.task_queue.expires_at is 'not begun by then: the task fails (schedule to start, schedule to close)';
drop index perdure.task_queue_due;
create index task_queue_due     on perdure.task_queue (ns, queue, name, run_at) where owner is null and line is null;
create index task_queue_line    on perdure.task_queue (line, run_at, id) where owner is null and line is not null;
create index task_queue_in_line on perdure.task_queue (line) where owner is not null and line is not null;
create index task_queue_expires on perdure.task_queue (expires_at) where owner is null and expires_at is not null;

-- Runs that wait to be let in. admitted_at is set once they hold their slots; a run without limits has neither.
alter table perdure.run_queue
  add column line        uuid,
  add column admitted_at timestamptz;
create index run_queue_line on perdure.run_queue (line, run_id) where line is not null and admitted_at is null;

-- Who holds what. A row is made in the transaction that claims a task or lets in a run, and goes in the one that ends the attempt or the
-- run, whoever does that: the triggers below see to it. So no slot outlives its holder.
create table perdure.slot (
  ns     int not null,
  key    text not null,
  holder uuid not null,
  run_id uuid not null,
  at     timestamptz not null default now(),
  asked  boolean not null default false,
  primary key (ns, key, holder)
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
comment on column perdure.slot.asked is 'its run was asked to make room';
create index slot_holder on perdure.slot (holder);

create function perdure.free_task_slots() returns trigger language plpgsql as $$
begin
  delete from perdure.slot where holder = old.id;
  return null;
end $$;
create trigger task_queue_freed after update on perdure.task_queue for each row
  when (old.line is not null and old.owner is not null and new.owner is null) execute function perdure.free_task_slots();
create trigger task_queue_gone after delete on perdure.task_queue for each row
  when (old.line is not null and old.owner is not null) execute function perdure.free_task_slots();

create function perdure.free_run_slots() returns trigger language plpgsql as $$
begin
  delete from perdure.slot where holder = old.run_id;
  return null;
end $$;
create trigger run_queue_gone after delete on perdure.run_queue for each row
  when (old.line is not null and old.admitted_at is not null) execute function perdure.free_run_slots();

-- Token buckets: what was in it at `at`; what has flowed in since follows from the rate.
create table perdure.bucket (
  ns     int not null,
  key    text not null,
  tokens double precision not null,
  at     timestamptz not null,
  primary key (ns, key)
) with (fillfactor = 50);

-- What workflows of code say about flow control of their runs; JSON, null for none. Flows say it in their document.
alter table perdure.workflow_version add column control text;

-- Starts that are put off until no more come (debounce) or until there are enough (batch), by key. run_id is that of the run that will come.
-- open: takes more starts; there is one such row to a key. A row that is closed only waits to be made a run of.
create table perdure.start_later (
  run_id   uuid primary key,
  ns       int not null,
  workflow text not null,
  key      text not null,
  kind     smallint not null check (kind in (0, 1)),
  open     boolean not null default true,
  due_at   timestamptz not null,
  last_at  timestamptz not null,
  argument text,
  items    int not null default 0,
  bytes    int not null default 0,
  request  bytea not null,
  input    bytea
) with (fillfactor = 70);
comment on table perdure.start_later is 'kind 0: debounced, the last input counts and is in the row; 1: batched, all inputs together, see start_input';
create unique index start_later_open on perdure.start_later (ns, workflow, key) where open;
create index start_later_due on perdure.start_later (due_at);

-- What batched starts bring, in the order they came.
create table perdure.start_input (
  run_id uuid not null,
  n      int not null,
  input  bytea not null,
  primary key (run_id, n)
);

-- Keys under which a second start is answered with the run of the first: until a moment, or ('infinity') until that run has ended.
create table perdure.dedup (
  ns         int not null,
  workflow   text not null,
  key        text not null,
  run_id     uuid not null,
  expires_at timestamptz not null,
  primary key (ns, workflow, key)
);
create index dedup_expires on perdure.dedup (expires_at);

-- ---- messages ---------------------------------------------------------------------------------------------------------
-- Messages that carry a key of their sender: a second one of the same key is the first one, sent again. Rows go with the run; those of
-- a run that continues stay, under the id that senders know it by, until they are old.
create table perdure.message_key (
  run_id uuid not null,
  key    text not null,
  at     timestamptz not null default now(),
  primary key (run_id, key)
);
create index message_key_age on perdure.message_key (at);

-- A promise that is an approval or waits for a named event has more to it. kind: 0 promise, 1 approval, 2 event.
-- spec: JSON as recorded in the history. Who may answer now: assignees, and those in escalate_to once escalate_at has come.
alter table perdure.promise
  add column kind        smallint not null default 0 check (kind in (0, 1, 2)),
  add column spec        text,
  add column event       text,
  add column assignees   text[],
  add column quorum      int,
  add column deadline_at timestamptz,
  add column escalate_at timestamptz,
  add column escalate_to text[],
  add column sure        boolean not null default false;
comment on column perdure.promise.sure is 'resolved by somebody who may answer for others; before it was asked for, an approval of certain people takes nothing else';
create index promise_open_approvals on perdure.promise (ns, created_at, run_id, name) where kind = 1 and resolved_at is null;
create index promise_open_events    on perdure.promise (ns, event, run_id, name)      where kind = 2 and resolved_at is null;

-- Answers to approvals, one per person. They go with the promise; the audit log keeps who said what.
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

-- Signed links that were used. A link works once.
create table perdure.used_link (
  id         bytea primary key,
  at         timestamptz not null default now(),
  expires_at timestamptz not null
);
create index used_link_expires on perdure.used_link (expires_at);

-- Secrets of this installation, made at first use: what links are signed with.
create table perdure.secret (
  name       text primary key,
  value      bytea not null,
  created_at timestamptz not null default now()
);

-- Named events on their way to the runs that wait for them. Matched by any engine, page by page; kept for a while so that people can see them.
create table perdure.event (
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
  unique (ns, name, key)
);
create index event_open  on perdure.event (id) where done_at is null;
create index event_list  on perdure.event (ns, id);
create index event_named on perdure.event (ns, name, id);
create index event_age  on perdure.event (at);

-- Ways in for webhooks. A request must be signed with the secret.
create table perdure.webhook (
  ns         int not null,
  name       text not null,
  event      text not null,
  secret     bytea not null,
  created_at timestamptz not null default now(),
  created_by text not null,
  primary key (ns, name)
);
comment on table perdure.webhook is 'event: the name of the event that a request becomes';

-- Updates by the id of whoever asked. A row is made with the question, value and failure come with the answer. Rows go by age, not with the
-- run: whoever asked may still be waiting.
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

-- ---- schedules --------------------------------------------------------------------------------------------------------
create table perdure.calendar (
  ns         int not null,
  name       text not null,
  spec       text not null,
  updated_at timestamptz not null default now(),
  updated_by text not null,
  primary key (ns, name)
);

-- spec: JSON, by core/schedules. spec_hash tells whether a redeploy changed anything. next_at is the next nominal time, fire_at that plus its jitter;
-- both null when it is over. version '': whatever is current when it fires. origin: 'api', 'code', or 'flow:' and the name of the flow whose
-- `triggers:` it comes from. timeout_us: how long its runs may take, 0 for as long as they do.
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
create unique index schedule_name on perdure.schedule (ns, name) where deleted_at is null;
create index schedule_due on perdure.schedule (fire_at) where paused_at is null and deleted_at is null and fire_at is not null;
create index schedule_origin on perdure.schedule (ns, origin) where deleted_at is null;

-- One row per nominal time, whatever came of it. how: 0 fired, 1 by hand, 2 backfill. outcome: 0 started, 1 skipped (overlap), 2 missed.
create table perdure.schedule_fire (
  schedule_id bigint not null,
  nominal_at  timestamptz not null,
  ns          int not null,
  run_id      uuid,
  how         smallint not null,
  outcome     smallint not null,
  at          timestamptz not null default now(),
  primary key (schedule_id, nominal_at)
);
-- The latest runs of a schedule, to see whether one is still active. Those of a backfill are about other times.
create index schedule_fire_run on perdure.schedule_fire (schedule_id, nominal_at) where run_id is not null and how <> 2;

-- ---- dead letters -----------------------------------------------------------------------------------------------------
create index task_failed on perdure.task (ns, finished_at, id) where status = 4;

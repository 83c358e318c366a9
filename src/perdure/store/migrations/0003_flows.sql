-- Declarative flows: their documents, the nodes that tasks belong to, and what editors know about tasks.

-- What a version of a dag or graph is, as canonical JSON, and as its author wrote it. Null for code.
alter table perdure.workflow_version
  add column document text,
  add column source   text;

-- The node of a flow that a task belongs to, with its place in a spread; null for tasks of code.
alter table perdure.task       add column node text;
alter table perdure.task_queue add column node text;

-- Runs that any engine can decide, because their definition is data. Code runs are found by workflow (run_queue_due).
create index run_queue_flows on perdure.run_queue (wake_at) where owner is null and stuck is null and left(version, 5) = 'flow-';

-- Arguments of tasks as JSON Schema, as workers last said. For editors and validation of `with:`; nothing decides from it.
create table perdure.task_type (
  ns        int not null,
  name      text not null,
  signature text not null,
  seen_at   timestamptz not null default now(),
  primary key (ns, name)
);

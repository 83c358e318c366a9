-- Runs that no code can end: the engine ends them at their deadline or when they are cancelled.

-- deadline_at: when the run has to be over. cancel_at: when a cancel request was moved from the inbox into the history.
-- patience_at: until then the engine waits for a worker that can undo what the run did.
alter table perdure.run_queue
  add column deadline_at timestamptz,
  add column cancel_at   timestamptz,
  add column patience_at timestamptz;
create index run_queue_deadline  on perdure.run_queue (deadline_at) where owner is null and deadline_at is not null;
create index run_queue_cancelled on perdure.run_queue (run_id) where owner is null and cancel_at is not null;

-- Which mail asks the run to stop. The index holds only those, so that looking for them costs nothing while there are none.
alter table perdure.inbox add column stops boolean not null default false;
create index inbox_stops on perdure.inbox (run_id) where stops;

-- How long runs of a flow may take, as its document says; null: for ever.
alter table perdure.workflow_version add column timeout_us bigint;
create function perdure.flow_deadline(ns int, workflow text, version text, since timestamptz) returns timestamptz language sql stable parallel safe
  return case when left(version, 5) = 'flow-' then
    since + (select v.timeout_us from perdure.workflow_version v where v.ns = $1 and v.workflow = $2 and v.version = $3) * interval '1 microsecond' end;

-- A stuck run does not execute, so it holds no slots: others take them. When it is resumed it waits in its line again.
create function perdure.give_slots_back() returns trigger language plpgsql as $$
begin
  delete from perdure.slot where holder = new.run_id;
  new.admitted_at := null;
  return new;
end $$;
create trigger run_queue_stuck before update of stuck on perdure.run_queue for each row
  when (old.stuck is null and new.stuck is not null and new.line is not null and new.admitted_at is not null)
  execute function perdure.give_slots_back();
delete from perdure.slot s using perdure.run_queue q where q.run_id = s.holder and q.stuck is not null;
update perdure.run_queue set admitted_at = null where stuck is not null and admitted_at is not null;

drop index perdure.run_queue_line;
create index run_queue_line on perdure.run_queue (line, run_id) where line is not null and admitted_at is null and stuck is null;

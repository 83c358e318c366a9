-- Runs that their engines do not survive. Counted by the reaper alone, so that no commit pays for it.
--
-- takeovers: how many times in a row an engine died, or lost its lease, while it was loading or deciding the run, without one event of the run
-- in between. seen_events: how many events the run had the last time. suspect: two times and more; nobody claims it together with others.
alter table perdure.run_queue
  add column takeovers   smallint not null default 0,
  add column seen_events int not null default 0,
  add column suspect     bool not null default false;
create index run_queue_suspects on perdure.run_queue (run_id) where suspect and owner is null and stuck is null;

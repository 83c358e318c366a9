-- needs: 0001
-- What a version to come may do to the tables that are busiest: each gets a column, with a default that is not null and without one.
alter table perdure.engine_session add column next_note text;
alter table perdure.run_queue  add column next_weight int not null default 7, add column next_note text;
alter table perdure.task_queue add column next_weight int not null default 7, add column next_note text;
alter table perdure.inbox      add column next_weight int not null default 7;
alter table perdure.run        add column next_weight int not null default 7, add column next_note text;
alter table perdure.history    add column next_note text;
alter table perdure.task       add column next_note text;
alter table perdure.promise    add column next_note text;

create table perdure.next_table (id bigint generated always as identity primary key, run_id uuid not null, note text not null);

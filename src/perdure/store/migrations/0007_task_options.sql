-- Options that tasks declare where they are defined (queue, retry, timeout, limits, rates), as workers last said: JSON of
-- core/declared.py. A flow that schedules a task records them with it; null: the task declares none.

alter table perdure.task_type add column options text;
create index task_type_options on perdure.task_type (ns, name) where options is not null;

-- Partitions of the tables that grow, by day of their ids.

-- name: list_partitions
-- Range partitions with their bounds as text; the default partition has none.
select p.relname as parent, c.relname as name, pg_get_expr(c.relpartbound, c.oid) as bound
  from pg_inherits i join pg_class c on c.oid = i.inhrelid join pg_class p on p.oid = i.inhparent
  join pg_namespace n on n.oid = p.relnamespace
 where n.nspname = 'perdure' and p.relname = any($1::text[]) order by 1, 2;

-- name: lock_partitions
-- One engine at a time changes partitions; the others skip.
select pg_try_advisory_xact_lock(hashtext('perdure.partitions')) as got;

-- name: carry_runs
-- Ids of active runs, oldest first, whose rows must not go with their partition.
select run_id from perdure.run_queue where run_id < $1;

-- Partitions of the tables that grow, by day of their ids. The functions are in the migrations.

-- name: list_partitions
-- Range partitions with their bounds as text; the default partition has none.
select p.relname as parent, c.relname as name, pg_get_expr(c.relpartbound, c.oid) as bound
  from pg_inherits i join pg_class c on c.oid = i.inhrelid join pg_class p on p.oid = i.inhparent
  join pg_namespace n on n.oid = p.relnamespace
 where n.nspname = 'perdure' and p.relname = any(:tables::text[]) order by 1, 2;

-- name: create_partition
-- One engine at a time changes partitions; the others wait and find it done.
select perdure.create_partition(:parent, :name, :low, :high) as done;

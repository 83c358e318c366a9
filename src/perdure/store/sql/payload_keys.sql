-- Data keys, see store/payload_keys.py. No statement of them holds user data.

-- name: payload_keys_migration
-- The migration that brings sealed data, and whether no older code works on this database any more.
select m.number, (select max(a.needs) from perdure.migration a) >= m.number as is_finished
  from perdure.migration m where m.name = 'payload_keys';

-- name: list_payload_keys
select id, master, wrapped, created_at, rewrapped_at, now() as now from perdure.payload_key order by id;

-- name: payload_keys_of
select id, master, wrapped from perdure.payload_key where id = any(:ids::int[]);

-- name: newest_payload_key
select id, master, wrapped, extract(epoch from now() - created_at)::float8 as age_s from perdure.payload_key order by id desc limit 1;

-- name: lock_payload_keys
-- One process at a time makes a key.
select pg_advisory_xact_lock(hashtext('perdure.payload_key'));

-- name: insert_payload_key
insert into perdure.payload_key (master, wrapped) values (:master, :wrapped) returning id;

-- name: rewrap_payload_key
-- No row: another process has rewrapped it.
update perdure.payload_key set master = :master, wrapped = :wrapped, rewrapped_at = now() where id = :id and wrapped = :before returning id;

-- name: delete_payload_key
delete from perdure.payload_key where id = :id and id < (select max(k.id) from perdure.payload_key k) returning id;

-- name: tables_with_rows
-- Of these tables those that hold rows themselves: partitions of them, or they.
select p.relname as name, c.relname as of
  from pg_class c join pg_class p on p.oid = c.oid or p.oid in (select i.inhrelid from pg_inherits i where i.inhparent = c.oid)
 where c.relnamespace = 'perdure'::regnamespace and c.relname = any(:names::text[]) and p.relkind = 'r' order by 1;

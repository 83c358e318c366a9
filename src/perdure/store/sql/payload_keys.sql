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

-- name: sealed_columns
-- Columns of this schema that can hold sealed values, of tables that hold rows themselves.
select c.relname as table, a.attname as column, format_type(a.atttypid, null) as type
  from pg_attribute a join pg_class c on c.oid = a.attrelid
 where c.relnamespace = 'perdure'::regnamespace and c.relkind = 'r' and a.attnum > 0 and not a.attisdropped
   and format_type(a.atttypid, null) in ('bytea', 'text', 'jsonb')
 order by 1, 2;

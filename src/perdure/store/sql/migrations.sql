-- Which migrations this database has. The statements of the migrations themselves are in migrations/.

-- name: lock_migrations
-- Held to the end of the transaction, not of the session, so that it works through a transaction-pooling proxy. The
-- timeouts a role may carry would break a migration half way; here waiting is right.
select pg_advisory_xact_lock(7308895158390189421),
       set_config('statement_timeout', '0', true),
       set_config('lock_timeout', '0', true),
       set_config('idle_in_transaction_session_timeout', '0', true);

-- name: limit_lock_waits
-- A migration that waits for a table blocks every statement behind it, and may deadlock with a server. It gives way before the
-- database looks for deadlocks (deadlock_timeout, 1 s unless set), so that the server never is the one to be undone.
select set_config('lock_timeout', :timeout, true);

-- name: tables_of
-- Which of these names are tables of Perdure.
select c.relname::text as name from pg_class c join pg_namespace n on n.oid = c.relnamespace
 where n.nspname = 'perdure' and c.relkind in ('r', 'p') and c.relname = any(:names::text[]);

-- name: has_migration_table
select to_regclass('perdure.migration') is not null;

-- name: create_schema
create schema if not exists perdure;

-- name: create_migration_table
create table if not exists perdure.migration (
  number     int primary key,
  name       text not null,
  checksum   text not null,
  needs      int not null,  -- the last migration that code must know at least to work on this schema
  applied_at timestamptz not null default now()
);

-- name: select_applied
select number, name, checksum, needs, applied_at from perdure.migration order by number;

-- name: insert_applied
insert into perdure.migration (number, name, checksum, needs) values (:number, :name, :checksum, :needs)
returning number, name, checksum, needs, applied_at;

-- name: lock_sessions
-- No engine registers meanwhile. Engines renew their leases when the migration has ended.
lock table perdure.engine_session in share mode;

-- name: sessions_of_older_code
select engine, knows from perdure.engine_session where expires_at > now() and knows < :needs order by knows, engine;

-- name: has_sessions
select to_regclass('perdure.engine_session') is not null;

-- name: refuse_older_code
update perdure.migration set needs = number where number = (select max(number) from perdure.migration)
returning number, name, checksum, needs, applied_at;

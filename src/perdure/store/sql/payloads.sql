-- Stored content that payloads refer to. Upkeep deletes what nothing uses: it locks a row FOR UPDATE, so announcements, holds and
-- commits that refer to the same content come before it or after it, never in between. After it, they find the content missing.

-- name: announce_payloads
-- Puts off the next check of what exists. In the order of the digests, so that two announcements do not wait for each other crosswise.
with announced as (
  insert into perdure.payload as p (ns, store, sha256, size, check_at)
  select :ns, :store, u.sha256, u.size, perdure.clock() + :grace_s::float8 * interval '1 second'
    from unnest(:items.sha256::bytea[], :items.size::bigint[]) as u(sha256, size) order by u.sha256
  on conflict (ns, store, sha256) do update set check_at = greatest(p.check_at, excluded.check_at)
  returning p.sha256, p.is_complete
)
select sha256, is_complete from announced;

-- name: lock_announced_objects
-- Announcements of the same content come one after the other: the second one finds the row of the first.
select pg_advisory_xact_lock(hashtextextended(u.name, 7))
  from (select :ns::int || ' ' || encode(sha256, 'hex') as name from unnest(:sha256::bytea[]) as sha256 order by 1) u;

-- name: announce_objects
-- As announce_payloads, for the folder `store` of an object store. Content that has no row gets the folder `new` below it.
with announced as (
  select u.sha256, u.size, perdure.clock() + :grace_s::float8 * interval '1 second' as check_at
    from unnest(:items.sha256::bytea[], :items.size::bigint[]) as u(sha256, size)
), found as (
  update perdure.payload p set check_at = greatest(p.check_at, a.check_at) from announced a
   where p.ns = :ns and p.sha256 = a.sha256 and starts_with(p.store, :store || '/')
  returning p.sha256, p.store
), made as (
  insert into perdure.payload (ns, store, sha256, size, check_at)
  select :ns, :store || '/' || :new, a.sha256, a.size, a.check_at from announced a where a.sha256 not in (select sha256 from found)
  returning sha256, store
)
select sha256, store from found union all select sha256, store from made;

-- name: insert_payload_parts
insert into perdure.payload_part (ns, store, sha256, part_store, part_sha256)
select :ns, u.store, u.sha256, u.part_store, u.part_sha256
  from unnest(:parts.store::text[], :parts.sha256::bytea[], :parts.part_store::text[], :parts.part_sha256::bytea[])
         as u(store, sha256, part_store, part_sha256)
on conflict do nothing;

-- name: put_payload_chunk
-- seals: data chunk
-- The last writer wins: a chunk with wrong bytes is replaced by the next try. One of complete content is left alone.
insert into perdure.payload_chunk as c (ns, store, sha256, n, data)
select p.ns, p.store, p.sha256, :n, :data from perdure.payload p
 where p.ns = :ns and p.store = '' and p.sha256 = :sha256 and not p.is_complete
on conflict (ns, store, sha256, n) do update set data = excluded.data;

-- name: complete_payload
update perdure.payload set is_complete = true where ns = :ns and store = '' and sha256 = :sha256 and size = :size returning sha256;

-- name: delete_payload_chunks
delete from perdure.payload_chunk where ns = :ns and store = '' and sha256 = :sha256;

-- name: read_payload
-- A part of one chunk; the whole of a sealed one, which opens only as a whole. No row: there is no such content, or it is not complete.
select p.size, substr(c.data, 1, 2) = '\xc150' as is_whole,
       case when substr(c.data, 1, 2) = '\xc150' then c.data else substr(c.data, :skip::int + 1, :size::int) end as data
  from perdure.payload p left join perdure.payload_chunk c on c.ns = p.ns and c.store = p.store and c.sha256 = p.sha256 and c.n = :n
 where p.ns = :ns and p.store = '' and p.sha256 = :sha256 and p.is_complete;

-- name: read_payload_chunk
select data from perdure.payload_chunk where ns = :ns and store = '' and sha256 = :sha256 and n = :n;

-- name: find_payload
-- The database's own copy first.
select store, size from perdure.payload where ns = :ns and sha256 = :sha256 and (is_complete or store <> '') order by store limit 1;

-- name: hold_payloads
-- Content that a request refers to: its next check is put off, so that it is there when the request is recorded. Answers what exists.
update perdure.payload p set check_at = greatest(p.check_at, perdure.clock() + :grace_s::float8 * interval '1 second')
  from unnest(:places.store::text[], :places.sha256::bytea[]) as u(store, sha256)
 where p.ns = :ns and p.store = u.store and p.sha256 = u.sha256 and (p.is_complete or p.store <> '')
returning p.store, p.sha256;

-- name: use_payloads
insert into perdure.payload_use (run_id, ns, store, sha256)
select :run_id, :ns, u.store, u.sha256 from unnest(:places.store::text[], :places.sha256::bytea[]) as u(store, sha256)
on conflict do nothing;

-- name: lock_used_payloads
-- Which of these exist; they stay until the transaction ends. In the order of the digests, as announcements.
select p.ns, p.store, p.sha256
  from (select distinct u.ns, u.store, u.sha256
          from unnest(:places.ns::int[], :places.store::text[], :places.sha256::bytea[]) as u(ns, store, sha256)
         order by u.sha256) u,
       lateral (select p.ns, p.store, p.sha256 from perdure.payload p
                 where p.ns = u.ns and p.store = u.store and p.sha256 = u.sha256 and (p.is_complete or p.store <> '') for key share) p;

-- name: lock_payloads_to_check
select ns, store, sha256 from perdure.payload
 where check_at < perdure.clock() and (store = '' or exists (select from unnest(:urls::text[]) as url where starts_with(store, url || '/')))
 order by check_at limit :limit for update skip locked;

-- name: keep_used_payloads
-- A statement of its own after the lock, so that it sees every use that was committed before the lock was taken.
update perdure.payload p set check_at = perdure.clock() + :grace_s::float8 * interval '1 second'
  from unnest(:places.ns::int[], :places.store::text[], :places.sha256::bytea[]) as u(ns, store, sha256)
 where p.ns = u.ns and p.store = u.store and p.sha256 = u.sha256
   and (exists (select from perdure.payload_use x where x.ns = u.ns and x.sha256 = u.sha256 and x.store = u.store)
        or exists (select from perdure.payload_part x where x.ns = u.ns and x.part_sha256 = u.sha256 and x.part_store = u.store))
returning p.ns, p.store, p.sha256;

-- name: delete_payloads
delete from perdure.payload p
 using unnest(:places.ns::int[], :places.store::text[], :places.sha256::bytea[]) as u(ns, store, sha256)
 where p.ns = u.ns and p.store = u.store and p.sha256 = u.sha256;

-- name: insert_payload_garbage
insert into perdure.payload_garbage (store, sha256, check_at)
select u.store, u.sha256, perdure.clock() from unnest(:places.store::text[], :places.sha256::bytea[]) as u(store, sha256);

-- name: take_payload_garbage
-- What is due, put off for the case that its deletion fails.
update perdure.payload_garbage g set check_at = perdure.clock() + :again_s::float8 * interval '1 second'
 where (g.store, g.sha256) in (
         select store, sha256 from perdure.payload_garbage
          where check_at <= perdure.clock() and exists (select from unnest(:urls::text[]) as url where starts_with(store, url || '/'))
          order by check_at limit :limit for update skip locked)
returning g.store, g.sha256;

-- name: delete_payload_garbage
delete from perdure.payload_garbage g using unnest(:places.store::text[], :places.sha256::bytea[]) as u(store, sha256)
 where g.store = u.store and g.sha256 = u.sha256;

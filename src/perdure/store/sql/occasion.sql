-- Named events on their way to the runs that wait for them, and the webhooks that some of them come in by.

-- name: emit_event
-- :body is a key of the sender's own: a second event of this name and key is the first one. Answers the number of either.
with made as (
  insert into perdure.event (ns, name, key, body, source, at) values (:ns, :name, :key, :body, :source, perdure.clock())
  on conflict (ns, name, key) do nothing
  returning id
)
select id, true as fresh from made
union all
select e.id, false from perdure.event e where e.ns = :ns and e.name = :name and e.key = :key and not exists(select from made)
limit 1;

-- name: claim_events
-- Events that have not reached everybody yet, oldest first. Locks: their rows, until the end of the transaction; those of others are left to them.
select e.id, e.ns, e.name, e.body, e.at, e.after_run, e.after_name
  from perdure.event e where e.done_at is null
 order by e.id limit :limit for update skip locked;

-- name: open_waits
-- Waits for :event in namespace :ns that were there when the event came (:before), after the place (:after_run_id, :after_name).
select p.run_id, p.name, p.spec
  from perdure.promise p
 where p.ns = :ns and p.event = :event and p.kind = 2 and p.resolved_at is null and p.created_at <= :before and (p.run_id, p.name) > (:after_run_id::uuid, :after_name::text)
 order by p.run_id, p.name limit :limit;

-- name: keep_waits
-- :waits.run_id runs, :waits.name names of their promises, :waits.body mail that brings the event. The first value stands. Answers for each: 0 it has the event, 1 it had something
-- else or is gone, 3 its run's row is held by somebody: ask again.
-- Locks: KEY SHARE on the rows of the runs, as post_messages; then the promises.
with asked as materialized (
  select u.* from unnest(:waits.run_id::uuid[], :waits.name::text[], :waits.body::bytea[]) with ordinality as u(run_id, name, body, n)
),
seen as materialized (
  select a.*, h.place, h.ns, w.found
    from asked a
    left join lateral (select true as found from perdure.run_queue q where q.run_id = a.run_id offset 0) w on true
    left join lateral (select q.ctid as place, q.ns from perdure.run_queue q where q.run_id = a.run_id for key share skip locked) h on true
),
won as (
  update perdure.promise p set resolved_at = perdure.clock()
    from seen s, lateral (select r.ctid as place from perdure.promise r
                           where r.run_id = s.run_id and r.name = s.name and r.resolved_at is null offset 0) at
   where s.place is not null and p.ctid = at.place and p.resolved_at is null
  returning p.run_id, s.ns, s.body, s.n
),
sent as (
  insert into perdure.inbox (ns, run_id, body) select w.ns, w.run_id, w.body from won w order by w.n
)
select coalesce((select array_agg(w.n) from won w), '{}') as won,
       coalesce((select array_agg(s.n) from seen s where s.place is null and s.found), '{}') as held;

-- name: advance_events
-- :events.id events, :events.matched how many more runs they reached, :events.after_run and :events.after_name how far they are, :events.done whether that was all.
update perdure.event e
   set matched = e.matched + u.matched, after_run = u.after_run, after_name = u.after_name, done_at = case when u.done then perdure.clock() end
  from unnest(:events.id::bigint[], :events.matched::int[], :events.after_run::uuid[], :events.after_name::text[], :events.done::bool[]) as u(id, matched, after_run, after_name, done)
 where e.id = u.id;

-- name: trim_events
-- :age_s how old, in seconds; :limit how many at a time. Those that have not reached everybody stay.
delete from perdure.event e
 where e.ctid = any(array(select o.ctid from perdure.event o
                           where o.at < now() - :age_s::float8 * interval '1 second' and o.done_at is not null order by o.at limit :limit))
returning e.id;

-- name: list_events
-- Newest first, before :before_id.
select e.id, e.name, e.key, e.body, e.source, e.at, e.matched, e.done_at from perdure.event e
 where e.ns = :ns and e.id < :before_id
 order by e.id desc limit :limit;

-- name: list_events_named
select e.id, e.name, e.key, e.body, e.source, e.at, e.matched, e.done_at from perdure.event e
 where e.ns = :ns and e.name = :name and e.id < :before_id
 order by e.id desc limit :limit;

-- name: put_webhook
-- A webhook that is there keeps its secret. :webhooks_max: how many there may be. No row: there are too many.
insert into perdure.webhook (ns, name, event, secret, created_by)
select :ns, :name, :event, :secret, :created_by
 where exists(select from perdure.webhook w where w.ns = :ns and w.name = :name) or (select count(*) from perdure.webhook w where w.ns = :ns) < :webhooks_max
on conflict (ns, name) do update set event = excluded.event
returning secret = :secret as made, created_at, created_by;

-- name: rotate_webhook
update perdure.webhook set secret = :secret where ns = :ns and name = :name returning event, created_at, created_by;

-- name: delete_webhook
delete from perdure.webhook where ns = :ns and name = :name returning name;

-- name: list_webhooks
select w.name, w.event, w.created_at, w.created_by from perdure.webhook w where w.ns = :ns and w.name > :after order by w.name limit :limit;

-- name: webhook_secret
select w.ns, w.event, w.secret from perdure.webhook w join perdure.namespace n on n.id = w.ns
 where n.name = :namespace and n.deleted_at is null and w.name = :name;

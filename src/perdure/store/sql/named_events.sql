-- Named events that runs wait for, and the webhooks that turn requests into events.

-- name: emit_event
-- A second event of the same name and key is the first one, sent again: it answers the id of the first.
with made as (
  insert into perdure.named_event (ns, name, key, body, source, at) values (:ns, :name, :key, :body, :source, perdure.clock())
  on conflict (ns, name, key) do nothing
  returning id
)
select id, true as fresh from made
union all
select e.id, false from perdure.named_event e where e.ns = :ns and e.name = :name and e.key = :key and not exists(select from made)
limit 1;

-- name: claim_events
-- Events that are not fully matched, oldest first. Locks their rows; those that another engine has locked are left to it.
select e.id, e.ns, e.name, e.body, e.at, e.after_run, e.after_name
  from perdure.named_event e where e.done_at is null
 order by e.id limit :limit for update skip locked;

-- name: event_waits
-- Waits for the event that were open when it came, after a position.
select p.run_id, p.name, p.spec
  from perdure.promise p
 where p.ns = :ns and p.event = :event and p.kind = 'event' and p.resolved_at is null and p.created_at <= :before and (p.run_id, p.name) > (:after_run_id::uuid, :after_name::text)
 order by p.run_id, p.name limit :limit;

-- name: resolve_event_waits
-- Resolves promises with the event; a promise that is resolved or gone is left out. Answers the places, counted from 1, of those
-- that got the event (`won`) and of those whose run is locked and must be tried again (`held`).
-- Locks: KEY SHARE on the rows of the runs, as send_messages; then the promises.
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
-- after_run and after_name say how far the matching of an event is.
update perdure.named_event e
   set matched = e.matched + u.matched, after_run = u.after_run, after_name = u.after_name, done_at = case when u.done then perdure.clock() end
  from unnest(:events.id::bigint[], :events.matched::int[], :events.after_run::uuid[], :events.after_name::text[], :events.done::bool[]) as u(id, matched, after_run, after_name, done)
 where e.id = u.id;

-- name: delete_old_events
-- Events that are not fully matched stay.
delete from perdure.named_event e
 where e.ctid = any(array(select o.ctid from perdure.named_event o
                           where o.at < now() - :age_s::float8 * interval '1 second' and o.done_at is not null order by o.at limit :limit))
returning e.id;

-- name: list_events
-- Newest first.
select e.id, e.name, e.key, e.body, e.source, e.at, e.matched, e.done_at from perdure.named_event e
 where e.ns = :ns and e.id < :before_id
 order by e.id desc limit :limit;

-- name: list_events_named
select e.id, e.name, e.key, e.body, e.source, e.at, e.matched, e.done_at from perdure.named_event e
 where e.ns = :ns and e.name = :name and e.id < :before_id
 order by e.id desc limit :limit;

-- name: put_webhook
-- An existing webhook keeps its secret. No row: there are webhooks_max already.
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

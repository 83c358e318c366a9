-- Named events that runs wait for, and the webhooks that turn requests into events.

-- name: emit_event
-- seals: body event
-- A second event of the same name and key is the first one, sent again: it answers the id of the first. Workflows whose current version
-- subscribes to it at this moment get a row, from which runs are made.
with made as (
  insert into perdure.named_event (ns, name, key, body, source, at) values (:ns, :name, :key, :body, :source, perdure.clock())
  on conflict (ns, name, key) do nothing
  returning id, ns, name, at
),
subscribed as (
  insert into perdure.event_start (event_id, ns, workflow, version, due_at)
  select m.id, w.ns, w.name, w.current, m.at
    from made m
    join perdure.workflow_version v on v.ns = m.ns and v.on_events @> array[m.name]
    join perdure.workflow w on w.ns = v.ns and w.name = v.workflow and w.current = v.version and w.deleted_at is null
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
-- Open waits for the event that take events of its time, after a position. Waits in their first look (event_look) are left out: the look finds
-- the event, and an older one before it.
--
-- Why every event reaches every wait that it fits. Each statement has a snapshot of its own (READ COMMITTED). M is the snapshot of this statement
-- for the page on which the wait would stand; it shows the event. The first look of a wait begins in snapshot F, after the commit of the wait. Its
-- end is the commit C of is_final. The final look reads in snapshots after C.
--   1. M shows the wait, and no first look of it: the wait gets the event here.
--   2. M does not show the wait, or shows its first look: M is before C. The event was committed before M, so every snapshot of the final look
--      shows it. If F shows it, the first look reads it. If not, its transaction was running in F or began later, so its xid is at least the
--      xmin of F (late_xid), and the final look reads it.
-- A wait without a look (`since` is when it was made) gets events from then on, and 1 is all there is. Both ways end in resolve_event_waits, where
-- the first one wins.
select p.run_id, p.name, p.spec
  from perdure.promise p
 where p.ns = :ns and p.event = :event and p.kind = 'event' and p.resolved_at is null and p.asked and p.since <= :before
   and (p.run_id, p.name) > (:after_run_id::uuid, :after_name::text)
   and not exists(select from perdure.event_look l where l.run_id = p.run_id and l.name = p.name and not l.is_final)
 order by p.run_id, p.name limit :limit;

-- name: claim_event_looks
-- Waits that look back, oldest first. No spec: the wait has its event, or is gone. Locks the rows of the looks; those that another engine has
-- locked are left to it. `xmin` is not above that of any later snapshot of this transaction.
select l.id, l.run_id, l.name, l.ns, l.event, l.after_at, l.after_id, l.is_final, p.spec, p.since, p.created_at, p.wait_key,
       coalesce(l.late_xid, pg_snapshot_xmin(pg_current_snapshot())::text::bigint) as late_xid
  from perdure.event_look l
  left join perdure.promise p on p.run_id = l.run_id and p.name = l.name and p.resolved_at is null and p.asked
 order by l.id limit :limit for update of l skip locked;

-- name: past_events
-- Events after a position, oldest first, up to so many bytes but at least one. An event that an earlier wait of the run got for the same
-- question has no body.
select s.id, s.at, case when not s.is_got then e.body end as body
  from (select x.id, x.at, x.is_got, sum(case when x.is_got then 0 else x.size end) over (order by x.at, x.id) - x.size as before
          from (select o.id, o.at, octet_length(o.body) as size,
                       o.id in (select g.event_id from perdure.promise g where g.run_id = :run_id::uuid and g.event_id is not null
                                   and g.wait_key = :wait_key and g.resolved_at <= :created_at) as is_got
                  from perdure.named_event o
                 where o.ns = :ns and o.name = :event and (o.at, o.id) > (:after_at::timestamptz, :after_id::bigint)
                 order by o.at, o.id limit :limit) x) s
  join perdure.named_event e on e.id = s.id
 where s.before < :bytes::bigint
 order by s.at, s.id;

-- name: late_events
-- As past_events, of those that a first look may have missed. They are few, however many events there are: `offset 0` keeps the plan to the
-- index on xid.
select s.id, s.at, case when not s.is_got then e.body end as body
  from (select x.id, x.at, x.is_got, sum(case when x.is_got then 0 else x.size end) over (order by x.at, x.id) - x.size as before
          from (select o.id, o.at, octet_length(o.body) as size,
                       o.id in (select g.event_id from perdure.promise g where g.run_id = :run_id::uuid and g.event_id is not null
                                   and g.wait_key = :wait_key and g.resolved_at <= :created_at) as is_got
                  from (select * from perdure.named_event l where l.ns = :ns and l.name = :event and l.xid >= :late_xid::bigint offset 0) o
                 where (o.at, o.id) > (:after_at::timestamptz, :after_id::bigint)
                 order by o.at, o.id limit :limit) x) s
  join perdure.named_event e on e.id = s.id
 where s.before < :bytes::bigint
 order by s.at, s.id;

-- name: lock_found_events
-- Before waits are resolved: the matching of new events locks in this order, too. Locks the rows, in the order of their ids.
select e.id from perdure.named_event e where e.id = any(:ids::bigint[]) order by e.id for no key update;

-- name: count_found_events
update perdure.named_event e set matched = e.matched + u.matched
  from unnest(:events.id::bigint[], :events.matched::int[]) as u(id, matched) where e.id = u.id;

-- name: advance_event_looks
update perdure.event_look l set after_at = u.after_at, after_id = u.after_id, late_xid = u.late_xid, is_final = u.is_final
  from unnest(:looks.id::bigint[], :looks.after_at::timestamptz[], :looks.after_id::bigint[], :looks.late_xid::bigint[], :looks.is_final::bool[])
         as u(id, after_at, after_id, late_xid, is_final)
 where l.id = u.id;

-- name: delete_event_looks
delete from perdure.event_look l where l.id = any(:ids::bigint[]);

-- name: resolve_event_waits
-- seals: waits.body message
-- Resolves promises with the event; a promise that is resolved or gone is left out, and a wait for an event that an earlier wait of its run
-- got for the same question. Earlier: it had the event before this wait was made. The events of waits that are open at the same time are their own.
-- Answers the places, counted from 1, of those that got the event (`won`) and of those whose run is locked and must be tried again (`held`).
-- Locks: KEY SHARE on the rows of the runs, as send_messages; then the promises.
with asked as materialized (
  select u.* from unnest(:waits.run_id::uuid[], :waits.name::text[], :waits.body::bytea[], :waits.event_id::bigint[], :waits.question::bytea[])
                    with ordinality as u(run_id, name, body, event_id, question, n)
),
seen as materialized (
  select a.*, h.place, h.ns, w.found
    from asked a
    left join lateral (select true as found from perdure.run_queue q where q.run_id = a.run_id offset 0) w on true
    left join lateral (select q.ctid as place, q.ns from perdure.run_queue q where q.run_id = a.run_id for key share skip locked) h on true
),
won as (
  update perdure.promise p set resolved_at = perdure.clock(), event_id = s.event_id
    from seen s, lateral (select r.ctid as place from perdure.promise r
                           where r.run_id = s.run_id and r.name = s.name and r.resolved_at is null and r.asked and r.question = s.question
                             and not exists(select from perdure.promise g where g.run_id = r.run_id and g.event_id = s.event_id
                                               and g.wait_key = r.wait_key and g.resolved_at <= r.created_at) offset 0) at
   where s.place is not null and p.ctid = at.place and p.resolved_at is null
  returning p.run_id, p.name, s.ns, s.body, s.n
),
sent as (
  insert into perdure.inbox (ns, run_id, body, kind, name) select w.ns, w.run_id, w.body, 'answer', w.name from won w order by w.n
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
-- Events that are not fully matched, or whose starts are not all decided, stay.
with gone as (
  delete from perdure.named_event e
   where e.ctid = any(array(select o.ctid from perdure.named_event o
                             where o.at < now() - :age_s::float8 * interval '1 second' and o.done_at is not null
                               and not exists(select from perdure.event_start s where s.event_id = o.id and s.outcome is null)
                             order by o.at limit :limit))
  returning e.id
),
starts as (
  delete from perdure.event_start s using gone g where s.event_id = g.id
)
select id from gone;

-- name: claim_event_starts
-- Starts that are to be decided for the first time. One that was claimed before is claimed alone, when it is the first that is due: its engine
-- may have died of it, and a try counts against no other. Another engine tries after lease_s, if this one has not. Locks the rows that are due;
-- those that another engine has locked are left to it.
with due as (
  select x.ctid as place, x.tries > 0 as again, x.due_at, x.event_id from perdure.event_start x
   where x.outcome is null and x.due_at <= perdure.clock()
   order by x.due_at, x.event_id limit :limit for update skip locked
),
first as (select f.place, f.again from due f order by f.due_at, f.event_id limit 1),
chosen as (select d.place from due d join first f on d.place = f.place or not (d.again or f.again))
update perdure.event_start s set due_at = perdure.clock() + make_interval(secs => :lease_s::float8), tries = s.tries + 1
  from chosen d, perdure.named_event e, perdure.workflow_version v
 where s.ctid = d.place and e.id = s.event_id and v.ns = s.ns and v.workflow = s.workflow and v.version = s.version
returning s.event_id, s.ns, s.workflow, s.tries, e.name as event, e.body, coalesce(v.subscriptions, '') as subscriptions;

-- name: lock_event_start
-- Locks the row. No row: another engine has decided it.
select event_id from perdure.event_start where event_id = :event_id and workflow = :workflow and outcome is null for update;

-- name: delete_event_start
-- The event does not match.
delete from perdure.event_start where event_id = :event_id and workflow = :workflow and outcome is null;

-- name: settle_event_start
-- seals: error event_start_error
update perdure.event_start set outcome = :outcome, run_id = :run_id, error = :error
 where event_id = :event_id and workflow = :workflow and outcome is null returning event_id;

-- name: key_holder
-- The run under a key, and its workflow.
select k.run_id, coalesce(q.workflow, r.workflow) as workflow
  from perdure.run_key k left join perdure.run_queue q on q.run_id = k.run_id left join perdure.run r on r.run_id = k.run_id
 where k.ns = :ns and k.key = :key;

-- name: take_run_key
-- No row: the key was taken at this very moment.
insert into perdure.run_key (ns, key, run_id, input_hash) values (:ns, :key, :run_id, :input_hash) on conflict do nothing returning run_id;

-- name: list_event_starts
-- Of each event the first of its starts, those that failed before all others.
select s.event_id, s.workflow, s.outcome, s.run_id, s.error
  from unnest(:event_ids::bigint[]) as e(id),
       lateral (select * from perdure.event_start x where x.event_id = e.id
                 order by x.outcome is not distinct from 'failed' desc, x.workflow limit :limit) s
 order by s.event_id, s.workflow;

-- name: list_events
-- Newest first.
select e.id, e.name, e.key, e.body, e.source, e.at, e.matched, e.done_at, s.started, s.failed, s.undecided
  from perdure.named_event e,
       lateral (select count(*) filter (where x.outcome = 'started')::int as started, count(*) filter (where x.outcome = 'failed')::int as failed,
                       count(*) filter (where x.outcome is null)::int as undecided
                  from perdure.event_start x where x.event_id = e.id) s
 where e.ns = :ns and e.id < :before_id
 order by e.id desc limit :limit;

-- name: list_events_named
select e.id, e.name, e.key, e.body, e.source, e.at, e.matched, e.done_at, s.started, s.failed, s.undecided
  from perdure.named_event e,
       lateral (select count(*) filter (where x.outcome = 'started')::int as started, count(*) filter (where x.outcome = 'failed')::int as failed,
                       count(*) filter (where x.outcome is null)::int as undecided
                  from perdure.event_start x where x.event_id = e.id) s
 where e.ns = :ns and e.name = :name and e.id < :before_id
 order by e.id desc limit :limit;

-- name: put_webhook
-- An existing webhook keeps its secrets, unless `given` says that the sender chose this one. No row: there are webhooks_max already.
insert into perdure.webhook (ns, name, event, key, scheme, signal, secret, created_by)
select :ns, :name, :event, :key, :scheme, :signal, :secret, :created_by
 where exists(select from perdure.webhook w where w.ns = :ns and w.name = :name) or (select count(*) from perdure.webhook w where w.ns = :ns) < :webhooks_max
on conflict (ns, name) do update
  set event = excluded.event, key = excluded.key, scheme = excluded.scheme, signal = excluded.signal,
      secret = case when :given then excluded.secret else webhook.secret end,
      old_secret = case when :given then null else webhook.old_secret end, old_until = case when :given then null else webhook.old_until end
returning xmax = 0 as is_new, secret = :secret as is_held, old_until, created_at, created_by;

-- name: change_webhook
-- An existing webhook, which keeps its secrets. No row: there is none.
update perdure.webhook set event = :event, key = :key, scheme = :scheme, signal = :signal where ns = :ns and name = :name
returning old_until, created_at, created_by;

-- name: rotate_webhook
-- The secret before the last is forgotten. A repetition of the statement changes nothing.
update perdure.webhook
   set old_secret = case when secret = :secret then old_secret when :keep_old_us::bigint > 0 then secret end,
       old_until = case when secret = :secret then old_until when :keep_old_us::bigint > 0 then perdure.clock() + :keep_old_us::bigint * interval '1 microsecond' end,
       secret = :secret
 where ns = :ns and name = :name returning event, key, scheme, signal, old_until, created_at, created_by;

-- name: webhook_scheme
select w.scheme from perdure.webhook w where w.ns = :ns and w.name = :name;

-- name: delete_webhook
delete from perdure.webhook where ns = :ns and name = :name returning name;

-- name: list_webhooks
select w.name, w.event, w.key, w.scheme, w.signal, case when w.old_until > perdure.clock() then w.old_until end as old_until, w.created_at, w.created_by
  from perdure.webhook w where w.ns = :ns and w.name > :after order by w.name limit :limit;

-- name: webhook_secrets
-- What a request is checked with. An old secret whose time is over is left out.
select w.ns, w.event, w.key, w.scheme, w.signal, w.secret, case when w.old_until > perdure.clock() then w.old_secret end as old_secret
  from perdure.webhook w join perdure.namespace n on n.id = w.ns
 where n.name = :namespace and n.deleted_at is null and w.name = :name;

-- name: delivered_to
-- The run that has a message under this key of a webhook's delivery, also one that has ended. A key without its run is left out: the start
-- that it was written for never came.
select k.run_id from perdure.message_key k
 where k.key = :key and k.key like 'hook:%'
   and (exists(select from perdure.run_queue q where q.run_id = k.run_id and q.ns = :ns)
        or exists(select from perdure.run r where r.run_id = k.run_id and r.ns = :ns))
 limit 1;

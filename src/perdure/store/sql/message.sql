-- Facts from outside: signals, cancel requests, promise values. Not fenced: anyone with access may send them.

-- name: post_message
-- KEY SHARE on the run keeps it from ending between the look and the insert.
with target as (
  select run_id, ns, owner from perdure.run_queue where run_id = :run_id and ns = :ns for key share
)
insert into perdure.inbox (ns, run_id, body) select ns, run_id, :body from target
returning (select owner from target) as owner;

-- name: post_messages
-- Many at once. :runs.run_id and :runs.ns are the runs, each once, and their namespaces. Then equally long arrays, in order of arrival: :messages.i places in :runs.run_id, counted
-- from 1, :messages.body bodies, :messages.key the senders' own keys or null, :messages.named the runs as the senders call them (one that continued is called by its first id,
-- and keys belong to that), :messages.stops whether it asks to stop.
-- Answers an outcome for each: 0 taken, 1 a repetition, 2 there is no such active run, 3 its row is held by somebody: ask again.
-- A key that somebody else is writing at this moment breaks the unique constraint: nothing was written, ask again.
-- Locks: KEY SHARE on the rows of the runs keeps them from ending between the look and the insert. Nobody is waited for: a commit that ends
-- many runs takes their rows in an order of its own, and both would wait crosswise. A run is looked at once, so that all its messages
-- are taken or none is. Then keys, in their order.
with target as materialized (
  select u.run_id, u.ns, u.i, h.place, h.in_line, case when h.place is not null then 0 when w.found then 3 else 2 end as state
    from unnest(:runs.run_id::uuid[], :runs.ns::int[]) with ordinality as u(run_id, ns, i)
    left join lateral (select true as found from perdure.run_queue q where q.run_id = u.run_id and q.ns = u.ns offset 0) w on true
    left join lateral (select q.ctid as place, q.line is not null and q.admitted_at is null and q.stuck is null as in_line
                         from perdure.run_queue q where q.run_id = u.run_id and q.ns = u.ns for key share skip locked) h on true
),
states as materialized (
  select array_agg(t.state order by t.i) as states, array_agg(t.run_id order by t.i) as runs, array_agg(t.ns order by t.i) as spaces from target t
),
seen as materialized (
  select a.*, s.runs[a.i] as run_id, s.spaces[a.i] as ns, case when k.again then 1 else s.states[a.i] end as outcome
    from states s, unnest(:messages.i::int[], :messages.body::bytea[], :messages.key::text[], :messages.named::uuid[], :messages.stops::bool[]) with ordinality as a(i, body, key, named, stops, n)
    left join lateral (select true as again from perdure.message_key m where m.run_id = a.named and m.key = a.key offset 0) k on true
),
-- A run that waits to be let in comes out of its line, so that it can hear that it is to stop.
called as (
  update perdure.run_queue q set line = null, wake_at = perdure.clock()
    from target t
   where t.in_line and t.i = any(array(select s.i from seen s where s.stops and s.outcome = 0)) and q.ctid = t.place
),
keyed as (
  insert into perdure.message_key (run_id, key) select s.named, s.key from seen s where s.key is not null and s.outcome = 0 order by s.named, s.key
),
posted as (
  insert into perdure.inbox (ns, run_id, body, stops) select s.ns, s.run_id, s.body, s.stops from seen s where s.outcome = 0 order by s.n
)
select array_agg(s.outcome order by s.n) as outcomes from seen s;

-- name: remember_message
-- The key of a message that a run is started with. Written before the start: without the run it means nothing.
insert into perdure.message_key (run_id, key) values (:run_id, :key) on conflict do nothing;

-- name: trim_message_keys
-- :age_s how old, in seconds; :limit how many at a time.
delete from perdure.message_key k
 where k.ctid = any(array(select m.ctid from perdure.message_key m where m.at < now() - :age_s::float8 * interval '1 second' order by m.at limit :limit));

-- name: resolve_promise
-- First one wins: a promise that is resolved already gives no row. :authorized: also an approval with assignees or a quorum may be resolved by hand.
with target as (
  select run_id, ns from perdure.run_queue where run_id = :run_id and ns = :ns for key share
),
won as (
  insert into perdure.promise (run_id, name, ns, created_at, resolved_at, sure)
  select run_id, :name, ns, perdure.clock(), perdure.clock(), :authorized from target
  on conflict (run_id, name) do update set resolved_at = excluded.resolved_at
   where promise.resolved_at is null and (:authorized or promise.kind <> 1 or (cardinality(promise.assignees) = 0 and promise.quorum = 1))
  returning run_id, ns
),
sent as (
  insert into perdure.inbox (ns, run_id, body) select ns, run_id, :body from won
)
select exists(select from target) as active, exists(select from won) as won;

-- name: unstick
-- :group_id the line in which it waits for its slots, which it gave back when it became stuck; null: it needs none.
update perdure.run_queue
   set stuck = null, takeovers = 0, suspect = false, line = :group_id, admitted_at = null, wake_at = case when :group_id::uuid is null then perdure.clock() else 'infinity' end
 where run_id = :run_id and ns = :ns and stuck is not null returning run_id;

-- name: forward_orphan_mail
-- Mail that was posted while its run handed over to a successor.
update perdure.inbox i set run_id = o.successor
  from (select m.id, r.successor from perdure.inbox m cross join lateral (
          select e.successor from perdure.run e where e.run_id = m.run_id and e.successor is not null offset 0) r
         where m.at < now() - interval '1 second') o
 where i.id = o.id;

-- name: sweep_orphan_mail
-- Mail that was posted while its run ended: nobody can read it any more.
delete from perdure.inbox i
 where i.at < now() - interval '5 seconds' and not exists (select from perdure.run_queue q where q.run_id = i.run_id)
   and not exists (select from perdure.run r where r.run_id = i.run_id and r.successor is not null);

-- name: sweep_orphan_promises
delete from perdure.promise p
 where p.created_at < now() - interval '5 seconds' and not exists (select from perdure.run_queue q where q.run_id = p.run_id);

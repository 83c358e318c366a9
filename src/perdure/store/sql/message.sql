-- Facts from outside: signals, cancel requests, promise values. Not fenced: anyone with access may send them.

-- name: post_message
-- KEY SHARE on the run keeps it from ending between the look and the insert.
with target as (
  select run_id, ns, owner from perdure.run_queue where run_id = $1 and ns = $2 for key share
)
insert into perdure.inbox (ns, run_id, body) select ns, run_id, $3 from target
returning (select owner from target) as owner;

-- name: resolve_promise
-- First one wins: a promise that is resolved already gives no row.
with target as (
  select run_id, ns from perdure.run_queue where run_id = $1 and ns = $2 for key share
),
won as (
  insert into perdure.promise (run_id, name, ns, created_at, resolved_at)
  select run_id, $3, ns, perdure.clock(), perdure.clock() from target
  on conflict (run_id, name) do update set resolved_at = excluded.resolved_at where promise.resolved_at is null
  returning run_id, ns
),
sent as (
  insert into perdure.inbox (ns, run_id, body) select ns, run_id, $4 from won
)
select exists(select from target) as active, exists(select from won) as won;

-- name: unstick
update perdure.run_queue set stuck = null, wake_at = perdure.clock() where run_id = $1 and ns = $2 and stuck is not null returning run_id;

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

-- Messages from outside: signals, cancel requests, promise values. Not fenced: any caller with access may send them. Limits refuse the
-- sender: perdure.limit_outcome.

-- name: send_message
-- seals: body message
-- KEY SHARE on the run keeps it from ending between the look and the insert.
with target as (
  select run_id, ns, owner from perdure.run_queue where run_id = :run_id and ns = :ns for key share
)
insert into perdure.inbox (ns, run_id, body, kind, name) select ns, run_id, :body, :kind, :name from target
returning (select owner from target) as owner;

-- name: send_messages
-- seals: messages.body message
-- Many at once. `runs` names each run once; `messages` are in the order of arrival, and `messages.i` is the place of its run there,
-- counted from 1. A sender's `key` belongs to the first run of the chain, so that each run of the chain recognizes it. Without a chain it
-- belongs to `addressed`, the id by which the sender calls the run.
-- Answers an outcome of core/message_limits.py for each.
-- A key that another transaction is writing at this moment breaks the unique constraint: nothing was written, try again.
-- Locks: KEY SHARE on the rows of the runs keeps them from ending between the look and the insert. It waits for no one: a commit
-- that ends many runs takes their rows in an order of its own, and the two could deadlock. A run is looked at once, so that all its
-- messages are taken or none is. Then keys, in their order.
with target as materialized (
  select u.run_id, u.ns, u.i, h.place, h.is_queued,
         h.owner is null and perdure.is_inbox_full(u.run_id, :pending_max) as is_full, h.full_signals,
         case when h.place is not null then 0 when w.found then 3 else 2 end as outcome
    from unnest(:runs.run_id::uuid[], :runs.ns::int[]) with ordinality as u(run_id, ns, i)
    left join lateral (select true as found from perdure.run_queue q where q.run_id = u.run_id and q.ns = u.ns offset 0) w on true
    left join lateral (select q.ctid as place, q.group_id is not null and q.admitted_at is null and not q.halted as is_queued,
                              q.owner, q.full_signals
                         from perdure.run_queue q where q.run_id = u.run_id and q.ns = u.ns for key share skip locked) h on true
),
targets as materialized (
  select array_agg(t.outcome order by t.i) as outcomes, array_agg(t.run_id order by t.i) as run_ids, array_agg(t.ns order by t.i) as spaces,
         array_agg(t.is_full order by t.i) as full,
         case when count(t.full_signals) > 0 then array_agg(t.full_signals order by t.i) end as full_signals
    from target t
),
received as materialized (
  select m.*, t.run_ids[m.i] as run_id, t.spaces[m.i] as ns, coalesce(c.first, m.addressed) as holder,
         case when k.again then 1 when t.outcomes[m.i] = 0 then perdure.limit_outcome(t.full[m.i], t.full_signals[m.i], m.kind, m.name)
              else t.outcomes[m.i] end as outcome
    from targets t,
         unnest(:messages.i::int[], :messages.body::bytea[], :messages.key::text[], :messages.addressed::uuid[], :messages.kind::text[],
                :messages.name::text[])
           with ordinality as m(i, body, key, addressed, kind, name, n)
    left join lateral (select x.run_id as first from perdure.run_chain x where m.key is not null and x.head = t.run_ids[m.i] offset 0) c on true
    left join lateral (select true as again from perdure.message_key x
                        where x.run_id = coalesce(c.first, m.addressed) and x.key = m.key offset 0) k on true
),
-- A run that flow control has not admitted leaves its group, so that it can receive the cancel request.
cancelled as (
  update perdure.run_queue q set group_id = null, wake_at = perdure.clock()
    from target t
   where t.is_queued and t.i = any(array(select r.i from received r where r.kind = 'cancel' and r.outcome = 0)) and q.ctid = t.place
),
new_keys as (
  insert into perdure.message_key (run_id, key)
  select r.holder, r.key from received r where r.key is not null and r.outcome = 0 order by r.holder, r.key
),
sent as (
  insert into perdure.inbox (ns, run_id, body, kind, name)
  select r.ns, r.run_id, r.body, r.kind, r.name from received r where r.outcome = 0 order by r.n
)
select array_agg(r.outcome order by r.n) as outcomes from received r;

-- name: insert_message_key
-- The key of a message that a run is started with. Written before the start: without the run it means nothing.
insert into perdure.message_key (run_id, key) values (:run_id, :key) on conflict do nothing;

-- name: delete_old_message_keys
delete from perdure.message_key k
 where k.ctid = any(array(select m.ctid from perdure.message_key m where m.at < now() - :age_s::float8 * interval '1 second' order by m.at limit :limit));

-- name: resolve_promise
-- seals: body message
-- The first value stands: `won` is false for a promise that is resolved. An unauthorized caller cannot resolve an approval that has
-- assignees or a quorum. A value for a question is for that question alone: `won` is false where another one is open.
-- `outcome`: the limit that keeps the value from a promise which is still open; 0: none.
with target as (
  select run_id, ns, perdure.limit_outcome(owner is null and perdure.is_inbox_full(run_id, :pending_max), full_signals, 'promise', :name) as outcome
    from perdure.run_queue where run_id = :run_id and ns = :ns for key share
),
won as (
  insert into perdure.promise (run_id, name, ns, created_at, resolved_at, authorized, asked)
  select run_id, :name, ns, perdure.clock(), perdure.clock(), :authorized, false from target where :question::bytea = '' and outcome = 0
  on conflict (run_id, name) do update set resolved_at = excluded.resolved_at
   where promise.resolved_at is null and promise.question = ''
  returning run_id, ns
),
answered as (
  update perdure.promise p set resolved_at = perdure.clock()
    from target t
   where :question::bytea <> '' and t.outcome = 0 and p.run_id = t.run_id and p.name = :name and p.question = :question and p.asked and p.resolved_at is null
     and (:authorized or p.kind <> 'approval' or (cardinality(p.assignees) = 0 and p.quorum = 1))
  returning p.run_id, p.ns
),
sent as (
  insert into perdure.inbox (ns, run_id, body, kind, name)
  select ns, run_id, :body::bytea, 'promise', :name from won union all select ns, run_id, :body::bytea, 'answer', :name from answered
)
select exists(select from target) as active, exists(select from won) or exists(select from answered) as won,
       coalesce((select t.outcome from target t
                  where not exists(select from perdure.promise p where p.run_id = t.run_id and p.name = :name and p.question = :question
                                      and p.resolved_at is not null)), 0) as outcome;

-- name: pause_run
-- seals: body message
-- A run that no engine holds is paused at once. The owner of any other pauses it when it reads the message.
-- Locks: the run, for as long as a commit about it takes.
with target as materialized (
  select run_id, ns, owner, paused_at is not null as is_paused from perdure.run_queue where run_id = :run_id and ns = :ns for update
),
paused as (
  update perdure.run_queue q set paused_at = perdure.clock(), paused_by = :by, pause_reason = :reason, wake_at = 'infinity'
    from target t where q.run_id = t.run_id and t.owner is null and not t.is_paused
),
sent as (
  insert into perdure.inbox (ns, run_id, body, kind) select t.ns, t.run_id, :body, 'pause' from target t where t.owner is not null
)
select t.owner is null as is_done, t.is_paused from target t;

-- name: resume_run
-- The run gave its slots back when it became stuck or was paused, and waits for them in this group; null: it needs none. Requests to pause
-- that it has not read are older: they do not pause it again. Locks: the run, then those rows.
with resumed as (
  update perdure.run_queue
     set stuck = null, paused_at = null, paused_by = null, pause_reason = null, takeovers = 0, suspect = false, group_id = :group_id, admitted_at = null,
         wake_at = case when :group_id::uuid is null then greatest(perdure.clock(), case when status = 'pending' then start_at end) else 'infinity' end
   where run_id = :run_id and ns = :ns and halted
  returning run_id
),
overtaken as (
  delete from perdure.inbox i using resumed r where i.run_id = r.run_id and i.kind = 'pause'
)
select run_id from resumed;

-- name: forward_orphaned_messages
-- Requests to stop that other runs sent while theirs continued as a successor: they take no lock.
update perdure.inbox i set run_id = o.successor
  from (select m.id, r.successor from perdure.inbox m cross join lateral (
          select e.successor from perdure.run e where e.run_id = m.run_id and e.successor is not null offset 0) r
         where m.at < now() - interval '1 second' and m.kind in ('cancel', 'terminate')) o
 where i.id = o.id;

-- name: delete_orphaned_messages
-- Messages of other runs and engines that were sent while their run ended. Senders who wait for an answer hold the run's row, so
-- there are none of theirs (core/message_life.py).
delete from perdure.inbox i
 where i.kind in ('cancel', 'terminate', 'pause', 'child', 'task') and i.at < now() - interval '5 seconds' and not exists (select from perdure.run_queue q where q.run_id = i.run_id)
   and not exists (select from perdure.run r where r.run_id = i.run_id and r.successor is not null);

-- name: set_aside_messages
-- Messages of a run that ended before its code got them, in the order in which they came.
select m.kind, m.name, m.at, m.reason from perdure.set_aside_message m
 where m.run_id = :run_id and m.ns = :ns order by m.id limit :limit;

-- name: pending_messages
-- Messages of a run that are not recorded yet.
select i.kind, i.name, i.at from perdure.inbox i
 where i.run_id = :run_id and i.ns = :ns and i.kind not in ('child', 'task') order by i.id limit :limit;

-- Updates: questions to runs, and their answers. The answers themselves are written by the commit of the run (commit.sql).

-- name: ask_update
-- seals: body message
-- The request and its row are written together, once; KEY SHARE on the run keeps it from ending in
-- between. What an earlier question under this id was answered is there in any case, whether the run still lives or not.
-- `outcome`: the limit that keeps the request from the run; 0: none.
with target as (
  select run_id, ns, perdure.limit_outcome(owner is null and perdure.is_inbox_full(run_id, :pending_max), full_signals, 'update', :name) as outcome
    from perdure.run_queue where run_id = :run_id and ns = :ns for key share
),
first as (
  insert into perdure.update_answer (run_id, id, ns, at) select run_id, :id, ns, perdure.clock() from target where outcome = 0
  on conflict do nothing
  returning run_id, ns
),
sent as (
  insert into perdure.inbox (ns, run_id, body, kind, name) select ns, run_id, :body, 'update', :name from first
)
select exists(select from target) as active, exists(select from first) or a.run_id is not null as known, a.value, a.failure,
       case when a.run_id is null then coalesce((select outcome from target), 0) else 0 end as outcome
  from (select) one left join perdure.update_answer a on a.run_id = :run_id and a.id = :id and a.ns = :ns;

-- name: find_update
select exists(select from perdure.run_queue q where q.run_id = :run_id and q.ns = :ns) as active, a.run_id is not null as known, a.value, a.failure
  from (select) one left join perdure.update_answer a on a.run_id = :run_id and a.id = :id and a.ns = :ns;

-- name: settled_updates
-- Which of these updates are answered, and which never will be because the run is over. A run and its answers end in one transaction,
-- so a run that is over and has no answer here has none at all.
select u.n::int as n, u.run_id, u.id, a.value, a.failure, r.successor
  from unnest(:updates.ns::int[], :updates.run_id::uuid[], :updates.id::text[]) with ordinality as u(ns, run_id, id, n)
  left join lateral (select x.value, x.failure from perdure.update_answer x
                      where x.run_id = u.run_id and x.id = u.id and x.ns = u.ns and (x.value is not null or x.failure is not null) offset 0) a on true
  left join lateral (select q.run_id from perdure.run_queue q where q.run_id = u.run_id offset 0) q on true
  left join lateral (select e.successor from perdure.run e where e.run_id = u.run_id offset 0) r on true
 where a.value is not null or a.failure is not null or q.run_id is null;

-- name: list_state
select name, value from perdure.run_state where run_id = :run_id and ns = :ns and name > :after and value is not null order by name limit :limit;

-- name: query_states
-- The states of a run for a query, from one snapshot. Values beyond bytes_max are left out (null): the reader refuses then. No locks.
select s.name, case when s.total <= :bytes_max then s.value end as value
  from (select name, value, sum(octet_length(value)) over (order by name) as total from perdure.run_state
         where run_id = :run_id and ns = :ns and value is not null order by name limit :limit) s
 order by s.name;

-- name: delete_old_updates
delete from perdure.update_answer a
 using (select run_id, id from perdure.update_answer where at < perdure.clock() - :age_s * interval '1 second' order by at limit :limit) old
 where a.run_id = old.run_id and a.id = old.id;

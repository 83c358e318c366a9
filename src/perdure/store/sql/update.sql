-- Updates: questions to runs, and their answers. The answers themselves are written by the commit of the run (commit.sql).

-- name: ask_update
-- $1 run, $2 namespace, $3 id, $4 mail. The question and its row are written together, once; KEY SHARE on the run keeps it from ending in
-- between. What an earlier question under this id was answered is there in any case, whether the run still lives or not.
with target as (
  select run_id, ns from perdure.run_queue where run_id = $1 and ns = $2 for key share
),
first as (
  insert into perdure.update_answer (run_id, id, ns, at) select run_id, $3, ns, perdure.clock() from target
  on conflict do nothing
  returning run_id, ns
),
sent as (
  insert into perdure.inbox (ns, run_id, body) select ns, run_id, $4 from first
)
select exists(select from target) as active, exists(select from first) or a.run_id is not null as known, a.value, a.failure
  from (select) one left join perdure.update_answer a on a.run_id = $1 and a.id = $3 and a.ns = $2;

-- name: find_update
select exists(select from perdure.run_queue q where q.run_id = $1 and q.ns = $2) as active, a.run_id is not null as known, a.value, a.failure
  from (select) one left join perdure.update_answer a on a.run_id = $1 and a.id = $3 and a.ns = $2;

-- name: settled_updates
-- Of those asked for, $1 namespaces, $2 runs, $3 ids: what is answered, and what never will be because the run is over. A run and its
-- answers end in one transaction, so one that is over and has no answer here has none at all.
select u.n::int as n, a.value, a.failure, r.successor
  from unnest($1::int[], $2::uuid[], $3::text[]) with ordinality as u(ns, run_id, id, n)
  left join lateral (select x.value, x.failure from perdure.update_answer x
                      where x.run_id = u.run_id and x.id = u.id and x.ns = u.ns and (x.value is not null or x.failure is not null) offset 0) a on true
  left join lateral (select q.run_id from perdure.run_queue q where q.run_id = u.run_id offset 0) q on true
  left join lateral (select e.successor from perdure.run e where e.run_id = u.run_id offset 0) r on true
 where a.value is not null or a.failure is not null or q.run_id is null;

-- name: list_state
-- $1 run, $2 namespace, $3 names after this one, $4 how many.
select name, value from perdure.run_state where run_id = $1 and ns = $2 and name > $3 and value is not null order by name limit $4;

-- name: trim_updates
-- $1 seconds that an answer is kept, $2 rows at a time.
delete from perdure.update_answer a
 using (select run_id, id from perdure.update_answer where at < perdure.clock() - $1 * interval '1 second' order by at limit $2) old
 where a.run_id = old.run_id and a.id = old.id;

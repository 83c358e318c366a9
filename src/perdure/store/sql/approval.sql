-- Approvals: promises of kind 1 with their votes, and signed links. Not fenced: people answer, and the run hears of it by mail.

-- name: hold_approval
-- KEY SHARE on the run keeps it from ending, then the promise is ours until the end of the transaction: the lock order of resolve_promise.
with target as (
  select run_id, ns, workflow, key from perdure.run_queue where run_id = $1 and ns = $2 for key share
)
select p.run_id, p.name, p.kind, p.spec, p.assignees, p.escalate_to, p.created_at, p.resolved_at, t.workflow, t.key, perdure.clock() as now
  from target t join perdure.promise p on p.run_id = t.run_id and p.name = $3
   for update of p;

-- name: find_approval
select p.run_id, p.name, p.kind, p.spec, p.assignees, p.escalate_to, p.created_at, p.resolved_at, q.workflow, q.key, perdure.clock() as now
  from perdure.promise p join perdure.run_queue q on q.run_id = p.run_id
 where p.run_id = $1 and p.ns = $2 and p.name = $3;

-- name: approvals_of_run
-- Those that are open: neither decided nor too late.
select p.run_id, p.name, p.kind, p.spec, p.assignees, p.escalate_to, p.created_at, p.resolved_at, q.workflow, q.key, perdure.clock() as now
  from perdure.promise p join perdure.run_queue q on q.run_id = p.run_id
 where p.run_id = $1 and p.ns = $2 and p.kind = 1 and p.resolved_at is null
   and (p.deadline_at is null or p.deadline_at > perdure.clock())
 order by p.created_at, p.name limit $3;

-- name: list_approvals
-- $1 namespace. $2 names of somebody who may answer now, null for everybody's. $3 workflow, null for all. $4 to $6: the key of the last
-- one looked at. $7: how many are looked at. Those that do not match come with their key alone, so that a page goes on behind them.
with seen as (
  select * from perdure.promise p
   where p.ns = $1 and p.kind = 1 and p.resolved_at is null
     and ($4::timestamptz is null or (p.created_at, p.run_id, p.name) > ($4::timestamptz, $5::uuid, $6::text))
   order by p.ns, p.created_at, p.run_id, p.name limit $7
)
select p.run_id, p.name, p.kind, p.created_at, p.resolved_at, q.workflow, q.key, perdure.clock() as now, m.matches,
       case when m.matches then p.spec end as spec, case when m.matches then p.assignees end as assignees,
       case when m.matches then p.escalate_to end as escalate_to
  from seen p
  left join lateral (select r.workflow, r.key from perdure.run_queue r where r.run_id = p.run_id offset 0) q on true
  cross join lateral (select q.workflow is not null and (p.deadline_at is null or p.deadline_at > perdure.clock())
         and ($3::text is null or q.workflow = $3)
         and ($2::text[] is null or cardinality(p.assignees) = 0 or p.assignees && $2
              or (p.escalate_at <= perdure.clock() and p.escalate_to && $2)) as matches) m
 order by p.created_at, p.run_id, p.name;

-- name: votes_of
select v.run_id, v.name, v.who, v.approved, v.value, v.comment, v.via, v.at
  from unnest($1::uuid[], $2::text[]) as u(run_id, name) join perdure.vote v on v.run_id = u.run_id and v.name = u.name
 order by v.at, v.who;

-- name: cast_vote
-- A second one of the same person takes the place of the first.
insert into perdure.vote (run_id, name, who, approved, value, comment, via, at) values ($1, $2, $3, $4, $5, $6, $7, $8)
on conflict (run_id, name, who) do update
  set approved = excluded.approved, value = excluded.value, comment = excluded.comment, via = excluded.via, at = excluded.at;

-- name: decide_approval
with won as (
  update perdure.promise set resolved_at = perdure.clock() where run_id = $1 and name = $2 and resolved_at is null returning run_id, ns
)
insert into perdure.inbox (ns, run_id, body) select ns, run_id, $3 from won returning run_id;

-- name: reassign_approval
update perdure.promise set assignees = $3, escalate_to = $4 where run_id = $1 and name = $2;

-- name: use_link
-- No row: it was used before. Two at once: the second waits for the first.
insert into perdure.used_link (id, at, expires_at) values ($1, perdure.clock(), $2) on conflict (id) do nothing returning id;

-- name: link_was_used
select exists(select from perdure.used_link where id = $1) as used;

-- name: forget_links
-- What has expired is refused for that.
delete from perdure.used_link where id = any(array(
  select l.id from perdure.used_link l where l.expires_at < least(now(), perdure.clock()) - interval '1 day' order by l.expires_at limit $1));

-- name: make_secret
insert into perdure.secret (name, value) values ($1, $2) on conflict (name) do nothing;

-- name: find_secret
select value from perdure.secret where name = $1;

-- name: key_name
select name from perdure.api_key where id = $1;

-- name: approval_clock
select perdure.clock() as now;

-- name: hold_run
-- Kept from ending until the end of the transaction.
with target as (
  select run_id from perdure.run_queue where run_id = $1 and ns = $2 for key share
)
select exists(select from target) as active, perdure.clock() as now;

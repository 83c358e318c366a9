-- Approvals: promises of that kind with their votes, and signed links. Not fenced: people answer, and the run gets a message.

-- name: hold_approval
-- KEY SHARE on the run keeps it from ending, then the promise is ours until the end of the transaction: the lock order of resolve_promise.
with target as (
  select run_id, ns, workflow, key from perdure.run_queue where run_id = :run_id and ns = :ns for key share
)
select p.run_id, p.name, p.kind, p.spec, p.assignees, p.escalate_to, p.created_at, p.resolved_at, p.question, p.asked, t.workflow, t.key, perdure.clock() as now
  from target t join perdure.promise p on p.run_id = t.run_id and p.name = :name
   for update of p;

-- name: find_approval
select p.run_id, p.name, p.kind, p.spec, p.assignees, p.escalate_to, p.created_at, p.resolved_at, p.question, q.workflow, q.key, perdure.clock() as now
  from perdure.promise p join perdure.run_queue q on q.run_id = p.run_id
 where p.run_id = :run_id and p.ns = :ns and p.name = :name and p.asked;

-- name: approvals_of_run
-- Those that are open: neither decided nor too late.
select p.run_id, p.name, p.kind, p.spec, p.assignees, p.escalate_to, p.created_at, p.resolved_at, p.question, q.workflow, q.key, perdure.clock() as now
  from perdure.promise p join perdure.run_queue q on q.run_id = p.run_id
 where p.run_id = :run_id and p.ns = :ns and p.kind = 'approval' and p.resolved_at is null and p.asked
   and (p.deadline_at is null or p.deadline_at > perdure.clock())
 order by p.created_at, p.name limit :limit;

-- name: list_approvals
-- `names` are those of a person who may answer now; null: all approvals. Of `limit` approvals after the given key, those that do not
-- match come with their key alone, so that the next page begins behind them.
with seen as (
  select * from perdure.promise p
   where p.ns = :ns and p.kind = 'approval' and p.resolved_at is null and p.asked
     and (:after_at::timestamptz is null or (p.created_at, p.run_id, p.name) > (:after_at::timestamptz, :after_run_id::uuid, :after_name::text))
   order by p.ns, p.created_at, p.run_id, p.name limit :limit
)
select p.run_id, p.name, p.kind, p.created_at, p.resolved_at, p.question, q.workflow, q.key, perdure.clock() as now, m.matches,
       case when m.matches then p.spec end as spec, case when m.matches then p.assignees end as assignees,
       case when m.matches then p.escalate_to end as escalate_to
  from seen p
  left join lateral (select r.workflow, r.key from perdure.run_queue r where r.run_id = p.run_id offset 0) q on true
  cross join lateral (select q.workflow is not null and (p.deadline_at is null or p.deadline_at > perdure.clock())
         and (:workflow::text is null or q.workflow = :workflow)
         and (:names::text[] is null or cardinality(p.assignees) = 0 or p.assignees && :names
              or (p.escalate_at <= perdure.clock() and p.escalate_to && :names)) as matches) m
 order by p.created_at, p.run_id, p.name;

-- name: decided_approvals
-- Decided or expired, the latest first; of active runs those that have expired are still promises. `names`: one of these has answered;
-- null: all. Of `limit` approvals after the given key, those that do not match come with their key alone, as above.
with kept as (
  select d.run_id, d.name, d.created_at, d.resolved_at, d.decided_at, d.spec, d.assignees, d.escalate_to, d.voters, d.votes, d.question
    from perdure.decided_approval d
   where d.ns = :ns
     and (:after_at::timestamptz is null or (d.decided_at, d.run_id, d.name) < (:after_at::timestamptz, :after_run_id::uuid, :after_name::text))
   order by d.ns desc, d.decided_at desc, d.run_id desc, d.name desc limit :limit
),
expired as (
  select p.run_id, p.name, p.created_at, p.resolved_at, p.deadline_at as decided_at, p.spec, p.assignees, p.escalate_to, p.question
    from perdure.promise p
   where p.ns = :ns and p.kind = 'approval' and p.resolved_at is null and p.asked and p.deadline_at is not null and p.deadline_at <= perdure.clock()
     and not exists (select from perdure.decided_approval d where d.run_id = p.run_id and d.name = p.name and d.question = p.question)
     and (:after_at::timestamptz is null or (p.deadline_at, p.run_id, p.name) < (:after_at::timestamptz, :after_run_id::uuid, :after_name::text))
   order by p.ns desc, p.deadline_at desc, p.run_id desc, p.name desc limit :limit
),
seen as (
  select * from kept
  union all
  select e.run_id, e.name, e.created_at, e.resolved_at, e.decided_at, e.spec, e.assignees, e.escalate_to,
         array(select v.who from perdure.vote v where v.run_id = e.run_id and v.name = e.name), perdure.votes(e.run_id, e.name), e.question
    from expired e
   order by decided_at desc, run_id desc, name desc limit :limit
)
select s.run_id, s.name, s.created_at, s.resolved_at, s.decided_at, s.question, r.workflow, r.key, perdure.clock() as now, m.matches,
       case when m.matches then s.spec end as spec, case when m.matches then s.assignees end as assignees,
       case when m.matches then s.escalate_to end as escalate_to, case when m.matches then s.votes::text end as votes
  from seen s
  left join lateral (select q.workflow, q.key from perdure.run_queue q where q.run_id = s.run_id
                     union all select e.workflow, e.key from perdure.run e where e.run_id = s.run_id limit 1) r on true
  cross join lateral (select r.workflow is not null and s.spec is not null and (:workflow::text is null or r.workflow = :workflow)
         and (:names::text[] is null or s.voters && :names) as matches) m
 order by s.decided_at desc, s.run_id desc, s.name desc;

-- name: delete_old_decisions
delete from perdure.decided_approval d where d.ctid = any(array(
  select o.ctid from perdure.decided_approval o where o.decided_at < least(now(), perdure.clock()) - :age_days::int * interval '1 day'
   order by o.decided_at limit :limit));

-- name: votes_of
select v.run_id, v.name, v.who, v.approved, v.value, v.comment, v.via, v.at
  from unnest(:approvals.run_id::uuid[], :approvals.name::text[]) as u(run_id, name) join perdure.vote v on v.run_id = u.run_id and v.name = u.name
 order by v.at, v.who;

-- name: cast_vote
-- seals: value vote_value, comment vote_comment
-- A second one of the same person takes the place of the first.
insert into perdure.vote (run_id, name, who, approved, value, comment, via, at) values (:run_id, :name, :who, :approved, :value, :comment, :via, :at)
on conflict (run_id, name, who) do update
  set approved = excluded.approved, value = excluded.value, comment = excluded.comment, via = excluded.via, at = excluded.at;

-- name: decide_approval
-- seals: body message
-- The run and the promise are held by hold_approval. `outcome`: the limit that keeps the answer from the run; 0: none.
with target as (
  select run_id, perdure.limit_outcome(owner is null and perdure.is_inbox_full(run_id, :pending_max), full_signals, 'answer', :name) as outcome
    from perdure.run_queue where run_id = :run_id
),
won as (
  update perdure.promise p set resolved_at = perdure.clock() from target t
   where t.outcome = 0 and p.run_id = t.run_id and p.name = :name and p.resolved_at is null
  returning p.run_id, p.ns
),
sent as (
  insert into perdure.inbox (ns, run_id, body, kind, name) select ns, run_id, :body, 'answer', :name from won
)
select outcome from target;

-- name: reassign_approval
update perdure.promise set assignees = :assignees, escalate_to = :escalate_to where run_id = :run_id and name = :name;

-- name: use_link
-- No row: it was used before. Two at once: the second waits for the first.
insert into perdure.used_link (id, at, expires_at) values (:id, perdure.clock(), :expires_at) on conflict (id) do nothing returning id;

-- name: link_was_used
select exists(select from perdure.used_link where id = :id) as used;

-- name: delete_expired_links
-- What has expired is refused for that.
delete from perdure.used_link where id = any(array(
  select l.id from perdure.used_link l where l.expires_at < least(now(), perdure.clock()) - interval '1 day' order by l.expires_at limit :limit));

-- name: make_secret
insert into perdure.secret (name, value) values (:name, :value) on conflict (name) do nothing;

-- name: find_secret
select value from perdure.secret where name = :name;

-- name: key_name
select name from perdure.api_key where id = :id;

-- name: approval_clock
select perdure.clock() as now;

-- name: hold_run
-- Kept from ending until the end of the transaction.
with target as (
  select run_id from perdure.run_queue where run_id = :run_id and ns = :ns for key share
)
select exists(select from target) as active, perdure.clock() as now;

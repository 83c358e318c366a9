-- What the verifier reads. Nothing here locks or writes; a page of runs is read in one snapshot.

-- name: verify_page
-- Ids that any table knows, so that a history without a run is met too.
select u.run_id from (
  (select q.run_id from perdure.run_queue q where q.run_id > :after order by q.run_id limit :limit)
  union
  (select r.run_id from perdure.run r where r.run_id > :after order by r.run_id limit :limit)
  union
  (select h.run_id from perdure.history h where h.run_id > :after and h.seq = 1 order by h.run_id limit :limit)
) u order by u.run_id limit :limit;

-- name: verify_runs
select q.run_id, true as active, q.status, q.epoch, q.events, q.stuck,
       q.owner is null and not q.halted and q.wake_at <= perdure.clock() as due,
       q.ns, q.workflow, q.version, q.kind, q.key, q.parent_id, q.parent_seq, q.created_at, null::timestamptz as finished_at, null::text as error_code,
       null::text as error, null::uuid as successor, q.attributes::text as attributes, q.head, perdure.clock() as clock, q.pin
  from perdure.run_queue q where q.run_id = any(:run_ids::uuid[])
union all
select r.run_id, false, r.status, r.epoch, r.events, null, false, r.ns, r.workflow, r.version, r.kind, r.key, r.parent_id, r.parent_seq, r.created_at,
       r.finished_at, r.error_code, r.error, r.successor, r.attributes::text, r.head, perdure.clock(), ''
  from perdure.run r where r.run_id = any(:run_ids::uuid[]);

-- name: verify_keys
select k.run_id, k.ns, k.key, k.input_hash from perdure.run_key k where k.run_id = any(:run_ids::uuid[]);

-- name: verify_promises
select p.run_id, p.name, p.kind, p.resolved_at is not null as is_resolved, p.asked as is_asked, p.question from perdure.promise p where p.run_id = any(:run_ids::uuid[]);

-- name: verify_namespaces
-- The namespaces of rows that belong to these runs, where a table has any.
select 'task_queue' as kind, t.run_id, t.ns from perdure.task_queue t where t.run_id = any(:run_ids::uuid[])
union
select 'inbox', i.run_id, i.ns from perdure.inbox i where i.run_id = any(:run_ids::uuid[])
union
select 'promise', p.run_id, p.ns from perdure.promise p where p.run_id = any(:run_ids::uuid[])
union
select 'run_state', s.run_id, s.ns from perdure.run_state s where s.run_id = any(:run_ids::uuid[])
union
select 'task_log', l.run_id, l.ns from perdure.task_log l where l.run_id = any(:run_ids::uuid[])
union
select 'update_answer', u.run_id, u.ns from perdure.update_answer u where u.run_id = any(:run_ids::uuid[]);

-- name: verify_parents
select q.run_id, q.ns from perdure.run_queue q where q.run_id = any(:run_ids::uuid[])
union all
select r.run_id, r.ns from perdure.run r where r.run_id = any(:run_ids::uuid[]);

-- name: verify_messages
-- A message that is set aside has the number that it had in the inbox.
(select i.id, i.run_id, i.body from perdure.inbox i where i.id > :after order by i.id limit :limit)
union all
(select s.id, s.run_id, s.body from perdure.set_aside_message s where s.id > :after order by s.id limit :limit)
order by id limit :limit;

-- name: verify_places
-- Messages of senders in a place where nothing finds them.
select i.run_id, 'the ' || i.kind || ' ' || i.id || ' waits in the inbox, and the run is not active' as what
  from perdure.inbox i
 where i.kind in ('signal', 'promise', 'answer', 'update') and not exists (select from perdure.run_queue q where q.run_id = i.run_id)
union all
select s.run_id, 'the ' || s.kind || ' ' || s.id || ' was set aside (' || s.reason || '), and the run '
         || coalesce((select 'is ' || case when r.successor is null then r.status else 'continued' end from perdure.run r where r.run_id = s.run_id),
                     (select 'is active' from perdure.run_queue q where q.run_id = s.run_id), 'does not exist')
  from perdure.set_aside_message s
 where not exists (select from perdure.run r where r.run_id = s.run_id
                      and s.reason = case when r.successor is null then r.status else 'continued' end);

-- name: verify_places_examined
select (select count(*) from perdure.inbox) + (select count(*) from perdure.set_aside_message) as examined;

-- name: verify_chains
-- Chains whose last run is not the last, or is gone; keys with several active runs.
select c.head as run_id, 'it is recorded as the last run of the chain of ' || c.run_id
         || coalesce(', and continued as ' || (select r.successor from perdure.run r where r.run_id = c.head), ', and does not exist') as what
  from perdure.run_chain c
 where not exists (select from perdure.run_queue q where q.run_id = c.head)
   and not exists (select from perdure.run r where r.run_id = c.head and r.successor is null)
union all
select min(q.run_id::text)::uuid, 'the key ' || q.key || ' has ' || count(*) || ' active runs'
  from perdure.run_queue q where q.key is not null group by q.ns, q.key having count(*) > 1;

-- name: verify_chains_examined
select count(*) as examined from perdure.run_chain;

-- name: verify_retention
-- Runs with ids below this may be gone, whole or in part.
select max(r.below::text)::uuid as below from perdure.retention r where r.parent in ('history', 'run', 'task');

-- name: verify_slots
-- By key: how many hold it, of those how many since the rule of that name was set, the rule, and the limits of the groups of its holders.
select s.ns, s.key, count(*) as held, min(r.concurrency) as rule, count(*) filter (where s.at > r.updated_at) as since_rule,
       array_agg(distinct g.needs) filter (where g.needs is not null) as needs,
       count(*) filter (where t.id is null and q.run_id is null) as unheld, min(s.run_id::text)::uuid as run_id
  from perdure.flow_control_slot s
  left join perdure.task_queue t on t.id = s.holder and t.owner is not null and t.ns = s.ns
  left join perdure.run_queue q on q.run_id = s.holder and q.admitted_at is not null and q.ns = s.ns
  left join perdure.flow_control_group g on g.id = coalesce(t.group_id, q.group_id)
  left join perdure.flow_control_rule r on r.ns = s.ns and r.scope || case when r.name = '' then '' else '/' || r.name end = s.key
 group by s.ns, s.key;

-- name: verify_missing_slots
-- Tasks and runs in flight that belong to a group, its limits, and the keys of the slots they hold.
select x.run_id, x.what, g.needs, array(select s.key from perdure.flow_control_slot s where s.holder = x.holder) as keys
  from (select t.run_id, 'task ' || t.seq as what, t.id as holder, t.group_id from perdure.task_queue t where t.owner is not null and t.group_id is not null
        union all
        select q.run_id, 'the run', q.run_id, q.group_id from perdure.run_queue q where q.admitted_at is not null and q.group_id is not null) x
  join perdure.flow_control_group g on g.id = x.group_id where jsonb_array_length(g.needs::jsonb->'limits') > 0;

-- name: verify_batches
-- Batched starts that wait: what the row counts and what there is; whether the run is there already; inputs without a row. Sealed
-- inputs have another length, and are not counted.
select s.run_id, s.items, s.bytes, (select case when bool_or(substr(i.input, 1, 2) = '\xc150') then s.bytes else coalesce(sum(octet_length(i.input)), 0) end
          from perdure.deferred_start_input i where i.run_id = s.run_id) as found,
       exists(select from perdure.run_queue q where q.run_id = s.run_id) or exists(select from perdure.run r where r.run_id = s.run_id) as begun
  from perdure.deferred_start s where s.kind = 'batch'
union all
select i.run_id, -1, 0, count(*), false from perdure.deferred_start_input i
 where not exists (select from perdure.deferred_start s where s.run_id = i.run_id) group by i.run_id;

-- name: verify_kinds
-- Rows whose `kind` disagrees with the rest of the row or with the rows that refer to it.
select 13 as invariant, t.run_id, 'task ' || t.seq || ' is in a flow-control group of kind ' || g.kind as what
  from perdure.task_queue t join perdure.flow_control_group g on g.id = t.group_id where g.kind <> 'task'
union all
select 13, q.run_id, 'the run is in a flow-control group of kind ' || g.kind
  from perdure.run_queue q join perdure.flow_control_group g on g.id = q.group_id where g.kind <> 'run'
union all
select 20, s.run_id, 'the deferred start is of kind ' || s.kind || case when s.input is null then ' and has no input' else ' and has an input of its own' end
  from perdure.deferred_start s where (s.kind = 'batch') <> (s.input is null)
union all
select 4, null, 'version ' || v.version || ' of the workflow ' || v.workflow || ' is of kind ' || v.kind || ', which its document is not'
  from perdure.workflow_version v where (v.kind = 'code') <> (v.document is null)
union all
select 4, null, 'the workflow ' || w.name || ' is of kind ' || w.kind || ', its current version of kind ' || v.kind
  from perdure.workflow w join perdure.workflow_version v on v.ns = w.ns and v.workflow = w.name and v.version = w.current where v.kind <> w.kind;

-- name: verify_documents
-- A page of flows. Their documents are parsed by the caller: one that is no JSON must not end the verification.
select v.ns, v.workflow, v.version, v.kind, v.document from perdure.workflow_version v
 where v.document is not null and (v.ns, v.workflow, v.version) > (:ns::int, :workflow::text, :version::text)
 order by v.ns, v.workflow, v.version limit :limit;

-- name: verify_audit
-- The chain with the lines it names, each in the form that is hashed.
select c.n, c.id, c.hash,
       jsonb_build_array(a.id, (extract(epoch from a.at) * 1000000)::bigint, a.ns, a.actor, a.action, a.target, a.detail)::text as line,
       a.id is not null as found
  from perdure.audit_chain c left join perdure.audit a on a.id = c.id where c.n > :after order by c.n limit :limit;

-- name: verify_audit_head
select h.n, h.hash, (select count(*) from perdure.audit) as lines,
       (select min(a.id) from perdure.audit a where not exists (select from perdure.audit_chain c where c.id = a.id)) as unchained
  from perdure.audit_head h;

-- name: verify_history
select h.run_id, h.seq, h.last, h.ns, h.epoch, h.at, h.body, h.hash from perdure.history h
 where h.run_id = any(:run_ids::uuid[]) order by h.run_id, h.seq;

-- name: verify_tasks
-- `low` and `high` bound the ids, which open with the first half of their run's id.
select t.run_id, t.id, t.seq, t.name, t.status, t.attempts, t.lost, t.epoch, t.ns, t.queue, t.node, t.error, t.error_code,
       t.scheduled_at, t.started_at, t.finished_at, t.copied
  from perdure.task t
 where t.id between :low and :high and t.run_id = any(:run_ids::uuid[]);

-- name: verify_attempts
select a.run_id, a.ns, a.seq, a.epoch, a.attempt, a.outcome
  from perdure.task_attempt a where a.id between :low and :high and a.run_id = any(:run_ids::uuid[]);

-- name: verify_queued
select t.run_id, t.seq, t.attempt from perdure.task_queue t where t.run_id = any(:run_ids::uuid[]);

-- name: verify_state
-- A sealed value is hashed by the reader, once it is opened.
select s.run_id, s.name, sha256(s.value) as hash, case when substr(s.value, 1, 2) = '\xc150' then s.value end as sealed,
       substr(s.value, 1, 2) = '\xc150' as is_sealed from perdure.run_state s
 where s.run_id = any(:run_ids::uuid[]) and s.value is not null;

-- name: verify_active
select q.run_id from perdure.run_queue q where q.run_id = any(:run_ids::uuid[]);

-- name: verify_known
-- How often each of these ids is a run.
select u.run_id, (select count(*) from perdure.run_queue q where q.run_id = u.run_id)
               + (select count(*) from perdure.run r where r.run_id = u.run_id) as times
  from unnest(:run_ids::uuid[]) as u(run_id);

-- name: verify_orphan_tasks
-- A page of tasks, each with whether its run is unknown.
with page as materialized (
  select t.id, t.run_id, t.seq from perdure.task t where t.id > :after order by t.id limit :limit
)
select p.id, p.run_id, p.seq,
       not exists (select from perdure.run_queue q where q.run_id = p.run_id)
       and not exists (select from perdure.run r where r.run_id = p.run_id) as orphan
  from page p order by p.id;

-- name: verify_fires
-- Runs that a schedule started for a nominal time which names another run, or none although older times are still on record.
-- Times are forgotten oldest first, so those tell whether this one was. A name may have been given to several schedules in turn.
select u.run_id, u.name,
       (select x.run_id::text from perdure.schedule s join perdure.schedule_fire x on x.schedule_id = s.id and x.nominal_at = u.nominal_at
         where s.ns = h.ns and s.name = u.name limit 1) as other
  from unnest(:runs.run_id::uuid[], :runs.name::text[], :runs.nominal_at::timestamptz[]) as u(run_id, name, nominal_at)
 cross join lateral (select f.ns from perdure.history f where f.run_id = u.run_id and f.seq = 1) h
 where not exists (select from perdure.schedule s join perdure.schedule_fire x on x.schedule_id = s.id and x.nominal_at = u.nominal_at
                    where s.ns = h.ns and s.name = u.name and x.run_id = u.run_id)
   and exists (select from perdure.schedule s join perdure.schedule_fire x on x.schedule_id = s.id and x.nominal_at <= u.nominal_at
                where s.ns = h.ns and s.name = u.name);

-- name: verify_leftovers
-- What must not be there when nothing is going on. At most `limit` examples of each kind.
(select 'message' as kind, i.run_id, 'inbox row ' || i.id as what from perdure.inbox i order by i.id limit :limit)
union all
(select 'task', t.run_id, 'task ' || t.seq || ' waits in task_queue for a run that is not active'
   from perdure.task_queue t where not exists (select from perdure.run_queue q where q.run_id = t.run_id) limit :limit)
union all
(select 'promise', p.run_id, 'promise ' || p.name || ' of a run that is neither active nor failed'
   from perdure.promise p where not exists (select from perdure.run_queue q where q.run_id = p.run_id)
    and not exists (select from perdure.run r where r.run_id = p.run_id and r.status = 'failed') limit :limit)
union all
(select 'owner', q.run_id, 'owned by session ' || q.owner || ', which does not exist'
   from perdure.run_queue q
  where q.owner is not null and not exists (select from perdure.engine_session s where s.id = q.owner) limit :limit)
union all
(select 'task owner', t.run_id, 'task ' || t.seq || ' is held by session ' || t.owner || ', which does not exist'
   from perdure.task_queue t
  where t.owner is not null and not exists (select from perdure.engine_session s where s.id = t.owner) limit :limit)
union all
(select 'key', k.run_id, 'key ' || k.key || ' belongs to a run that does not exist'
   from perdure.run_key k where not exists (select from perdure.run_queue q where q.run_id = k.run_id)
    and not exists (select from perdure.run r where r.run_id = k.run_id) limit :limit)
union all
(select 'commit number', '00000000-0000-0000-0000-000000000000', 'commit_log holds numbers of session ' || c.session_id || ', which does not exist'
   from perdure.commit_log c where not exists (select from perdure.engine_session s where s.id = c.session_id) limit :limit);

-- name: verify_leftovers_examined
select (select count(*) from perdure.inbox) + (select count(*) from perdure.task_queue) + (select count(*) from perdure.promise)
     + (select count(*) from perdure.run_queue) + (select count(*) from perdure.run_key) as examined;

-- name: verify_uses_retention
-- Uses of ended runs with ids below this may be gone, and what they used.
select max(r.below::text)::uuid as below from perdure.retention r where r.parent = 'payload_use';

-- name: verify_references
-- References of histories that are not in order. `dropped`: what ended runs below this id used may be gone.
select u.run_id, u.store, u.sha256,
       case when p.sha256 is null then 'it is missing'
            when p.size <> u.size then 'it has ' || p.size || ' bytes, the history says ' || u.size
            when p.store = '' and not p.is_complete then 'it was never uploaded completely'
            else 'it is not recorded as used by this run, so it can be deleted' end as what
  from unnest(:references.run_id::uuid[], :references.ns::int[], :references.store::text[], :references.sha256::bytea[],
              :references.size::bigint[]) as u(run_id, ns, store, sha256, size)
  left join perdure.payload p on p.ns = u.ns and p.store = u.store and p.sha256 = u.sha256
 where (p.sha256 is null or p.size <> u.size or (p.store = '' and not p.is_complete)
        or not exists (select from perdure.payload_use x where x.run_id = u.run_id and x.store = u.store and x.sha256 = u.sha256))
   and (u.run_id >= :dropped::uuid or exists (select from perdure.run_queue q where q.run_id = u.run_id));

-- name: verify_contents
-- A page of content: what is complete in the database, with the digest of its bytes where they are one chunk that is not sealed; and what is used in object
-- stores. `lacks`: it refers to content that is not there. `run_id`: one of the runs that use it.
select p.ns, p.store, p.sha256, p.size, w.run_id,
       case when p.store = '' and p.size <= :chunk_bytes::bigint
            then (select case when substr(c.data, 1, 2) <> '\xc150' then sha256(c.data) end from perdure.payload_chunk c where c.ns = p.ns and c.store = p.store and c.sha256 = p.sha256 and c.n = 0)
       end as digest,
       exists (select from perdure.payload_part x
                where x.ns = p.ns and x.store = p.store and x.sha256 = p.sha256
                  and not exists (select from perdure.payload o where o.ns = x.ns and o.store = x.part_store and o.sha256 = x.part_sha256
                                     and (o.is_complete or o.store <> ''))) as lacks
  from perdure.payload p
  left join lateral (select x.run_id from perdure.payload_use x where x.ns = p.ns and x.store = p.store and x.sha256 = p.sha256 limit 1) w on true
 where (p.ns, p.sha256, p.store) > (:ns::int, :sha256::bytea, :store::text)
   and (p.is_complete or (p.store <> '' and (w.run_id is not null or exists (
          select from perdure.payload_part x where x.ns = p.ns and x.part_store = p.store and x.part_sha256 = p.sha256))))
 order by p.ns, p.sha256, p.store limit :limit;

-- name: verify_content_used
select exists (select from perdure.payload p where p.ns = :ns and p.store = :store and p.sha256 = :sha256
                 and (exists (select from perdure.payload_use x where x.ns = p.ns and x.store = p.store and x.sha256 = p.sha256)
                      or exists (select from perdure.payload_part x where x.ns = p.ns and x.part_store = p.store and x.part_sha256 = p.sha256))) as used;

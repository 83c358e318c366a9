-- Telemetry: output of tasks, progress of attempts, connected workers, and what monitoring reads. Not fenced: no decision depends on it.

-- name: insert_logs
-- seals: chunks.body log
-- A chunk that was written before stays as it is.
insert into perdure.task_log (run_id, seq, attempt, n, ns, lines, body)
select * from unnest(:chunks.run_id::uuid[], :chunks.seq::int[], :chunks.attempt::int[], :chunks.n::int[], :chunks.ns::int[], :chunks.lines::int[], :chunks.body::bytea[])
on conflict do nothing;

-- name: update_attempts
-- seals: attempts.details details
-- Only rows that the session owns and of the same attempt. SKIP LOCKED: a row that a commit is about to change is updated in the next
-- round, so that this never waits for a commit, nor a commit for this for longer than the statement takes.
with due as materialized (
  select at.place, u.*
    from unnest(:attempts.id::uuid[], :attempts.attempt::int[], :attempts.worker::text[], :attempts.started_at::timestamptz[], :attempts.beat_at::timestamptz[], :attempts.details::bytea[], :attempts.blocked::text[])
           as u(id, attempt, worker, started_at, beat_at, details, blocked),
         lateral (select r.ctid as place from perdure.task_queue r
                   where r.id = u.id and r.owner = :session and r.attempt = u.attempt for update skip locked) at
)
update perdure.task_queue t
   set status = 'running', worker = due.worker, started_at = due.started_at, beat_at = due.beat_at, details = due.details, blocked = due.blocked
  from due where t.ctid = due.place
returning t.id;

-- name: upsert_workers
-- Nothing for a session that is gone. A worker that has since connected to another engine has a row of that engine, which stays.
insert into perdure.worker as w (session_id, id, ns, name, host, pid, sdk, queues, tasks, workflows, slots, slots_used, runs_held, draining,
                                 connected_at, seen_at, blocked, versions, build_id, ended, failed, p50_us, p95_us, p99_us)
select :session, u.id, u.ns, u.name, u.host, u.pid, u.sdk,
       array(select jsonb_array_elements_text(u.queues)), array(select jsonb_array_elements_text(u.tasks)),
       array(select jsonb_object_keys(u.versions)),
       u.slots, u.slots_used, u.runs_held, u.draining, u.connected_at, u.seen_at, u.blocked, u.versions, u.build_id,
       u.ended, u.failed, u.p50_us, u.p95_us, u.p99_us
  from unnest(:workers.id::uuid[], :workers.ns::int[], :workers.name::text[], :workers.host::text[], :workers.pid::int[], :workers.sdk::text[], :workers.queues::jsonb[], :workers.tasks::jsonb[], :workers.versions::jsonb[], :workers.slots::int[],
              :workers.slots_used::int[], :workers.runs_held::int[], :workers.draining::bool[], :workers.connected_at::timestamptz[], :workers.seen_at::timestamptz[], :workers.blocked::text[], :workers.build_id::text[],
              :workers.ended::int[], :workers.failed::int[], :workers.p50_us::bigint[], :workers.p95_us::bigint[], :workers.p99_us::bigint[])
         as u(id, ns, name, host, pid, sdk, queues, tasks, versions, slots, slots_used, runs_held, draining, connected_at, seen_at, blocked, build_id,
              ended, failed, p50_us, p95_us, p99_us)
 where exists (select from perdure.engine_session s where s.id = :session)
on conflict (ns, id) do update
   set session_id = excluded.session_id, name = excluded.name, host = excluded.host, pid = excluded.pid, sdk = excluded.sdk,
       queues = excluded.queues, tasks = excluded.tasks, workflows = excluded.workflows, slots = excluded.slots,
       slots_used = excluded.slots_used, runs_held = excluded.runs_held, draining = excluded.draining,
       connected_at = excluded.connected_at, seen_at = excluded.seen_at, blocked = excluded.blocked,
       versions = excluded.versions, build_id = excluded.build_id,
       ended = excluded.ended, failed = excluded.failed, p50_us = excluded.p50_us, p95_us = excluded.p95_us, p99_us = excluded.p99_us
 where excluded.connected_at >= w.connected_at;

-- name: delete_workers
-- Of workers that are not connected to this engine any more.
delete from perdure.worker w
 where w.session_id = :session and not exists (select from unnest(:workers.ns::int[], :workers.id::uuid[]) as u(ns, id) where u.ns = w.ns and u.id = w.id);

-- name: delete_orphaned_workers
-- Workers of sessions that are gone. One that is alive has connected to another engine and has a row there.
delete from perdure.worker w where not exists (select from perdure.engine_session s where s.id = w.session_id);

-- name: delete_backlog
delete from perdure.engine_backlog where session_id = :session;

-- name: insert_backlog
-- Nothing for a session that is gone.
insert into perdure.engine_backlog (session_id, ns, queue, name, waiting, running, oldest_at)
select :session, u.ns, u.queue, u.name, u.waiting, u.running, u.oldest_at
  from unnest(:kinds.ns::int[], :kinds.queue::text[], :kinds.name::text[], :kinds.waiting::int[], :kinds.running::int[],
              :kinds.oldest_at::timestamptz[]) as u(ns, queue, name, waiting, running, oldest_at)
 where exists (select from perdure.engine_session s where s.id = :session);

-- name: delete_orphaned_backlogs
delete from perdure.engine_backlog b where not exists (select from perdure.engine_session s where s.id = b.session_id);

-- name: backlog_depths
-- Tasks that wait in the memory of engines that are alive, per namespace and queue.
select n.name as namespace, b.queue, sum(b.waiting)::bigint as due,
       greatest(extract(epoch from perdure.clock() - min(b.oldest_at)), 0)::float8 as oldest_s
  from perdure.engine_backlog b join perdure.engine_session s on s.id = b.session_id and s.expires_at > now()
  join perdure.namespace n on n.id = b.ns
 where b.waiting > 0 group by n.name, b.queue order by n.name, b.queue limit :limit;

-- name: backlog_tasks
-- The same per kind, with attempts that have no row yet.
select b.queue, b.name, sum(b.waiting)::int as waiting, sum(b.running)::int as running,
       extract(epoch from perdure.clock() - min(b.oldest_at))::float8 as age_s
  from perdure.engine_backlog b join perdure.engine_session s on s.id = b.session_id and s.expires_at > now()
 where b.ns = :ns group by b.queue, b.name order by sum(b.waiting) + sum(b.running) desc limit :limit;

-- name: ping
select true as here;

-- name: live_sessions
select count(*) as live from perdure.engine_session where expires_at > now();

-- name: queue_depths
-- Tasks that wait for a worker, per namespace and queue. Bounded: kinds_max kinds of task (queue and name) are looked at, and about
-- rows_max rows counted in all, the same share of each kind. Kinds are found by jumping through the index task_queue_due.
with recursive kind as (
  (select t.ns, t.queue, t.name, 1 as n from perdure.task_queue t where t.owner is null and t.group_id is null and not t.held order by t.ns, t.queue, t.name limit 1)
  union all
  select leap.ns, leap.queue, leap.name, k.n + 1
    from kind k, lateral (select t.ns, t.queue, t.name from perdure.task_queue t
                           where t.owner is null and t.group_id is null and not t.held and (t.ns, t.queue, t.name) > (k.ns, k.queue, k.name)
                           order by t.ns, t.queue, t.name limit 1) leap
   where k.n < :kinds_max
),
share as materialized (select greatest(:rows_max::bigint / greatest(count(*), 1), 20) as rows from kind)
select s.name as namespace, e.queue, sum(e.due)::bigint as due, greatest(extract(epoch from perdure.clock() - min(e.oldest)), 0)::float8 as oldest_s
  from (
    select k.ns, k.queue, d.due, d.oldest from kind k,
           lateral (select count(*) as due, min(w.run_at) as oldest
                      from (select t.run_at from perdure.task_queue t
                             where t.ns = k.ns and t.queue = k.queue and t.name = k.name and t.owner is null and t.group_id is null and not t.held
                               and t.run_at <= perdure.clock()
                             order by t.run_at limit (select rows from share)) w) d
    union all
    select l.ns, l.queue, d.due, d.oldest from (select x.id, x.ns, x.queue from perdure.flow_control_group x where x.kind = 'task' order by x.kind, x.next_at limit :kinds_max) l,
           lateral (select count(*) as due, min(w.run_at) as oldest
                      from (select t.run_at from perdure.task_queue t where t.group_id = l.id and t.owner is null and t.run_at <= perdure.clock()
                             order by t.run_at limit (select rows from share)) w) d
  ) e
  join perdure.namespace s on s.id = e.ns
 group by s.name, e.queue
 order by s.name, e.queue;

-- name: namespace_names
select id, name from perdure.namespace order by id limit :limit;

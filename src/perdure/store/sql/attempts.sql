-- Attempts of tasks.

-- name: task_attempts
-- Of these tasks, after a place. The first row says whether any of them is in task or task_queue; it has no attempt.
(select true as exists, null::uuid as id, -1 as seq, null as name, null as node, 0 as epoch, null::int as attempt, null as outcome,
        null::boolean as is_last, null as worker, null::timestamptz as started_at, null::timestamptz as finished_at, null::bigint as cpu_us,
        null as error, null as error_code, null as error_type, null as traceback, null::int as log_first, null::int as log_last,
        null::int as log_lines
  where exists (select from perdure.task t where t.id = any(:ids::uuid[]))
     or exists (select from perdure.task_queue q where q.id = any(:ids::uuid[])))
union all
(select false, a.id, a.seq, a.name, a.node, a.epoch, a.attempt, a.outcome, a.is_last, a.worker, a.started_at, a.finished_at, a.cpu_us, a.error,
        a.error_code, a.error_type, a.traceback, a.log_first, a.log_last, a.log_lines
   from perdure.attempt a
  where a.id = any(:ids::uuid[]) and a.run_id = :run_id and a.ns = :ns and (not :unsuccessful or a.outcome <> 'success')
    and (a.seq, a.epoch, a.attempt) > (:after_seq::int, :after_epoch::int, :after_attempt::int)
  order by a.seq, a.epoch, a.attempt limit :limit);

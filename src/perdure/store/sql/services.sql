-- HTTP services: their instances, and jobs whose end they report later.

-- name: register_instance
-- An instance that returns under another id leaves no second row behind. Null at the limit of the namespace.
with before as (
  select url, services from perdure.service_instance where ns = :ns and id = :id
), same_url as (
  delete from perdure.service_instance where ns = :ns and url = :url and id <> :id
), saved as (
  insert into perdure.service_instance (ns, id, url, services, load, registered_at, heartbeat_at)
  select :ns, :id, :url, :services::text[], :load, perdure.clock(), perdure.clock()
   where exists (select from before) or (select count(*) from perdure.service_instance where ns = :ns) < :instances_max
  on conflict (ns, id) do update
    set url = excluded.url, services = excluded.services, load = excluded.load, heartbeat_at = perdure.clock()
  returning *
)
select s.id, s.url, s.services, s.load, s.registered_at, s.heartbeat_at, true as is_online,
       not exists (select from before b where b.url = s.url and b.services = s.services) as is_changed
  from saved s;

-- name: instance_heartbeat
update perdure.service_instance set heartbeat_at = perdure.clock(), load = coalesce(:load::double precision, load)
 where ns = :ns and id = coalesce(
   (select id from perdure.service_instance where ns = :ns and id = :id),
   (select id from perdure.service_instance where ns = :ns and url = :url order by heartbeat_at desc limit 1))
returning id;

-- name: list_instances
-- A page by id. `ttl_s` says from when on an instance is offline, `only_online` leaves those out.
select id, url, services, load, registered_at, heartbeat_at, heartbeat_at >= perdure.clock() - make_interval(secs => :ttl_s) as is_online
  from perdure.service_instance
 where ns = :ns and id > :after and (:service = '' or :service = any(services))
   and (not :only_online or heartbeat_at >= perdure.clock() - make_interval(secs => :ttl_s))
 order by id limit :limit;

-- name: delete_old_instances
delete from perdure.service_instance where heartbeat_at < perdure.clock() - make_interval(secs => :age_s) returning id;

-- name: service_routes
-- What a service of a flow may be: names that instances have registered, and names of Python tasks. No locks.
(select distinct unnest(services) as name, true as is_registered from perdure.service_instance where ns = :ns)
union all
(select name, false from perdure.task_type where ns = :ns order by name limit :limit);

-- name: find_callback
select phase, result, error from perdure.service_callback where ns = :ns and job = :job;

-- name: accept_callbacks
-- The service took the jobs. What it has reported already stands.
insert into perdure.service_callback (ns, job, phase, updated_at) select :ns, u.job, 'waiting', perdure.clock() from unnest(:jobs::text[]) as u(job) order by u.job
on conflict (ns, job) do update set phase = 'waiting', updated_at = perdure.clock() where service_callback.phase = 'closed';

-- name: end_callback
-- seals: result callback_result, error callback_error
-- The first report of a job counts: the condition on the row decides. Answers with the phase that the job had when the query began; null
-- for none.
with before as (
  select phase from perdure.service_callback where ns = :ns and job = :job
), saved as (
  insert into perdure.service_callback (ns, job, phase, result, error, updated_at) values (:ns, :job, 'ended', :result, :error, perdure.clock())
  on conflict (ns, job) do update set phase = 'ended', result = excluded.result, error = excluded.error, updated_at = perdure.clock()
    where service_callback.phase = 'waiting'
  returning phase
)
select (select phase from before) as before, exists (select from saved) as is_recorded;

-- name: ended_callbacks
select job, result, error from perdure.service_callback where ns = :ns and job = any(:jobs::text[]) and phase = 'ended';

-- name: close_callbacks
insert into perdure.service_callback (ns, job, phase, updated_at) select :ns, u.job, 'closed', perdure.clock() from unnest(:jobs::text[]) as u(job) order by u.job
on conflict (ns, job) do update set phase = 'closed', result = null, error = null, updated_at = perdure.clock();

-- name: delete_old_callbacks
delete from perdure.service_callback where ctid in (
  select ctid from perdure.service_callback where updated_at < perdure.clock() - make_interval(secs => :age_s) limit :limit) and phase <> 'waiting'
returning job;

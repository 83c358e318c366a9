-- API keys, the audit log, and namespaces as an administrator sees them.

-- name: find_api_key
-- By the public half. The database's clock says whether it has expired, and whether its use is worth writing down again.
select k.id, k.name, n.name as namespace, k.role, k.scopes, k.hash, k.rate_per_s,
       coalesce(k.expires_at <= now(), false) as expired,
       k.revoked_at is not null or (k.ns is not null and (n.id is null or n.deleted_at is not null)) as revoked,
       coalesce(k.last_used_at < now() - interval '1 minute', true) as use_is_stale
  from perdure.api_key k left join perdure.namespace n on n.id = k.ns
 where k.id = :id;

-- name: touch_api_key
-- At most once a minute, also when two requests come at once.
update perdure.api_key set last_used_at = now()
 where id = :id and (last_used_at is null or last_used_at < now() - interval '1 minute');

-- name: create_api_key
-- Without a namespace it is a key for all of them. No row: there is no such namespace.
with home as (
  select n.id from perdure.namespace n where n.name = :namespace and n.deleted_at is null
  union all
  select null where :namespace::text is null
)
insert into perdure.api_key (id, ns, name, role, scopes, hash, rate_per_s, expires_at, created_by)
select :id, h.id, :name, :role, :scopes::text[], :hash, :rate_per_s, now() + :lifetime_us::bigint * interval '1 microsecond', :created_by from home h
returning id, name, role, :namespace::text as namespace, scopes, rate_per_s, created_at, created_by, expires_at, revoked_at, last_used_at;

-- name: list_api_keys
select k.id, k.name, k.role, n.name as namespace, k.scopes, k.rate_per_s, k.created_at, k.created_by, k.expires_at, k.revoked_at,
       k.last_used_at
  from perdure.api_key k left join perdure.namespace n on n.id = k.ns
 where (:namespace::text is null or n.name = :namespace) and (:after_id::text is null or k.id > :after_id)
 order by k.id limit :limit;

-- name: revoke_api_key
-- The first revocation stands. A CTE, because its namespace is of interest in both cases.
with mine as (
  select k.id, n.name as namespace from perdure.api_key k left join perdure.namespace n on n.id = k.ns
   where k.id = :id and (:namespace::text is null or n.name = :namespace)
)
update perdure.api_key k set revoked_at = coalesce(k.revoked_at, now()) from mine where k.id = mine.id
returning k.id, k.name, k.role, mine.namespace, k.scopes, k.rate_per_s, k.created_at, k.created_by, k.expires_at, k.revoked_at,
          k.last_used_at;

-- name: append_audit
insert into perdure.audit (ns, actor, action, target, detail) values (:ns, :actor, :action, :target, :detail::text::jsonb);

-- name: append_audit_lines
-- Several, in their order.
insert into perdure.audit (ns, actor, action, target, detail)
select u.ns, u.actor, u.action, u.target, u.detail::jsonb
  from unnest(:lines.ns::int[], :lines.actor::text[], :lines.action::text[], :lines.target::text[], :lines.detail::text[]) with ordinality as u(ns, actor, action, target, detail, n)
 order by u.n;

-- name: page_audit
-- Newest first. Of `scan_limit` lines below the given id, those that match; the first row says how many were looked at, and the lowest.
-- A line's id is given a moment after its time, so the ids of a span of time are looked up with five minutes to spare.
with bounds as materialized (
  select least(:before_id::bigint, (select u.id from perdure.audit u where u.at >= :until::timestamptz + interval '5 minutes' order by u.at limit 1)) as high,
         (select s.id from perdure.audit s where s.at < :since::timestamptz - interval '5 minutes' order by s.at desc limit 1) as low
),
seen as materialized (
  select a.id, a.at, a.ns, a.actor, a.action, a.target, a.detail from perdure.audit a
   where (:namespace::text is null or a.ns = (select s.id from perdure.namespace s where s.name = :namespace))
     and a.id < coalesce((select high from bounds), 9223372036854775807) and a.id > coalesce((select low from bounds), 0)
   order by a.id desc limit :scan_limit
),
found as (
  select a.* from seen a
   where (:actor::text is null or a.actor = :actor or substr(a.actor, strpos(a.actor, ':') + 1) = :actor)
     and starts_with(a.action, :action::text) and (:target::text is null or a.target = :target)
     and (:since::timestamptz is null or a.at >= :since) and (:until::timestamptz is null or a.at < :until)
   order by a.id desc limit :limit
)
select w.scanned, w.low_id, a.id, a.at, n.name as namespace, a.actor, a.action, a.target, a.detail::text as detail
  from (select count(*) as scanned, min(s.id) as low_id from seen s) w
  left join found a on true left join perdure.namespace n on n.id = a.ns
 order by a.id desc;

-- name: open_namespace
-- A new one, or a deleted one again. No row: it is there already.
insert into perdure.namespace (name) values (:name)
on conflict (name) do update set deleted_at = null where namespace.deleted_at is not null
returning id;

-- name: close_namespace
-- Its rows stay, and every access is refused. No row: there is no such namespace.
update perdure.namespace set deleted_at = now() where name = :name and deleted_at is null returning id;

-- name: open_namespaces
select id, name, created_at, deleted_at from perdure.namespace where deleted_at is null order by name;

-- name: inspect_role
-- Whether a role has powers that no grant gives and no revoke takes: a superuser is a member of every role.
select r.rolsuper or r.rolcreaterole or r.rolcreatedb or r.rolreplication or exists (
         select from pg_class c where c.relnamespace = 'perdure'::regnamespace and c.relkind in ('r', 'p')
                                  and pg_has_role(r.oid, c.relowner, 'member')) as powerful
  from pg_roles r where r.rolname = :role;

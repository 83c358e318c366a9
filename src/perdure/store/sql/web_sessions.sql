-- Sessions of browsers, by the SHA-256 of their ids. The database's clock says when they end.

-- name: create_web_session
-- Of one subject the newest :most are kept. Expired ones of all subjects go, some at each sign-in.
with gone as (
  delete from perdure.web_session where hash in (
    (select s.hash from perdure.web_session s where s.subject = :subject order by s.created_at desc, s.hash offset :most::int - 1)
    union
    (select s.hash from perdure.web_session s where s.expires_at <= now() order by s.expires_at limit :trimmed))
)
insert into perdure.web_session (hash, subject, name, key_id, role, namespace, expires_at)
values (:hash, :subject, :name, :key_id, :role, :namespace, now() + :lifetime_s::float8 * interval '1 second')
returning expires_at;

-- name: find_web_session
select s.subject, s.name, s.key_id, s.role, s.namespace, s.expires_at,
       s.expires_at <= now() or s.used_at <= now() - :idle_s::float8 * interval '1 second' as has_ended,
       s.used_at <= now() - :touch_s::float8 * interval '1 second' as use_is_stale
  from perdure.web_session s where s.hash = :hash;

-- name: touch_web_session
-- Once, also when several requests come at once.
update perdure.web_session set used_at = now() where hash = :hash and used_at <= now() - :touch_s::float8 * interval '1 second';

-- name: delete_web_session
delete from perdure.web_session where hash = :hash returning subject;

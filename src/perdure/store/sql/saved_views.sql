-- Saved views: named queries that find runs.

-- name: save_view
-- No row: there are `most` of them already, and none of this name.
insert into perdure.saved_view (ns, name, query, updated_at, updated_by)
select :ns::int, :name::text, :query::text, perdure.clock(), :updated_by::text
 where (select count(*) from perdure.saved_view v where v.ns = :ns) < :most or exists(select from perdure.saved_view v where v.ns = :ns and v.name = :name)
on conflict (ns, name) do update set query = excluded.query, updated_at = excluded.updated_at, updated_by = excluded.updated_by
returning name, query, updated_at, updated_by;

-- name: list_views
select name, query, updated_at, updated_by from perdure.saved_view where ns = :ns and name > :after order by name limit :limit;

-- name: get_view
select name, query, updated_at, updated_by from perdure.saved_view where ns = :ns and name = :name;

-- name: delete_view
delete from perdure.saved_view where ns = :ns and name = :name returning name;

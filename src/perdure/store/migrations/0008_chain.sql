-- Tampering shows: a hash chain over each run's history and over the audit log, heads by which missing ends are noticed, and a note of
-- what retention has dropped.

-- The hash of a history row; core/chain.py computes the same. before and before_at are hash and time of the row before, for the first row
-- sixteen zero bytes and 1970.
create function perdure.chain(before bytea, before_at timestamptz, run_id uuid, ns int, seq int, last int, epoch int, body bytea) returns bytea
language sql immutable parallel safe
  return substr(sha256(before || int8send((extract(epoch from before_at) * 1000000)::bigint) || int4send(ns) || int4send(seq)
                       || int4send(last) || int4send(epoch) || uuid_send(run_id) || body), 1, 16);

alter table perdure.history add column hash bytea;

do $$
declare
  h record;
  run uuid;
  before bytea;
  before_at timestamptz;
begin
  for h in select x.run_id, x.seq, x.last, x.ns, x.epoch, x.at, x.body from perdure.history x order by x.run_id, x.seq loop
    if h.run_id is distinct from run then
      run := h.run_id;
      before := '\x00000000000000000000000000000000';
      before_at := to_timestamp(0);
    end if;
    before := perdure.chain(before, before_at, h.run_id, h.ns, h.seq, h.last, h.epoch, h.body);
    before_at := h.at;
    update perdure.history set hash = before where run_id = h.run_id and seq = h.seq;
  end loop;
end $$;
alter table perdure.history alter column hash set not null;

-- The last event of an ended run and the hash of its row. Those of an active run are as of when it was last let go; its history may be longer.
alter table perdure.run add column head bytea;
alter table perdure.run_queue add column events int, add column head bytea;
update perdure.run r set head = (select h.hash from perdure.history h where h.run_id = r.run_id order by h.seq desc limit 1);

-- The chain of the audit log. n counts its lines in the order in which their transactions committed; the head holds the last one.
create table perdure.audit_chain (
  n    bigint primary key,
  id   bigint not null unique,
  hash bytea not null
);
create table perdure.audit_head (
  one  boolean primary key default true check (one),
  n    bigint not null,
  hash bytea not null
);
insert into perdure.audit_head (n, hash) values (0, '\x0000000000000000000000000000000000000000000000000000000000000000');

create function perdure.audit_text(line perdure.audit) returns bytea language sql stable parallel safe
  return convert_to(jsonb_build_array(line.id, (extract(epoch from line.at) * 1000000)::bigint, line.ns, line.actor, line.action, line.target,
                                      line.detail)::text, 'UTF8');
create function perdure.audit_hash(before bytea, line perdure.audit) returns bytea language sql stable parallel safe
  return sha256(before || perdure.audit_text(line));

-- At the end of the transaction, so that the head is locked last and only for the moment of the commit: no two writers of the log wait
-- for each other crosswise. The first line chains all of the transaction: what is visible and has no place in the chain is its own,
-- because others write line and place in one commit. Definer's rights: writers of the log may not touch its chain.
create function perdure.chain_audit() returns trigger language plpgsql security definer set search_path = pg_catalog, perdure, pg_temp as $$
declare
  head perdure.audit_head;
  ids bigint[];
  texts bytea[];
  one bytea;
  hashes bytea[];
begin
  if exists (select from perdure.audit_chain c where c.id = new.id) then
    return null;
  end if;
  select * into head from perdure.audit_head for update;
  select array_agg(a.id order by a.id), array_agg(perdure.audit_text(a) order by a.id) into ids, texts
    from perdure.audit a where a.id >= new.id and not exists (select from perdure.audit_chain c where c.id = a.id);
  foreach one in array texts loop
    head.hash := sha256(head.hash || one);
    hashes := hashes || head.hash;
  end loop;
  insert into perdure.audit_chain (n, id, hash) select head.n + u.i, u.id, u.hash from unnest(ids, hashes) with ordinality as u(id, hash, i);
  update perdure.audit_head set n = head.n + cardinality(ids), hash = head.hash;
  return null;
end $$;
create constraint trigger audit_chained after insert on perdure.audit deferrable initially deferred
  for each row execute function perdure.chain_audit();

do $$
declare
  line perdure.audit;
  made perdure.audit_head;
begin
  for line in select * from perdure.audit a order by a.id loop
    update perdure.audit_head h set n = h.n + 1, hash = perdure.audit_hash(h.hash, line) returning h.* into made;
    insert into perdure.audit_chain (n, id, hash) values (made.n, line.id, made.hash);
  end loop;
end $$;

create trigger audit_chain_append_only before update or delete or truncate on perdure.audit_chain
  for each statement execute function perdure.refuse_change();

-- What retention has dropped: ids of this table below `below` may be gone.
create table perdure.retention (
  parent     text primary key,
  below      uuid not null,
  dropped_at timestamptz not null
);

-- As before, and it notes what it dropped.
create or replace function perdure.drop_partition(parent text, name text) returns boolean
language plpgsql security definer set search_path = pg_catalog, perdure, pg_temp set lock_timeout = '5s' as $$
declare
  ended constant timestamptz := perdure.partition_day(parent, name) + interval '24 hours';
  active uuid[];
begin
  if ended > now() then
    raise exception 'the day of % is not over', name using errcode = 'invalid_parameter_value';
  end if;
  if not pg_try_advisory_xact_lock(hashtext('perdure.partitions'))
     or not exists (select from pg_inherits i where i.inhparent = format('perdure.%I', parent)::regclass
                       and i.inhrelid = to_regclass(format('perdure.%I', name))) then
    return false;
  end if;
  execute format('alter table perdure.%I detach partition perdure.%I', parent, name);
  select array_agg(q.run_id) into active from perdure.run_queue q where q.run_id < perdure.first_id(ended);
  if active is not null then
    execute format('insert into perdure.%I select p.* from perdure.%I p where p.run_id = any($1)', parent, name) using active;
  end if;
  execute format('drop table perdure.%I', name);
  insert into perdure.retention as r (parent, below, dropped_at) values (drop_partition.parent, perdure.first_id(ended), now())
  on conflict on constraint retention_pkey do update set below = greatest(r.below, excluded.below), dropped_at = excluded.dropped_at;
  return true;
end $$;

revoke execute on function perdure.chain_audit() from public;

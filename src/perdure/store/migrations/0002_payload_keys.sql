-- Data keys of encrypted user data, wrapped by a master key that is not in the database; see docs/adr/0023.
-- needs: 0001

-- The newest one seals, all of them open. A row that is gone makes what it sealed unreadable for ever.
create table perdure.payload_key (
  id           int generated always as identity primary key,
  master       text not null,
  wrapped      bytea not null,
  created_at   timestamptz not null default now(),
  rewrapped_at timestamptz
);
comment on column perdure.payload_key.master is 'the master key that wrapped it, by its id';
comment on column perdure.payload_key.rewrapped_at is 'when another master key last took the place of the one before';

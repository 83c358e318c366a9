#!/bin/sh
# Before Perdure's schema exists, as the database's superuser, whom nothing else uses: the owner, who migrates, and the login of servers, who may
# read and write rows and change nothing else. `perdure migrate --roles` grants the groups what they need.
psql -v ON_ERROR_STOP=1 --username "$POSTGRES_USER" --dbname "$POSTGRES_DB" \
  -v owner_password="$OWNER_PASSWORD" -v server_password="$SERVER_PASSWORD" <<'SQL'
create role perdure_engine nologin;
create role perdure_reader nologin;
create role perdure_caller nologin;
create role perdure_owner login password :'owner_password';
create role perdure_server login password :'server_password' in role perdure_engine;
revoke all on database perdure from public;
grant connect, create, temporary on database perdure to perdure_owner;
grant connect on database perdure to perdure_engine, perdure_reader, perdure_caller;
SQL

#!/bin/sh
# What compose.yaml uses of the entry point of PostgreSQL's official image.
set -eu
export PGDATA=/var/lib/postgresql/data PATH=$(echo /usr/lib/postgresql/*/bin):$PATH POSTGRES_USER=${POSTGRES_USER:-postgres}
if [ "$(id -u)" = 0 ]; then
  mkdir -p $PGDATA /var/run/postgresql; chown -R postgres $PGDATA /var/run/postgresql; chmod 700 $PGDATA
  exec setpriv --reuid=postgres --regid=postgres --clear-groups "$0" "$@"
fi
if [ ! -s $PGDATA/PG_VERSION ]; then
  printf %s "$POSTGRES_PASSWORD" > /tmp/password
  initdb --username="$POSTGRES_USER" --pwfile=/tmp/password --auth-host=scram-sha-256 --auth-local=trust
  rm /tmp/password
  echo "host all all all scram-sha-256" >> $PGDATA/pg_hba.conf
  pg_ctl -w start -o "-c listen_addresses=''"
  createdb -U "$POSTGRES_USER" "$POSTGRES_DB"
  for file in /docker-entrypoint-initdb.d/*.sh; do sh "$file"; done
  pg_ctl -w stop -m fast
fi
exec postgres -c listen_addresses="*" -c jit=off

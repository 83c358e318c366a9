#!/bin/sh
# The schema and the rights, with the owner's role; then an API key for the workers and one for you. Changes nothing the second time.
set -eu
# For programs that start this before PostgreSQL is healthy, as podman-compose does with Podman before 4.6.
python - <<'PYTHON'
import socket, time

for _ in range(120):
    try:
        socket.create_connection(("postgres", 5432), 2).close()
        break
    except OSError:
        time.sleep(0.5)
PYTHON

perdure migrate --roles
umask 022  # both files are read by the image's user, each in a volume of its own
for role in worker admin; do
  if [ ! -s "/keys/$role/key" ]; then
    perdure api-key create --name "compose-$role" --role "$role" > "/keys/$role/new"
    mv "/keys/$role/new" "/keys/$role/key"
  fi
done
echo "Sign in on ${PERDURE_PUBLIC_URL:-http://localhost:8600} with the API key $(cat /keys/admin/key)"

#!/bin/sh
# Once per database: schema and rights with the owner's role, then one API key for the workers and one for people.
set -eu
perdure migrate --roles --dsn "$OWNER_DSN"
if [ ! -s /keys/worker ]; then
  perdure api-key create --name compose-worker --role worker --dsn "$OWNER_DSN" -o json | python -c 'import json, sys; print(json.load(sys.stdin)["key"])' > /keys/worker
  perdure api-key create --name compose-admin --role admin --dsn "$OWNER_DSN" -o json | python -c 'import json, sys; print(json.load(sys.stdin)["key"])' > /keys/admin
fi
echo "Sign in on http://localhost:8600 with the API key $(cat /keys/admin)"

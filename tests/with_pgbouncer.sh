#!/usr/bin/env bash
# Runs a command with TEST_PGBOUNCER naming host and port of a PgBouncer in transaction mode, in front of the Postgres
# that TEST_DATABASE_URL names, where the role is a superuser; and ends it afterwards.
# usage: with_system_postgres.sh with_pgbouncer.sh COMMAND [ARGUMENT...]
set -euo pipefail

if ! command -v pgbouncer >/dev/null; then
  echo '*** SKIPPED: there is no pgbouncer, so nothing was tested behind it. ***' >&2
  exit 0
fi

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
postgres_port=$(python3 -c 'import os; from urllib.parse import urlsplit; print(urlsplit(os.environ["TEST_DATABASE_URL"]).port)')

# Roles come and go in the tests, so that both let in whoever says who he is: nobody else reaches this server.
query() { psql --no-psqlrc --quiet --tuples-only --no-align "$TEST_DATABASE_URL" --command "$1"; }
sed -i 's/scram-sha-256/trust/' "$(query 'show hba_file')"
query 'select pg_reload_conf()' >/dev/null

cat >"$folder/pgbouncer.ini" <<INI
[databases]
* = host=127.0.0.1 port=$postgres_port

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = $port
unix_socket_dir =
pool_mode = transaction
auth_type = trust
auth_user = postgres
auth_query = select usename, passwd from pg_shadow where usename = \$1
auth_file = $folder/users
# More clients than sessions, so that each transaction may get another one.
default_pool_size = 5
max_client_conn = 500
max_db_connections = 5
logfile = $folder/log
INI
echo '"postgres" ""' >"$folder/users"

# PgBouncer refuses to run as root as well.
as_owner=()
if [ "$(id -u)" = 0 ]; then
  chown -R postgres: "$folder"
  as_owner=(setpriv --reuid=postgres --regid=postgres --clear-groups --)
fi
"${as_owner[@]}" pgbouncer --quiet "$folder/pgbouncer.ini" &
bouncer=$!
trap 'kill "$bouncer"; wait "$bouncer" || true; rm -rf "$folder"' EXIT

for _ in $(seq 100); do
  if psql --no-psqlrc --quiet "postgresql://postgres@127.0.0.1:$port/postgres" --command 'select 1' >/dev/null 2>&1; then
    TEST_PGBOUNCER="127.0.0.1:$port" "$@"
    exit
  fi
  sleep 0.1
done
cat "$folder/log" >&2
exit 1

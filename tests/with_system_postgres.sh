#!/usr/bin/env bash
# Runs a command with TEST_DATABASE_URL naming a fresh server of the machine's own PostgreSQL, and removes it afterwards.
# usage: with_system_postgres.sh COMMAND [ARGUMENT...]
set -euo pipefail

binaries=$(find /usr/lib/postgresql -mindepth 2 -maxdepth 2 -name bin 2>/dev/null | sort -V | tail -n 1)
if [ -z "$binaries" ]; then
  echo '*** SKIPPED: no PostgreSQL under /usr/lib/postgresql, so nothing was tested on it. ***' >&2
  exit 0
fi

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
password=$(python3 -c 'import secrets; print(secrets.token_hex(16))')
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
echo "$password" >"$folder/password"

# PostgreSQL refuses to run as root: Debian's package brings the user that it runs as.
as_owner() { "$@"; }
if [ "$(id -u)" = 0 ]; then
  chown -R postgres: "$folder"
  as_owner() { setpriv --reuid=postgres --regid=postgres --clear-groups -- "$@"; }
fi

cd "$folder"
as_owner "$binaries/initdb" --pgdata=data --username=postgres --pwfile=password --auth=scram-sha-256 \
  --encoding=UTF8 --locale=C --no-sync >/dev/null
as_owner "$binaries/pg_ctl" --pgdata=data --silent --wait --log=log \
  --options="-p $port -c listen_addresses=127.0.0.1 -c unix_socket_directories='' -c fsync=off" start
trap 'as_owner "$binaries/pg_ctl" --pgdata="$folder/data" --silent --mode=immediate stop; rm -rf "$folder"' EXIT
cd "$OLDPWD"

"$binaries/postgres" --version
TEST_DATABASE_URL="postgresql://postgres:$password@127.0.0.1:$port/postgres" "$@"

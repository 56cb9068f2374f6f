#!/bin/sh
# Run once by the Postgres image, as its superuser, when the data directory is created. Flyball gets
# a role that owns its database and is no superuser, so no job can read files of the database host.
# The superuser loses its password and is then reachable only inside the container (docker compose
# exec postgres psql -U postgres).
set -eu
psql --no-psqlrc --set ON_ERROR_STOP=1 --username "${POSTGRES_USER:-postgres}" --dbname postgres --set password="${FLYBALL_DATABASE_PASSWORD:?}" <<'SQL'
create role flyball login nosuperuser nocreatedb nocreaterole password :'password';
create database flyball owner flyball;
alter role current_user password null;
SQL

#!/bin/sh
# Run once by the image of Postgres, as its superuser, when the data directory is made. Flyball gets a role that owns its database and
# is no superuser, so that no job reads files of the database's host. The superuser loses its password: it can be reached from inside
# the container only (docker compose exec postgres psql -U postgres).
set -eu
psql --no-psqlrc --set ON_ERROR_STOP=1 --username "${POSTGRES_USER:-postgres}" --dbname postgres --set password="${FLYBALL_DATABASE_PASSWORD:?}" <<'SQL'
create role flyball login nosuperuser nocreatedb nocreaterole password :'password';
create database flyball owner flyball;
alter role current_user password null;
SQL

//! Recipients in Postgres.

mod profiles;

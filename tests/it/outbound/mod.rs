//! The kind `http`.

mod connections;
mod guard;
mod outcomes;
mod server;
mod signing_rights;

//! The HTTP API of a running process.

mod api_limits;
mod api_throttles;
mod enqueue;
mod gates;
mod history;
mod hostile_clients;
mod issuer;
mod jobs;
mod jwks;
mod jwt;
mod limits;
mod notifications;
mod openapi;
mod openapi_bodies;
mod operate;
mod process;
mod server;
mod standing_still;
mod stream;
mod tenants;
mod tenants_fixture;
mod tenants_own;
mod throttles;
mod tokens;
mod tokens_fixture;
mod tokens_for_programs;

//! The HTTP API of a running process.

mod http;
mod limits;
mod notifications;
mod openapi;
mod openapi_bodies;
mod operate;
mod standing_still;
mod strangers;
mod tokens;

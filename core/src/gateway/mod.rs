//! The gateway: messages to connections that are open now.
//!
//! A message is published in a transaction of Postgres and waits there until its tenant's limit
//! admits it. A collector gives it its offset in the channel's history and notifies all gateways;
//! each reads the history from where it stood and hands the message to its own subscribers. A
//! reader that is too slow is fed from the history at its own pace, so neither a publisher nor
//! another reader ever waits for it.
//!
//! This room knows channels, subscriptions, frames and limits. The protocol of the socket is in
//! `api/gateway`.

mod admitting;
pub mod ask_pace;
mod batches;
pub mod channel_name;
pub mod client_frame;
pub mod close;
pub mod collect_round;
mod collecting;
pub mod connection_counts;
pub mod history_end;
pub mod hub;
pub mod join_point;
pub mod limits;
pub mod metrics;
mod notifications;
pub mod outbox;
pub mod pace;
pub mod postgres;
pub mod rates;
pub mod reading;
mod renewing;
pub mod server_frame;
pub mod service;
pub mod subscription;
mod tenant_mark;
mod turns;
mod window_lease;

//! Delivery of one message: the handler of the kind `notification`.
//!
//! `handler` reads the record and begins an attempt (`run`); `send` tries the accounts of the
//! pool, and `judge` turns the answer of each into an outcome; `postpone` lets a message wait, or
//! ends it at its deadline; `check` asks the drivers before a job is made. `services` holds the
//! pools and the record.

mod check;
mod handler;
mod judge;
mod postpone;
mod run;
mod send;
mod services;
mod shared_settings;

pub use handler::NotificationHandler;
pub use services::{DeliveryServices, PoolHandle};

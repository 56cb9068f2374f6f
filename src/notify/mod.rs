//! Notifications: the outcome of each message, the events that its provider reports later, and the
//! recipients that are suppressed.
//!
//! [`crate::providers`] sends the messages; the queue decides which jobs run when.

pub mod alarm_postgres;
pub mod args;
pub mod deliver;
pub mod keep;
pub mod metrics;
pub mod notification;
pub mod patience;
pub mod postgres;
pub mod recipient;
pub mod record;
pub mod state;
pub mod watch;

pub use alarm_postgres::{ALERTS, AccountEvent, Alarms};
pub use deliver::{Carrier, Means, NotificationHandler};
pub use keep::keep;
pub use notification::{
    DeliveryAttempt, Notification, NotificationFilter, NotificationPage, Suppression,
};
pub use postgres::Deliveries;
pub use record::{Asked, Attempt, Begun, Met, Notice, Swept, Written};
pub use state::DeliveryState;
pub use watch::{tell_changes, watch};

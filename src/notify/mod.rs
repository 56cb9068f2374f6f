//! Notifications: what became of each message, what its provider tells afterwards, and to whom nothing goes any more.
//!
//! How a message is sent is the business of [`crate::providers`]; which jobs run when is the queue's.

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
pub use notification::{DeliveryAttempt, Notification, NotificationFilter, NotificationPage, Suppression};
pub use postgres::Deliveries;
pub use record::{Asked, Attempt, Begun, Met, Notice, Swept, Written};
pub use state::DeliveryState;
pub use watch::{tell_changes, watch};

//! Notifications: what became of each message, what its provider tells afterwards, and to whom nothing goes any more.
//!
//! How a message is sent is the business of [`crate::providers`]; which jobs run when is the queue's.

mod keep;
pub mod metrics;
pub mod notification;
pub mod recipient;
pub mod record;
pub mod state;

pub mod postgres;

pub use keep::keep;
pub use notification::{DeliveryAttempt, Notification, NotificationFilter, NotificationPage, Suppression};
pub use postgres::Deliveries;
pub use record::{Asked, Attempt, Begun, Notice, Swept, Written};
pub use state::DeliveryState;

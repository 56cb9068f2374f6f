//! Notifications: the outcome of each message, the events that its provider reports later, and the
//! recipients that are suppressed.
//!
//! [`crate::providers`] sends the messages; the queue decides which jobs run when.

pub mod alarm_postgres;
pub mod args;
pub mod deliver;
pub mod maintenance;
pub mod metrics;
pub mod notification;
pub mod postgres;
pub mod recipient;
pub mod recipient_backoff;
pub mod record;
pub mod state;
pub mod watch;

pub use alarm_postgres::{ALERTS, AccountEvent, Alarms};
pub use deliver::{DeliveryServices, NotificationHandler, PoolHandle};
pub use maintenance::maintain;
pub use notification::{
    DeliveryAttempt, Notification, NotificationFilter, NotificationPage, Suppression,
    TenantFeedback,
};
pub use postgres::Deliveries;
pub use record::{
    Attempt, BatchStatus, BeginRequest, BegunDelivery, DeliveryUpdate, EventReport,
    RecipientResult, StepResult,
};
pub use state::DeliveryState;
pub use watch::{publish_changes, watch};

//! Messages to people, for programs that read what became of them and manage suppressions.
//!
//! [`Deliveries`] opens the record of messages: [`Deliveries::find`] one of them,
//! [`Deliveries::page`] many, [`Deliveries::suppress`], [`Deliveries::unsuppress`],
//! [`Deliveries::suppression`] and [`Deliveries::suppressions`] for recipients that get none.
//!
//! ```no_run
//! # use flyball_core as flyball;
//! use flyball::jobs::{Attribution, Queue};
//! use flyball::messages::{Channel, Deliveries, Recipient};
//!
//! # async fn stop(pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
//! let queue = Queue::new(pool);
//! let deliveries = Deliveries::new(&queue.pool);
//! let ada = Recipient::parse(Channel::Email, "ada@example.com")?;
//! let signed = Attribution {
//!     by: "crm".to_owned(),
//!     why: "asked for it".to_owned(),
//!     ..Attribution::default()
//! };
//! deliveries.suppress(&ada, &signed).await?;
//! assert!(deliveries.suppression(&ada).await?.is_some());
//! # Ok(())
//! # }
//! ```
//!
//! Messages are sent as jobs, with [`NewMessage`](crate::jobs::NewMessage) or over HTTP.

pub use crate::notify::{
    AccountEvent, Alarms, Deliveries, DeliveryAttempt, DeliveryState, Notification,
    NotificationFilter, NotificationPage, Suppression,
};
pub use crate::providers::pool::{AccountView, Flow, PoolView};
pub use crate::providers::{Channel, Recipient};

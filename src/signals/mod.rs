//! Signals: what is measured, and whether a measurement may be believed.
//!
//! A reading always carries the time of the *sample*, not of the question. Absent, not a number, infinite, negative, old or
//! partial is **no reading**, never zero: an empty answer that counts as "no load" is the most repeated production
//! complaint of systems like this one. This room fetches and judges; what follows from a reading is
//! [`crate::governor`]'s business.

pub mod complaints;
pub mod complaints_postgres;
pub mod depth;
pub mod direct;
pub mod exposition;
pub mod feedback;
pub mod postgres;
pub mod probe;
pub mod prometheus;
pub mod promql;
pub mod range;
pub mod reading;
pub mod scripted;
pub mod series;
pub mod server;

pub use complaints::{ComplaintSource, Complaints, no_complaints};
pub use depth::{Depth, DepthSource, no_depth};
pub use direct::{Direct, Target};
pub use feedback::{Feedback, FeedbackSource, Meter, Told, no_feedback};
pub use postgres::Database;
pub use probe::Probe;
pub use prometheus::Prometheus;
pub use reading::{Missing, Reading};
pub use scripted::Scripted;

/// Why there is no reading.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Error {
    /// The address cannot be used.
    #[error("signal address {url:?} is not allowed: {reason}; use http://host:port or https://host:port")]
    Address {
        /// The address as given.
        url: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A source that the settings name cannot be used, or none of that name is set.
    #[error("{what} {name:?} cannot be used: {reason}")]
    Source {
        /// What it is.
        what: &'static str,
        /// Its name in the settings.
        name: String,
        /// What is wrong.
        reason: String,
    },
    /// The workers' own counters cannot be read.
    #[error("how this throttle's jobs ended cannot be read")]
    Unheard,
    /// Nobody answered there.
    #[error("{url} cannot be reached: {reason}")]
    Unreachable {
        /// The address.
        url: String,
        /// The network's own words.
        reason: String,
    },
    /// No answer came in time.
    #[error("{url} did not answer within {within_ms} ms")]
    TimedOut {
        /// The address.
        url: String,
        /// The time allowed.
        within_ms: u128,
    },
    /// The server understood and refused: the query itself is wrong.
    #[error("query {query:?} was refused: {message}")]
    BadQuery {
        /// The query.
        query: String,
        /// The server's own words.
        message: String,
    },
    /// The server answered with an error that is not about the query.
    #[error("{url} answered with status {status}: {message}")]
    Refused {
        /// The address.
        url: String,
        /// The HTTP status.
        status: u16,
        /// The start of the body.
        message: String,
    },
    /// The answer covers only a part of what was asked for, so it may hide the load.
    #[error("query {query:?} was answered in part only: {warnings}")]
    Partial {
        /// The query.
        query: String,
        /// The server's warnings.
        warnings: String,
    },
    /// The answer is not in the form that was promised.
    #[error("{url} answered in a form that cannot be read: {reason}")]
    Garbled {
        /// The address.
        url: String,
        /// What was expected.
        reason: String,
    },
    /// The answer was understood and holds no usable value.
    #[error("{0}")]
    Missing(#[from] Missing),
}

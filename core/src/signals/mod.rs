//! Signals: measurements, and checks of their validity.
//!
//! A reading always carries the time of the *sample*, not of the query. A value that is absent, not
//! a number, infinite, negative, old or partial is **no reading**, never zero: an empty answer that
//! counts as "no load" is the most repeated production complaint about systems like this one. This
//! room fetches and judges; the governor acts on the readings.

pub mod complaints;
pub mod complaints_postgres;
pub mod depth;
pub mod direct;
pub mod elasticsearch;
pub mod exposition;
pub mod feedback;
pub mod figure;
#[cfg(feature = "mongodb")]
pub mod mongodb;
pub mod own_database;
pub mod postgres;
pub mod probe;
pub mod prometheus;
pub mod promql;
pub mod range;
pub mod reading;
pub mod scripted;
pub mod series;
pub mod server;

mod increase;

pub use complaints::{ComplaintSource, Complaints, no_complaints};
pub use depth::{Depth, DepthSource, no_depth};
pub use direct::{Direct, Target};
pub use feedback::{Feedback, FeedbackMeter, FeedbackSource, WorkerFeedback, no_feedback};
pub use postgres::SignalDatabase;
pub use probe::HttpProbe;
pub use prometheus::Prometheus;
pub use reading::{Missing, Reading};
pub use scripted::Scripted;

/// The reason for a missing reading.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Error {
    /// The address cannot be used.
    #[error(
        "signal address {url:?} is not allowed: {reason}; use http://host:port or https://host:port"
    )]
    Address {
        /// The address as given.
        url: String,
        /// The fault of the address.
        reason: String,
    },
    /// A source that the settings name cannot be used, or none of that name is set.
    #[error("{what} {name:?} cannot be used: {reason}")]
    Source {
        /// The type of the source.
        what: &'static str,
        /// Its name in the settings.
        name: String,
        reason: String,
    },
    /// The throttle or the pool that the signal names does not exist.
    #[error("there is no {what} {name:?}, which the signal's query names")]
    Unknown {
        /// The word for it.
        what: &'static str,
        name: String,
    },
    /// Nobody has counted the jobs of the queues yet.
    #[error("the jobs of the queues have not been counted yet; processes that run jobs count them")]
    NotCounted,
    /// The workers' own counters cannot be read.
    #[error("reading the outcomes of this throttle's jobs failed")]
    NoFeedback,
    /// The server cannot be reached.
    #[error("{url} cannot be reached: {reason}")]
    Unreachable {
        url: String,
        /// The network error.
        reason: String,
    },
    /// No answer came in time.
    #[error("{url} did not answer within {within_ms} ms")]
    TimedOut {
        url: String,
        /// The time limit, in milliseconds.
        within_ms: u128,
    },
    /// The server refused the query as invalid.
    #[error("query {query:?} was refused: {message}")]
    BadQuery {
        query: String,
        /// The server's error message.
        message: String,
    },
    /// The server answered with an error that is not about the query.
    #[error("{url} answered with status {status}: {message}")]
    Refused {
        /// The address that answered.
        url: String,
        /// The HTTP status code.
        status: u16,
        /// The start of the body.
        message: String,
    },
    /// The answer covers only a part of the query's data, so it may hide the load.
    #[error("query {query:?} returned a partial answer: {warnings}")]
    Partial {
        /// The query that was answered in part.
        query: String,
        /// The server's warnings, joined by semicolons.
        warnings: String,
    },
    /// The server does not count the usual number of a selector's series, so that a missing one
    /// would not be noticed.
    #[error(
        "{error}, when it was asked for the usual number of series over two hours, which series_min \
         replaces"
    )]
    Uncounted {
        /// The error of that query.
        error: Box<Error>,
    },
    /// The answer has an unexpected form.
    #[error("{url} returned an answer that cannot be parsed: {reason}")]
    Garbled {
        url: String,
        /// The defect of the answer.
        reason: String,
    },
    /// The answer is valid but holds no usable value.
    #[error("{0}")]
    Missing(#[from] Missing),
}

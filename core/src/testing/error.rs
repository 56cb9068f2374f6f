//! Errors of a test's queue.

use crate::jobs;

/// An error of a test's queue.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The queue store failed.
    #[error(transparent)]
    Queue(#[from] jobs::Error),
    /// The schema could not be brought up to date.
    #[error("migrating the schema failed: {0}")]
    Migrate(String),
    /// The job cannot be enqueued.
    #[error("{field}: {message}")]
    Refused {
        /// The name of the field.
        field: String,
        /// The problem, and the allowed values.
        message: String,
    },
    /// The jobs enqueue each other, or are snoozed, for ever.
    #[error("{0} attempts ran and more are due; check that the jobs end")]
    Endless(usize),
    /// The arguments of a job do not fit the requested type.
    #[error("the arguments {args} are not of this type: args{pointer}: {message}")]
    Type {
        /// The arguments of the job.
        args: serde_json::Value,
        /// The JSON pointer to the mismatch.
        pointer: String,
        /// The reason of the mismatch.
        message: String,
    },
}

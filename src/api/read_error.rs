//! Errors of reads from Postgres.

/// The reason for which something could not be read from Postgres.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// Postgres does not answer.
    #[error("postgres did not answer: {0}")]
    Lost(String),
    /// Any other error of Postgres.
    #[error("postgres failed: {0}")]
    Failed(String),
}

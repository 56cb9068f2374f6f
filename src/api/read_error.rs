//! Errors of reads from the stores.

use crate::{jobs, throttle};

/// The reason for which something could not be read from the stores.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// Postgres does not answer.
    #[error("Postgres did not answer: {0}")]
    Lost(String),
    /// Any other error of Postgres.
    #[error("Postgres failed: {0}")]
    Failed(String),
    /// Redis does not answer.
    #[error("Redis did not answer: {0}")]
    ThrottlesLost(String),
}

impl From<jobs::Error> for ReadError {
    fn from(error: jobs::Error) -> Self {
        match error {
            jobs::Error::Lost(reason) => Self::Lost(reason),
            error => Self::Failed(error.to_string()),
        }
    }
}

impl From<throttle::Error> for ReadError {
    fn from(error: throttle::Error) -> Self {
        match error {
            throttle::Error::Lost(reason) => Self::ThrottlesLost(reason),
            error => Self::Failed(error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_that_is_away_is_no_defect() {
        let error = ReadError::from(jobs::Error::Lost("refused".to_owned()));
        assert!(matches!(error, ReadError::Lost(_)), "{error}");
        let error = ReadError::from(throttle::Error::Lost("refused".to_owned()));
        assert!(matches!(error, ReadError::ThrottlesLost(_)), "{error}");
    }
}

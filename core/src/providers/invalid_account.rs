//! The error for a setting that a driver cannot use.

/// A setting that the driver cannot use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} {message}")]
pub struct InvalidAccount {
    /// The key of the setting.
    pub field: String,
    /// The problem and the allowed values, without the value of a credential.
    pub message: String,
}

/// Builds the error for an unusable setting.
pub(super) fn refused(field: &str, message: impl Into<String>) -> InvalidAccount {
    InvalidAccount {
        field: field.to_owned(),
        message: message.into(),
    }
}

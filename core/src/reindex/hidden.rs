//! Secrets, read from their location when they are needed, named in no error, and sent nowhere but
//! where they belong.

use super::catalogue::SecretLocation;
use super::sink::WriteError;
use super::sink_args::ORIGINS;
use crate::outbound::origins::is_among;

/// Reads the secret's text.
pub(super) fn read(secret: &SecretLocation) -> Result<String, String> {
    let missing = || {
        format!(
            "{} is missing or empty on this worker",
            describe_secret(secret)
        )
    };
    let text = match secret {
        SecretLocation::Variable(name) | SecretLocation::Bound(name) => {
            std::env::var(name).map_err(|_| missing())?
        }
        SecretLocation::File(path) => std::fs::read_to_string(path).map_err(|_| missing())?,
    };
    let text = text.trim();
    if text.is_empty() {
        Err(missing())
    } else {
        Ok(text.to_owned())
    }
}

/// Reads the text for the `authorization` header of requests to `url`.
///
/// A variable that a job has named is sent only to the origins that its second variable lists.
pub(super) fn authorization(secret: &SecretLocation, url: &str) -> Result<String, WriteError> {
    if let SecretLocation::Bound(name) = secret {
        let list = format!("{name}{ORIGINS}");
        let origins = std::env::var(&list).unwrap_or_default();
        if !is_among(url, &origins) {
            return Err(WriteError::Wrong(format!(
                "the variable {name} may not be sent there: {list} must have the address's origin, such as \
                 https://search.example.com:9200 (several with commas between them)"
            )));
        }
    }
    read(secret).map_err(WriteError::Lost)
}

/// Returns a secret's location, for messages.
pub(super) fn describe_secret(secret: &SecretLocation) -> String {
    match secret {
        SecretLocation::Variable(name) | SecretLocation::Bound(name) => {
            format!("the environment variable {name}")
        }
        SecretLocation::File(path) => format!("the file {path}"),
    }
}

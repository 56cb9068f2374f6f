//! The keys of secret arguments, from the environment.

use crate::config;
use crate::jobs::SecretKeys;
use crate::jobs::secret::{FILE_VARIABLE, VARIABLE};

/// Reads the keys; without the variables there are none.
pub(crate) fn secret_keys() -> anyhow::Result<SecretKeys> {
    let variable = |name: &'static str| match std::env::var(name) {
        Ok(value) => Ok(Some(value)),
        Err(std::env::VarError::NotPresent) => Ok(None),
        Err(std::env::VarError::NotUnicode(_)) => {
            Err(config::Error::at(name, "is not UTF-8 text".to_owned()))
        }
    };
    let (keys, file) = (variable(VARIABLE)?, variable(FILE_VARIABLE)?);
    let read = |path: &str| std::fs::read_to_string(path);
    SecretKeys::from_variables(keys.as_deref(), file.as_deref(), read)
        .map_err(|error| config::Error::at(error.variable, error.message).into())
}

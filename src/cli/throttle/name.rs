//! Names of throttles on the command line.

use std::sync::Arc;

use anyhow::bail;

use crate::cli::exit::CliError;
use crate::throttle::{Error, Name, Store};

/// Returns the name of a throttle, which must exist and be no pattern.
pub(super) async fn known(store: &Arc<dyn Store>, name: &str) -> anyhow::Result<Name> {
    let name = of_one(name)?;
    match store.status(&name).await? {
        Some(_) => Ok(name),
        None => bail!(Error::Unknown(name)),
    }
}

/// Returns the name of a throttle, which must be no pattern.
pub(super) fn of_one(name: &str) -> anyhow::Result<Name> {
    let name = Name::or_pattern(name)?;
    if name.is_pattern() {
        bail!(CliError::Refused(format!(
            "{name} is a pattern, which has no tokens and no keys; allowed: the name of one throttle, such as one that was made from it"
        )));
    }
    Ok(name)
}

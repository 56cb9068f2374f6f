//! Names of throttles on the command line.

use std::sync::Arc;

use anyhow::bail;

use crate::throttle::{Error, Name, Store};

/// Returns the name of a throttle, which must exist.
pub(super) async fn known(store: &Arc<dyn Store>, name: &str) -> anyhow::Result<Name> {
    let name = Name::or_pattern(name)?;
    match store.status(&name).await? {
        Some(_) => Ok(name),
        None => bail!(Error::Unknown(name)),
    }
}

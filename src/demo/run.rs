//! The interface between the demo and the application that it shows, with all glue to the rest of
//! Flyball.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use futures_util::future::BoxFuture;

use crate::config::ReindexSettings;
use crate::jobs::Queue;
use crate::{stack, throttle};

/// The settings of the application: all roles (api, runner, governor) in this process, with its
/// defaults otherwise.
#[derive(Clone, Debug)]
pub struct AppSettings {
    /// The URL of Postgres, which is not migrated yet.
    pub database_url: String,
    pub redis_url: String,
    pub prometheus_url: String,
    /// The address on which the API listens.
    pub listen: String,
    /// The directory of the knobs files, which holds the demo's own copies.
    pub knobs_dir: PathBuf,
    /// The pools of accounts, in the form of the settings file.
    pub pools: BTreeMap<String, toml::Table>,
    /// The sources and sinks of reindexing, in the form of the settings file.
    pub reindex: ReindexSettings,
}

/// A running application, as started for [`super::run`].
pub struct AppHandle {
    /// Base address of the API and the dashboard, e.g. `http://127.0.0.1:8080`.
    pub url: String,
    /// The queue, migrated.
    pub queue: Queue,
    /// The throttles, seeded from the knobs files where they were absent.
    pub throttles: Arc<dyn throttle::Store>,
    /// A future that stops the application gracefully, awaited when the demo ends.
    ///
    /// Its grace time should be about a second, because a reindex runs for as long as it may.
    pub stop: BoxFuture<'static, ()>,
}

/// A missing installation, with one line on the remedy; commands exit with 69.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unavailable(pub String);

/// Converts an error of the stack: a server that is not installed becomes [`Unavailable`].
pub(super) fn from_stack(error: stack::Error) -> anyhow::Error {
    match &error {
        stack::Error::NotFound { .. } => Unavailable(error.to_string()).into(),
        stack::Error::Supervisor { status, said } if status.ends_with("69") => {
            Unavailable(said.clone()).into()
        }
        _ => error.into(),
    }
}

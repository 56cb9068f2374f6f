//! The seam between the demo and the application that it shows: all glue to the rest of Flyball is here.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use futures_util::future::BoxFuture;

use crate::config::ReindexSettings;
use crate::jobs::Queue;
use crate::{stack, throttle};

/// How the application shall be started: all roles (api, runner, governor) in this process, with its defaults otherwise.
#[derive(Clone, Debug)]
pub struct AppSettings {
    /// Postgres; not migrated yet.
    pub database_url: String,
    /// Redis.
    pub redis_url: String,
    /// Prometheus.
    pub prometheus_url: String,
    /// Where the API listens.
    pub listen: String,
    /// The knobs files; the demo has written its own copies here.
    pub knobs_dir: PathBuf,
    /// Pools of accounts, as the settings file has them.
    pub pools: BTreeMap<String, toml::Table>,
    /// What reindexing may read and write, as the settings file has it.
    pub reindex: ReindexSettings,
}

/// A running application. It is started by whoever composes it, and handed to [`super::run`].
pub struct AppHandle {
    /// Base address of the API and the dashboard, e.g. `http://127.0.0.1:8080`.
    pub url: String,
    /// The queue, migrated.
    pub queue: Queue,
    /// The throttles, seeded from the knobs files where they were absent.
    pub throttles: Arc<dyn throttle::Store>,
    /// Awaited when the demo ends: stops the application in order. Its grace time should be a second or so, because a
    /// reindex runs for as long as it may.
    pub stop: BoxFuture<'static, ()>,
}

/// Something must be installed first; the text is the one line that would help. Commands exit with 69.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unavailable(pub String);

/// A stack that did not start because a server is not installed is [`Unavailable`] too.
pub(super) fn from_stack(error: stack::Error) -> anyhow::Error {
    match &error {
        stack::Error::NotFound { .. } => Unavailable(error.to_string()).into(),
        stack::Error::Supervisor { status, said } if status.ends_with("69") => Unavailable(said.clone()).into(),
        _ => error.into(),
    }
}

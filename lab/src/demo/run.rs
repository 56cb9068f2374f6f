//! The interface between the demo and the application that it shows, with all glue to the rest of
//! Flyball.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use flyball::app::{App, Roles};
use flyball::config::{ReindexSettings, Settings};
use flyball::jobs::{Kinds, Queue};
use flyball::throttle::{Change, Name};
use flyball::{stack, throttle};
use futures_util::future::BoxFuture;

/// Grace time of the demo's worker, in seconds: short, because a demo should end at once, and its
/// reindex resumes from the same place.
const GRACE_S: f64 = 0.5;

/// Time to live of the demo's worker, in seconds: short, because a demo that was killed should go
/// on soon after it is started again.
const WORKER_TTL_S: f64 = 8.0;

/// The settings of the application: all roles (api, runner, governor) in this process, with its
/// defaults otherwise.
#[derive(Clone, Debug)]
pub(crate) struct AppSettings {
    /// The URL of Postgres, which is not migrated yet.
    pub(crate) database_url: String,
    pub(crate) redis_url: String,
    pub(crate) prometheus_url: String,
    /// The address on which the API listens.
    pub(crate) listen: String,
    /// The directory of the knobs files, which holds the demo's own copies.
    pub(crate) knobs_dir: PathBuf,
    /// The pools of accounts, in the form of the settings file.
    pub(crate) pools: BTreeMap<String, toml::Table>,
    /// The sources and sinks of reindexing, in the form of the settings file.
    pub(crate) reindex: ReindexSettings,
}

/// A running application.
pub(crate) struct AppHandle {
    /// Base address of the API and the dashboard, e.g. `http://127.0.0.1:8080`.
    pub(crate) url: String,
    /// The queue, migrated.
    pub(crate) queue: Queue,
    /// The throttles, seeded from the knobs files where they were absent.
    pub(crate) throttles: Arc<dyn throttle::Store>,
    /// A future that stops the application gracefully, awaited when the demo ends.
    pub(crate) stop: BoxFuture<'static, ()>,
}

impl AppHandle {
    /// Starts the application in this process.
    pub(crate) async fn start(settings: Settings, wanted: AppSettings) -> anyhow::Result<Self> {
        let settings = Settings {
            database_url: wanted.database_url,
            redis_url: wanted.redis_url,
            prometheus_url: wanted.prometheus_url,
            listen: wanted.listen,
            knobs_dir: wanted.knobs_dir.display().to_string(),
            allow_private_urls: true,
            grace_s: GRACE_S,
            worker_ttl_s: WORKER_TTL_S,
            // The pools and indexes of a settings file are real, and have no part in a demo.
            pools: wanted.pools,
            reindex: wanted.reindex,
            ..settings
        };
        let app = App::start(&settings, Roles::ALL, Kinds::default()).await?;
        let url = app
            .address
            .map_or_else(String::new, |address| format!("http://{address}"));
        Ok(Self {
            url,
            queue: app.queue.clone(),
            throttles: app.throttles.clone(),
            stop: Box::pin(app.stop()),
        })
    }

    /// Sets knobs of a throttle.
    pub(crate) async fn set_knobs(
        &self,
        throttle: &str,
        knobs: &[(&str, Option<&str>)],
        why: &str,
    ) -> anyhow::Result<()> {
        let change = Change {
            fields: knobs
                .iter()
                .map(|(knob, text)| ((*knob).to_owned(), text.map(str::to_owned)))
                .collect(),
            by: "demo".to_owned(),
            why: why.to_owned(),
            create: true,
            ..Change::default()
        };
        self.throttles.set(&Name::new(throttle)?, &change).await?;
        Ok(())
    }
}

/// A missing installation, with one line on the remedy; commands exit with 69.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Unavailable(pub(crate) String);

/// Converts an error of the stack: a server that is not installed becomes [`Unavailable`].
pub(super) fn from_stack(error: stack::Error) -> anyhow::Error {
    match &error {
        stack::Error::NotFound { .. } => Unavailable(error.to_string()).into(),
        stack::Error::Supervisor { status, output } if status.ends_with("69") => {
            Unavailable(output.clone()).into()
        }
        _ => error.into(),
    }
}

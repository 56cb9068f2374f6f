//! The program in this process, with settings for one test.

use std::collections::BTreeMap;
use std::path::Path;

use flyball::app::{App, Roles};
use flyball::config::Settings;
use flyball::jobs::Kinds;
use tempfile::TempDir;

use super::{Database, database, redis_prefix, stack};

/// Only the worker roles.
pub const RUNNER: Roles = Roles {
    api: false,
    runner: true,
    governor: false,
};

/// A running program with its own database and key prefix.
pub struct RunningApp {
    pub app: App,
    pub database: Database,
    pub prefix: String,
    _folder: TempDir,
}

impl RunningApp {
    /// Starts these roles with the settings file that `text` returns.
    ///
    /// `text` gets a temporary folder for the files that the settings name. Knobs files are read
    /// from its subfolder `knobs`, if present. Prometheus is unreachable.
    pub async fn start(roles: Roles, text: impl FnOnce(&Path) -> String) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let (file, knobs) = (
            folder.path().join("flyball.toml"),
            folder.path().join("knobs"),
        );
        std::fs::write(&file, text(folder.path())).expect("the settings file");
        let database = database().await;
        let mut settings = Settings::load(Some(&file), &BTreeMap::default())
            .unwrap_or_else(|error| panic!("{error}"));
        settings.database_url = database.url().to_owned();
        settings.redis_url = stack().await.redis_url.clone();
        settings.redis_prefix = redis_prefix();
        settings.prometheus_url = "http://127.0.0.1:9".to_owned();
        settings.listen = "127.0.0.1:0".to_owned();
        settings.knobs_dir = if knobs.exists() {
            knobs.display().to_string()
        } else {
            String::new()
        };
        settings.concurrency = 32;
        let app = App::start(&settings, roles, Kinds::default())
            .await
            .unwrap_or_else(|error| panic!("{error:#}"));
        Self {
            app,
            database,
            prefix: settings.redis_prefix,
            _folder: folder,
        }
    }

    /// Stops the program gracefully.
    pub async fn stop(self) {
        self.app.stop().await;
    }
}

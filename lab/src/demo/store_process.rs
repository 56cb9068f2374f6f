//! The search store as a child process that ends when this one does.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, bail};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, ChildStdin, Command};
use tokio::time::timeout;

use super::run::Unavailable;

/// The time limit for a start.
///
/// The first start creates a database, and recovery after a crash may take as long.
const READY_WITHIN: Duration = Duration::from_secs(150);
const STORE_STOP_TIMEOUT: Duration = Duration::from_secs(20);

pub(super) struct StoreProcess {
    /// The base URL of the store.
    pub(super) url: String,
    child: Child,
    stdin: Option<ChildStdin>,
}

#[derive(serde::Deserialize)]
struct Ready {
    url: String,
}

impl StoreProcess {
    /// Starts `flyball demo-store` and waits until it is ready.
    pub(super) async fn start(dir: &Path) -> anyhow::Result<Self> {
        std::fs::create_dir_all(dir).with_context(|| format!("creating {}", dir.display()))?;
        let output = dir.join("store.log");
        let mut child = Command::new(std::env::current_exe()?)
            .arg("demo-store")
            .arg("--dir")
            .arg(dir)
            // The store runs its own engine, even if the application uses another database.
            .env_remove("DATABASE_URL")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(std::fs::File::create(&output)?)
            // The store's own process group gets no Ctrl-C from the terminal, because we stop it
            // ourselves.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .context("starting the search store")?;
        let stdin = child.stdin.take();
        let stdout = child
            .stdout
            .take()
            .context("the search store has no standard output")?;
        let mut line = String::new();
        let mut stdout = BufReader::new(stdout);
        let read = timeout(READY_WITHIN, stdout.read_line(&mut line))
            .await
            .context("the search store was not ready in time")?;
        read?;
        match serde_json::from_str::<Ready>(&line) {
            Ok(ready) => Ok(Self {
                url: ready.url,
                child,
                stdin,
            }),
            Err(_) => {
                let status = timeout(STORE_STOP_TIMEOUT, child.wait())
                    .await
                    .ok()
                    .and_then(Result::ok);
                let text = std::fs::read_to_string(&output).unwrap_or_default();
                if status.and_then(|s| s.code()) == Some(69) {
                    return Err(Unavailable(text.trim().to_owned()).into());
                }
                bail!("the search store did not start: {}", text.trim())
            }
        }
    }

    /// Stops the store gracefully, and kills it if it does not end in time.
    pub(super) async fn stop(mut self) {
        drop(self.stdin.take());
        if timeout(STORE_STOP_TIMEOUT, self.child.wait())
            .await
            .is_err()
        {
            let _ = self.child.kill().await;
        }
    }
}

//! The private Redis of a run, and the processes that ask it for tokens.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use anyhow::Context;
use flyball::throttle::{Change, Name, RedisStore, Store};

use crate::child::RequestMode;
use crate::report::Report;
use crate::throttle_redis::Server;

/// The Redis of the whole program, which stops when this is dropped.
pub struct ThrottleServer {
    pub store: Arc<dyn Store>,
    server: Server,
}

/// Processes that are ready to ask for tokens.
pub struct ClientProcesses(Vec<Child>);

impl ThrottleServer {
    /// Starts Redis. Must be called inside a Tokio runtime.
    pub fn start() -> anyhow::Result<Self> {
        let server = Server::start();
        Ok(Self {
            store: Arc::new(RedisStore::connect(&server.url(), "")?),
            server,
        })
    }

    pub fn url(&self) -> String {
        self.server.url()
    }

    /// Prints the version of the server.
    pub fn describe(&self, report: Report) -> anyhow::Result<()> {
        let server: String = redis::cmd("INFO").arg("server").query(&mut self.redis()?)?;
        let version = server
            .lines()
            .find_map(|line| line.strip_prefix("redis_version:"))
            .unwrap_or("unknown");
        report.bullet(&format!(
            "server: Redis {version} on this machine by a unix socket"
        ));
        Ok(())
    }

    /// Sets knobs of a throttle, which is created if it does not exist.
    pub async fn knobs(&self, throttle: &str, knobs: &[(&str, &str)]) -> anyhow::Result<()> {
        let fields = knobs
            .iter()
            .map(|(name, text)| ((*name).to_owned(), Some((*text).to_owned())))
            .collect();
        let change = Change {
            fields,
            create: true,
            by: "bench".into(),
            ..Change::default()
        };
        self.store.set(&Name::new(throttle)?, &change).await?;
        Ok(())
    }

    /// Opens a connection for everything outside the throttles.
    pub fn redis(&self) -> anyhow::Result<redis::Connection> {
        Ok(redis::Client::open(self.url())?.get_connection()?)
    }

    /// Starts processes that wait for [`ClientProcesses::go`].
    pub fn askers(
        &self,
        what: RequestMode,
        throttle: &str,
        seconds: f64,
        processes: usize,
    ) -> anyhow::Result<ClientProcesses> {
        let start = || {
            Command::new(std::env::current_exe()?)
                .args([
                    "child",
                    "--redis-url",
                    &self.url(),
                    "--what",
                    what.word(),
                    "--throttle",
                    throttle,
                ])
                .args(["--seconds", &seconds.to_string()])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .context("starting a process that asks")
        };
        Ok(ClientProcesses(
            (0..processes)
                .map(|_| start())
                .collect::<anyhow::Result<_>>()?,
        ))
    }
}

impl ClientProcesses {
    /// Waits until all are ready, calls `begin`, starts them, and returns the lines that each of
    /// them printed.
    pub fn go(
        mut self,
        begin: impl FnOnce() -> anyhow::Result<()>,
    ) -> anyhow::Result<Vec<Vec<String>>> {
        let take = |child: &mut Child| {
            child
                .stdout
                .take()
                .context("a pipe")
                .map(|out| BufReader::new(out).lines())
        };
        let mut outs = self
            .0
            .iter_mut()
            .map(take)
            .collect::<anyhow::Result<Vec<_>>>()?;
        for out in &mut outs {
            let ready = out.next().context("a process that asks ended early")??;
            anyhow::ensure!(ready == "ready", "a client process printed {ready:?}");
        }
        begin()?;
        for child in &mut self.0 {
            child.stdin.as_mut().context("a pipe")?.write_all(b"go\n")?;
        }
        let output = outs
            .into_iter()
            .map(|out| Ok(out.collect::<std::io::Result<Vec<_>>>()?))
            .collect();
        for child in &mut self.0 {
            anyhow::ensure!(child.wait()?.success(), "a process that asks failed");
        }
        output
    }
}

impl Drop for ClientProcesses {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

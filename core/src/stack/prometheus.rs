//! The private Prometheus.

use std::cell::Cell;
use std::fs;
use std::net::TcpListener;
use std::process::Command;

use rustix::process::Signal;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

use super::Error;
use super::find::Program;
use super::launch::{Step, Technology};
use super::layout::{Layout, prometheus_config};
use super::unix::{User, open_dir};

/// A Prometheus on a free port of 127.0.0.1; it has no unix sockets.
pub(super) struct Prometheus {
    program: Program,
    layout: Layout,
    user: User,
    scrape_interval_ms: u64,
    port: u16,
    /// True once it has answered on this port, which then stays because clients know it.
    answered: Cell<bool>,
}

// === impl Prometheus ===

impl Prometheus {
    pub fn new(
        program: Program,
        layout: &Layout,
        user: &User,
        scrape_interval_ms: u64,
    ) -> Result<Self, Error> {
        let port = free_port().map_err(Error::io(
            "looking for a free port on",
            "127.0.0.1".as_ref(),
        ))?;
        let (layout, user) = (layout.clone(), user.clone());
        Ok(Self {
            program,
            layout,
            user,
            scrape_interval_ms,
            port,
            answered: Cell::new(false),
        })
    }

    /// Returns the first line of the answer. Written by hand, because an HTTPS client needs the
    /// machine's certificates and heeds its proxies, and neither matters for a server on loopback.
    async fn ask_ready(&self) -> std::io::Result<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).await?;
        stream
            .write_all(b"GET /-/ready HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
            .await?;
        let mut status = String::new();
        BufReader::new(stream).read_line(&mut status).await?;
        Ok(status.trim_end().to_owned())
    }
}

/// Returns a port that was free a moment ago. If another process takes it before Prometheus does,
/// another port is tried.
fn free_port() -> std::io::Result<u16> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}

impl Technology for Prometheus {
    fn name(&self) -> &'static str {
        "prometheus"
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    fn prepare(&mut self) -> Step<'_, Result<(), Error>> {
        Box::pin(async {
            let home = self.layout.home("prometheus");
            for dir in [&home, &self.layout.targets_dir(), &self.layout.rules_dir()] {
                open_dir(dir)?;
            }
            self.user.own_private_dir(
                &home.join("data"),
                "start as that user, or remove it with --wipe as its owner",
            )?;
            let config = self.layout.prometheus_config();
            fs::write(
                &config,
                prometheus_config(&self.layout, self.scrape_interval_ms),
            )
            .map_err(Error::io("writing", &config))
        })
    }

    fn command(&self) -> Command {
        let flag = |name: &str, path: std::path::PathBuf| {
            let mut flag = std::ffi::OsString::from(name);
            flag.push(path);
            flag
        };
        let mut command = self.program.command();
        command
            .arg(flag("--config.file=", self.layout.prometheus_config()))
            .arg(flag(
                "--storage.tsdb.path=",
                self.layout.home("prometheus").join("data"),
            ))
            .arg("--storage.tsdb.retention.time=7d")
            .arg(format!("--web.listen-address=127.0.0.1:{}", self.port));
        command
    }

    fn ready(&self) -> Step<'_, Result<(), String>> {
        Box::pin(async {
            let status = self.ask_ready().await.map_err(|error| error.to_string())?;
            if !status.starts_with("HTTP/1.1 200") {
                return Err(status);
            }
            self.answered.set(true);
            Ok(())
        })
    }

    fn stop_signal(&self) -> Signal {
        Signal::TERM
    }

    fn worth_another_try(&mut self, log_tail: &str) -> bool {
        if !log_tail.contains("address already in use") {
            return false;
        }
        if !self.answered.get()
            && let Ok(port) = free_port()
        {
            self.port = port;
        }
        true
    }
}

//! A process that runs until a signal.

use std::time::{Duration, Instant};

use tokio::signal::unix::{Signal, SignalKind, signal};

use super::logging::start_logging;
use super::roles::Roles;
use super::start::{App, died};
use super::warnings::warnings;
use crate::config::Settings;
use crate::jobs::Kinds;

/// The time for which a further signal counts as the first one: a terminal, a shell and a
/// supervisor may each send one.
const ONE_SIGNAL: Duration = Duration::from_secs(1);

/// Runs a process until SIGTERM or Ctrl-C, then stops it in order. A second signal, a second later
/// or more, ends it at once.
///
/// If a part of the process dies, the rest is stopped in order too. That is an error, so that the
/// supervisor restarts the process.
pub async fn serve(settings: Settings, roles: Roles, more: Kinds) -> anyhow::Result<()> {
    start_logging(&settings)?;
    for (message, _) in warnings(&settings) {
        tracing::warn!("{message}");
    }
    let mut signals = Signals::new()?;
    let app = tokio::select! {
        started = App::start(&settings, roles, more) => started?,
        signal = signals.next() => {
            tracing::info!("{signal} before startup finished; exiting");
            return Ok(());
        }
    };
    if let Some(address) = app.address {
        tracing::info!("dashboard and API at http://{address}/");
    }
    let lost = tokio::select! {
        signal = signals.next() => {
            tracing::info!("{signal}: stopping; send it again to stop at once");
            None
        }
        name = app.lost() => Some(name),
    };
    let first = Instant::now();
    tokio::spawn(async move {
        loop {
            signals.next().await;
            if first.elapsed() >= ONE_SIGNAL {
                std::process::exit(130);
            }
        }
    });
    app.stop().await;
    match lost {
        None => Ok(()),
        Some(name) => Err(died(name)),
    }
}

/// A listener for SIGINT and SIGTERM, active from its construction.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    fn new() -> std::io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    /// Waits for the next signal and returns its name.
    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.interrupt.recv() => "SIGINT",
            _ = self.terminate.recv() => "SIGTERM",
        }
    }
}

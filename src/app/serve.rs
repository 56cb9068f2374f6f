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

/// Runs a process until SIGTERM, Ctrl-C or the SIGHUP of a terminal that closes, then stops it in
/// order. A second signal, a second later or more, ends it at once.
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
            let signal = signals.next().await;
            if first.elapsed() >= ONE_SIGNAL {
                tracing::warn!(
                    "{signal}: stopping at once; what still runs is run again elsewhere"
                );
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

/// A listener for SIGINT, SIGTERM and SIGHUP, active from its construction.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
    /// `None` if the process was started to outlive its terminal.
    hangup: Option<Signal>,
}

impl Signals {
    fn new() -> std::io::Result<Self> {
        // A handler would end what `nohup` lets ignore the signal.
        let hangup = match ignores_hangup() {
            true => None,
            false => Some(signal(SignalKind::hangup())?),
        };
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup,
        })
    }

    /// Waits for the next signal and returns its name.
    async fn next(&mut self) -> &'static str {
        let Self {
            interrupt,
            terminate,
            hangup,
        } = self;
        let hung_up = async {
            match hangup {
                Some(hangup) => hangup.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = interrupt.recv() => "SIGINT",
            _ = terminate.recv() => "SIGTERM",
            _ = hung_up => "SIGHUP",
        }
    }
}

/// Returns true if the process ignores SIGHUP, or if the system does not say.
pub(crate) fn ignores_hangup() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    ignored.is_none_or(|mask| mask >> (SignalKind::hangup().as_raw_value() - 1) & 1 == 1)
}

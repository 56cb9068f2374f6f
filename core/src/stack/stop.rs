//! Inputs of the supervisor: signals, and its standard input.

use std::collections::VecDeque;
use std::io::{self, BufRead};

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;

/// The signals that end a supervisor, and the commands on its standard input.
pub(super) struct StopSignals {
    signals: [Signal; 3],
    lines: mpsc::UnboundedReceiver<String>,
    /// Commands that arrived during a wait for the end.
    kept: VecDeque<String>,
}

// === impl Stop ===

impl StopSignals {
    pub fn new() -> io::Result<Self> {
        let signals = [
            signal(SignalKind::interrupt())?,
            signal(SignalKind::terminate())?,
            signal(SignalKind::hangup())?,
        ];
        let (sender, lines) = mpsc::unbounded_channel();
        // A thread of its own, because a blocking read cannot be cancelled and must not keep the
        // process alive.
        std::thread::spawn(move || {
            for line in io::stdin().lock().lines() {
                let Ok(line) = line else { return };
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Ok(Self {
            signals,
            lines,
            kept: VecDeque::new(),
        })
    }

    /// Returns the next command, or `None` at the end. Cancelling it loses nothing.
    pub async fn next(&mut self) -> Option<String> {
        if let Some(line) = self.kept.pop_front() {
            return Some(line);
        }
        self.receive().await
    }

    async fn receive(&mut self) -> Option<String> {
        let [interrupt, terminate, hangup] = &mut self.signals;
        tokio::select! {
            line = self.lines.recv() => line,
            _ = interrupt.recv() => None,
            _ = terminate.recv() => None,
            _ = hangup.recv() => None,
        }
    }

    /// Waits for the end; commands are kept for later.
    pub async fn wait_for_end(&mut self) {
        while let Some(line) = self.receive().await {
            self.kept.push_back(line);
        }
    }
}

//! Watching the running servers: one that ends by itself is started again, and commands are carried
//! out.

use std::time::Duration;

use serde_json::json;
use tokio::time::{Instant, interval};

use super::launch::ManagedServer;
use super::output::{chain, log_line, println_json};
use super::stop::StopSignals;

/// Interval at which the servers are checked.
const SERVER_CHECK_INTERVAL: Duration = Duration::from_millis(200);
/// First delay before a server that ended is started again; it doubles each time the server ends
/// soon after.
const RESTART_AFTER: Duration = Duration::from_secs(1);
const RESTART_AFTER_MAX: Duration = Duration::from_secs(30);

/// The supervisor's record of a server between two checks.
struct Watched<'a> {
    server: &'a mut ManagedServer,
    /// True after a command to stop: the server is left alone until the command to start.
    held: bool,
    restart_at: Option<Instant>,
    restart_after: Duration,
    started_at: Instant,
}

/// Watches the servers and carries out commands, until signalled or until standard input closes.
pub(super) async fn watch(servers: &mut [ManagedServer], stop: &mut StopSignals) {
    let mut watched: Vec<Watched> = servers
        .iter_mut()
        .map(|server| Watched {
            server,
            held: false,
            restart_at: None,
            restart_after: RESTART_AFTER,
            started_at: Instant::now(),
        })
        .collect();
    let mut look = interval(SERVER_CHECK_INTERVAL);
    loop {
        let command = tokio::select! {
            next = stop.next() => match next {
                Some(command) => command,
                None => return,
            },
            _ = look.tick() => {
                watched.iter_mut().for_each(look_at);
                continue;
            }
        };
        let obeyed = obey(&command, &mut watched);
        // A slow stop must not outlive the parent.
        tokio::select! {
            () = obeyed => {}
            () = stop.wait_for_end() => return,
        }
    }
}

/// Restarts a server that ended by itself.
fn look_at(watched: &mut Watched) {
    let now = Instant::now();
    let name = watched.server.name();
    if let Some(status) = watched.server.take_ended() {
        if now.duration_since(watched.started_at) > RESTART_AFTER_MAX {
            watched.restart_after = RESTART_AFTER;
        }
        let wait = watched.restart_after;
        watched.restart_at = Some(now + wait);
        watched.restart_after = (wait * 2).min(RESTART_AFTER_MAX);
        log_line(&format!(
            "{name} ended with {status}; restarting it in {} s",
            wait.as_secs()
        ));
    }
    if watched.restart_at.is_some_and(|at| at <= now) {
        watched.restart_at = None;
        watched.started_at = now;
        if let Err(error) = watched.server.launch() {
            log_line(&format!("{name}: {}", chain(&error)));
        }
    }
}

/// Carries out one line of standard input.
async fn obey(command: &str, watched: &mut [Watched<'_>]) {
    let (verb, name) = command
        .trim()
        .split_once(' ')
        .unwrap_or((command.trim(), ""));
    let Some(watched) = watched
        .iter_mut()
        .find(|watched| watched.server.name() == name)
    else {
        println_json(
            &json!({ "error": format!("{command:?} is not a command: use stop or start, and the name of a running server") }),
        );
        return;
    };
    match verb {
        "stop" => {
            watched.held = true;
            watched.restart_at = None;
            watched.server.stop().await;
            println_json(&json!({ "stopped": name }));
        }
        "start" if !watched.held => println_json(&json!({ "started": name })),
        "start" => match watched.server.start().await {
            Ok(()) => {
                watched.held = false;
                watched.started_at = Instant::now();
                println_json(&json!({ "started": name }));
            }
            Err(error) => println_json(&json!({ "error": chain(&error) })),
        },
        _ => println_json(
            &json!({ "error": format!("{verb:?} is not a command: use stop or start") }),
        ),
    }
}

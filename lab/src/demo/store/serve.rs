//! The store's process, which ends on a signal or with its parent.

use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::http::{SearchStore, router};
use super::postgres::Engine;
use crate::demo::StoreOptions;
use crate::demo::run::{Unavailable, from_stack};
use flyball::stack;

/// The niceness of the store and its engine, so that on a small machine they do not starve the
/// governor.
const NICENESS: i32 = 5;
/// A placeholder URL for the servers that the engine does not need.
///
/// [`stack`] starts every one of its three servers whose URL is not given.
const NOT_NEEDED: &str = "none:";

/// Runs the store: prints one line of JSON with its URL when it is ready, and stops when its
/// standard input closes.
pub async fn serve(options: StoreOptions) -> anyhow::Result<()> {
    let stop = CancellationToken::new();
    stop_when_left_alone(&stop)?;
    let _ = rustix::process::nice(NICENESS);
    let (url, running) = match options.database_url {
        Some(url) => (url, None),
        None => {
            let dir = options.dir.clone();
            let running = tokio::task::spawn_blocking(move || start_engine(&dir)).await??;
            (running.urls.database_url.clone(), Some(running))
        }
    };
    // Only an engine of our own is tuned, which requires its superuser.
    let tuner = running.as_ref().map(|_| stack::as_superuser(&url));
    let engine = Engine::open(&url, options.cores, tuner.as_deref()).await.map_err(|error| match error.as_database_error() {
        Some(e) if e.message().contains("pg_trgm") => anyhow::Error::from(Unavailable(
            "Postgres' contrib modules are missing (pg_trgm); install with `sudo apt-get install -y postgresql-contrib`".into(),
        )),
        _ => anyhow::Error::from(error).context("opening the search store's engine"),
    })?;
    let listener = listen(&options.dir, &options.listen).await?;
    let address = listener.local_addr()?;
    println!(
        "{}",
        serde_json::json!({"url": format!("http://{address}"), "pid": std::process::id()})
    );
    let app = router(Arc::new(SearchStore::new(
        engine,
        options.cores,
        options.queue,
    )));
    axum::serve(listener, app)
        .with_graceful_shutdown(stop.cancelled_owned())
        .await?;
    // The engine must outlive the last request.
    drop(running);
    Ok(())
}

fn start_engine(dir: &Path) -> anyhow::Result<stack::RunningStack> {
    let options = stack::SpawnOptions {
        redis_url: Some(NOT_NEEDED.into()),
        prometheus_url: Some(NOT_NEEDED.into()),
        fsync: false,
        stderr: Some(dir.join("engine.log")),
        ..stack::SpawnOptions::default()
    };
    std::fs::create_dir_all(dir).with_context(|| format!("creating {}", dir.display()))?;
    stack::spawn(&dir.join("engine"), &options).map_err(from_stack)
}

/// Binds the listener.
///
/// Port 0 takes the port of the last run if it is free, so that an interrupted reindex finds the
/// store at the same URL.
async fn listen(dir: &Path, address: &str) -> anyhow::Result<TcpListener> {
    let kept = dir.join("port");
    if let Some(host) = address.strip_suffix(":0") {
        let port = std::fs::read_to_string(&kept)
            .ok()
            .and_then(|text| text.trim().parse::<u16>().ok());
        if let Some(port) = port
            && let Ok(listener) = TcpListener::bind(format!("{host}:{port}")).await
        {
            return Ok(listener);
        }
    }
    let listener = TcpListener::bind(address)
        .await
        .with_context(|| format!("listening on {address}"))?;
    std::fs::create_dir_all(dir)?;
    std::fs::write(&kept, listener.local_addr()?.port().to_string())
        .with_context(|| format!("writing {}", kept.display()))?;
    Ok(listener)
}

/// Cancels the token on SIGINT, on SIGTERM, and when standard input closes, which happens at every
/// death of the parent.
fn stop_when_left_alone(stop: &CancellationToken) -> anyhow::Result<()> {
    let (mut interrupt, mut terminate) = (
        signal(SignalKind::interrupt())?,
        signal(SignalKind::terminate())?,
    );
    let token = stop.clone();
    tokio::spawn(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        token.cancel();
    });
    let token = stop.clone();
    // A separate thread, because a read of standard input cannot be cancelled and would delay the
    // runtime's shutdown.
    std::thread::spawn(move || {
        let mut bytes = [0; 64];
        while matches!(std::io::stdin().read(&mut bytes), Ok(n) if n > 0) {}
        token.cancel();
    });
    Ok(())
}

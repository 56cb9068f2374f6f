//! The supervisor: starts the servers, prints their URLs, watches them, and stops them when it is
//! signalled or its input closes.
//!
//! The signals are SIGINT, SIGTERM and SIGHUP. While it runs it reads commands from its standard
//! input, a line each: `stop NAME` and `start NAME`, with NAME one of `postgres`, `redis`,
//! `prometheus`. Each is answered by a line on standard output (`{"stopped":"redis"}`), so that a
//! test can take a server away. A server that ends without such a command is started again.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::launch::ManagedServer;
use super::layout::{Layout, NAMES, Urls};
use super::output::{log_line, println_json};
use super::postgres::PostgresServer;
use super::prometheus::Prometheus;
use super::redis::Redis;
use super::stop::StopSignals;
use super::unix::{self, User};
use super::watch::watch;
use super::{Error, find, postgres};

/// Time for which a new supervisor waits for a previous one to stop its servers.
const LOCK_TIMEOUT: Duration = Duration::from_secs(8);

/// Settings of a supervisor.
#[derive(Clone, Debug)]
pub struct SupervisorSettings {
    /// The directory for data, logs and the lock.
    pub dir: PathBuf,
    /// An existing database; the supervisor then starts none.
    pub database_url: Option<String>,
    /// An existing Redis; the supervisor then starts none.
    pub redis_url: Option<String>,
    /// An existing Prometheus; the supervisor then starts none.
    pub prometheus_url: Option<String>,
    /// Scrape interval of Prometheus, in milliseconds.
    pub scrape_interval_ms: u64,
    /// True if data must survive a crash of the machine.
    pub fsync: bool,
    /// Directories to look for the servers in, instead of the usual places.
    pub search_path: Vec<PathBuf>,
    /// True if all files created in the directory are removed after stopping, and the directory too
    /// if it is empty then.
    pub ephemeral: bool,
}

/// Runs the servers until signalled or until standard input closes.
///
/// To be called outside any runtime from the main thread, because the kernel ends the servers when
/// the thread that started them ends.
pub fn run(settings: &SupervisorSettings) -> Result<(), Error> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime
        .map_err(Error::io("starting a runtime for", &settings.dir))?
        .block_on(supervise(settings))
}

/// Removes the data of a stack, including data moved outside its directory.
pub fn wipe(dir: &Path) -> Result<(), Error> {
    let Ok(dir) = fs::canonicalize(dir) else {
        return Ok(());
    };
    let layout = Layout::new(&dir);
    refuse_foreign(&layout)?;
    let _lock = unix::lock(&layout)?;
    remove(&layout)
}

/// Refuses a directory that was never that of a stack and has an entry of a stack's names, such as
/// the folder `prometheus` or `log` of a project. The lock is made first, and stays.
fn refuse_foreign(layout: &Layout) -> Result<(), Error> {
    if layout.lock().exists() {
        return Ok(());
    }
    let mut entries = NAMES.iter().map(|name| layout.dir.join(name));
    let foreign = entries.find(|path| path.symlink_metadata().is_ok());
    foreign.map_or(Ok(()), |path| Err(Error::Foreign { path }))
}

/// Takes the lock. A supervisor whose parent was killed may still be stopping its servers, so the
/// wait goes on for a while.
async fn patient_lock(layout: &Layout, stop: &mut StopSignals) -> Result<fs::File, Error> {
    let until = Instant::now() + LOCK_TIMEOUT;
    loop {
        let in_use = match unix::lock(layout) {
            Err(error @ Error::InUse { .. }) if Instant::now() < until => error,
            other => return other,
        };
        tokio::select! {
            () = tokio::time::sleep(Duration::from_millis(100)) => {}
            () = stop.wait_for_end() => return Err(in_use),
        }
    }
}

async fn supervise(settings: &SupervisorSettings) -> Result<(), Error> {
    // Created before any server is started, so that no signal is missed.
    let mut stop =
        StopSignals::new().map_err(Error::io("listening for signals in", &settings.dir))?;
    let layout = make_dir(&settings.dir)?;
    let lock = patient_lock(&layout, &mut stop).await?;
    make_subdirs(&layout)?;
    let (layout, user) = settle(layout)?;
    let mut servers = choose(settings, &layout, &user)?;

    let ran = tokio::select! {
        started = start_all(&mut servers) => started,
        () = stop.wait_for_end() => Ok(false),
    };
    let ran = match ran {
        Ok(true) => {
            println_json(&urls(settings, &layout, &servers));
            watch(&mut servers, &mut stop).await;
            Ok(())
        }
        Ok(false) => {
            log_line(
                "stopped before all servers ran, by a signal or because standard input was closed; keep \
                 it open while the servers are to run",
            );
            Ok(())
        }
        Err(error) => Err(error),
    };
    // Prometheus reads from the others, and Postgres holds the most important data, so they stop in
    // this order.
    for server in servers.iter_mut().rev() {
        server.stop().await;
    }
    let _ = fs::remove_dir_all(&layout.sockets);
    if settings.ephemeral {
        remove(&layout)?;
        let _ = fs::remove_file(layout.lock());
        // Succeeds only if the directory is empty.
        let _ = fs::remove_dir(&layout.dir);
    }
    drop(lock);
    ran
}

fn make_dir(dir: &Path) -> Result<Layout, Error> {
    fs::create_dir_all(dir).map_err(Error::io("creating", dir))?;
    let dir = fs::canonicalize(dir).map_err(Error::io("looking at", dir))?;
    let layout = Layout::new(&dir);
    refuse_foreign(&layout)?;
    Ok(layout)
}

fn make_subdirs(layout: &Layout) -> Result<(), Error> {
    for sub in ["log", "run"] {
        let sub = layout.dir.join(sub);
        fs::create_dir_all(&sub).map_err(Error::io("creating", &sub))?;
    }
    Ok(())
}

/// Chooses the user that runs the servers and the directory of their data.
fn settle(layout: Layout) -> Result<(Layout, User), Error> {
    let user = User::choose(&layout)?;
    if !user.step_down {
        return Ok((layout, user));
    }
    unix::let_enter(&layout)?;
    if user.can_enter(&layout.dir) {
        return Ok((layout, user));
    }
    let moved = layout.moved();
    let user = User::choose(&moved)?;
    unix::open_dir(&moved.data)?;
    log_line(&format!(
        "user {} cannot enter {}; the data is in {}",
        user.name,
        moved.dir.display(),
        moved.data.display()
    ));
    Ok((moved, user))
}

/// Returns the servers to start, Postgres first. One error names all missing ones.
fn choose(
    settings: &SupervisorSettings,
    layout: &Layout,
    user: &User,
) -> Result<Vec<ManagedServer>, Error> {
    let places = find::places(&settings.search_path);
    let (need_postgres, need_redis, need_prometheus) = (
        settings.database_url.is_none(),
        settings.redis_url.is_none(),
        settings.prometheus_url.is_none(),
    );
    let postgres = if need_postgres {
        postgres::find(&places, layout)?
    } else {
        None
    };
    let redis = need_redis.then(|| find::redis(&places)).flatten();
    let prometheus = need_prometheus.then(|| find::prometheus(&places)).flatten();
    let missing = (
        need_postgres && postgres.is_none(),
        need_redis && redis.is_none(),
        need_prometheus && prometheus.is_none(),
    );
    if missing != (false, false, false) {
        return Err(find::missing(missing.0, missing.1, missing.2));
    }

    user.own_private_dir(&layout.sockets, "remove it, or start as that user")?;
    let mut servers = Vec::new();
    if let Some(found) = postgres {
        log_line(&format!(
            "postgres {} is {}",
            found.major,
            found.program.path.display()
        ));
        servers.push(ManagedServer::new(
            Box::new(PostgresServer::new(found, layout, user, settings.fsync)),
            layout,
            user,
        ));
    }
    if let Some(program) = redis {
        log_line(&format!("redis is {}", program.path.display()));
        servers.push(ManagedServer::new(
            Box::new(Redis::new(program, layout, user, settings.fsync)),
            layout,
            user,
        ));
    }
    if let Some(program) = prometheus {
        log_line(&format!("prometheus is {}", program.path.display()));
        let prometheus = Prometheus::new(program, layout, user, settings.scrape_interval_ms)?;
        servers.push(ManagedServer::new(Box::new(prometheus), layout, user));
    }
    Ok(servers)
}

/// Starts all servers at the same time.
async fn start_all(servers: &mut [ManagedServer]) -> Result<bool, Error> {
    futures_util::future::try_join_all(servers.iter_mut().map(ManagedServer::start)).await?;
    Ok(true)
}

fn urls(settings: &SupervisorSettings, layout: &Layout, servers: &[ManagedServer]) -> Urls {
    let url = |given: &Option<String>, name| {
        let ours = || {
            servers
                .iter()
                .find(|server| server.name() == name)
                .map(|server| server.technology.url())
        };
        given.clone().or_else(ours).unwrap_or_default()
    };
    Urls {
        database_url: url(&settings.database_url, "postgres"),
        redis_url: url(&settings.redis_url, "redis"),
        prometheus_url: url(&settings.prometheus_url, "prometheus"),
        targets_dir: settings
            .prometheus_url
            .is_none()
            .then(|| layout.targets_dir()),
    }
}

fn remove(layout: &Layout) -> Result<(), Error> {
    let moved = layout.clone().moved();
    let mut doomed = vec![layout.sockets.clone(), moved.data];
    doomed.extend(
        NAMES
            .iter()
            .filter(|name| **name != "lock")
            .map(|name| layout.dir.join(name)),
    );
    for path in doomed {
        let removed = if path.is_dir() {
            fs::remove_dir_all(&path)
        } else {
            fs::remove_file(&path)
        };
        match removed {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(Error::io("removing", &path)(error));
            }
            _ => {}
        }
    }
    // The parent of moved data goes too, if no other stack has data there.
    if let Some(parent) = layout.clone().moved().data.parent() {
        let _ = fs::remove_dir(parent);
    }
    Ok(())
}

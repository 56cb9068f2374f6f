//! What can go wrong with the private servers.

use std::io;
use std::path::{Path, PathBuf};

/// Why the private servers are not there.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// One or more servers are not installed.
    #[error("{what} not found; {hint}")]
    NotFound {
        /// The missing servers, for a sentence.
        what: String,
        /// The one line that would help.
        hint: String,
    },
    /// Another supervisor runs on the same directory.
    #[error("{dir} is in use by another `flyball services` (process {pid}); stop that one or give another --dir", dir = dir.display())]
    InUse {
        /// The directory.
        dir: PathBuf,
        /// The other supervisor's process id, as it wrote it.
        pid: String,
    },
    /// The data directory was made by another major version of Postgres.
    #[error(
        "{data} was made by Postgres {made_by}, but the Postgres that was found is {found}; install Postgres {made_by}, \
         or start anew with --wipe (this removes the data)", data = data.display()
    )]
    WrongMajor {
        /// The data directory.
        data: PathBuf,
        /// The major version in its PG_VERSION.
        made_by: String,
        /// The major version of the binary.
        found: u32,
    },
    /// The data directory was made by a version whose clients were superusers.
    #[error(
        "{data} was made by an earlier version, in which the role {role} was a superuser; start anew with --wipe (this removes the data)",
        data = data.display()
    )]
    SuperuserClients {
        /// The data directory.
        data: PathBuf,
        /// The role of the clients.
        role: &'static str,
    },
    /// A file or directory belongs to somebody else.
    #[error("{path} belongs to user id {owner}, not to user id {wanted}; {help}", path = path.display())]
    NotOurs {
        /// What was looked at.
        path: PathBuf,
        /// Whose it is.
        owner: u32,
        /// Whose it should be.
        wanted: u32,
        /// What to do about it.
        help: &'static str,
    },
    /// A server did not come up.
    #[error("{server} did not start: {why}{}", tail(log_tail, log))]
    Start {
        /// Which server.
        server: &'static str,
        /// What was seen.
        why: String,
        /// Its last log lines.
        log_tail: String,
        /// Where the rest is.
        log: PathBuf,
    },
    /// The supervisor that was spawned ended before it was ready.
    #[error("`flyball services` ended with {status}{}", if said.is_empty() { String::new() } else { format!(": {said}") })]
    Supervisor {
        /// Its exit status.
        status: String,
        /// What it said on its standard error, if that was kept.
        said: String,
    },
    /// The system refused something.
    #[error("{doing} {path}", path = path.display())]
    Io {
        /// What was being done, for a sentence.
        doing: &'static str,
        /// To what.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

impl Error {
    /// For `map_err`: names what was being done, and to what.
    pub(super) fn io(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { doing, path: path.to_path_buf(), source }
    }
}

fn tail(log_tail: &str, log: &Path) -> String {
    if log_tail.is_empty() { format!(" (log: {})", log.display()) } else { format!("\n{log_tail}\n(log: {})", log.display()) }
}

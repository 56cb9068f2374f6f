//! Errors of the private servers.

use std::io;
use std::path::{Path, PathBuf};

/// The reason for which the private servers are not available.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// One or more servers are not installed.
    #[error("{what} not found; {hint}")]
    NotFound {
        /// The missing servers, worded for a sentence.
        what: String,
        /// The one line that helps.
        hint: String,
    },
    /// Another supervisor runs on the same directory.
    #[error("{dir} is in use by another `flyball services` (process {pid}); stop it or use another --dir", dir = dir.display())]
    InUse {
        dir: PathBuf,
        /// The other supervisor's process id, as written in the lock file.
        pid: String,
    },
    /// The data directory was made by another major version of Postgres.
    #[error(
        "{data} was created by Postgres {made_by}, but the installed Postgres is {found}; install \
         Postgres {made_by}, or start over with --wipe \
         (this deletes the data)", data = data.display()
    )]
    WrongMajor {
        data: PathBuf,
        /// The major version in its PG_VERSION.
        made_by: String,
        /// The major version of the program that was found.
        found: u32,
    },
    /// The directory holds something that no supervisor made.
    #[error("{path} was not made by `flyball services`, which would write into it and delete it; use another --dir", path = path.display())]
    Foreign {
        /// The file or directory.
        path: PathBuf,
    },
    /// A file or directory belongs to another user.
    #[error("{path} belongs to user id {owner}, not to user id {wanted}; {help}", path = path.display())]
    NotOurs {
        /// The file or directory.
        path: PathBuf,
        /// User id of the owner.
        owner: u32,
        /// User id that should own it.
        wanted: u32,
        /// Advice for the user.
        help: &'static str,
    },
    /// A server did not come up.
    #[error("{server} did not start: {why}{}", tail(log_tail, log))]
    Start {
        /// Name of the server.
        server: &'static str,
        /// The observed failure.
        why: String,
        /// The last lines of the server's log.
        log_tail: String,
        /// Path of the whole log.
        log: PathBuf,
    },
    /// The supervisor that was spawned ended before it was ready.
    #[error("`flyball services` ended with {status}{}", if output.is_empty() { String::new() } else { format!(": {output}") })]
    Supervisor {
        /// Its exit status.
        status: String,
        /// Its standard error, if that was kept.
        output: String,
    },
    /// The system refused an operation.
    #[error("{doing} {path}", path = path.display())]
    Io {
        /// The operation, worded for a sentence.
        doing: &'static str,
        /// The path operated on.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

impl Error {
    /// Returns a function for `map_err` that adds the operation and its path.
    pub(super) fn io(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io {
            doing,
            path: path.to_path_buf(),
            source,
        }
    }
}

fn tail(log_tail: &str, log: &Path) -> String {
    if log_tail.is_empty() {
        format!(" (log: {})", log.display())
    } else {
        format!("\n{log_tail}\n(log: {})", log.display())
    }
}

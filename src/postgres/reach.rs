//! Whether Postgres can be used at all, in words that name the place and the remedy. The pool would only say that it waited.

use std::io::ErrorKind;
use std::str::FromStr;
use std::time::{Duration, Instant};

use sqlx::Connection as _;
use sqlx::postgres::{PgConnectOptions, PgConnection};

use super::Access;

/// Pause before another try.
const AGAIN_AFTER: Duration = Duration::from_millis(200);

/// Why Postgres cannot be used. It never tells the password.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unusable {
    /// Nobody is there.
    #[error("nothing listens at {0}")]
    Nothing(String),
    /// Somebody is there who does not let us in yet.
    #[error("{0}")]
    NotYet(String),
    /// Waiting would not help.
    #[error("{0}")]
    Never(String),
}

/// Opens a connection and closes it. A server that is just starting is waited for, and with `waits` also one that is not there.
pub async fn reach(access: &Access, patience: Duration, waits: bool) -> Result<(), Unusable> {
    // What is wrong with a URL is told by the one who connects.
    let Ok(options) = PgConnectOptions::from_str(&access.url) else { return Ok(()) };
    // A pooler refuses parameters that it does not know.
    let options = options.extra_float_digits(None);
    let begun = Instant::now();
    let mut told = false;
    loop {
        let left = patience.saturating_sub(begun.elapsed()).max(Duration::from_secs(1));
        let why = match tokio::time::timeout(left, PgConnection::connect_with(&options)).await {
            Ok(Ok(connection)) => {
                let _ = tokio::time::timeout(Duration::from_secs(1), connection.close()).await;
                return Ok(());
            }
            Ok(Err(error)) => judge(&error, &options),
            Err(_) => Unusable::NotYet(format!("{} does not answer within {} s", place(&options), patience.as_secs())),
        };
        let may_wait = match why {
            Unusable::Nothing(_) => waits,
            Unusable::NotYet(_) => true,
            Unusable::Never(_) => false,
        };
        if !may_wait || begun.elapsed() + AGAIN_AFTER >= patience {
            return Err(why);
        }
        if !std::mem::replace(&mut told, true) && waits {
            tracing::warn!("Postgres cannot be used yet: {why}; it is waited for, {} s at most", patience.as_secs());
        }
        tokio::time::sleep(AGAIN_AFTER).await;
    }
}

fn judge(error: &sqlx::Error, options: &PgConnectOptions) -> Unusable {
    let place = place(options);
    match error {
        sqlx::Error::Io(error) if matches!(error.kind(), ErrorKind::ConnectionRefused | ErrorKind::NotFound) => {
            Unusable::Nothing(place)
        }
        sqlx::Error::Io(error) => Unusable::NotYet(format!("{place} cannot be reached: {error}")),
        sqlx::Error::Tls(error) => Unusable::Never(format!("no encrypted connection to {place}: {error}")),
        sqlx::Error::Database(said) => {
            let (role, code) = (options.get_username(), said.code().unwrap_or_default().into_owned());
            let database = options.get_database().unwrap_or(role);
            match code.as_str() {
                "3D000" => Unusable::Never(format!(
                    "there is no database {database:?} at {place}; create it with: create database {}",
                    quoted(database)
                )),
                "28P01" => Unusable::Never(format!("{place} refuses the password of role {role:?}")),
                "28000" if said.message().ends_with("does not exist") => Unusable::Never(format!(
                    "there is no role {role:?} at {place}; create it with: create role {} login",
                    quoted(role)
                )),
                code if code.starts_with("57P") || code.starts_with("53") => {
                    Unusable::NotYet(format!("{place} lets nobody in: {}", said.message()))
                }
                _ => Unusable::Never(format!("{place} refuses role {role:?}: {}", said.message())),
            }
        }
        // One that goes down in the middle of the greeting.
        sqlx::Error::Protocol(_) => Unusable::NotYet(format!("{place} broke off the greeting")),
        error => Unusable::Never(format!("{place} cannot be used: {error}")),
    }
}

fn place(options: &PgConnectOptions) -> String {
    match options.get_socket() {
        Some(folder) => format!("{} (port {})", folder.display(), options.get_port()),
        None => format!("{}:{}", options.get_host(), options.get_port()),
    }
}

/// A name as SQL writes it.
fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

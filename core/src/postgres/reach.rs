//! A check that Postgres can be used, with errors that name the place and the remedy, because the
//! pool would only report that it timed out.

use std::io::ErrorKind;
use std::time::{Duration, Instant};

use sqlx::Connection as _;
use sqlx::postgres::{PgConnectOptions, PgConnection};

use super::Access;
use super::options::connect_options;

/// The pause between two attempts.
const REACH_RETRY_DELAY: Duration = Duration::from_millis(200);

/// The reason why Postgres cannot be used. It never contains the password.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnusablePostgres {
    /// No server listens.
    #[error("nothing listens at {0}")]
    Nothing(String),
    /// A server listens but does not accept connections yet.
    #[error("{0}")]
    NotYet(String),
    /// The server refuses us, and waiting would not help.
    #[error("{0}")]
    Never(String),
}

/// Opens a connection and closes it, waiting up to `timeout` for a server that is starting and,
/// with `waits`, for one that does not listen yet.
pub async fn reach(
    access: &Access,
    timeout: Duration,
    waits: bool,
) -> Result<(), UnusablePostgres> {
    // An invalid URL is reported by the room that connects.
    let Ok(options) = connect_options(&access.url) else {
        return Ok(());
    };
    // A pooler refuses startup parameters that it does not know.
    let options = options.extra_float_digits(None);
    let begun = Instant::now();
    let mut reported = false;
    loop {
        let left = timeout
            .saturating_sub(begun.elapsed())
            .max(Duration::from_secs(1));
        let why = match tokio::time::timeout(left, connect(&options)).await {
            Ok(Ok(connection)) => {
                let _ = tokio::time::timeout(Duration::from_secs(1), connection.close()).await;
                return Ok(());
            }
            Ok(Err(error)) => judge(&error, &options),
            Err(_) => UnusablePostgres::NotYet(format!(
                "{} does not answer within {} s",
                place(&options),
                timeout.as_secs()
            )),
        };
        let may_wait = match why {
            UnusablePostgres::Nothing(_) => waits,
            UnusablePostgres::NotYet(_) => true,
            UnusablePostgres::Never(_) => false,
        };
        if !may_wait || begun.elapsed() + REACH_RETRY_DELAY >= timeout {
            return Err(why);
        }
        if !std::mem::replace(&mut reported, true) && waits {
            tracing::warn!(
                "Postgres is not available yet: {why}; waiting for up to {} s",
                timeout.as_secs()
            );
        }
        tokio::time::sleep(REACH_RETRY_DELAY).await;
    }
}

/// Opens a connection that answers: a pooler accepts clients while its server is away.
async fn connect(options: &PgConnectOptions) -> Result<PgConnection, sqlx::Error> {
    let mut connection = PgConnection::connect_with(options).await?;
    sqlx::raw_sql("select 1").execute(&mut connection).await?;
    Ok(connection)
}

fn judge(error: &sqlx::Error, options: &PgConnectOptions) -> UnusablePostgres {
    let place = place(options);
    match error {
        sqlx::Error::Io(error)
            if matches!(
                error.kind(),
                ErrorKind::ConnectionRefused | ErrorKind::NotFound
            ) =>
        {
            UnusablePostgres::Nothing(place)
        }
        sqlx::Error::Io(error) => {
            UnusablePostgres::NotYet(format!("{place} cannot be reached: {error}"))
        }
        sqlx::Error::Tls(error) => {
            UnusablePostgres::Never(format!("no encrypted connection to {place}: {error}"))
        }
        sqlx::Error::Database(answer) => {
            let (role, code) = (
                options.get_username(),
                answer.code().unwrap_or_default().into_owned(),
            );
            let database = options.get_database().unwrap_or(role);
            match code.as_str() {
                "3D000" => UnusablePostgres::Never(format!(
                    "there is no database {database:?} at {place}; create it with: create database {}",
                    quoted(database)
                )),
                "28P01" => UnusablePostgres::Never(format!(
                    "{place} refuses the password of role {role:?}"
                )),
                "28000" if answer.message().ends_with("does not exist") => {
                    UnusablePostgres::Never(format!(
                        "there is no role {role:?} at {place}; create it with: create role {} login",
                        quoted(role)
                    ))
                }
                code if code.starts_with("57P") || code.starts_with("53") => {
                    UnusablePostgres::NotYet(format!(
                        "{place} refuses connections: {}",
                        answer.message()
                    ))
                }
                // A pooler that has no connection to its server. It says the same of parameters
                // that it does not know, which do not pass.
                code if code.starts_with("08")
                    && !answer.message().contains("startup parameter") =>
                {
                    UnusablePostgres::NotYet(format!(
                        "{place} reaches no server: {}",
                        answer.message()
                    ))
                }
                _ => UnusablePostgres::Never(format!(
                    "{place} refuses role {role:?}: {}",
                    answer.message()
                )),
            }
        }
        // The server went down during the greeting.
        sqlx::Error::Protocol(_) => UnusablePostgres::NotYet(format!(
            "{place} closed the connection during the handshake"
        )),
        error => UnusablePostgres::Never(format!("{place} cannot be used: {error}")),
    }
}

fn place(options: &PgConnectOptions) -> String {
    match options.get_socket() {
        Some(folder) => format!("{} (port {})", folder.display(), options.get_port()),
        None => format!("{}:{}", options.get_host(), options.get_port()),
    }
}

/// Quotes `name` as an SQL identifier.
fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

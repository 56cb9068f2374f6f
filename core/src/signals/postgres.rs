//! Reads one number with a read-only statement on a database.

use std::time::Duration;

use serde_json::Value;
use sqlx::postgres::PgPoolOptions;
use sqlx::{AssertSqlSafe, Row};

use super::probe::number;
use super::{Error, Missing, Reading};
use crate::postgres::{Db, connect_options};

/// Timeout of a statement, which runs twice a second.
pub const TIMEOUT: Duration = Duration::from_millis(500);

/// Timeout of a new connection, longer than a statement's so that a distant server is reached at
/// all.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);

/// The time for which a reading keeps its connection. The server ends the statement long before, but
/// one that vanished never answers.
const ANSWER_WITHIN: Duration = CONNECT_WITHIN.saturating_add(TIMEOUT);

/// Connections of one database, more than one so that a hung connection does not block the next
/// statement.
const CONNECTIONS: u32 = 2;

/// Begins a transaction that cannot write, whatever the statement, and in which the server itself
/// ends slow statements.
const BEGIN_READ_ONLY: &str =
    "begin read only; set local statement_timeout = '400ms'; set local jit = off";

/// The name of the connections in `pg_stat_activity`.
const APPLICATION: &str = "flyball signal";

/// A database that is queried for readings.
#[derive(Clone, Debug)]
pub struct SignalDatabase {
    name: String,
    db: Db,
}

impl SignalDatabase {
    /// Opens the database at `url`, called `name` in errors, which never show the URL. Connections
    /// are made when they are needed.
    pub fn new(name: &str, url: &str) -> Result<Self, Error> {
        let options = connect_options(url).map_err(|_| Error::Source {
            what: "postgres",
            name: name.to_owned(),
            reason: "its URL is not a Postgres URL".to_owned(),
        })?;
        let pool = PgPoolOptions::new()
            .max_connections(CONNECTIONS)
            .acquire_timeout(CONNECT_WITHIN);
        Ok(Self {
            name: name.to_owned(),
            db: Db::lent(pool, options.application_name(APPLICATION), BEGIN_READ_ONLY),
        })
    }

    /// Runs `statement` at `now` and returns the number of its one row, with its time if a second
    /// column is called `at`.
    pub async fn read(&self, statement: &str, now: f64) -> Result<Reading, Error> {
        // As JSON, so that a number of any type can be read. A statement in parentheses cannot end
        // the outer one: the protocol refuses more than one statement.
        let requested = format!(
            "select row_to_json(reading)::text from (\n{}\n) reading limit 2",
            statement.trim().trim_end_matches(';')
        );
        let db = self.db.clone();
        // In a task of its own, so that a connection is made eventually even if this call gives up
        // waiting.
        let answer = tokio::spawn(async move {
            let rows = sqlx::query(AssertSqlSafe(requested)).fetch_all(&db);
            let rows = tokio::time::timeout(ANSWER_WITHIN, rows).await;
            rows.unwrap_or(Err(sqlx::Error::PoolTimedOut))
        });
        let url = || self.name.clone();
        let answer = tokio::time::timeout(TIMEOUT, answer).await;
        let rows = match answer.map_err(|_| Error::TimedOut {
            url: url(),
            within_ms: TIMEOUT.as_millis(),
        })? {
            Ok(Ok(rows)) => rows,
            Ok(Err(error)) => return Err(self.redacted_error(&error, statement)),
            Err(_) => {
                return Err(Error::Unreachable {
                    url: url(),
                    reason: "the query was aborted".to_owned(),
                });
            }
        };
        let garbled = |reason: &str| Error::Garbled {
            url: url(),
            reason: reason.to_owned(),
        };
        let [row] = rows.as_slice() else {
            return Err(if rows.is_empty() {
                Missing::Absent.into()
            } else {
                garbled("more than one row")
            });
        };
        let text: String = row
            .try_get(0)
            .map_err(|_| garbled("a row that is not JSON"))?;
        let row: Value =
            serde_json::from_str(&text).map_err(|_| garbled("a row that is not JSON"))?;
        let (value, at) = columns(&row, now).map_err(|reason| garbled(&reason))?;
        Ok(Reading::judge(value, at, now, f64::INFINITY)?)
    }

    /// Converts an error, without the URL and its contents.
    fn redacted_error(&self, error: &sqlx::Error, statement: &str) -> Error {
        let url = self.name.clone();
        match error.as_database_error() {
            Some(error) if error.code().as_deref() == Some("57014") => Error::TimedOut {
                url,
                within_ms: 400,
            },
            // Syntax, names, rights, values, and writes in a read-only transaction.
            Some(error)
                if error.code().is_some_and(|code| {
                    ["42", "22", "25", "0A"]
                        .iter()
                        .any(|class| code.starts_with(class))
                }) =>
            {
                Error::BadQuery {
                    query: statement.to_owned(),
                    message: error.message().to_owned(),
                }
            }
            Some(error) => Error::Unreachable {
                url,
                reason: format!("the server said {}", error.code().unwrap_or_default()),
            },
            None => Error::Unreachable {
                url,
                reason: reason(error).to_owned(),
            },
        }
    }
}

/// Returns a reason without the driver's message, which may name users and hosts.
fn reason(error: &sqlx::Error) -> &'static str {
    match error {
        sqlx::Error::PoolTimedOut => "no connection in time",
        sqlx::Error::Tls(_) => "TLS failed",
        sqlx::Error::Io(_) => "the connection failed",
        _ => "sending the statement failed",
    }
}

/// Returns value and time of a row: a single column of any name, or that and one called `at`.
fn columns(row: &Value, now: f64) -> Result<(Option<f64>, f64), String> {
    let columns = row.as_object().ok_or("a row that is not an object")?;
    let (times, values): (Vec<_>, Vec<_>) = columns
        .iter()
        .partition(|(name, _)| columns.len() > 1 && *name == "at");
    let [(name, value)] = values.as_slice() else {
        return Err(format!(
            "{} columns; use one, or one and its time named at",
            columns.len()
        ));
    };
    let value = number(Some(value)).map_err(|found| format!("{found} in the column {name}"))?;
    match times.first() {
        None => Ok((value, now)),
        Some((_, at)) => Ok((
            value,
            time(at).ok_or("a column at that is neither a timestamptz nor unix seconds")?,
        )),
    }
}

fn time(at: &Value) -> Option<f64> {
    match at {
        Value::String(text) => {
            Some(text.parse::<jiff::Timestamp>().ok()?.as_microsecond() as f64 / 1e6)
        }
        other => other.as_f64(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_row_is_a_number_and_perhaps_its_time() {
        assert_eq!(columns(&json!({"count": 7}), 9.0), Ok((Some(7.0), 9.0)));
        assert_eq!(
            columns(&json!({"at": 7}), 9.0),
            Ok((Some(7.0), 9.0)),
            "a single column is the number, whatever its name"
        );
        assert_eq!(columns(&json!({"lag": null}), 9.0), Ok((None, 9.0)));
        assert_eq!(
            columns(&json!({"v": "1.5", "at": 8}), 9.0),
            Ok((Some(1.5), 8.0))
        );
        let dated = json!({"v": 1, "at": "2023-11-14T22:13:20.5+00:00"});
        assert_eq!(columns(&dated, 9.0), Ok((Some(1.0), 1_700_000_000.5)));
    }

    #[test]
    fn other_rows_say_what_they_are() {
        for (row, reported) in [
            (json!({"a": 1, "b": 2}), "2 columns; use one"),
            (json!({"a": 1, "b": 2, "at": 3}), "3 columns; use one"),
            (json!({"a": [1]}), "a list in the column a"),
            (
                json!({"a": 1, "at": "2023-11-14T22:13:20"}),
                "neither a timestamptz nor unix seconds",
            ),
            (json!({"a": 1, "at": null}), "neither a timestamptz"),
        ] {
            assert!(columns(&row, 9.0).unwrap_err().contains(reported), "{row}");
        }
    }
}

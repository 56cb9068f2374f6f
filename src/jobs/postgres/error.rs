//! What an error of Postgres means to a caller of the queue.

use crate::jobs::Error;

impl From<sqlx::Error> for Error {
    fn from(error: sqlx::Error) -> Self {
        match &error {
            sqlx::Error::Io(_) | sqlx::Error::PoolTimedOut | sqlx::Error::PoolClosed | sqlx::Error::WorkerCrashed => {
                Error::Lost(error.to_string())
            }
            sqlx::Error::Database(from_server) => {
                let code = from_server.code().unwrap_or_default().into_owned();
                match code.as_str() {
                    // Shutting down, crashed, starting up, out of connections, or any break of the connection.
                    "57P01" | "57P02" | "57P03" | "53300" => Error::Lost(from_server.message().to_owned()),
                    other if other.starts_with("08") => Error::Lost(from_server.message().to_owned()),
                    "22023" => refused(from_server.as_ref()).unwrap_or(Error::Store(error)),
                    "22P05" | "22021" => Error::Refused {
                        index: None,
                        field: "args".to_owned(),
                        message: "contains the character \\u0000, which Postgres cannot store".to_owned(),
                    },
                    _ => Error::Store(error),
                }
            }
            _ => Error::Store(error),
        }
    }
}

/// A refusal by `flyball.enqueue_many` carries the field as the column and the job's place as the table.
fn refused(error: &dyn sqlx::error::DatabaseError) -> Option<Error> {
    let postgres = error.try_downcast_ref::<sqlx::postgres::PgDatabaseError>()?;
    let field = postgres.column()?.to_owned();
    let index = postgres.table().and_then(|table| table.parse().ok());
    let text = postgres.message();
    let message = text.split_once(&format!("{field}: ")).map_or(text, |(_, rest)| rest).to_owned();
    Some(Error::Refused { index, field, message })
}

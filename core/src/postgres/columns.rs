//! Reads of a row whose columns may hold more than a Rust type can: a number such as 1e400 or 200
//! levels of brackets in a `jsonb`, a time after the year 9999. Such a row must not fail the rows
//! read with it.

use serde_json::Value;
use sqlx::postgres::{PgRow, Postgres};
use sqlx::{Column as _, ColumnIndex, Decode, Row as _, Type};

/// The columns of one row. An unreadable column yields its default, and the first one is
/// remembered.
pub struct Columns<'r> {
    row: &'r PgRow,
    unreadable: Option<String>,
}

impl<'r> Columns<'r> {
    /// Wraps `row` for reading.
    pub fn of(row: &'r PgRow) -> Self {
        Self {
            row,
            unreadable: None,
        }
    }

    /// Returns a column, or the default of its type if it is unreadable.
    pub fn get<T>(&mut self, column: impl ColumnIndex<PgRow> + Copy) -> T
    where
        T: Decode<'r, Postgres> + Type<Postgres> + Default,
    {
        let read = self.row.try_get(column);
        read.unwrap_or_else(|error| {
            self.note(column, error);
            T::default()
        })
    }

    /// Returns a `jsonb`, or its text if it is unreadable.
    pub fn json(&mut self, column: impl ColumnIndex<PgRow> + Copy) -> Value {
        match self.row.try_get(column) {
            Ok(value) => value,
            Err(error) => {
                self.note(column, error);
                text(self.row, column)
            }
        }
    }

    /// Returns the name of the first unreadable column and the reason, without the data itself.
    pub fn unreadable(self) -> Option<String> {
        self.unreadable
    }

    fn note(&mut self, column: impl ColumnIndex<PgRow>, error: sqlx::Error) {
        let name = self
            .row
            .try_column(column)
            .map_or("a column", |column| column.name());
        // The driver's own prefix adds only the column's position.
        let reason = match error {
            sqlx::Error::ColumnDecode { source, .. } => source.to_string(),
            other => other.to_string(),
        };
        self.unreadable
            .get_or_insert_with(|| format!("{name} cannot be read: {reason}"));
    }
}

/// Returns a `jsonb` for display: its value, or its text if it is unreadable.
pub fn json_or_text(row: &PgRow, column: &str) -> Value {
    row.try_get(column).unwrap_or_else(|_| text(row, column))
}

fn text(row: &PgRow, column: impl ColumnIndex<PgRow>) -> Value {
    json_text(row, column).map_or(Value::Null, Value::String)
}

/// Returns a `jsonb` as its text, which is exact; `None` if it is null.
pub fn json_text(row: &PgRow, column: impl ColumnIndex<PgRow>) -> Option<String> {
    // On the wire a `jsonb` is a version byte followed by its text.
    let text = row.try_get_unchecked::<Option<String>, _>(column).ok()??;
    Some(text.trim_start_matches('\u{1}').to_owned())
}

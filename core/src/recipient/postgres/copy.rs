//! Rows that go to Postgres by `copy`: those of one page take a single record of its log.
//!
//! A statement names all columns whose default is a function of the time, because each row would
//! have a record of its own otherwise.

use std::fmt::{Display, Write as _};

use sqlx::PgConnection;

/// The number of rows from which a copy is worth its round trips.
pub(super) const COPIED_MIN: usize = 8;

/// Rows in the text format of `copy`.
#[derive(Default)]
pub(super) struct CopiedRows {
    text: String,
    begins_row: bool,
    rows: usize,
}

impl CopiedRows {
    /// Begins the next row.
    pub(super) fn row(&mut self) -> &mut Self {
        if self.rows > 0 {
            self.text.push('\n');
        }
        self.rows += 1;
        self.begins_row = true;
        self
    }

    /// Adds a value whose text has no character that `copy` gives a meaning.
    pub(super) fn plain(&mut self, value: impl Display) -> &mut Self {
        self.separate();
        // Writing to a string does not fail.
        let _ = write!(self.text, "{value}");
        self
    }

    /// Adds such a value, or null.
    pub(super) fn plain_or_null(&mut self, value: Option<impl Display>) -> &mut Self {
        match value {
            Some(value) => self.plain(value),
            None => self.plain("\\N"),
        }
    }

    /// Adds any text.
    pub(super) fn text(&mut self, value: &str) -> &mut Self {
        self.separate();
        for char in value.chars() {
            match char {
                '\\' => self.text.push_str("\\\\"),
                '\n' => self.text.push_str("\\n"),
                '\r' => self.text.push_str("\\r"),
                '\t' => self.text.push_str("\\t"),
                other => self.text.push(other),
            }
        }
        self
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rows == 0
    }

    fn separate(&mut self) {
        if !self.begins_row {
            self.text.push('\t');
        }
        self.begins_row = false;
    }

    /// Writes the rows by this statement.
    pub(super) async fn write(
        self,
        connection: &mut PgConnection,
        statement: &'static str,
    ) -> Result<(), sqlx::Error> {
        if self.is_empty() {
            return Ok(());
        }
        copy(connection, statement, self.text).await
    }
}

/// Writes rows that are in the text format already.
pub(super) async fn copy(
    connection: &mut PgConnection,
    statement: &'static str,
    text: String,
) -> Result<(), sqlx::Error> {
    let mut rows = connection.copy_in_raw(statement).await?;
    rows.send(text.into_bytes()).await?;
    rows.finish().await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::CopiedRows;

    #[test]
    fn a_text_keeps_every_character_and_its_place() {
        let mut rows = CopiedRows::default();

        rows.row().plain(7).text("a\tb\\c\nd\re");
        rows.row().plain_or_null(None::<i64>).text("");

        assert_eq!(rows.text, "7\ta\\tb\\\\c\\nd\\re\n\\N\t");
    }
}

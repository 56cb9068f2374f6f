//! Rows that go to Postgres by `copy`: those of one page take a single record of its log.
//!
//! They are in the binary format, which Postgres need not parse, so each value must have the type of
//! its column. A statement names all columns whose default is a function of the time, because each
//! row would have a record of its own otherwise.

use jiff::Timestamp;
use sqlx::query;

use crate::postgres::Transaction;
use crate::recipient::address::RecipientKey;

/// The number of rows from which a copy is worth its round trips.
pub(super) const COPIED_MIN: usize = 8;

/// The begin of the binary format: its name, no flags, and no extension.
const HEADER: &[u8] = b"PGCOPY\n\xff\r\n\0\0\0\0\0\0\0\0\0";

/// The end of the format, in the place of the number of a row's values.
const END: i16 = -1;

/// The length of a value that is null.
const NULL: i32 = -1;

/// The version of the form of `jsonb`, before its text.
const JSONB: u8 = 1;

/// The second from which Postgres counts time: the begin of 2000.
const EPOCH_S: i64 = 946_684_800;

/// Rows in the binary format of `copy`.
pub(super) struct CopiedRows {
    bytes: Vec<u8>,
    /// The place of the number of values of the last row.
    row: Option<usize>,
}

impl Default for CopiedRows {
    fn default() -> Self {
        Self {
            bytes: HEADER.to_vec(),
            row: None,
        }
    }
}

impl CopiedRows {
    /// Begins the next row.
    pub(super) fn row(&mut self) -> &mut Self {
        self.row = Some(self.bytes.len());
        self.bytes.extend([0, 0]);
        self
    }

    /// Adds a `smallint`.
    pub(super) fn smallint(&mut self, value: i16) -> &mut Self {
        self.value(&value.to_be_bytes())
    }

    /// Adds an `int`.
    pub(super) fn int(&mut self, value: i32) -> &mut Self {
        self.value(&value.to_be_bytes())
    }

    /// Adds a `bigint`.
    pub(super) fn bigint(&mut self, value: i64) -> &mut Self {
        self.value(&value.to_be_bytes())
    }

    /// Adds a `float8`.
    pub(super) fn float(&mut self, value: f64) -> &mut Self {
        self.value(&value.to_be_bytes())
    }

    /// Adds a `boolean`.
    pub(super) fn boolean(&mut self, value: bool) -> &mut Self {
        self.value(&[u8::from(value)])
    }

    /// Adds a `text`, or a value of an enum by its name.
    pub(super) fn text(&mut self, value: &str) -> &mut Self {
        self.value(value.as_bytes())
    }

    /// Adds a `bytea`.
    pub(super) fn bytes(&mut self, value: &[u8]) -> &mut Self {
        self.value(value)
    }

    /// Adds a `jsonb`, from its text.
    pub(super) fn json(&mut self, text: &str) -> &mut Self {
        self.value_of(&[&[JSONB], text.as_bytes()])
    }

    /// Adds a `uuid`.
    pub(super) fn key(&mut self, value: RecipientKey) -> &mut Self {
        self.value(value.as_bytes())
    }

    /// Adds a `timestamptz`.
    pub(super) fn time(&mut self, value: Timestamp) -> &mut Self {
        self.bigint(value.as_microsecond() - EPOCH_S * 1_000_000)
    }

    /// Adds a value as `add` does it, or null.
    pub(super) fn or_null<T>(
        &mut self,
        value: Option<T>,
        add: fn(&mut Self, T) -> &mut Self,
    ) -> &mut Self {
        match value {
            Some(value) => add(self, value),
            None => {
                self.count();
                self.bytes.extend(NULL.to_be_bytes());
                self
            }
        }
    }

    fn value(&mut self, value: &[u8]) -> &mut Self {
        self.value_of(&[value])
    }

    fn value_of(&mut self, parts: &[&[u8]]) -> &mut Self {
        self.count();
        let length: usize = parts.iter().map(|part| part.len()).sum();
        // Postgres refuses a message of more than a gigabyte, so this is never too long for it.
        let length = i32::try_from(length).unwrap_or(i32::MAX);
        self.bytes.extend(length.to_be_bytes());
        parts.iter().for_each(|part| self.bytes.extend(*part));
        self
    }

    /// Counts one more value of the row.
    fn count(&mut self) {
        let Some(at) = self.row else {
            return;
        };
        let place = &mut self.bytes[at..at + 2];
        let count = i16::from_be_bytes([place[0], place[1]]) + 1;
        place.copy_from_slice(&count.to_be_bytes());
    }

    /// Writes the rows by this statement, whose format is binary.
    pub(super) async fn write(
        mut self,
        connection: &mut Transaction,
        statement: &'static str,
    ) -> Result<(), sqlx::Error> {
        if self.row.is_none() {
            return Ok(());
        }
        self.bytes.extend(END.to_be_bytes());
        let mut rows = connection.copy_in_raw(statement).await?;
        rows.send(self.bytes).await?;
        rows.finish().await.map(drop)
    }

    /// Writes rows that nobody else has written, by this statement. Returns false, having written
    /// none, if somebody wrote one of them meanwhile.
    pub(super) async fn write_if_new(
        self,
        connection: &mut Transaction,
        statement: &'static str,
    ) -> Result<bool, sqlx::Error> {
        query("savepoint copied").execute(&mut *connection).await?;
        match self.write(connection, statement).await {
            Ok(()) => {
                let released = query("release savepoint copied");
                released.execute(connection).await?;
                Ok(true)
            }
            // A unique violation, or a deadlock between two that copy the same keys.
            Err(sqlx::Error::Database(error))
                if matches!(error.code().as_deref(), Some("23505" | "40P01")) =>
            {
                let back = query("rollback to savepoint copied");
                back.execute(connection).await?;
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{CopiedRows, HEADER};

    #[test]
    fn a_row_has_the_number_of_its_values_and_each_has_its_length() {
        let mut rows = CopiedRows::default();

        rows.row().bigint(7).text("a\tb").json("{}");
        rows.row()
            .or_null(None, CopiedRows::bigint)
            .or_null(Some(1), CopiedRows::smallint);
        rows.row().time("2000-01-01T00:00:01Z".parse().unwrap());

        let mut expected = HEADER.to_vec();
        expected.extend([0, 3, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 7]);
        expected.extend([0, 0, 0, 3, b'a', b'\t', b'b', 0, 0, 0, 3, 1, b'{', b'}']);
        expected.extend([0, 2, 255, 255, 255, 255, 0, 0, 0, 2, 0, 1]);
        expected.extend([0, 1, 0, 0, 0, 8, 0, 0, 0, 0, 0, 15, 66, 64]);
        assert_eq!(rows.bytes, expected);
    }
}

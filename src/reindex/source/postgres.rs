//! A table or a query in Postgres as a source: a keyset scan, each page one statement.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::future::BoxFuture;
use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, Row};

use super::{Error, Page, Source};
use crate::postgres::Db;
use crate::reindex::args::{self, Rows};
use crate::reindex::document::Document;
use crate::reindex::postgres::{Database, class, qualified, quoted};

/// Rows that are counted one by one for the estimate; beyond it the planner's own figure is used.
const MAX_COUNTED: i64 = 1_000_000;

/// Ends a count that takes too long; progress without a total is better than a late start.
const BOUND_THE_COUNT: &str = "set local statement_timeout = '5s'";

/// The planner's figure, where the relation is a table of its own.
const PLANNED_ROWS: &str = "
    select reltuples::bigint
    from pg_class
    where oid = to_regclass($1) and relkind in ('r', 'm', 'p') and reltuples > 0";

/// Reads a table or a query over connections of its own, in read-only sessions.
pub struct PostgresSource {
    pool: Db,
    rows: String,
    table: Option<String>,
    key: Vec<String>,
    document: String,
    id: String,
    types: OnceLock<Vec<String>>,
}

impl PostgresSource {
    /// A source as the job asks.
    ///
    /// The statements are put together from the job's names, so each name is quoted as an identifier. A query is used as
    /// it stands: whoever may enqueue such a job may read what the worker's database role may read, but not write.
    pub fn open(database: Database, source: &args::Source, id: &str) -> Self {
        let pool = database.reader(2, Duration::from_secs(10));
        let (rows, table) = match &source.rows {
            Rows::Table(parts) => (qualified(parts), Some(qualified(parts))),
            Rows::Query(query) => (format!("({query}\n)"), None),
        };
        let document = match &source.columns {
            None => "to_jsonb(q)".to_owned(),
            Some(columns) => format!("(select to_jsonb(r) from (select {}) r)", of_q(columns).join(", ")),
        };
        Self { pool, rows, table, key: of_q(&source.key), document, id: of_q(&[id.to_owned()]).remove(0), types: OnceLock::new() }
    }

    /// The types of the key's columns; `None` while there are no rows. Fails if the key cannot carry a scan.
    async fn types(&self) -> Result<Option<&[String]>, Error> {
        if self.types.get().is_none() {
            let types: Vec<_> = self.key.iter().map(|k| format!("pg_typeof({k})::text")).collect();
            let probe = format!("select array[{}] from {} q limit 1", types.join(", "), self.rows);
            let found: Option<Vec<String>> =
                sqlx::query_scalar(AssertSqlSafe(probe)).fetch_optional(&self.pool).await.map_err(error)?;
            let Some(found) = found else { return Ok(None) };
            let nulls: Vec<_> = self.key.iter().map(|k| format!("{k} is null")).collect();
            let probe = format!("select exists (select from {} q where {})", self.rows, nulls.join(" or "));
            if sqlx::query_scalar(AssertSqlSafe(probe)).fetch_one(&self.pool).await.map_err(error)? {
                return Err(Error::Wrong(format!(
                    "the key {} is null in some rows, which a scan by key would miss",
                    self.key.join(", ")
                )));
            }
            // A table without rows is asked again: the first may arrive while we look.
            let _ = self.types.set(found);
        }
        Ok(self.types.get().map(Vec::as_slice))
    }

    async fn read(&self, after: Option<&[String]>, limit: usize) -> Result<Page, Error> {
        let Some(types) = self.types().await? else { return Ok(Page::default()) };
        if after.is_some_and(|a| a.len() != types.len()) {
            return Err(Error::Wrong("the cursor does not fit the key's columns".to_owned()));
        }
        let texts: Vec<_> = self.key.iter().map(|k| format!("{k}::text")).collect();
        // One row more than asked is read: it tells whether more follow and shows a key that is not unique.
        let statement = format!(
            "select array[{texts}] as key, {id}::text as id, {document}::text as json from {rows} q {from} order by {key} limit $1",
            texts = texts.join(", "),
            id = self.id,
            document = self.document,
            rows = self.rows,
            from = after.map_or_else(String::new, |_| self.above(types)),
            key = self.key.join(", "),
        );
        let query = sqlx::query(AssertSqlSafe(statement)).bind(limit as i64 + 1);
        let query = if let Some(after) = after { query.bind(after) } else { query };
        let rows = query.fetch_all(&self.pool).await.map_err(error)?;
        let mut documents = rows.iter().map(document).collect::<Result<Vec<_>, _>>().map_err(error)?;
        if let Some(twice) = documents.windows(2).find(|pair| pair[0].key == pair[1].key) {
            return Err(Error::Wrong(format!(
                "the key {} is not unique ({} appears twice), so that a scan by key would miss rows",
                self.key.join(", "),
                twice[0].key.join(", "),
            )));
        }
        let more = documents.len() > limit;
        documents.truncate(limit);
        Ok(Page { documents, more })
    }

    /// `where (q."a", q."b") > (($2::text[])[1]::integer, …)`: an index range, whatever the types.
    fn above(&self, types: &[String]) -> String {
        let values: Vec<_> = types.iter().enumerate().map(|(n, t)| format!("($2::text[])[{}]::{t}", n + 1)).collect();
        format!("where ({}) > ({})", self.key.join(", "), values.join(", "))
    }

    async fn count(&self) -> Result<Option<u64>, Error> {
        if let Some(table) = &self.table {
            let planned: Option<i64> =
                sqlx::query_scalar(PLANNED_ROWS).bind(table).fetch_optional(&self.pool).await.map_err(error)?;
            if let Some(rows) = planned.filter(|rows| *rows > MAX_COUNTED) {
                return Ok(u64::try_from(rows).ok());
            }
        }
        let count = format!("select count(*) from (select from {} q limit {MAX_COUNTED}) c", self.rows);
        let mut transaction = self.pool.begin().await.map_err(error)?;
        sqlx::raw_sql(BOUND_THE_COUNT).execute(&mut *transaction).await.map_err(error)?;
        let counted: Result<i64, _> =
            sqlx::query_scalar(AssertSqlSafe(count)).persistent(false).fetch_one(&mut *transaction).await;
        transaction.rollback().await.map_err(error)?;
        // A count that hit its bounds, of rows or of time, is not a total.
        Ok(counted.ok().filter(|rows| *rows < MAX_COUNTED).and_then(|rows| u64::try_from(rows).ok()))
    }
}

impl Source for PostgresSource {
    fn estimate(&self) -> BoxFuture<'_, Result<Option<u64>, Error>> {
        Box::pin(self.count())
    }

    fn page<'a>(&'a self, after: Option<&'a [String]>, limit: usize) -> BoxFuture<'a, Result<Page, Error>> {
        Box::pin(self.read(after, limit))
    }
}

fn of_q(columns: &[String]) -> Vec<String> {
    columns.iter().map(|c| format!("q.{}", quoted(c))).collect()
}

fn document(row: &PgRow) -> Result<Document, sqlx::Error> {
    Ok(Document {
        key: Arc::from(row.try_get::<Vec<String>, _>("key")?),
        id: row.try_get("id")?,
        json: Arc::from(row.try_get::<String, _>("json")?),
    })
}

/// What the database calls our fault (syntax, names, rights, data) will not pass by waiting.
fn error(error: sqlx::Error) -> Error {
    match class(&error).as_str() {
        "42" | "22" | "25" | "0A" | "21" => Error::Wrong(error.to_string()),
        _ => Error::Lost(error.to_string()),
    }
}

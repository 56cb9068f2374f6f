//! A table or a query in Postgres as a source: a keyset scan, each page one statement in a
//! transaction of its own.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::TryStreamExt;
use futures_util::future::BoxFuture;
use sqlx::postgres::{PgArguments, PgRow};
use sqlx::{AssertSqlSafe, Postgres, Row};

use super::page::PAGE_BYTES;
use super::{DocumentPage, DocumentSource, Error};
use crate::reindex::catalogue::DatabaseRights;
use crate::reindex::document::{Action, Document};
use crate::reindex::postgres::{
    ReindexDatabase, TOO_LONG, TransactionPool, class, code, message, qualified, quoted,
};
use crate::reindex::source_args::{Rows, SourceArgs};

/// Most rows that are counted for the estimate; beyond it the planner's figure is used.
const MAX_COUNTED: i64 = 1_000_000;

/// The rows of a page that is not read again in smaller parts after its timeout.
const FEWEST_ROWS: usize = 50;

/// The part by which pages grow with each that comes in time, after one took too long.
const GROWTH: usize = 32;

/// Timeout of the count; progress without a total is better than a late start.
const COUNT_WITHIN: Duration = Duration::from_secs(5);

/// Codes that end transactions that lasted too long, for instance because the worker was suspended.
/// The others of their class are of statements that would write, or change the transaction.
const ENDED: [&str; 2] = ["25P03", "25P04"];

/// Reads the planner's estimate, if the relation is a plain table.
const PLANNED_ROWS: &str = "
    select reltuples::bigint
    from pg_class
    where oid = to_regclass($1) and relkind in ('r', 'm', 'p') and reltuples > 0";

/// Reads the columns of a table's primary key, which holds for partitions, but not for the rows of
/// tables that inherit. Columns that its index only includes may be null, and are left out.
const PRIMARY_KEY: &str = "
    select a.attname::text
    from pg_constraint k
    join pg_class c on c.oid = k.conrelid
    join pg_attribute a on a.attrelid = k.conrelid and a.attnum = any(k.conkey)
    where k.conrelid = to_regclass($1) and k.contype = 'p'
        and (c.relkind = 'p' or not c.relhassubclass)";

/// Reads the operators by which an index finds values of these types above another, and whether
/// each is also found as a plain `>`. A type without operators of its own, such as an enumeration,
/// has those of the system.
///
/// Rows are sorted by the type, wherever its operators are, but an operator without a schema is
/// searched for. For citext in a schema that is not searched, that finds the one of text, which
/// sorts otherwise.
const OPERATORS: &str = "
    select coalesce(o.name, 'operator(pg_catalog.>)'), coalesce(o.is_plain, true)
    from pg_catalog.unnest($1::text[]) with ordinality k (type, place)
    left join lateral (
        with recursive base (oid) as (
            select k.type::regtype::oid
            union
            select t.typbasetype from base b join pg_type t on t.oid = b.oid where t.typbasetype <> 0::oid
        )
        select pg_catalog.format('operator(%I.%s)', n.nspname, o.oprname) as name,
            o.oprname = '>' and pg_catalog.pg_operator_is_visible(o.oid) as is_plain
        from base b
        join pg_opclass c on c.opcintype = b.oid and c.opcdefault
        join pg_am m on m.oid = c.opcmethod and m.amname = 'btree'
        join pg_amop a on a.amopfamily = c.opcfamily and a.amoplefttype = b.oid and a.amoprighttype = b.oid
            and a.amopstrategy = 5
        join pg_operator o on o.oid = a.amopopr
        join pg_namespace n on n.oid = o.oprnamespace
        limit 1
    ) o on true
    order by k.place";

/// The order of a key.
struct KeyOrder {
    /// The types of its columns.
    types: Vec<String>,
    /// The operator that finds rows above a place.
    above: String,
}

/// Reads a table or a query over its own connections, in read-only transactions.
pub struct PostgresSource {
    session: TransactionPool,
    counting: TransactionPool,
    rows: String,
    table: Option<String>,
    key: Vec<String>,
    /// The expressions of the document's text, in the order in which they are tried.
    document: [String; 2],
    id: String,
    routing: String,
    order: OnceLock<KeyOrder>,
    /// Most rows of a page, after a larger one took too long.
    rows_max: AtomicUsize,
}

impl PostgresSource {
    /// Opens a source for the job, with the columns that the sink needs beside the document.
    ///
    /// The statements contain the job's names, so each name is quoted as an identifier. A query is
    /// used unchanged: it is the operator's own, or the operator lets jobs bring theirs, and then
    /// it may read what the role of the database's URL may read. Either way it can neither write
    /// nor outlive its page.
    pub fn open(
        database: ReindexDatabase,
        source: &SourceArgs,
        id: &str,
        routing: Option<&str>,
    ) -> Self {
        let (one, acquire_timeout) = (1, Duration::from_secs(10));
        let hurried = DatabaseRights {
            statement_timeout: COUNT_WITHIN.min(source.rights.statement_timeout),
            ..source.rights.clone()
        };
        let counting = database.clone().reader(&hurried, one, acquire_timeout);
        let session = database.reader(&source.rights, one, acquire_timeout);
        let (rows, table) = match &source.rows {
            Rows::Table(parts) => (qualified(parts), Some(qualified(parts))),
            Rows::Query(query) => (format!("({query}\n)"), None),
            // A collection is not opened as a table: see `Connect::source`.
            Rows::Collection(_) => (String::new(), None),
        };
        let row = |function: &str| match &source.columns {
            // With the star it is the whole row, even if a column has the name of the alias.
            None => format!("{function}(q.*)"),
            Some(columns) => format!(
                "(select {function}(r.*) from (select {}) r)",
                of_q(columns).join(", ")
            ),
        };
        // With the name of its schema, the system's function is called and none that fits better. A
        // column of the type json may hold what jsonb refuses, such as \u0000. It is then sent as it
        // is, on one line: between its values a line break is the same as a space, and within them
        // there is none.
        let document = [
            format!("{}::text", row("pg_catalog.to_jsonb")),
            format!(
                "pg_catalog.translate({}::text, E'\\n\\r', '  ')",
                row("pg_catalog.to_json")
            ),
        ];
        let one = |column: &str| format!("q.{}::text", quoted(column));
        let (id, routing) = (
            one(id),
            routing.map_or_else(|| "null::text".to_owned(), one),
        );
        Self {
            session,
            counting,
            rows,
            table,
            key: of_q(&source.key),
            document,
            id,
            routing,
            order: OnceLock::new(),
            rows_max: AtomicUsize::new(usize::MAX),
        }
    }

    /// Returns the order of the key, or `None` while there are no rows. Fails if the key is unfit
    /// for a scan.
    async fn order(&self) -> Result<Option<&KeyOrder>, Error> {
        if self.order.get().is_none() {
            // The modifier -1 asks for a name that cuts nothing: `character` alone, as pg_typeof
            // writes it, is character(1).
            let types: Vec<_> = self
                .key
                .iter()
                .map(|k| format!("pg_catalog.format_type(pg_catalog.pg_typeof({k}), -1)"))
                .collect();
            let probe = format!(
                "select array[{}] from {} q limit 1",
                types.join(", "),
                self.rows
            );
            let found = ask(&self.session, sqlx::query(AssertSqlSafe(probe))).await?;
            let Some(found) = found.first() else {
                return Ok(None);
            };
            let types: Vec<String> = found.try_get(0).map_err(error)?;
            if self.has_nulls().await? {
                return Err(Error::Wrong(format!(
                    "the key {} is null in some rows, which a scan by key would miss",
                    self.key.join(", ")
                )));
            }
            let above = self.operator_above(&types).await?;
            // A table without rows is probed again later, because the first may arrive meanwhile.
            let _ = self.order.set(KeyOrder { types, above });
        }
        Ok(self.order.get())
    }

    /// Returns the operator that finds rows above a place in the order in which they are sorted.
    async fn operator_above(&self, types: &[String]) -> Result<String, Error> {
        let asked = sqlx::query(OPERATORS).bind(types.to_vec());
        let (mut operators, mut are_plain) = (Vec::new(), true);
        for row in ask(&self.session, asked).await? {
            operators.push(row.try_get::<String, _>(0).map_err(error)?);
            are_plain &= row.try_get::<bool, _>(1).map_err(error)?;
        }
        // One operator compares all columns.
        operators.dedup();
        match operators.as_slice() {
            [one] => Ok(one.clone()),
            _ if are_plain => Ok(">".to_owned()),
            _ => Err(Error::Wrong(format!(
                "the key {} has columns of the types {}, whose operators are in several schemas: set a search_path \
                 with all of them for the user of the URL",
                self.key.join(", "),
                types.join(", "),
            ))),
        }
    }

    /// Returns true if the key is null in some rows. The columns of a primary key never are, and a
    /// search for a null behind the first of them would read a whole index.
    async fn has_nulls(&self) -> Result<bool, Error> {
        let mut never_null = Vec::new();
        if let Some(table) = &self.table {
            let primary = sqlx::query(PRIMARY_KEY).bind(table.clone());
            for row in ask(&self.session, primary).await? {
                never_null.push(row.try_get::<String, _>(0).map_err(error)?);
            }
        }
        let never_null = of_q(&never_null);
        let nulls: Vec<_> = (self.key.iter())
            .filter(|column| !never_null.contains(column))
            .map(|column| format!("{column} is null"))
            .collect();
        if nulls.is_empty() {
            return Ok(false);
        }
        let probe = format!(
            "select exists (select from {} q where {})",
            self.rows,
            nulls.join(" or ")
        );
        let found = ask(&self.session, sqlx::query(AssertSqlSafe(probe))).await?;
        Ok(found
            .first()
            .is_some_and(|row| row.try_get(0).unwrap_or(false)))
    }

    async fn read(&self, after: Option<&[String]>, limit: usize) -> Result<DocumentPage, Error> {
        let Some(order) = self.order().await? else {
            return Ok(DocumentPage::default());
        };
        if after.is_some_and(|a| a.len() != order.types.len()) {
            return Err(Error::Wrong(
                "the cursor does not match the key's columns".to_owned(),
            ));
        }
        let wanted = limit;
        let mut limit = wanted.min(self.rows_max.load(Ordering::Relaxed));
        let read = loop {
            match self.rows_above(order, after, limit).await {
                Err(fault) if code(&fault) == TOO_LONG && limit > FEWEST_ROWS => {
                    limit = (limit / 4).max(FEWEST_ROWS);
                    self.rows_max.store(limit, Ordering::Relaxed);
                }
                read => break read,
            }
        };
        let (mut documents, page_len) = read.map_err(error)?;
        if limit < wanted {
            // The cause of a late page may be over, such as a lock on the table.
            let grown = limit + (limit / GROWTH).max(1);
            self.rows_max.store(grown, Ordering::Relaxed);
        }
        if let Some(twice) = documents.windows(2).find(|pair| pair[0].key == pair[1].key) {
            return Err(Error::Wrong(format!(
                "the key {} is not unique ({} appears twice), so that a scan by key would miss rows",
                self.key.join(", "),
                twice[0].key.join(", "),
            )));
        }
        if let Some(after) = after
            && documents.iter().any(|document| *document.key == *after)
        {
            return Err(Error::Wrong(format!(
                "the key {} has a type whose text is not its whole value ({} is found above itself), so that a scan \
                 by key would read rows again",
                self.key.join(", "),
                after.join(", "),
            )));
        }
        let more = documents.len() > page_len;
        documents.truncate(page_len);
        Ok(DocumentPage { documents, more })
    }

    /// Reads rows with the first expression for the document that suits all of them.
    async fn rows_above(
        &self,
        order: &KeyOrder,
        after: Option<&[String]>,
        limit: usize,
    ) -> Result<(Vec<Document>, usize), sqlx::Error> {
        let [compact, verbatim] = &self.document;
        match self.select(compact, order, after, limit).await {
            Err(fault) if class(&fault) == "22" => self.select(verbatim, order, after, limit).await,
            read => read,
        }
    }

    /// Reads rows with this expression for the document; see [`Self::documents`].
    async fn select(
        &self,
        document: &str,
        order: &KeyOrder,
        after: Option<&[String]>,
        limit: usize,
    ) -> Result<(Vec<Document>, usize), sqlx::Error> {
        let texts: Vec<_> = self.key.iter().map(|k| format!("{k}::text")).collect();
        // One row more than asked is read: it shows whether more follow, and reveals a key that is
        // not unique.
        let statement = format!(
            "select array[{texts}] as key, {id} as id, {routing} as routing, {document} as json \
             from {rows} q {from} order by {key} limit $1",
            texts = texts.join(", "),
            id = self.id,
            routing = self.routing,
            rows = self.rows,
            from = after.map_or_else(String::new, |_| self.above(order)),
            key = self.key.join(", "),
        );
        let query = sqlx::query(AssertSqlSafe(statement)).bind(limit as i64 + 1);
        let query = if let Some(after) = after {
            query.bind(after)
        } else {
            query
        };
        self.session.bounded(self.documents(query, limit)).await
    }

    /// Reads rows until the page is full, and one more; returns them with the length of the page.
    ///
    /// A page is full after `limit` rows or [`PAGE_BYTES`], because the rows may be much larger than
    /// those by which the limit was chosen.
    async fn documents(
        &self,
        query: sqlx::query::Query<'_, Postgres, PgArguments>,
        limit: usize,
    ) -> Result<(Vec<Document>, usize), sqlx::Error> {
        let mut transaction = self.session.begin().await?;
        let (mut documents, mut bytes, mut is_cut) = (Vec::new(), 0, false);
        {
            let mut rows = query.persistent(false).fetch(&mut *transaction);
            while let Some(row) = rows.try_next().await? {
                is_cut = bytes > PAGE_BYTES;
                let read = document(&row)?;
                bytes += read.bytes();
                documents.push(read);
                if is_cut {
                    break;
                }
            }
        }
        if is_cut {
            // The connection would have to receive the other rows before its next statement, so it
            // is closed.
            drop(transaction);
            let page_len = documents.len() - 1;
            return Ok((documents, page_len));
        }
        self.session.leave(transaction).await?;
        Ok((documents, limit))
    }

    /// Returns `where (q."a", q."b") operator(pg_catalog.>) (($2::text[])[1]::integer, …)`: a range
    /// of an index, whatever the types.
    fn above(&self, order: &KeyOrder) -> String {
        let values: Vec<_> = (order.types.iter())
            .enumerate()
            .map(|(n, t)| format!("($2::text[])[{}]::{t}", n + 1))
            .collect();
        format!(
            "where ({}) {} ({})",
            self.key.join(", "),
            order.above,
            values.join(", ")
        )
    }

    async fn count(&self) -> Result<Option<u64>, Error> {
        if let Some(table) = &self.table {
            let planned = ask(
                &self.counting,
                sqlx::query(PLANNED_ROWS).bind(table.clone()),
            )
            .await?;
            let planned: Option<i64> = planned.first().and_then(|row| row.try_get(0).ok());
            if let Some(rows) = planned.filter(|rows| *rows > MAX_COUNTED) {
                return Ok(u64::try_from(rows).ok());
            }
        }
        let count = format!(
            "select count(*) from (select from {} q limit {MAX_COUNTED}) c",
            self.rows
        );
        let counted = ask(&self.counting, sqlx::query(AssertSqlSafe(count))).await;
        let counted: Option<i64> = counted.ok().and_then(|rows| rows.first()?.try_get(0).ok());
        // A count that hit its limit, of rows or of time, is not a total.
        Ok(counted
            .filter(|rows| *rows < MAX_COUNTED)
            .and_then(|rows| u64::try_from(rows).ok()))
    }
}

/// Runs one statement in a transaction of its own. An error closes the connection, which discards
/// everything that the statement did.
async fn ask(
    session: &TransactionPool,
    query: sqlx::query::Query<'_, Postgres, PgArguments>,
) -> Result<Vec<PgRow>, Error> {
    let asked = async {
        let mut transaction = session.begin().await?;
        // Arguments, even if there are none, make this the extended protocol, which takes only one
        // statement.
        let rows = query.persistent(false).fetch_all(&mut *transaction).await?;
        session.leave(transaction).await?;
        Ok::<_, sqlx::Error>(rows)
    };
    session.bounded(asked).await.map_err(error)
}

impl DocumentSource for PostgresSource {
    fn estimate(&self) -> BoxFuture<'_, Result<Option<u64>, Error>> {
        Box::pin(self.count())
    }

    fn page<'a>(
        &'a self,
        after: Option<&'a [String]>,
        limit: usize,
    ) -> BoxFuture<'a, Result<DocumentPage, Error>> {
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
        routing: row.try_get("routing")?,
        action: Action::Store(Arc::from(row.try_get::<String, _>("json")?)),
    })
}

/// Classifies errors: faults of the statement (syntax, names, rights, data) will not pass by
/// waiting.
fn error(error: sqlx::Error) -> Error {
    match class(&error).as_str() {
        "42" | "22" | "0A" | "21" => Error::Wrong(message(&error)),
        "25" if !ENDED.contains(&code(&error).as_str()) => Error::Wrong(message(&error)),
        _ => Error::Lost(message(&error)),
    }
}

//! A full-text table in Postgres as a sink.

use std::time::Duration;

use futures_util::future::BoxFuture;
use sqlx::AssertSqlSafe;

use super::{Sink, WriteError, WriteOutcome};
use crate::reindex::catalogue::DatabaseRights;
use crate::reindex::document::{Action, Document};
use crate::reindex::postgres::{
    ReindexDatabase, TOO_LONG, TransactionPool, class, code, message, qualified, quoted,
};

/// A table `(id text primary key, body jsonb, tsv tsvector)` with a GIN index on `tsv`.
pub struct PostgresSink {
    session: TransactionPool,
    schema: Option<String>,
    table: String,
    index: String,
    text: Option<Vec<String>>,
    config: String,
}

impl PostgresSink {
    /// Opens a sink for the job's table.
    pub fn open(
        database: ReindexDatabase,
        rights: &DatabaseRights,
        table: &[String],
        text: Option<Vec<String>>,
        config: &str,
        connections: usize,
    ) -> Self {
        let connections = u32::try_from(connections).unwrap_or(u32::MAX).clamp(1, 64);
        let session = database.writer(rights, connections, Duration::from_secs(30));
        let schema = (table.len() == 2).then(|| quoted(&table[0]));
        let index = quoted(&format!("{}_tsv", table.last().map_or("", String::as_str)));
        Self {
            session,
            schema,
            table: qualified(table),
            index,
            text,
            config: config.to_owned(),
        }
    }

    async fn create(&self) -> Result<(), sqlx::Error> {
        let table = &self.table;
        let schema = self
            .schema
            .iter()
            .map(|s| format!("create schema if not exists {s}"));
        let rest = [
            format!(
                "create table if not exists {table} (id text primary key, body jsonb not null, tsv tsvector not null)"
            ),
            format!(
                "create index if not exists {} on {table} using gin (tsv)",
                self.index
            ),
        ];
        let mut transaction = self.session.begin().await?;
        let there = sqlx::query_scalar::<_, bool>("select to_regclass($1) is not null")
            .persistent(false)
            .bind(table);
        // A role that may only write to an existing table needs no right to create one.
        if !there.fetch_one(&mut *transaction).await? {
            for statement in schema.chain(rest) {
                sqlx::query(AssertSqlSafe(statement))
                    .persistent(false)
                    .execute(&mut *transaction)
                    .await?;
            }
        }
        transaction.commit().await
    }

    /// Returns the table's number, which a later one of its name does not have.
    async fn number(&self) -> Result<Option<String>, sqlx::Error> {
        let mut transaction = self.session.begin().await?;
        let number = sqlx::query_scalar::<_, Option<String>>("select to_regclass($1)::oid::text")
            .persistent(false)
            .bind(&self.table)
            .fetch_one(&mut *transaction)
            .await?;
        transaction.commit().await?;
        Ok(number)
    }

    /// Stores and deletes documents in one transaction, sorted by id so that two requests never
    /// deadlock.
    async fn write_all(&self, documents: &[Document]) -> Result<(), sqlx::Error> {
        let id = |document: &Document| document.id.clone().unwrap_or_default();
        let (deleted, stored): (Vec<_>, Vec<_>) = documents
            .iter()
            .partition(|document| document.action == Action::Delete);
        let deleted: Vec<_> = deleted.into_iter().map(id).collect();
        let ids: Vec<_> = stored.iter().map(|document| id(document)).collect();
        let bodies: Vec<_> = stored.iter().map(|document| document.json()).collect();
        // With the name of its schema, the system's function is called and none that fits better.
        let searched = match &self.text {
            None => "d.body",
            Some(_) => {
                "(select pg_catalog.jsonb_agg(d.body -> field) from pg_catalog.unnest($4::text[]) field)"
            }
        };
        let statement = format!(
            "insert into {} (id, body, tsv)
             select d.id, d.body, pg_catalog.jsonb_to_tsvector($3::text::regconfig, {searched}, '[\"string\"]')
             from (
                 select distinct on (id) id, body::jsonb
                 from unnest($1::text[], $2::text[]) with ordinality as u (id, body, place)
                 order by id, place desc
             ) d
             on conflict (id) do update set body = excluded.body, tsv = excluded.tsv",
            self.table
        );
        let query = sqlx::query(AssertSqlSafe(statement))
            .bind(ids)
            .bind(bodies)
            .bind(&self.config);
        let query = if let Some(fields) = &self.text {
            query.bind(fields)
        } else {
            query
        };
        let mut transaction = self.session.begin().await?;
        let mut written = query.persistent(false).execute(&mut *transaction).await;
        if written.is_ok() && !deleted.is_empty() {
            let statement = format!("delete from {} where id = any($1)", self.table);
            written = sqlx::query(AssertSqlSafe(statement))
                .bind(deleted)
                .persistent(false)
                .execute(&mut *transaction)
                .await;
        }
        match written {
            Ok(_) => transaction.commit().await,
            Err(error) => {
                // A faulty document does not require a new connection.
                let _ = transaction.rollback().await;
                Err(error)
            }
        }
    }

    /// Stores documents, and halves a batch that the database rejects until the faulty documents
    /// are alone.
    async fn store(&self, documents: &[Document]) -> Result<Vec<WriteOutcome>, WriteError> {
        let mut written = vec![WriteOutcome::Stored; documents.len()];
        let mut parts = vec![(0, documents.len())];
        while let Some((from, to)) = parts.pop() {
            let write = self.session.bounded(self.write_all(&documents[from..to]));
            match write.await {
                Ok(()) => {}
                Err(error) if code(&error) == TOO_LONG => {
                    let bytes = documents[from..to].iter().map(Document::bytes).sum();
                    return Err(WriteError::Late { bytes });
                }
                Err(error) if !faulty(&error) => return Err(trouble(&error)),
                Err(error) if to - from == 1 => {
                    written[from] = WriteOutcome::Refused(message(&error))
                }
                Err(_) => parts.extend([(from, from.midpoint(to)), (from.midpoint(to), to)]),
            }
        }
        Ok(written)
    }
}

impl Sink for PostgresSink {
    fn prepare(&self) -> BoxFuture<'_, Result<(), WriteError>> {
        let created = self.session.bounded(self.create());
        Box::pin(async move { created.await.map_err(|e| trouble(&e)) })
    }

    fn identity(&self) -> BoxFuture<'_, Option<String>> {
        let number = self.session.bounded(self.number());
        Box::pin(async move { number.await.ok().flatten() })
    }

    fn write<'a>(
        &'a self,
        documents: &'a [Document],
    ) -> BoxFuture<'a, Result<Vec<WriteOutcome>, WriteError>> {
        Box::pin(self.store(documents))
    }
}

/// Returns true for a fault of one document: bad data, a limit (a tsvector holds 1 MB), or a
/// constraint of the table's owner.
fn faulty(error: &sqlx::Error) -> bool {
    matches!(class(error).as_str(), "22" | "23" | "54")
}

/// Code of a statement whose table does not exist.
const NO_TABLE: &str = "42P01";

fn trouble(error: &sqlx::Error) -> WriteError {
    if code(error) == NO_TABLE {
        return WriteError::Gone(message(error));
    }
    match class(error).as_str() {
        "53" => WriteError::Busy {
            retry_after: None,
            reason: message(error),
        },
        "42" | "3F" => WriteError::Wrong(message(error)),
        // A database that is read-only after a failover, or because its disk is full, is among
        // these.
        _ => WriteError::Lost(message(error)),
    }
}

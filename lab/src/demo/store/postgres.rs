//! The engine: one table per index in a private Postgres.

use std::collections::HashMap;
use std::time::Duration;

use serde_json::Value;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{AssertSqlSafe, Connection, PgConnection, PgPool, Row};
use tokio::sync::Mutex;

use super::answer::Done;
use super::bulk::StoredDocument;

const PREPARE: [&str; 2] = [
    "create extension if not exists pg_trgm",
    "create schema if not exists store",
];
/// The settings of our own engine: a quarter of the usual bound on disk space, which is enough for
/// a demo, and no background vacuum.
const TUNE: [&str; 3] = [
    "alter system set max_wal_size = '256MB'",
    "alter system set autovacuum = off",
    "select pg_reload_conf()",
];
const EXISTS: &str = "select to_regclass($1) is not null";

/// The documents and their indexes.
pub(super) struct Engine {
    /// The connections for writes, one per core of the store.
    writers: PgPool,
    /// The connections for searches and counts, which thus do not wait for writers.
    readers: PgPool,
    /// Indexes that are known to exist.
    known: Mutex<Vec<String>>,
}

impl Engine {
    /// Connects and creates the extension and the schema.
    ///
    /// `superuser_url` is given for an engine of our own, to which it also applies [`TUNE`].
    pub(super) async fn open(
        url: &str,
        cores: u32,
        superuser_url: Option<&str>,
    ) -> Result<Self, sqlx::Error> {
        let options: PgConnectOptions = url.parse()?;
        // With fsync off, a commit is still written before it is acknowledged, so it survives the
        // death of every process.
        let options = options.application_name("search store").options([
            ("synchronous_commit", "on"),
            ("jit", "off"),
            ("plan_cache_mode", "force_generic_plan"),
        ]);
        let pool = |connections| {
            PgPoolOptions::new()
                .max_connections(connections)
                .acquire_timeout(Duration::from_secs(30))
                .connect_lazy_with(options.clone())
        };
        let engine = Self {
            writers: pool(cores),
            readers: pool(2),
            known: Mutex::default(),
        };
        if let Some(url) = superuser_url {
            let mut superuser = PgConnection::connect(url).await?;
            for statement in TUNE {
                sqlx::query(statement).execute(&mut superuser).await?;
            }
            superuser.close().await?;
        }
        for statement in PREPARE {
            sqlx::query(statement).execute(&engine.writers).await?;
        }
        Ok(engine)
    }

    /// Stores documents of one index and returns for each id whether the document is new.
    ///
    /// Of several documents with the same id, the last one is stored.
    pub(super) async fn index(
        &self,
        index: &str,
        documents: &[(&str, &StoredDocument)],
    ) -> Result<HashMap<String, Done>, sqlx::Error> {
        self.ensure(index).await?;
        let statement = format!(
            "insert into {} as t (id, source, text, tsv)
             select d.id, d.source::jsonb, d.text, to_tsvector('english', d.text)
             from (
                 select distinct on (id) id, source, text
                 from unnest($1::text[], $2::text[], $3::text[]) with ordinality as u (id, source, text, place)
                 order by id, place desc
             ) d
             on conflict (id) do update set source = excluded.source, text = excluded.text, tsv = excluded.tsv
             returning id, xmax = 0 as created",
            table(index)
        );
        let ids: Vec<_> = documents.iter().map(|(id, _)| *id).collect();
        let sources: Vec<_> = documents
            .iter()
            .map(|(_, entry)| entry.source.as_str())
            .collect();
        let texts: Vec<_> = documents
            .iter()
            .map(|(_, entry)| entry.text.as_str())
            .collect();
        let query = sqlx::query(AssertSqlSafe(statement))
            .bind(ids)
            .bind(sources)
            .bind(texts);
        let rows = query.fetch_all(&self.writers).await?;
        rows.iter()
            .map(|row| {
                Ok((
                    row.try_get("id")?,
                    if row.try_get("created")? {
                        Done::Created
                    } else {
                        Done::Updated
                    },
                ))
            })
            .collect()
    }

    /// Stores one document unless its id exists.
    pub(super) async fn create(
        &self,
        index: &str,
        id: &str,
        entry: &StoredDocument,
    ) -> Result<Done, sqlx::Error> {
        self.ensure(index).await?;
        let statement = format!(
            "insert into {} (id, source, text, tsv) values ($1, $2::text::jsonb, $3, to_tsvector('english', $3))
             on conflict (id) do nothing",
            table(index)
        );
        let query = sqlx::query(AssertSqlSafe(statement))
            .bind(id)
            .bind(&entry.source)
            .bind(&entry.text);
        let stored = query.execute(&self.writers).await?.rows_affected() > 0;
        Ok(if stored { Done::Created } else { Done::Exists })
    }

    pub(super) async fn delete(&self, index: &str, id: &str) -> Result<Done, sqlx::Error> {
        if !self.exists(index).await? {
            return Ok(Done::NotFound);
        }
        let statement = format!("delete from {} where id = $1", table(index));
        let removed = sqlx::query(AssertSqlSafe(statement))
            .bind(id)
            .execute(&self.writers)
            .await?
            .rows_affected()
            > 0;
        Ok(if removed {
            Done::Deleted
        } else {
            Done::NotFound
        })
    }

    /// Returns the number of documents in an index; `None` if the index does not exist.
    pub(super) async fn count(&self, index: &str) -> Result<Option<i64>, sqlx::Error> {
        if !self.exists(index).await? {
            return Ok(None);
        }
        let statement = format!("select count(*) from {}", table(index));
        sqlx::query_scalar(AssertSqlSafe(statement))
            .fetch_one(&self.readers)
            .await
            .map(Some)
    }

    /// Returns one document; `None` if it does not exist.
    pub(super) async fn get(&self, index: &str, id: &str) -> Result<Option<Value>, sqlx::Error> {
        if !self.exists(index).await? {
            return Ok(None);
        }
        let statement = format!("select source from {} where id = $1", table(index));
        sqlx::query_scalar(AssertSqlSafe(statement))
            .bind(id)
            .fetch_optional(&self.readers)
            .await
    }

    /// Returns the number of all matches of a full-text search, and the best ones.
    pub(super) async fn search(
        &self,
        index: &str,
        words: &str,
        size: i64,
    ) -> Result<SearchHits, sqlx::Error> {
        if !self.exists(index).await? {
            return Ok(None);
        }
        let statement = format!(
            "select id, ts_rank(tsv, q)::float8 as score, source, count(*) over () as total
             from {}, websearch_to_tsquery('english', $1) q
             where tsv @@ q
             order by score desc, id
             limit $2",
            table(index)
        );
        let rows = sqlx::query(AssertSqlSafe(statement))
            .bind(words)
            .bind(size)
            .fetch_all(&self.readers)
            .await?;
        let total = rows.first().map_or(Ok(0), |row| row.try_get("total"))?;
        let hits = rows.iter().map(|row| {
            Ok((
                row.try_get("id")?,
                row.try_get("score")?,
                row.try_get("source")?,
            ))
        });
        Ok(Some((total, hits.collect::<Result<_, sqlx::Error>>()?)))
    }

    /// Removes an index; returns false if it did not exist.
    pub(super) async fn drop_index(&self, index: &str) -> Result<bool, sqlx::Error> {
        let existed = self.exists(index).await?;
        let mut known = self.known.lock().await;
        sqlx::query(AssertSqlSafe(format!(
            "drop table if exists {}",
            table(index)
        )))
        .execute(&self.readers)
        .await?;
        known.retain(|name| name != index);
        Ok(existed)
    }

    /// Returns true if the index exists.
    pub(super) async fn exists(&self, index: &str) -> Result<bool, sqlx::Error> {
        if self.known.lock().await.iter().any(|name| name == index) {
            return Ok(true);
        }
        sqlx::query_scalar(EXISTS)
            .bind(table(index))
            .fetch_one(&self.readers)
            .await
    }

    /// Creates an index at its first document, as Elasticsearch does.
    async fn ensure(&self, index: &str) -> Result<(), sqlx::Error> {
        let mut known = self.known.lock().await;
        if known.iter().any(|name| name == index) {
            return Ok(());
        }
        let table = table(index);
        for statement in [
            // Each pass writes a new index, so there is nothing to vacuum in the meantime.
            format!(
                "create table if not exists {table} (id text primary key, source jsonb not null, text text not null, tsv tsvector not null)
                 with (autovacuum_enabled = off)"
            ),
            // A document must be searchable as soon as its request is answered, so updates of the
            // index are not deferred.
            format!("create index if not exists \"{index}_words\" on {table} using gin (tsv) with (fastupdate = off)"),
            // GiST instead of GIN: measured, a GIN index over trigrams becomes five times as
            // expensive from 1,000 to 20,000 documents.
            format!("create index if not exists \"{index}_trigrams\" on {table} using gist (text gist_trgm_ops (siglen = 128))"),
        ] {
            sqlx::query(AssertSqlSafe(statement)).execute(&self.writers).await?;
        }
        known.push(index.to_owned());
        Ok(())
    }
}

/// The number of all matches, and the best ones as id, score and document; `None` if the index does
/// not exist.
type SearchHits = Option<(i64, Vec<(String, f64, Value)>)>;

/// Returns the quoted name of an index's table.
///
/// The name holds no quotes, because it was checked when the request was read.
fn table(index: &str) -> String {
    format!("store.\"{index}\"")
}

/// Returns true if a document is at fault and not the engine.
pub(super) fn unusable(error: &sqlx::Error) -> bool {
    let code = error
        .as_database_error()
        .and_then(|e| e.code())
        .unwrap_or_default();
    matches!(code.get(..2), Some("22" | "54"))
}

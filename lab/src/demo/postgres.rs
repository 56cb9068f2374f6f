//! The demo's tables in the queue's database: its documents and the state of the story.

use sqlx::Row;
use sqlx::postgres::PgPoolCopyExt;

use super::corpus::{Corpus, Document};
use flyball::postgres::Db;

/// The tables and the view of the demo.
///
/// `to_index` is the source of the reindex: an entry or, while documents are hard, the entry joined
/// with all its relatives.
const TABLES: &str = "
    create schema if not exists demo;
    create table if not exists demo.documents (
        id bigint primary key,
        title text not null,
        body text not null,
        related bigint[] not null
    );
    create table if not exists demo.story (
        only_row boolean primary key default true check (only_row),
        hard boolean not null default false,
        pass integer not null default 0
    );
    insert into demo.story default values on conflict do nothing;
    create or replace view demo.to_index as
    select d.id, d.title,
           case when (select hard from demo.story) then (
               select string_agg(r.body, e'\\n' order by r.id) from demo.documents r where r.id = any (d.id || d.related)
           ) else d.body end as body
    from demo.documents d;";

const COUNT: &str = "select count(*) from demo.documents";
const SAME_DOCUMENT: &str =
    "select exists (select from demo.documents where id = $1 and body = $2 and related = $3)";
const EMPTY: &str = "truncate demo.documents";
const COPY: &str = "copy demo.documents (id, title, body, related) from stdin";
const ANALYZE: &str = "analyze demo.documents";
const SET_HARD: &str = "update demo.story set hard = $1";
const NEXT_PASS: &str = "update demo.story set pass = pass + 1 returning pass";

/// The number of times the breaker opened since a given time.
const TRIPS: &str = "
    select count(*)
    from (
        select breaker, lag(breaker) over (order by id) as previous
        from flyball.decision
        where throttle = $1 and at >= to_timestamp($2)
    ) d
    where breaker = 'open' and previous is distinct from 'open'";

/// Creates the demo's tables if they do not exist.
pub(super) async fn prepare(pool: &Db) -> Result<(), sqlx::Error> {
    sqlx::raw_sql(TABLES).execute(pool).await.map(|_| ())
}

/// Returns the number of loaded documents.
pub(super) async fn count(pool: &Db) -> Result<usize, sqlx::Error> {
    let count: i64 = sqlx::query_scalar(COUNT).fetch_one(pool).await?;
    Ok(usize::try_from(count).unwrap_or(0))
}

/// Returns true if these documents are loaded, judged by their number, the first and the last.
pub(super) async fn is_loaded(pool: &Db, corpus: &Corpus) -> Result<bool, sqlx::Error> {
    if corpus.is_empty() || count(pool).await? != corpus.len() {
        return Ok(false);
    }
    for document in [corpus.document(0), corpus.document(corpus.len() - 1)] {
        let query = sqlx::query_scalar(SAME_DOCUMENT)
            .bind(document.id)
            .bind(document.body)
            .bind(document.related);
        if !query.fetch_one(pool).await? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Loads all documents and reports to `loaded` the number sent so far.
pub(super) async fn load(
    pool: &Db,
    corpus: &Corpus,
    loaded: impl Fn(usize),
) -> Result<(), sqlx::Error> {
    sqlx::query(EMPTY).execute(pool).await?;
    let mut copy = pool.pool().copy_in_raw(COPY).await?;
    let mut lines = String::new();
    for place in 0..corpus.len() {
        line(&mut lines, &corpus.document(place));
        if lines.len() > 1 << 20 || place + 1 == corpus.len() {
            copy.send(lines.as_bytes()).await?;
            lines.clear();
            loaded(place + 1);
        }
    }
    copy.finish().await?;
    sqlx::query(ANALYZE).execute(pool).await.map(|_| ())
}

/// Appends one line in COPY's text format.
fn line(out: &mut String, document: &Document) {
    let text = |text: &str| {
        text.replace('\\', "\\\\")
            .replace('\t', "\\t")
            .replace('\n', "\\n")
            .replace('\r', "\\r")
    };
    let related: Vec<_> = document.related.iter().map(i64::to_string).collect();
    let (title, body) = (text(&document.title), text(&document.body));
    out.push_str(&format!(
        "{}\t{title}\t{body}\t{{{}}}\n",
        document.id,
        related.join(",")
    ));
}

/// Makes documents long (`hard`) or short from now on.
pub(super) async fn set_hard(pool: &Db, hard: bool) -> Result<(), sqlx::Error> {
    sqlx::query(SET_HARD)
        .bind(hard)
        .execute(pool)
        .await
        .map(|_| ())
}

/// Begins another pass over the documents and returns its number.
pub(super) async fn next_pass(pool: &Db) -> Result<i32, sqlx::Error> {
    sqlx::query(NEXT_PASS)
        .fetch_one(pool)
        .await?
        .try_get("pass")
}

/// Returns the number of times a throttle's breaker opened since `since_s` (unix time, in seconds).
pub(super) async fn trips(pool: &Db, throttle: &str, since_s: f64) -> Result<i64, sqlx::Error> {
    sqlx::query_scalar(TRIPS)
        .bind(throttle)
        .bind(since_s)
        .fetch_one(pool)
        .await
}

//! A reindex reads only allowed sources, under the configured role, leaves nothing behind in the
//! session, and ends when it is cancelled.

use std::time::Duration;

use flyball::jobs::{NewJob, State};
use flyball::postgres::{Db, Pooler};
use flyball::reindex::args::Args;
use flyball::reindex::catalogue::DatabaseRights;
use flyball::reindex::source::{DocumentSource, Error, PostgresSource};
use flyball::reindex::{Catalogue, ReindexDatabase};
use reqwest::{Client, StatusCode};
use serde_json::{Value, json};
use sqlx::PgPool;

use crate::reindex::fakes::Index;
use crate::support::process::ProcessFixture;
use crate::support::{database, eventually, skip, unique};

const SOON: Duration = Duration::from_secs(60);

/// A source given by the job itself, read under the role of the URL.
fn free(database: ReindexDatabase, query: &str, rights: DatabaseRights) -> PostgresSource {
    let args = json!({"source": {"type": "postgres", "query": query, "key": "id"},
        "sink": {"type": "elastic", "url": "http://x", "index": "x"}});
    let mut args = Args::parse(
        &args,
        &Catalogue {
            allow_queries: true,
            ..Catalogue::default()
        },
    )
    .unwrap();
    args.source.rights = rights;
    PostgresSource::open(database, &args.source, "id", None)
}

async fn ids(source: &PostgresSource) -> Result<Vec<String>, Error> {
    let mut after: Option<Vec<String>> = None;
    let mut ids = Vec::new();
    loop {
        let page = source.page(after.as_deref(), 2).await?;
        ids.extend(
            page.documents
                .iter()
                .filter_map(|document| document.id.clone()),
        );
        if !page.more {
            return Ok(ids);
        }
        after = page.documents.last().map(|document| document.key.to_vec());
    }
}

async fn count(pool: &PgPool, sql: &'static str) -> i64 {
    sqlx::query_scalar(sql).fetch_one(pool).await.unwrap()
}

/// Returns the statements of a reindex that run in this database.
const RUNNING: &str = "select count(*) from pg_stat_activity
    where datname = current_database() and application_name = 'flyball reindex' and state <> 'idle' and query like '%pg_sleep%'";

// === What may be asked for ===

/// Requests of a user with permission to enqueue, each with the rejected field.
fn attempts(elsewhere: &str) -> Vec<(Value, &'static str)> {
    let named = json!({"name": "shop", "table": "articles", "key": "id"});
    let search = json!({"name": "search", "index": "articles-1"});
    let free = |query: &str| json!({"type": "postgres", "query": query, "key": "id"});
    let away = json!({"type": "elastic", "url": elsewhere, "index": "x"});
    let header = |name: &str| json!({"type": "elastic", "url": elsewhere, "index": "x", "authorization_env": name});
    let of = |source: &Value, sink: &Value| json!({"source": source, "sink": sink});
    vec![
        (
            of(&named, &header("REINDEX_DATABASE_SHOP")),
            "/sink/authorization_env",
        ),
        (
            of(&named, &header("DATABASE_URL")),
            "/sink/authorization_env",
        ),
        (of(&named, &away), "/sink/url"),
        (
            of(&free("select id, args from flyball.job"), &search),
            "/source/query",
        ),
        (
            of(
                &free("select 1 as id, pg_read_file('/etc/hostname') as t"),
                &search,
            ),
            "/source/query",
        ),
        (
            of(
                &free(
                    "select 1 as id, set_config('default_transaction_read_only', 'off', false) as t",
                ),
                &search,
            ),
            "/source/query",
        ),
        (
            of(
                &json!({"type": "postgres", "table": "flyball.job", "key": "id"}),
                &search,
            ),
            "/source/name",
        ),
        (
            of(
                &json!({"name": "shop", "table": "flyball.job", "key": "id"}),
                &search,
            ),
            "/source/table",
        ),
        (
            of(
                &json!({"name": "shop", "statement": "select 1 as id", "key": "id"}),
                &search,
            ),
            "/source/statement",
        ),
        (
            of(&named, &json!({"name": "search", "index": "people"})),
            "/sink/index",
        ),
        (
            of(
                &named,
                &json!({"name": "search", "index": "articles-1/_doc"}),
            ),
            "/sink/index",
        ),
        (
            of(
                &named,
                &json!({"name": "search", "index": "articles-1", "pipeline": "elsewhere"}),
            ),
            "/sink/pipeline",
        ),
        (
            of(&named, &json!({"name": "fts", "table": "flyball.pause"})),
            "/sink/table",
        ),
    ]
}

#[tokio::test]
async fn a_job_names_what_the_operator_has_given_and_every_interface_refuses_the_rest() {
    let fixture = ProcessFixture::new("rps = -1").await;
    let (index, url) = Index::start().await;
    fixture.settings_file(&format!(
        "[reindex.sources.shop]\nurl_env = \"REINDEX_DATABASE_SHOP\"\ntables = [\"articles\"]\n\
         [reindex.sinks.search]\ntype = \"elastic\"\nurl = \"{url}\"\nindexes = [\"articles-*\"]\nauthorization_env = \"SEARCH_KEY\"\n\
         [reindex.sinks.fts]\ntype = \"postgres\"\ntables = [\"search.articles\"]\n",
    ));
    let tables = "create table public.articles (id int primary key, title text); insert into public.articles values (1, 'one'), (2, 'two')";
    sqlx::raw_sql(tables).execute(fixture.pool()).await.unwrap();
    let process = fixture.serve_with(
        &[],
        &[
            ("REINDEX_DATABASE_SHOP", &fixture.database_url),
            ("SEARCH_KEY", "ApiKey of-the-operator"),
            ("FLYBALL_ALLOW_PRIVATE_URLS", "true"),
        ],
    );
    process.worker_started().await;
    let (client, api) = (Client::new(), process.url().await);

    for (args, field) in attempts(&url) {
        // Over HTTP the field is rejected by name; with SQL the job becomes a dead letter with the
        // same text.
        let job = json!({"kind": "reindex", "args": args});
        let answer = client
            .post(format!("{api}/api/v1/jobs"))
            .json(&job)
            .send()
            .await
            .unwrap();
        assert_eq!(answer.status(), StatusCode::UNPROCESSABLE_ENTITY, "{args}");
        let output = answer.text().await.unwrap();
        assert!(output.contains(field), "{args}: {output}");

        let id = fixture
            .queue
            .enqueue(&[NewJob::new("reindex", args.clone())])
            .await
            .unwrap()[0]
            .id;
        let dead = eventually("the job is dead", SOON, || async {
            let detail = fixture.queue.get(id).await.unwrap().unwrap();
            assert_ne!(detail.summary.state, State::Completed, "{args}");
            (detail.summary.state == State::Dead).then_some(detail)
        })
        .await;
        let why = dead.summary.last_error.unwrap_or_default();
        assert!(why.contains(field), "{args}: {why}");
    }
    assert_eq!(index.sent(), 0);
    assert!(
        index.authorizations.lock().unwrap().is_empty(),
        "nothing was sent to an address of the job"
    );

    let args = json!({"source": {"name": "shop", "table": "articles", "key": "id"}, "sink": {"name": "search", "index": "articles-1"}});
    let id = fixture
        .queue
        .enqueue(&[NewJob::new("reindex", args)])
        .await
        .unwrap()[0]
        .id;
    fixture.until_completed(&[id], SOON).await;
    assert_eq!(index.sent(), 2);
    let sent = index.authorizations.lock().unwrap().clone();
    assert!(
        !sent.is_empty() && sent.iter().all(|text| text == "ApiKey of-the-operator"),
        "{sent:?}"
    );
}

#[tokio::test]
async fn even_where_jobs_bring_addresses_a_secret_goes_only_to_the_origin_that_is_written_beside_it()
 {
    let fixture = ProcessFixture::new("rps = -1").await;
    let (index, url) = Index::start().await;
    let tables =
        "create table public.articles (id int primary key); insert into public.articles values (1)";
    sqlx::raw_sql(tables).execute(fixture.pool()).await.unwrap();
    let process = fixture.serve_with(
        &[],
        &[
            ("FLYBALL_ALLOW_REINDEX_QUERIES", "true"),
            ("REINDEX_AUTH_RIGHT", "ApiKey right"),
            ("REINDEX_AUTH_RIGHT_ORIGINS", &url),
            ("REINDEX_AUTH_WRONG", "ApiKey wrong"),
            (
                "REINDEX_AUTH_WRONG_ORIGINS",
                "https://search.example.com:9200",
            ),
            ("REINDEX_AUTH_BARE", "ApiKey bare"),
        ],
    );
    process.worker_started().await;
    let job = |name: &str| {
        let sink = json!({"type": "elastic", "url": url, "index": "x", "authorization_env": name});
        NewJob::new(
            "reindex",
            json!({"source": {"type": "postgres", "table": "articles", "key": "id"}, "sink": sink}),
        )
    };

    for name in ["REINDEX_AUTH_WRONG", "REINDEX_AUTH_BARE"] {
        let id = fixture.queue.enqueue(&[job(name)]).await.unwrap()[0].id;
        eventually("the job is dead", SOON, || async {
            let detail = fixture.queue.get(id).await.unwrap().unwrap();
            (detail.summary.state == State::Dead).then_some(())
        })
        .await;
    }
    let right = fixture
        .queue
        .enqueue(&[job("REINDEX_AUTH_RIGHT")])
        .await
        .unwrap()[0]
        .id;
    fixture.until_completed(&[right], SOON).await;

    assert_eq!(*index.authorizations.lock().unwrap(), ["ApiKey right"]);
}

// === What a statement may do ===

#[tokio::test]
async fn nothing_that_a_statement_does_outlives_its_page() {
    let database = database().await;
    sqlx::raw_sql(
        "create table c (id int primary key); insert into c select generate_series(1, 9)",
    )
    .execute(database.pool())
    .await
    .unwrap();
    let lent = Db::lazy(
        database.url().parse().unwrap(),
        Pooler::Transaction,
        1,
        SOON,
    );
    for db in [
        ReindexDatabase::of(database.pool()),
        ReindexDatabase::of(lent),
    ] {
        let read =
            async |query: &str| ids(&free(db.clone(), query, DatabaseRights::default())).await;

        // Each page discards the changes of the last one: no page sees the setting off, so the
        // conditional write never happens.
        let attack =
            "select i as id, set_config('default_transaction_read_only', 'off', false) as a,
            case when i > 4 and current_setting('transaction_read_only') = 'off'
                then flyball.pause_all('by a reader', 'x')::text end as b
            from generate_series(1, 9) i";
        assert_eq!(read(attack).await.unwrap().len(), 9);
        assert_eq!(
            count(database.pool(), "select count(*) from flyball.pause").await,
            0
        );

        // A session setting and a session lock: both are gone before the next page, and invisible
        // to others.
        let looks = "select i as id, set_config('flyball.left', 'behind', false) as a, pg_advisory_lock(77) as b
            from generate_series(1, 9) i
            where coalesce(current_setting('flyball.left', true), '') in ('', 'behind')";
        assert_eq!(read(looks).await.unwrap().len(), 9);
        assert_eq!(
            count(
                database.pool(),
                "select count(*) from pg_locks where locktype = 'advisory' and objid = 77"
            )
            .await,
            0
        );
        let left = "select i as id from generate_series(1, 3) i where current_setting('flyball.left', true) = 'behind'";
        assert_eq!(read(left).await.unwrap(), Vec::<String>::new());

        for refused in [
            "with gone as (delete from c returning id) select id from gone",
            "select id from c) q; drop table c; select (1",
            "select id from c) q; commit; begin; delete from c; select * from (select 1 as id",
            "select 1 as id, set_config('transaction_read_only', 'off', true) as t",
            "select id, nextval('s') as t from c",
            "select 1 as id, pg_read_file('/etc/hostname') as t",
            "select 1 as id, flyball.pause_all('by a reader', 'x')::text as t",
            "select 1 as id, lo_export(1, '/tmp/x')::text as t",
        ] {
            let error = read(refused).await.unwrap_err();
            assert!(matches!(error, Error::Wrong(_)), "{refused}: {error}");
        }
    }
    assert_eq!(count(database.pool(), "select count(*) from c").await, 9);
    assert_eq!(
        count(database.pool(), "select count(*) from flyball.pause").await,
        0
    );
}

#[tokio::test]
async fn a_source_is_read_as_the_role_that_is_set_for_it() {
    let database = database().await;
    let role = format!("reader_{}", unique());
    let tables =
        "create table public.things (id int primary key); insert into public.things values (1);
        create table public.salaries (id int primary key); insert into public.salaries values (1)";
    sqlx::raw_sql(tables)
        .execute(database.pool())
        .await
        .unwrap();
    let grants = format!(
        "create role {role}; grant {role} to flyball; grant select on public.things to {role}"
    );
    sqlx::raw_sql(sqlx::AssertSqlSafe(grants))
        .execute(&database.superuser())
        .await
        .unwrap();
    let rights = DatabaseRights {
        role: Some(role.clone()),
        ..DatabaseRights::default()
    };
    let read = async |table: &str| {
        ids(&free(
            ReindexDatabase::of(database.pool()),
            &format!("select id from {table}"),
            rights.clone(),
        ))
        .await
    };

    assert_eq!(read("public.things").await.unwrap(), ["1"]);
    let refused = read("public.salaries").await.unwrap_err().to_string();
    assert!(
        refused.contains("permission denied for table salaries"),
        "{refused}"
    );
    let user = ids(&free(
        ReindexDatabase::of(database.pool()),
        "select current_user as id",
        rights.clone(),
    ))
    .await
    .unwrap();
    assert_eq!(user, [role]);
}

#[tokio::test]
async fn rows_are_compared_by_the_operators_that_sort_them_and_not_by_those_found_by_name() {
    let database = database().await;
    let execute = async |sql: &'static str, pool: &PgPool| {
        sqlx::raw_sql(sql).execute(pool).await.unwrap();
    };
    let planted = "create table coded (id varchar primary key);
        insert into coded select n::text from generate_series(1, 5) n;
        create function never(varchar, varchar) returns boolean language sql immutable as 'select false';
        create operator > (leftarg = varchar, rightarg = varchar, procedure = never)";
    execute(planted, database.pool()).await;
    let read = async |query: &str| {
        let database = ReindexDatabase::of(database.pool());
        ids(&free(database, query, DatabaseRights::default())).await
    };
    assert_eq!(
        read("select id from coded").await.unwrap(),
        ["1", "2", "3", "4", "5"]
    );

    let superuser = database.superuser();
    let is_there = "select count(*) from pg_available_extensions where name = 'citext'";
    if count(&superuser, is_there).await == 0 {
        skip("no citext is installed");
        return;
    }
    let apart = "create schema apart; create extension citext schema apart; grant usage on schema apart to public";
    execute(apart, &superuser).await;
    let named = "create table named (id apart.citext primary key, n int);
        insert into named values ('a', 1), ('B', 2), ('c', 3), ('D', 4), ('e', 5)";
    execute(named, database.pool()).await;
    assert_eq!(
        read("select id from named").await.unwrap(),
        ["a", "B", "c", "D", "e"]
    );

    // A comparison of several columns has one operator.
    let several = json!({"source": {"type": "postgres", "table": "named", "key": ["id", "n"]},
        "sink": {"type": "elastic", "url": "http://x", "index": "x", "id": "n"}});
    let allowed = Catalogue {
        allow_queries: true,
        ..Catalogue::default()
    };
    let args = Args::parse(&several, &allowed).unwrap();
    let several = PostgresSource::open(
        ReindexDatabase::of(database.pool()),
        &args.source,
        "n",
        None,
    );
    let refused = several.page(None, 2).await.unwrap_err().to_string();
    assert!(
        refused.contains("apart.citext, integer") && refused.contains("search_path"),
        "{refused}"
    );
}

#[tokio::test]
async fn a_statement_that_takes_too_long_is_ended_by_the_server() {
    let database = database().await;
    let rights = DatabaseRights {
        statement_timeout: Duration::from_millis(300),
        ..DatabaseRights::default()
    };
    // Even if it lifts the limit, because that affects only the next statement, which starts with
    // fresh settings.
    let slow = "select 1 as id, set_config('statement_timeout', '0', false) as t, pg_sleep(600)::text as s";

    let error = ids(&free(ReindexDatabase::of(database.pool()), slow, rights))
        .await
        .unwrap_err();

    assert!(
        matches!(&error, Error::Lost(text) if text.contains("statement timeout")),
        "{error}"
    );
    assert_eq!(count(database.pool(), RUNNING).await, 0);
}

#[tokio::test]
async fn a_reindex_that_is_cancelled_or_whose_worker_is_killed_ends_its_statement_on_the_server() {
    let fixture = ProcessFixture::new("rps = -1").await;
    let (_, url) = Index::start().await;
    fixture.settings_file(&format!(
        "[reindex.sources.slow]\nstatement_timeout_s = 3600\nstatements = {{ sleep = \"select 1 as id, pg_sleep(3600)::text as t\" }}\n\
         [reindex.sinks.search]\ntype = \"elastic\"\nurl = \"{url}\"\nindexes = [\"x\"]\n",
    ));
    let mut process = fixture.serve();
    process.worker_started().await;
    let args = json!({"source": {"name": "slow", "statement": "sleep", "key": "t"}, "sink": {"name": "search", "index": "x", "id": "id"}});
    let runs = async |wanted: bool| {
        eventually("the statement", SOON, || async {
            ((fixture.count(RUNNING).await > 0) == wanted).then_some(())
        })
        .await;
    };

    let cancelled = fixture
        .queue
        .enqueue(&[NewJob::new("reindex", args.clone())])
        .await
        .unwrap()[0]
        .id;
    runs(true).await;
    fixture.queue.cancel(cancelled).await.unwrap();
    runs(false).await;

    fixture
        .queue
        .enqueue(&[NewJob::new("reindex", args)])
        .await
        .unwrap();
    runs(true).await;
    process.kill();
    runs(false).await;
}

// === The private stack ===

#[tokio::test]
async fn the_role_of_the_private_stack_is_no_superuser_and_reads_no_files() {
    let database = database().await;

    let is_superuser: bool = sqlx::query_scalar(
        "select rolsuper or rolcreaterole or rolreplication or rolbypassrls from pg_roles where rolname = current_user",
    )
    .fetch_one(database.pool())
    .await
    .unwrap();
    assert!(!is_superuser);
    for refused in [
        "select pg_read_file('/etc/hostname')",
        "copy (select 1) to program 'true'",
        "create role x superuser",
    ] {
        let error = sqlx::raw_sql(refused)
            .execute(database.pool())
            .await
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("permission denied") || error.contains("must be"),
            "{refused}: {error}"
        );
    }
}

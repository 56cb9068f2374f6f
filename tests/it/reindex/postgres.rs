//! Reading from and writing to a real Postgres, and a reindex run by a real worker.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use flyball::jobs::{Kinds, NewJob, Queue, State};
use flyball::outbound::Guard;
use flyball::postgres::Db;
use flyball::reindex::args::Args;
use flyball::reindex::catalogue::{DatabaseRights, NamedSink, NamedSource, USUAL_BULK_PATH};
use flyball::reindex::sink::{PostgresSink, Sink, WriteError, WriteOutcome};
use flyball::reindex::source::{DocumentSource, Error, PostgresSource};
use flyball::reindex::{
    Action, BackfillConfig, Catalogue, Document, KIND, ReindexDatabase, ReindexHandler,
};
use flyball::runner::{self, Worker, WorkerMetrics};
use flyball::throttle::{Change, Name, Store};
use serde_json::{Value, json};
use sqlx::PgPool;

use crate::reindex::fakes::Index;
use crate::support::{database, eventually, patient_store, redis_prefix};

const SOON: Duration = Duration::from_secs(30);

async fn execute(pool: impl Into<Db>, sql: &'static str) {
    sqlx::raw_sql(sql).execute(&pool.into()).await.unwrap();
}

fn source(pool: &PgPool, source: Value, id: &str) -> PostgresSource {
    let mut source = source;
    source["type"] = json!("postgres");
    let args = json!({"source": source, "sink": {"type": "elastic", "url": "http://x", "index": "x", "id": id}});
    let free = Catalogue {
        allow_queries: true,
        ..Catalogue::default()
    };
    PostgresSource::open(
        ReindexDatabase::of(pool),
        &Args::parse(&args, &free).unwrap().source,
        id,
        None,
    )
}

/// Reads everything in pages of two, each from the last key, like a resumed reindex.
async fn read_all(source: &PostgresSource) -> Vec<Document> {
    let mut documents: Vec<Document> = Vec::new();
    loop {
        let after = documents.last().map(|d| d.key.to_vec());
        let page = source.page(after.as_deref(), 2).await.unwrap();
        documents.extend(page.documents);
        if !page.more {
            return documents;
        }
    }
}

fn ids(documents: &[Document]) -> Vec<&str> {
    documents.iter().map(|d| d.id.as_deref().unwrap()).collect()
}

#[tokio::test]
async fn a_table_is_read_in_the_order_of_its_key_whatever_the_keys_type() {
    let database = database().await;
    execute(
        database.pool(),
        "create table a (id bigint primary key, t text unique, at timestamptz unique, u uuid unique default gen_random_uuid(), n numeric,
             ulid char(26), short char(3), bits bit(8), shorts char(3)[], bytes bit(8)[]);
         insert into a select n, 'Ä' || chr(70 - n) || '''\"', timestamptz '2024-10-27 00:30+00' + n * interval '1.000001 s', gen_random_uuid(), n / 3.0,
             '01HZ' || lpad((n + 3)::text, 22, '0'), 'A' || (n + 3), (n + 3)::bit(8), array['A' || (n + 3)]::char(3)[], array[(n + 3)::bit(8)]
         from generate_series(-3, 4) n",
    )
    .await;

    for (key, order) in [
        ("id", "id"),
        ("t", "t"),
        ("at", "at"),
        ("u", "u"),
        ("n", "n"),
        ("ulid", "ulid"),
        ("short", "short"),
        ("bits", "bits"),
        ("shorts", "shorts"),
        ("bytes", "bytes"),
    ] {
        let found = read_all(&source(
            database.pool(),
            json!({"table": "a", "key": key}),
            "id",
        ))
        .await;

        let statement = sqlx::AssertSqlSafe(format!(
            "select array_agg(id::text order by {order}) from a"
        ));
        let expected: Vec<String> = sqlx::query_scalar(statement)
            .fetch_one(database.pool())
            .await
            .unwrap();
        assert_eq!(ids(&found), expected, "{key}");
    }
}

#[tokio::test]
async fn a_key_of_two_columns_and_a_query_with_chosen_columns_are_read() {
    let database = database().await;
    execute(
        database.pool(),
        "create table b (tenant text, id int, \"Odd \"\"Name\" text, secret text, primary key (tenant, id));
         insert into b select t, n, t || n, 's' from unnest(array['x', 'y']) t, generate_series(1, 3) n",
    )
    .await;
    let query = "select *, tenant || ':' || id as doc_id from b -- a comment";
    let wanted = json!({"query": query, "key": ["tenant", "id"], "columns": ["Odd \"Name", "id"]});

    let found = read_all(&source(database.pool(), wanted, "doc_id")).await;

    assert_eq!(ids(&found), ["x:1", "x:2", "x:3", "y:1", "y:2", "y:3"]);
    let first: Value = serde_json::from_str(found[0].json()).unwrap();
    assert_eq!(first, json!({"Odd \"Name": "x1", "id": 1}));
}

#[tokio::test]
async fn a_document_is_the_whole_row_whatever_its_columns_are_called() {
    let database = database().await;
    execute(
        database.pool(),
        "create table quarters (id int primary key, q text, r text);
         insert into quarters values (1, 'first', 'red')",
    )
    .await;

    for (wanted, expected) in [
        (
            json!({"table": "quarters", "key": "id"}),
            json!({"id": 1, "q": "first", "r": "red"}),
        ),
        (
            json!({"table": "quarters", "key": "id", "columns": ["q", "r"]}),
            json!({"q": "first", "r": "red"}),
        ),
    ] {
        let found = read_all(&source(database.pool(), wanted, "id")).await;
        let document: Value = serde_json::from_str(found[0].json()).unwrap();
        assert_eq!(document, expected);
    }
}

#[tokio::test]
async fn a_reindex_calls_nothing_that_others_plant_in_public() {
    let database = database().await;
    execute(
        database.pool(),
        "create table shown (id int primary key, title text);
         insert into shown values (1, 'one');
         create function to_jsonb(shown) returns jsonb language sql as $$ select '{\"id\": 1}'::jsonb $$;
         create function unnest(text[]) returns setof text language sql as 'select null::text'",
    )
    .await;
    let wanted = json!({"table": "shown", "key": "id"});

    let read = read_all(&source(database.pool(), wanted, "id")).await;
    let sink = PostgresSink::open(
        ReindexDatabase::of(database.pool()),
        &DatabaseRights::default(),
        &["kept".to_owned()],
        Some(vec!["title".into()]),
        "simple",
        2,
    );
    sink.prepare().await.unwrap();
    sink.write(&read).await.unwrap();

    let found = sqlx::query_scalar("select count(*) from kept where tsv @@ 'one'::tsquery");
    let found: i64 = found.fetch_one(database.pool()).await.unwrap();
    assert_eq!(found, 1);
}

#[tokio::test]
async fn json_that_jsonb_refuses_is_read_as_it_is_on_one_line() {
    let database = database().await;
    execute(
        database.pool(),
        r#"create table loose (id int primary key, j json);
           insert into loose values (1, '{"a": 1}'), (2, E'{"a":\n"x\\u0000"}'), (3, '"\ud800"'), (4, '1e999999'), (5, 'null')"#,
    )
    .await;

    for wanted in [
        json!({"table": "loose", "key": "id"}),
        json!({"table": "loose", "key": "id", "columns": ["id", "j"]}),
    ] {
        let found = read_all(&source(database.pool(), wanted, "id")).await;
        assert_eq!(ids(&found), ["1", "2", "3", "4", "5"]);
        let held = [
            r#"{"a":1}"#,
            r#"{"a":"x\u0000"}"#,
            r#""\ud800""#,
            "1e999999",
            "null",
        ];
        for (document, held) in found.iter().zip(held) {
            let json = document.json();
            assert!(!json.contains('\n'), "{json}");
            let packed = json.replace(' ', "");
            assert!(packed.contains(&format!("\"j\":{held}")), "{json}");
        }
    }
}

#[tokio::test]
async fn a_key_that_would_lose_rows_is_refused() {
    let database = database().await;
    execute(
        database.pool(),
        "create table twice (id int); insert into twice values (1), (2), (2), (3);
         create table nulls (id int); insert into nulls values (1), (null);
         create table included (n int, id int, primary key (n) include (id));
         insert into included values (1, 1), (2, null);
         create type pair as (n int);
         create function cut(text) returns pair language sql immutable as 'select row(0)::pair';
         create cast (text as pair) with function cut(text);
         create table cut (id pair); insert into cut select row(n)::pair from generate_series(1, 3) n;",
    )
    .await;

    for (table, says) in [
        ("twice", "not unique (2 appears twice)"),
        ("nulls", "is null in some rows"),
        ("included", "is null in some rows"),
        ("cut", "(1) is found above itself"),
        ("gone", "does not exist"),
    ] {
        let source = source(database.pool(), json!({"table": table, "key": "id"}), "id");
        let mut after: Option<Vec<String>> = None;
        let error = loop {
            match source.page(after.as_deref(), 1).await {
                Ok(page) => after = page.documents.last().map(|d| d.key.to_vec()),
                Err(error) => break error,
            }
        };
        assert!(
            matches!(&error, Error::Wrong(text) if text.contains(says)),
            "{error}"
        );
        // The driver adds the line of Postgres' own source.
        assert!(!error.to_string().contains("at line"), "{error}");
    }
}

#[tokio::test]
async fn a_primary_key_is_not_searched_for_nulls() {
    let database = database().await;
    execute(
        database.pool(),
        "create table sure (a int, b text, primary key (a, b)); insert into sure values (1, 'x');
         create table unsure (a int, b text, unique (a, b)); insert into unsure values (1, 'x');
         create table parent (a int, b text, primary key (a, b)); insert into parent values (1, 'x');
         create table child () inherits (parent); alter table child alter b drop not null;
         insert into child values (1, null);",
    )
    .await;
    for table in ["sure", "unsure"] {
        let wanted = json!({"table": table, "key": ["a", "b"]});
        assert_eq!(
            read_all(&source(database.pool(), wanted, "b")).await.len(),
            1
        );
    }

    // A connection has reported all its scans when it has gone.
    eventually("the connections are closed", SOON, || async {
        let open = "select count(*) from pg_stat_activity
                    where datname = current_database() and application_name = 'flyball reindex'";
        let open: i64 = sqlx::query_scalar(open)
            .fetch_one(database.pool())
            .await
            .unwrap();
        (open == 0).then_some(())
    })
    .await;
    let scans = "select array_agg(seq_scan + idx_scan order by relname) from pg_stat_user_tables
                 where relname in ('sure', 'unsure')";
    let scans: Vec<i64> = sqlx::query_scalar(scans)
        .fetch_one(database.pool())
        .await
        .unwrap();
    assert!(scans[0] < scans[1], "{scans:?}");

    let parent = json!({"table": "parent", "key": ["a", "b"]});
    let error = source(database.pool(), parent, "b").page(None, 10).await;
    assert!(matches!(&error, Err(Error::Wrong(text)) if text.contains("is null in some rows")));
}

#[tokio::test]
async fn a_page_whose_rows_are_slow_is_read_in_smaller_parts() {
    let database = database().await;
    execute(
        database.pool(),
        "create table t (id int primary key); insert into t select generate_series(1, 150);
         create function slow(n int) returns int language plpgsql stable cost 100000
             as 'begin perform pg_sleep(0.01); return n; end'",
    )
    .await;
    let wanted = json!({"source": {"type": "postgres", "query": "select id, slow(id) as n from t", "key": "id"},
        "sink": {"type": "elastic", "url": "http://x", "index": "x"}});
    let free = Catalogue {
        allow_queries: true,
        ..Catalogue::default()
    };
    let mut args = Args::parse(&wanted, &free).unwrap();
    // All rows take a second and a half, and a third of them half a second.
    args.source.rights.statement_timeout = Duration::from_secs(1);
    let source = PostgresSource::open(
        ReindexDatabase::of(database.pool()),
        &args.source,
        "id",
        None,
    );

    let first = source.page(None, 200).await.unwrap();
    assert_eq!((first.documents.len(), first.more), (50, true));
    let after = first.documents.last().map(|document| document.key.to_vec());
    let second = source.page(after.as_deref(), 1000).await.unwrap();
    // A little more each time, because a page may be late for once.
    assert_eq!((second.documents.len(), second.more), (51, true));
}

#[tokio::test]
async fn a_query_cannot_write_and_cannot_carry_a_second_statement() {
    let database = database().await;
    execute(
        database.pool(),
        "create table c (id int primary key); insert into c values (1)",
    )
    .await;

    for query in [
        "with gone as (delete from c returning id) select id from gone",
        "select id from c) q; drop table c; select (1",
        "select setval('s', 1) as id from c",
    ] {
        let source = source(database.pool(), json!({"query": query, "key": "id"}), "id");
        assert!(source.page(None, 10).await.is_err(), "{query}");
    }
    let left: i64 = sqlx::query_scalar("select count(*) from c")
        .fetch_one(database.pool())
        .await
        .unwrap();
    assert_eq!(left, 1);
}

#[tokio::test]
async fn an_empty_table_is_one_empty_page_and_rows_are_counted() {
    let database = database().await;
    execute(database.pool(), "create table d (id int primary key)").await;
    let source = source(database.pool(), json!({"table": "d", "key": "id"}), "id");

    let page = source.page(None, 10).await.unwrap();
    assert!(page.documents.is_empty() && !page.more);

    execute(
        database.pool(),
        "insert into d select generate_series(1, 7)",
    )
    .await;
    assert_eq!(source.estimate().await.unwrap(), Some(7));
    assert_eq!(read_all(&source).await.len(), 7);
}

#[tokio::test]
async fn a_page_of_large_rows_ends_early_and_no_row_is_lost() {
    let database = database().await;
    execute(
        database.pool(),
        "create table e (id int primary key, body text);
         insert into e select n, case when n > 100 then repeat('x', 1 << 20) end from generate_series(1, 150) n",
    )
    .await;
    let source = source(database.pool(), json!({"table": "e", "key": "id"}), "id");

    let mut documents: Vec<Document> = Vec::new();
    loop {
        let after = documents.last().map(|document| document.key.to_vec());
        // As many as after a page of small rows.
        let page = source.page(after.as_deref(), 1000).await.unwrap();
        let bytes: usize = page.documents.iter().map(Document::bytes).sum();
        assert!(bytes < 34 << 20, "{bytes} bytes");
        documents.extend(page.documents);
        if !page.more {
            break;
        }
    }

    let all: Vec<String> = (1..=150).map(|n| n.to_string()).collect();
    assert_eq!(ids(&documents), all);
}

#[tokio::test]
async fn a_full_text_table_is_made_filled_and_searched_and_a_bad_document_stands_alone() {
    let database = database().await;
    let table = ["search".to_owned(), "documents".to_owned()];
    let sink = PostgresSink::open(
        ReindexDatabase::of(database.pool()),
        &DatabaseRights::default(),
        &table,
        Some(vec!["title".into()]),
        "english",
        2,
    );
    let document = |id: &str, json: &str| Document {
        key: Arc::from([id.to_owned()]),
        id: Some(id.into()),
        routing: None,
        action: Action::Store(Arc::from(json)),
    };

    sink.prepare().await.unwrap();
    sink.prepare().await.unwrap();
    let written = sink
        .write(&[
            document(
                "1",
                r#"{"title": "running governors", "secret": "walking"}"#,
            ),
            document("2", r#"{"title": "broken"#),
            document("3", r#"{"title": "old"}"#),
            document("3", r#"{"title": "steam"}"#),
        ])
        .await
        .unwrap();

    assert_eq!(written[0], WriteOutcome::Stored);
    assert!(
        matches!(&written[1], WriteOutcome::Refused(reason) if reason.contains("json")),
        "{written:?}"
    );
    let found: Vec<String> = sqlx::query_scalar(
        "select id from search.documents where tsv @@ websearch_to_tsquery('english', 'governor or walk or steam') order by id",
    )
    .fetch_all(database.pool())
    .await
    .unwrap();
    assert_eq!(found, ["1", "3"]);
}

#[tokio::test]
async fn a_text_search_configuration_that_does_not_exist_ends_the_job_and_not_the_documents() {
    let database = database().await;
    let sink = PostgresSink::open(
        ReindexDatabase::of(database.pool()),
        &DatabaseRights::default(),
        &["docs".to_owned()],
        None,
        "klingon",
        2,
    );
    sink.prepare().await.unwrap();
    let document = Document {
        key: Arc::from(["1".to_owned()]),
        id: Some("1".into()),
        routing: None,
        action: Action::Store(Arc::from("{}")),
    };

    let trouble = sink.write(&[document]).await.unwrap_err();

    assert!(trouble.to_string().contains("klingon"), "{trouble}");
}

#[tokio::test]
async fn a_database_that_is_read_only_for_a_while_does_not_end_the_job() {
    let database = database().await;
    let options = (*database.pool().connect_options()).clone();
    let options = options.options([("default_transaction_read_only", "on")]);
    let standby = sqlx::postgres::PgPoolOptions::new().connect_lazy_with(options);
    let sink = PostgresSink::open(
        ReindexDatabase::of(&standby),
        &DatabaseRights::default(),
        &["docs".to_owned()],
        None,
        "english",
        2,
    );

    let trouble = sink.prepare().await.unwrap_err();

    assert!(
        matches!(&trouble, WriteError::Lost(why) if why.contains("read-only")),
        "{trouble}"
    );
}

#[tokio::test]
async fn a_worker_runs_it_from_a_table_into_an_index_and_into_a_table() {
    let database = database().await;
    let (index, url) = Index::start().await;
    let queue = Queue::connect(database.url(), 6, SOON).await.unwrap();
    let store: Arc<dyn Store> = Arc::new(patient_store(&redis_prefix()).await);
    let fields = [("rps".to_owned(), Some("-1".to_owned()))].into();
    let change = Change {
        fields,
        by: "test".into(),
        create: true,
        ..Change::default()
    };
    store
        .set(&Name::new("reindex").unwrap(), &change)
        .await
        .unwrap();
    let mut kinds = Kinds::default();
    let numbers = NamedSource {
        tables: vec!["n".into()],
        key: Some(vec!["id".into()]),
        ..NamedSource::default()
    };
    let search = NamedSink::Elastic {
        bulk_path: USUAL_BULK_PATH.to_owned(),
        aliases: Vec::new(),
        url,
        indexes: vec!["n".into()],
        pipelines: vec![],
        authorization: None,
        ca_file: None,
    };
    let full_text = NamedSink::Postgres {
        database: None,
        rights: DatabaseRights::default(),
        tables: vec!["search.*".into()],
    };
    let catalogue = Catalogue {
        sources: BTreeMap::from([("numbers".to_owned(), numbers)]),
        sinks: BTreeMap::from([
            ("search".to_owned(), search),
            ("full-text".to_owned(), full_text),
        ]),
        allow_queries: false,
    };
    // A URL from the operator's settings may have a private address.
    let config = BackfillConfig {
        guard: Guard::default(),
        catalogue,
    };
    kinds.register(
        KIND,
        ReindexHandler::new(config, Some(ReindexDatabase::of(&queue.pool))).unwrap(),
    );
    let metrics = WorkerMetrics::register(&mut prometheus_client::registry::Registry::default());
    let worker = Worker::start(
        runner::Config::default(),
        queue.clone(),
        store,
        kinds,
        metrics,
    )
    .await
    .unwrap();
    execute(
        &queue.pool,
        "create table public.n (id int primary key, title text); insert into public.n select n, 'number ' || n from generate_series(1, 2345) n",
    )
    .await;

    let source = json!({"name": "numbers", "table": "n"});
    let mut jobs = Vec::new();
    for sink in [
        json!({"name": "search", "index": "n"}),
        json!({"name": "full-text", "table": "search.n"}),
    ] {
        let job = NewJob {
            throttle: "reindex".into(),
            ..NewJob::new(KIND, json!({"source": source, "sink": sink}))
        };
        jobs.push(queue.enqueue(&[job]).await.unwrap()[0].id);
    }

    for id in jobs {
        let done = eventually("the reindex is completed", SOON, || async {
            let detail = queue.get(id).await.unwrap().unwrap();
            assert_ne!(detail.summary.state, State::Dead, "{detail:?}");
            (detail.summary.state == State::Completed).then_some(detail)
        })
        .await;
        let progress = done.progress.unwrap();
        assert_eq!((progress.done, progress.total), (2345, Some(2345)));
    }
    assert_eq!(index.ids().len(), 2345);
    let rows: i64 = sqlx::query_scalar("select count(*) from search.n")
        .fetch_one(&queue.pool)
        .await
        .unwrap();
    assert_eq!(rows, 2345);
    worker.stop().await;
}

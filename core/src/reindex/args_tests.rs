use std::collections::BTreeMap;

use serde_json::json;

use super::*;
use crate::reindex::catalogue::{
    DatabaseRights, NamedSink, NamedSource, SecretLocation, SourceKind, USUAL_BULK_PATH,
};
use crate::reindex::source_args::Rows;

fn good() -> Value {
    json!({
        "source": {"type": "postgres", "table": "public.articles", "key": "id"},
        "sink": {"type": "elastic", "url": "http://127.0.0.1:9200/", "index": "articles"},
    })
}

/// A catalogue that allows everything that `allow_queries` can allow.
fn free() -> Catalogue {
    Catalogue {
        allow_queries: true,
        ..Catalogue::default()
    }
}

fn catalogue() -> Catalogue {
    let source = NamedSource {
        kind: SourceKind::Postgres,
        collections: Vec::new(),
        database: Some(SecretLocation::Variable("SHOP_DATABASE_URL".into())),
        rights: DatabaseRights {
            role: Some("reader".into()),
            ..DatabaseRights::default()
        },
        tables: vec!["public.articles".into()],
        statements: BTreeMap::from([(
            "visible".to_owned(),
            "select * from articles where not hidden".to_owned(),
        )]),
        key: None,
    };
    let search = NamedSink::Elastic {
        bulk_path: USUAL_BULK_PATH.to_owned(),
        aliases: vec!["articles".to_owned()],
        url: "https://search.example.com:9200".into(),
        indexes: vec!["articles-*".into()],
        pipelines: vec!["clean".into()],
        authorization: Some(SecretLocation::Variable("SEARCH_KEY".into())),
        ca_file: None,
    };
    let fts = NamedSink::Postgres {
        database: None,
        rights: DatabaseRights::default(),
        tables: vec!["search.articles".into()],
    };
    Catalogue {
        sources: BTreeMap::from([("shop".to_owned(), source)]),
        sinks: BTreeMap::from([("search".to_owned(), search), ("fts".to_owned(), fts)]),
        allow_queries: false,
    }
}

fn named() -> Value {
    json!({
        "source": {"name": "shop", "table": "public.articles", "key": "id"},
        "sink": {"name": "search", "index": "articles-2"},
    })
}

fn pointers(issues: &[Issue]) -> Vec<&str> {
    issues.iter().map(|issue| issue.pointer.as_str()).collect()
}

#[test]
fn what_a_job_names_is_resolved_to_what_the_operator_has_written() {
    let args = Args::parse(&named(), &catalogue()).unwrap();

    assert_eq!(
        args.source.database,
        Some(SecretLocation::Variable("SHOP_DATABASE_URL".into()))
    );
    assert_eq!(args.source.rights.role.as_deref(), Some("reader"));
    assert_eq!(
        args.source.rows,
        Rows::Table(vec!["public".into(), "articles".into()])
    );
    let SinkArgs::Elastic(sink) = args.sink else {
        panic!()
    };
    assert_eq!(
        (sink.url.as_str(), sink.index.as_str(), sink.id.as_str()),
        ("https://search.example.com:9200", "articles-2", "id")
    );
    assert_eq!(
        (sink.authorization, sink.is_guarded),
        (Some(SecretLocation::Variable("SEARCH_KEY".into())), false)
    );

    let mut by_statement = named();
    by_statement["source"] =
        json!({"name": "shop", "statement": "visible", "key": ["tenant", "id"]});
    by_statement["sink"] = json!({"name": "fts", "table": "search.articles", "id": "id"});
    let args = Args::parse(&by_statement, &catalogue()).unwrap();
    assert_eq!(
        args.source.rows,
        Rows::Query("select * from articles where not hidden".into())
    );
    assert!(matches!(
        args.sink,
        SinkArgs::Postgres { database: None, .. }
    ));
}

#[test]
fn a_job_can_choose_nothing_that_the_operator_has_not_given() {
    let cases = [
        (
            "/source/table",
            json!({"name": "shop", "table": "flyball.job", "key": "id"}),
            None,
        ),
        (
            "/source/table",
            json!({"name": "shop", "table": "articles", "key": "id"}),
            None,
        ),
        (
            "/source/statement",
            json!({"name": "shop", "statement": "select 1 as id", "key": "id"}),
            None,
        ),
        (
            "/source/query",
            json!({"name": "shop", "table": "public.articles", "query": "select 1", "key": "id"}),
            None,
        ),
        (
            "/source/url_env",
            json!({"name": "shop", "table": "public.articles", "url_env": "REINDEX_DATABASE_X", "key": "id"}),
            None,
        ),
        (
            "/source/name",
            json!({"name": "other", "table": "public.articles", "key": "id"}),
            None,
        ),
        (
            "/sink/index",
            Value::Null,
            Some(json!({"name": "search", "index": "people"})),
        ),
        (
            "/sink/url",
            Value::Null,
            Some(json!({"name": "search", "index": "articles-2", "url": "https://evil.example"})),
        ),
        (
            "/sink/pipeline",
            Value::Null,
            Some(json!({"name": "search", "index": "articles-2", "pipeline": "reroute"})),
        ),
        (
            "/sink/authorization_env",
            Value::Null,
            Some(
                json!({"name": "search", "index": "articles-2", "authorization_env": "REINDEX_AUTH_X"}),
            ),
        ),
        (
            "/sink/table",
            Value::Null,
            Some(json!({"name": "fts", "table": "flyball.ready"})),
        ),
    ];
    for (pointer, source, sink) in cases {
        let mut args = named();
        if !source.is_null() {
            args["source"] = source;
        }
        if let Some(sink) = sink {
            args["sink"] = sink;
        }

        let issues = Args::parse(&args, &catalogue()).unwrap_err();

        assert_eq!(pointers(&issues), [pointer], "{args}");
    }
}

#[test]
fn without_the_operators_switch_every_field_of_a_jobs_own_is_refused_by_name() {
    let args = json!({
        "source": {"type": "postgres", "query": "select id from flyball.job", "url_env": "REINDEX_DATABASE_X", "key": "id"},
        "sink": {"type": "elastic", "url": "http://evil.example", "index": "x", "authorization_env": "REINDEX_AUTH_X"},
    });

    let issues = Args::parse(&args, &catalogue()).unwrap_err();

    let mut found = pointers(&issues);
    found.sort_unstable();
    assert_eq!(
        found,
        [
            "/sink/authorization_env",
            "/sink/name",
            "/sink/type",
            "/sink/url",
            "/source/name",
            "/source/query",
            "/source/type",
            "/source/url_env",
        ]
    );
    assert!(
        issues
            .iter()
            .filter(|issue| !issue.pointer.ends_with("name"))
            .all(|i| i.message.contains("allow_reindex_queries"))
    );
    assert!(
        issues
            .iter()
            .any(|issue| issue.message.ends_with("allowed: fts, search")),
        "{issues:?}"
    );
}

#[test]
fn variables_of_databases_cannot_be_headers_and_the_other_way_round_even_with_the_switch() {
    for name in [
        "REINDEX_DATABASE_URL",
        "REINDEX_SOURCE_URL",
        "DATABASE_URL",
        "REINDEX_AUTH_X_ORIGINS",
        "REINDEX_AUTH_x-y",
    ] {
        let mut args = good();
        args["sink"]["authorization_env"] = json!(name);
        assert_eq!(
            pointers(&Args::parse(&args, &free()).unwrap_err()),
            ["/sink/authorization_env"],
            "{name}"
        );
    }
    for name in ["REINDEX_AUTH_X", "DATABASE_URL", "REINDEX_URL"] {
        let mut args = good();
        args["source"]["url_env"] = json!(name);
        assert_eq!(
            pointers(&Args::parse(&args, &free()).unwrap_err()),
            ["/source/url_env"],
            "{name}"
        );
    }
    let mut args = good();
    args["sink"]["authorization_env"] = json!("REINDEX_AUTH_X");
    let SinkArgs::Elastic(sink) = Args::parse(&args, &free()).unwrap().sink else {
        panic!()
    };
    assert_eq!(
        (sink.authorization, sink.is_guarded),
        (Some(SecretLocation::Bound("REINDEX_AUTH_X".into())), true)
    );
}

#[test]
fn a_key_that_the_operator_has_set_is_the_key() {
    let mut catalogue = catalogue();
    catalogue.sources.get_mut("shop").unwrap().key = Some(vec!["id".into()]);
    let mut args = named();

    args["source"]["key"] = json!("secret_order");
    assert_eq!(
        pointers(&Args::parse(&args, &catalogue).unwrap_err()),
        ["/source/key"]
    );

    args["source"].as_object_mut().unwrap().remove("key");
    assert_eq!(Args::parse(&args, &catalogue).unwrap().source.key, ["id"]);
}

#[test]
fn the_smallest_arguments_get_documented_defaults_and_the_key_as_id() {
    let args = Args::parse(&good(), &free()).unwrap();

    assert_eq!(
        (args.batch_docs, args.batch_bytes, args.concurrency),
        (500, 5_000_000, 8)
    );
    assert_eq!(
        args.source.rows,
        Rows::Table(vec!["public".into(), "articles".into()])
    );
    assert_eq!(args.sink.id(), "id");
    assert_eq!(args.on_bad_document, OnBadDocument::DeadLetter);
    let SinkArgs::Elastic(sink) = args.sink else {
        panic!()
    };
    assert_eq!(sink.url, "http://127.0.0.1:9200");
}

#[test]
fn every_fault_is_listed_with_its_pointer() {
    let bad = json!({
        "source": {"type": "mysql", "url": "postgres://u:secret@h/d", "query": "delete from x", "key": 7, "colums": []},
        "sink": {"type": "elastic", "url": "127.0.0.1:9200", "index": "Docs"},
        "batch_docs": 0, "concurrency": -1, "batch_bytes": "many", "speed": 11, "on_bad_document": "ignore",
    });

    let issues = Args::parse(&bad, &free()).unwrap_err();

    let mut pointers: Vec<_> = issues.iter().map(|i| i.pointer.as_str()).collect();
    pointers.sort_unstable();
    assert_eq!(
        pointers,
        [
            "/batch_bytes",
            "/batch_docs",
            "/concurrency",
            "/on_bad_document",
            "/sink/index",
            "/sink/url",
            "/source/colums",
            "/source/key",
            "/source/query",
            "/source/type",
            "/source/url",
            "/speed",
        ]
    );
    assert!(issues.iter().all(|i| !i.message.contains("secret")));
}

#[test]
fn anything_but_an_object_is_refused_without_a_panic() {
    for bad in [
        json!(null),
        json!([]),
        json!("x"),
        json!({"source": [], "sink": 3}),
        json!({}),
        json!({"source": {"name": 7}}),
    ] {
        for catalogue in [free(), catalogue()] {
            assert!(
                !Args::parse(&bad, &catalogue).unwrap_err().is_empty(),
                "{bad}"
            );
        }
    }
}

#[test]
fn a_key_of_several_columns_needs_an_id_that_says_which() {
    let mut args = good();
    args["source"]["key"] = json!(["tenant", "id"]);

    let issues = Args::parse(&args, &free()).unwrap_err();
    assert_eq!(issues[0].pointer, "/sink/id");

    args["sink"]["id"] = json!("id");
    assert_eq!(
        Args::parse(&args, &free()).unwrap().source.key,
        ["tenant", "id"]
    );
}

#[test]
fn credentials_in_addresses_are_refused() {
    let mut args = good();
    args["sink"]["url"] = json!("http://elastic:hunter2@search:9200");

    let issues = Args::parse(&args, &free()).unwrap_err();

    assert!(
        issues[0].message.contains("authorization_env") && !issues[0].message.contains("hunter2"),
        "{issues:?}"
    );
}

#[test]
fn an_empty_source_is_allowed_only_where_an_alias_would_move() {
    assert!(!Args::parse(&good(), &free()).unwrap().allow_empty);
    let mut args = good();
    args["allow_empty"] = json!(true);
    let issues = Args::parse(&args, &free()).unwrap_err();
    assert_eq!(pointers(&issues), ["/allow_empty"]);

    args["sink"]["alias"] = json!("all");
    assert!(Args::parse(&args, &free()).unwrap().allow_empty);
}

#[test]
fn a_job_needs_the_source_and_the_sink_that_it_names() {
    assert_eq!(Args::needs(&named()), ["source shop", "sink search"]);
    assert_eq!(
        Args::needs(&json!({"source": {"table": "a"}, "sink": {"name": 7}})),
        Vec::<String>::new()
    );
}

#[test]
fn refusals_are_as_pinned() {
    let cases = [
        (false, json!(null)),
        (false, json!({})),
        (false, json!({"source": [], "sink": 3})),
        (false, json!({"source": {}, "sink": {}})),
        (
            false,
            json!({"source": {"name": 7}, "sink": {"name": "seach"}}),
        ),
        (
            false,
            json!({"source": {"name": "shop"}, "sink": {"name": "search"}}),
        ),
        (
            false,
            json!({"source": {"name": "shop", "table": "a", "key": "id"}, "sink": {"name": "search", "index": "people"}}),
        ),
        (
            false,
            json!({"source": {"name": "shop", "statement": "a", "key": []}, "sink": {"name": "search", "index": "articles-1", "pipeline": "x"}}),
        ),
        (
            false,
            json!({"source": {"name": "shop", "table": "public.articles", "statement": "visible", "key": "id", "url_env": "A"},
                   "sink": {"name": "fts", "table": "flyball.ready"}}),
        ),
        (
            false,
            json!({"source": {"type": "postgres", "url": "x", "query": "select 1"}, "sink": {"type": "elastic", "url": "http://a"}}),
        ),
        (true, json!({"source": {}, "sink": {}})),
        (
            true,
            json!({"source": {"type": "mysql", "table": "a.b.c", "key": 1}, "sink": {"type": 1}}),
        ),
        (
            true,
            json!({"source": {"type": "postgres", "query": "delete from a", "url": "postgres://u:p@h", "colums": "a"},
                   "sink": {"type": "elastic", "url": "ftp://a", "index": "_A", "pipeline": "a/b", "op_type": "update", "authorization_env": "PATH"}}),
        ),
        (
            true,
            json!({"source": {"type": "postgres", "table": "a", "query": "select 1", "key": ["a", "b"], "url_env": "PATH"},
                   "sink": {"type": "elastic", "url": "http://u:p@a", "index": "a", "authorization_env": "REINDEX_AUTH_X_ORIGINS"}}),
        ),
        (
            true,
            json!({"source": {"type": "postgres", "table": "a", "key": "id"}, "sink": {"type": "postgres", "url": "x", "table": ""},
                   "batch_docs": 0, "batch_bytes": "1", "concurrency": 65, "on_bad_document": "stop", "speed": 1, "a/b": 2}),
        ),
        (
            true,
            json!({"source": {"type": "postgres", "table": "a", "key": "id"}, "sink": {"type": "elastic", "url": "http://?"}}),
        ),
    ];
    crate::input::pinned::check(
        "reindex",
        cases.map(|(is_free, args)| {
            let known = if is_free { free() } else { catalogue() };
            let issues = Args::parse(&args, &known).expect_err("issues");
            let lines = issues
                .into_iter()
                .map(|issue| format!("{}: {}", issue.pointer, issue.message));
            (args.to_string(), lines.collect())
        }),
    );
}

//! Invalid arguments cause the same error through every interface.

use flyball::jobs::{Error, NewJob};
use serde_json::json;
use sqlx::{AssertSqlSafe, Executor};

use super::enqueue::count;
use super::fixture::{http, queue, refused};

#[tokio::test]
async fn every_wrong_argument_is_refused_with_the_same_words_by_every_entry_point() {
    let (database, queue) = queue().await;
    let tagged = |tags: &[&str]| NewJob {
        tags: tags.iter().map(|&tag| tag.to_owned()).collect(),
        ..http()
    };
    let cases: [(NewJob, &str, &str); 23] = [
        (
            NewJob {
                kind: "nope".into(),
                ..http()
            },
            "kind",
            "\"nope\" is not a kind that any worker has registered; known kinds: batch, http",
        ),
        (
            NewJob {
                kind: String::new(),
                ..http()
            },
            "kind",
            "must name what runs the job",
        ),
        (
            NewJob {
                kind: "k".repeat(129),
                ..http()
            },
            "kind",
            "is 129 bytes long",
        ),
        (
            NewJob {
                args: json!("x".repeat(300_000)),
                ..http()
            },
            "args",
            "is 300002 bytes long; at most 262144",
        ),
        (
            NewJob {
                throttle: "two words".into(),
                ..http()
            },
            "throttle",
            "\"two words\" is not a throttle's name",
        ),
        (
            NewJob {
                key: "k".repeat(513),
                ..http()
            },
            "key",
            "is 513 bytes long; at most 512",
        ),
        (
            NewJob {
                priority: 4,
                ..http()
            },
            "priority",
            "is 4; allowed are 0 (runs first)",
        ),
        (
            NewJob {
                max_attempts: 1001,
                ..http()
            },
            "max_attempts",
            "is 1001; allowed are 1 to 1000",
        ),
        (
            NewJob {
                unique_key: Some(String::new()),
                ..http()
            },
            "unique_key",
            "is 0 bytes long",
        ),
        (
            NewJob {
                unique_for: Some(5.0),
                ..http()
            },
            "unique_for",
            "needs a unique_key",
        ),
        (
            NewJob {
                cost: 1e10,
                ..http()
            },
            "cost",
            "is 10000000000; allowed is more than 0",
        ),
        (
            NewJob {
                run_at: Some("2100-01-01T00:00:00Z".parse().unwrap()),
                ..http()
            },
            "run_at",
            "is 2100-01-01",
        ),
        (
            NewJob {
                traceparent: Some("00-ab".into()),
                ..http()
            },
            "traceparent",
            "\"00-ab\" is not a W3C trace parent; write it like 00-4bf9",
        ),
        (
            NewJob {
                timeout_s: Some(-1.0),
                ..http()
            },
            "timeout",
            "is -00:00:01; allowed is at least a microsecond",
        ),
        (
            NewJob {
                timeout_s: Some(1e-9),
                ..http()
            },
            "timeout",
            "is 00:00:00; allowed is at least a microsecond (0.000001 s)",
        ),
        (
            NewJob {
                timeout_s: Some(1e-50),
                ..http()
            },
            "timeout",
            "is 00:00:00; allowed is at least a microsecond (0.000001 s)",
        ),
        (
            NewJob {
                debounce_s: Some(1.0),
                ..http()
            },
            "debounce",
            "needs a unique_key",
        ),
        (
            NewJob {
                debounce_max_s: Some(1.0),
                ..http()
            },
            "debounce_max",
            "needs a debounce",
        ),
        (
            NewJob {
                replace: true,
                ..http()
            },
            "replace",
            "needs a unique_key",
        ),
        (
            tagged(&["a"; 17]),
            "tags",
            "has 17 elements; at most 16 are allowed",
        ),
        (
            tagged(&["import", ""]),
            "tags",
            "has an element of 0 bytes; allowed are texts of 1 to 64 bytes",
        ),
        (
            tagged(&["x".repeat(65).as_str()]),
            "tags",
            "has an element of 65 bytes; allowed are texts of 1 to 64 bytes",
        ),
        (
            tagged(&["a\nb"]),
            "tags",
            "\"a\\nb\" has a control character, which no tag may have",
        ),
    ];

    for (job, at, output) in cases {
        let message = refused(&queue, &job, at, output).await;

        let by_json = sqlx::query("select flyball.enqueue_many($1)")
            .bind(json!([http(), job]))
            .execute(database.pool())
            .await;
        let by_json = by_json.unwrap_err().to_string();
        assert!(
            by_json.contains(&format!("enqueue_many: jobs[1].{at}: {message}")),
            "{by_json}"
        );
    }

    assert_eq!(
        count(database.pool(), "select count(*) from flyball.job").await,
        0
    );
    assert_eq!(
        count(database.pool(), "select count(*) from flyball.ready").await,
        0
    );
}

#[tokio::test]
async fn arguments_are_measured_as_the_text_that_a_worker_reads_however_little_they_take_in_postgres()
 {
    let (database, _queue) = queue().await;
    let pool = database.pool();
    pool.execute("create table public.kept as select to_jsonb(repeat('x', 300000)) as args")
        .await
        .unwrap();
    let entry_points = |args: &str| {
        let job = format!("jsonb_build_object('kind', 'http', 'args', {args})");
        [
            format!("select flyball.enqueue('http', {args})"),
            format!("select flyball.enqueue('http', {args}, unique_key => 'a')"),
            format!("select flyball.enqueue_many(jsonb_build_array({job}))"),
            format!(
                "select flyball.enqueue_rows('{{http}}', array[{args}], '{{a}}', '{{a}}', '{{1}}', '{{null}}', '{{1}}', '{{null}}', \
                 '{{null}}', '{{1}}', '{{null}}', '{{null}}', '{{null}}', '{{null}}', '{{f}}')"
            ),
        ]
    };

    for args in [
        "(select args from public.kept)",
        "jsonb_build_array(1e100000, 1e100000, 1e100000)",
        "to_jsonb(repeat(chr(1), 60000))",
        "to_jsonb(repeat('x', 262143))",
    ] {
        for call in entry_points(args) {
            let refused = pool
                .execute(AssertSqlSafe(call.clone()))
                .await
                .expect_err(&call)
                .to_string();
            assert!(
                refused.contains("args: is ") && refused.contains("at most 262144 (256 KiB)"),
                "{call}: {refused}"
            );
        }
    }
    for call in entry_points("to_jsonb(repeat('x', 262142))") {
        pool.execute(AssertSqlSafe(call)).await.unwrap();
    }

    assert_eq!(count(pool, "select count(*) from flyball.job").await, 4);
}

#[tokio::test]
async fn json_of_the_wrong_shape_is_refused_by_field_and_place() {
    let (database, _queue) = queue().await;
    let cases = [
        (json!([{}]), "jobs[0].kind: must name what runs the job"),
        (
            json!([{"kind": "http"}, {"kind": 7}]),
            "jobs[1].kind: must be a string, not number",
        ),
        (json!([{"kind": "http"}, []]), "jobs[1]: must be an object"),
        (
            json!([{"kind": "http"}, null]),
            "jobs[1]: must be an object",
        ),
        (
            json!([{"kind": "http", "key": null}]),
            "jobs[0].key: must be a string, not null",
        ),
        (
            json!([{"kind": "http", "priority": 1.5}]),
            "jobs[0].priority: must be a whole number, not 1.5",
        ),
        (
            json!([{"kind": "http", "max_attempts": "3"}]),
            "jobs[0].max_attempts: must be a number, not string",
        ),
        (
            json!([{"kind": "http", "replace": "yes"}]),
            "jobs[0].replace: must be a boolean, not string",
        ),
        (
            json!([{"kind": "http", "traceparent": 1}]),
            "jobs[0].traceparent: must be a string, not number",
        ),
        (
            json!([{"kind": "http", "timeout": "a while"}]),
            "jobs[0].timeout: \"a while\" is not a span; write seconds as a number",
        ),
        (
            json!([{"kind": "http", "timeout": [1]}]),
            "jobs[0].timeout: must be seconds or an interval text, not array",
        ),
        (
            json!([{"kind": "http", "debounce": 1e12}]),
            "jobs[0].debounce: is out of range; allowed is more than 0",
        ),
        (
            json!([{"kind": "http", "unique_key": "a", "unique_for": "40 years"}]),
            "jobs[0].unique_for: is out of range; allowed is more than 0 and at most 366 days (31622400 seconds)",
        ),
        (
            json!([{"kind": "http", "debounce_max": "-40 years"}]),
            "jobs[0].debounce_max: is out of range; allowed is more than 0",
        ),
        (
            json!([{"kind": "http", "run_at": "0000-00-00"}]),
            "jobs[0].run_at: \"0000-00-00\" is not a time",
        ),
        (
            json!([{"kind": "http", "timeout_s": 1}]),
            "jobs[0].timeout_s: is not a field of a job; allowed are kind, args",
        ),
        (
            json!([{"kind": "http", "tags": "import"}]),
            "jobs[0].tags: must be a list of texts, not string",
        ),
        (
            json!([{"kind": "http"}, {"kind": "http", "tags": ["a", 7]}]),
            "jobs[1].tags: has an element that is a number; allowed are texts",
        ),
    ];
    for (jobs, output) in cases {
        let refused = sqlx::query("select flyball.enqueue_many($1)")
            .bind(&jobs)
            .execute(database.pool())
            .await;
        let refused = refused.unwrap_err().to_string();
        assert!(
            refused.contains(&format!("enqueue_many: {output}")),
            "{jobs}: {refused}"
        );
    }

    let spans = json!([{"kind": "http", "timeout": "10 minutes", "unique_key": null, "run_at": null, "args": null}]);
    sqlx::query("select flyball.enqueue_many($1)")
        .bind(&spans)
        .execute(database.pool())
        .await
        .unwrap();
    let empty = sqlx::query("select * from flyball.enqueue_many('[]')")
        .fetch_all(database.pool())
        .await
        .unwrap();
    assert!(empty.is_empty());
    assert_eq!(
        count(
            database.pool(),
            "select count(*) from flyball.job where timeout_s = 600 and args = 'null'"
        )
        .await,
        1
    );
}

#[tokio::test]
async fn columns_of_another_shape_and_numbers_of_any_size_are_refused() {
    let (database, _queue) = queue().await;
    let call = |keys: &str| {
        format!(
            "select flyball.enqueue_rows('{{http}}', array['{{}}'::jsonb], '{{a}}', {keys}, '{{1}}', '{{null}}', '{{1}}', '{{null}}',
             '{{null}}', '{{1}}', '{{null}}', '{{null}}', '{{null}}', '{{null}}', '{{f}}')"
        )
    };
    let wrong = [
        (
            "'{null,null}'",
            "enqueue_rows: options: must have one element for each job: kinds has 1, and this 2",
        ),
        (
            "array['{\"tag\": [\"a\"]}'::jsonb]",
            "jobs[0].options: \"tag\" is not an option of a job; allowed are tags",
        ),
        (
            "array['[]'::jsonb]",
            "jobs[0].options: must be an object, not array",
        ),
    ];
    for (options, output) in wrong {
        let call = call("'{a}'").replace("'{f}')", &format!("'{{f}}', options => {options})"));
        let refused = database.pool().execute(AssertSqlSafe(call)).await;
        let refused = refused.unwrap_err().to_string();
        assert!(refused.contains(output), "{refused}");
    }
    let large = [
        (
            call("'{{a}}'"),
            "enqueue_rows: keys: must have one dimension, not 2",
        ),
        (
            "select flyball.enqueue('http', priority => 70000)".to_owned(),
            "enqueue: priority: is 70000; allowed are 0 (runs first)",
        ),
        (
            "select flyball.enqueue('http', max_attempts => 70000)".to_owned(),
            "enqueue: max_attempts: is 70000; allowed are 1 to 1000",
        ),
        (
            "select flyball.requeue_unsent('mail', -1)".to_owned(),
            "requeue_unsent: max_jobs: is -1; allowed are 1 to 10000",
        ),
        (
            "select flyball.cancel_jobs(tags => '{{a,b},{c,d}}')".to_owned(),
            "cancel_jobs: tags: must be an array of one dimension",
        ),
        (
            r#"select flyball.enqueue_many('[{"kind": "http", "priority": "infinity"}]')"#
                .to_owned(),
            "jobs[0].priority: must be a number, not string",
        ),
    ];
    for (call, output) in large {
        let refused = database.pool().execute(AssertSqlSafe(call)).await;
        let refused = refused.unwrap_err().to_string();
        assert!(refused.contains(output), "{refused}");
    }
    let (size, shape) = ("must have one element for each job", "must be an array");
    for (keys, problem) in [("'{}'", size), ("'{a,b}'", size), ("null", shape)] {
        let refused = database
            .pool()
            .execute(AssertSqlSafe(call(keys)))
            .await
            .unwrap_err()
            .to_string();
        assert!(
            refused.contains(&format!("enqueue_rows: keys: {problem}")),
            "{refused}"
        );
    }
    database
        .pool()
        .execute(AssertSqlSafe(call("'{a}'")))
        .await
        .unwrap();
    let refused = database
        .pool()
        .execute(AssertSqlSafe(call("'{null}'")))
        .await
        .unwrap_err()
        .to_string();
    assert!(
        refused.contains("enqueue_rows: jobs[0].key: must not be null"),
        "{refused}"
    );
}

#[tokio::test]
async fn arguments_that_are_no_json_are_refused_by_name() {
    let map = std::collections::BTreeMap::from([((1, 2), 3)]);
    let refused = NewJob::of("http", &map).unwrap_err();
    assert!(
        matches!(&refused, Error::Refused { field, .. } if field == "args"),
        "{refused}"
    );
}

//! Enqueueing: every rule of the front doors, on a real Postgres. What replaces a waiting job is in `replace.rs`.

use std::time::Duration;

use flyball::jobs::postgres::{LaneClaim, NewWorker};
use flyball::jobs::{Backlog, Client, Enqueued, Error, NewJob, Queue, State};
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Connection, Executor, PgPool};

use crate::support::{Database, database};

async fn queue() -> (Database, Queue) {
    let database = database().await;
    let queue = Queue::connect(database.url(), 6, Duration::from_secs(20))
        .await
        .unwrap();
    (database, queue)
}

fn http() -> NewJob {
    NewJob::new("http", json!({"url": "http://127.0.0.1/"}))
}

async fn one(queue: &Queue, job: NewJob) -> Enqueued {
    queue.enqueue(&[job]).await.unwrap()[0]
}

async fn count(pool: &PgPool, sql: &str) -> i64 {
    sqlx::query_scalar(AssertSqlSafe(sql.to_owned()))
        .fetch_one(pool)
        .await
        .unwrap()
}

#[tokio::test]
async fn a_waiting_row_says_whether_its_job_holds_a_unique_key_until_it_ends() {
    let (database, queue) = queue().await;
    let key = |key: &str| NewJob {
        unique_key: Some(key.into()),
        ..http()
    };
    let later = Some("2030-01-01T00:00:00Z".parse().unwrap());
    let jobs = [
        http(),
        key("held"),
        NewJob {
            unique_for: Some(60.0),
            ..key("window")
        },
        NewJob {
            run_at: later,
            ..http()
        },
        NewJob {
            run_at: later,
            ..key("later")
        },
        NewJob {
            run_at: later,
            unique_for: Some(60.0),
            ..key("later window")
        },
    ];
    let mut ids: Vec<i64> = queue
        .enqueue(&jobs)
        .await
        .unwrap()
        .iter()
        .map(|one| one.id)
        .collect();
    for call in [
        "enqueue('http')",
        "enqueue('http', unique_key => 'sql')",
        "enqueue('http', unique_key => 'sql window', unique_for => '1 hour')",
        "enqueue('http', run_at => now() + interval '1 hour')",
        "enqueue('http', unique_key => 'sql later', run_at => now() + interval '1 hour')",
        "enqueue('http', unique_key => 'sql later window', unique_for => '1 hour', run_at => now() + interval '1 hour')",
    ] {
        let sql = AssertSqlSafe(format!("select job_id from flyball.{call}"));
        ids.push(
            sqlx::query_scalar(sql)
                .fetch_one(database.pool())
                .await
                .unwrap(),
        );
    }

    let held: Vec<bool> = sqlx::query_scalar(
        "select coalesce(r.holds_unique, s.holds_unique) from unnest($1::bigint[]) with ordinality as i(id, n)
         left join flyball.ready r on r.job_id = i.id left join flyball.scheduled s on s.job_id = i.id order by i.n",
    )
    .bind(&ids)
    .fetch_all(database.pool())
    .await
    .unwrap();

    let expected = [false, true, false, false, true, false];
    assert_eq!(held, [expected, expected].concat());
}

#[tokio::test]
async fn the_bell_names_the_lane_that_got_work_and_no_lane_where_several_did() {
    let (database, queue) = queue().await;
    let mut listener = sqlx::postgres::PgListener::connect(database.url())
        .await
        .unwrap();
    listener.listen("flyball").await.unwrap();
    let id = |key: &'static str| {
        let pool = database.pool();
        async move {
            let sql = "select flyball.lane_of('default', $1)::text";
            sqlx::query_scalar::<_, String>(sql)
                .bind(key)
                .fetch_one(pool)
                .await
                .unwrap()
        }
    };
    queue.fall_asleep().await.unwrap();
    let mut rung = async |jobs: &[NewJob]| {
        queue.enqueue(jobs).await.unwrap();
        listener.recv().await.unwrap().payload().to_owned()
    };
    let to = |key: &str| NewJob {
        key: key.into(),
        ..http()
    };
    let later = Some("2030-01-01T00:00:00Z".parse().unwrap());

    assert_eq!(rung(&[to("a")]).await, id("a").await);
    assert_eq!(rung(&[to("b"), to("b")]).await, id("b").await);
    assert_eq!(rung(&[to("a"), to("b")]).await, "");
    assert_eq!(
        rung(&[
            NewJob {
                run_at: later,
                ..to("a")
            },
            to("b")
        ])
        .await,
        id("b").await,
        "a job for later wakes nobody"
    );
    assert_eq!(
        rung(&[NewJob {
            unique_key: Some("u".into()),
            ..to("c")
        }])
        .await,
        id("c").await
    );

    database
        .pool()
        .execute("select flyball.enqueue('http', key => 'd')")
        .await
        .unwrap();
    assert_eq!(listener.recv().await.unwrap().payload(), id("d").await);
    queue
        .enqueue(&[NewJob {
            run_at: later,
            ..to("a")
        }])
        .await
        .unwrap();
    let silent = tokio::time::timeout(Duration::from_millis(200), listener.recv()).await;
    assert!(silent.is_err(), "nothing became ready");
}

#[tokio::test]
async fn the_same_job_by_sql_by_json_and_by_columns_is_the_same_row() {
    let (database, queue) = queue().await;
    let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let job = NewJob {
        throttle: "hooks".into(),
        key: "k".into(),
        priority: 2,
        run_at: Some("2030-01-01T00:00:00Z".parse().unwrap()),
        max_attempts: 3,
        cost: 2.5,
        traceparent: Some(trace.into()),
        timeout_s: Some(90.0),
        ..http()
    };
    let by_columns = queue.enqueue(&[job.clone(), http()]).await.unwrap()[0].id;
    let alone = one(&queue, job.clone()).await.id;
    let by_json: i64 = sqlx::query_scalar("select job_id from flyball.enqueue_many($1)")
        .bind(json!([job]))
        .fetch_one(database.pool())
        .await
        .unwrap();
    let by_sql: i64 = sqlx::query_scalar(
        "select job_id from flyball.enqueue('http', '{\"url\": \"http://127.0.0.1/\"}', throttle => 'hooks', key => 'k', priority => 2,
            run_at => '2030-01-01Z', max_attempts => 3, cost => 2.5,
            traceparent => '00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01', timeout => '90 seconds')",
    )
    .fetch_one(database.pool())
    .await
    .unwrap();

    let rows: Vec<Value> = sqlx::query_scalar(
        "select to_jsonb(j) - '{id,created_at}'::text[] || jsonb_build_object('scheduled', to_jsonb(s) - 'job_id')
         from flyball.job j join flyball.scheduled s on s.job_id = j.id where j.id = any($1) order by j.id",
    )
    .bind([by_columns, alone, by_json, by_sql])
    .fetch_all(database.pool())
    .await
    .unwrap();

    assert_eq!(rows.len(), 4);
    assert!(rows.windows(2).all(|two| two[0] == two[1]), "{rows:#?}");
    assert_eq!(
        (&rows[0]["traceparent"], &rows[0]["timeout_s"]),
        (&json!(trace), &json!(90))
    );
}

#[tokio::test]
async fn every_wrong_argument_is_refused_with_the_same_words_by_every_door() {
    let (database, queue) = queue().await;
    let cases: [(NewJob, &str, &str); 19] = [
        (
            NewJob {
                kind: "nope".into(),
                ..http()
            },
            "kind",
            "\"nope\" is not a kind that any worker has registered; known kinds: http",
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
    ];

    for (job, at, said) in cases {
        let by_columns = queue.enqueue(&[http(), job.clone()]).await.unwrap_err();
        let Error::Refused {
            index,
            field,
            message,
        } = &by_columns
        else {
            panic!("{by_columns}")
        };
        assert_eq!((*index, field.as_str()), (Some(1), at));
        assert!(message.starts_with(said), "{at}: {message}");

        let alone = Client.enqueue(&queue.pool, job.clone()).await.unwrap_err();
        assert!(
            matches!(&alone, Error::Refused { index: None, field, message: same } if field == at && same == message),
            "{alone}"
        );

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
    let doors = |args: &str| {
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
        for call in doors(args) {
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
    for call in doors("to_jsonb(repeat('x', 262142))") {
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
    ];
    for (jobs, said) in cases {
        let refused = sqlx::query("select flyball.enqueue_many($1)")
            .bind(&jobs)
            .execute(database.pool())
            .await;
        let refused = refused.unwrap_err().to_string();
        assert!(
            refused.contains(&format!("enqueue_many: {said}")),
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
async fn columns_of_different_lengths_are_refused() {
    let (database, _queue) = queue().await;
    let call = |keys: &str| {
        format!(
            "select flyball.enqueue_rows('{{http}}', array['{{}}'::jsonb], '{{a}}', {keys}, '{{1}}', '{{null}}', '{{1}}', '{{null}}',
             '{{null}}', '{{1}}', '{{null}}', '{{null}}', '{{null}}', '{{null}}', '{{f}}')"
        )
    };
    for keys in ["'{}'", "'{a,b}'", "null"] {
        let refused = database
            .pool()
            .execute(AssertSqlSafe(call(keys)))
            .await
            .unwrap_err()
            .to_string();
        assert!(
            refused.contains("every argument must be an array with one element for each job"),
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
        refused.contains("jobs[0].key: must not be null"),
        "{refused}"
    );
}

async fn cap(pool: &PgPool, throttle: &str, fields: Value) {
    let sql = "insert into flyball.knobs (throttle, fields) values ($1, $2) on conflict (throttle) do update set fields = excluded.fields";
    sqlx::query(sql)
        .bind(throttle)
        .bind(fields)
        .execute(pool)
        .await
        .unwrap();
}

#[tokio::test]
async fn above_its_cap_a_lane_takes_more_and_says_so() {
    let (database, queue) = queue().await;
    cap(database.pool(), "hooks", json!({"max_backlog": "2"})).await;
    let on = |key: &str| http().throttle("hooks").key(key);

    assert_eq!(one(&queue, on("a")).await.backlog, None);
    assert_eq!(one(&queue, on("a")).await.backlog, None);
    assert_eq!(
        one(&queue, on("a")).await.backlog,
        Some(Backlog { depth: 3, max: 2 })
    );
    assert_eq!(
        one(&queue, on("b")).await.backlog,
        None,
        "another key is another lane"
    );
    assert_eq!(
        one(&queue, http().key("a")).await.backlog,
        None,
        "another throttle has no cap"
    );
    assert_eq!(
        one(&queue, on("a").after(Duration::from_secs(60)))
            .await
            .backlog,
        None,
        "what runs later does not wait now"
    );
    let sql = "select backlog from flyball.enqueue('http', throttle => 'hooks', key => 'a')";
    let said: Value = sqlx::query_scalar(sql)
        .fetch_one(database.pool())
        .await
        .unwrap();
    assert_eq!(
        said,
        json!({"depth": 4, "max": 2}),
        "counted no further than one above the cap"
    );
    let batch = queue
        .enqueue(&[on("b"), on("b"), on("c"), http()])
        .await
        .unwrap();
    let told: Vec<_> = batch
        .iter()
        .map(|one| one.backlog.map(|backlog| backlog.depth))
        .collect();
    assert_eq!(told, [Some(3), Some(3), None, None]);
    assert_eq!(
        count(database.pool(), "select count(*) from flyball.ready").await,
        10
    );
}

#[tokio::test]
async fn a_cap_far_above_what_is_counted_is_judged_by_the_depth_that_was_written_down() {
    let (database, _queue) = queue().await;
    let pool = database.pool();
    cap(pool, "hooks", json!({"max_backlog": "100000"})).await;
    let mut one = pool.acquire().await.unwrap();
    sqlx::raw_sql(
        "insert into flyball.ready (lane_id, priority, job_id, cost) select flyball.lane_of('hooks', ''), 1, i, 1 from generate_series(1, 20000) i;
         insert into flyball.lane (lane_id, throttle, key) values (flyball.lane_of('hooks', ''), 'hooks', '')",
    )
    .execute(&mut *one)
    .await
    .unwrap();
    let mut read = 0;
    // The answer, and how many entries of the queue's index were read for it.
    let mut ask = async |depth: i64, minutes_old: i32| -> (Value, i64) {
        let set =
            "update flyball.lane set depth = $1, depth_at = now() - make_interval(mins => $2)";
        sqlx::query(set)
            .bind(depth)
            .bind(minutes_old)
            .execute(&mut *one)
            .await
            .unwrap();
        let enqueue =
            "select coalesce(backlog, 'null') from flyball.enqueue('http', throttle => 'hooks')";
        let said: Value = sqlx::query_scalar(enqueue)
            .fetch_one(&mut *one)
            .await
            .unwrap();
        sqlx::raw_sql("select pg_stat_force_next_flush()")
            .execute(&mut *one)
            .await
            .unwrap();
        let entries =
            "select idx_tup_read from pg_stat_user_indexes where indexrelname = 'ready_lane'";
        let now: i64 = sqlx::query_scalar(entries)
            .fetch_one(&mut *one)
            .await
            .unwrap();
        (said, now - std::mem::replace(&mut read, now))
    };

    let (warm, _) = ask(90_000, 0).await;
    let (below, entries_below) = ask(90_000, 0).await;
    let (above, entries_above) = ask(100_000, 0).await;
    let (unsure, _) = ask(100_000, 11).await;
    sqlx::query("delete from flyball.ready where job_id > 10")
        .execute(pool)
        .await
        .unwrap();
    let (emptied, _) = ask(100_000, 0).await;

    assert_eq!((warm, &below), (Value::Null, &Value::Null));
    assert!(
        entries_below < 100,
        "{entries_below} entries were read far below the cap"
    );
    assert_eq!(above, json!({"depth": 100_001, "max": 100_000}));
    assert!(
        entries_above < 5_100,
        "{entries_above} entries were read above the cap"
    );
    assert_eq!(
        unsure,
        Value::Null,
        "a figure that nobody has seen to for so long refuses nothing"
    );
    assert_eq!(emptied, Value::Null, "what can be counted is counted");
}

#[tokio::test]
async fn a_full_lane_that_rejects_takes_nothing_and_names_itself() {
    let (database, queue) = queue().await;
    cap(
        database.pool(),
        "hooks",
        json!({"max_backlog": "2", "on_backlog": "reject"}),
    )
    .await;
    let on = |key: &str| http().throttle("hooks").key(key);
    queue
        .enqueue(&[on("a"), on("a").unique("held")])
        .await
        .unwrap();

    let full = queue.enqueue(&[http(), on("a")]).await.unwrap_err();
    let Error::Full {
        throttle,
        key,
        backlog,
    } = &full
    else {
        panic!("{full}")
    };
    assert_eq!(
        (throttle.as_str(), key.as_str(), *backlog),
        ("hooks", "a", Backlog { depth: 2, max: 2 })
    );
    assert!(
        full.to_string().contains("throttle \"hooks\", key \"a\": 2 jobs of this lane are ready; its knob max_backlog allows 2")
    );

    let sql =
        "select flyball.enqueue('http', throttle => 'hooks', key => 'a', unique_key => 'other')";
    let error = database.pool().execute(sql).await.unwrap_err();
    assert_eq!(error.as_database_error().unwrap().code().unwrap(), "53400");
    let said = error.to_string();
    assert!(
        said.contains("enqueue: throttle \"hooks\", key \"a\": 2 jobs of this lane are ready; its knob max_backlog allows 2"),
        "{said}"
    );

    let whole = queue
        .enqueue(&[on("b"), on("b"), on("b")])
        .await
        .unwrap_err()
        .to_string();
    assert!(whole.contains("0 jobs of this lane are ready"), "{whole}");
    assert_eq!(
        count(database.pool(), "select count(*) from flyball.job").await,
        2,
        "all or none"
    );
    assert_eq!(
        count(
            database.pool(),
            "select count(*) from flyball.unique_holder"
        )
        .await,
        1,
        "a refused job leaves no key behind"
    );

    assert!(
        one(&queue, on("a").unique("held")).await.duplicate,
        "a duplicate adds nothing"
    );
    let replaced = one(&queue, on("a").unique("held").replace()).await;
    assert!(replaced.replaced, "a replacement adds nothing");
    one(&queue, on("a").after(Duration::from_secs(60))).await;
    queue.enqueue(&[on("b"), on("b")]).await.unwrap();
}

#[tokio::test]
async fn a_cap_that_is_no_number_is_no_cap() {
    let (database, queue) = queue().await;
    for nonsense in [
        json!("many"),
        json!("-1"),
        json!(""),
        json!("1e400"),
        json!("99999999999999999999"),
        json!(null),
    ] {
        cap(
            database.pool(),
            "hooks",
            json!({"max_backlog": nonsense, "on_backlog": "reject"}),
        )
        .await;
        queue
            .enqueue(&[http().throttle("hooks"), http().throttle("hooks")])
            .await
            .unwrap();
        one(&queue, http().throttle("hooks")).await;
    }
    cap(
        database.pool(),
        "hooks",
        json!({"max_backlog": "1.0", "on_backlog": "shout"}),
    )
    .await;
    assert!(
        one(&queue, http().throttle("hooks"))
            .await
            .backlog
            .is_some(),
        "an unknown word is the default, signal"
    );
}

#[tokio::test]
async fn the_client_enqueues_in_the_callers_transaction() {
    let (database, queue) = queue().await;
    let mut transaction = database.pool().begin().await.unwrap();
    let lost = Client.enqueue(&mut *transaction, http()).await.unwrap();
    transaction.rollback().await.unwrap();
    assert!(queue.get(lost.id).await.unwrap().is_none());

    let mut transaction = database.pool().begin().await.unwrap();
    let kept = Client.enqueue(&mut *transaction, http()).await.unwrap();
    let many = Client
        .enqueue_many(&mut *transaction, &[http(), http()])
        .await
        .unwrap();
    let mut savepoint = transaction.begin().await.unwrap();
    let refused = Client
        .enqueue(&mut *savepoint, http().priority(7))
        .await
        .unwrap_err();
    savepoint.rollback().await.unwrap();
    assert!(
        queue.get(kept.id).await.unwrap().is_none(),
        "nothing is visible before the caller commits"
    );
    transaction.commit().await.unwrap();

    assert!(matches!(refused, Error::Refused { field, .. } if field == "priority"));
    assert_eq!(
        count(database.pool(), "select count(*) from flyball.ready").await,
        3
    );
    assert_eq!(
        queue.get(many[1].id).await.unwrap().unwrap().summary.state,
        State::Ready
    );
    assert!(
        Client
            .enqueue_many(database.pool(), &[])
            .await
            .unwrap()
            .is_empty()
    );
    assert_eq!(
        Client.enqueue(&queue.pool, http()).await.unwrap().backlog,
        None
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

#[tokio::test]
async fn a_job_carries_its_trace_and_its_time_out_to_its_handler() {
    let (_database, queue) = queue().await;
    let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    one(
        &queue,
        http()
            .traceparent(trace)
            .timeout(Duration::from_millis(1500))
            .priority(2),
    )
    .await;
    let worker = NewWorker {
        name: "w".into(),
        host: "h".into(),
        pid: 1,
        ttl: Duration::from_secs(30),
        kinds: Vec::new(),
    };
    let worker = queue.register(&worker).await.unwrap();
    let lane = queue.ready_lanes().await.unwrap()[0].lane_id;

    let claimed = queue
        .claim(worker, 1, &[LaneClaim::first(lane, 1)])
        .await
        .unwrap();

    let job = &claimed[0].job;
    assert_eq!(
        (job.traceparent.as_deref(), job.timeout, job.priority),
        (Some(trace), Some(Duration::from_millis(1500)), 2)
    );
}

#[test]
fn a_trace_parent_is_what_w3c_says() {
    let good = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    assert!(NewJob::is_traceparent(good));
    assert!(
        NewJob::is_traceparent(&good.replace("00-4", "cc-4")),
        "a later version"
    );
    for bad in [
        "",
        "00",
        &good[1..],
        &format!("{good}-x"),
        &good.to_uppercase(),
        &good.replace("00-4", "ff-4"),
        &good.replace('g', "x").replace('a', "g"),
        &good.replace("4bf92f3577b34da6a3ce929d0e0e4736", &"0".repeat(32)),
        &good.replace("00f067aa0ba902b7", &"0".repeat(16)),
    ] {
        assert!(!NewJob::is_traceparent(bad), "{bad}");
    }
}

#[tokio::test]
async fn postgres_and_rust_agree_on_what_a_trace_parent_is() {
    let (database, _queue) = queue().await;
    let good = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let mut texts = vec![
        good.to_owned(),
        String::new(),
        format!("{good}\n"),
        format!(" {good}"),
        "ff".to_owned() + &good[2..],
    ];
    for at in 0..good.len() {
        for with in ['0', 'f', 'F', '-', 'g', 'ü'] {
            texts.push(
                good.char_indices()
                    .map(|(i, c)| if i == at { with } else { c })
                    .collect(),
            );
        }
    }
    let told: Vec<bool> =
        sqlx::query_scalar("select flyball.is_traceparent(t) from unnest($1::text[]) with ordinality as u(t, n) order by n")
            .bind(&texts)
            .fetch_all(database.pool())
            .await
            .unwrap();
    for (text, told) in texts.iter().zip(told) {
        assert_eq!(NewJob::is_traceparent(text), told, "{text:?}");
    }
}

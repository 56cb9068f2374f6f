//! The filters of searches and of bulk changes, and the indexes that make them fast.

use flyball::jobs::postgres::Ending;
use flyball::jobs::{BulkCursor, CancelFilter, DeadFilter, JobFilter, JobSearch, NewJob, Queue};
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Row};

use super::fixture::{SOON, die, end_all, enqueue, job, queue, refused, signed, worker};
use crate::support::eventually;

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

fn with_args(args: Value) -> NewJob {
    NewJob {
        args,
        kind: "report".to_owned(),
        ..job("t", "a")
    }
}

fn by(search: JobSearch) -> JobFilter {
    JobFilter {
        search,
        limit: 100,
        ..JobFilter::default()
    }
}

fn args(args: Value) -> JobSearch {
    JobSearch {
        args: Some(args),
        ..JobSearch::default()
    }
}

fn path(path: &str) -> JobSearch {
    JobSearch {
        args_path: Some(path.to_owned()),
        ..JobSearch::default()
    }
}

async fn found(queue: &Queue, filter: &JobFilter) -> Vec<i64> {
    let found = queue.list(filter).await.unwrap();
    found.iter().map(|job| job.id).collect()
}

async fn kinds(queue: &Queue) {
    sqlx::query("select flyball.register_kind(k) from unnest(array['report', 'notification']) k")
        .execute(&queue.pool)
        .await
        .unwrap();
}

#[tokio::test]
async fn a_filter_finds_exactly_its_jobs_in_lists_and_in_bulk_changes() {
    let (_database, queue) = queue().await;
    kinds(&queue).await;
    let customer = enqueue(
        &queue,
        with_args(
            json!({"customer": {"id": 17, "name": "Ann"}, "lines": [{"sku": "A1"}, {"sku": "B2"}]}),
        ),
    )
    .await;
    let other = enqueue(&queue, with_args(json!({"customer": {"id": 18}}))).await;
    let traced = with_args(json!({})).traceparent(format!("00-{TRACE}-00f067aa0ba902b7-01"));
    let traced = enqueue(&queue, traced).await;
    let unique = enqueue(&queue, with_args(json!({})).unique("order-7")).await;
    let group = sqlx::query("select group_id, job_ids[1] as job_id from flyball.create_group(jobs => '[{\"kind\": \"report\"}]')")
        .fetch_one(&queue.pool)
        .await
        .unwrap();
    let (group, member): (i64, i64) = (group.get("group_id"), group.get("job_id"));

    let cases = [
        (args(json!({"customer": {"id": 17}})), vec![customer]),
        (args(json!({"customer": {"id": 17.0}})), vec![customer]),
        (args(json!({"customer": {}})), vec![other, customer]),
        (args(json!({"customer": 17})), vec![]),
        (path("$.customer.id == 17"), vec![customer]),
        (
            path("$.customer.id >= 17 && $.customer.name starts with \"A\""),
            vec![customer],
        ),
        (
            path("$.lines[*].sku == \"B2\" || $.customer.id == 18"),
            vec![other, customer],
        ),
        (path("exists($.customer.name)"), vec![customer]),
        (
            JobSearch {
                trace: Some(TRACE.into()),
                ..JobSearch::default()
            },
            vec![traced],
        ),
        (
            JobSearch {
                trace: Some(format!("00-{TRACE}-b7ad6b7169203331-00")),
                ..JobSearch::default()
            },
            vec![traced],
        ),
        (
            JobSearch {
                unique_key: Some("order-7".into()),
                ..JobSearch::default()
            },
            vec![unique],
        ),
        (
            JobSearch {
                unique_key: Some("order-8".into()),
                ..JobSearch::default()
            },
            vec![],
        ),
    ];
    for (search, wanted) in cases {
        assert_eq!(
            found(&queue, &by(search.clone())).await,
            wanted,
            "{search:?}"
        );
        let bulk = CancelFilter {
            search: search.clone(),
            ..CancelFilter::default()
        };
        let counted = queue.count_cancel_jobs(&bulk, &signed()).await.unwrap();
        assert_eq!(counted.jobs, wanted.len() as i64, "{search:?}");
    }
    let of_group = JobFilter {
        group: Some(group),
        ..by(JobSearch::default())
    };
    assert_eq!(found(&queue, &of_group).await, [member]);
    let bulk = CancelFilter {
        group: Some(group),
        ..CancelFilter::default()
    };
    let cancelled = queue
        .cancel_jobs(&bulk, &BulkCursor::of(10), &signed())
        .await
        .unwrap();
    assert_eq!(cancelled.jobs, 1);
    let left = JobFilter {
        state: Some(flyball::jobs::State::Ready),
        ..by(JobSearch::default())
    };
    assert_eq!(
        found(&queue, &left).await,
        [unique, traced, other, customer]
    );
}

#[tokio::test]
async fn an_error_finds_dead_jobs_and_those_that_wait_after_a_failure() {
    let (_database, queue) = queue().await;
    kinds(&queue).await;
    let worker = worker(&queue).await;
    let failed = |error: &str| Ending::Failed {
        delay: SOON,
        error: error.into(),
    };
    let dead = die(
        &queue,
        worker,
        with_args(json!({"order": 1})),
        "answered 502 by a.example",
    )
    .await;
    let other = die(
        &queue,
        worker,
        with_args(json!({"order": 2})),
        "answered 404",
    )
    .await;
    let waits = enqueue(&queue, job("t", "b")).await;
    assert_eq!(
        end_all(&queue, worker, failed("answered 502 by b.example")).await,
        [waits]
    );
    enqueue(&queue, job("t", "c")).await;

    let like = |pattern: &str| JobFilter {
        error_like: Some(pattern.into()),
        ..by(JobSearch::default())
    };
    assert_eq!(found(&queue, &like("answered 502%")).await, [waits, dead]);
    assert_eq!(found(&queue, &like("%b.example")).await, [waits]);
    let of_dead = JobFilter {
        state: Some(flyball::jobs::State::Dead),
        ..like("answered%")
    };
    assert_eq!(found(&queue, &of_dead).await, [other, dead]);
    let waiting = CancelFilter {
        error_like: Some("%502%".into()),
        ..CancelFilter::default()
    };
    let cancelled = queue
        .cancel_jobs(&waiting, &BulkCursor::of(10), &signed())
        .await
        .unwrap();
    assert_eq!(cancelled.jobs, 1);
    let requeued = DeadFilter {
        search: args(json!({"order": 2})),
        ..DeadFilter::default()
    };
    let walked = queue
        .requeue_dead(&requeued, false, &BulkCursor::of(10), &signed())
        .await
        .unwrap();
    assert_eq!(walked.jobs, 1);
    assert_eq!(found(&queue, &of_dead).await, [dead]);
}

#[tokio::test]
async fn no_filter_reads_what_readers_see_masked() {
    let (_database, queue) = queue().await;
    kinds(&queue).await;
    let secret = json!({"url": "https://u:secret@example.com/", "headers": {"authorization": "Bearer x"}, "body": {"order": 7}});
    let request = enqueue(
        &queue,
        NewJob {
            args: secret,
            ..job("t", "")
        },
    )
    .await;
    let message = json!({"channel": "email", "to": "ann@example.com", "subject": "s", "body": "b", "category": "billing"});
    sqlx::query(
        "insert into flyball.job (id, lane_id, priority, max_attempts, cost, kind, throttle, key, args)
         values (flyball.next_id(), flyball.lane_of('t', ''), 1, 10, 1, 'notification', 't', '', $1)",
    )
    .bind(message)
    .execute(&queue.pool)
    .await
    .unwrap();

    assert_eq!(
        found(&queue, &by(path("$.body.order == 7"))).await,
        [request]
    );
    assert_eq!(
        found(&queue, &by(path("$.category == \"billing\"")))
            .await
            .len(),
        1
    );
    for hidden in [
        "$.headers.authorization starts with \"B\"",
        "$.url starts with \"https://u\"",
        "$.to starts with \"a\"",
        "$.subject == \"s\"",
    ] {
        assert_eq!(
            found(&queue, &by(path(hidden))).await,
            Vec::<i64>::new(),
            "{hidden}"
        );
    }
}

#[tokio::test]
async fn no_filter_tells_a_password_in_any_form_of_a_url_nor_a_secret_that_is_marked() {
    let (_database, queue) = queue().await;
    // As a program of its own would: Rust refuses a secret that is not encrypted.
    let request = async |args: Value| -> i64 {
        sqlx::query_scalar("select job_id from flyball.enqueue('http', $1)")
            .bind(args)
            .fetch_one(&queue.pool)
            .await
            .unwrap()
    };
    // Arguments that are no object have no fields to hide.
    request(json!(7)).await;
    let mut requests = Vec::new();
    for url in [
        "HTTPS://u:guess@h/",
        "http:\\\\u:guess@h",
        "http:u:guess@h",
        "https://u:gu\tess@h/",
        "ht\ntp://u:guess@h/",
        "https:///u:guess@h",
    ] {
        let given = json!({"url": url, "password": {"$secret": "guess"}});
        requests.insert(0, request(given).await);
        let by_url = found(&queue, &by(args(json!({"url": url})))).await;
        assert_eq!(by_url, Vec::<i64>::new(), "{url}");
    }

    // Readers see the URL so.
    let hidden = found(&queue, &by(path("$.url == \"***\""))).await;
    assert_eq!(hidden, requests[..5]);
    let masked = found(&queue, &by(path("$.url == \"HTTPS://***@h/\""))).await;
    assert_eq!(masked, requests[5..]);
    // A part that is true of what readers see must not bring in what they do not see.
    for (guess, wanted) in [
        ("$.url != \"http:u:guess@h\"", &requests),
        (
            "$.password.\"$secret\" == \"guess\" || $.password == \"[secret]\"",
            &requests,
        ),
        (
            "$.password.\"$secret\" == \"wrong\" || $.password == \"[secret]\"",
            &requests,
        ),
        ("$.password.\"$secret\" == \"guess\"", &Vec::new()),
    ] {
        assert_eq!(&found(&queue, &by(path(guess))).await, wanted, "{guess}");
    }
}

#[tokio::test]
async fn arguments_too_deep_for_any_worker_hide_no_other_job_from_a_search() {
    let (_database, queue) = queue().await;
    let mut jobs = Vec::new();
    for levels in [1, 100, 3000] {
        let (open, close) = ("[".repeat(levels), "]".repeat(levels));
        let args = format!(r#"{{"order": 7, "in": {open}{{"$secret": "guess"}}{close}}}"#);
        let enqueued =
            sqlx::query_scalar("select job_id from flyball.enqueue('http', $1::text::jsonb)");
        let id: i64 = enqueued.bind(args).fetch_one(&queue.pool).await.unwrap();
        jobs.insert(0, id);
    }

    let by_args = found(&queue, &by(args(json!({"order": 7})))).await;
    assert_eq!(by_args, jobs);
    let by_path = found(&queue, &by(path("$.order == 7"))).await;
    assert_eq!(by_path, jobs);
    for id in jobs {
        let shown: String = sqlx::query_scalar("select flyball.show_job($1)::text")
            .bind(id)
            .fetch_one(&queue.pool)
            .await
            .unwrap();
        assert!(shown.contains("[secret]") && !shown.contains("guess"));
    }
}

#[tokio::test]
async fn a_filter_that_is_wrong_is_refused_by_its_name() {
    let (_database, queue) = queue().await;
    let cases = [
        (
            path("$.a like_regex \"(a+)+$\""),
            "args_path",
            "is not allowed",
        ),
        (path("$.a == $.b"), "args_path", "is not allowed"),
        (path("$.**.a == 1"), "args_path", "is not allowed"),
        (
            path("$.a"),
            "args_path",
            "comparisons of a path with a value",
        ),
        (path("$.a =="), "args_path", "is not allowed"),
        (
            path(&format!("$.a == {}", "1".repeat(500))),
            "args_path",
            "1 to 500",
        ),
        (
            args(json!([1])),
            "args",
            "is array; allowed is a JSON object",
        ),
        (args(json!({})), "args", "is empty"),
        (args(json!({"a": "x".repeat(3000)})), "args", "at most 2000"),
        (
            JobSearch {
                trace: Some("abc".into()),
                ..JobSearch::default()
            },
            "trace",
            "32 hexadecimal digits",
        ),
        (
            JobSearch {
                unique_key: Some("u".repeat(600)),
                ..JobSearch::default()
            },
            "unique_key",
            "1 to 512",
        ),
    ];
    for (search, field, part) in cases {
        let (named, message) = refused(queue.page(&by(search.clone()))).await;
        assert!(
            named == field && message.contains(part),
            "{search:?}: {named}: {message}"
        );
        let filter = CancelFilter {
            search,
            ..CancelFilter::default()
        };
        let bulk = refused(queue.cancel_jobs(&filter, &BulkCursor::of(1), &signed())).await;
        assert_eq!(bulk, (named, message));
    }
    for (sql, field) in [
        ("list_jobs('[]')", "filter"),
        ("list_jobs('{\"sate\": \"dead\"}')", "sate"),
        ("list_jobs('{\"state\": \"gone\"}')", "state"),
        ("list_jobs('{\"group\": \"x\"}')", "group"),
        (
            "list_jobs('{\"created_after\": \"soon\"}')",
            "created_after",
        ),
        ("list_jobs('{\"key\": 7}')", "key"),
        ("list_jobs(max_jobs => 0)", "max_jobs"),
    ] {
        let error = sqlx::query(AssertSqlSafe(format!("select * from flyball.{sql}")))
            .execute(&queue.pool)
            .await
            .unwrap_err();
        let message = error.into_database_error().unwrap().message().to_owned();
        assert!(
            message.starts_with(&format!("list_jobs: {field}: ")),
            "{sql}: {message}"
        );
    }
}

/// Fills days with jobs of which few match, so that a walk does not reach the oldest at once.
const MANY: &str = "
insert into flyball.job (id, lane_id, priority, max_attempts, cost, created_at, kind, throttle, key, args, traceparent)
select ((flyball.day_of(now()) - 2 + i / 60000) << 38) | (2 * i), flyball.lane_of('t', ''), 1, 10, 1, now(), 'http', 't', '',
    jsonb_build_object('customer', jsonb_build_object('id', i), 'pad', repeat('x', 400)),
    case when i = 5 then '00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01' end
from generate_series(1, 120000) i";

#[tokio::test]
async fn an_added_index_finds_at_once_what_a_walk_would_reach_late() {
    let (database, queue) = queue().await;
    sqlx::query(
        "select flyball.ensure_day(flyball.day_of(now()) - i) from generate_series(1, 2) as i",
    )
    .execute(database.pool())
    .await
    .unwrap();
    sqlx::query(MANY).execute(database.pool()).await.unwrap();
    let oldest = by(args(json!({"customer": {"id": 3}})));
    let trace = by(JobSearch {
        trace: Some(TRACE.into()),
        ..JobSearch::default()
    });
    for filter in [&oldest, &trace] {
        let page = queue.page(filter).await.unwrap();
        assert!(
            page.jobs.is_empty() && page.next.is_some(),
            "a walk stops early and says so"
        );
    }

    let names = ["customer".to_owned(), "id".to_owned()];
    queue.create_job_index(Some(&names)).await.unwrap();
    queue.create_job_index(Some(&names)).await.unwrap();
    queue.create_job_index(None).await.unwrap();
    let indexes = queue.job_indexes().await.unwrap();
    assert_eq!(indexes.len(), 2, "an equal one is made once");
    assert!(
        indexes
            .iter()
            .all(|index| index.is_ready && index.bytes > 0)
    );
    for filter in [&oldest, &trace] {
        let page = queue.page(filter).await.unwrap();
        assert_eq!((page.jobs.len(), page.next), (1, None), "{filter:?}");
    }
    // Paths that the index does not know are checked too, and days that come are in it.
    let both = by(args(json!({"customer": {"id": 3}, "pad": "y"})));
    assert_eq!(queue.page(&both).await.unwrap().jobs.len(), 0);
    sqlx::query("select flyball.ensure_day(flyball.day_of(now()) + 20)")
        .execute(database.pool())
        .await
        .unwrap();
    let indexes = queue.job_indexes().await.unwrap();
    assert_eq!(indexes.len(), 2);
    assert!(indexes.iter().all(|index| index.is_ready));
    // A value of any size and form can be enqueued.
    for value in [
        json!("x".repeat(20_000)),
        json!([1, 2]),
        json!(null),
        json!(1e300),
    ] {
        enqueue(
            &queue,
            NewJob {
                args: json!({"url": "http://127.0.0.1/", "customer": {"id": value}}),
                ..job("t", "")
            },
        )
        .await;
    }
    let long = by(args(json!({"customer": {"id": 1e300}})));
    assert_eq!(found(&queue, &long).await.len(), 1);

    assert!(queue.drop_job_index(Some(&names)).await.unwrap());
    assert!(!queue.drop_job_index(Some(&names)).await.unwrap());
    let (field, message) = refused(queue.create_job_index(Some(&["a'b".to_owned()]))).await;
    assert!(
        field == "args" && message.contains("letters, digits and _"),
        "{message}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_index_waits_for_an_old_reader_longer_than_for_any_lock() {
    let (database, queue) = queue().await;
    kinds(&queue).await;
    queue
        .enqueue(&[NewJob::new("report", json!({"customer": {"id": 7}}))])
        .await
        .unwrap();
    let old = "begin isolation level repeatable read";
    let mut reader = database.pool().begin_with(old).await.unwrap();
    let read = sqlx::query("select count(*) from flyball.job");
    read.execute(&mut *reader).await.unwrap();
    let building = queue.clone();
    let names = ["customer".to_owned(), "id".to_owned()];
    let built = tokio::spawn(async move { building.create_job_index(Some(&names)).await });
    eventually("it waits for longer than a lock timeout", SOON, || async {
        let sql = "select count(*) from pg_stat_activity where datname = current_database()
            and query like 'create index concurrently%' and wait_event_type = 'Lock'
            and query_start < clock_timestamp() - interval '500 ms'";
        let waiting: i64 = sqlx::query_scalar(sql)
            .fetch_one(database.pool())
            .await
            .unwrap();
        (waiting == 1).then_some(())
    })
    .await;

    reader.commit().await.unwrap();

    built.await.unwrap().unwrap();
    assert!(queue.job_indexes().await.unwrap()[0].is_ready);
    let of_customer = by(args(json!({"customer": {"id": 7}})));
    assert_eq!(found(&queue, &of_customer).await.len(), 1);
}

#[tokio::test]
async fn an_index_calls_nothing_that_others_plant_in_public() {
    let (database, queue) = queue().await;
    kinds(&queue).await;
    queue
        .enqueue(&[NewJob::new("report", json!({"customer": {"id": 7}}))])
        .await
        .unwrap();
    // It fits the second argument of the index better than that of the system.
    sqlx::raw_sql(
        "create function public.jsonb_hash_extended(jsonb, int) returns bigint language plpgsql immutable as $$
         begin
             raise exception 'planted code runs as %', current_user;
         end $$",
    )
    .execute(database.pool())
    .await
    .unwrap();

    let names = ["customer".to_owned(), "id".to_owned()];
    queue.create_job_index(Some(&names)).await.unwrap();

    let of_customer = by(args(json!({"customer": {"id": 7}})));
    assert_eq!(found(&queue, &of_customer).await.len(), 1);
}

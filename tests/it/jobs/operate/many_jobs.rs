//! Operations on all jobs that a filter selects.

use std::collections::BTreeSet;

use flyball::jobs::postgres::{Ending, Finish};
use flyball::jobs::{BATCH_JOBS_MAX, BulkCursor, CancelFilter, Count, DeadFilter, NewJob, State};
use jiff::SignedDuration;
use serde_json::json;
use sqlx::postgres::PgListener;
use sqlx::{AssertSqlSafe, Connection, Executor, Row};

use super::fixture::{
    FENCE, SOON, audit, claim, count, die, end_all, enqueue, job, later, now, queue, signed, state,
    worker,
};

#[tokio::test]
async fn a_filter_cancels_exactly_the_jobs_that_it_names() {
    let (database, queue) = queue().await;
    let worker = worker(&queue).await;
    let running = enqueue(&queue, job("t", "a")).await;
    claim(&queue, worker).await;
    let retryable = enqueue(&queue, job("t", "b")).await;
    let ids: Vec<i64> = claim(&queue, worker).await;
    assert_eq!(ids, [retryable]);
    let failed = Finish {
        job_id: retryable,
        fence: FENCE,
        ending: Ending::Failed {
            delay: SOON,
            error: "x".into(),
        },
    };
    queue.finish(&[failed]).await.unwrap();
    let mut taken = job("t", "a");
    taken.unique_key = Some("u".into());
    let mut other_kind = job("u", "a");
    other_kind.kind = "reindex".into();
    let ready = enqueue(&queue, taken.clone()).await;
    let scheduled = later(&queue, "t", "a").await;
    let elsewhere = enqueue(&queue, other_kind).await;
    let all = BTreeSet::from([running, retryable, ready, scheduled, elsewhere]);

    let hour_ago = now(&queue).await - SignedDuration::from_hours(1);
    let none = CancelFilter::default();
    let cases: Vec<(CancelFilter, Vec<i64>)> = vec![
        (
            CancelFilter {
                kind: Some("reindex".into()),
                ..none.clone()
            },
            vec![elsewhere],
        ),
        (
            CancelFilter {
                throttle: Some("t".into()),
                ..none.clone()
            },
            vec![running, retryable, ready, scheduled],
        ),
        (
            CancelFilter {
                key: Some("a".into()),
                ..none.clone()
            },
            vec![running, ready, scheduled, elsewhere],
        ),
        (
            CancelFilter {
                throttle: Some("t".into()),
                key: Some("a".into()),
                ..none.clone()
            },
            vec![running, ready, scheduled],
        ),
        (
            CancelFilter {
                state: Some(State::Retryable),
                ..none.clone()
            },
            vec![retryable],
        ),
        (
            CancelFilter {
                state: Some(State::Scheduled),
                ..none.clone()
            },
            vec![scheduled],
        ),
        (
            CancelFilter {
                state: Some(State::Running),
                ..none.clone()
            },
            vec![running],
        ),
        (
            CancelFilter {
                created_before: Some(hour_ago),
                ..none.clone()
            },
            vec![],
        ),
        (
            CancelFilter {
                created_after: Some(hour_ago),
                ..none.clone()
            },
            all.iter().copied().collect(),
        ),
        (
            CancelFilter {
                throttle: Some("no".into()),
                ..none.clone()
            },
            vec![],
        ),
    ];
    for (filter, wanted) in cases {
        let found = queue.count_cancel_jobs(&filter, &signed()).await.unwrap();
        assert_eq!(
            found,
            Count {
                jobs: wanted.len() as i64,
                more: false
            },
            "{filter:?}"
        );
        // Each operation is carried out, checked, and rolled back.
        let mut connection = database.pool().acquire().await.unwrap();
        let mut open = connection.begin().await.unwrap();
        let output = sqlx::query(
            "select * from flyball.cancel_jobs(kind => $1, throttle => $2, key => $3, state => $4, created_after => $5::text::timestamptz, \
             created_before => $6::text::timestamptz)",
        )
        .bind(&filter.kind)
        .bind(&filter.throttle)
        .bind(&filter.key)
        .bind(filter.state.map(|state| serde_json::to_value(state).unwrap().as_str().unwrap().to_owned()))
        .bind(filter.created_after.map(|at| at.to_string()))
        .bind(filter.created_before.map(|at| at.to_string()))
        .fetch_one(&mut *open)
        .await
        .unwrap();
        let gone: Vec<i64> =
            sqlx::query_scalar("select id from flyball.job where flyball.job_state(id) = 'cancelled' union select job_id from flyball.cancel order by 1")
                .fetch_all(&mut *open)
                .await
                .unwrap();
        assert_eq!(
            BTreeSet::from_iter(gone),
            BTreeSet::from_iter(wanted.iter().copied()),
            "{filter:?}"
        );
        assert_eq!(
            output.get::<i64, _>("cancelled") + output.get::<i64, _>("requested"),
            wanted.len() as i64
        );
        assert_eq!(output.get::<Option<String>, _>("next"), None);
        open.rollback().await.unwrap();
    }
    for id in all {
        assert!(
            !matches!(state(&queue, id).await, State::Cancelled),
            "counting changes nothing"
        );
    }
    let done = queue
        .cancel_jobs(
            &CancelFilter {
                key: Some("a".into()),
                ..none
            },
            &BulkCursor::of(100),
            &signed(),
        )
        .await
        .unwrap();
    assert_eq!((done.jobs, done.requested, done.next), (3, 1, None));
    assert_eq!(
        count(&database, "unique_holder").await,
        0,
        "the unique key of a cancelled job is free"
    );
    assert!(!queue.enqueue(&[taken]).await.unwrap()[0].duplicate);
    assert_eq!(
        queue.pulse(worker, &[]).await.unwrap().cancel,
        [running],
        "its worker is notified"
    );
}

#[tokio::test]
async fn a_walk_of_many_batches_takes_every_job_once_and_is_one_line_of_the_audit_log() {
    let (database, queue) = queue().await;
    let jobs: Vec<NewJob> = (0..250).map(|i| job("t", &format!("k{}", i % 7))).collect();
    queue.enqueue(&jobs).await.unwrap();
    for i in 0..20 {
        later(&queue, "t", &format!("k{}", i % 3)).await;
    }
    let stays = enqueue(&queue, job("other", "k1")).await;
    let filter = CancelFilter {
        throttle: Some("t".into()),
        ..CancelFilter::default()
    };

    let mut walk = BulkCursor::of(30);
    let (mut jobs, mut calls) = (0, 0);
    loop {
        let walked = queue.cancel_jobs(&filter, &walk, &signed()).await.unwrap();
        assert!(walked.jobs <= 30);
        jobs += walked.jobs;
        calls += 1;
        walk.start = walked.next;
        if walk.start.is_none() {
            break;
        }
    }

    assert_eq!(jobs, 270);
    assert!(calls >= 9, "{calls}");
    assert_eq!(state(&queue, stays).await, State::Ready);
    assert_eq!(
        (
            count(&database, "ready").await,
            count(&database, "scheduled").await,
            count(&database, "attempt").await
        ),
        (1, 0, 270)
    );
    let lines = audit(&database).await;
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert_eq!(
        (
            lines[0].1.as_str(),
            &lines[0].3["cancelled"],
            &lines[0].3["filter"]["throttle"]
        ),
        ("jobs.cancel", &json!(270), &json!("t"))
    );
}

#[tokio::test]
async fn a_count_stops_at_ten_thousand() {
    let (_database, queue) = queue().await;
    let batch: Vec<NewJob> = (0..BATCH_JOBS_MAX).map(|_| job("t", "k")).collect();
    queue.enqueue(&batch).await.unwrap();
    let lane = async || queue.count_lane("t", "k", &signed()).await.unwrap();
    assert_eq!(
        lane().await,
        Count {
            jobs: 10_000,
            more: false
        }
    );

    queue.enqueue(&batch[..1]).await.unwrap();

    assert_eq!(lane().await.to_string(), "10000+");
    let all = CancelFilter {
        state: Some(State::Ready),
        ..CancelFilter::default()
    };
    assert_eq!(
        queue
            .count_cancel_jobs(&all, &signed())
            .await
            .unwrap()
            .to_string(),
        "10000+"
    );
}

#[tokio::test]
async fn dead_letters_are_requeued_by_filter_and_wake_workers() {
    let (database, queue) = queue().await;
    let worker = worker(&queue).await;
    let timeout = die(&queue, worker, job("t", "a"), "timeout after 30 s").await;
    let refused = die(&queue, worker, job("t", "b"), "connect: timeout").await;
    let percent = die(&queue, worker, job("u", "a"), "100% wrong").await;
    let mut reindex = job("u", "b");
    reindex.kind = "reindex".into();
    let reindex = die(&queue, worker, reindex, "500").await;
    sqlx::query("update flyball.dead set died_at = now() - interval '3 days' where job_id = $1")
        .bind(percent)
        .execute(database.pool())
        .await
        .unwrap();
    let none = DeadFilter::default();
    let day_ago = now(&queue).await - SignedDuration::from_hours(24);
    let like = |pattern: &str| DeadFilter {
        error_like: Some(pattern.into()),
        ..none.clone()
    };
    let cases = [
        (like("timeout%"), vec![timeout]),
        (like("%timeout%"), vec![timeout, refused]),
        (like(r"100\%%"), vec![percent]),
        (like("%"), vec![timeout, refused, percent, reindex]),
        (
            DeadFilter {
                kind: Some("reindex".into()),
                ..none.clone()
            },
            vec![reindex],
        ),
        (
            DeadFilter {
                throttle: Some("t".into()),
                ..none.clone()
            },
            vec![timeout, refused],
        ),
        (
            DeadFilter {
                key: Some("a".into()),
                ..none.clone()
            },
            vec![timeout, percent],
        ),
        (
            DeadFilter {
                throttle: Some("u".into()),
                key: Some("a".into()),
                ..none.clone()
            },
            vec![percent],
        ),
        (
            DeadFilter {
                died_before: Some(day_ago),
                ..none.clone()
            },
            vec![percent],
        ),
        (
            DeadFilter {
                died_after: Some(day_ago),
                key: Some("a".into()),
                ..none.clone()
            },
            vec![timeout],
        ),
    ];
    for (filter, wanted) in cases {
        assert_eq!(
            queue.count_dead(&filter, &signed()).await.unwrap(),
            Count {
                jobs: wanted.len() as i64,
                more: false
            },
            "{filter:?}"
        );
    }
    let mut listener = PgListener::connect(database.url()).await.unwrap();
    listener.listen("flyball").await.unwrap();

    let walked = queue
        .requeue_dead(&like("%timeout%"), false, &BulkCursor::of(10), &signed())
        .await
        .unwrap();

    assert_eq!((walked.jobs, walked.next), (2, None));
    tokio::time::timeout(SOON, listener.recv())
        .await
        .expect("a notification arrives")
        .unwrap();
    for id in [timeout, refused] {
        let job = queue.get(id).await.unwrap().unwrap();
        assert_eq!((job.summary.state, job.summary.attempt), (State::Ready, 0));
    }
    assert_eq!(
        (state(&queue, percent).await, state(&queue, reindex).await),
        (State::Dead, State::Dead)
    );
    assert_eq!(
        BTreeSet::from_iter(claim(&queue, worker).await),
        BTreeSet::from([timeout, refused])
    );

    let walked = queue
        .requeue_dead(&like("100%"), true, &BulkCursor::of(10), &signed())
        .await
        .unwrap();
    assert_eq!(
        (
            walked.jobs,
            queue.get(percent).await.unwrap().unwrap().summary.attempt
        ),
        (1, 1),
        "attempts are kept on request"
    );
    let walked = queue
        .discard_dead(&like("500"), &BulkCursor::of(10), &signed())
        .await
        .unwrap();
    assert_eq!(
        (walked.jobs, state(&queue, reindex).await),
        (1, State::Cancelled)
    );
    let actions: Vec<String> = audit(&database)
        .await
        .into_iter()
        .map(|line| line.1)
        .collect();
    assert_eq!(actions, ["dead.requeue", "dead.requeue", "dead.discard"]);
}

#[tokio::test]
async fn many_dead_letters_are_requeued_batch_by_batch_each_once() {
    let (database, queue) = queue().await;
    let worker = worker(&queue).await;
    queue.enqueue(&vec![job("t", "a"); 120]).await.unwrap();
    let ids = end_all(&queue, worker, Ending::Dead { error: "x".into() }).await;
    let filter = DeadFilter {
        throttle: Some("t".into()),
        ..DeadFilter::default()
    };

    let mut walk = BulkCursor::of(50);
    let mut batches = Vec::new();
    loop {
        let walked = queue
            .requeue_dead(&filter, false, &walk, &signed())
            .await
            .unwrap();
        batches.push(walked.jobs);
        walk.start = walked.next;
        if walk.start.is_none() {
            break;
        }
    }

    assert_eq!(batches, [50, 50, 20]);
    assert_eq!(
        BTreeSet::from_iter(claim(&queue, worker).await),
        BTreeSet::from_iter(ids)
    );
    let lines = audit(&database).await;
    assert_eq!((lines.len(), &lines[0].3["jobs"]), (1, &json!(120)));
}

#[tokio::test]
async fn what_is_asked_wrongly_of_many_jobs_is_refused_by_name_and_nothing_changes() {
    let (database, queue) = queue().await;
    let worker = worker(&queue).await;
    let dead = die(&queue, worker, job("t", ""), "x").await;
    let ready = enqueue(&queue, job("t", "")).await;
    let cases = [
        (
            "cancel_jobs()",
            "state: is missing, as is every other filter; name at least one of kind",
        ),
        (
            "cancel_jobs(state => 'dead')",
            "state: \"dead\" is not a state that can be cancelled; allowed are ready",
        ),
        (
            "cancel_jobs('http', max_jobs => 0)",
            "max_jobs: is 0; allowed are 1 to 10000",
        ),
        (
            "cancel_jobs('http', max_jobs => null)",
            "max_jobs: is null; allowed are 1 to 10000",
        ),
        (
            "cancel_jobs('http', dry_run => null)",
            "dry_run: must be true or false, not null",
        ),
        (
            "purge_lane('t', '', dry_run => null)",
            "dry_run: must be true or false, not null",
        ),
        (
            "discard_dead('http', dry_run => null)",
            "dry_run: must be true or false, not null",
        ),
        (
            "requeue_dead('http', dry_run => null)",
            "dry_run: must be true or false, not null",
        ),
        (
            "requeue_dead('http', keep_attempts => null)",
            "keep_attempts: must be true or false, not null",
        ),
        (
            "cancel_jobs('http', start => 'x')",
            "start: \"x\" is not a place to go on from",
        ),
        (
            "purge_lane('t', '', start => 'ready/9999999999999999999/0/1')",
            "start: \"ready/9999999999999999999/0/1\" names no lane",
        ),
        (
            "cancel_jobs('http', start => 'scheduled/-9223372036854775809/1')",
            "start: \"scheduled/-9223372036854775809/1\" names no",
        ),
        (
            "cancel_jobs('http', start => 'dead/1')",
            "start: \"dead/1\" is not a place to go on from",
        ),
        (
            "cancel_jobs(created_after => now(), created_before => now())",
            "created_after: is",
        ),
        (
            "purge_lane('two words', '')",
            "throttle: \"two words\" is not a throttle's name",
        ),
        (
            "purge_lane(null, '')",
            "throttle: null is not a throttle's name",
        ),
        ("purge_lane('t', null)", "key: must not be null"),
        (
            "purge_lane('t', repeat('k', 513))",
            "key: is 513 bytes long; at most 512 are allowed",
        ),
        (
            "purge_lane('t', '', 10001)",
            "max_jobs: is 10001; allowed are 1 to 10000",
        ),
        (
            "requeue_dead()",
            "error_like: is missing, as is every other filter",
        ),
        (
            "requeue_dead(error_like => 'a\\')",
            "error_like: ends with a lone backslash",
        ),
        (
            "requeue_dead(error_like => '%a%b%c%d%e%f')",
            "error_like: is too long or has more than five %",
        ),
        (
            "requeue_dead('http', start => 'ready/1/1/1')",
            "start: \"ready/1/1/1\" is not a place",
        ),
        ("discard_dead()", "error_like: is missing"),
        (
            "discard_dead('http', died_after => now(), died_before => now() - interval '1 s')",
            "died_after: is",
        ),
        (
            "set_weight('t', '', 0)",
            "weight: is 0; allowed are 0.001 to 1000",
        ),
        ("set_weight('t', '', 'NaN')", "weight: is NaN; allowed are"),
        ("set_weight('t', '', null)", "weight: is null; allowed are"),
        (
            "set_weight('t t', '', 1)",
            "throttle: \"t t\" is not a throttle's name",
        ),
        (
            "reschedule(1, null)",
            "run_at: is null; allowed are times from 1970",
        ),
        (
            "reschedule(1, 'infinity')",
            "run_at: is infinity; allowed are times from 1970",
        ),
    ];

    for (call, output) in cases {
        let error = database
            .pool()
            .execute(AssertSqlSafe(format!("select flyball.{call}")))
            .await
            .unwrap_err()
            .to_string();
        assert!(error.contains(output), "{call}: {error}");
    }

    assert_eq!(
        (state(&queue, dead).await, state(&queue, ready).await),
        (State::Dead, State::Ready)
    );
    assert!(audit(&database).await.is_empty());
    assert_eq!(
        count(&database, "lane").await,
        1,
        "the lane that the worker saw"
    );
}

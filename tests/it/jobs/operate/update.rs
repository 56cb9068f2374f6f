//! Updates of one waiting job: what changes, what stays, and what is refused.

use std::time::Duration;

use flyball::jobs::postgres::Ending;
use flyball::jobs::secret::KEY_BYTES;
use flyball::jobs::{Error, JobRetry, JobUpdate, MoveAnswer, NewJob, Queue, SecretKeys, State};
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection};

use super::fixture::{
    audit, claim, count, die, end_all, enqueue, job, later, queue, refused, signed, state, worker,
};
use crate::support::unique;

/// Returns an update of every field.
fn every() -> JobUpdate {
    JobUpdate {
        args: Some(json!({"url": "http://127.0.0.1/new"})),
        throttle: Some("other".into()),
        key: Some("b".into()),
        priority: Some(0),
        max_attempts: Some(3),
        cost: Some(2.5),
        timeout_s: Some(7.0),
        tags: Some(vec!["x".into(), "x".into(), "y".into()]),
        retry: Some(JobRetry::every(Duration::from_secs(9))),
        clear: Vec::new(),
    }
}

async fn updated(queue: &Queue, id: i64, changes: &JobUpdate) {
    let answer = queue.update(id, changes, &signed()).await.unwrap();
    assert_eq!(answer, MoveAnswer::Moved);
}

#[tokio::test]
async fn a_waiting_job_takes_every_field_in_every_state_and_keeps_its_time_and_attempts() {
    let (database, queue) = queue().await;
    let worker = worker(&queue).await;
    let retryable = enqueue(&queue, job("t", "a")).await;
    let failed = Ending::Failed {
        delay: Duration::from_secs(600),
        error: "500".into(),
    };
    end_all(&queue, worker, failed).await;
    let (ready, scheduled) = (
        enqueue(&queue, job("t", "a")).await,
        later(&queue, "t", "a").await,
    );
    let waits = enqueue(&queue, job("t", "a").after([scheduled])).await;

    for id in [retryable, ready, scheduled, waits] {
        let before = queue.get(id).await.unwrap().unwrap();
        updated(&queue, id, &every()).await;
        let after = queue.get(id).await.unwrap().unwrap();
        let (old, new) = (&before.summary, &after.summary);
        assert_eq!(
            (new.throttle.as_str(), new.key.as_str(), new.priority),
            ("other", "b", 0)
        );
        assert_eq!(
            (new.max_attempts, new.cost, &*new.tags),
            (3, 2.5, &["x".to_owned(), "y".into()][..])
        );
        assert_eq!(
            (after.timeout_s, &after.args),
            (Some(7.0), every().args.as_ref().unwrap())
        );
        assert_eq!(
            (new.state, new.due_at, new.attempt, new.created_at),
            (old.state, old.due_at, old.attempt, old.created_at)
        );
        assert_eq!(after.retry, every().retry);
        assert_eq!(after.waits_for, before.waits_for);
    }
    assert_eq!(claim(&queue, worker).await, [ready], "in its new lane");
    let places: Vec<(i64, bool)> = sqlx::query_as(
        "select job_id, turn = case when retry then flyball.turn_of('other', 0::smallint, true)
             when job_id = $1 then -8 else flyball.turn_of('other', 0::smallint, false) end
         from flyball.scheduled order by job_id",
    )
    .bind(waits)
    .fetch_all(database.pool())
    .await
    .unwrap();
    assert_eq!(
        places,
        [(retryable, true), (scheduled, true), (waits, true)]
    );

    let cleared = JobUpdate {
        tags: Some(Vec::new()),
        clear: vec!["timeout".into()],
        ..JobUpdate::default()
    };
    updated(&queue, scheduled, &cleared).await;
    let after = queue.get(scheduled).await.unwrap().unwrap();
    assert_eq!((after.timeout_s, after.summary.tags.len()), (None, 0));
    assert_eq!(after.summary.key, "b");

    let entries = audit(&database).await;
    assert_eq!(entries.len(), 5);
    assert_eq!((&*entries[0].0, &*entries[0].1), ("alice", "job.update"));
    assert_eq!(
        entries[0].3,
        json!({"args": "changed", "throttle": "other", "key": "b", "priority": 0, "max_attempts": 3, "cost": 2.5,
            "timeout_s": 7, "tags": ["x", "y"], "retry": {"delay_s": 9, "factor": 1, "max_delay_s": 9}})
    );
    assert_eq!(entries[4].3, json!({"timeout_s": null, "tags": null}));
}

#[tokio::test]
async fn a_new_priority_moves_the_job_within_its_lane_and_its_age_stays() {
    let (_database, queue) = queue().await;
    let worker = worker(&queue).await;
    let mut ids = Vec::new();
    for _ in 0..4 {
        ids.push(enqueue(&queue, job("t", "a")).await);
    }
    let urgent = JobUpdate {
        priority: Some(0),
        ..JobUpdate::default()
    };
    updated(&queue, ids[3], &urgent).await;
    updated(&queue, ids[2], &urgent).await;

    assert_eq!(
        claim(&queue, worker).await,
        [ids[2], ids[3], ids[0], ids[1]]
    );
}

#[tokio::test]
async fn an_updated_job_keeps_its_unique_key_and_is_replaced_and_released_as_before() {
    let (_database, queue) = queue().await;
    let worker = worker(&queue).await;
    let keyed = |n: i64| NewJob::new("http", json!({"n": n})).unique("k");
    let id = enqueue(&queue, keyed(1)).await;
    updated(&queue, id, &every()).await;
    assert_eq!(enqueue(&queue, keyed(2)).await, id, "the key is held");
    assert_eq!(enqueue(&queue, keyed(3).replace()).await, id);
    let replaced = queue.get(id).await.unwrap().unwrap();
    assert_eq!(
        (replaced.args, replaced.summary.throttle),
        (json!({"n": 3}), "default".into())
    );

    updated(&queue, id, &every()).await;
    assert_eq!(end_all(&queue, worker, Ending::Completed).await, [id]);
    assert_ne!(
        enqueue(&queue, keyed(4)).await,
        id,
        "its end gave the key back"
    );

    let first = later(&queue, "t", "").await;
    let waits = enqueue(&queue, job("t", "").after([first])).await;
    updated(&queue, waits, &every()).await;
    queue.cancel(first).await.unwrap();
    let freed = queue.release_waiting(&[first]).await.unwrap();
    assert_eq!(freed.cancelled, [waits], "it still waited for the other");
}

#[tokio::test]
async fn new_arguments_forget_the_checkpoint_and_other_changes_keep_it() {
    let (database, queue) = queue().await;
    let id = enqueue(&queue, job("t", "")).await;
    sqlx::query("insert into flyball.checkpoint (job_id, cursor, done) values ($1, '41', 1)")
        .bind(id)
        .execute(database.pool())
        .await
        .unwrap();
    let same = JobUpdate {
        priority: Some(2),
        args: Some(job("t", "").args),
        ..JobUpdate::default()
    };
    updated(&queue, id, &same).await;
    assert_eq!(count(&database, "checkpoint").await, 1);
    updated(&queue, id, &every()).await;
    assert_eq!(count(&database, "checkpoint").await, 0);
}

#[tokio::test]
async fn what_runs_has_ended_or_is_not_there_is_not_updated() {
    let (database, queue) = queue().await;
    let worker = worker(&queue).await;
    let done = enqueue(&queue, job("t", "")).await;
    end_all(&queue, worker, Ending::Completed).await;
    let dead = die(&queue, worker, job("t", ""), "no").await;
    let cancelled = later(&queue, "t", "").await;
    queue.cancel(cancelled).await.unwrap();
    let running = enqueue(&queue, job("t", "")).await;
    claim(&queue, worker).await;

    for (id, state) in [
        (done, State::Completed),
        (dead, State::Dead),
        (cancelled, State::Cancelled),
        (running, State::Running),
    ] {
        let before = queue.get(id).await.unwrap().unwrap();
        let answer = queue.update(id, &every(), &signed()).await.unwrap();
        assert_eq!(answer, MoveAnswer::Refused(state));
        let after = queue.get(id).await.unwrap().unwrap();
        assert_eq!(
            (after.summary, after.args, after.timeout_s),
            (before.summary, before.args, before.timeout_s)
        );
    }
    let answer = queue.update(7, &every(), &signed()).await.unwrap();
    assert_eq!(answer, MoveAnswer::NotFound);
    let mut elsewhere = signed();
    elsewhere.identity.tenant = Some("acme".into());
    let waiting = enqueue(&queue, job("t", "")).await;
    let answer = queue.update(waiting, &every(), &elsewhere).await.unwrap();
    assert_eq!(answer, MoveAnswer::NotFound, "it is another tenant's");
    let audited = audit(&database).await;
    assert!(audited.iter().all(|entry| entry.1 != "job.update"));
}

#[tokio::test]
async fn everything_that_is_wrong_is_named_at_once_and_nothing_changes() {
    let (database, queue) = queue().await;
    let id = enqueue(&queue, job("t", "a")).await;
    let before = queue.get(id).await.unwrap();
    let wrong = JobUpdate {
        args: Some(json!("x".repeat(300_000))),
        throttle: Some("a b".into()),
        key: Some("k".repeat(513)),
        priority: Some(9),
        max_attempts: Some(0),
        cost: Some(0.0),
        timeout_s: Some(-1.0),
        tags: Some(vec![String::new()]),
        retry: Some(JobRetry::every(Duration::ZERO)),
        clear: vec!["timeout".into(), "kind".into()],
    };
    let (field, message) = refused(queue.update(id, &wrong, &signed())).await;
    assert_eq!(field, "args");
    for words in [
        "is 300002 bytes long; at most 262144",
        "throttle: \"a b\" is not a throttle's name",
        "key: is 513 bytes long; at most 512",
        "priority: is 9; allowed are 0 (runs first), 1, 2 and 3",
        "max_attempts: is 0; allowed are 1 to 1000",
        "cost: is 0; allowed is more than 0 and at most 1e9 tokens",
        "timeout: is -00:00:01; allowed is at least a microsecond",
        "tags: has an element of 0 bytes",
        "clear: names timeout, which is given as well",
        "clear: names \"kind\"; allowed are timeout, retry",
        "retry: delay_s is 0; allowed are 0.001 to 31622400 seconds",
    ] {
        assert!(message.contains(words), "{words}: {message}");
    }
    let (_, message) = refused(queue.update(id, &JobUpdate::default(), &signed())).await;
    assert!(
        message.contains("nothing to change; give one or more of args, throttle"),
        "{message}"
    );
    let dear = JobUpdate {
        cost: Some(1001.0),
        ..JobUpdate::default()
    };
    let (field, message) = refused(queue.update(id, &dear, &signed())).await;
    assert!(
        field == "cost" && message.contains("its knob max_cost"),
        "{message}"
    );

    let message = NewJob::new(
        "notification",
        json!({"channel": "sms", "to": "+4915112345678", "body": "hello"}),
    );
    let message = enqueue(&queue, message.throttle("sms")).await;
    let (field, text) = refused(queue.update(message, &every(), &signed())).await;
    assert!(
        field == "args" && text.contains("the job is a message; cancel it"),
        "{text}"
    );
    assert_eq!(
        text.matches("cancel it and send another").count(),
        4,
        "{text}"
    );
    let allowed = JobUpdate {
        max_attempts: Some(2),
        tags: Some(vec!["late".into()]),
        ..JobUpdate::default()
    };
    updated(&queue, message, &allowed).await;

    assert_eq!(queue.get(id).await.unwrap(), before);
    assert_eq!(audit(&database).await.len(), 1);
}

#[tokio::test]
async fn a_full_lane_takes_no_ready_job_from_another_one() {
    let (database, queue) = queue().await;
    database
        .pool()
        .execute("insert into flyball.knobs (throttle, fields) values ('other', '{\"max_backlog\": \"1\", \"on_backlog\": \"reject\"}')")
        .await
        .unwrap();
    enqueue(&queue, job("other", "b")).await;
    let id = enqueue(&queue, job("t", "a")).await;
    let before = queue.get(id).await.unwrap();
    let error = queue.update(id, &every(), &signed()).await.unwrap_err();
    assert!(matches!(error, Error::Full { .. }), "{error}");
    assert_eq!(queue.get(id).await.unwrap(), before);
}

#[tokio::test]
async fn a_secret_is_encrypted_as_when_it_is_enqueued_and_refused_without_a_key() {
    let (_database, queue) = queue().await;
    let id = enqueue(&queue, job("t", "")).await;
    let secret = JobUpdate {
        args: Some(json!({"token": {"$secret": "hunter2"}})),
        ..JobUpdate::default()
    };
    let (field, _) = refused(queue.update(id, &secret, &signed())).await;
    assert!(field.starts_with("args"), "{field}");
    let keys = SecretKeys::parse(&SecretKeys::text_of(&[1; KEY_BYTES])).unwrap();
    let queue = queue.with_secret_keys(keys);
    updated(&queue, id, &secret).await;
    let stored: Value = queue.get(id).await.unwrap().unwrap().args;
    assert!(stored["token"]["$encrypted"].is_string(), "{stored}");
    assert!(!stored.to_string().contains("hunter2"));
}

#[tokio::test]
async fn a_role_with_the_right_updates_jobs_of_kinds_that_it_may_enqueue() {
    let (database, queue) = queue().await;
    sqlx::raw_sql("select flyball.register_kind('inner', false)")
        .execute(database.pool())
        .await
        .unwrap();
    let (open, closed) = (
        enqueue(&queue, job("t", "")).await,
        enqueue(&queue, NewJob::new("inner", json!({}))).await,
    );
    let mut connection = PgConnection::connect(&database.superuser_url())
        .await
        .unwrap();
    let role = format!("updater_{}", unique());
    sqlx::raw_sql(AssertSqlSafe(format!(
        "create role {role}; grant usage on schema flyball to {role};
         grant execute on function flyball.update to {role}; set session authorization {role}"
    )))
    .execute(&mut connection)
    .await
    .unwrap();
    let ask = |id: i64, change: &str| {
        AssertSqlSafe(format!(
            "select flyball.update({id}, {change}, by => 'eve')"
        ))
    };
    let answer: String = sqlx::query_scalar(ask(open, "priority => 3"))
        .fetch_one(&mut connection)
        .await
        .unwrap();
    assert_eq!(answer, "updated");
    for (id, change, words) in [
        (closed, "priority => 3", "role \"updater_"),
        (open, "throttle => 'api:all'", "only operators may enqueue"),
        (
            open,
            "throttle => 'limit:lead'",
            "only operators may enqueue",
        ),
        (
            open,
            "throttle => 'tenant:acme/out'",
            "belongs to another tenant",
        ),
        (
            open,
            "throttle => 'webhooks', key => 'acme'",
            "names the calls of others",
        ),
    ] {
        let error = sqlx::query(ask(id, change))
            .execute(&mut connection)
            .await
            .unwrap_err();
        assert!(error.to_string().contains(words), "{error}");
    }
    sqlx::raw_sql(AssertSqlSafe(format!(
        "reset session authorization; drop owned by {role}; drop role {role}"
    )))
    .execute(&mut connection)
    .await
    .unwrap();
    assert!(audit(&database).await[0].0.starts_with("updater_"));
    assert_eq!(state(&queue, closed).await, State::Ready);
}

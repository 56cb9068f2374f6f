//! Enqueueing: every rule of every interface, on a real Postgres. `replace.rs` tests jobs that
//! replace a waiting one.

use std::time::Duration;

use flyball::jobs::postgres::{LaneClaim, NewWorker};
use flyball::jobs::{Client, Enqueued, Error, JobFilter, NewJob, Queue, State};
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Connection, Executor, PgPool};

use super::fixture::{http, queue};

pub async fn one(queue: &Queue, job: NewJob) -> Enqueued {
    queue.enqueue(&[job]).await.unwrap()[0]
}

pub async fn count(pool: &PgPool, sql: &str) -> i64 {
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
async fn a_notification_names_the_lane_that_got_work_and_no_lane_where_several_did() {
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
    database
        .pool()
        .execute("select pg_notify('flyball', 'marker')")
        .await
        .unwrap();
    let next = listener.recv().await.unwrap();
    assert_eq!(next.payload(), "marker", "nothing became ready");
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
        tags: vec!["import".into(), "a, b".into()],
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
            traceparent => '00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01', timeout => '90 seconds', tags => array['import', 'a, b', 'import'])",
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
    assert_eq!(
        rows[0]["tags"],
        json!(["import", "a, b"]),
        "each is kept once"
    );
    let filter = JobFilter {
        key: Some("k".into()),
        limit: 9,
        ..JobFilter::default()
    };
    let listed = queue.list(&filter).await.unwrap();
    assert_eq!(listed.len(), 4);
    assert!(listed.iter().all(|job| job.tags == ["import", "a, b"]));
    assert_eq!(
        queue.get(alone).await.unwrap().unwrap().summary.tags,
        ["import", "a, b"]
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
    let answer: Vec<bool> =
        sqlx::query_scalar("select flyball.is_traceparent(t) from unnest($1::text[]) with ordinality as u(t, n) order by n")
            .bind(&texts)
            .fetch_all(database.pool())
            .await
            .unwrap();
    for (text, answer) in texts.iter().zip(answer) {
        assert_eq!(NewJob::is_traceparent(text), answer, "{text:?}");
    }
}

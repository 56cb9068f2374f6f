//! Webhooks of jobs: each end is called exactly once, whoever ends the job and whatever dies.

use std::sync::Arc;
use std::time::Duration;

use flyball::jobs::postgres::{Ending, STATEMENTS};
use flyball::jobs::{Attribution, Client, NewGroup, NewJob, Queue};
use serde_json::{Value, json};
use sqlx::{Connection, Executor, PgConnection};
use tokio::sync::Barrier;

use super::fixture::{
    FENCE, claim_all, count, end, enqueue_one, http, queue, refused, run, worker,
};
use super::permissions::RolesFixture;
use crate::support::eventually;

const SOON: Duration = Duration::from_secs(20);

fn watched() -> NewJob {
    http()
        .key("watched")
        .tag("import")
        .on_complete("https://Hooks.example.com/done?token=a")
        .on_dead("https://hooks.example.com/dead")
        .webhook_secret("acme")
}

/// The arguments of all calls that were ever enqueued.
async fn calls(queue: &Queue) -> Vec<Value> {
    sqlx::query_scalar("select args from flyball.job where throttle = 'webhooks' order by id")
        .fetch_all(&queue.pool)
        .await
        .unwrap()
}

async fn types(queue: &Queue) -> Vec<String> {
    let calls = calls(queue).await;
    let types = calls.iter().map(|args| args["body"]["type"].as_str());
    types.map(|kind| kind.unwrap().to_owned()).collect()
}

async fn run_to(queue: &Queue, worker: i32, id: i64, ending: Ending) {
    claim_all(queue, worker, FENCE, 100).await;
    let kept = queue.finish(&[end(id, FENCE, ending)]).await.unwrap();
    assert_eq!(kept, [id]);
}

fn dead() -> Ending {
    Ending::Dead {
        error: "answered 500: {\"password\": \"hunter2\"}".into(),
    }
}

#[tokio::test]
async fn a_completed_job_calls_its_webhook_once_and_tells_what_it_was() {
    let (_database, queue) = queue().await;
    let worker = worker(&queue, SOON).await;
    let job = enqueue_one(&queue, watched()).await;
    run_to(&queue, worker, job, Ending::Completed).await;
    assert!(calls(&queue).await.is_empty(), "nobody has settled");

    assert_eq!(queue.settle().await.unwrap().calls, 1);

    let call = &calls(&queue).await[0];
    assert_eq!(call["method"], "POST");
    assert_eq!(call["url"], "https://Hooks.example.com/done?token=a");
    assert_eq!(call["secret"], "acme");
    let body = &call["body"];
    assert_eq!(body["type"], "job.completed");
    let data = &body["data"];
    assert_eq!(
        (&data["id"], &data["kind"], &data["throttle"], &data["key"]),
        (
            &json!(job),
            &json!("http"),
            &json!("default"),
            &json!("watched")
        )
    );
    assert_eq!(
        (
            &data["tags"],
            &data["attempt"],
            &data["max_attempts"],
            &data["group"]
        ),
        (&json!(["import"]), &json!(1), &json!(10), &json!(null))
    );
    for time in ["created_at", "started_at", "ended_at"] {
        let at = data[time].as_str().unwrap();
        at.parse::<jiff::Timestamp>().unwrap();
    }
    assert!(data.get("error").is_none() && data.get("args").is_none());
    let sent = "select count(*) from flyball.job where throttle = 'webhooks' and key = 'hooks.example.com' and tags = array['import']
        and max_attempts = 15 and tenant = ''";
    assert_eq!(count(&queue, sent).await, 1);
    assert_eq!(queue.settle().await.unwrap().calls, 0);
    // A copy of its last attempt, as when a day is pruned, calls nobody.
    let copied =
        format!("insert into flyball.attempt select * from flyball.attempt where job_id = {job}");
    run(&queue.pool, &copied).await;
    assert_eq!(queue.settle().await.unwrap().calls, 0);
    assert_eq!(types(&queue).await, ["job.completed"]);
    assert_eq!(
        count(&queue, "select count(*) from flyball.webhook_job").await,
        0
    );
}

#[tokio::test]
async fn each_death_is_called_with_the_class_of_its_error_and_no_other_end_is() {
    let (_database, queue) = queue().await;
    let worker = worker(&queue, SOON).await;
    let job = enqueue_one(&queue, watched()).await;
    for _ in 0..2 {
        run_to(&queue, worker, job, dead()).await;
        queue.settle().await.unwrap();
        queue.retry(job).await.unwrap();
    }
    let told = calls(&queue).await;
    assert_eq!(types(&queue).await, ["job.dead", "job.dead"]);
    assert_eq!(told[0]["url"], "https://hooks.example.com/dead");
    assert_eq!(told[0]["body"]["data"]["error"], "answered 500");
    assert!(!told[0].to_string().contains("hunter2"));
    run_to(&queue, worker, job, Ending::Completed).await;
    queue.settle().await.unwrap();
    assert_eq!(
        types(&queue).await,
        ["job.dead", "job.dead", "job.completed"]
    );

    let [cancelled, discarded, quiet] = [
        enqueue_one(&queue, watched()).await,
        enqueue_one(&queue, http().on_complete("https://hooks.example.com/")).await,
        enqueue_one(&queue, http().on_dead("https://hooks.example.com/")).await,
    ];
    queue.cancel(cancelled).await.unwrap();
    run_to(&queue, worker, discarded, dead()).await;
    queue
        .discard(discarded, &Attribution::default())
        .await
        .unwrap();
    let completed = queue.finish(&[end(quiet, FENCE, Ending::Completed)]).await;
    assert_eq!(completed.unwrap(), [quiet]);
    assert_eq!(queue.settle().await.unwrap().calls, 0);
    assert_eq!(
        count(&queue, "select count(*) from flyball.webhook_job").await,
        0
    );
}

#[tokio::test]
async fn a_killed_worker_a_rolled_back_end_and_a_result_are_told_as_they_are() {
    let (_database, queue) = queue().await;
    let worker = worker(&queue, SOON).await;
    let lost = enqueue_one(&queue, watched().max_attempts(1)).await;
    claim_all(&queue, worker, FENCE, 9).await;
    let dies = "update flyball.worker set heartbeat_at = now() - interval '1 day'";
    run(&queue.pool, dies).await;
    assert_eq!(queue.rescue().await.unwrap().dead, [lost]);
    queue.settle().await.unwrap();
    let told = calls(&queue).await;
    assert_eq!(told[0]["body"]["data"]["error"], "lost");

    let worker = super::fixture::worker(&queue, SOON).await;
    let kept = enqueue_one(&queue, watched()).await;
    claim_all(&queue, worker, FENCE, 9).await;
    let mut connection = queue.pool.acquire().await.unwrap();
    let mut open = connection.begin().await.unwrap();
    let complete = STATEMENTS.iter().find(|(name, _)| *name == "complete");
    sqlx::query(complete.unwrap().1)
        .bind(vec![kept])
        .bind(vec![FENCE])
        .fetch_all(&mut *open)
        .await
        .unwrap();
    open.rollback().await.unwrap();
    assert_eq!(queue.settle().await.unwrap().calls, 0);
    let result = json!({"pages": 7});
    let day = Duration::from_secs(86_400);
    let completed = queue.complete_with_result((kept, FENCE), &result, day);
    assert!(completed.await.unwrap());
    assert_eq!(queue.settle().await.unwrap().calls, 1);
    let told = calls(&queue).await;
    assert_eq!(told[1]["body"]["data"]["result"], result);
}

#[tokio::test]
async fn eight_processes_and_one_that_dies_half_way_enqueue_each_call_once() {
    let (database, queue) = queue().await;
    let worker = worker(&queue, SOON).await;
    let jobs = queue.enqueue(&vec![watched(); 80]).await.unwrap();
    claim_all(&queue, worker, FENCE, 99).await;
    let barrier = Arc::new(Barrier::new(8));
    let each = jobs.chunks(10).map(|jobs| {
        let jobs: Vec<i64> = jobs.iter().map(|job| job.id).collect();
        let (barrier, url) = (barrier.clone(), database.url().to_owned());
        tokio::spawn(async move {
            let queue = Queue::connect(&url, 1, SOON).await.unwrap();
            barrier.wait().await;
            for job in jobs {
                let ends = [end(job, FENCE, Ending::Completed)];
                assert_eq!(queue.finish(&ends).await.unwrap(), [job]);
                queue.settle().await.unwrap();
            }
        })
    });
    for one in each.collect::<Vec<_>>() {
        one.await.unwrap();
    }
    queue.settle().await.unwrap();
    let told = "select count(distinct args #> '{body,data,id}') * 1000 + count(*) from flyball.job where throttle = 'webhooks'";
    assert_eq!(count(&queue, told).await, 80_080);

    let job = enqueue_one(&queue, watched()).await;
    run_to(&queue, worker, job, Ending::Completed).await;
    let mut doomed = PgConnection::connect(database.url()).await.unwrap();
    let settle = "begin; select flyball.settle_groups()";
    doomed.execute(settle).await.unwrap();
    assert_eq!(queue.settle().await.unwrap().calls, 0, "it has the row");
    doomed.close().await.unwrap();
    eventually("the next one enqueues it", SOON, || async {
        (queue.settle().await.unwrap().calls == 1).then_some(())
    })
    .await;
    assert_eq!(count(&queue, told).await, 81_081);
}

#[tokio::test]
async fn every_entry_point_takes_webhooks_and_members_and_callbacks_have_them() {
    let (database, queue) = queue().await;
    let worker = worker(&queue, SOON).await;
    let job = watched();
    let by_columns = queue.enqueue(&[job.clone(), http()]).await.unwrap()[0].id;
    let alone = Client.enqueue(&queue.pool, job.clone()).await.unwrap().id;
    let by_json: i64 = sqlx::query_scalar("select job_id from flyball.enqueue_many($1)")
        .bind(json!([job]))
        .fetch_one(database.pool())
        .await
        .unwrap();
    let by_sql: i64 = sqlx::query_scalar(
        "select job_id from flyball.enqueue('http', on_complete => 'https://Hooks.example.com/done?token=a',
            on_dead => 'https://hooks.example.com/dead', webhook_secret => 'acme')",
    )
    .fetch_one(database.pool())
    .await
    .unwrap();
    let unique = enqueue_one(&queue, job.clone().unique("u")).await;
    let group = NewGroup::then(job.clone()).jobs(vec![job.clone()]);
    let group = Client.create_group(&queue.pool, &group).await.unwrap();
    let all = [by_columns, alone, by_json, by_sql, unique, group.jobs[0].id];
    for id in all {
        let shown = queue.get(id).await.unwrap().unwrap();
        assert_eq!(shown.on_complete, job.on_complete);
        assert_eq!(shown.on_dead, job.on_dead);
        assert_eq!(shown.webhook_secret.as_deref(), Some("acme"));
        run_to(&queue, worker, id, Ending::Completed).await;
    }
    let settled = queue.settle().await.unwrap();
    assert_eq!((settled.groups, settled.calls), (1, 6));
    let callback = "select callback_job_id from flyball.job_group";
    let callback = count(&queue, callback).await;
    run_to(&queue, worker, callback, Ending::Completed).await;
    assert_eq!(queue.settle().await.unwrap().calls, 1);
    // One that is waited for and calls: both see its end.
    let first = enqueue_one(&queue, job.clone()).await;
    let waiting = enqueue_one(&queue, http().after([first])).await;
    run_to(&queue, worker, first, Ending::Completed).await;
    assert_eq!(queue.settle().await.unwrap().calls, 1);
    assert_eq!(queue.release_waiting(&[first]).await.unwrap().jobs, 1);
    assert!(queue.get(waiting).await.unwrap().is_some());
}

#[tokio::test]
async fn webhooks_that_are_no_urls_and_those_that_do_not_fit_are_refused() {
    let (database, queue) = queue().await;
    let fine = "https://example.com/";
    let no_url = "must be a URL in ASCII that begins with https:// or http://, has a host";
    let secret = "must be the name of a secret";
    let cases = [
        (http().on_complete("example.com"), "on_complete", no_url),
        (http().on_dead("ftp://example.com/"), "on_dead", no_url),
        (http().on_dead("https://"), "on_dead", no_url),
        (
            http().on_dead("https://u:hunter2@example.com/"),
            "on_dead",
            no_url,
        ),
        (http().on_dead("https://example.com/ x"), "on_dead", no_url),
        (
            http().on_complete(format!("{fine}{}", "x".repeat(2048))),
            "on_complete",
            "is 2068 bytes long; at most 2048 are allowed",
        ),
        (
            http().on_dead(fine).webhook_secret("whsec_MfKQ9r8G"),
            "webhook_secret",
            secret,
        ),
        (
            http().on_dead(fine).webhook_secret("a-b"),
            "webhook_secret",
            secret,
        ),
        (
            http().webhook_secret("acme"),
            "webhook_secret",
            "needs an on_complete or an on_dead",
        ),
        (
            http().on_dead(fine).unique("u").replace(),
            "on_dead",
            "cannot be used together with replace or debounce",
        ),
    ];
    for (job, at, output) in cases {
        let message = refused(&queue, &job, at, output).await;
        assert!(!message.contains("hunter2") && !message.contains("MfKQ"));
    }
    let by_json = "select flyball.enqueue_many('[{\"kind\": \"http\", \"on_dead\": 7}]')";
    let refused = database.pool().execute(by_json).await.unwrap_err();
    assert!(
        refused
            .to_string()
            .contains("jobs[0].on_dead: must be a URL, not number"),
        "{refused}"
    );
    assert_eq!(count(&queue, "select count(*) from flyball.job").await, 0);
}

#[tokio::test]
async fn fields_that_are_null_are_like_none() {
    let (_database, queue) = queue().await;
    // With a webhook, or with jobs to wait for, `replace` would be refused.
    let nulls = r#"{"tags": null, "after": null, "after_failure": null, "on_complete": null, "on_dead": null, "webhook_secret": null}"#;
    let job = r#"{"kind": "http", "unique_key": "a", "replace": true}"#;
    let many =
        format!("select flyball.enqueue_many(jsonb_build_array('{job}'::jsonb || '{nulls}'))");
    let rows = |options: &str| {
        format!(
            "select flyball.enqueue_rows('{{http}}', array['{{}}'::jsonb], '{{a}}', '{{a}}', '{{1}}', '{{null}}', '{{1}}', '{{b}}',
             '{{null}}', '{{1}}', '{{null}}', '{{null}}', '{{null}}', '{{null}}', '{{t}}', options => array['{options}'::jsonb])"
        )
    };
    for call in [many, rows(nulls), rows("null"), rows("{}")] {
        run(&queue.pool, &call).await;
    }
    let odd = "select count(*) from flyball.job where id & 1 = 1 or tags is not null or on_complete is not null";
    assert_eq!(count(&queue, odd).await, 0);
    let watched = "select count(*) from flyball.webhook_job";
    assert_eq!(count(&queue, watched).await, 0);
    // One that is null beside one that is not.
    run(
        &queue.pool,
        &rows(r#"{"tags": ["x"], "after": null, "on_dead": null}"#),
    )
    .await;
    let tagged = "select count(*) from flyball.job where tags = '{x}' and id & 1 = 0";
    assert_eq!(count(&queue, tagged).await, 1);
}

#[tokio::test]
async fn who_may_not_enqueue_requests_gets_none_by_a_webhook_and_a_tenants_call_is_the_tenants() {
    let fixture = RolesFixture::new().await;
    fixture
        .owner(&format!(
            "select flyball.register_kind('own'); insert into flyball.producer (role, tenant) values ('{}', 'shop')",
            fixture.role("web")
        ))
        .await;
    let statements = [
        "select flyball.enqueue('own', on_dead => 'https://example.com/')",
        r#"select flyball.enqueue_many('[{"kind": "own", "on_complete": "https://example.com/"}]')"#,
        r#"select flyball.create_group('{"kind": "own", "on_complete": "https://example.com/"}')"#,
        r#"select flyball.create_group(jobs => '[{"kind": "own", "on_dead": "https://example.com/"}]')"#,
    ];
    for statement in statements {
        assert_eq!(fixture.as_role("web", statement).await, None, "{statement}");
    }
    fixture
        .owner("update flyball.kind set public = false where name = 'http'")
        .await;
    for statement in statements {
        let (code, message) = fixture.as_role("web", statement).await.unwrap();
        assert_eq!(code, "42501", "{message}");
        assert!(
            message.contains("is called by a job of the kind http, which role"),
            "{message}"
        );
    }
    fixture
        .owner(
            "update flyball.kind set public = true where name = 'http';
            insert into flyball.attempt (job_id, attempt, outcome) select job_id, 1, 'completed' from flyball.webhook_job;
            select flyball.settle_groups()",
        )
        .await;
    let calls =
        "select string_agg(tenant || '/' || key, ',') from flyball.job where throttle = 'webhooks'";
    assert_eq!(fixture.text(calls).await, "shop/shop");
}

#[tokio::test]
async fn a_call_that_is_refused_is_tried_again_and_holds_up_no_other() {
    let (_database, queue) = queue().await;
    let worker = worker(&queue, SOON).await;
    run(
        &queue.pool,
        "insert into flyball.knobs (throttle, fields) values ('webhooks', '{\"max_cost\": \"0.5\"}')",
    )
    .await;
    let first = enqueue_one(&queue, watched()).await;
    run_to(&queue, worker, first, Ending::Completed).await;
    assert_eq!(queue.settle().await.unwrap().calls, 0);
    let waits = "select count(*) from flyball.webhook_call where problem like '%max_cost%' and retry_at > now()";
    assert_eq!(count(&queue, waits).await, 1);
    run(&queue.pool, "delete from flyball.knobs").await;
    let second = enqueue_one(&queue, watched()).await;
    run_to(&queue, worker, second, Ending::Completed).await;
    assert_eq!(queue.settle().await.unwrap().calls, 1);
    run(
        &queue.pool,
        "update flyball.webhook_call set retry_at = now() - interval '1 second'",
    )
    .await;
    assert_eq!(queue.settle().await.unwrap().calls, 1);
    assert_eq!(
        count(&queue, "select count(*) from flyball.webhook_call").await,
        0
    );
}

#[tokio::test]
async fn a_call_that_stays_refused_is_tried_ever_less_often() {
    let (_database, queue) = queue().await;
    let worker = worker(&queue, SOON).await;
    run(
        &queue.pool,
        "insert into flyball.knobs (throttle, fields) values ('webhooks', '{\"max_cost\": \"0.5\"}')",
    )
    .await;
    let job = enqueue_one(&queue, watched()).await;
    run_to(&queue, worker, job, Ending::Completed).await;

    // It waits as long again as it has waited, within bounds; the lower ends leave time for the test.
    for (age, wait_s) in [
        ("0 seconds", 5..=10),
        ("5 minutes", 290..=330),
        ("2 days", 3590..=3600),
    ] {
        let aged = format!(
            "update flyball.webhook_call set at = clock_timestamp() - interval '{age}', retry_at = now()"
        );
        run(&queue.pool, &aged).await;
        assert_eq!(queue.settle().await.unwrap().calls, 0);
        let wait = "select extract(epoch from retry_at - clock_timestamp())::bigint from flyball.webhook_call";
        let wait = count(&queue, wait).await;
        assert!(wait_s.contains(&wait), "{age}: {wait} s");
    }
    let aged = "update flyball.webhook_call set at = now() - interval '3 days', retry_at = now()";
    run(&queue.pool, aged).await;
    assert_eq!(queue.settle().await.unwrap().calls, 0);
    let left = "select count(*) from flyball.webhook_call";
    assert_eq!(count(&queue, left).await, 0, "it is given up");
}

#[tokio::test]
async fn jobs_without_webhooks_touch_nothing_of_them_when_they_end() {
    let (database, queue) = queue().await;
    let worker = worker(&queue, SOON).await;
    let jobs = queue
        .enqueue(&[http(), http().tag("a"), http().unique("u")])
        .await
        .unwrap();
    let ids: Vec<i64> = jobs.iter().map(|job| job.id).collect();
    assert!(ids.iter().all(|id| id & 1 == 0), "{ids:?}");
    claim_all(&queue, worker, FENCE, 9).await;
    let finish = STATEMENTS.iter().find(|(name, _)| *name == "finish");
    let mut connection = PgConnection::connect(database.url()).await.unwrap();
    let mut transaction = connection.begin().await.unwrap();
    sqlx::query(finish.unwrap().1)
        .bind(&ids)
        .bind(vec![FENCE; 3])
        .bind(vec!["completed".to_owned(), "dead".into(), "dead".into()])
        .bind(vec![None::<f64>; 3])
        .bind(vec![None::<String>; 3])
        .fetch_all(&mut *transaction)
        .await
        .unwrap();
    let touched = "select coalesce(sum(coalesce(idx_scan, 0) + coalesce(seq_scan, 0) + n_tup_ins + n_tup_upd + n_tup_del), 0)::bigint
        from pg_stat_xact_user_tables where relname like 'webhook%'";
    let touched: i64 = sqlx::query_scalar(touched)
        .fetch_one(&mut *transaction)
        .await
        .unwrap();
    assert_eq!(touched, 0);
}

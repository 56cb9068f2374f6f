//! Messages that pass the limits of their tenant once more: after a pause of their batch, and sent
//! again after their death. And those that never pass them.

use std::time::Duration;

use flyball::notify::Deliveries;
use flyball::throttle::admission::TenantLimits;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use super::admission::*;

const HOUR: Duration = Duration::from_secs(3600);

impl AdmissionServer {
    async fn change_rows(&self, sql: &'static str) {
        let pool = &self.server.queue.pool;
        sqlx::query(sql).execute(pool).await.unwrap();
    }

    /// Returns the number of messages that wait for the limits.
    async fn waiting(&self) -> i64 {
        self.count(
            "select count(*) from flyball.ready r join flyball.job j on j.id = r.job_id where r.lane_id = j.admission_lane",
        )
        .await
    }
}

fn batch(recipients: usize) -> Value {
    let all: Vec<String> = (0..recipients)
        .map(|n| format!("bob{n}@example.com"))
        .collect();
    json!({"channel": "email", "body": "x", "recipients": all})
}

#[tokio::test]
async fn a_batch_that_is_resumed_passes_the_limits_of_that_time() {
    let served = admission_server(TenantLimits {
        per_module: 5,
        ..TenantLimits::default()
    })
    .await;
    let sent = served.send_batch("web", &batch(8)).await;
    assert_eq!(sent.status(), StatusCode::ACCEPTED);
    let id = sent.json::<Value>().await.unwrap()["id"].as_i64().unwrap();
    assert_eq!(served.waiting().await, 3);

    assert_eq!(served.change(id, "pause").await["state"], "paused");
    served.pass(60);
    // Nothing of it waits, so others of the module go meanwhile.
    served.admitted("web", 0..5).await;
    let worker = served.deliver(5).await;
    assert_eq!(served.change(id, "resume").await["state"], "running");
    // A message of another tenant goes through the same worker behind those of the batch.
    served.admitted("else", 0..1).await;
    crate::support::eventually("the message of another tenant ran", SOON, || async {
        (served.ran().await > 5).then_some(())
    })
    .await;
    assert_eq!(served.ran().await, 6, "the module is at its limit");
    for ran in [11, 14] {
        served.pass(60);
        crate::support::eventually("the next of the batch ran", SOON, || async {
            (served.ran().await == ran).then_some(())
        })
        .await;
    }
    worker.stop().await;
}

#[tokio::test]
async fn what_waits_for_a_time_is_put_aside_with_its_batch_and_waits_for_it_again() {
    let served = admission_server(TenantLimits::default()).await;
    let mut later = batch(3);
    later["run_at"] = json!((flyball::api::clock::now() + HOUR).to_string());
    let sent = served.send_batch("web", &later).await;
    let sent: Value = sent.json().await.unwrap();
    let (id, message) = (sent["id"].as_i64().unwrap(), &sent["results"][0]["id"]);
    let soon = "select count(*) from flyball.scheduled where run_at < now() + interval '2 hours'";
    assert_eq!(served.count(soon).await, 3);

    served.change(id, "pause").await;
    assert_eq!(served.count(soon).await, 0);
    for (path, pointer) in [
        (
            format!("/api/v1/notifications/{message}/explain"),
            "/sentence",
        ),
        (format!("/api/v1/jobs/{message}"), "/waiting/reason"),
    ] {
        let shown = served.ask("tenant-admin", Method::GET, &path).await;
        let shown: Value = shown.json().await.unwrap();
        let said = shown.pointer(pointer).unwrap().as_str().unwrap();
        let why = format!("its batch {id} is paused by the tenant since 2");
        assert!(said.contains(&why), "{shown}");
        assert!(shown.pointer("/waiting/until").is_none_or(Value::is_null));
    }
    let by_sql = "select count(*) from flyball.job j where flyball.why_job(j.id) ->> 'reason' like '% is paused by the tenant since %'";
    assert_eq!(served.count(by_sql).await, 3);

    served.change(id, "resume").await;
    assert_eq!(served.count(soon).await, 3);
    let now = "select count(*) from flyball.scheduled where run_at <= now() + interval '1 minute'";
    assert_eq!(served.count(now).await, 0);
}

#[tokio::test]
async fn a_dead_message_that_is_sent_anew_waits_for_the_limits() {
    let served = admission_server(TenantLimits::default()).await;
    let die = "with gone as (delete from flyball.ready returning *)
        insert into flyball.dead (job_id, lane_id, priority, attempt, cost, error)
        select g.job_id, j.lane_id, g.priority, 1, g.cost, 'x' from gone g join flyball.job j on j.id = g.job_id";
    let admitted_before = "update flyball.job set admission_lane = null";
    let was_unsent =
        "update flyball.delivery set unsent = true, updated_at = now() - interval '1 hour'";
    served.admitted("web", 0..2).await;
    assert_eq!(served.waiting().await, 0);
    for again in [
        "select flyball.retry(d.job_id, by => 'ada') from flyball.dead d",
        "select flyball.requeue_dead(kind => 'notification', by => 'ada')",
        "select flyball.requeue_unsent('mail', 10, 'ada')",
    ] {
        served.change_rows(die).await;
        served.change_rows(admitted_before).await;
        served.change_rows(was_unsent).await;

        served.change_rows(again).await;

        assert_eq!(served.waiting().await, 2, "{again}");
        let queued = "select count(*) from flyball.delivery where state = 'queued' and requeued_at is not null";
        assert_eq!(served.count(queued).await, 2, "{again}");
    }
    assert_eq!(
        served.count("select count(*) from flyball.pending").await,
        2
    );
}

#[tokio::test]
async fn a_message_whose_deadline_passes_while_it_waits_uses_no_slot() {
    let served = at_its_limit().await;
    let mut late = message(1);
    late["valid_for_s"] = json!(60);
    for body in [late, message(2)] {
        let sent = served.send("web", &body).await;
        assert_eq!(sent.status(), StatusCode::TOO_MANY_REQUESTS);
    }
    served
        .change_rows(
            "insert into flyball.lane (lane_id, throttle, key) values (flyball.lane_of('notify:acme', 'web'), 'notify:acme', 'web')
             on conflict do nothing",
        )
        .await;
    let deliveries = Deliveries::new(&served.server.queue.pool);
    let expire = async || {
        let step = deliveries.expire_waiting("mail", HOUR, 100).await.unwrap();
        (step.jobs, step.more)
    };
    assert_eq!(expire().await, (0, false));
    served
        .change_rows("update flyball.job set created_at = created_at - interval '2 minutes'")
        .await;

    assert_eq!(expire().await, (1, false));

    let failed = "select count(*) from flyball.delivery where state = 'failed' and last_outcome = 'expired' and not unsent
        and reason = 'its deadline passed 60 s after it was queued, before it was sent'";
    assert_eq!(served.count(failed).await, 1);
    assert_eq!(served.count("select count(*) from flyball.dead").await, 1);
    // The slot of the next minute is for the message behind it.
    served.pass(60);
    let worker = served.deliver(2).await;
    worker.stop().await;
}

#[tokio::test]
async fn a_critical_batch_beyond_the_critical_limit_is_high_whatever_its_size() {
    let served = admission_server(TenantLimits {
        critical_per_minute: 101,
        ..TenantLimits::default()
    })
    .await;
    for (recipients, priority) in [(101, "critical"), (102, "high"), (101, "critical")] {
        let mut critical = batch(recipients);
        critical["priority"] = json!("critical");
        let sent = served.send_batch("urgent", &critical).await;
        let status = sent.status();
        let body: Value = sent.json().await.unwrap();
        assert_eq!(
            (status, &body["priority"]),
            (StatusCode::ACCEPTED, &json!(priority)),
            "{body}"
        );
        assert_eq!(
            body["warnings"].to_string().contains("high"),
            priority == "high"
        );
    }
    // Nothing has been released, so nothing counts.
    let mut critical = message(0);
    critical["priority"] = json!("critical");
    let sent = served.send("urgent", &critical).await;
    assert_eq!(sent.status(), StatusCode::ACCEPTED);
    let stored = "select count(distinct priority) from flyball.batch where priority in (0, 1)";
    assert_eq!(served.count(stored).await, 2);
}

#[tokio::test]
async fn a_forced_sweep_reaches_what_ended_behind_many_that_wait() {
    let served = admission_server(TenantLimits::default()).await;
    served.admitted("web", 0..4).await;
    served
        .change_rows("insert into flyball.pending (tenant, job_id) select 'acme', (1::bigint << 60) + n from generate_series(1, 2) n")
        .await;
    let mut removed = 0;
    for _ in 0..2 {
        removed += served
            .count("select flyball.sweep_pending('acme', 2)")
            .await;
    }
    assert_eq!(removed, 2);
    assert_eq!(
        served.count("select count(*) from flyball.pending").await,
        4
    );
}

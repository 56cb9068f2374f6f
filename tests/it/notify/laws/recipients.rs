//! An unreachable recipient is left alone, and a recorded message is not sent again.

use flyball_fakes::{Fake, FakeOptions, FakeProvider, Fault};
use std::time::Duration;

use flyball::jobs::{NewJob, State};
use serde_json::json;
use sqlx::{Acquire, Executor};

use super::fixture::{PoolFixture, SOON, Server, job, plain, settings};
use crate::support::eventually;
use crate::support::process::ProcessFixture;

const WHSEC: (&str, &str) = ("signing_secret", "whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIz");

async fn webhooks(keys: &str) -> PoolFixture {
    PoolFixture::new(|folder| settings("hooks", "webhook", WHSEC, keys, folder)).await
}

fn hook(server: &Server, path: &str) -> NewJob {
    job(
        "hooks",
        json!({"channel": "webhook", "to": format!("{}{path}", server.url), "body": "{}"}),
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_hundred_messages_for_a_broken_endpoint_cost_dozens_of_requests_and_a_healthy_one_gets_everything()
 {
    let server =
        Server::start(|path, _, _| plain(if path == "/broken" { 500 } else { 204 }, "")).await;
    let fixture = webhooks("rps = -1").await;
    let mut jobs = Vec::new();
    for n in 0..500 {
        jobs.push(hook(&server, "/broken"));
        jobs.extend((n % 5 == 0).then(|| hook(&server, "/healthy")));
    }
    fixture.enqueue(&jobs).await;
    eventually("all at the healthy one", SOON, || async {
        (server.times("/healthy").len() == 100).then_some(())
    })
    .await;
    // After the first rest of five seconds, a single message goes first.
    eventually("one that went first", SOON, || async {
        let times = server.times("/broken");
        (times.last()?.duration_since(*times.first()?) > Duration::from_secs(4)).then_some(())
    })
    .await;
    // Its failure is recorded, and whatever else may go has gone, before two more messages one
    // after the other.
    for nth in 1..=2 {
        let healthy = fixture.enqueue(&[hook(&server, "/healthy")]).await;
        fixture.until(&healthy, State::Completed).await;
        assert_eq!(server.times("/healthy").len(), 100 + nth);
    }
    let requests = server.times("/broken").len();
    assert!(requests <= 80, "{requests} requests");
    assert_eq!(fixture.opened().await, 0);
    fixture.program.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_endpoint_that_never_answers_concerns_itself_alone() {
    let server = Server::start(|_, _, _| plain(204, "")).await;
    let fixture = webhooks("rps = -1\ntimeout_s = 1\nbreaker_failures = 2").await;
    fixture.enqueue(&vec![hook(&server, "/hangs"); 20]).await;
    eventually("time-outs", SOON, || async {
        (server.times("/hangs").len() >= 10).then_some(())
    })
    .await;
    eventually("all that hung are put off", SOON, || async {
        let running: i64 = sqlx::query_scalar("select count(*) from flyball.lease")
            .fetch_one(fixture.database.pool())
            .await
            .unwrap();
        (running == 0).then_some(())
    })
    .await;
    let good = fixture.enqueue(&vec![hook(&server, "/healthy"); 20]).await;
    fixture.until(&good, State::Completed).await;
    assert_eq!(fixture.opened().await, 0);
    assert!(
        server.times("/hangs").len() <= 60,
        "{}",
        server.times("/hangs").len()
    );
    fixture.program.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_stays_away_from_a_provider_as_long_as_its_503_says() {
    let server = Server::start(|_, _, nth| match nth {
        0 => (503, vec![("retry-after", "9".to_owned())], String::new()),
        _ => plain(202, ""),
    })
    .await;
    let keys = format!("base_url = {:?}\nfrom = \"shop@example.com\"", server.url);
    let fixture =
        PoolFixture::new(|folder| settings("mail", "sendgrid", ("api_key", "SG.x"), &keys, folder))
            .await;
    let args = json!({"channel": "email", "to": "ann@example.com", "subject": "s", "body": "b"});
    let sent = fixture.enqueue(&[job("mail", args)]).await;
    fixture.until(&sent, State::Completed).await;
    let times = server.times("/v3/mail/send");
    assert_eq!(times.len(), 2);
    assert!(
        times[1].duration_since(times[0]) >= Duration::from_millis(8_900),
        "{:?}",
        times[1].duration_since(times[0])
    );
    fixture.program.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_503_with_a_retry_after_of_a_day_does_not_cost_a_message_its_deadline() {
    let day = || vec![("retry-after", "86400".to_owned())];
    let server = Server::start(move |_, _, _| (503, day(), String::new())).await;
    let keys = format!("base_url = {:?}\nfrom = \"shop@example.com\"", server.url);
    let fixture =
        PoolFixture::new(|folder| settings("mail", "sendgrid", ("api_key", "SG.x"), &keys, folder))
            .await;
    let args = json!({"channel": "email", "to": "ann@example.com", "subject": "s", "body": "b"});
    let sent = fixture.enqueue(&[job("mail", args)]).await;
    fixture.until(&sent, State::Retryable).await;
    let detail = fixture.app.queue.get(sent[0]).await.unwrap().unwrap();
    let due_at = detail.summary.due_at.unwrap();
    let wait_s = due_at.as_second() - detail.summary.created_at.as_second();
    assert!((3590..4000).contains(&wait_s), "{wait_s} s");
    fixture.program.stop().await;
}

const SID: &str = "AC00000000000000000000000000000000";

fn twilio_at(fake: &Fake) -> impl Fn(&std::path::Path) -> String {
    let keys = format!(
        "base_url = {:?}\nfrom = \"+15550100\"\nbreaker_failures = 1000\naccount_sid = {SID:?}",
        fake.url()
    );
    move |folder| {
        settings(
            "sms",
            "twilio",
            ("auth_token", "0123456789abcdef0123456789abcdef"),
            &keys,
            folder,
        )
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_whose_worker_is_killed_after_its_record_is_not_sent_again() {
    let fake = Fake::start(FakeProvider::Twilio, FakeOptions::default())
        .await
        .unwrap();
    fake.fail(SID, Fault::Slow(Duration::from_secs(4)));
    let program = ProcessFixture::new("rps = -1").await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("flyball.toml");
    std::fs::write(&file, twilio_at(&fake)(folder.path())).unwrap();
    let serve = || program.serve_with(&["--config", &file.display().to_string()], &[]);
    let mut doomed = serve();
    doomed.worker_started().await;
    let args = json!({"channel": "sms", "to": "+15550123", "body": "hello"});
    let made = program.enqueue_as(1, |_| job("sms", args.clone())).await;
    eventually("the request", SOON, || async {
        (fake.totals(SID).requests == 1).then_some(())
    })
    .await;

    // Its end cannot be written, so it dies between its record and its end.
    let mut connection = program.pool().acquire().await.unwrap();
    let mut held = connection.begin().await.unwrap();
    held.execute("select from flyball.lease for update")
        .await
        .unwrap();
    let sent = "select count(*) from flyball.delivery where state = 'sent'";
    eventually("its record", SOON, || async {
        (program.count(sent).await == 1).then_some(())
    })
    .await;
    doomed.kill();
    held.rollback().await.unwrap();
    fake.heal(SID);
    let _other = serve();

    eventually("its end", SOON, || async {
        (program.ended(&made, "completed").await == 1).then_some(())
    })
    .await;
    assert_eq!(fake.totals(SID).requests, 1, "it was sent twice");
    assert_eq!(
        program
            .count("select attempt_count::bigint from flyball.delivery")
            .await,
        1
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_may_have_been_sent_is_kept_as_its_policy_says_even_if_that_cannot_be_written_down()
 {
    let fake = Fake::start(FakeProvider::Twilio, FakeOptions::default())
        .await
        .unwrap();
    let fixture = PoolFixture::new(twilio_at(&fake)).await;
    fake.fail(SID, Fault::ResetAfterWrite);
    let trigger = "
        create function public.refuse_all() returns trigger language plpgsql as $$ begin raise exception 'the disk is full'; end $$;
        create trigger refuse_all before insert or update on flyball.delivery for each row execute function public.refuse_all();";
    fixture
        .database
        .pool()
        .execute(sqlx::raw_sql(trigger))
        .await
        .unwrap();
    let sms = |policy: &str| {
        job(
            "sms",
            json!({"channel": "sms", "to": "+15550123", "body": "hello", "on_ambiguous": policy}),
        )
    };
    let doubtful = fixture.enqueue(&[sms("dead")]).await;
    fixture.until(&doubtful, State::Dead).await;
    assert_eq!(fake.totals(SID).requests, 1);

    // An accepted message is done, even if it cannot be recorded.
    fake.heal(SID);
    let good = fixture.enqueue(&[sms("retry")]).await;
    fixture.until(&good, State::Completed).await;
    assert_eq!(fake.totals(SID).requests, 2);
    fixture.program.stop().await;
}

/// A profile that loses its address while the message waits for its pool ends it, and no dead letter.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_whose_recipient_lost_its_address_ends_as_unreachable() {
    let server = Server::start(|_, _, _| plain(204, "")).await;
    let fixture = webhooks("rps = -1").await;
    let pool = fixture.database.pool().clone();
    let profile = async |address: Option<String>| {
        let addresses = address.map_or(json!({}), |to| json!({"webhook": to}));
        sqlx::query("select flyball.set_recipient($1, $2)")
            .bind("ada")
            .bind(json!({"addresses": addresses}))
            .execute(&pool)
            .await
            .unwrap();
    };
    profile(Some(format!("{}/ada", server.url))).await;
    let args =
        json!({"channel": "webhook", "recipient": "ada", "body": "{}", "category": "billing"});
    let first = fixture.enqueue(&[job("hooks", args.clone())]).await;
    fixture.until(&first, State::Completed).await;
    assert_eq!(server.times("/ada").len(), 1, "the profile has the address");

    pool.execute("select flyball.pause_all('test', '')")
        .await
        .unwrap();
    // The pause arrives with the answer to a heartbeat, and the one after it shows that it came.
    let beat = async || -> f64 {
        let sql = "select extract(epoch from max(heartbeat_at))::float8 from flyball.worker";
        sqlx::query_scalar(sql).fetch_one(&pool).await.unwrap()
    };
    for _ in 0..2 {
        let last = beat().await;
        eventually("a heartbeat", SOON, || async {
            (beat().await > last).then_some(())
        })
        .await;
    }
    let mut other = args;
    other["body"] = json!("{\"n\": 2}");
    let ids = fixture.enqueue(&[job("hooks", other)]).await;
    eventually("it waits for its pool", SOON, || async {
        let ready = fixture.app.queue.get(ids[0]).await.unwrap()?;
        (ready.summary.state == State::Ready).then_some(())
    })
    .await;
    profile(None).await;
    pool.execute("select flyball.resume_all('test', '')")
        .await
        .unwrap();
    fixture.until(&ids, State::Completed).await;
    let record: (String, String, i32) = sqlx::query_as(
        "select state, recipient, attempt_count from flyball.notification where job_id = $1",
    )
    .bind(ids[0])
    .fetch_one(&pool)
    .await
    .unwrap();
    assert_eq!(record, ("unreachable".to_owned(), String::new(), 1));
    assert_eq!(server.times("/ada").len(), 1);
    fixture.program.stop().await;
}

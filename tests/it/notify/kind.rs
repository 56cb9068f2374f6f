//! The kind `notification` end to end: jobs in a real Postgres, accounts in a real Redis, and a
//! fake provider that speaks Twilio's format and fails on request.

use std::collections::BTreeSet;
use std::ops::Deref;
use std::time::Duration;

use flyball::jobs::{NewJob, State};
use flyball_fakes::{Fake, FakeOptions, FakeProvider, Fault, ThrottleScope, WindowQuota};
use serde_json::{Value, json};
use sqlx::Row;

use crate::support::app::{RUNNER, RunningApp};
use crate::support::sms_pool::{self, sid};
use crate::support::{eventually, poll};

const SOON: Duration = Duration::from_secs(180);

/// A process with one pool.
struct SmsFixture {
    fake: Fake,
    program: RunningApp,
}

impl Deref for SmsFixture {
    type Target = RunningApp;

    fn deref(&self) -> &RunningApp {
        &self.program
    }
}

/// Returns a pool `sms` of this many accounts at a fake Twilio, with further keys of the pool.
async fn fixture(accounts: usize, keys: &str, options: FakeOptions) -> SmsFixture {
    let fake = Fake::start(FakeProvider::Twilio, options).await.unwrap();
    let program = RunningApp::start(RUNNER, |folder| {
        sms_pool::settings(folder, &fake, accounts, 200.0, keys)
    });
    SmsFixture {
        program: program.await,
        fake,
    }
}

impl SmsFixture {
    async fn send(&self, many: usize, more: Value) -> Vec<i64> {
        let job = |n: usize| {
            let mut args = json!({"channel": "sms", "to": format!("+1555{n:07}"), "template": "hello {{ n }}", "data": {"n": n}});
            args.as_object_mut()
                .unwrap()
                .extend(more.as_object().unwrap().clone());
            NewJob::new("notification", args).throttle("sms")
        };
        let jobs: Vec<NewJob> = (0..many).map(job).collect();
        self.app
            .queue
            .enqueue(&jobs)
            .await
            .unwrap()
            .into_iter()
            .map(|made| made.id)
            .collect()
    }

    async fn in_state(&self, state: &str) -> i64 {
        sqlx::query_scalar("select count(*) from flyball.notification where state = $1")
            .bind(state)
            .fetch_one(self.database.pool())
            .await
            .unwrap()
    }

    async fn all(&self, state: &str, many: i64) {
        let asked = poll(SOON, || async {
            (self.in_state(state).await == many).then_some(())
        });
        if asked.await.is_none() {
            let found = self.found().await;
            panic!("not {many} messages {state} within {SOON:?}: {found}");
        }
    }

    /// Returns the counts of messages, waiting jobs and attempts, for the output of a failed test.
    async fn found(&self) -> String {
        let sql = "select string_agg(format('%s %s', n, found), '; ')
            from (select 'messages ' || state as found, count(*) as n from flyball.notification group by 1
                  union all select 'ready', count(*) from flyball.ready
                  union all select 'scheduled until ' || run_at, count(*) from flyball.scheduled group by 1
                  union all select format('attempts %s %s', outcome, error), count(*) from flyball.attempt group by 1) as all_found";
        let found: Option<String> = sqlx::query_scalar(sql)
            .fetch_one(self.database.pool())
            .await
            .unwrap();
        format!("{found:?}; accounts: {:?}", self.changes().await)
    }

    async fn job_state(&self, id: i64) -> Option<State> {
        self.app
            .queue
            .get(id)
            .await
            .unwrap()
            .map(|detail| detail.summary.state)
    }

    async fn changes(&self) -> Vec<(String, String)> {
        let rows = sqlx::query(
            "select account, to_state from flyball.account_event where pool = 'sms' order by id",
        )
        .fetch_all(self.database.pool())
        .await
        .unwrap();
        rows.iter()
            .map(|row| (row.get("account"), row.get("to_state")))
            .collect()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_campaign_goes_past_a_blocked_and_a_suspended_account_and_nobody_gets_it_twice() {
    let fixture = fixture(
        5,
        "",
        FakeOptions {
            tells_delay: true,
            ..FakeOptions::default()
        },
    )
    .await;
    fixture.fake.set_quota(
        &sid(1),
        Some(WindowQuota {
            limit: 1.0,
            window: Duration::from_secs(3600),
        }),
    );
    fixture.fake.suspend(&sid(2), true);

    fixture.send(400, json!({})).await;
    fixture.all("sent", 400).await;

    let received: Vec<String> = (1..=5)
        .flat_map(|n| fixture.fake.received(&sid(n)))
        .map(|received| received.to)
        .collect();
    assert_eq!(
        (
            received.len(),
            received.iter().collect::<BTreeSet<_>>().len()
        ),
        (400, 400)
    );
    assert_eq!(fixture.fake.totals(&sid(2)).accepted, 0);
    assert!(
        fixture
            .changes()
            .await
            .contains(&("account_2".to_owned(), "open".to_owned()))
    );
    let moved: i64 = sqlx::query_scalar(
        "select count(*) from flyball.delivery_attempt where outcome = 'account_failure' and account = 'account_2'",
    )
    .fetch_one(fixture.database.pool())
    .await
    .unwrap();
    // Only those in flight when the first was rejected.
    assert!((1..=32).contains(&moved), "{moved}");
    fixture.program.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_all_accounts_gone_messages_wait_die_at_their_deadline_and_run_again_when_one_is_back()
{
    let fixture = fixture(
        2,
        "requeue_on_recovery = true\nbreaker_cooldown_s = 2",
        FakeOptions::default(),
    )
    .await;
    (1..=2).for_each(|n| fixture.fake.suspend(&sid(n), true));

    let short = fixture.send(20, json!({"valid_for_s": 6})).await;
    let long = fixture.send(5, json!({"valid_for_s": 600})).await;
    for id in &short {
        eventually("a dead letter", SOON, || async {
            (fixture.job_state(*id).await == Some(State::Dead)).then_some(())
        })
        .await;
    }
    // There was no busy loop: each account was tried by the jobs already in flight, and then once
    // after each cooldown.
    let requests = fixture.fake.totals_of_all().requests;
    assert!(requests < 150, "{requests} requests");
    let reason: String =
        sqlx::query_scalar("select reason from flyball.notification where job_id = $1")
            .bind(short[0])
            .fetch_one(fixture.database.pool())
            .await
            .unwrap();
    assert!(reason.contains("no account"), "{reason}");
    for id in &long {
        assert!(!matches!(
            fixture.job_state(*id).await,
            Some(State::Dead | State::Completed)
        ));
    }

    (1..=2).for_each(|n| fixture.fake.suspend(&sid(n), false));
    for id in short.iter().chain(&long) {
        let what = format!("the end of {id}");
        eventually(&what, SOON, || async {
            (fixture.job_state(*id).await == Some(State::Completed)).then_some(())
        })
        .await;
    }
    assert_eq!(fixture.in_state("sent").await, 25);
    assert_eq!(fixture.fake.totals_of_all().accepted, 25);
    fixture.program.stop().await;
}

/// Gates look at the deadline before anything else does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_with_gates_that_no_account_took_before_its_deadline_can_run_again() {
    let fixture = fixture(1, "breaker_failures = 1000", FakeOptions::default()).await;
    fixture.fake.fail(&sid(1), Fault::Status(500));
    let sent = fixture
        .send(1, json!({"category": "billing", "valid_for_s": 3}))
        .await;
    eventually("a dead letter", SOON, || async {
        (fixture.job_state(sent[0]).await == Some(State::Dead)).then_some(())
    })
    .await;
    let (is_unsent, reason): (bool, String) =
        sqlx::query_as("select unsent, reason from flyball.delivery where job_id = $1")
            .bind(sent[0])
            .fetch_one(fixture.database.pool())
            .await
            .unwrap();
    assert!(is_unsent, "{reason}");
    assert_eq!(
        reason,
        "no account of pool sms accepted it before its deadline, 3 s after it was queued"
    );

    fixture.fake.heal(&sid(1));
    sqlx::query("select flyball.requeue_unsent('sms')")
        .execute(fixture.database.pool())
        .await
        .unwrap();
    fixture.all("sent", 1).await;
    fixture.program.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_throttled_sender_blocks_no_account_and_a_wrong_number_is_no_dead_letter() {
    let fixture = fixture(1, "", FakeOptions::default()).await;
    fixture.fake.fail(
        &sid(1),
        Fault::Throttle {
            whom: ThrottleScope::Sender,
            delay: Some(Duration::from_secs(2)),
        },
    );
    fixture.send(1, json!({})).await;
    eventually("an attempt", SOON, || async {
        (fixture.fake.totals(&sid(1)).requests >= 1).then_some(())
    })
    .await;
    fixture.fake.heal(&sid(1));
    fixture.fake.fail(&sid(1), Fault::PermanentRecipient);
    let wrong = fixture.send(1, json!({"to": "+15550199"})).await;
    // A problem of the sender does not block the account.
    eventually("the end of the job", SOON, || async {
        (fixture.job_state(wrong[0]).await == Some(State::Completed)).then_some(())
    })
    .await;
    fixture.fake.heal(&sid(1));
    fixture.all("sent", 1).await;
    assert_eq!(fixture.changes().await, []);
    fixture.program.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_many_accounts_in_a_row_are_too_busy_for_has_used_no_attempt() {
    let fixture = fixture(
        21,
        "",
        FakeOptions {
            tells_delay: true,
            ..FakeOptions::default()
        },
    )
    .await;
    let busy = Fault::Throttle {
        whom: ThrottleScope::Account,
        delay: Some(Duration::from_secs(1)),
    };
    (1..=21).for_each(|n| fixture.fake.fail(&sid(n), busy.clone()));
    let args = json!({"channel": "sms", "to": "+15550100", "body": "hello"});
    // With a single attempt, the job would be dead if throttling counted as a failure.
    fixture
        .app
        .queue
        .enqueue(&[NewJob::new("notification", args)
            .throttle("sms")
            .max_attempts(1)])
        .await
        .unwrap();
    eventually("twenty refusals", SOON, || async {
        (fixture.fake.totals_of_all().requests >= 20).then_some(())
    })
    .await;
    (1..=21).for_each(|n| fixture.fake.heal(&sid(n)));

    fixture.all("sent", 1).await;
    assert_eq!(fixture.fake.totals_of_all().accepted, 1);
    assert_eq!(fixture.changes().await, []);
    fixture.program.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_whose_answer_got_lost_is_sent_again_or_kept_as_its_policy_says() {
    let fixture = fixture(
        1,
        "timeout_s = 1\nbreaker_failures = 1000",
        FakeOptions::default(),
    )
    .await;
    fixture.fake.fail(&sid(1), Fault::ResetAfterWrite);
    let held = fixture.send(1, json!({"on_ambiguous": "dead"})).await;
    eventually("a dead letter", SOON, || async {
        (fixture.job_state(held[0]).await == Some(State::Dead)).then_some(())
    })
    .await;
    assert_eq!(fixture.fake.totals(&sid(1)).accepted, 1);

    let again = fixture.send(1, json!({"on_ambiguous": "retry"})).await;
    eventually("an ambiguous attempt", SOON, || async {
        (fixture.fake.totals(&sid(1)).accepted >= 2).then_some(())
    })
    .await;
    fixture.fake.heal(&sid(1));
    eventually("the end", SOON, || async {
        (fixture.job_state(again[0]).await == Some(State::Completed)).then_some(())
    })
    .await;
    let outcomes: Vec<String> = sqlx::query_scalar(
        "select outcome from flyball.delivery_attempt where job_id = $1 order by at",
    )
    .bind(again[0])
    .fetch_all(fixture.database.pool())
    .await
    .unwrap();
    assert_eq!(
        (outcomes[0].as_str(), outcomes.last().map(String::as_str)),
        ("ambiguous", Some("accepted")),
        "{outcomes:?}"
    );
    fixture.program.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_may_have_arrived_keeps_its_claim_whatever_ends_it() {
    for (ends, state) in [
        (
            "select flyball.suppress('sms', '+15550000000', 'asked to')",
            "suppressed",
        ),
        // As by an attempt whose worker then dies.
        (
            "update flyball.delivery set state = 'failed', last_outcome = 'permanent_recipient' where last_outcome = 'ambiguous'",
            "failed",
        ),
    ] {
        let keys = "timeout_s = 1\nbreaker_failures = 1000";
        let fixture = fixture(1, keys, FakeOptions::default()).await;
        fixture.fake.fail(&sid(1), Fault::ResetAfterWrite);
        let sent = fixture.send(1, json!({"category": "billing"})).await;
        let doubtful = "select count(*) from flyball.delivery where last_outcome = 'ambiguous'";
        eventually("an ambiguous attempt", SOON, || async {
            let found: i64 = sqlx::query_scalar(doubtful)
                .fetch_one(fixture.database.pool())
                .await
                .unwrap();
            (found == 1).then_some(())
        })
        .await;
        sqlx::query(ends)
            .execute(fixture.database.pool())
            .await
            .unwrap();
        eventually("the end of the job", SOON, || async {
            (fixture.job_state(sent[0]).await == Some(State::Completed)).then_some(())
        })
        .await;

        assert_eq!(fixture.in_state(state).await, 1);
        let kept: (i64, i64) = sqlx::query_as(
            "select (select coalesce(sum(cardinality(sent)), 0)::bigint from flyball.cap),
                (select count(*) from flyball.dedup where at_s < 0)",
        )
        .fetch_one(fixture.database.pool())
        .await
        .unwrap();
        assert_eq!(kept, (1, 1), "slots and marked claims, {state}");
        fixture.program.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_has_used_up_its_attempts_gives_back_what_its_gates_took() {
    let fixture = fixture(1, "breaker_failures = 1000", FakeOptions::default()).await;
    fixture.fake.fail(&sid(1), Fault::Status(500));
    let args = json!({"channel": "sms", "to": "+15550100", "body": "hello", "category": "billing"});
    let job = NewJob::new("notification", args)
        .throttle("sms")
        .max_attempts(1);
    let made = fixture.app.queue.enqueue(&[job]).await.unwrap();
    eventually("a dead letter", SOON, || async {
        (fixture.job_state(made[0].id).await == Some(State::Dead)).then_some(())
    })
    .await;

    let kept: (i64, i64, i64) = sqlx::query_as(
        "select (select coalesce(sum(cardinality(sent)), 0)::bigint from flyball.cap),
            (select count(*) from flyball.message_plan where slot_lists <> '{}'), (select count(*) from flyball.dedup)",
    )
    .fetch_one(fixture.database.pool())
    .await
    .unwrap();
    assert_eq!(kept, (0, 0, 0), "slots, plans with slots, and claims");
    assert_eq!(fixture.fake.totals_of_all().requests, 1);
    fixture.program.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_jobs_own_time_out_cuts_a_request_short_and_its_policy_still_holds() {
    let fixture = fixture(2, "breaker_failures = 2", FakeOptions::default()).await;
    (1..=2).for_each(|n| fixture.fake.fail(&sid(n), Fault::Hang));
    let args =
        json!({"channel": "sms", "to": "+15550100", "body": "hello", "on_ambiguous": "dead"});
    let job = NewJob::new("notification", args)
        .throttle("sms")
        .timeout(Duration::from_secs(1));
    let jobs: Vec<NewJob> = vec![job; 4];
    let made = fixture.app.queue.enqueue(&jobs).await.unwrap();
    for made in &made {
        eventually("a dead letter", SOON, || async {
            (fixture.job_state(made.id).await == Some(State::Dead)).then_some(())
        })
        .await;
    }

    // The outcome is unknown, so the message is sent once. A client timeout of one second also
    // proves nothing about an account that may take ten.
    assert_eq!(fixture.fake.totals_of_all().requests, 4);
    assert_eq!(fixture.changes().await, []);
    fixture.program.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_change_of_a_breaker_is_told_to_whoever_wants_alerts() {
    let alerts = Fake::start(FakeProvider::Webhook, FakeOptions::default())
        .await
        .unwrap();
    let url = format!("{}/alerts", alerts.url());
    let fixture = fixture(
        2,
        &format!("alert_url = {url:?}\nbreaker_cooldown_s = 1"),
        FakeOptions::default(),
    )
    .await;
    fixture
        .app
        .throttles
        .set(&"default".parse().unwrap(), &every())
        .await
        .unwrap();
    fixture.fake.suspend(&sid(1), true);
    // Two messages must try the account. On a busy machine it may rest while all ten go by the
    // other, so more follow.
    let mut sent = 0;
    eventually("an alert", SOON, || {
        sent += 10;
        let (fixture, alerts) = (&fixture, &alerts);
        async move {
            fixture.send(10, json!({})).await;
            fixture.all("sent", sent).await;
            let told = || async { (alerts.totals_of_all().accepted >= 1).then_some(()) };
            poll(Duration::from_secs(10), told).await
        }
    })
    .await;
    let (_, _, body) = alerts.last().unwrap();
    let body: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(
        (&body["data"]["pool"], &body["data"]["account"]),
        (&json!("sms"), &json!("account_1"))
    );
    fixture.fake.suspend(&sid(1), false);
    // A probe needs a message.
    eventually("a closed breaker", SOON, || {
        sent += 2;
        let fixture = &fixture;
        async move {
            fixture.send(2, json!({})).await;
            fixture.all("sent", sent).await;
            fixture
                .changes()
                .await
                .contains(&("account_1".to_owned(), "closed".to_owned()))
                .then_some(())
        }
    })
    .await;
    fixture.program.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_is_planned_late_is_valid_from_its_local_time_on() {
    let fixture = fixture(1, "", FakeOptions::default()).await;
    // Nobody plans it until it is three hours old. Its time was an hour ago, and it is valid for
    // two hours.
    let mut transaction = fixture.database.pool().begin().await.unwrap();
    let id: i64 = sqlx::query_scalar(
        "select job_id from flyball.enqueue('notification', jsonb_build_object(
            'channel', 'sms', 'to', '+15550000001', 'body', 'x', 'valid_for_s', 7200,
            'local_time', to_char((now() - interval '1 hour') at time zone 'UTC', 'HH24:MI')), throttle => 'sms')",
    )
    .fetch_one(&mut *transaction)
    .await
    .unwrap();
    sqlx::query("update flyball.job set created_at = now() - interval '3 hours' where id = $1")
        .bind(id)
        .execute(&mut *transaction)
        .await
        .unwrap();
    transaction.commit().await.unwrap();

    fixture.all("sent", 1).await;
    fixture.program.stop().await;
}

fn every() -> flyball::throttle::Change {
    let fields = [("rps".to_owned(), Some("-1".to_owned()))].into();
    flyball::throttle::Change {
        fields,
        create: true,
        by: "test".to_owned(),
        ..Default::default()
    }
}

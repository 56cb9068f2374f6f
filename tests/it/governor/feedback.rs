//! Feedback from jobs: from handlers in one process to the knob set by a governor in another,
//! without any external metric.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use flyball::app::{App, Roles};
use flyball::config::Settings;
use flyball::governor::{Decision, Journal};
use flyball::jobs::postgres::{Feedbacks, Tally};
use flyball::jobs::{Kinds, NewJob, Outcome, Scope};
use flyball::throttle::{Name, RedisStore, Status, Store};
use serde_json::json;

use crate::support::{Database, app_environment, database, eventually, patient_store};

const SOON: Duration = Duration::from_secs(60);

/// The behaviour of the called service, which changes while jobs run.
#[derive(Clone, Copy, PartialEq)]
enum Side {
    Well = 0,
    /// It rejects every other request.
    Refuses = 1,
    /// It rejects all requests.
    RefusesAll = 2,
    /// Every other request fails.
    Fails = 3,
    /// It is forty times slower.
    Slow = 4,
    /// One request in ten is forty times slower.
    Tail = 5,
    /// It rejects each job once, and the handler retries by itself.
    Moves = 6,
    /// It takes a thousandth of the attempt's time, as the handler reports.
    Brief = 7,
    /// Its duration is meaningless, as the handler reports.
    Untold = 8,
}

/// A runner and a governor that share only the stores, and an endless queue.
struct FeedbackFixture {
    runner: App,
    governor: App,
    side: Arc<AtomicU32>,
    store: RedisStore,
    database: Database,
}

impl FeedbackFixture {
    /// The governor has only these signals, because the durations of jobs also vary on a busy
    /// machine and would move the rate.
    async fn new(signals: &str) -> Self {
        Self::with(signals, "durations = false").await
    }

    /// Builds the same setup with further keys in `[governor]`.
    async fn with(signals: &str, law: &str) -> Self {
        let (database, folder) = (database().await, tempfile::tempdir().unwrap());
        let text = format!(
            "[knobs]\nrps = 50\nmode = \"auto\"\nmin = 1\nmax = 50\nsafe_rps = 50\n{signals}\n[governor]\ntick_s = 1\ngain = 4\nopen_min_s = 4\n{law}\n"
        );
        std::fs::write(folder.path().join("calls.toml"), text).unwrap();
        std::fs::write(folder.path().join("elsewhere.toml"), "[knobs]\nrps = 1\n").unwrap();
        let mut environment = app_environment(&database, folder.path()).await;
        environment.insert("PROMETHEUS_URL".to_owned(), "http://127.0.0.1:9".to_owned());
        let settings = Settings::load(None, &environment).unwrap();
        let side = Arc::new(AtomicU32::new(Side::Well as u32));
        let mut kinds = Kinds::default();
        let (turned, calls) = (side.clone(), AtomicU32::new(0));
        kinds.register_fn("call", move |_, context| {
            let (side, nth) = (
                turned.load(Ordering::SeqCst),
                calls.fetch_add(1, Ordering::SeqCst),
            );
            match side {
                side if side == Side::Moves as u32 => context.report_refusals(1),
                side if side == Side::Brief as u32 => {
                    context.report_duration(Duration::from_micros(20))
                }
                side if side == Side::Untold as u32 => context.discount_duration(),
                _ => {}
            }
            async move { answer(side, nth).await }
        });
        let of = |runner, governor| Roles {
            api: false,
            runner,
            governor,
        };
        let runner = App::start(&settings, of(true, false), kinds).await.unwrap();
        let governor = App::start(&settings, of(false, true), Kinds::default())
            .await
            .unwrap();
        let fixture = Self {
            runner,
            governor,
            side,
            store: patient_store(&settings.redis_prefix).await,
            database,
        };
        // Each job has its own key, so that a rejection pauses no other.
        let job = |n| NewJob {
            throttle: "calls".into(),
            key: format!("key-{n}"),
            max_attempts: 1000,
            ..NewJob::new("call", json!({}))
        };
        fixture
            .runner
            .queue
            .enqueue(&(0..6000).map(job).collect::<Vec<_>>())
            .await
            .unwrap();
        let message = Feedbacks::new(fixture.database.pool());
        eventually("a hundred jobs are reported", SOON, || async {
            let message = message.of("calls").await.unwrap();
            message
                .iter()
                .any(|one| one.tally.completed >= 100)
                .then_some(())
        })
        .await;
        fixture
    }

    fn turn(&self, side: Side) {
        self.side.store(side as u32, Ordering::SeqCst);
    }

    async fn status(&self) -> Status {
        let name = Name::new("calls").unwrap();
        self.store.status(&name).await.unwrap().unwrap()
    }

    /// Waits until the knob is below this value, and returns the decision.
    async fn falls_below(&self, rps: f64) -> Decision {
        let journal = Journal::new(self.database.pool().clone());
        eventually(&format!("the knob is below {rps}"), SOON, || async {
            let newest = journal.recent(Some("calls"), 1).await.unwrap().pop()?;
            (self.status().await.knobs.rps.number() < rps && newest.rps < rps).then_some(newest)
        })
        .await
    }

    async fn stop(self) {
        self.governor.stop().await;
        self.runner.stop().await;
    }
}

async fn answer(side: u32, nth: u32) -> Outcome {
    let refused = || Outcome::Throttled {
        scope: Scope::Key,
        delay: Some(Duration::from_secs(1)),
        error: "429".to_owned(),
    };
    let is_slow = side == Side::Slow as u32 || side == Side::Tail as u32 && nth.is_multiple_of(10);
    // Real time: the latency of an answer, which the governor reads.
    tokio::time::sleep(Duration::from_millis(if is_slow { 800 } else { 20 })).await;
    match side {
        side if side == Side::RefusesAll as u32 => refused(),
        side if side == Side::Refuses as u32 && nth.is_multiple_of(2) => refused(),
        side if side == Side::Fails as u32 && nth.is_multiple_of(2) => Outcome::Retry {
            after: Some(Duration::from_secs(1)),
            error: "500".to_owned(),
        },
        _ => Outcome::Done,
    }
}

#[tokio::test]
async fn refusals_lower_the_knob_and_why_names_them() {
    let fixture = FeedbackFixture::new(
        "[[signal]]\nname = \"refusals\"\nsource = \"feedback\"\nkind = \"ratio\"\nsetpoint = 0.01",
    )
    .await;
    let earlier = Journal::new(fixture.database.pool().clone())
        .recent(Some("calls"), 5)
        .await
        .unwrap();
    // Rejections lower it below half.
    assert!(
        fixture.status().await.knobs.rps.number() > 30.0,
        "{earlier:?}"
    );

    fixture.turn(Side::Refuses);
    let decision = fixture.falls_below(25.0).await;

    assert!(
        decision.reason.starts_with("refusals reads 0."),
        "{}",
        decision.reason
    );
    fixture.stop().await;
}

#[tokio::test]
async fn failures_lower_the_knob_and_why_names_them() {
    let fixture =
        FeedbackFixture::new("[[signal]]\nname = \"errors\"\nsource = \"feedback\"\nquery = \"errors\"\nsetpoint = 0.1\nlag_s = 2").await;

    fixture.turn(Side::Fails);
    let decision = fixture.falls_below(30.0).await;

    assert!(
        decision.reason.starts_with("errors reads 0."),
        "{}",
        decision.reason
    );
    fixture.stop().await;
}

#[tokio::test]
async fn slow_answers_lower_the_knob_and_why_names_them_in_the_policys_unit() {
    let policy = "[[signal]]\nname = \"duration-ms\"\nsource = \"feedback\"\nkind = \"latency\"\nscale = 1000\nsetpoint = 300";
    let fixture = FeedbackFixture::new(policy).await;

    fixture.turn(Side::Slow);
    let decision = fixture.falls_below(30.0).await;

    assert!(
        decision.reason.starts_with("duration-ms reads "),
        "{}",
        decision.reason
    );
    assert!(
        decision.reason.contains("setpoint 300"),
        "{}",
        decision.reason
    );
    fixture.stop().await;
}

#[tokio::test]
async fn a_slow_tail_lowers_the_knob_though_the_mean_is_well() {
    let policy = "[[signal]]\nname = \"p99-ms\"\nsource = \"feedback\"\nquery = \"latency_p99\"\nscale = 1000\nsetpoint = 300";
    let fixture = FeedbackFixture::new(policy).await;

    fixture.turn(Side::Tail);
    let decision = fixture.falls_below(30.0).await;

    assert!(
        decision.reason.starts_with("p99-ms reads "),
        "{}",
        decision.reason
    );
    assert!(
        decision.reason.contains("setpoint 300"),
        "{}",
        decision.reason
    );
    fixture.stop().await;
}

#[tokio::test]
async fn refusals_that_handlers_got_around_lower_the_knob() {
    let fixture = FeedbackFixture::new(
        "[[signal]]\nname = \"refusals\"\nsource = \"feedback\"\nkind = \"ratio\"\nsetpoint = 0.01",
    )
    .await;

    fixture.turn(Side::Moves);
    let decision = fixture.falls_below(25.0).await;

    assert!(
        decision.reason.starts_with("refusals reads 0."),
        "{}",
        decision.reason
    );
    fixture.stop().await;
}

#[tokio::test]
async fn handlers_say_what_of_their_time_counts() {
    let fixture = FeedbackFixture::new(
        "[[signal]]\nname = \"refusals\"\nsource = \"feedback\"\nkind = \"ratio\"\nsetpoint = 0.01",
    )
    .await;
    let message = Feedbacks::new(fixture.database.pool()).with_durations(vec!["calls".to_owned()]);
    let tally = async || message.of("calls").await.unwrap().remove(0).tally;
    let is_brief = |tally: &Tally| {
        tally
            .durations
            .counts()
            .first()
            .is_some_and(|brief| *brief >= 10)
    };
    let before = tally().await;
    assert!(!is_brief(&before) && before.untimed == 0, "{before:?}");
    assert_eq!(before.durations.count(), before.completed as u64);
    assert!(
        before.busy_s / before.completed as f64 >= 0.02,
        "{before:?}"
    );

    fixture.turn(Side::Brief);
    eventually("ten brief ones", SOON, || async {
        is_brief(&tally().await).then_some(())
    })
    .await;
    fixture.turn(Side::Untold);
    let after = eventually("ten jobs without a report", SOON, || async {
        let after = tally().await;
        (after.untimed >= 10).then_some(after)
    })
    .await;
    assert_eq!(
        after.durations.count() as i64 + after.untimed,
        after.completed,
        "{after:?}"
    );
    let others = Feedbacks::new(fixture.database.pool())
        .of("calls")
        .await
        .unwrap()
        .remove(0)
        .tally;
    assert_eq!(others.durations.count(), 0, "nobody asked");
    assert!(others.untimed >= 10);
    fixture.stop().await;
}

#[tokio::test]
async fn with_durations_dearer_jobs_lower_the_knob_while_the_only_signal_sees_nothing() {
    // An idle queue: by this signal alone, the rate could rise.
    let elsewhere = "[[signal]]\nname = \"elsewhere\"\nsource = \"depth\"\nquery = \"elsewhere\"\nsetpoint = 1000";
    let fixture = FeedbackFixture::with(elsewhere, "durations = true").await;
    let journal = Journal::new(fixture.database.pool().clone());
    eventually(
        "the signal is read and the unit of work is known",
        SOON,
        || async {
            let newest = journal.recent(Some("calls"), 1).await.unwrap().pop()?;
            let is_known = newest.terms["w"].as_f64().is_some_and(|w| w < 0.5);
            (is_known && newest.terms["signal"] == "elsewhere").then_some(())
        },
    )
    .await;

    fixture.turn(Side::Slow);
    let decision = fixture.falls_below(30.0).await;

    assert!(
        decision
            .reason
            .starts_with("elsewhere reads 0, setpoint 1000"),
        "{}",
        decision.reason
    );
    assert!(
        decision.terms["w"].as_f64().unwrap() > 0.02,
        "{:?}",
        decision.terms
    );
    fixture.stop().await;
}

#[tokio::test]
async fn when_most_is_refused_the_breaker_stops_the_work_at_once() {
    let policy = "[[signal]]\nname = \"refusals\"\nsource = \"feedback\"\nquery = \"refused\"\nsetpoint = 0.01\ntrip = 0.6";
    let fixture = FeedbackFixture::new(policy).await;

    fixture.turn(Side::RefusesAll);
    let journal = Journal::new(fixture.database.pool().clone());
    let tripped = eventually("the breaker trips", SOON, || async {
        journal
            .recent(Some("calls"), 20)
            .await
            .unwrap()
            .into_iter()
            .find(|decision| decision.limiting == "breaker")
    })
    .await;
    assert!(
        tripped.reason.starts_with("refusals rose to "),
        "{}",
        tripped.reason
    );

    fixture.turn(Side::Well);
    eventually("work flows again", SOON, || async {
        (fixture.status().await.effective_rps.number() > 0.0).then_some(())
    })
    .await;
    fixture.stop().await;
}

#[tokio::test]
async fn what_a_worker_reported_goes_with_it() {
    let fixture = FeedbackFixture::new(
        "[[signal]]\nname = \"refusals\"\nsource = \"feedback\"\nkind = \"ratio\"\nsetpoint = 0.01",
    )
    .await;
    let FeedbackFixture {
        runner,
        governor,
        database,
        ..
    } = fixture;
    let message = Feedbacks::new(database.pool());
    let young = message.of("calls").await.unwrap().remove(0);
    assert!(
        young.age_s < 5.0 && young.born_s >= 0.0 && young.tally.busy_s > 0.0,
        "{young:?}"
    );
    assert_eq!(message.of("others").await.unwrap(), []);

    runner.stop().await;

    let rows: i64 = sqlx::query_scalar("select count(*) from flyball.feedback")
        .fetch_one(database.pool())
        .await
        .unwrap();
    assert_eq!(rows, 0);
    governor.stop().await;
}

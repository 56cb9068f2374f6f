//! A provider halves the quota of every account of a pool in mid-flight and tells nobody: the
//! closed loop with real parts. Messages come from a real Postgres, tokens from a real Redis,
//! runner and governor are those that people run, and the provider counts.

use std::ops::Deref;
use std::time::{Duration, Instant};

use flyball::app::Roles;
use flyball_fakes::{Fake, FakeOptions, FakeProvider, WindowQuota};
use serde_json::Value;

use crate::support::app::RunningApp;
use crate::support::sms_pool::{self, sid};

const ACCOUNTS: usize = 6;
/// The quota of each account per second, before and after.
const QUOTA: f64 = 20.0;
const HALVED: f64 = QUOTA / 2.0;

/// The time for which the quota is whole, the time in which the new one must be found, the time
/// that the rate then gets to come to rest, and the time for which it is watched.
const WHOLE_S: u64 = 10;
const FOUND_WITHIN_S: u64 = 60;
const REST_S: f64 = 10.0;
const WATCHED_S: u64 = 25;

/// The time that the pool gets to reach its whole rate before that is measured.
const WARM_S: u64 = 3;

/// Least share of the whole quota that this machine must be able to send: more than the half that
/// is left, so that the quota is what limits and not the machine.
const WHOLE_USED: f64 = 0.6;

/// Least share of the new quota that is used once it is found, of the share of the whole one that
/// this machine used before. Calm runs use 0.99 to 1.01 of it: the rate goes to what was measured
/// and probes upwards, and the accounts that refuse then are away for a moment.
const USED: f64 = 0.97;

/// The same where tasks wake late, by more than [`LATE`], for [`OFTEN`] of the time or more:
/// messages that were spaced arrive together then, and are refused. In between the bound falls
/// evenly.
const USED_WHEN_BUSY: f64 = 0.88;
const LATE: Duration = Duration::from_millis(5);
const OFTEN: f64 = 0.02;

struct QuotaFixture {
    fake: Fake,
    program: RunningApp,
}

impl Deref for QuotaFixture {
    type Target = RunningApp;

    fn deref(&self) -> &RunningApp {
        &self.program
    }
}

/// The share of a hundred sleeps a second that ended late, until `over` says that it is enough.
async fn lateness(mut over: tokio::sync::oneshot::Receiver<()>) -> f64 {
    let (mut all, mut late) = (0.0, 0.0);
    while over.try_recv().is_err() {
        let begun = Instant::now();
        // Real time: how late the machine wakes is what is measured.
        tokio::time::sleep(Duration::from_millis(10)).await;
        all += 1.0;
        late += if begun.elapsed() > Duration::from_millis(11) + LATE {
            1.0
        } else {
            0.0
        };
    }
    late / all
}

async fn fixture() -> QuotaFixture {
    let fake = Fake::start(
        FakeProvider::Twilio,
        FakeOptions {
            tells_delay: false,
            ..FakeOptions::default()
        },
    )
    .await
    .unwrap();
    (1..=ACCOUNTS).for_each(|n| fake.set_quota(&sid(n), Some(WindowQuota::per_second(QUOTA))));
    let program = RunningApp::start(Roles::ALL, |folder| {
        let knobs = folder.join("knobs");
        std::fs::create_dir(&knobs).unwrap();
        std::fs::write(
            knobs.join("sms.toml"),
            format!(
                "[knobs]\nrps = {rps}\nburst = 0.1\nmode = \"auto\"\nmin = 1\nmax = 1000\nsafe_rps = 20\n\
                 [[signal]]\nname = \"refused\"\nkind = \"ratio\"\nsource = \"feedback\"\nquery = \"refused\"\nsetpoint = 0.01\n\
                 [governor]\ntick_s = 1\ndurations = false\n",
                rps = 0.98 * QUOTA * ACCOUNTS as f64
            ),
        )
        .unwrap();
        sms_pool::settings(folder, &fake, ACCOUNTS, QUOTA, "")
    });
    QuotaFixture {
        program: program.await,
        fake,
    }
}

impl QuotaFixture {
    async fn send(&self, many: usize) {
        sms_pool::send(&self.app.queue, many).await;
    }

    /// Messages that the provider took, and requests that it refused.
    fn counted(&self) -> (u64, u64) {
        let totals = self.fake.totals_of_all();
        (totals.accepted, totals.refused)
    }

    /// Returns the throttle as its page shows it.
    async fn shown(&self) -> Value {
        let url = format!("http://{}/api/v1/throttles/sms", self.app.address.unwrap());
        reqwest::get(url).await.unwrap().json().await.unwrap()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quota_that_is_halved_without_a_word_is_found_within_a_minute_and_used_from_then_on() {
    let fixture = fixture().await;
    // More than can go in all the time, so that nobody ever waits for messages.
    fixture
        .send(
            (QUOTA * ACCOUNTS as f64) as usize
                * (WARM_S + WHOLE_S + FOUND_WITHIN_S + WATCHED_S) as usize,
        )
        .await;
    // Real time: the rate of messages is measured.
    tokio::time::sleep(Duration::from_secs(WARM_S)).await;
    let (warm, warm_at) = (fixture.counted(), Instant::now());
    // Real time: the same.
    tokio::time::sleep(Duration::from_secs(WHOLE_S)).await;
    let (whole, halved_at) = (fixture.counted(), Instant::now());
    let whole_used =
        (whole.0 - warm.0) as f64 / (QUOTA * ACCOUNTS as f64 * warm_at.elapsed().as_secs_f64());
    assert!(
        whole_used >= WHOLE_USED,
        "this machine sends {whole_used:.2} of the whole quota, too little to show anything of the half"
    );
    (1..=ACCOUNTS).for_each(|n| {
        fixture
            .fake
            .set_quota(&sid(n), Some(WindowQuota::per_second(HALVED)))
    });
    let new_quota = HALVED * ACCOUNTS as f64;

    let mut found_s = None;
    let mut from = None;
    let mut output = whole;
    let mut seconds = tokio::time::interval(Duration::from_secs(1));
    let is_over = |from: &Option<(Instant, _, _, _)>| {
        from.as_ref()
            .is_some_and(|(since, ..)| since.elapsed() >= Duration::from_secs(WATCHED_S))
    };
    while !is_over(&from) {
        seconds.tick().await;
        let (shown, counted) = (fixture.shown().await, fixture.counted());
        let t_s = halved_at.elapsed().as_secs_f64();
        println!(
            "{t_s:5.1} s: sent {:3}, refused {:2}, knobs rps {} in force {}, quota {}, limiting {}: {}",
            counted.0 - output.0,
            counted.1 - output.1,
            shown["knobs"]["rps"],
            shown["effective_rps"],
            shown["governor"]["signals"][0]["learned_quota"],
            shown["governor"]["limiting"],
            shown["governor"]["reason"],
        );
        output = counted;
        let learned = shown["governor"]["signals"][0]["learned_quota"]["rps"].as_f64();
        if found_s.is_none()
            && learned.is_some_and(|rps| (0.85 * new_quota..=1.1 * new_quota).contains(&rps))
        {
            found_s = Some(t_s);
        }
        let watch_s = found_s.map_or(FOUND_WITHIN_S as f64, |found_s| found_s + REST_S);
        if from.is_none() && t_s >= watch_s {
            let (enough, over) = tokio::sync::oneshot::channel();
            from = Some((
                Instant::now(),
                counted,
                tokio::spawn(lateness(over)),
                enough,
            ));
        }
    }
    let (since, (accepted, refused), watched, enough) = from.unwrap();
    enough.send(()).unwrap();
    let late = watched.await.unwrap();
    let (took_s, now) = (since.elapsed().as_secs_f64(), fixture.counted());
    let used = (now.0 - accepted) as f64 / (took_s * new_quota);
    println!(
        "found after {found_s:?} s; {used:.3} of the new quota used in {took_s:.0} s ({whole_used:.3} of the whole one before) with {} refusals, {} before; {late:.3} of all tasks woke late",
        now.1 - refused,
        refused - whole.1
    );
    assert!(
        found_s.is_some_and(|s| s <= FOUND_WITHIN_S as f64),
        "the quota was found after {found_s:?} s"
    );
    let least = USED - (USED - USED_WHEN_BUSY) * (late / OFTEN).min(1.0);
    assert!(
        used >= least * whole_used,
        "{used:.3} of the new quota was used, and {whole_used:.3} of the whole one"
    );
    assert_eq!(fixture.fake.totals_of_all().duplicates, 0);
    let failed: i64 = sqlx::query_scalar(
        "select count(*) from flyball.notification where state not in ('queued', 'sent')",
    )
    .fetch_one(fixture.database.pool())
    .await
    .unwrap();
    assert_eq!(failed, 0);
    fixture.program.stop().await;
}

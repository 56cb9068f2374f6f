//! Messages that wait for an account, counted in the slots of a worker with real parts: Postgres,
//! Redis, the runner and a provider over HTTP.

use std::time::Duration;

use flyball::app::Roles;
use flyball_fakes::{Fake, FakeOptions, FakeProvider, WindowQuota};

use crate::support::app::RunningApp;
use crate::support::eventually;
use crate::support::sms_pool::{self, sid};

const SOON: Duration = Duration::from_secs(60);
const ACCOUNTS: usize = 6;
/// The quota of each account per second, which nothing tells.
const QUOTA: f64 = 20.0;
/// The time in which the pool learns it.
const LEARNED_S: u64 = 20;
const SAMPLES: usize = 100;
/// The most messages that wait in slots, on average: what all accounts take in the tenth of a
/// second for which a message may wait there, and as much again. The worker has 64.
const WAITING: f64 = 2.0 * 0.1 * QUOTA * ACCOUNTS as f64;

struct SlotsFixture {
    fake: Fake,
    program: RunningApp,
}

async fn fixture(tells_delay: bool) -> SlotsFixture {
    let options = FakeOptions {
        tells_delay,
        ..FakeOptions::default()
    };
    let fake = Fake::start(FakeProvider::Twilio, options).await.unwrap();
    let program = RunningApp::start(Roles::ALL, |folder| {
        sms_pool::settings(folder, &fake, ACCOUNTS, -1.0, "")
    });
    SlotsFixture {
        program: program.await,
        fake,
    }
}

impl SlotsFixture {
    async fn send(&self, many: usize) {
        sms_pool::send(&self.program.app.queue, many).await;
    }

    /// Returns the mean number of messages that hold a slot and are not at the provider.
    async fn waiting(&self) -> f64 {
        let mut sum = 0.0;
        for _ in 0..SAMPLES {
            let held: i64 = sqlx::query_scalar("select count(*) from flyball.lease")
                .fetch_one(self.program.database.pool())
                .await
                .unwrap();
            sum += (held - self.fake.under_way() as i64).max(0) as f64;
            // Real time: the pace of the samples.
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        sum / SAMPLES as f64
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_for_accounts_at_their_limit_wait_in_the_queue_and_not_in_slots() {
    let fixture = fixture(false).await;
    (1..=ACCOUNTS).for_each(|n| {
        fixture
            .fake
            .set_quota(&sid(n), Some(WindowQuota::per_second(QUOTA)))
    });
    fixture
        .send((QUOTA * ACCOUNTS as f64) as usize * (LEARNED_S as usize + 20))
        .await;
    // Real time: the pool learns from refusals within the windows of the provider.
    tokio::time::sleep(Duration::from_secs(LEARNED_S)).await;
    let before = fixture.fake.totals_of_all();

    let waiting = fixture.waiting().await;

    let after = fixture.fake.totals_of_all();
    println!(
        "{waiting:.1} messages wait in slots, while {} were sent and {} refused",
        after.accepted - before.accepted,
        after.refused - before.refused
    );
    assert!(after.accepted > before.accepted);
    assert!(waiting <= WAITING, "{waiting:.1} messages wait in slots");
    fixture.program.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_for_accounts_that_are_all_paused_hold_no_slot() {
    let fixture = fixture(true).await;
    // One message an hour: then each account is paused for the rest of it.
    (1..=ACCOUNTS).for_each(|n| {
        let quota = WindowQuota {
            window: Duration::from_secs(3600),
            ..WindowQuota::per_second(1.0)
        };
        fixture.fake.set_quota(&sid(n), Some(quota))
    });
    fixture.send(1000).await;
    let all = ACCOUNTS as u64;
    eventually("each account is paused", SOON, || async {
        let totals = fixture.fake.totals_of_all();
        (totals.accepted == all && totals.refused >= all).then_some(())
    })
    .await;

    let waiting = fixture.waiting().await;

    println!("{waiting:.1} messages wait in slots");
    assert!(waiting < 1.0, "{waiting:.1} messages wait in slots");
    fixture.program.stop().await;
}

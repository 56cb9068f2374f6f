//! Messages of tenants wait in admission lanes, and are released from them without being claimed.

use std::sync::Arc;

use flyball::jobs::{CancelAnswer, Job, NewJob, Outcome, State};
use flyball::throttle::Name;
use serde_json::json;
use std::sync::Mutex;
use std::time::Instant;

use super::fixture::{SOON, WorkerFixture, quick};
use crate::support::eventually;

const STOPPED: &[(&str, &str)] = &[("rps", "0")];

struct Tenants {
    fixture: WorkerFixture,
    /// The jobs that ran, in order.
    ran: Arc<Mutex<Vec<i64>>>,
}

impl Tenants {
    async fn new(knobs: &[(&str, &str)]) -> Self {
        let mut fixture = WorkerFixture::new().await;
        let ran: Arc<Mutex<Vec<i64>>> = Arc::default();
        let list = ran.clone();
        fixture.kind("notification", move |job: Job, _| {
            list.lock().unwrap().push(job.id);
            std::future::ready(Outcome::Done)
        });
        fixture.turn("mail", &[("rps", "-1")]).await;
        fixture.turn("notify:acme", knobs).await;
        fixture
            .turn(
                "notify-critical:acme",
                &[("rps", "-1"), ("windows", "5/600")],
            )
            .await;
        Self { fixture, ran }
    }

    async fn send(&self, module: &str, priority: i32, count: usize) -> Vec<i64> {
        let word = ["critical", "high", "normal", "low"][priority as usize];
        let args = json!({"channel": "email", "to": "a@b.c", "priority": word});
        let job = NewJob {
            throttle: "mail".into(),
            ..NewJob::new("notification", args)
        };
        let made = self
            .fixture
            .queue
            .enqueue_for("tenant:acme", module, &vec![job; count])
            .await
            .unwrap();
        made.iter().map(|one| one.id).collect()
    }

    async fn until_ran(&self, count: usize) -> Vec<i64> {
        eventually(&format!("{count} messages ran"), SOON, || async {
            let ran = self.ran.lock().unwrap().clone();
            (ran.len() >= count).then_some(ran)
        })
        .await
    }

    /// Returns the jobs that ran, after a module was refused more.
    async fn all_of(&self, module: &str) -> Vec<i64> {
        self.all_of_one_of(&[module]).await
    }

    /// Returns the jobs that ran, after one of these modules was refused more.
    async fn all_of_one_of(&self, modules: &[&str]) -> Vec<i64> {
        let refusals = &self.fixture.refusals;
        refusals.again_one_of("notify:acme", modules).await;
        self.ran.lock().unwrap().clone()
    }

    async fn left(&self, module: &str) -> (f64, f64) {
        let name = Name::new("notify:acme").unwrap();
        let usage = self.fixture.store.window_usage(&name, module).await;
        let usage = usage.unwrap().unwrap();
        (usage.throttle[0].left(), usage.key[0].left())
    }
}

#[tokio::test]
async fn those_over_the_limit_wait_and_go_by_priority_then_order_when_it_is_raised() {
    let tenants = Tenants::new(STOPPED).await;
    let low = tenants.send("web", 3, 2).await;
    let normal = tenants.send("web", 2, 2).await;
    let high = tenants.send("web", 1, 2).await;
    let worker = tenants.fixture.worker(quick()).await;
    assert_eq!(tenants.all_of("web").await, Vec::<i64>::new());

    let limit = async |most: &str| {
        let knobs = [("rps", "-1"), ("windows", "100/600"), ("key_windows", most)];
        tenants.fixture.turn("notify:acme", &knobs).await;
    };
    limit("3/600").await;
    tenants.until_ran(3).await;
    let mut ran = tenants.all_of("web").await;
    ran.sort_unstable();
    assert_eq!(ran, [normal[0], high[0], high[1]]);
    assert_eq!(tenants.left("web").await, (97.0, 0.0));
    // Nobody claimed the others: they are ready, and have no attempt.
    for id in [normal[1], low[0]] {
        let job = tenants.fixture.queue.get(id).await.unwrap().unwrap();
        assert_eq!((job.summary.state, job.summary.attempt), (State::Ready, 0));
        assert_eq!(job.summary.throttle, "mail");
    }

    // One that is cancelled frees its place.
    let cancelled = tenants.fixture.queue.cancel(normal[1]).await.unwrap();
    assert_eq!(cancelled, CancelAnswer::Cancelled);
    limit("4/600").await;
    assert_eq!(tenants.until_ran(4).await.last(), Some(&low[0]));
    assert_eq!(tenants.all_of("web").await.len(), 4);
    worker.stop().await;
}

#[tokio::test]
async fn each_module_has_its_limit_and_the_tenant_has_one_over_all() {
    let tenants = Tenants::new(&[
        ("rps", "-1"),
        ("windows", "6/600"),
        ("key_windows", "4/600"),
    ])
    .await;
    let worker = tenants.fixture.worker(quick()).await;
    let second = tenants.fixture.worker(quick()).await;
    let web = tenants.send("web", 2, 20).await;
    let shop = tenants.send("shop", 2, 20).await;

    tenants.until_ran(6).await;
    let ran = tenants.all_of_one_of(&["web", "shop"]).await;

    let of = |ids: &[i64]| ran.iter().filter(|id| ids.contains(id)).count();
    assert_eq!(ran.len(), 6, "the limit of the tenant, over both workers");
    assert!(
        of(&web) <= 4 && of(&shop) <= 4,
        "{} {}",
        of(&web),
        of(&shop)
    );
    let (tenant, module) = tenants.left("web").await;
    assert_eq!((tenant, module), (0.0, 4.0 - of(&web) as f64));
    worker.stop().await;
    second.stop().await;
}

#[tokio::test]
async fn what_waits_is_released_when_the_window_has_passed() {
    let tenants =
        Tenants::new(&[("rps", "-1"), ("windows", "100/2"), ("key_windows", "5/2")]).await;
    let sent = tenants.send("web", 2, 12).await;
    let worker = tenants.fixture.worker(quick()).await;

    let mut ran = tenants.until_ran(12).await;

    ran.sort_unstable();
    assert_eq!(ran, sent, "each once");
    worker.stop().await;
}

#[tokio::test]
async fn critical_ones_go_at_once_and_count_and_have_a_limit_of_their_own() {
    let tenants = Tenants::new(&[
        ("rps", "-1"),
        ("windows", "100/600"),
        ("key_windows", "2/600"),
    ])
    .await;
    let worker = tenants.fixture.worker(quick()).await;
    tenants.send("web", 2, 4).await;
    tenants.until_ran(2).await;

    let critical = tenants.send("web", 0, 7).await;

    tenants.until_ran(7).await;
    let refusals = &tenants.fixture.refusals;
    refusals.again("notify-critical:acme", "").await;
    let ran = tenants.all_of("web").await;
    assert_eq!(ran.len(), 7, "two normal ones and five critical ones");
    let urgent: Vec<i64> = critical[..5].to_vec();
    assert!(urgent.iter().all(|id| ran.contains(id)));
    assert_eq!(tenants.left("web").await, (93.0, 0.0));
    worker.stop().await;
}

#[tokio::test]
async fn a_limit_of_critical_messages_is_not_asked_for_each_module_of_its_tenant() {
    let tenants = Tenants::new(STOPPED).await;
    for n in 0..300 {
        tenants.send(&format!("m{n}"), 0, 1).await;
    }
    let begun = Instant::now();
    let worker = tenants.fixture.worker(quick()).await;
    tenants.until_ran(5).await;

    let refusals = &tenants.fixture.refusals;
    refusals.again("notify-critical:acme", "").await;

    let refused = refusals.count("notify-critical:acme", "");
    // Real time: 20 ms pass between two turns at least, and each is refused once.
    let turns = begun.elapsed().as_millis() as usize / 20 + 1;
    assert!(refused <= turns, "{refused} refusals in {turns} turns");
    worker.stop().await;
}

#[tokio::test]
async fn no_job_goes_into_a_throttle_that_admits_messages() {
    let tenants = Tenants::new(STOPPED).await;
    for throttle in ["notify:acme", "notify-critical:acme"] {
        let job = NewJob {
            throttle: throttle.into(),
            ..NewJob::new("http", json!({"url": "http://a.b"}))
        };
        for jobs in [vec![job.clone()], vec![job; 2]] {
            let refused = tenants.fixture.queue.enqueue(&jobs).await.unwrap_err();
            assert!(refused.to_string().contains("takes no jobs"), "{refused}");
        }
    }
}

//! Workers that serve only some of the jobs.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use flyball::jobs::serving::{Serves, UnservedJobs};
use flyball::jobs::{Job, Kinds, NewJob, Outcome, State};
use flyball::runner::{Config, Worker};
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use serde_json::json;

use super::fixture::{SOON, WorkerFixture, counter, patient, quick};
use crate::support::eventually;

/// Returns kinds with a counter of their runs each.
fn counted(kinds: &[&str]) -> (Kinds, Arc<AtomicUsize>) {
    let (runs, run) = counter(Outcome::Done);
    let (run, mut all) = (Arc::new(run), Kinds::default());
    for kind in kinds {
        let run = run.clone();
        all.register_fn(*kind, move |job, context| run(job, context));
    }
    (all, runs)
}

async fn worker(fixture: &WorkerFixture, config: Config, kinds: Kinds) -> Worker {
    fixture.start(config, kinds, &mut Registry::default()).await
}

impl WorkerFixture {
    async fn count(&self, sql: &'static str) -> i64 {
        sqlx::query_scalar(sql)
            .fetch_one(&self.queue.pool)
            .await
            .unwrap()
    }

    async fn until_unserved(&self, what: &str, wanted: impl Fn(&[UnservedJobs]) -> bool) {
        eventually(what, SOON, || async {
            let unserved = self.queue.unserved().await.unwrap();
            wanted(&unserved).then_some(())
        })
        .await;
    }

    /// Enqueues jobs of the kinds in turn into one lane.
    async fn in_turn(&self, kinds: &[&str], times: usize) {
        for kind in kinds {
            self.register(kind).await;
        }
        let jobs: Vec<NewJob> = (0..times)
            .flat_map(|_| kinds.iter())
            .map(|kind| NewJob::new(*kind, json!({})).throttle("fast").key("one"))
            .collect();
        self.queue.enqueue(&jobs).await.unwrap();
    }
}

const NOT_COMPLETED: &str = "select count(*) from flyball.attempt where outcome <> 'completed'";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_workers_with_half_of_the_kinds_each_run_one_lane_together() {
    let fixture = WorkerFixture::new().await;
    let ((mail, mails), (post, posts)) = (counted(&["mail"]), counted(&["post"]));
    let one = worker(&fixture, quick(), mail).await;
    let two = worker(&fixture, quick(), post).await;

    fixture.in_turn(&["mail", "post"], 200).await;
    fixture.until_done(400).await;

    assert_eq!(
        (mails.load(Ordering::SeqCst), posts.load(Ordering::SeqCst)),
        (200, 200)
    );
    assert_eq!(fixture.count(NOT_COMPLETED).await, 0);
    assert_eq!(fixture.queue.unserved().await.unwrap(), []);
    tokio::join!(one.stop(), two.stop());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_that_nobody_serves_wait_visibly_delay_no_others_and_run_when_a_worker_comes() {
    let fixture = WorkerFixture::new().await;
    fixture.in_turn(&["elsewhere"], 2500).await;
    let (kinds, runs) = counted(&["mail"]);
    let mut registry = Registry::default();
    let one = fixture.start(quick(), kinds, &mut registry).await;
    fixture.in_turn(&["mail"], 20).await;

    fixture.until_done(20).await;
    assert_eq!(runs.load(Ordering::SeqCst), 20);
    fixture
        .until_unserved(
            "all that wait are counted",
            |unserved| matches!(unserved, [one] if one.jobs == 2500),
        )
        .await;
    let unserved = fixture.queue.unserved().await.unwrap().remove(0);
    assert_eq!(
        (unserved.throttle.as_str(), unserved.kind.as_deref()),
        ("fast", Some("elsewhere"))
    );
    assert!(unserved.since.is_some());
    assert!(
        unserved
            .remedy
            .starts_with("no live worker serves the kind elsewhere;"),
        "{unserved:?}"
    );
    let series = "flyball_jobs_unserved{throttle=\"fast\",kind=\"elsewhere\"} 2500";
    eventually("the metric shows them", SOON, || async {
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        text.contains(series).then_some(())
    })
    .await;
    // They have not begun an attempt, and none was moved.
    assert_eq!(fixture.count(NOT_COMPLETED).await, 0);
    assert_eq!(
        fixture.count("select count(*) from flyball.ready").await,
        2500
    );

    // A lane behind whose unserved jobs a new one comes is looked into at once.
    fixture.in_turn(&["mail"], 1).await;
    fixture.until_done(21).await;

    let (kinds, runs) = counted(&["elsewhere"]);
    let two = worker(&fixture, quick(), kinds).await;
    eventually("they run", Duration::from_secs(60), || async {
        (runs.load(Ordering::SeqCst) == 2500).then_some(())
    })
    .await;
    fixture
        .until_unserved("none waits", |unserved| unserved.is_empty())
        .await;
    tokio::join!(one.stop(), two.stop());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_serves_only_the_throttles_that_it_was_told_to() {
    let fixture = WorkerFixture::new().await;
    fixture.turn("notify-a", &[("rps", "-1")]).await;
    let told = |throttles: &[&str]| Config {
        serves: Serves {
            throttles: throttles.iter().map(|name| (*name).to_owned()).collect(),
            ..Serves::default()
        },
        ..quick()
    };
    let (kinds, runs) = counted(&["mail"]);
    let one = worker(&fixture, told(&["notify*"]), kinds.clone()).await;
    let left = fixture.enqueue("mail", "fast", "", 3).await;
    fixture.enqueue("mail", "notify-a", "", 5).await;

    fixture.until_done(5).await;
    assert_eq!(runs.load(Ordering::SeqCst), 5);
    fixture
        .until_unserved("the others are counted", |unserved| {
            matches!(unserved, [one] if one.jobs == 3 && one.throttle == "fast" && one.kind.is_none())
        })
        .await;
    for id in &left {
        assert_eq!(fixture.state(*id).await, State::Ready);
    }

    let two = worker(&fixture, told(&["fast"]), kinds).await;
    fixture.until_done(8).await;
    tokio::join!(one.stop(), two.stop());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_that_serve_the_same_divide_the_lanes_and_no_job_runs_twice() {
    let fixture = WorkerFixture::new().await;
    let seen = Arc::new(Mutex::new(Vec::new()));
    let inner = seen.clone();
    let mut mail = Kinds::default();
    mail.register_fn("mail", move |job: Job, _| {
        inner.lock().unwrap().push(job.id);
        std::future::ready(Outcome::Done)
    });
    let other = worker(&fixture, quick(), counted(&["post"]).0).await;
    let one = worker(&fixture, quick(), mail.clone()).await;
    let two = worker(&fixture, quick(), mail).await;
    let mut wanted = Vec::new();
    for key in 0..40 {
        wanted.extend(fixture.enqueue("mail", "fast", &key.to_string(), 10).await);
    }

    fixture.until_done(400).await;

    let mut seen = seen.lock().unwrap().clone();
    seen.sort_unstable();
    wanted.sort_unstable();
    assert_eq!(seen, wanted);
    tokio::join!(one.stop(), two.stop(), other.stop());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_comes_back_before_passed_jobs_is_found_again() {
    let fixture = WorkerFixture::new().await;
    let other = worker(&fixture, quick(), counted(&["post"]).0).await;
    let tries = Arc::new(AtomicUsize::new(0));
    let inner = tries.clone();
    let mut mail = Kinds::default();
    mail.register_fn("mail", move |_: Job, _| {
        let is_first = inner.fetch_add(1, Ordering::SeqCst) == 0;
        std::future::ready(match is_first {
            true => Outcome::Snooze {
                delay: Duration::from_millis(300),
            },
            false => Outcome::Done,
        })
    });
    let one = worker(&fixture, quick(), mail).await;

    let id = fixture.enqueue("mail", "fast", "one", 1).await[0];
    fixture.in_turn(&["elsewhere"], 1500).await;

    fixture.until(id, State::Completed).await;
    assert_eq!(tries.load(Ordering::SeqCst), 2);
    tokio::join!(one.stop(), other.stop());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_throttle_that_drops_ends_only_jobs_that_the_worker_serves() {
    let fixture = WorkerFixture::new().await;
    let knobs = [("rps", "0.01"), ("burst", "0"), ("over_limit", "drop")];
    fixture.turn("drops", &knobs).await;
    let others = fixture.enqueue("post", "drops", "", 5).await;
    let (kinds, runs) = counted(&["mail", "spare"]);
    let config = Config {
        serves: Serves {
            kinds: vec!["mail".into()],
            ..Serves::default()
        },
        ..quick()
    };
    let one = worker(&fixture, config, kinds.only(&["mail".to_owned()])).await;
    let mails = fixture.enqueue("mail", "drops", "", 6).await;

    eventually("each has run or was dropped", SOON, || async {
        let ended = fixture.count("select count(*) from flyball.attempt").await;
        (ended == mails.len() as i64).then_some(())
    })
    .await;

    assert!(runs.load(Ordering::SeqCst) <= 1);
    for id in others {
        assert_eq!(fixture.state(id).await, State::Ready);
    }
    one.stop().await;
}

/// Returns a job of the kind `elsewhere` that was claimed together with one that runs.
const CLAIMED_WITH_ANOTHER: &str = "
select l.job_id from flyball.lease l join flyball.job j on j.id = l.job_id
where j.kind = 'elsewhere' and exists (
    select from flyball.lease o join flyball.job r on r.id = o.job_id where r.kind = 'patient' and o.fence = l.fence)
limit 1";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_could_not_be_put_back_is_free_before_those_of_its_claim_end() {
    let mut fixture = WorkerFixture::new().await;
    fixture.kind("patient", patient);
    fixture.in_turn(&["patient", "elsewhere"], 4).await;
    fixture
        .refuse("before delete on flyball.lease", "not now")
        .await;
    let config = Config {
        grace: Duration::from_millis(100),
        ..quick()
    };
    let worker = fixture.worker(config).await;
    let stuck: i64 = eventually("jobs are claimed together", SOON, || async {
        let one = sqlx::query_scalar(CLAIMED_WITH_ANOTHER);
        one.fetch_optional(&fixture.queue.pool).await.unwrap()
    })
    .await;
    // Real time: the worker tries for a second to put the job back.
    tokio::time::sleep(Duration::from_secs(3)).await;
    fixture.until(stuck, State::Running).await;

    sqlx::raw_sql("drop trigger refuse on flyball.lease")
        .execute(fixture.database.pool())
        .await
        .unwrap();

    fixture.until(stuck, State::Ready).await;
    worker.stop().await;
}

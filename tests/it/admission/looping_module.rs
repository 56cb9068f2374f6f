//! A module with a defect sends to all its users in a loop: the provider sees no more than the
//! limits, the others do not wait for it, and each message is delivered.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, UNIX_EPOCH};

use flyball::throttle::Name;
use flyball_fakes::Received;
use futures_util::{StreamExt as _, stream};
use serde_json::json;
use sqlx::Connection as _;

use super::fixture::{AdmissionFixture, Grants, Module, accepted, module, most_within};

/// Messages that the module sends one by one; the others go in batches and by SQL.
const ONE_BY_ONE: usize = 500;

/// Recipients of one batch.
const BATCH: usize = 500;

/// The tolerance between the clocks of Redis and the fake, in microseconds.
const CLOCKS_US: i64 = 5_000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_module_that_loops_over_its_users_delays_nobody_else_and_reaches_the_provider_at_its_limit()
 {
    loops(2_000, (24, 12), 3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes a quarter of an hour; make soak runs it"]
async fn soak_a_module_that_loops_over_a_hundred_thousand_users_delays_nobody_else() {
    loops(100_000, (100, 50), 60).await;
}

/// `limits` are those of a tenant and of a module within any `span_s` seconds.
async fn loops(users: usize, limits: (u32, u32), span_s: u32) {
    let room = format!("tenant_queue_max = {}", 2 * users);
    let fixture = AdmissionFixture::with_settings(false, &room).await;
    for tenant in ["acme", "zulu", "initech"] {
        fixture.limit(tenant, limits, span_s).await;
    }
    let _processes = [fixture.serve().await, fixture.serve().await];
    let (web, shop, alarm) = (module("web"), module("shop"), module("alarm"));
    let others = [shop, module("mail"), module("desk")];
    let stop = Arc::new(AtomicBool::new(false));
    let watch = tokio::spawn(watch(fixture.clone(), web, span_s, stop.clone()));
    // Half the limit of a module.
    let pace = Duration::from_secs(span_s.into()).div_f64(f64::from(limits.1) / 2.0);

    let is_over = Arc::new(AtomicBool::new(true));
    let before = send_all(&fixture, &others, 0, 4, pace, &is_over).await;
    is_over.store(false, Ordering::Relaxed);
    let looping = tokio::spawn(send_in_a_loop(fixture.clone(), web, users, is_over.clone()));
    let during = send_all(&fixture, &others, before[0].len(), 10, pace, &is_over).await;
    let mut ids = looping.await.unwrap();

    // The order shows that nobody waited for the loop: all that the others have sent is there, and
    // most of the loop is not.
    for ((other, early), late) in others.iter().zip(&before).zip(&during) {
        fixture
            .until_received(*other, early.len() + late.len())
            .await;
    }
    let waiting = fixture.waiting(web).await as usize;
    assert!(waiting > users / 2, "{waiting} of {users} wait");
    for n in 0..3 {
        let critical = fixture.send(alarm, n, "critical").await;
        assert!(!critical.waits, "{critical:?}");
        ids.insert(critical.id);
    }
    fixture.until_received(alarm, 3).await;
    assert!(fixture.waiting(web).await as usize > users / 2);

    stop.store(true, Ordering::Relaxed);
    let (of_tenant, of_module) = watch.await.unwrap();
    let span_us = i64::from(span_s) * 1_000_000;
    assert!(
        of_tenant.most(span_us) <= f64::from(limits.0) + 3.0,
        "with three critical messages: {of_tenant:?}"
    );
    assert!(
        of_module.most(span_us) <= f64::from(limits.1),
        "{of_module:?}"
    );
    let received = fixture.received();
    let arrivals = |of: &[Module]| {
        times_us(
            received
                .iter()
                .filter(|one| of.iter().any(|by| by.sent(one))),
        )
    };
    let seen = [
        assert_none_came_without_a_grant(&arrivals(&[web, shop]), &of_tenant, span_us, limits.0),
        assert_none_came_without_a_grant(&arrivals(&[web]), &of_module, span_us, limits.1),
    ];
    println!(
        "limits of a tenant and a module in {span_s} s: {limits:?}; the provider saw at most {seen:?}; {waiting} of {users} waited"
    );
    println!(
        "p99 of the others: {} ms before, {} ms during the loop",
        p99(&before, &received),
        p99(&during, &received)
    );

    fixture.limit("acme", (1_000_000, 1_000_000), 60).await;
    ids.extend(before.iter().chain(&during).flatten().map(|sent| sent.id));
    fixture
        .assert_each_is_delivered_once(&ids, in_batches(users))
        .await;
}

/// A message of one of the others.
struct Sent {
    id: i64,
    to: String,
    at_ms: u64,
}

/// Lets each of these modules send at least `count` messages at this pace, and go on until the loop
/// is over. The first recipient is the `first`.
async fn send_all(
    fixture: &AdmissionFixture,
    modules: &[Module],
    first: usize,
    count: usize,
    pace: Duration,
    is_over: &AtomicBool,
) -> Vec<Vec<Sent>> {
    let send = async |by: Module| {
        let mut sent = Vec::new();
        while sent.len() < count || !is_over.load(Ordering::Relaxed) {
            let (n, at_ms) = (first + sent.len(), now_ms());
            let id = fixture.send(by, n, "normal").await.id;
            let to = by.to(n);
            sent.push(Sent { id, to, at_ms });
            // Real time: a module sends at its pace.
            tokio::time::sleep(pace).await;
        }
        sent
    };
    futures_util::future::join_all(modules.iter().map(|by| send(*by))).await
}

/// Sends to all users by every entry point; returns the ids of the messages, without those in
/// batches.
async fn send_in_a_loop(
    fixture: Arc<AdmissionFixture>,
    by: Module,
    users: usize,
    is_over: Arc<AtomicBool>,
) -> BTreeSet<i64> {
    let _over = Over(is_over);
    // The client repeats every request, with the same key.
    let send = |n: usize| {
        let fixture = fixture.clone();
        async move {
            let first = fixture.send(by, n, "normal").await.id;
            assert_eq!(
                fixture.send(by, n, "normal").await.id,
                first,
                "the same message"
            );
            first
        }
    };
    let mut ids: BTreeSet<i64> = stream::iter(0..ONE_BY_ONE)
        .map(send)
        .buffer_unordered(8)
        .collect()
        .await;
    let batches = ONE_BY_ONE + in_batches(users);
    for from in (ONE_BY_ONE..batches).step_by(BATCH) {
        let recipients: Vec<String> = (from..from + BATCH).map(|n| by.to(n)).collect();
        let body =
            json!({"channel": "sms", "body": "the sale ends on Sunday", "recipients": recipients});
        let answer = fixture.ask(by, "/batch", &body, None).await.unwrap();
        assert!(
            accepted(&answer).is_some(),
            "{}",
            answer.text().await.unwrap()
        );
    }
    let mut sql = sqlx::PgConnection::connect(&fixture.process.database_url)
        .await
        .unwrap();
    for from in (batches..users).step_by(BATCH) {
        let messages: Vec<_> = (from..(from + BATCH).min(users))
            .map(|n| json!({"pool": "sms", "channel": "sms", "to": by.to(n), "body": "the sale ends on Sunday"}))
            .collect();
        let mut transaction = sql.begin().await.unwrap();
        sqlx::query("select flyball.as_tenant($1, $2)")
            .bind(by.tenant)
            .bind(by.name)
            .execute(&mut *transaction)
            .await
            .unwrap();
        let made: Vec<i64> = sqlx::query_scalar("select id from flyball.notify_many($1)")
            .bind(json!(messages))
            .fetch_all(&mut *transaction)
            .await
            .unwrap();
        transaction.commit().await.unwrap();
        ids.extend(made);
    }
    ids
}

/// Says at its end, also if that is a panic, that the loop is over.
struct Over(Arc<AtomicBool>);

impl Drop for Over {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Returns how many of the users are recipients of batches.
fn in_batches(users: usize) -> usize {
    (users - ONE_BY_ONE) / 2 / BATCH * BATCH
}

/// Reads the grants of a tenant and of one of its modules until stopped.
async fn watch(
    fixture: Arc<AdmissionFixture>,
    by: Module,
    span_s: u32,
    stop: Arc<AtomicBool>,
) -> (Grants, Grants) {
    let name = Name::new(format!("notify:{}", by.tenant)).unwrap();
    let (mut of_tenant, mut of_module) = (Grants::default(), Grants::default());
    let span_us = i64::from(span_s) * 1_000_000;
    loop {
        // The last look comes after the stop.
        let is_last = stop.load(Ordering::Relaxed);
        let usage = fixture
            .store
            .window_usage(&name, by.name)
            .await
            .unwrap()
            .unwrap();
        of_tenant.see(usage.at_us, span_us, usage.throttle[0].grants());
        of_module.see(usage.at_us, span_us, usage.key[0].grants());
        if is_last {
            return (of_tenant, of_module);
        }
        // Real time: the windows are looked at often enough to see each grant.
        tokio::time::sleep(Duration::from_millis(150)).await;
    }
}

/// Checks that the n-th message came after the n-th grant, and that the provider saw no more than
/// the limit in any span that is shorter by the longest way from a grant to the provider. Returns
/// the most in a whole span.
fn assert_none_came_without_a_grant(
    arrivals: &[i64],
    grants: &Grants,
    span_us: i64,
    limit: u32,
) -> usize {
    let granted = grants.times_us();
    assert!(
        arrivals.len() <= granted.len(),
        "{} of {} granted",
        arrivals.len(),
        granted.len()
    );
    let ways = arrivals
        .iter()
        .zip(&granted)
        .map(|(came, granted)| came - granted);
    let (shortest, longest) = ways.fold((0, 0), |(low, high), way| (way.min(low), way.max(high)));
    assert!(
        shortest >= -CLOCKS_US,
        "a message came {shortest} us before its grant"
    );
    let most = most_within(arrivals, span_us - longest - CLOCKS_US);
    assert!(
        most <= limit as usize,
        "the provider saw {most}, the limit is {limit}"
    );
    most_within(arrivals, span_us)
}

fn times_us<'a>(messages: impl Iterator<Item = &'a Received>) -> Vec<i64> {
    // The fake counts whole milliseconds.
    let mut times: Vec<i64> = messages.map(|one| one.at_ms as i64 * 1_000 + 999).collect();
    times.sort_unstable();
    times
}

/// The time from sending to arrival that one of a hundred messages exceeds, in milliseconds.
fn p99(sent: &[Vec<Sent>], received: &[Received]) -> u64 {
    let came: BTreeMap<&str, u64> = received
        .iter()
        .map(|one| (one.to.as_str(), one.at_ms))
        .collect();
    let mut took: Vec<u64> = sent
        .iter()
        .flatten()
        .filter_map(|sent| Some(came.get(sent.to.as_str())?.saturating_sub(sent.at_ms)))
        .collect();
    took.sort_unstable();
    took.get(took.len() * 99 / 100).copied().unwrap_or_default()
}

fn now_ms() -> u64 {
    UNIX_EPOCH.elapsed().unwrap().as_millis() as u64
}

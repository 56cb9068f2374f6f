//! Redis and Postgres fail while tenants send: nothing is lost or delivered twice, and no tenant
//! gets more than its limits.
//!
//! The short forms run with `make test`. `make soak` runs the long one for `FLYBALL_SOAK_S`
//! seconds.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, UNIX_EPOCH};

use flyball::throttle::Name;

use super::fixture::{AdmissionFixture, Module, SOON, module};
use crate::runner::soak;
use crate::support::eventually;
use crate::support::ledger::Ledger;

/// The limits of a tenant and of a module, and their span.
const LIMITS: (u32, u32) = (16, 10);
const SPAN_S: u32 = 2;

/// Tenants that send nothing, each with limits of its own, which are restored before those of
/// `zulu`.
const SILENT: usize = 150;

/// The difference between the numbers of two messages of a sender, so that no two senders use the
/// same.
const NUMBERED_APART: usize = 10;

/// A fault in the middle of the messages.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Blow {
    /// Redis forgets everything.
    EmptyRedis,
    /// Redis stops, and starts again empty.
    StopRedis,
    /// Redis answers nothing for a while.
    HangRedis,
    /// Redis answers later than anybody waits for, and then just in time.
    SlowRedis,
    /// Postgres shuts down abruptly and recovers.
    CrashPostgres,
}

impl Blow {
    fn empties_redis(self) -> bool {
        matches!(self, Self::EmptyRedis | Self::StopRedis)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_are_accounted_for_while_redis_is_emptied_and_stopped() {
    storm(&[Blow::EmptyRedis, Blow::StopRedis], Duration::ZERO).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_are_accounted_for_while_redis_hangs_and_is_slow() {
    storm(&[Blow::HangRedis, Blow::SlowRedis], Duration::ZERO).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_are_accounted_for_while_postgres_crashes() {
    storm(&[Blow::CrashPostgres], Duration::ZERO).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes FLYBALL_SOAK_S; make soak runs it"]
async fn soak_messages_are_accounted_for_while_redis_and_postgres_fail() {
    let all = [
        Blow::EmptyRedis,
        Blow::SlowRedis,
        Blow::CrashPostgres,
        Blow::StopRedis,
        Blow::HangRedis,
    ];
    storm(&all, soak()).await;
}

/// The promises that the senders were given.
#[derive(Default)]
struct Promised {
    ids: Mutex<BTreeSet<i64>>,
    stop: AtomicBool,
    /// Messages of the module whose messages wait most.
    of_web: AtomicUsize,
    /// Messages that had to wait.
    waited: AtomicUsize,
}

/// Deals each of these blows once, and again until `span` is over.
async fn storm(blows: &[Blow], span: Duration) {
    let fixture = AdmissionFixture::new(blows.contains(&Blow::CrashPostgres)).await;
    let tenants = ["acme", "zulu"];
    for tenant in tenants {
        fixture.limit(tenant, LIMITS, SPAN_S).await;
    }
    for n in 0..SILENT {
        fixture.limit(&format!("silent{n}"), LIMITS, SPAN_S).await;
    }
    let processes = [fixture.serve().await, fixture.serve().await];
    let begun_ms = UNIX_EPOCH.elapsed().unwrap().as_millis() as u64;
    let promised = Arc::new(Promised::default());
    let (web, shop, alarm, mail) = (
        module("web"),
        module("shop"),
        module("alarm"),
        module("mail"),
    );
    // Four send for the module that is to wait, so that it does on a slow machine as well.
    let modules = [
        (web, 240),
        (web, 240),
        (web, 240),
        (web, 240),
        (shop, 250),
        (alarm, 400),
        (mail, 60),
    ];
    let senders: Vec<_> = modules
        .into_iter()
        .zip(0..)
        .map(|((by, pace), first)| {
            tokio::spawn(send(fixture.clone(), by, pace, first, promised.clone()))
        })
        .collect();
    let auditor = tokio::spawn(audit(fixture.clone(), promised.clone()));
    fixture.until_received(web, 12).await;
    eventually("all knobs are recorded", SOON, || async {
        let sql = "select count(*) from flyball.knobs where fields ->> 'windows' = '16/2'";
        (fixture.process.count(sql).await == (SILENT + tenants.len()) as i64).then_some(())
    })
    .await;

    let begun = Instant::now();
    let mut empties = 0;
    let mut dealt = 0;
    for blow in blows.iter().cycle() {
        if dealt >= blows.len() && begun.elapsed() >= span {
            break;
        }
        deal(*blow, &fixture, &promised).await;
        dealt += 1;
        empties += usize::from(blow.empties_redis());
        // Everybody goes on.
        for by in [web, shop, alarm, mail] {
            let before = fixture.received_of(by).len();
            fixture.until_received(by, before + 3).await;
        }
        for n in 0..SILENT {
            assert_limits_are(&fixture, &format!("silent{n}")).await;
        }
        for tenant in tenants {
            assert_limits_are(&fixture, tenant).await;
        }
    }
    promised.stop.store(true, Ordering::Relaxed);
    for sender in senders {
        sender.await.unwrap();
    }
    let looks = auditor.await.unwrap();
    let waiting = fixture.waiting(web).await;
    let waited = promised.waited.load(Ordering::Relaxed);
    assert!(looks > 0 && waited > 0, "{looks} looks, {waited} waited");
    for (of, limit) in [
        (&[web, shop][..], LIMITS.0),
        (&[web][..], LIMITS.1),
        (&[shop][..], LIMITS.1),
        (&[mail][..], LIMITS.1),
    ] {
        assert_no_more_came_than_granted(&fixture, of, limit, begun_ms, empties);
    }
    println!(
        "{dealt} blows, {looks} looks, {} messages, {waiting} wait at the end",
        promised.ids.lock().unwrap().len()
    );
    for tenant in tenants {
        fixture.limit(tenant, (1_000_000, 1_000_000), 60).await;
    }
    let ids = promised.ids.lock().unwrap().clone();
    fixture.assert_each_is_delivered_once(&ids, 0).await;
    drop(processes);
}

/// Sends messages of a module, numbered from `first` in steps, until stopped.
async fn send(
    fixture: Arc<AdmissionFixture>,
    by: Module,
    pace_ms: u64,
    first: usize,
    promised: Arc<Promised>,
) {
    let priority = match by.name {
        "alarm" => "critical",
        _ => "normal",
    };
    let mut n = first;
    while !promised.stop.load(Ordering::Relaxed) {
        let sent = fixture.send(by, n, priority).await;
        assert!(promised.ids.lock().unwrap().insert(sent.id), "{sent:?}");
        assert!(priority != "critical" || !sent.waits, "{sent:?}");
        n += NUMBERED_APART;
        promised
            .waited
            .fetch_add(usize::from(sent.waits), Ordering::Relaxed);
        if by.name == "web" {
            promised.of_web.fetch_add(1, Ordering::Relaxed);
        }
        // Real time: a module sends at its pace.
        tokio::time::sleep(Duration::from_millis(pace_ms)).await;
    }
}

/// Checks all the time that each message is in one place. Returns the number of looks.
async fn audit(fixture: Arc<AdmissionFixture>, promised: Arc<Promised>) -> usize {
    let mut looks = 0;
    while !promised.stop.load(Ordering::Relaxed) {
        if let Some(ledger) = Ledger::look(fixture.process.pool()).await {
            ledger.assert_conserved();
            looks += 1;
        }
        // Real time: looks are spread over the whole run.
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    looks
}

async fn deal(blow: Blow, fixture: &AdmissionFixture, promised: &Promised) {
    // Messages are accepted all the same, and critical ones arrive.
    let all_the_same = async || {
        let before = promised.of_web.load(Ordering::Relaxed);
        eventually("messages are accepted", SOON, || async {
            (promised.of_web.load(Ordering::Relaxed) >= before + 8).then_some(())
        })
        .await;
        let alarm = module("alarm");
        let before = fixture.received_of(alarm).len();
        fixture.until_received(alarm, before + 2).await;
    };
    match blow {
        Blow::EmptyRedis => fixture.process.redis("FLUSHALL").await,
        Blow::StopRedis => {
            fixture.redis.lock().unwrap().kill();
            all_the_same().await;
            fixture.redis.lock().unwrap().restart();
        }
        Blow::HangRedis => {
            fixture.redis.lock().unwrap().freeze();
            all_the_same().await;
            fixture.redis.lock().unwrap().thaw();
        }
        Blow::SlowRedis => {
            fixture.proxy.delay(Duration::from_millis(120));
            all_the_same().await;
            fixture.proxy.delay(Duration::from_millis(10));
            all_the_same().await;
            fixture.proxy.delay(Duration::ZERO);
        }
        Blow::CrashPostgres => fixture.crash_postgres().await,
    }
}

/// Checks that the limits that were set for a tenant are in force again.
async fn assert_limits_are(fixture: &AdmissionFixture, tenant: &str) {
    let name = Name::new(format!("notify:{tenant}")).unwrap();
    let wanted = [
        format!("{}/{SPAN_S}", LIMITS.0),
        format!("{}/{SPAN_S}", LIMITS.1),
    ];
    let status = eventually("the knobs are there", SOON, || async {
        fixture.store.status(&name).await.ok().flatten()
    })
    .await;
    let found = ["windows", "key_windows"].map(|knob| status.raw.get(knob).cloned());
    assert_eq!(found, wanted.map(Some), "{name}");
}

/// Checks that by no time more messages came than the windows since the beginning let through, and
/// one limit more for each time that Redis forgot them.
fn assert_no_more_came_than_granted(
    fixture: &AdmissionFixture,
    of: &[Module],
    limit: u32,
    begun_ms: u64,
    empties: usize,
) {
    let received = fixture.received();
    let of_these = received
        .iter()
        .filter(|one| of.iter().any(|by| by.sent(one)));
    for (n, message) in of_these.enumerate() {
        let spans = (message.at_ms - begun_ms) / (u64::from(SPAN_S) * 1_000) + 1;
        let most = (spans + empties as u64) * u64::from(limit);
        assert!(
            (n as u64) < most,
            "{} messages of {of:?} within {} ms, at most {most} may be",
            n + 1,
            message.at_ms - begun_ms
        );
    }
}

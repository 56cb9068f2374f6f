//! Postgres crashes and Redis is emptied in the middle of planners, closers and attempts: the laws
//! of the gates hold.
//!
//! The short forms run with `make test`; `make soak` runs the long one for `FLYBALL_SOAK_S` seconds.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::admission::fixture::{AdmissionFixture, Module, SOON, accepted, module};
use crate::runner::soak;
use crate::support::eventually;
use crate::support::ledger::{Ledger, assert_nothing_is_left_behind};

/// The rules: windows of a second and of four, and digests that close after a second.
const RULES: &str = "
release_spread_max_s = 0
[categories.news]
over_cap = \"hold\"
valid_for_s = 86400
caps.sms = { per_second = \"2 per 1s\", per_four = \"6 per 4s\" }
[digests.new-comment]
template = \"activity-digest\"
category = \"transactional\"
window_s = 1
min_items = 3
max_items = 5
";
const CAPS: [(usize, i64); 2] = [(2, 1), (6, 4)];

/// Recipients of capped messages, and of digests.
const PEOPLE: usize = 8;

/// A fault in the middle of everything.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Blow {
    /// Postgres shuts down at once and recovers.
    CrashPostgres,
    /// Redis forgets everything.
    EmptyRedis,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_laws_of_the_gates_hold_while_postgres_crashes() {
    storm(&[Blow::CrashPostgres], Duration::ZERO).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_laws_of_the_gates_hold_while_redis_is_emptied() {
    storm(&[Blow::EmptyRedis], Duration::ZERO).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes FLYBALL_SOAK_S; make soak runs it"]
async fn soak_the_laws_of_the_gates_hold_while_postgres_and_redis_fail() {
    storm(&[Blow::CrashPostgres, Blow::EmptyRedis], soak()).await;
}

/// The messages that were accepted, by kind.
#[derive(Default)]
struct Sent {
    capped: Mutex<BTreeSet<i64>>,
    items: Mutex<BTreeMap<i64, String>>,
    /// The first and the second of two equal messages.
    pairs: Mutex<Vec<[i64; 2]>>,
    asleep: Mutex<BTreeSet<i64>>,
    cancelled: Mutex<BTreeSet<i64>>,
    stop: AtomicBool,
}

async fn storm(blows: &[Blow], span: Duration) {
    let folder = tempfile::tempdir().unwrap();
    let rules = folder.path().join("rules");
    std::fs::write(&rules, RULES).unwrap();
    let more = format!("recipients_file = {:?}\n", rules.display().to_string());
    let has_own = blows.contains(&Blow::CrashPostgres);
    let fixture = AdmissionFixture::with_settings(has_own, &more).await;
    for tenant in ["acme", "zulu", "initech"] {
        fixture.limit(tenant, (1_000_000, 1_000_000), 60).await;
    }
    let processes = [fixture.serve().await, fixture.serve().await];
    always_asleep(&fixture).await;
    let sent = Arc::new(Sent::default());
    let senders = [
        tokio::spawn(send_capped(fixture.clone(), sent.clone())),
        tokio::spawn(send_items(fixture.clone(), sent.clone())),
        tokio::spawn(send_twice(fixture.clone(), sent.clone())),
        tokio::spawn(send_at_night(fixture.clone(), sent.clone())),
    ];
    let auditor = tokio::spawn(audit(fixture.clone(), sent.clone()));
    let everybody = [module("web"), module("shop"), module("mail")];
    let goes_on = async || {
        for by in everybody {
            let before = fixture.received_of(by).len();
            fixture.until_received(by, before + 3).await;
        }
    };
    goes_on().await;
    let begun = Instant::now();
    let mut dealt = 0;
    for blow in blows.iter().cycle() {
        if dealt >= blows.len() && begun.elapsed() >= span {
            break;
        }
        deal(*blow, &fixture).await;
        goes_on().await;
        dealt += 1;
    }
    sent.stop.store(true, Ordering::Relaxed);
    for sender in senders {
        sender.await.unwrap();
    }
    let looks = auditor.await.unwrap();
    assert!(looks > 0, "the balance was looked at");
    // Only those wait who sleep.
    let asleep = sent.asleep.lock().unwrap().len() - sent.cancelled.lock().unwrap().len();
    let patience = SOON + span;
    let settled = crate::support::poll(patience, async || {
        let open = "select count(*) from flyball.digest";
        let open: i64 = sqlx::query_scalar(open)
            .fetch_one(fixture.process.pool())
            .await
            .ok()?;
        let ledger = Ledger::look(fixture.process.pool()).await?;
        (ledger.waiting() == asleep as i64 && open == 0).then_some(ledger)
    })
    .await;
    let settled = settled.expect("all but those who sleep have got their messages");
    settled.assert_conserved();
    let dead: Vec<String> = sqlx::query_scalar("select coalesce(error, '') from flyball.dead")
        .fetch_all(fixture.process.pool())
        .await
        .unwrap();
    assert_eq!(dead, Vec::<String>::new());
    assert_nothing_is_left_behind(fixture.process.pool()).await;
    let (capped, items) = (
        sent.capped.lock().unwrap().len(),
        sent.items.lock().unwrap().len(),
    );
    println!("{dealt} blows, {looks} looks, {capped} capped, {items} items, {asleep} asleep");
    no_window_is_over_its_count(&fixture, &sent).await;
    every_item_is_shown_or_counted_once(&fixture, &sent).await;
    of_equal_messages_one_is_delivered(&fixture, &sent).await;
    nobody_is_woken(&fixture, &sent).await;
    nothing_goes_before_its_time(&fixture).await;
    drop(processes);
}

/// Gives the recipient `night` of a tenant quiet hours that do not end today or tomorrow.
async fn always_asleep(fixture: &AdmissionFixture) {
    let profile = "
        insert into flyball.recipient (tenant, id, profile) select 'initech', 'night', jsonb_build_object(
            'addresses', jsonb_build_object('sms', $1::text),
            'quiet_hours', jsonb_build_object('sms', jsonb_build_object('all_day', true, 'weekdays', (
                select jsonb_agg(to_char(now() at time zone 'UTC' + d * interval '1 day', 'dy')) from generate_series(0, 2) d))))";
    sqlx::query(profile)
        .bind(module("desk").to(0))
        .execute(fixture.process.pool())
        .await
        .unwrap();
}

/// Sends a message until it is accepted.
async fn send(fixture: &AdmissionFixture, by: Module, key: &str, body: &Value) -> i64 {
    let one = eventually("a message is accepted", SOON, async || {
        let answer = fixture.ask(by, "", body, Some(key)).await;
        answer.ok().as_ref().and_then(accepted)
    });
    one.await.id
}

impl Sent {
    fn goes_on(&self) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }

    async fn rest(pace_ms: u64) {
        // Real time: a module sends at its pace.
        tokio::time::sleep(Duration::from_millis(pace_ms)).await;
    }
}

async fn send_capped(fixture: Arc<AdmissionFixture>, sent: Arc<Sent>) {
    let by = module("web");
    for n in (0..).take_while(|_| sent.goes_on()) {
        let key = format!("capped-{n}");
        let body = json!({"channel": "sms", "to": by.to(n % PEOPLE), "body": "news", "category": "news", "dedup_key": key});
        let id = send(&fixture, by, &key, &body).await;
        sent.capped.lock().unwrap().insert(id);
        Sent::rest(100).await;
    }
}

async fn send_items(fixture: Arc<AdmissionFixture>, sent: Arc<Sent>) {
    let by = module("shop");
    for n in (0..).take_while(|_| sent.goes_on()) {
        let key = format!("item-{n}");
        let body = json!({
            "channel": "sms", "to": by.to(n % PEOPLE), "template": "{{ tag }}", "data": {"tag": key}, "template_id": "comment",
            "digest": "new-comment",
        });
        let id = send(&fixture, by, &key, &body).await;
        sent.items.lock().unwrap().insert(id, key);
        Sent::rest(25).await;
    }
}

async fn send_twice(fixture: Arc<AdmissionFixture>, sent: Arc<Sent>) {
    let by = module("mail");
    for n in (0..).take_while(|_| sent.goes_on()) {
        let body = json!({
            "channel": "sms", "to": by.to(n), "template": "{{ n }}", "data": {"n": n}, "template_id": "receipt", "category": "receipts",
        });
        let keys = [format!("first-{n}"), format!("second-{n}")];
        let both = tokio::join!(
            send(&fixture, by, &keys[0], &body),
            send(&fixture, by, &keys[1], &body)
        );
        sent.pairs.lock().unwrap().push([both.0, both.1]);
        Sent::rest(60).await;
    }
}

/// Sends messages to somebody who sleeps, and cancels every second one.
async fn send_at_night(fixture: Arc<AdmissionFixture>, sent: Arc<Sent>) {
    let by = module("desk");
    for n in (0..).take_while(|_| sent.goes_on()) {
        let key = format!("night-{n}");
        let body = json!({
            "channel": "sms", "recipient": "night", "body": key, "category": "transactional", "dedup_key": key, "valid_for_s": 604800,
        });
        let id = send(&fixture, by, &key, &body).await;
        sent.asleep.lock().unwrap().insert(id);
        if n % 2 == 0 {
            eventually("a message is cancelled", SOON, async || {
                fixture.process.queue.cancel(id).await.ok()
            })
            .await;
            sent.cancelled.lock().unwrap().insert(id);
        }
        Sent::rest(150).await;
    }
}

/// L1, at any instant: checks all the time that each message is in one place.
async fn audit(fixture: Arc<AdmissionFixture>, sent: Arc<Sent>) -> usize {
    let mut looks = 0;
    while sent.goes_on() {
        if let Some(ledger) = Ledger::look(fixture.process.pool()).await {
            ledger.assert_conserved();
            looks += 1;
        }
        Sent::rest(200).await;
    }
    looks
}

async fn deal(blow: Blow, fixture: &AdmissionFixture) {
    match blow {
        Blow::EmptyRedis => fixture.process.redis("FLUSHALL").await,
        Blow::CrashPostgres => fixture.crash_postgres().await,
    }
}

/// L2: judges the slots that were taken, each noted with its message. L1: all messages went.
async fn no_window_is_over_its_count(fixture: &AdmissionFixture, sent: &Sent) {
    let slots: Vec<(i64, String, i32, i32)> = sqlx::query_as(
        "select p.job_id, p.recipient::text, u.list, u.s from flyball.message_plan p join flyball.job j on j.id = p.job_id
         cross join lateral unnest(p.slot_lists, p.slot_s) as u(list, s) where j.args ->> 'category' = 'news' order by u.s",
    )
    .fetch_all(fixture.process.pool())
    .await
    .unwrap();
    let capped = sent.capped.lock().unwrap().clone();
    let with_slots: BTreeSet<i64> = slots.iter().map(|slot| slot.0).collect();
    assert_eq!(with_slots, capped, "each capped message took its slot");
    assert_eq!(slots.len(), capped.len(), "and one alone");
    let mut times: BTreeMap<(String, i32), Vec<i64>> = BTreeMap::new();
    for (_, recipient, list, second) in slots {
        times
            .entry((recipient, list))
            .or_default()
            .push(i64::from(second));
    }
    assert_eq!(times.len(), PEOPLE, "a list for each recipient");
    for (key, seconds) in &times {
        for (most, span_s) in CAPS {
            let over = seconds
                .windows(most + 1)
                .find(|some| some[most] - some[0] < span_s);
            assert_eq!(over, None, "{key:?}: {most} per {span_s} s of {seconds:?}");
        }
    }
    let received = fixture.received_of(module("web")).len();
    assert_eq!(received, capped.len(), "each came once");
    let left: i64 = sqlx::query_scalar(
        "select count(*) from flyball.cap_reservation r where not exists (select from flyball.scheduled s where s.job_id = r.job_id)",
    )
    .fetch_one(fixture.process.pool())
    .await
    .unwrap();
    assert_eq!(left, 0, "reservations of messages that went");
}

/// L4: each item is shown, counted, or went alone, and none twice.
async fn every_item_is_shown_or_counted_once(fixture: &AdmissionFixture, sent: &Sent) {
    let messages: Vec<(String, Value)> = sqlx::query_as(
        "select p.origin, j.args -> 'data' from flyball.message_plan p join flyball.job j on j.id = p.job_id
         join flyball.delivery d on d.job_id = p.job_id
         where p.origin in ('digest', 'item') and d.state = 'sent'",
    )
    .fetch_all(fixture.process.pool())
    .await
    .unwrap();
    let items = sent.items.lock().unwrap().clone();
    let (mut counted, mut shown) = (0, Vec::new());
    for (origin, data) in &messages {
        let tag = |data: &Value| data["tag"].as_str().unwrap().to_owned();
        if origin == "item" {
            counted += 1;
            shown.push(tag(data));
        } else {
            counted += data["totalCount"].as_u64().unwrap() as usize;
            shown.extend(data["items"].as_array().unwrap().iter().map(tag));
        }
    }
    assert_eq!(counted, items.len(), "every item is counted once");
    let distinct: BTreeSet<&String> = shown.iter().collect();
    assert_eq!(distinct.len(), shown.len(), "none is shown twice");
    let known: BTreeSet<&String> = items.values().collect();
    assert!(distinct.is_subset(&known), "none is invented");
    let received = fixture.received_of(module("shop")).len();
    assert_eq!(received, messages.len(), "each message came once");
}

/// L5: of two equal messages one is delivered, and the other is its duplicate.
async fn of_equal_messages_one_is_delivered(fixture: &AdmissionFixture, sent: &Sent) {
    let pairs = sent.pairs.lock().unwrap().clone();
    for pair in &pairs {
        let mut states: Vec<String> = sqlx::query_scalar(
            "select state from flyball.delivery where job_id = any($1) order by state",
        )
        .bind(&pair[..])
        .fetch_all(fixture.process.pool())
        .await
        .unwrap();
        states.sort_unstable();
        assert_eq!(states, ["duplicate", "sent"], "{pair:?}");
    }
    let received = fixture.received_of(module("mail"));
    let people: BTreeSet<&String> = received.iter().map(|one| &one.to).collect();
    assert_eq!((received.len(), people.len()), (pairs.len(), pairs.len()));
}

/// L3 and L8: nothing goes to somebody who sleeps, cancelled or not.
async fn nobody_is_woken(fixture: &AdmissionFixture, sent: &Sent) {
    assert_eq!(fixture.received_of(module("desk")).len(), 0);
    let (all, cancelled) = (
        sent.asleep.lock().unwrap().clone(),
        sent.cancelled.lock().unwrap().clone(),
    );
    let held: Vec<i64> = sqlx::query_scalar(
        "select s.job_id from flyball.scheduled s join flyball.message_plan p on p.job_id = s.job_id
         where p.state = 'held' and p.gate = 'quiet_hours'",
    )
    .fetch_all(fixture.process.pool())
    .await
    .unwrap();
    let held: BTreeSet<i64> = held.into_iter().collect();
    assert_eq!(held, &all - &cancelled);
}

/// L6: no message begins before the time that was told first.
async fn nothing_goes_before_its_time(fixture: &AdmissionFixture) {
    let early: Vec<String> = sqlx::query_scalar(
        "select concat_ws(' ', a.job_id, a.outcome, a.started_at, a.finished_at, to_jsonb(p))
         from flyball.message_plan p join flyball.attempt a on a.job_id = p.job_id
         where p.origin = 'sender' and a.started_at < p.planned_at - interval '5 milliseconds'",
    )
    .fetch_all(fixture.process.pool())
    .await
    .unwrap();
    assert!(
        early.is_empty(),
        "messages began before their time: {early:#?}"
    );
}

//! Shedding, accounts without a limit, and the knob of concurrency.

use futures_util::future::BoxFuture;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use flyball::jobs::Issue;
use flyball::providers::pool::{AccountPool, Checkout, Flow, maintain, seed};
use flyball::providers::{
    Driver, Message, PoolMetrics, Provider, ProviderResponse, SendContext, Sent,
};
use flyball::throttle::restored::{AUTHOR, restored_because};
use flyball::throttle::{
    AcquireRequest, Change, LaneRequest, MemoryNotes, MemoryStore, Name, RateLimit, Store,
};

use prometheus_client::registry::Registry;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::fixture::{SOON, next, pool, workers};
use crate::support::eventually;
use crate::support::observed_store::ObservedStore;

/// A provider whose accounts accept this many requests per second of its own clock.
struct Limits {
    counts: std::sync::Mutex<Vec<(u64, u32)>>,
    begun: Instant,
    most: u32,
}

impl Limits {
    fn accepts(&self, at: usize) -> bool {
        let second = self.begun.elapsed().as_secs();
        let mut counts = self.counts.lock().unwrap();
        let count = &mut counts[at];
        if count.0 != second {
            *count = (second, 0);
        }
        count.1 += 1;
        count.1 <= self.most
    }
}

/// Sends at full speed for some seconds, with two of five accounts blocked; returns rejections,
/// sent messages, and the lowest number of available accounts.
async fn under_load(name: &str, shedding: bool) -> (u32, u32, usize) {
    const ACCOUNTS: usize = 5;
    let workers = workers(
        1,
        pool(name, ACCOUNTS, 100.0, |pool| pool.shedding = shedding),
    )
    .await;
    let account_pool = workers.pools[0].clone();
    let limits = Arc::new(Limits {
        counts: std::sync::Mutex::new(vec![(0, 0); ACCOUNTS]),
        begun: Instant::now(),
        most: 140,
    });
    for _ in 0..2 {
        let Checkout::Held(held) = account_pool.take(next(), &[], SOON).await else {
            panic!("an account is free")
        };
        account_pool
            .throttled(&held, Some(Duration::from_secs(120)), "answered 429")
            .await;
    }
    eventually("the blocks", SOON, || async {
        (account_pool.view().available == ACCOUNTS - 2).then_some(())
    })
    .await;

    let (sent, refused) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let until = Instant::now() + Duration::from_secs(8);
    let throttle = Name::new(name).unwrap();
    let tasks: Vec<_> = (0..32)
        .map(|_| {
            let (account_pool, limits, sent, refused) = (
                account_pool.clone(),
                limits.clone(),
                sent.clone(),
                refused.clone(),
            );
            let (store, throttle) = (workers.store.clone(), throttle.clone());
            tokio::spawn(async move {
                while Instant::now() < until {
                    let ask = AcquireRequest {
                        throttle: throttle.clone(),
                        lanes: vec![LaneRequest::default()],
                        holder: None,
                    };
                    let answer = store.acquire(&ask).await;
                    if answer.lanes[0].granted == 0 {
                        // Real time: the wait that the throttle names.
                        tokio::time::sleep(answer.lanes[0].wait.min(Duration::from_millis(50)))
                            .await;
                        continue;
                    }
                    let Checkout::Held(held) = account_pool
                        .take(next(), &[], Duration::from_millis(200))
                        .await
                    else {
                        continue;
                    };
                    if limits.accepts(held.at) {
                        sent.fetch_add(1, Ordering::Relaxed);
                        account_pool.succeeded(&held, None).await;
                    } else {
                        refused.fetch_add(1, Ordering::Relaxed);
                        account_pool
                            .throttled(&held, Some(Duration::from_secs(5)), "answered 429")
                            .await;
                    }
                }
            })
        })
        .collect();
    let mut fewest = ACCOUNTS;
    while Instant::now() < until {
        fewest = fewest.min(account_pool.view().available);
        // Real time: the pace of the samples.
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    for task in tasks {
        task.await.unwrap();
    }
    (
        refused.load(Ordering::Relaxed),
        sent.load(Ordering::Relaxed),
        fewest,
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_shedding_blocked_accounts_take_the_others_with_them_and_with_it_none() {
    let (refused_off, _, left_off) = under_load("cascade", false).await;
    let (refused_on, sent_on, left_on) = under_load("no-cascade", true).await;

    assert!(
        refused_off > 0 && left_off < 3,
        "without shedding: {refused_off} refusals, {left_off} accounts left"
    );
    assert_eq!(
        (refused_on, left_on),
        (0, 3),
        "with shedding, {sent_on} sent"
    );
    assert!(sent_on > 300, "{sent_on} sent with shedding");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_account_without_a_limit_bears_anything_and_is_not_narrow_after_a_refusal() {
    const AT_ONCE: usize = 64;
    let workers = workers(2, pool("free", 2, -1.0, |_| {})).await;
    let [one, other] = [&workers.pools[0], &workers.pools[1]];
    let named = |name: &str| Name::new(name).unwrap();
    let of_pool = workers.store.status(&named("free")).await.unwrap().unwrap();
    assert_eq!(
        (of_pool.knobs.rps.number(), of_pool.knobs.concurrency),
        (-1.0, Some(100)),
        "no bucket; what is under way is the limit"
    );
    eventually("a look", SOON, || async {
        (one.view().available == 2).then_some(())
    })
    .await;
    let view = one.view();
    assert_eq!(
        (
            view.capacity_rps,
            view.configured_rps,
            view.accounts[0].limit_rps.number()
        ),
        (None, None, -1.0)
    );
    assert_eq!(workers.capacity().await, None, "nothing limits its rate");
    for _ in 0..1000 {
        assert!(
            matches!(one.take(next(), &[], SOON).await, Checkout::Held(_)),
            "no rate of an account was used up"
        );
    }

    let Checkout::Held(held) = one.take(next(), &[1], SOON).await else {
        panic!("the first account is free")
    };
    one.throttled(&held, Some(Duration::from_secs(1)), "answered 429")
        .await;
    eventually("the block, as others see it", SOON, || async {
        (workers.flow(1, 1) == Flow::Blocked).then_some(())
    })
    .await;
    assert_eq!(other.view().available, 1);
    // Concurrency recovers gradually: one, then twice as many after each success, until it no
    // longer limits.
    let all = eventually("as many at once as before", SOON, || async {
        let mut all = Vec::new();
        while all.len() < AT_ONCE {
            match other.take(next(), &[1], Duration::from_millis(300)).await {
                Checkout::Held(held) => all.push(held),
                _ => break,
            }
        }
        for held in &all {
            other.succeeded(held, None).await;
        }
        (all.len() == AT_ONCE).then_some(all)
    });
    assert_eq!(all.await.len(), AT_ONCE);
    eventually("flowing on the page", SOON, || async {
        (workers.flow(1, 1) == Flow::Flowing).then_some(())
    })
    .await;
    assert_eq!(
        other.view().accounts[0].learned_rps,
        None,
        "nothing was learned that limits it"
    );

    // A breaker opens for this account as for any other.
    for _ in 0..5 {
        let Checkout::Held(held) = one.take(next(), &[1], SOON).await else {
            panic!("the first account is free")
        };
        one.failed(&held, "answered 503", None).await;
    }
    eventually("an open breaker", SOON, || async {
        (workers.flow(1, 1) == Flow::Open).then_some(())
    })
    .await;
}

/// A driver that records its assigned concurrency.
struct Narrow(Arc<AtomicU32>);

impl Driver for Narrow {
    fn provider(&self) -> Provider {
        Provider::Apns
    }

    fn check(&self, _: &Message) -> Vec<Issue> {
        Vec::new()
    }

    fn send<'a>(&'a self, _: &'a Message, _: &'a SendContext) -> BoxFuture<'a, ProviderResponse> {
        Box::pin(async {
            ProviderResponse::new(
                Sent::Transient {
                    reason: "it never sends".to_owned(),
                },
                "",
            )
        })
    }

    fn set_concurrency(&self, most: usize) {
        self.0.store(most as u32, Ordering::SeqCst);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_turn_of_the_knob_of_concurrency_reaches_the_drivers_at_the_next_look() {
    let workers = workers(1, pool("turned", 2, -1.0, |_| {})).await;
    let heard = [Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0))];
    let drivers: Vec<Box<dyn Driver>> = heard
        .iter()
        .map(|heard| Box::new(Narrow(heard.clone())) as Box<dyn Driver>)
        .collect();
    let (metrics, stop) = (
        PoolMetrics::register(&mut Registry::default()),
        CancellationToken::new(),
    );
    tokio::spawn(maintain(
        workers.pools[0].clone(),
        Arc::new(drivers),
        metrics,
        stop.child_token(),
    ));
    let _stop = stop.drop_guard();
    let throttle = Name::new("turned").unwrap();
    let output = |each: u32| {
        let heard = &heard;
        let what = format!("{each} for each");
        async move {
            let both = || async {
                heard
                    .iter()
                    .all(|heard| heard.load(Ordering::SeqCst) == each)
                    .then_some(())
            };
            eventually(&what, SOON, both).await;
        }
    };
    output(50).await;
    for (knob, each) in [("20", 10), ("31", 16), ("0", 1), ("-1", 1000), ("6", 3)] {
        let fields = BTreeMap::from([("concurrency".to_owned(), Some(knob.to_owned()))]);
        let change = flyball::throttle::Change {
            fields,
            by: "ann".to_owned(),
            ..Default::default()
        };
        workers.store.set(&throttle, &change).await.unwrap();
        let begun = Instant::now();
        output(each).await;
        // Ten observations take ten seconds; on a slower machine the test proves nothing.
        println!("{knob}: after {:?}", begun.elapsed());
    }
}

#[tokio::test]
async fn the_loop_of_a_pool_ends_with_the_task_that_hands_out_its_accounts() {
    let workers = workers(1, pool("dying", 1, -1.0, |_| {})).await;
    let broken = ObservedStore::new(workers.store.clone(), |_, _| panic!("a defect"));
    let (changes, _) = mpsc::unbounded_channel();
    let dying = pool("dying", 1, -1.0, |_| {});
    let dying = AccountPool::open(dying, Arc::new(broken), workers.store.clone(), changes).unwrap();
    let kept = tokio::spawn(maintain(
        dying.clone(),
        Arc::default(),
        PoolMetrics::register(&mut Registry::default()),
        CancellationToken::new(),
    ));

    let taken = dying.take(next(), &[], SOON).await;

    assert!(!matches!(taken, Checkout::Held(_)), "there is an account");
    tokio::time::timeout(SOON, kept).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_limit_of_the_settings_counts_after_a_restoration_and_one_of_a_person_stays() {
    let clock = || Arc::new(|| 1_700_000_000_000_000_i64);
    let restored = |by: &str| {
        let recorded = [("by", by), ("why", "a test")];
        let recorded = recorded.map(|(field, text)| (field.to_owned(), text.to_owned()));
        restored_because("Redis was empty", &BTreeMap::from(recorded))
    };
    for (by, why, expected) in [
        ("pool", String::new(), 10.0),
        ("ann", String::new(), 100.0),
        (AUTHOR, restored("pool"), 10.0),
        (AUTHOR, restored("ann"), 100.0),
    ] {
        let store = Arc::new(MemoryStore::new(clock()));
        let name = Name::new("sms:accounts").unwrap();
        let earlier = Change {
            fields: BTreeMap::from([("key_rps".to_owned(), Some("100".to_owned()))]),
            by: by.to_owned(),
            why: why.clone(),
            create: true,
            ..Change::default()
        };
        store.set(&name, &earlier).await.unwrap();
        let notes = Arc::new(MemoryNotes::new(clock()));
        let (changes, _) = mpsc::unbounded_channel();
        let slower = pool("sms", 1, 10.0, |_| {});
        let accounts = AccountPool::open(slower, store.clone(), notes, changes).unwrap();

        seed(&accounts).await.unwrap();

        let knobs = store.status(&name).await.unwrap().unwrap().knobs;
        assert_eq!(knobs.key_rps, RateLimit::new(expected), "{by}: {why}");
    }
}

//! Accounts: their rates, blocks and breakers are shared by all workers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use flyball::providers::pool::{BreakerState, Checkout, Flow};
use flyball::throttle::{AcquireRequest, LaneRequest, Name, Store};

use super::fixture::{SOON, next, pool, workers};
use crate::support::eventually;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_workers_share_the_rate_of_an_account() {
    let workers = workers(10, pool("shared", 1, 50.0, |_| {})).await;
    let granted = Arc::new(AtomicU32::new(0));
    let begun = Instant::now();
    let until = begun + Duration::from_secs(4);
    let tasks: Vec<_> = workers
        .pools
        .iter()
        .flat_map(|account_pool| {
            [
                account_pool.clone(),
                account_pool.clone(),
                account_pool.clone(),
            ]
        })
        .map(|account_pool| {
            let granted = granted.clone();
            tokio::spawn(async move {
                while Instant::now() < until {
                    if let Checkout::Held(held) = account_pool
                        .take(next(), &[], Duration::from_millis(300))
                        .await
                    {
                        granted.fetch_add(1, Ordering::Relaxed);
                        account_pool.succeeded(&held, None).await;
                    }
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let (granted, took) = (
        f64::from(granted.load(Ordering::Relaxed)),
        begun.elapsed().as_secs_f64(),
    );
    // The bucket holds 20 ms of the rate, plus what fits in between; ten separate buckets would
    // allow ten times as much.
    assert!(granted <= 50.0 * took + 4.0, "{granted} in {took} s");
    assert!(granted >= 50.0, "{granted} in {took} s");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_blocked_account_is_skipped_by_all_workers_and_back_when_its_time_is_over() {
    let workers = workers(2, pool("blocked", 3, 1000.0, |_| {})).await;
    let [one, other] = [&workers.pools[0], &workers.pools[1]];
    let mut first = None;
    for _ in 0..3 {
        if let Checkout::Held(held) = one.take(next(), &[], SOON).await
            && held.at == 1
        {
            first = Some(held);
        }
    }
    let begun = Instant::now();
    one.throttled(
        &first.expect("the second account's turn"),
        Some(Duration::from_secs(3)),
        "answered 429",
    )
    .await;

    let mut seen: BTreeMap<usize, u32> = BTreeMap::new();
    while begun.elapsed() < Duration::from_secs(2) {
        if let Checkout::Held(held) = other.take(next(), &[], Duration::from_millis(50)).await {
            *seen.entry(held.at).or_default() += 1;
            assert!(
                held.at != 1 || begun.elapsed() > Duration::from_secs(2),
                "the blocked account was given out"
            );
        }
    }
    assert_eq!(seen.keys().copied().collect::<Vec<_>>(), [0, 2]);
    eventually("the block on the page", SOON, || async {
        (workers.flow(1, 2) == Flow::Blocked).then_some(())
    })
    .await;

    let back = eventually("the account's return", SOON, || async {
        match other
            .take(next(), &[0, 2], Duration::from_millis(200))
            .await
        {
            Checkout::Held(held) => Some(held),
            _ => None,
        }
    });
    let back = back.await;
    assert!(
        begun.elapsed() >= Duration::from_secs(3),
        "after {:?}",
        begun.elapsed()
    );
    other.succeeded(&back, None).await;
    eventually("flowing again", SOON, || async {
        (workers.flow(0, 2) == Flow::Flowing).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pool_without_a_tenth_of_its_accounts_bears_a_tenth_less() {
    let workers = workers(1, pool("shed", 10, 100.0, |_| {})).await;
    let account_pool = &workers.pools[0];
    eventually("the whole capacity", SOON, || async {
        (workers.capacity().await == Some(1000.0)).then_some(())
    })
    .await;
    let Checkout::Held(held) = account_pool.take(next(), &[], SOON).await else {
        panic!("an account is free")
    };

    account_pool
        .throttled(&held, Some(Duration::from_secs(30)), "answered 429")
        .await;

    eventually("nine tenths", SOON, || async {
        (workers.capacity().await == Some(900.0)).then_some(())
    })
    .await;
    // The view is as old as the last look at the accounts.
    let view = eventually("nine accounts", SOON, || async {
        let view = account_pool.view();
        (view.available == 9).then_some(view)
    })
    .await;
    assert_eq!(view.configured_rps, Some(1000.0));
    assert!(
        view.accounts[held.at]
            .until_ms
            .is_some_and(|until| until > view.at_ms)
    );

    assert!(
        account_pool
            .resume(&account_pool.pool().accounts[held.at].account.name)
            .await
            .unwrap()
    );
    eventually("all of it again", SOON, || async {
        (workers.capacity().await == Some(1000.0)).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_learned_of_an_account_without_a_limit_is_what_its_pool_bears() {
    let workers = workers(1, pool("learned", 1, -1.0, |_| {})).await;
    let account_pool = &workers.pools[0];
    assert_eq!(workers.capacity().await.filter(|rps| *rps >= 0.0), None);
    // The provider accepts ten per second.
    let (begun, mut second, mut taken) = (Instant::now(), 0, 0);
    let known = async {
        loop {
            let Checkout::Held(held) = account_pool.take(next(), &[], Duration::from_secs(5)).await
            else {
                continue;
            };
            if begun.elapsed().as_secs() != second {
                (second, taken) = (begun.elapsed().as_secs(), 0);
            }
            taken += 1;
            match taken {
                0..=10 => account_pool.succeeded(&held, None).await,
                _ => account_pool.throttled(&held, None, "answered 429").await,
            }
            if let Some(rps) = workers
                .capacity()
                .await
                .filter(|rps| (0.1..=30.0).contains(rps))
            {
                break rps;
            }
        }
    };
    let rps = tokio::time::timeout(SOON, known)
        .await
        .expect("a capacity near what the provider takes");

    // So the others wait in their lane, where they block nothing.
    let ask = AcquireRequest {
        throttle: Name::new("learned").unwrap(),
        lanes: vec![LaneRequest {
            want: 64,
            ..LaneRequest::default()
        }],
        holder: None,
    };
    let granted = workers.store.acquire(&ask).await.lanes[0].granted;
    assert!(granted <= 32, "{granted} at {rps} a second");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_whose_turn_comes_late_learns_so_at_once_and_when_it_comes() {
    const AT_ONCE: usize = 64;
    const PATIENCE: Duration = Duration::from_millis(500);
    let workers = workers(1, pool("line", 1, 10.0, |_| {})).await;
    let account_pool = &workers.pools[0];
    eventually("the whole capacity", SOON, || async {
        (account_pool.view().capacity_rps == Some(10.0)).then_some(())
    })
    .await;

    let takes = (0..AT_ONCE).map(|_| account_pool.take(next(), &[], PATIENCE));
    let (mut held, mut waits) = (0, Vec::new());
    for taken in futures_util::future::join_all(takes).await {
        match taken {
            Checkout::Held(_) => held += 1,
            Checkout::Wait { wait, .. } => waits.push(wait),
            Checkout::NoAccount => panic!("there is an account"),
        }
    }

    // One at once, and one every tenth of a second.
    assert!((1..=8).contains(&held), "{held} of {AT_ONCE} stayed");
    waits.sort();
    let at_once = waits.iter().filter(|wait| **wait > PATIENCE / 2).count();
    assert!(
        at_once >= AT_ONCE - 16,
        "{at_once} of {AT_ONCE} were sent away before their patience ended: {waits:?}"
    );
    assert!(
        waits.last().unwrap() > &Duration::from_secs(5),
        "all were told to come back at once: {waits:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_account_that_is_resumed_in_one_process_is_used_by_all() {
    let workers = workers(2, pool("resumed", 1, 1000.0, |_| {})).await;
    let [one, other] = [&workers.pools[0], &workers.pools[1]];
    let Checkout::Held(held) = one.take(next(), &[], SOON).await else {
        panic!("an account is free")
    };
    let day = Duration::from_secs(86_400);
    one.throttled(&held, Some(day), "answered 429").await;
    for account_pool in [one, other] {
        let patience = Duration::from_millis(50);
        let taken = account_pool.take(next(), &[], patience).await;
        assert!(matches!(taken, Checkout::Wait { .. }), "{taken:?}");
    }

    assert!(other.resume("account_1").await.unwrap());

    let again = eventually("the account", SOON, || async {
        match one.take(next(), &[], Duration::from_millis(50)).await {
            Checkout::Held(held) => Some(held),
            _ => None,
        }
    });
    one.succeeded(&again.await, None).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_all_accounts_gone_the_pool_stops_and_it_is_known_when_the_first_is_back() {
    let workers = workers(1, pool("gone", 2, 100.0, |_| {})).await;
    let account_pool = &workers.pools[0];
    for delay in [40, 20] {
        let Checkout::Held(held) = account_pool.take(next(), &[], SOON).await else {
            panic!("an account is free")
        };
        account_pool
            .throttled(&held, Some(Duration::from_secs(delay)), "answered 429")
            .await;
    }
    eventually("a capacity of nothing", SOON, || async {
        (workers.capacity().await == Some(0.0)).then_some(())
    })
    .await;
    let Checkout::Wait { wait, why } = account_pool
        .take(next(), &[], Duration::from_millis(100))
        .await
    else {
        panic!("none is free")
    };
    assert!(
        wait > Duration::from_secs(5) && wait < Duration::from_secs(24),
        "{wait:?}"
    );
    assert_eq!(why, "answered 429");
    let view = account_pool.view();
    assert_eq!(view.available, 0);
    assert!(
        view.available_at_ms
            .is_some_and(|back| back > view.at_ms && back <= view.at_ms + 23_000),
        "{view:?}"
    );

    // The report also covers jobs waiting in the throttle's lanes: nothing flows, and the reason.
    let ask = AcquireRequest {
        throttle: Name::new("gone").unwrap(),
        lanes: vec![LaneRequest::default()],
        holder: None,
    };
    let answer = workers.store.acquire(&ask).await;
    assert_eq!(answer.lanes[0].granted, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_the_cooldown_of_a_breaker_exactly_one_of_ten_workers_tries() {
    let mut workers = workers(10, pool("breaker", 1, 1000.0, |_| {})).await;
    // Rejections never open the breaker.
    for _ in 0..8 {
        let held = eventually("the account", SOON, || async {
            match workers.pools[0]
                .take(next(), &[], Duration::from_secs(1))
                .await
            {
                Checkout::Held(held) => Some(held),
                _ => None,
            }
        });
        workers.pools[0]
            .throttled(&held.await, Some(Duration::ZERO), "answered 429")
            .await;
    }
    workers.pools[0].resume("account_1").await.unwrap();
    assert!(
        workers.changes.try_recv().is_err(),
        "a 429 changed a breaker"
    );

    // Failures of several workers add up; the fifth opens the breaker.
    for nth in 0..5 {
        let held = eventually("the account", SOON, || async {
            match workers.pools[nth]
                .take(next(), &[], Duration::from_secs(1))
                .await
            {
                Checkout::Held(held) => Some(held),
                _ => None,
            }
        })
        .await;
        assert!(
            workers.changes.try_recv().is_err(),
            "open before the fifth failure"
        );
        workers.pools[nth].failed(&held, "answered 503", None).await;
    }
    let opened = Instant::now();
    assert_eq!(
        workers.changed().await,
        (BreakerState::Closed, BreakerState::Open)
    );

    for round in 0..2 {
        let begun = if round == 0 { opened } else { Instant::now() };
        let is_found = Arc::new(AtomicBool::new(false));
        let racing: Vec<_> = workers
            .pools
            .iter()
            .map(|account_pool| {
                let (account_pool, is_found) = (account_pool.clone(), is_found.clone());
                tokio::spawn(async move {
                    let (mut held, mut waits) = (Vec::new(), 0);
                    // After one found out, each asks for a while longer.
                    while waits < 10 && begun.elapsed() < SOON {
                        match account_pool
                            .take(next(), &[], Duration::from_millis(100))
                            .await
                        {
                            Checkout::Held(got) => {
                                held.push((got, begun.elapsed()));
                                is_found.store(true, Ordering::SeqCst);
                            }
                            Checkout::Wait { .. } => {
                                waits += usize::from(is_found.load(Ordering::SeqCst));
                                // Real time: the pace of the asks.
                                tokio::time::sleep(Duration::from_millis(10)).await
                            }
                            Checkout::NoAccount => unreachable!("nothing is left out"),
                        }
                    }
                    held
                })
            })
            .collect();
        let mut all = Vec::new();
        for (worker, task) in racing.into_iter().enumerate() {
            all.extend(
                task.await
                    .unwrap()
                    .into_iter()
                    .map(|(held, at)| (worker, held, at)),
            );
        }
        assert_eq!(all.len(), 1, "one message finds out");
        let (worker, held, at) = all.remove(0);
        if round == 0 {
            assert!(
                at >= Duration::from_millis(2900),
                "before the cooldown was over: {at:?}"
            );
        }
        assert_eq!(
            workers.changed().await,
            (BreakerState::Open, BreakerState::HalfOpen)
        );
        if round == 0 {
            workers.pools[worker]
                .failed(&held, "answered 503", None)
                .await;
            assert_eq!(
                workers.changed().await,
                (BreakerState::HalfOpen, BreakerState::Open)
            );
        } else {
            workers.pools[worker].succeeded(&held, None).await;
            assert_eq!(
                workers.changed().await,
                (BreakerState::HalfOpen, BreakerState::Closed)
            );
        }
    }
    for account_pool in &workers.pools {
        eventually("flowing", SOON, || async {
            match account_pool.take(next(), &[], Duration::from_secs(1)).await {
                Checkout::Held(held) => {
                    account_pool.succeeded(&held, None).await;
                    Some(())
                }
                _ => None,
            }
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_account_that_two_messages_find_refused_is_given_up_at_once_and_the_others_go_on() {
    let mut workers = workers(2, pool("refused", 2, 1000.0, |_| {})).await;
    let Checkout::Held(held) = workers.pools[0].take(next(), &[], SOON).await else {
        panic!("an account is free")
    };
    let Checkout::Held(again) = workers.pools[1].take(next(), &[1 - held.at], SOON).await else {
        panic!("it is free still")
    };
    assert!(
        !workers.pools[0].account_failed(&held, "answered 401").await,
        "one message proves nothing"
    );
    assert!(
        workers.pools[1]
            .account_failed(&again, "answered 401")
            .await,
        "two can"
    );
    assert_eq!(
        workers.changed().await,
        (BreakerState::Closed, BreakerState::Open)
    );
    for _ in 0..20 {
        let Checkout::Held(other) = workers.pools[1].take(next(), &[], SOON).await else {
            panic!("the other account is free")
        };
        assert_ne!(other.at, held.at);
        workers.pools[1].succeeded(&other, None).await;
    }
    eventually("the open breaker on the page", SOON, || async {
        (workers.flow(1, held.at + 1) == Flow::Open).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_failed_at_an_account_leaves_it_to_others_to_find_out_whether_it_is_back() {
    let mut workers = workers(2, pool("left", 1, 1000.0, |_| {})).await;
    let account_pool = workers.pools[0].clone();
    let known = [next(), next()];
    for message in known {
        let Checkout::Held(held) = account_pool.take(message, &[], SOON).await else {
            panic!("it is free still")
        };
        account_pool.account_failed(&held, "answered 401").await;
    }
    assert_eq!(
        workers.changed().await,
        (BreakerState::Closed, BreakerState::Open)
    );
    let begun = Instant::now();
    // The two known messages ask all the time, from the end of the cooldown on; then a new one
    // arrives.
    while begun.elapsed() < Duration::from_secs(4) {
        for message in known {
            let taken = account_pool
                .take(message, &[], Duration::from_millis(50))
                .await;
            assert!(
                matches!(taken, Checkout::Wait { .. }),
                "{taken:?} after {:?}",
                begun.elapsed()
            );
        }
        // Real time: the pace of the asks, over the three seconds of the cooldown.
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let other = workers.pools[1].clone();
    let held = eventually("another message's turn", SOON, || async {
        match other.take(next(), &[], Duration::from_secs(1)).await {
            Checkout::Held(held) => Some(held),
            _ => None,
        }
    });
    other.succeeded(&held.await, None).await;
    assert_eq!(
        workers.changed().await,
        (BreakerState::Open, BreakerState::HalfOpen)
    );
    assert_eq!(
        workers.changed().await,
        (BreakerState::HalfOpen, BreakerState::Closed)
    );
}

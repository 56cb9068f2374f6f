//! A burst of one key against a server with fixed windows, on virtual time: the rejections caused
//! by each mode of `on_429`.
//!
//! The reference is a key with ten requests per second and 10,000 jobs (1,000 windows).

use std::collections::BTreeMap;
use std::time::Duration;

use flyball::throttle::{AcquireRequest, Holder, KeyOutcomes, Quota, Scope, UpstreamRefusal};

use crate::throttle::{World, ask, name};

/// A server with a quota in fixed windows. Other clients use a part of it, evenly through each
/// window.
struct Server {
    quota: f64,
    window_us: i64,
    others: f64,
    window: i64,
    served: f64,
    rounds: Rounds,
}

/// The precision of the stated time until the window ends.
#[derive(Clone, Copy, Debug)]
enum Rounds {
    /// Exact.
    Exact,
    /// Whole seconds, rounded up, as in the newest drafts.
    Seconds,
    /// The unix second after the end, and a truncated `Date`: one to two seconds late.
    Epoch,
}

impl Server {
    fn new(quota: f64, others: f64) -> Self {
        Self {
            quota,
            window_us: 1_000_000,
            others,
            window: -1,
            served: 0.0,
            rounds: Rounds::Exact,
        }
    }

    /// Returns the quota left after this request, `None` if it is rejected, and the time until the
    /// window ends.
    fn answer(&mut self, now: i64) -> (Option<f64>, Duration) {
        let (window, into) = (
            now.div_euclid(self.window_us),
            now.rem_euclid(self.window_us),
        );
        if window != self.window {
            (self.window, self.served) = (window, 0.0);
        }
        let reset = Duration::from_micros((self.window_us - into) as u64);
        let reset = match self.rounds {
            Rounds::Exact => reset,
            Rounds::Seconds => Duration::from_secs(reset.as_micros().div_ceil(1_000_000) as u64),
            Rounds::Epoch => Duration::from_secs(
                ((now - into + self.window_us) / 1_000_000 + 1 - now / 1_000_000) as u64,
            ),
        };
        let used = self.served + (self.others * into as f64 / self.window_us as f64).floor();
        if used + 1.0 > self.quota {
            return (None, reset);
        }
        self.served += 1.0;
        (Some(self.quota - used - 1.0), reset)
    }
}

/// The result of a burst.
#[derive(Debug)]
struct Burst {
    refused: u64,
    took: Duration,
}

/// The parameters of a burst.
struct Way<'a> {
    knobs: &'a [(&'a str, &'a str)],
    jobs: u64,
    /// Concurrent jobs: all of them are sent before the first is answered.
    at_once: u32,
    /// The server reports the rest of the quota.
    tells: bool,
}

async fn burst(way: &Way<'_>, mut server: Server) -> Burst {
    let world = World::memory();
    world.knobs("mail", &[("rps", "-1")]);
    world.knobs("mail", way.knobs);
    let begun = world.now.load(std::sync::atomic::Ordering::SeqCst);
    let now = || world.now.load(std::sync::atomic::Ordering::SeqCst);
    let (mut left, mut refused) = (way.jobs, 0);
    // Jobs with a wait of their own, by the time at which they come back.
    let mut later: BTreeMap<i64, u64> = BTreeMap::new();
    let mut due = left;
    while left > 0 {
        let back: Vec<i64> = later.range(..=now()).map(|(at, _)| *at).collect();
        due += back.iter().filter_map(|at| later.remove(at)).sum::<u64>();
        let want = due.min(u64::from(way.at_once)) as u32;
        let holder = Some(Holder {
            id: "w".to_owned(),
            ttl: Duration::from_secs(30),
            held: 0,
        });
        let answer = world
            .store
            .acquire(&AcquireRequest {
                holder,
                ..ask("mail", &[("k", want, 1.0)])
            })
            .await;
        let grant = &answer.lanes[0];
        let (mut succeeded, mut quota) = (0, None);
        for _ in 0..grant.granted {
            match server.answer(now()) {
                (Some(remaining), reset) => {
                    succeeded += 1;
                    quota = way.tells.then_some(Quota { remaining, reset });
                }
                (None, reset) => {
                    refused += 1;
                    let answer = UpstreamRefusal {
                        key: "k",
                        scope: Scope::Key,
                        is_overload: false,
                        is_untrusted: true,
                        delay: Some(reset),
                        jitter: 0.5,
                        why: "429",
                    };
                    let paused = world.store.refused(&name("mail"), &answer).await.unwrap();
                    if let Some(alone) = paused.alone {
                        due -= 1;
                        *later.entry(now() + alone.as_micros() as i64).or_default() += 1;
                    }
                }
            }
        }
        left -= u64::from(succeeded);
        due -= u64::from(succeeded);
        if grant.watched || quota.is_some() {
            let ended = KeyOutcomes {
                key: "k",
                succeeded,
                tokens: f64::from(succeeded),
                quota,
                is_untrusted: true,
                ..KeyOutcomes::default()
            };
            world.store.ended(&name("mail"), &[ended]).await.unwrap();
        }
        // A worker comes back at the advised time, but at most every millisecond.
        let next = later.keys().next().map_or(i64::MAX, |at| at - now());
        let wait = match due {
            0 => next,
            _ if grant.granted < want => (grant.wait.as_micros() as i64).min(next),
            _ => 0,
        };
        if left == 0 {
            break;
        }
        world.pass(Duration::from_micros(if grant.granted > 0 && wait == 0 {
            0
        } else {
            wait.max(1000) as u64
        }));
    }
    Burst {
        refused,
        took: Duration::from_micros((now() - begun) as u64),
    }
}

fn way<'a>(mode: &'a [(&'a str, &'a str)], jobs: u64) -> Way<'a> {
    Way {
        knobs: mode,
        jobs,
        at_once: 1,
        tells: false,
    }
}

#[tokio::test]
async fn naive_and_passive_every_job_is_refused_once_a_window() {
    let mut all = way(&[("key_rps", "10"), ("on_429", "passive-naive")], 1000);
    all.at_once = 1000;

    let burst = burst(&all, Server::new(10.0, 0.0)).await;

    // Ten per window, a hundred windows: 990 rejected in the first, 980 in the next, and so on.
    assert_eq!(burst.refused, 10 * (99 * 100 / 2), "{burst:?}");
}

#[tokio::test]
async fn informed_and_passive_one_job_is_refused_a_window() {
    let knobs = [("on_429", "passive-informed")];

    let jobs = 10_000;
    let alone = burst(&way(&knobs, jobs), Server::new(10.0, 0.0)).await;
    let beside = burst(&way(&knobs, jobs), Server::new(10.0, 5.0)).await;

    // Each window but the last ends with one rejection. Alone, a window takes ten jobs. Beside
    // other clients, which use five by its end, it takes ten if the pause ended at its start, and
    // at least five however late the pause ended.
    assert_eq!(alone.refused, jobs / 10 - 1, "{alone:?}");
    let (least, most) = (jobs / 10 - 1, jobs / 5 - 1);
    assert!((least..=most).contains(&beside.refused), "{beside:?}");
}

#[tokio::test]
async fn active_no_job_is_refused_while_nobody_else_uses_the_quota() {
    for mode in ["active-naive", "active-informed"] {
        let knobs = [("key_rps", "10"), ("key_burst", "0"), ("on_429", mode)];
        let alone = burst(&way(&knobs, 10_000), Server::new(10.0, 0.0)).await;

        assert_eq!(alone.refused, 0, "{mode}: {alone:?}");
        assert!(alone.took < Duration::from_secs(1010), "{mode}: {alone:?}");
    }
}

#[tokio::test]
async fn active_and_naive_others_cost_thousands_of_refusals() {
    let knobs = [
        ("key_rps", "10"),
        ("key_burst", "0"),
        ("on_429", "active-naive"),
    ];

    let beside = burst(&way(&knobs, 10_000), Server::new(10.0, 5.0)).await;

    assert!(beside.refused > 2_000, "{beside:?}");
}

#[tokio::test]
async fn active_and_informed_others_cost_tens_of_refusals() {
    let knobs = [("key_rps", "10"), ("key_burst", "0")];

    let beside = burst(&way(&knobs, 10_000), Server::new(10.0, 5.0)).await;

    println!("{beside:?}");
    assert!(beside.refused <= 100, "{beside:?}");
    assert!(
        beside.took < Duration::from_secs(2500),
        "at least 80 % of what is left is used: {beside:?}"
    );
}

#[tokio::test]
async fn a_key_without_a_rate_of_its_own_finds_one() {
    let beside = burst(&way(&[], 10_000), Server::new(10.0, 5.0)).await;

    println!("{beside:?}");
    assert!(beside.refused <= 100, "{beside:?}");
    assert!(beside.took < Duration::from_secs(2500), "{beside:?}");
}

#[tokio::test]
async fn at_a_thousand_a_second_with_sixteen_under_way_others_cost_tens_too() {
    let knobs = [("key_rps", "1000"), ("key_burst", "0")];
    let mut sixteen = way(&knobs, 10_000);
    sixteen.at_once = 16;

    let beside = burst(&sixteen, Server::new(1000.0, 500.0)).await;

    assert!(beside.refused <= 100, "{beside:?}");
    assert!(beside.took < Duration::from_secs(26), "{beside:?}");
}

#[tokio::test]
async fn a_server_that_reports_what_is_left_refuses_next_to_nothing() {
    let mut message = way(&[], 10_000);
    message.tells = true;

    let beside = burst(&message, Server::new(10.0, 5.0)).await;

    assert!(beside.refused <= 20, "{beside:?}");
    assert!(beside.took < Duration::from_secs(2500), "{beside:?}");
}

#[tokio::test]
async fn a_quota_of_a_second_that_is_reported_in_whole_seconds_is_used() {
    let known: &[(&str, &str)] = &[("key_rps", "9.8"), ("key_burst", "0")];
    for knobs in [&[], known] {
        for rounds in [Rounds::Seconds, Rounds::Epoch] {
            for (quota, window_s) in [(10.0, 1), (50.0, 1), (30.0, 3), (100.0, 10)] {
                if !knobs.is_empty() && quota / f64::from(window_s) != 10.0 {
                    continue;
                }
                let jobs = 600;
                let message = Way {
                    knobs,
                    jobs,
                    at_once: 1,
                    tells: true,
                };
                let server = Server {
                    window_us: i64::from(window_s) * 1_000_000,
                    rounds,
                    ..Server::new(quota, 0.0)
                };

                let alone = burst(&message, server).await;

                let ideal_s = jobs as f64 * f64::from(window_s) / quota;
                let used = ideal_s / alone.took.as_secs_f64();
                assert!(
                    used >= 0.85,
                    "{used} of {quota} in {window_s} s, stated as {rounds:?}, {knobs:?}: {alone:?}"
                );
                assert!(
                    alone.refused <= 6,
                    "{quota} in {window_s} s, stated as {rounds:?}, {knobs:?}: {alone:?}"
                );
            }
        }
    }
}

#[tokio::test]
async fn a_quota_that_others_use_as_well_is_found_below_the_rate_that_is_known() {
    for rounds in [Rounds::Exact, Rounds::Seconds, Rounds::Epoch] {
        let message = Way {
            knobs: &[("key_rps", "9.8"), ("key_burst", "0")],
            jobs: 600,
            at_once: 1,
            tells: true,
        };
        let beside = burst(
            &message,
            Server {
                rounds,
                ..Server::new(10.0, 5.0)
            },
        )
        .await;

        assert!(beside.refused <= 40, "{rounds:?}: {beside:?}");
        assert!(
            beside.took < Duration::from_secs(160),
            "at least 75 % of what is left is used, stated as {rounds:?}: {beside:?}"
        );
    }
}

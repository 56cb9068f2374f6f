//! A pool of accounts whose quotas are halved, on virtual time: the share that is used once the
//! pool sends just below the new quota.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::Ordering;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use flyball::throttle::{AcquireRequest, Holder, KeyOutcomes, Scope, UpstreamRefusal};

use crate::throttle::limiters::{LimiterKind, Says, Server};
use crate::throttle::{World, ask, name};

const ACCOUNTS: usize = 6;
/// The quota of each account per second, before and after.
const QUOTA: f64 = 40.0;
const HALVED: f64 = QUOTA / 2.0;
/// The share of the quota that the pool sends.
const SENT: f64 = 0.98;
const SECOND: i64 = 1_000_000;
const ROUND_TRIP_US: i64 = 20_000;
/// The shortest time for which an account without a token is not asked.
const REST_US: i64 = 5_000;

/// The second at which the quota is halved.
const HALVED_AT: i64 = 10;
/// The second from which the pool sends less.
const LESS_FROM: i64 = 45;
/// The seconds that are watched.
const WATCHED: std::ops::Range<i64> = 55..175;

struct Message {
    at: usize,
    is_served: bool,
    tried: Vec<usize>,
}

/// The share of the new quota that is used, and the refusals in that time, for messages that wake
/// `late_us` late.
async fn run(seed: u64) -> (f64, u64) {
    let world = World::memory();
    world.knobs("mail", &[("rps", "-1"), ("key_rps", &QUOTA.to_string())]);
    let now = || world.now.load(Ordering::SeqCst);
    let began = now() + (seed as i64 * 137_731) % SECOND;
    world.pass(Duration::from_micros((began - now()) as u64));
    let window = |quota| LimiterKind::Fixed {
        quota,
        window_us: SECOND,
    };
    let mut servers: Vec<Server> = (0..ACCOUNTS)
        .map(|_| Server::new(window(QUOTA), Says::Nothing, 0.0, began))
        .collect();
    let mut random = StdRng::seed_from_u64(seed);
    let mut waiting: VecDeque<Vec<usize>> = VecDeque::new();
    let mut under_way: BTreeMap<i64, Vec<Message>> = BTreeMap::new();
    let (mut rest, mut cursor) = ([0_i64; ACCOUNTS], 0);
    let (mut next_message, mut halved) = (began, false);
    let (mut used, mut refused) = (0.0, 0);
    while now() < began + WATCHED.end * SECOND {
        let t = now();
        let age = (t - began) / SECOND;
        if age >= HALVED_AT && !halved {
            halved = true;
            servers
                .iter_mut()
                .for_each(|server| server.counts = window(HALVED));
        }
        let per_second = SENT * ACCOUNTS as f64 * if age >= LESS_FROM { HALVED } else { QUOTA };
        while next_message <= t {
            if waiting.len() < 64 {
                waiting.push_back(Vec::new());
            }
            next_message += (1e6 / per_second) as i64;
        }
        let due: Vec<i64> = under_way.range(..=t).map(|(at, _)| *at).collect();
        for message in due
            .into_iter()
            .flat_map(|at| under_way.remove(&at).unwrap())
        {
            let key = format!("a{}", message.at);
            if message.is_served {
                let ended = KeyOutcomes {
                    key: &key,
                    is_untrusted: true,
                    succeeded: 1,
                    tokens: 1.0,
                    ..KeyOutcomes::default()
                };
                world.store.ended(&name("mail"), &[ended]).await.unwrap();
                used += f64::from(u8::from(WATCHED.contains(&age)));
                continue;
            }
            refused += u64::from(WATCHED.contains(&age));
            let refusal = UpstreamRefusal {
                key: &key,
                scope: Scope::Key,
                is_overload: false,
                is_untrusted: true,
                delay: None,
                jitter: random.random::<f64>(),
                why: "429",
            };
            world.store.refused(&name("mail"), &refusal).await.unwrap();
            waiting.push_front([message.tried, vec![message.at]].concat());
        }
        let mut again = VecDeque::new();
        while let Some(tried) = waiting.pop_front() {
            let free = (0..ACCOUNTS)
                .map(|step| (cursor + step) % ACCOUNTS)
                .find(|at| rest[*at] <= t && (tried.len() >= ACCOUNTS || !tried.contains(at)));
            let Some(at) = free else {
                again.push_back(tried);
                continue;
            };
            cursor = (at + 1) % ACCOUNTS;
            let holder = Some(Holder {
                id: "w".to_owned(),
                ttl: Duration::from_secs(30),
                held: 0,
            });
            let key = format!("a{at}");
            let ask = AcquireRequest {
                holder,
                ..ask("mail", &[(&key, 1, 1.0)])
            };
            let grant = world.store.acquire(&ask).await.lanes.remove(0);
            if grant.granted == 0 {
                rest[at] = t + (grant.wait.as_micros() as i64).max(REST_US);
                waiting.push_front(tried);
                continue;
            }
            let sent = Message {
                at,
                is_served: servers[at].answer(t).is_served,
                tried,
            };
            let back =
                t + ROUND_TRIP_US / 2 + (random.random::<f64>() * ROUND_TRIP_US as f64) as i64;
            under_way.entry(back).or_default().push(sent);
        }
        waiting = again;
        world.pass(Duration::from_millis(2));
    }
    let watched_s = (WATCHED.end - WATCHED.start) as f64;
    (used / (watched_s * HALVED * ACCOUNTS as f64), refused)
}

#[tokio::test]
async fn accounts_that_are_sent_just_below_their_quota_use_it() {
    let mut shares = Vec::new();
    for seed in 0..8 {
        let (share, refused) = run(seed).await;
        println!("seed {seed}: {share:.3} of the new quota used, {refused} refused");
        shares.push(share);
    }
    let mean = shares.iter().sum::<f64>() / shares.len() as f64;
    println!("mean {mean:.4}");
    assert!(shares.iter().all(|share| *share >= 0.95), "{shares:?}");
}

//! The usual limiters of other servers, on virtual time: the share of each quota that a key with
//! endless work uses after a minute, and the refusals that it costs.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::Ordering;
use std::time::Duration;

use flyball::throttle::{AcquireRequest, Holder, KeyOutcomes, Quota, Scope, UpstreamRefusal};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use crate::throttle::{World, ask, name};

/// The time from a request to its answer.
const ROUND_TRIP_US: i64 = 20_000;
/// The share of each quota that must be used after a minute, and the most refusals of three.
const LEAST_USED: f64 = 0.9;
const MOST_REFUSED: u64 = 60;
/// Most requests under way.
const SLOTS: u32 = 16;
const SECOND: i64 = 1_000_000;

/// The way in which a server counts.
#[derive(Clone, Debug)]
pub(super) enum LimiterKind {
    /// So many requests in each window, which begins at a multiple of its length.
    Fixed { quota: f64, window_us: i64 },
    /// So many requests in any span of this length.
    Sliding { quota: f64, window_us: i64 },
    /// A bucket that leaks so many requests per second and holds so many.
    Leaky { per_second: f64, holds: f64 },
}

/// The report of a server beside its answer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Says {
    Nothing,
    /// With a refusal, the time until a request fits, in whole seconds.
    RetryAfter,
    /// With every answer, the rest and the end of the window in whole seconds, rounded up.
    Quota,
    /// The same, with the unix second after the end.
    QuotaToEpoch,
}

pub(super) struct Server {
    pub(super) counts: LimiterKind,
    says: Says,
    /// The share of the quota that others use, evenly.
    others: f64,
    served: VecDeque<i64>,
    level: f64,
    at: i64,
}

pub(super) struct Answer {
    pub(super) is_served: bool,
    retry_after: Option<Duration>,
    quota: Option<Quota>,
}

impl Server {
    pub(super) fn new(counts: LimiterKind, says: Says, others: f64, began: i64) -> Self {
        Self {
            counts,
            says,
            others,
            served: VecDeque::new(),
            level: 0.0,
            at: began,
        }
    }

    /// Returns the requests per second that are to be had.
    fn capacity(&self) -> f64 {
        let all = match self.counts {
            LimiterKind::Fixed { quota, window_us } | LimiterKind::Sliding { quota, window_us } => {
                quota * 1e6 / window_us as f64
            }
            LimiterKind::Leaky { per_second, .. } => per_second,
        };
        all * (1.0 - self.others)
    }

    pub(super) fn answer(&mut self, now: i64) -> Answer {
        let (is_served, left, end) = match self.counts {
            LimiterKind::Fixed { quota, window_us } => {
                let begin = now.div_euclid(window_us) * window_us;
                self.served.retain(|at| *at >= begin);
                let into = (now - begin) as f64 / window_us as f64;
                let used = self.served.len() as f64 + (self.others * quota * into).floor();
                let is_served = used + 1.0 <= quota;
                (is_served, (quota - used - 1.0).max(0.0), begin + window_us)
            }
            LimiterKind::Sliding { quota, window_us } => {
                self.served.retain(|at| *at > now - window_us);
                let used = self.served.len() as f64 + (self.others * quota).floor();
                let end = self.served.front().map_or(now, |first| first + window_us);
                (used + 1.0 <= quota, (quota - used - 1.0).max(0.0), end)
            }
            LimiterKind::Leaky { per_second, holds } => {
                let leaks = per_second * (1.0 - self.others);
                self.level = (self.level - leaks * (now - self.at) as f64 / 1e6).max(0.0);
                self.at = now;
                let is_served = self.level + 1.0 <= holds.max(1.0) + 1e-9;
                if is_served {
                    self.level += 1.0;
                }
                let wait = ((self.level + 1.0 - holds.max(1.0)).max(0.0) / leaks * 1e6) as i64;
                (is_served, 0.0, now + wait)
            }
        };
        if is_served {
            self.served.push_back(now);
        }
        let whole = Duration::from_secs(((end - now).max(0) as u64).div_ceil(1_000_000).max(1));
        let reset = match self.says {
            Says::QuotaToEpoch => Duration::from_secs((end / SECOND + 1 - now / SECOND) as u64),
            _ => whole,
        };
        let tells = matches!(self.says, Says::Quota | Says::QuotaToEpoch);
        Answer {
            is_served,
            retry_after: (!is_served && self.says != Says::Nothing).then_some(reset),
            quota: tells.then_some(Quota {
                remaining: left,
                reset,
            }),
        }
    }
}

/// The result of three minutes of endless work.
#[derive(Debug)]
struct Use {
    /// The share of what was to be had, from the second minute on.
    share: f64,
    refused: u64,
    refused_later: u64,
}

/// The time from a grant to the begin of its job.
#[derive(Clone, Copy, PartialEq)]
enum Late {
    Never,
    /// Two milliseconds and an exponential rest of this mean, as on a busy machine.
    ByChance {
        mean_us: f64,
    },
}

impl Late {
    fn us(self, random: &mut StdRng) -> i64 {
        match self {
            Self::Never => 0,
            Self::ByChance { mean_us } => {
                let part: f64 = random.random();
                2000 + (-mean_us * (1.0 - part).ln()) as i64
            }
        }
    }
}

async fn run(counts: &LimiterKind, says: Says, others: f64, late: Late) -> Use {
    let mut random = StdRng::seed_from_u64(15);
    let world = World::memory();
    world.knobs("mail", &[("rps", "-1")]);
    let now = || world.now.load(Ordering::SeqCst);
    let began = now();
    let mut server = Server::new(counts.clone(), says, others, began);
    // Jobs by the time at which they begin, and answers by the time at which they come.
    let mut granted: BTreeMap<i64, u32> = BTreeMap::new();
    let mut under_way: BTreeMap<i64, Vec<Answer>> = BTreeMap::new();
    let (mut served_later, mut refused, mut refused_later) = (0.0, 0, 0);
    let mut ask_at = began;
    while now() < began + 180 * SECOND {
        let is_later = now() >= began + 60 * SECOND;
        let due: Vec<i64> = under_way.range(..=now()).map(|(at, _)| *at).collect();
        for at in due {
            let answers = under_way.remove(&at).unwrap();
            let mut ended = KeyOutcomes {
                key: "k",
                is_untrusted: true,
                begun_ago: Some(Duration::from_micros((now() - at + ROUND_TRIP_US) as u64)),
                ..KeyOutcomes::default()
            };
            for answer in answers {
                if answer.is_served {
                    ended.succeeded += 1;
                    ended.tokens += 1.0;
                    ended.quota = answer.quota;
                    served_later += f64::from(u8::from(is_later));
                    continue;
                }
                refused += 1;
                refused_later += u64::from(is_later);
                let refusal = UpstreamRefusal {
                    key: "k",
                    scope: Scope::Key,
                    is_overload: false,
                    is_untrusted: true,
                    delay: answer.retry_after,
                    jitter: 0.5,
                    why: "429",
                };
                world.store.refused(&name("mail"), &refusal).await.unwrap();
            }
            if ended.succeeded > 0 {
                world.store.ended(&name("mail"), &[ended]).await.unwrap();
            }
            ask_at = ask_at.min(now());
        }
        let answering: usize = under_way.values().map(Vec::len).sum();
        let busy = answering as u32 + granted.values().sum::<u32>();
        let free = SLOTS - busy;
        if free > 0 && ask_at <= now() {
            let holder = Some(Holder {
                id: "w".to_owned(),
                ttl: Duration::from_secs(30),
                held: busy,
            });
            let answer = world
                .store
                .acquire(&AcquireRequest {
                    holder,
                    ..ask("mail", &[("k", free, 1.0)])
                })
                .await;
            let grant = &answer.lanes[0];
            if grant.granted > 0 {
                *granted.entry(now() + late.us(&mut random)).or_default() += grant.granted;
            }
            ask_at = now() + (grant.wait.as_micros() as i64).clamp(1000, SECOND);
        }
        while let Some(begins) = granted.first_entry().filter(|first| *first.key() <= now()) {
            let answers = (0..begins.remove()).map(|_| server.answer(now()));
            under_way
                .entry(now() + ROUND_TRIP_US)
                .or_default()
                .extend(answers);
        }
        let events = [
            granted.keys().next(),
            under_way.keys().next(),
            Some(&ask_at),
        ];
        let next = events.into_iter().flatten().min().copied();
        world.pass(Duration::from_micros(
            next.map_or(0, |next| next - now()).max(1000) as u64,
        ));
    }
    Use {
        share: served_later / (server.capacity() * 120.0),
        refused,
        refused_later,
    }
}

#[tokio::test]
async fn of_the_usual_limiters_nine_tenths_are_used_after_a_minute() {
    let fixed = |quota, window_s| LimiterKind::Fixed {
        quota,
        window_us: window_s * SECOND,
    };
    let sliding = |quota, window_s| LimiterKind::Sliding {
        quota,
        window_us: window_s * SECOND,
    };
    let leaky = |per_second, holds| LimiterKind::Leaky { per_second, holds };
    use Says::{Nothing, Quota as Told, QuotaToEpoch, RetryAfter};
    let mut cases: Vec<(LimiterKind, Says, f64)> = Vec::new();
    for says in [Told, QuotaToEpoch, RetryAfter, Nothing] {
        for others in [0.0, 0.5] {
            for (quota, window_s) in [(10.0, 1), (50.0, 1), (30.0, 3), (100.0, 10), (300.0, 60)] {
                cases.push((fixed(quota, window_s), says, others));
            }
        }
    }
    for says in [Nothing, RetryAfter] {
        for others in [0.0, 0.5] {
            for (quota, window_s) in [(10.0, 1), (50.0, 1), (100.0, 10), (300.0, 60)] {
                cases.push((sliding(quota, window_s), says, others));
            }
            for (per_second, holds) in [(10.0, 5.0), (10.0, 1.0), (50.0, 20.0), (50.0, 1.0)] {
                cases.push((leaky(per_second, holds), says, others));
            }
        }
    }
    let mut missed = Vec::new();
    for (counts, says, others) in cases {
        let used = run(&counts, says, others, Late::Never).await;
        let line = format!(
            "{counts:?} says {says:?}, others use {others}: {:.0} % used, {} refused, {} after a minute",
            100.0 * used.share,
            used.refused,
            used.refused_later
        );
        println!("{line}");
        if used.share < LEAST_USED || used.refused > MOST_REFUSED {
            missed.push(line);
        }
    }
    assert!(missed.is_empty(), "{missed:#?}");
}

/// A bucket without a burst refuses each request that comes a millisecond early, and so each one
/// after a job that began late, unless it is spaced from that begin.
#[tokio::test]
async fn a_bucket_without_a_burst_is_used_although_workers_are_late() {
    for mean_ms in [1.0, 3.0, 6.0] {
        for per_second in [5.0, 10.0] {
            let counts = LimiterKind::Leaky {
                per_second,
                holds: 1.0,
            };
            let late = Late::ByChance {
                mean_us: mean_ms * 1000.0,
            };
            let used = run(&counts, Says::Nothing, 0.0, late).await;
            println!(
                "{per_second}/s, late by 2 ms and {mean_ms} ms in the mean: {:.1} % used, {} refused, {} after a minute",
                100.0 * used.share,
                used.refused,
                used.refused_later
            );
            assert!(used.share >= LEAST_USED, "{mean_ms} ms: {used:?}");
            assert!(used.refused <= MOST_REFUSED, "{mean_ms} ms: {used:?}");
        }
    }
}

//! The answers of `acquire` while Redis cannot be asked, by each throttle's own `on_store_loss` and
//! its last known state.

use std::collections::BTreeMap;
use std::time::Duration;

use super::RateLimit;
use super::bucket::{Bucket, Rate, UsageCounters};
use super::chain::{LaneAnswer, LaneDemand, LearnedParts, Level, LimitedBy, sane_cost};
use super::holds::room;
use super::knobs::MAX_COST;
use super::serve::{self, ServeContext};
use super::{AcquireRequest, AcquireResponse, Grant, LaneRequest, Limit, Name, OnStoreLoss};

/// The wait reported by a lost store, in microseconds.
pub const LOST_WAIT_US: u64 = 250_000;

/// The number of throttles that are remembered, some 15 MB; others count as unknown, that is: closed.
const MAX_REMEMBERED: usize = 100_000;

/// The number of throttles that are forgotten at once for further ones, because a search for those
/// seen least recently looks at all.
const FORGOTTEN_AT_ONCE: usize = MAX_REMEMBERED / 10;

/// The last known state of a throttle.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LastKnown {
    /// The throttle's policy for a lost store.
    pub on_store_loss: OnStoreLoss,
    /// The slowest rate of its chain.
    pub slowest_rps: RateLimit,
    /// The length of its window, in seconds.
    pub window_s: f64,
    /// The rate of each key.
    pub key_rate: Rate,
    /// The lowest concurrency limit of its chain.
    pub concurrency: Option<u32>,
    /// The concurrency limit of each key.
    pub key_concurrency: Option<u32>,
    /// The factor by which the cost of a unit counts.
    pub cost_factor: f64,
}

/// The memory of throttles, filled while the store answers and used in its place when it does not.
#[derive(Debug, Default)]
pub struct LossFallback {
    throttles: BTreeMap<Name, RememberedThrottle>,
    /// The number of answers so far.
    answers: u64,
}

#[derive(Debug)]
struct RememberedThrottle {
    seen: LastKnown,
    /// The number of the answer that was seen.
    seen_at: u64,
    stand: Option<Box<StandaloneThrottle>>,
}

/// The local buckets of a throttle since the store was lost.
#[derive(Clone, Debug)]
struct StandaloneThrottle {
    since_us: i64,
    bucket: Bucket,
    meter: UsageCounters,
    keys: BTreeMap<String, Bucket>,
}

impl LossFallback {
    /// Records the store's last answer, which ends local buckets. The throttles seen least recently
    /// make room for further ones.
    pub fn saw(&mut self, throttle: &Name, seen: LastKnown) {
        self.answers += 1;
        let now = RememberedThrottle {
            seen,
            seen_at: self.answers,
            stand: None,
        };
        if let Some(known) = self.throttles.get_mut(throttle) {
            *known = now;
            return;
        }
        if self.throttles.len() >= MAX_REMEMBERED {
            let mut seen_at: Vec<u64> = self.throttles.values().map(|one| one.seen_at).collect();
            let (_, last, _) = seen_at.select_nth_unstable(FORGOTTEN_AT_ONCE - 1);
            let last = *last;
            self.throttles.retain(|_, one| one.seen_at > last);
        }
        self.throttles.insert(throttle.clone(), now);
    }

    /// Forgets a throttle that was deleted.
    pub fn forget(&mut self, throttle: &Name) {
        self.throttles.remove(throttle);
    }

    /// Returns the answer that [`Self::answer`] would give, and takes nothing.
    pub fn peek(&mut self, ask: &AcquireRequest, now_us: i64, workers: u32) -> AcquireResponse {
        let known = self.throttles.get(&ask.throttle);
        let before = known.and_then(|known| known.stand.clone());
        let answer = self.answer(ask, now_us, workers);
        if let Some(known) = self.throttles.get_mut(&ask.throttle) {
            known.stand = before;
        }
        answer
    }

    /// Answers for the lost store. `now_us` is any clock that only goes forward; `workers` share
    /// the local rate.
    pub fn answer(&mut self, ask: &AcquireRequest, now_us: i64, workers: u32) -> AcquireResponse {
        let Some(RememberedThrottle { seen, stand, .. }) = self.throttles.get_mut(&ask.throttle)
        else {
            return closed(ask);
        };
        match seen.on_store_loss {
            OnStoreLoss::Closed => closed(ask),
            // A throttle that a person stopped stays stopped while the store is lost.
            OnStoreLoss::Open if seen.slowest_rps.is_stopped() => closed(ask),
            // So does one without slots, which may be the stop by a governor's breaker.
            OnStoreLoss::Open if ask.holder.is_some() && seen.concurrency == Some(0) => closed(ask),
            OnStoreLoss::Open => open(ask, seen),
            OnStoreLoss::Local => {
                let stand = stand.get_or_insert_with(|| {
                    Box::new(StandaloneThrottle {
                        since_us: now_us,
                        bucket: Bucket::default(),
                        meter: UsageCounters::default(),
                        keys: BTreeMap::new(),
                    })
                });
                local(ask, seen, stand, now_us, workers)
            }
        }
    }
}

fn closed(ask: &AcquireRequest) -> AcquireResponse {
    AcquireResponse {
        lanes: ask
            .lanes
            .iter()
            .map(|lane| refused(lane, LOST_WAIT_US))
            .collect(),
        ..AcquireResponse::default()
    }
}

fn open(ask: &AcquireRequest, seen: &LastKnown) -> AcquireResponse {
    let has_no_slots = ask.holder.is_some() && seen.key_concurrency == Some(0);
    let are_keys_stopped = seen.key_rate.rps.is_stopped() || has_no_slots;
    let grant = |lane: &LaneRequest| {
        // Keys that a person stopped stay stopped as well.
        if are_keys_stopped && !lane.key.is_empty() {
            return refused(lane, LOST_WAIT_US);
        }
        Grant {
            granted: lane.want,
            wait: Duration::ZERO,
            ..Grant::default()
        }
    };
    AcquireResponse {
        lanes: ask.lanes.iter().map(grant).collect(),
        effective_rps: RateLimit::Unlimited,
        ..AcquireResponse::default()
    }
}

fn refused(lane: &LaneRequest, wait_us: u64) -> Grant {
    let (wait, limit) = if lane.want > 0 {
        (wait_us, Some(Limit::StoreLost))
    } else {
        (0, None)
    };
    Grant {
        granted: 0,
        wait: Duration::from_micros(wait),
        limit,
        ..Grant::default()
    }
}

/// Answers at the last rate over the live workers, halved with every window that passes: `rps /
/// workers / 2^windows`.
fn local(
    ask: &AcquireRequest,
    seen: &LastKnown,
    stand: &mut StandaloneThrottle,
    now_us: i64,
    workers: u32,
) -> AcquireResponse {
    let windows = ((now_us - stand.since_us) as f64 / 1e6 / seen.window_s).floor();
    let share = 0.5_f64.powf(windows) / f64::from(workers.max(1));
    // An unlimited throttle has no rate to share and stays unlimited; a share below 1e-6 is
    // nothing.
    let shared = |limit: RateLimit| match limit.scaled(share) {
        RateLimit::PerSecond(rps) if rps < 1e-6 => RateLimit::Stopped,
        part => part,
    };
    let rps = shared(seen.slowest_rps);
    let rate = Rate { rps, depth_us: 0.0 };
    let key_rate = Rate {
        rps: shared(seen.key_rate.rps),
        depth_us: 0.0,
    };
    // The jobs of other workers are unknown, so each takes an equal share, rounded down, which
    // keeps within the limit.
    let share_of = |limit: u32| i64::from(limit / workers.max(1));
    let holder = ask.holder.as_ref();
    let lane_room = |lane: &LaneRequest| {
        let limit = (seen.key_concurrency).filter(|_| holder.is_some() && !lane.key.is_empty())?;
        Some(room(share_of(limit), i64::from(lane.held)) as f64)
    };
    let demand = |lane| {
        let LaneRequest {
            key, want, cost, ..
        }: &LaneRequest = lane;
        LaneDemand {
            key,
            want: f64::from(*want),
            cost: (sane_cost(*cost) * seen.cost_factor).min(MAX_COST),
            paused_until_ms: None,
            room: lane_room(lane),
        }
    };
    let demands: Vec<LaneDemand<'_>> = ask.lanes.iter().map(demand).collect();
    let room = (holder.zip(seen.concurrency))
        .map(|(holder, limit)| room(share_of(limit), i64::from(holder.held)) as f64);
    let stopped_because = String::new();
    let mut levels = [Level {
        rate,
        bucket: stand.bucket,
        windows: Vec::new(),
        grants: Vec::new(),
        meter: stand.meter,
        room,
        borrows: false,
        refusal: None,
        is_full: false,
        stopped_because,
    }];
    let source = ServeContext {
        levels: &mut levels,
        most: MAX_COST,
        key_rate,
        keys: &mut stand.keys,
        key_windows: &[],
        key_grants: &mut BTreeMap::new(),
        learned: &mut BTreeMap::new(),
        learned_parts: LearnedParts {
            rates: false,
            probes: false,
        },
    };
    let (served, _) = serve::serve(now_us as f64, source, &demands);
    (stand.bucket, stand.meter) = (levels[0].bucket, levels[0].meter);
    let grant = |one: LaneAnswer| Grant {
        granted: one.granted as u32,
        // The store may be back long before the halved rate would grant the next unit.
        wait: Duration::from_micros((one.wait_us as u64).min(LOST_WAIT_US)),
        limit: one.limit.map(|place| match place {
            LimitedBy::Key => Limit::Key,
            LimitedBy::KeyCrowded => Limit::Concurrency {
                name: ask.throttle.clone(),
                key: true,
            },
            LimitedBy::Crowded(_) => Limit::Concurrency {
                name: ask.throttle.clone(),
                key: false,
            },
            _ => Limit::StoreLost,
        }),
        ..Grant::default()
    };
    let limits_concurrency = seen.concurrency.or(seen.key_concurrency).is_some();
    AcquireResponse {
        lanes: served.into_iter().map(grant).collect(),
        effective_rps: rps,
        limits_concurrency,
        ..AcquireResponse::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::throttle::Holder;

    fn ask(want: u32) -> AcquireRequest {
        let lanes = vec![LaneRequest {
            want,
            ..LaneRequest::default()
        }];
        AcquireRequest {
            throttle: Name::new("mail").unwrap(),
            lanes,
            holder: None,
        }
    }

    fn memo(on_store_loss: OnStoreLoss, rps: f64) -> LossFallback {
        let mut memo = LossFallback::default();
        let seen = LastKnown {
            on_store_loss,
            slowest_rps: RateLimit::new(rps),
            window_s: 1.0,
            key_rate: Rate::UNLIMITED,
            concurrency: None,
            key_concurrency: None,
            cost_factor: 1.0,
        };
        memo.saw(&Name::new("mail").unwrap(), seen);
        memo
    }

    fn granted_in(memo: &mut LossFallback, from_ms: i64, to_ms: i64, workers: u32) -> u32 {
        (from_ms..to_ms)
            .map(|ms| memo.answer(&ask(1000), ms * 1000, workers).lanes[0].granted)
            .sum()
    }

    #[test]
    fn a_throttle_that_was_never_seen_grants_nothing() {
        let answer = LossFallback::default().answer(&ask(5), 0, 1);

        assert_eq!(
            (answer.lanes[0].granted, &answer.lanes[0].limit),
            (0, &Some(Limit::StoreLost))
        );
        assert!(!answer.lanes[0].wait.is_zero());
    }

    #[test]
    fn closed_grants_nothing_and_open_grants_all() {
        assert_eq!(
            granted_in(&mut memo(OnStoreLoss::Closed, 100.0), 0, 10, 1),
            0
        );
        assert_eq!(
            memo(OnStoreLoss::Open, 100.0).answer(&ask(7), 0, 1).lanes[0].granted,
            7
        );
    }

    #[test]
    fn the_throttles_seen_least_recently_make_room_and_a_deleted_one_is_forgotten() {
        let mut memo = memo(OnStoreLoss::Open, 100.0);
        let mail = Name::new("mail").unwrap();
        let seen = memo.throttles[&mail].seen;
        let one = |n: usize| Name::new(format!("t{n}")).unwrap();
        for n in 0..MAX_REMEMBERED {
            memo.saw(&one(n), seen);
            // One that is used all the time is none of the oldest.
            if n % 1000 == 0 {
                memo.saw(&mail, seen);
            }
        }
        let mut granted = |throttle: Name| {
            let ask = AcquireRequest { throttle, ..ask(7) };
            memo.answer(&ask, 0, 1).lanes[0].granted
        };

        assert_eq!(granted(mail.clone()), 7);
        assert_eq!(granted(one(MAX_REMEMBERED - 1)), 7);
        assert_eq!(granted(one(0)), 0);
        memo.forget(&mail);
        assert_eq!(memo.answer(&ask(7), 0, 1).lanes[0].granted, 0);
    }

    #[test]
    fn local_shares_the_last_rate_and_halves_it_each_window() {
        let mut memo = memo(OnStoreLoss::Local, 400.0);

        let first = granted_in(&mut memo, 0, 1000, 4);
        let second = granted_in(&mut memo, 1000, 2000, 4);
        let third = granted_in(&mut memo, 2000, 3000, 4);
        let much_later = granted_in(&mut memo, 60_000, 61_000, 4);

        assert!((98..=102).contains(&first), "{first}");
        assert!((48..=53).contains(&second), "{second}");
        assert!((23..=28).contains(&third), "{third}");
        assert_eq!(much_later, 0);
    }

    #[test]
    fn local_counts_costs_by_the_factor_of_the_throttle() {
        let mut memo = memo(OnStoreLoss::Local, 400.0);
        let mail = Name::new("mail").unwrap();
        let seen = LastKnown {
            cost_factor: 4.0,
            ..memo.throttles[&mail].seen
        };
        memo.saw(&mail, seen);

        let first = granted_in(&mut memo, 0, 1000, 1);

        assert!((98..=102).contains(&first), "{first}");
    }

    #[test]
    fn a_look_at_a_lost_store_takes_nothing() {
        let mut memo = memo(OnStoreLoss::Local, 1.0);
        let granted = |answer: AcquireResponse| answer.lanes[0].granted;

        let looks = [0, 0, 0].map(|now_us| granted(memo.peek(&ask(9), now_us, 1)));
        let taken = granted(memo.answer(&ask(9), 0, 1));

        assert!(taken > 0);
        assert_eq!(looks, [taken; 3]);
        assert_eq!(granted(memo.peek(&ask(9), 0, 1)), 0);
        assert_eq!(granted(memo.answer(&ask(9), 0, 1)), 0);
    }

    #[test]
    fn local_shares_the_limit_of_concurrency_and_rounds_down() {
        let mut memo = memo(OnStoreLoss::Local, -1.0);
        let mail = Name::new("mail").unwrap();
        let seen = LastKnown {
            concurrency: Some(7),
            key_concurrency: Some(4),
            ..memo.throttles[&mail].seen
        };
        memo.saw(&mail, seen);
        let holder = |held| {
            Some(Holder {
                id: "w".into(),
                ttl: Duration::from_secs(30),
                held,
            })
        };
        let lane = |key: &str, held| LaneRequest {
            key: key.into(),
            want: 9,
            held,
            ..LaneRequest::default()
        };

        let plain = memo.answer(
            &AcquireRequest {
                holder: holder(1),
                ..ask(9)
            },
            0,
            2,
        );
        let keyed = AcquireRequest {
            lanes: vec![lane("k", 1), lane("l", 0)],
            holder: holder(1),
            throttle: mail.clone(),
        };
        let keyed = memo.answer(&keyed, 0, 2);

        assert_eq!(
            plain.lanes[0].granted, 2,
            "three for each of two workers, and one runs"
        );
        assert_eq!(
            plain.lanes[0].limit,
            Some(Limit::Concurrency {
                name: mail,
                key: false
            })
        );
        assert_eq!([keyed.lanes[0].granted, keyed.lanes[1].granted], [1, 1]);
        assert_eq!(
            memo.answer(&ask(9), 0, 2).lanes[0].granted,
            9,
            "who asks for tokens alone is not limited"
        );
    }

    #[test]
    fn a_stopped_throttle_stays_stopped() {
        assert_eq!(
            granted_in(&mut memo(OnStoreLoss::Local, 0.0), 0, 1000, 1),
            0
        );
        assert_eq!(granted_in(&mut memo(OnStoreLoss::Open, 0.0), 0, 1000, 1), 0);
    }

    #[test]
    fn keys_that_are_stopped_stay_so_where_all_else_is_open() {
        let mut memo = memo(OnStoreLoss::Open, 100.0);
        let mail = Name::new("mail").unwrap();
        let plain = memo.throttles[&mail].seen;
        let lane = |key: &str| LaneRequest {
            key: key.into(),
            want: 3,
            ..LaneRequest::default()
        };
        let holder = Holder {
            id: "w".into(),
            ttl: Duration::from_secs(30),
            held: 0,
        };
        let mut granted = |seen, holder: Option<&Holder>| {
            memo.saw(&mail, seen);
            let lanes = vec![lane("acme"), lane("")];
            let ask = AcquireRequest {
                lanes,
                holder: holder.cloned(),
                throttle: mail.clone(),
            };
            let answer = memo.answer(&ask, 0, 1);
            [answer.lanes[0].granted, answer.lanes[1].granted]
        };
        let without_rate = LastKnown {
            key_rate: Rate {
                rps: RateLimit::Stopped,
                depth_us: 0.0,
            },
            ..plain
        };
        let without_slots = LastKnown {
            key_concurrency: Some(0),
            ..plain
        };

        assert_eq!(granted(plain, Some(&holder)), [3, 3]);
        assert_eq!(granted(without_rate, None), [0, 3]);
        assert_eq!(granted(without_slots, Some(&holder)), [0, 3]);
        assert_eq!(granted(without_slots, None), [3, 3], "it takes only tokens");
    }

    #[test]
    fn a_throttle_without_slots_begins_no_job_where_all_others_are_open() {
        let mut memo = memo(OnStoreLoss::Open, 100.0);
        let mail = Name::new("mail").unwrap();
        let seen = memo.throttles[&mail].seen;
        let job = AcquireRequest {
            holder: Some(Holder {
                id: "w".into(),
                ttl: Duration::from_secs(30),
                held: 0,
            }),
            ..ask(7)
        };
        let mut granted = |slots, ask: &AcquireRequest| {
            let seen = LastKnown {
                concurrency: slots,
                ..seen
            };
            memo.saw(&mail, seen);
            memo.answer(ask, 0, 1).lanes[0].granted
        };

        assert_eq!(granted(Some(0), &job), 0);
        assert_eq!(granted(Some(1), &job), 7, "open applies no limit");
        assert_eq!(granted(Some(0), &ask(7)), 7, "it takes only tokens");
    }
}

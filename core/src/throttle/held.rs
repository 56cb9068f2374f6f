//! Keys that hold their own jobs back regardless of their throttle: paused after a refusal, at rest
//! because a quota is used up, or limited by a learned rate.

use super::KeyState;
use super::quota_window::SLOWEST;

/// The age of the oldest ready job from which a key may count as over its quota, in seconds: a
/// burst that is worked off within that time is what a queue is for.
pub const OVER_QUOTA_AFTER_S: f64 = 300.0;

/// The tokens asked for, in multiples of those granted, from which a key is over its quota.
const OVER_QUOTA_RATIO: f64 = 1.1;

/// The keys of a throttle that hold jobs back, among those with ready jobs.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
pub struct HeldKeys {
    /// The number of keys with ready jobs that were examined: the deepest ones.
    pub keys: u64,
    /// The number of ready jobs of these keys.
    pub ready: i64,
    /// The number of paused keys.
    pub paused: u64,
    /// The number of keys that wait for their quota to be full again.
    pub resting: u64,
    /// The number of keys with a rate learned from their servers' answers.
    pub learned: u64,
    /// The number of keys with an ended pause that admit one job at a time.
    pub probing: u64,
    /// The number of ready jobs of all keys that hold jobs back.
    pub held_ready: i64,
    /// The slowest key that holds jobs back; `null` if there is none.
    pub slowest: Option<SlowestKey>,
    /// The number of keys that have asked for more than their quota for minutes.
    pub over_quota: u64,
    /// The one of them that asks for the most, compared with its quota.
    pub most_over_quota: Option<OverQuotaKey>,
}

/// A key that asks for more than its quota, all the time. No rate cures that: its backlog grows
/// until it asks for less or its server grants more.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct OverQuotaKey {
    /// The key; empty for jobs without one.
    pub key: String,
    /// The tokens per second that the key's new jobs cost.
    pub requested_rps: f64,
    /// The tokens per second that its server, or its knobs, grant.
    pub granted_rps: f64,
    /// The growth of its backlog, in jobs per minute.
    pub growth_per_min: f64,
}

/// The jobs of a key that wait, and those that arrived lately.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KeyBacklog {
    /// The number of ready jobs.
    pub ready: i64,
    /// The time since the oldest of them was enqueued or, if it was enqueued for later, became due,
    /// in seconds.
    pub oldest_s: f64,
    /// The jobs that arrived lately and have not begun.
    pub arrived: i64,
    /// The tokens that those cost.
    pub arrived_tokens: f64,
    /// The time in which they arrived, in seconds.
    pub arrived_within_s: f64,
}

/// The key of a throttle that holds its jobs back the most.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct SlowestKey {
    /// The key; empty for jobs without one.
    pub key: String,
    /// The end of its pause, unix milliseconds.
    pub paused_until_ms: Option<i64>,
    /// The reason of the pause.
    pub why: String,
    /// The learned rate, in tokens per second.
    pub learned_rps: Option<f64>,
}

/// The way in which a key holds its jobs back, the hardest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Hold {
    Paused,
    Resting,
    Probing,
    Learned,
}

impl Hold {
    fn of(state: &KeyState) -> Option<Self> {
        match state.learned_rps {
            _ if state.paused_until_ms.is_some() => Some(Self::Paused),
            Some(rps) if rps <= SLOWEST => Some(Self::Resting),
            _ if state.probing => Some(Self::Probing),
            Some(_) => Some(Self::Learned),
            None => None,
        }
    }
}

impl OverQuotaKey {
    /// Returns the key if it asks for more than `granted_rps`, and has done so for as long as the
    /// oldest of its jobs has waited.
    ///
    /// A queue that is served in order holds exactly the jobs that arrived since its oldest one
    /// did, so `ready / oldest_s` is the rate of arrival. A single large batch looks the same until
    /// half of it is done; therefore jobs must still arrive at more than the granted rate.
    pub fn of(key: &str, granted_rps: f64, backlog: &KeyBacklog) -> Option<Self> {
        if backlog.oldest_s < OVER_QUOTA_AFTER_S || backlog.arrived == 0 || granted_rps <= 0.0 {
            return None;
        }
        let cost = backlog.arrived_tokens / backlog.arrived as f64;
        let lately_rps = backlog.arrived_tokens / backlog.arrived_within_s.max(1.0);
        let requested_rps = backlog.ready as f64 * cost / backlog.oldest_s;
        let is_over = requested_rps.min(lately_rps) >= OVER_QUOTA_RATIO * granted_rps;
        is_over.then(|| Self {
            key: key.to_owned(),
            requested_rps,
            granted_rps,
            growth_per_min: 60.0 * (requested_rps - granted_rps) / cost,
        })
    }

    /// Returns the tokens that the key asks for, in multiples of those that it is granted.
    pub fn ratio(&self) -> f64 {
        self.requested_rps / self.granted_rps
    }
}

impl KeyState {
    /// Returns the rate that the key's server grants, in tokens per second, as far as it is known:
    /// the rate at which refusals settled, or else the pace of the reported quota.
    pub fn granted_rps(&self) -> Option<f64> {
        self.settled_rps
            .or(self.learned_rps.filter(|rps| *rps > SLOWEST))
    }
}

impl HeldKeys {
    /// Adds the keys that are over their quota.
    #[must_use]
    pub fn with_over_quota(mut self, keys: Vec<OverQuotaKey>) -> Self {
        self.over_quota = keys.len() as u64;
        self.most_over_quota = keys
            .into_iter()
            .max_by(|a, b| a.ratio().total_cmp(&b.ratio()));
        self
    }

    /// Sums up keys, each with its ready jobs and its state.
    pub fn of<'a>(keys: impl IntoIterator<Item = (&'a str, i64, &'a KeyState)>) -> Self {
        let (mut all, mut hardest) = (Self::default(), None);
        for (key, ready, state) in keys {
            all.keys += 1;
            all.ready += ready;
            let Some(hold) = Hold::of(state) else {
                continue;
            };
            all.held_ready += ready;
            *match hold {
                Hold::Paused => &mut all.paused,
                Hold::Resting => &mut all.resting,
                Hold::Probing => &mut all.probing,
                Hold::Learned => &mut all.learned,
            } += 1;
            // The longest pause ranks first, or else the lowest rate.
            let rank = (
                hold,
                -state.paused_until_ms.unwrap_or(0),
                state.learned_rps.unwrap_or(f64::INFINITY),
            );
            if hardest.is_none_or(|before| rank < before) {
                hardest = Some(rank);
                all.slowest = Some(SlowestKey {
                    key: key.to_owned(),
                    paused_until_ms: state.paused_until_ms,
                    why: state.why.clone(),
                    learned_rps: state.learned_rps,
                });
            }
        }
        all
    }

    /// Returns the number of keys that hold jobs back.
    pub fn held(&self) -> u64 {
        self.paused + self.resting + self.probing + self.learned
    }

    /// Returns true if more than half of the ready jobs belong to keys that hold them back.
    pub fn hold_most(&self) -> bool {
        self.held_ready > 0 && 2 * self.held_ready > self.ready
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_asks_for_more_than_its_quota_all_the_time_is_found_and_a_burst_is_not() {
        let of = |ready, oldest_s, arrived: i64| {
            let backlog = KeyBacklog {
                ready,
                oldest_s,
                arrived,
                arrived_tokens: 2.0 * arrived as f64,
                arrived_within_s: 300.0,
            };
            OverQuotaKey::of("k", 10.0, &backlog)
        };
        // 16 jobs of two tokens arrive each second; 5 can go.
        let found = of(16 * 600, 600.0, 16 * 300).unwrap();
        assert_eq!((found.requested_rps, found.ratio()), (32.0, 3.2));
        assert_eq!(found.growth_per_min, 660.0);
        assert_eq!(of(16 * 299, 299.0, 16 * 299), None, "it may be a burst");
        assert_eq!(of(100_000, 600.0, 0), None, "no job arrives any more");
        assert_eq!(of(100_000, 600.0, 300), None, "few jobs arrive");
        assert_eq!(of(600, 600.0, 16 * 300), None, "it was less before");
    }

    fn paused(until_ms: i64) -> KeyState {
        KeyState {
            paused_until_ms: Some(until_ms),
            why: "429".into(),
            learned_rps: Some(2.0),
            ..KeyState::default()
        }
    }

    fn learned(rps: f64) -> KeyState {
        KeyState {
            learned_rps: Some(rps),
            ..KeyState::default()
        }
    }

    #[test]
    fn each_key_counts_once_by_what_holds_it_hardest() {
        let states = [
            paused(7),
            learned(0.0),
            learned(3.0),
            KeyState {
                probing: true,
                ..KeyState::default()
            },
            KeyState::default(),
        ];
        let held = HeldKeys::of(states.iter().map(|state| ("k", 10, state)));

        assert_eq!(
            (held.keys, held.ready, held.held_ready, held.held()),
            (5, 50, 40, 4)
        );
        assert_eq!(
            (held.paused, held.resting, held.learned, held.probing),
            (1, 1, 1, 1)
        );
        assert!(held.hold_most());
    }

    #[test]
    fn the_slowest_is_the_longest_pause_and_where_none_is_paused_the_lowest_rate() {
        let slowest = |states: &[(&str, KeyState)]| {
            HeldKeys::of(states.iter().map(|(key, state)| (*key, 1, state)))
                .slowest
                .map(|slowest| slowest.key)
        };

        assert_eq!(
            slowest(&[("a", learned(0.1)), ("b", paused(5)), ("c", paused(9))]).as_deref(),
            Some("c")
        );
        assert_eq!(
            slowest(&[
                ("a", learned(3.0)),
                ("b", learned(0.5)),
                ("c", KeyState::default())
            ])
            .as_deref(),
            Some("b")
        );
        assert_eq!(slowest(&[("a", KeyState::default())]), None);
    }

    #[test]
    fn a_key_that_is_free_with_as_many_jobs_as_the_held_ones_leaves_the_throttle_flowing() {
        let (held, free) = (paused(5), KeyState::default());

        assert!(!HeldKeys::of([("a", 10, &held), ("b", 10, &free)]).hold_most());
        assert!(HeldKeys::of([("a", 11, &held), ("b", 10, &free)]).hold_most());
        assert!(
            !HeldKeys::of([("a", 0, &held)]).hold_most(),
            "nothing waits"
        );
    }
}

//! Keys that hold their own jobs back regardless of their throttle: paused after a refusal, at rest
//! because a quota is used up, or limited by a learned rate.

use super::KeyState;
use super::quota_window::SLOWEST;

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
    /// The number of keys whose pause is over and of which one job at a time goes first.
    pub probing: u64,
    /// The number of ready jobs of all keys that hold jobs back.
    pub held_ready: i64,
    /// The slowest key that holds jobs back; `null` if there is none.
    pub slowest: Option<SlowestKey>,
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

impl HeldKeys {
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

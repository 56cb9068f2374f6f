//! A histogram of durations, with each bucket a fifth wider than the one before.
//!
//! From one millisecond to eighty seconds a value is off by at most a fifth, with 64 counters that
//! only grow.

use std::time::Duration;

/// The number of buckets: the first counts durations below [`FIRST_BUCKET_S`], the last all
/// durations above the other bounds.
pub const BUCKETS: usize = 64;

/// The upper bound of the first bucket, in seconds.
const FIRST_BUCKET_S: f64 = 0.001;

/// The longest duration that is told from longer ones, in seconds: the highest bound, rounded down.
pub const LONGEST_S: f64 = 80.0;

/// The ratio of each upper bound to the one before.
const RATIO: f64 = 1.2;

/// The fewest durations from which a quantile is computed.
pub const MIN_DURATIONS: u64 = 20;

/// Counts of durations by bucket; buckets above the highest used one take no memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Durations(Vec<u64>);

impl Durations {
    /// Builds a histogram from the counts of another process, by bucket; negative counts become 0
    /// and surplus buckets are dropped.
    pub fn of(counts: &[i64]) -> Self {
        Self(
            counts
                .iter()
                .take(BUCKETS)
                .map(|count| u64::try_from(*count).unwrap_or(0))
                .collect(),
        )
    }

    /// Returns the counts by bucket; fewer than [`BUCKETS`] if the rest is 0.
    pub fn counts(&self) -> &[u64] {
        &self.0
    }

    /// Counts one duration.
    pub fn note(&mut self, took: Duration) {
        let at = bucket(took.as_secs_f64());
        self.reach(at + 1);
        self.0[at] += 1;
    }

    /// Adds the counts of `others`.
    pub fn add(&mut self, others: &Self) {
        self.reach(others.0.len());
        self.0
            .iter_mut()
            .zip(&others.0)
            .for_each(|(mine, theirs)| *mine = mine.saturating_add(*theirs));
    }

    /// Returns the counts added since `earlier`; `None` if counting restarted in between.
    pub fn since(&self, earlier: &Self) -> Option<Self> {
        if earlier.0.len() > self.0.len() {
            return None;
        }
        let before = earlier.0.iter().copied().chain(std::iter::repeat(0));
        self.0
            .iter()
            .zip(before)
            .map(|(now, before)| now.checked_sub(before))
            .collect::<Option<_>>()
            .map(Self)
    }

    /// Returns the number of durations counted.
    pub fn count(&self) -> u64 {
        self.0
            .iter()
            .fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// Returns the quantile `q` in seconds, interpolated linearly within its bucket; `None` if too
    /// few durations were counted.
    ///
    /// Durations above all bounds count as the highest bound.
    pub fn quantile_s(&self, q: f64) -> Option<f64> {
        let all = self.count();
        let (rank, mut below) = (q.clamp(0.0, 1.0) * all as f64, 0.0);
        for (at, count) in self
            .0
            .iter()
            .enumerate()
            .filter(|(_, count)| all >= MIN_DURATIONS && **count > 0)
        {
            let within = (rank - below) / *count as f64;
            if within <= 1.0 {
                let (low, high) = bounds_s(at);
                return Some(low + within.max(0.0) * (high - low));
            }
            below += *count as f64;
        }
        // Sums of large counts may fall short by a rounding error.
        self.0
            .iter()
            .rposition(|count| *count > 0)
            .filter(|_| all >= MIN_DURATIONS)
            .map(|at| bounds_s(at).1)
    }

    fn reach(&mut self, buckets: usize) {
        if self.0.len() < buckets {
            self.0.resize(buckets, 0);
        }
    }
}

fn bucket(seconds: f64) -> usize {
    if seconds < FIRST_BUCKET_S {
        return 0;
    }
    (((seconds / FIRST_BUCKET_S).ln() / RATIO.ln()).floor() as usize + 1).min(BUCKETS - 1)
}

/// Returns the lower and the upper bound of a bucket, in seconds.
fn bounds_s(at: usize) -> (f64, f64) {
    let upper = |at: usize| FIRST_BUCKET_S * RATIO.powi(at as i32);
    match at {
        0 => (0.0, FIRST_BUCKET_S),
        at if at + 1 >= BUCKETS => (upper(BUCKETS - 2), upper(BUCKETS - 2)),
        at => (upper(at - 1), upper(at)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(ms: impl Iterator<Item = u64>) -> Durations {
        let mut durations = Durations::default();
        ms.for_each(|ms| durations.note(Duration::from_millis(ms)));
        durations
    }

    #[test]
    fn every_duration_lies_between_the_bounds_of_its_bucket() {
        for us in (0..2_000_000).step_by(777).map(|us| us * 60) {
            let seconds = us as f64 / 1e6;
            let at = bucket(seconds);
            let (low, high) = bounds_s(at);
            let is_last = at == BUCKETS - 1;
            assert!(
                low <= seconds * (1.0 + 1e-9) && (is_last || seconds < high * (1.0 + 1e-9)),
                "{seconds} in {low}..{high}"
            );
        }
        assert_eq!(
            (bucket(0.0), bucket(0.001), bucket(1e9)),
            (0, 1, BUCKETS - 1)
        );
        assert!(
            (LONGEST_S..1.1 * LONGEST_S).contains(&bounds_s(BUCKETS - 1).0),
            "{}",
            bounds_s(BUCKETS - 1).0
        );
    }

    #[test]
    fn a_quantile_is_wrong_by_a_bucket_at_most_and_needs_enough_to_go_by() {
        let even = of(1..=1000);
        for (q, ms) in [(0.5, 500.0), (0.9, 900.0), (0.99, 990.0), (1.0, 1000.0)] {
            let found = even.quantile_s(q).unwrap() * 1e3;
            assert!(
                (ms / 1.2..=ms * 1.2).contains(&found),
                "{q}: {found} for {ms}"
            );
        }
        let few = of((0..99).map(|_| 20).chain([800]));
        assert!(few.quantile_s(0.98).unwrap() < 0.03);
        assert!(few.quantile_s(0.995).unwrap() > 0.6);
        assert_eq!(of((0..19).map(|_| 20)).quantile_s(0.99), None);
        assert!(of((0..20).map(|_| 20)).quantile_s(0.99).is_some());
        assert_eq!(Durations::default().quantile_s(0.99), None);
        let endless = of((0..30).map(|_| 900_000)).quantile_s(0.99).unwrap();
        assert!((60.0..100.0).contains(&endless), "{endless}");
    }

    #[test]
    fn steps_are_what_came_since_and_counting_anew_is_noticed() {
        let earlier = of([5, 5, 900].into_iter());
        let mut later = earlier.clone();
        later.add(&of([5, 70_000].into_iter()));
        assert_eq!(later.since(&earlier), Some(of([5, 70_000].into_iter())));
        assert_eq!(later.since(&later).unwrap().count(), 0);
        assert_eq!(earlier.since(&later), None);
        assert_eq!(of([5].into_iter()).since(&of([6].into_iter())), None);
        let counts: Vec<i64> = later.counts().iter().map(|count| *count as i64).collect();
        assert_eq!(
            (Durations::of(&counts), Durations::of(&[-3]).count()),
            (later, 0)
        );
    }
}

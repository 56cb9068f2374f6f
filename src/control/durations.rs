//! How long things took, counted in buckets each of which is a fifth wider than the one before: from a millisecond to eighty seconds
//! no value is told more than a fifth wrong, with 64 numbers that only grow.

use std::time::Duration;

/// How many buckets there are. The first counts what took less than [`FIRST_S`], the last whatever took longer than all others.
pub const BUCKETS: usize = 64;

/// The upper bound of the first bucket, in seconds.
const FIRST_S: f64 = 0.001;

/// Each upper bound is this many times the one before.
const RATIO: f64 = 1.2;

/// Fewer durations say nothing about their slowest.
const LEAST: u64 = 20;

/// Durations by bucket. Buckets above the highest that was ever needed take no room.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Durations(Vec<u64>);

impl Durations {
    /// As they were counted elsewhere, bucket by bucket; what is negative, or too much, is left out.
    pub fn of(counts: &[i64]) -> Self {
        Self(counts.iter().take(BUCKETS).map(|count| u64::try_from(*count).unwrap_or(0)).collect())
    }

    /// The counts, bucket by bucket; fewer than [`BUCKETS`] where the rest is 0.
    pub fn counts(&self) -> &[u64] {
        &self.0
    }

    /// Counts one that took so long.
    pub fn note(&mut self, took: Duration) {
        let at = bucket(took.as_secs_f64());
        self.reach(at + 1);
        self.0[at] += 1;
    }

    /// Counts those as well.
    pub fn add(&mut self, others: &Self) {
        self.reach(others.0.len());
        self.0.iter_mut().zip(&others.0).for_each(|(mine, theirs)| *mine = mine.saturating_add(*theirs));
    }

    /// What was counted between `earlier` and `self`; `None` if counting began again in between.
    pub fn since(&self, earlier: &Self) -> Option<Self> {
        if earlier.0.len() > self.0.len() {
            return None;
        }
        let before = earlier.0.iter().copied().chain(std::iter::repeat(0));
        self.0.iter().zip(before).map(|(now, before)| now.checked_sub(before)).collect::<Option<_>>().map(Self)
    }

    /// How many were counted.
    pub fn count(&self) -> u64 {
        self.0.iter().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// Seconds that the share `q` of them took at most, with those of one bucket spread evenly in it; `None` where too few were
    /// counted to say. What took longer than all bounds counts as the highest of them.
    pub fn quantile_s(&self, q: f64) -> Option<f64> {
        let all = self.count();
        let (rank, mut below) = (q.clamp(0.0, 1.0) * all as f64, 0.0);
        for (at, count) in self.0.iter().enumerate().filter(|(_, count)| all >= LEAST && **count > 0) {
            let within = (rank - below) / *count as f64;
            if within <= 1.0 {
                let (low, high) = bounds_s(at);
                return Some(low + within.max(0.0) * (high - low));
            }
            below += *count as f64;
        }
        // Sums of large counts may lack a rounding error.
        self.0.iter().rposition(|count| *count > 0).filter(|_| all >= LEAST).map(|at| bounds_s(at).1)
    }

    fn reach(&mut self, buckets: usize) {
        if self.0.len() < buckets {
            self.0.resize(buckets, 0);
        }
    }
}

fn bucket(seconds: f64) -> usize {
    if seconds < FIRST_S {
        return 0;
    }
    (((seconds / FIRST_S).ln() / RATIO.ln()).floor() as usize + 1).min(BUCKETS - 1)
}

/// Where a bucket begins and ends, in seconds.
fn bounds_s(at: usize) -> (f64, f64) {
    let upper = |at: usize| FIRST_S * RATIO.powi(at as i32);
    match at {
        0 => (0.0, FIRST_S),
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
            assert!(low <= seconds * (1.0 + 1e-9) && (is_last || seconds < high * (1.0 + 1e-9)), "{seconds} in {low}..{high}");
        }
        assert_eq!((bucket(0.0), bucket(0.001), bucket(1e9)), (0, 1, BUCKETS - 1));
        assert!((60.0..100.0).contains(&bounds_s(BUCKETS - 1).0), "{}", bounds_s(BUCKETS - 1).0);
    }

    #[test]
    fn a_quantile_is_wrong_by_a_bucket_at_most_and_needs_enough_to_go_by() {
        let even = of(1..=1000);
        for (q, ms) in [(0.5, 500.0), (0.9, 900.0), (0.99, 990.0), (1.0, 1000.0)] {
            let found = even.quantile_s(q).unwrap() * 1e3;
            assert!((ms / 1.2..=ms * 1.2).contains(&found), "{q}: {found} for {ms}");
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
        assert_eq!((Durations::of(&counts), Durations::of(&[-3]).count()), (later, 0));
    }
}

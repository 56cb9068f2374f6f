//! The days from which claims have lately taken jobs.

/// The bits of an id below its day, as in `flyball.next_id`.
const DAY_BITS: u32 = 38;

/// The claims after which days that none of them needed are left out.
const FORGOTTEN_AFTER: u32 = 64;

/// The days of the jobs that were claimed lately.
///
/// `flyball.job` has a table for each day, and a statement that may read all of them opens all of them,
/// which costs more than the claim of one job. Nearly all jobs are of a day or two, so a claim reads
/// these, and the jobs of other days follow in a second statement.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct ClaimedDays(Option<Days>);

#[derive(Clone, Copy, Debug, PartialEq)]
struct Days {
    first: i64,
    last: i64,
    /// The first and last day since the last time that days were left out.
    recent: (i64, i64),
    claims: u32,
}

impl ClaimedDays {
    /// Returns the least and the greatest id of these days; before the first claim, of all days.
    pub(crate) fn ids(&self) -> (i64, i64) {
        match &self.0 {
            Some(days) => (days.first << DAY_BITS, ((days.last + 1) << DAY_BITS) - 1),
            None => (0, i64::MAX),
        }
    }

    /// Notes that a claim took jobs with ids from `first` to `last`.
    pub(crate) fn note(&mut self, first: i64, last: i64) {
        let (first, last) = (first >> DAY_BITS, last >> DAY_BITS);
        let days = self.0.get_or_insert(Days {
            first,
            last,
            recent: (first, last),
            claims: 0,
        });
        days.first = days.first.min(first);
        days.last = days.last.max(last);
        days.recent = (days.recent.0.min(first), days.recent.1.max(last));
        days.claims += 1;
        if days.claims == FORGOTTEN_AFTER {
            (days.first, days.last) = days.recent;
            days.recent = (first, last);
            days.claims = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(day: i64) -> i64 {
        (day << DAY_BITS) | 77
    }

    #[test]
    fn all_days_are_read_until_a_job_is_claimed() {
        let mut days = ClaimedDays::default();
        assert_eq!(days.ids(), (0, i64::MAX));
        days.note(id(2500), id(2501));
        assert_eq!(days.ids(), (2500 << DAY_BITS, (2502 << DAY_BITS) - 1));
    }

    #[test]
    fn another_day_is_added_at_once_and_left_out_when_no_claim_needs_it() {
        let mut days = ClaimedDays::default();
        days.note(id(2500), id(2500));
        days.note(id(2490), id(2501));
        assert_eq!(days.ids(), (2490 << DAY_BITS, (2502 << DAY_BITS) - 1));
        for _ in 0..FORGOTTEN_AFTER {
            days.note(id(2501), id(2501));
        }
        assert_eq!(
            days.ids().0,
            2490 << DAY_BITS,
            "the round with it has only just ended"
        );
        for _ in 0..FORGOTTEN_AFTER {
            days.note(id(2501), id(2501));
        }
        assert_eq!(days.ids(), (2501 << DAY_BITS, (2502 << DAY_BITS) - 1));
    }

    #[test]
    fn a_day_that_is_needed_now_and_then_stays() {
        let mut days = ClaimedDays::default();
        for n in 0..1000 {
            days.note(id(if n % 40 == 0 { 2490 } else { 2501 }), id(2501));
            assert_eq!(days.ids().0, 2490 << DAY_BITS);
        }
    }
}

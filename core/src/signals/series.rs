//! Merges several series of one signal into the greatest of them at every time, and counts the live
//! ones.
//!
//! The work is linear in the samples: each series is walked once.

use super::{Missing, Reading};

/// Time without a sample after which a series has ended, in seconds.
pub const ENDED_S: f64 = 90.0;

/// The most series of one signal; with more, an expression such as `max(...)` must merge them.
pub const SERIES_MAX: usize = 4_000;

/// Merges series into one: at every time of the one with the newest sample, the greatest of all
/// values then in force.
///
/// If one of them is not a number, neither is the merged value, whatever the order of the series,
/// because the invalid one may be the greatest. Such times are left out; if nothing is left, the
/// newest one gives the error.
pub fn worst(series: &[Vec<Reading>]) -> Result<Vec<Reading>, Missing> {
    let clock = clock(series).ok_or(Missing::Absent)?;
    let mut merged: Vec<Reading> = clock
        .iter()
        .map(|r| Reading {
            value: f64::NEG_INFINITY,
            at: r.at,
        })
        .collect();
    for one in series {
        let mut rest = one.iter().peekable();
        let mut current: Option<&Reading> = None;
        for at_once in &mut merged {
            while let Some(next) = rest.next_if(|r| r.at <= at_once.at) {
                current = Some(next);
            }
            if let Some(r) = current.filter(|r| r.at > at_once.at - ENDED_S) {
                at_once.value = greater(at_once.value, r.value);
            }
        }
    }
    let last = *merged.last().ok_or(Missing::Absent)?;
    merged.retain(|r| r.value.is_finite() && r.value >= 0.0);
    if merged.is_empty() {
        return Reading::judge(Some(last.value), last.at, last.at, 0.0).map(|sound| vec![sound]);
    }
    Ok(merged)
}

/// Returns the series whose times count: the one with the newest sample, since one that ended must
/// not freeze the result.
pub fn clock(series: &[Vec<Reading>]) -> Option<&Vec<Reading>> {
    series.iter().max_by(|a, b| newest(a).total_cmp(&newest(b)))
}

/// Returns the greater of two values, or NaN if either is; `f64::max` would return the number.
fn greater(a: f64, b: f64) -> f64 {
    if a.is_nan() || b.is_nan() {
        f64::NAN
    } else {
        a.max(b)
    }
}

/// Returns the number of series whose last sample is less than [`ENDED_S`] older than the newest of
/// all.
pub fn live(series: &[Vec<Reading>]) -> usize {
    let last = series
        .iter()
        .map(|one| newest(one))
        .fold(f64::NEG_INFINITY, f64::max);
    series
        .iter()
        .filter(|one| newest(one) > last - ENDED_S)
        .count()
}

fn newest(series: &[Reading]) -> f64 {
    series.last().map_or(f64::NEG_INFINITY, |r| r.at)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn series(of: &[(f64, f64)]) -> Vec<Reading> {
        of.iter()
            .map(|&(at, value)| Reading { value, at })
            .collect()
    }

    fn values() -> impl Strategy<Value = f64> {
        prop_oneof![6 => 0.0..100.0_f64, 1 => Just(f64::NAN), 1 => Just(f64::INFINITY), 1 => Just(-1.0)]
    }

    prop_compose! {
        /// Returns series with samples every 15 s, some of them late, some of them ended.
        fn some_series()(shapes in prop::collection::vec((0.0..15.0_f64, prop::collection::vec(values(), 0..14)), 1..6))
            -> Vec<Vec<Reading>> {
            let one = |(from, values): (f64, Vec<f64>)| {
                values.into_iter().enumerate().map(|(n, value)| Reading { value, at: from + 15.0 * n as f64 }).collect()
            };
            shapes.into_iter().map(one).collect()
        }
    }

    /// The definition, written without regard to its cost.
    fn plainly(series: &[Vec<Reading>]) -> Vec<Reading> {
        let end = series
            .iter()
            .map(|one| newest(one))
            .fold(f64::NEG_INFINITY, f64::max);
        let times = series
            .iter()
            .find(|one| newest(one) == end)
            .map_or(&[][..], Vec::as_slice);
        let at_once = |at: f64| {
            let stood = series.iter().filter_map(|one| {
                one.iter()
                    .rev()
                    .find(|r| r.at <= at)
                    .filter(|r| r.at > at - ENDED_S)
            });
            let stood: Vec<f64> = stood.map(|r| r.value).collect();
            let is_sound = stood.iter().all(|v| !v.is_nan());
            let most = stood.into_iter().fold(f64::NEG_INFINITY, f64::max);
            (is_sound && most.is_finite() && most >= 0.0).then_some(Reading { value: most, at })
        };
        times.iter().filter_map(|r| at_once(r.at)).collect()
    }

    proptest! {
        #[test]
        fn the_order_of_the_series_changes_nothing(
            (sorted, shuffled) in some_series().prop_flat_map(|s| (Just(s.clone()), Just(s).prop_shuffle()))
        ) {
            let ends: Vec<u64> = sorted.iter().filter(|one| !one.is_empty()).map(|one| newest(one).to_bits()).collect();
            let distinct: std::collections::BTreeSet<&u64> = ends.iter().collect();
            prop_assume!(distinct.len() == ends.len());
            // Errors as text, because a NaN is not equal to itself.
            prop_assert_eq!(format!("{:?}", worst(&sorted)), format!("{:?}", worst(&shuffled)));
            prop_assert_eq!(live(&sorted), live(&shuffled));
            prop_assert_eq!(worst(&sorted).unwrap_or_default(), plainly(&sorted));
        }

        #[test]
        fn a_series_that_is_not_a_number_is_never_hidden_by_others(
            mut all in some_series(), place in any::<prop::sample::Index>()
        ) {
            let at = all.iter().map(|one| newest(one)).fold(0.0, f64::max);
            all.insert(place.index(all.len() + 1), series(&[(at, f64::NAN)]));
            prop_assert!(worst(&all).unwrap_or_default().iter().all(|r| r.at < at));
        }
    }

    #[test]
    fn one_that_is_not_a_number_makes_all_of_them_none_in_either_order() {
        let (sound, broken) = (
            series(&[(0.0, 0.05), (15.0, 0.05)]),
            series(&[(1.0, f64::NAN), (14.0, f64::NAN)]),
        );
        assert_eq!(
            worst(&[sound.clone(), broken.clone()]),
            Ok(series(&[(0.0, 0.05)]))
        );
        assert_eq!(worst(&[broken.clone(), sound]), Ok(series(&[(0.0, 0.05)])));
        assert!(matches!(worst(&[broken]), Err(Missing::NotANumber)));
        assert_eq!(worst(&[]), Err(Missing::Absent));
    }

    #[test]
    fn a_series_that_ended_is_distinguished_from_one_that_goes_on() {
        let ended = series(&[(0.0, 9.0), (15.0, 9.0)]);
        let goes_on: Vec<Reading> = (0..12)
            .map(|n| Reading {
                value: 1.0,
                at: 15.0 * f64::from(n),
            })
            .collect();
        assert_eq!(live(&[ended.clone(), goes_on.clone()]), 1);
        assert_eq!(live(&[ended.clone(), goes_on[..6].to_vec()]), 2);
        let merged = worst(&[ended, goes_on]).unwrap();
        assert_eq!(
            merged.iter().map(|r| r.value).collect::<Vec<_>>(),
            [9., 9., 9., 9., 9., 9., 9., 1., 1., 1., 1., 1.]
        );
    }
}

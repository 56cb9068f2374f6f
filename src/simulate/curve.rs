//! A quantity over time, as a scenario's file defines it: one number, or points joined by straight
//! lines.

/// `1.5`, or `[[0, 1.6], [360, 0.3]]`: pairs of minute and value. Two points of the same minute are
/// a step.
#[derive(Clone, Debug, PartialEq, serde::Deserialize)]
#[serde(untagged)]
pub enum Curve {
    /// A value that holds at all times.
    Constant(f64),
    /// `(minute, value)`, in the order of the minutes.
    Points(Vec<(f64, f64)>),
}

impl Curve {
    /// Returns the value at `t` seconds; before the first point and after the last one it is
    /// theirs.
    pub fn at(&self, t: f64) -> f64 {
        let points = match self {
            Self::Constant(value) => return *value,
            Self::Points(points) => points,
        };
        let minute = t / 60.0;
        // The last point that is not later is used: of two at the same minute the second one
        // counts.
        let before = points.iter().rposition(|point| point.0 <= minute);
        match (before, before.map_or(points.first(), |n| points.get(n + 1))) {
            (None, first) => first.map_or(0.0, |point| point.1),
            (Some(n), None) => points[n].1,
            (Some(n), Some(next)) => {
                let (from, value) = points[n];
                value + (next.1 - value) * (minute - from) / (next.0 - from).max(f64::MIN_POSITIVE)
            }
        }
    }

    /// Returns the fault of the curve, if any; its values must be `least` or more.
    pub fn fault(&self, least: f64) -> Option<String> {
        let points = match self {
            Self::Constant(value) => return refuse(*value, least),
            Self::Points(points) => points,
        };
        if points.is_empty() {
            return Some("has no points; write a number or pairs of [minute, value]".to_owned());
        }
        if points.windows(2).any(|pair| pair[1].0 < pair[0].0)
            || points.iter().any(|point| point.0.is_nan() || point.0 < 0.0)
        {
            return Some(
                "has minutes that are negative or not in order; write them ascending".to_owned(),
            );
        }
        points.iter().find_map(|point| refuse(point.1, least))
    }
}

fn refuse(value: f64, least: f64) -> Option<String> {
    (!(value.is_finite() && value >= least))
        .then(|| format!("{value} is not allowed; use a number of at least {least}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_are_joined_by_lines_and_two_of_one_minute_are_a_step() {
        let curve = Curve::Points(vec![(0.0, 1.0), (10.0, 2.0), (10.0, 4.0), (20.0, 4.0)]);
        let at = |minute: f64| curve.at(minute * 60.0);
        assert_eq!(
            (at(0.0), at(5.0), at(9.0), at(10.0), at(15.0), at(99.0)),
            (1.0, 1.5, 1.9, 4.0, 4.0, 4.0)
        );
        assert_eq!(Curve::Constant(3.0).at(77.0), 3.0);
        assert_eq!(Curve::Points(vec![(5.0, 2.0)]).at(0.0), 2.0);
    }

    #[test]
    fn what_is_wrong_with_a_curve_is_said() {
        assert_eq!(Curve::Constant(1.0).fault(0.0), None);
        assert!(
            Curve::Constant(-1.0)
                .fault(0.0)
                .unwrap()
                .contains("at least 0")
        );
        assert!(
            Curve::Points(vec![])
                .fault(0.0)
                .unwrap()
                .contains("no points")
        );
        assert!(
            Curve::Points(vec![(5.0, 1.0), (4.0, 1.0)])
                .fault(0.0)
                .unwrap()
                .contains("ascending")
        );
        assert!(Curve::Points(vec![(5.0, f64::NAN)]).fault(0.0).is_some());
    }
}

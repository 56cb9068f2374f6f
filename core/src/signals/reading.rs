//! Readings: values with the times of their samples.

/// A measured value with its sample's own time.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Reading {
    /// The value, in the signal's own unit.
    pub value: f64,
    /// The time of the sample, in unix seconds.
    pub at: f64,
}

/// The reason why a value is not a reading.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum Missing {
    /// There is no value.
    #[error("no value: nothing matches")]
    Absent,
    /// The value is NaN, for instance 0/0.
    #[error("the value is not a number")]
    NotANumber,
    /// The value is infinite, for instance 1/0.
    #[error("the value is infinite")]
    Infinite,
    /// The value is negative, which no load, latency, depth or share can be.
    #[error("the value {value} is negative")]
    Negative {
        /// The negative value.
        value: f64,
    },
    /// A series has ended while others are live, and it may have been the greatest.
    #[error(
        "{live} live series, but {least} are expected: one has ended; if that is correct, set \
         series_min = {live}"
    )]
    Ended {
        /// Series with recent samples.
        live: usize,
        /// Series that are required.
        least: usize,
    },
    /// Too many series match.
    #[error(
        "{series} series match, more than {allowed}; aggregate them into one, for instance with \
         max(...)"
    )]
    Many {
        /// Series that match.
        series: usize,
        /// The most series that are read.
        allowed: usize,
    },
    /// The sample is too old to say anything about the present.
    #[error("the sample is {age_s:.0} s old, more than {allowed_s:.0} s")]
    Old {
        /// Its age, in seconds.
        age_s: f64,
        /// The greatest age allowed, in seconds.
        allowed_s: f64,
    },
    /// The sample is dated in the future, so its time means nothing.
    #[error("the sample is dated {ahead_s:.0} s in the future")]
    Future {
        /// Seconds ahead of now.
        ahead_s: f64,
    },
}

/// Greatest difference of two servers' clocks at which a sample does not count as one from the
/// future, in seconds.
const CLOCKS_DIFFER_S: f64 = 10.0;

impl Reading {
    /// Returns the reading, or the reason for which `value` of time `at` is none at `now`; samples
    /// older than `allowed_s` are none.
    pub fn judge(value: Option<f64>, at: f64, now: f64, allowed_s: f64) -> Result<Self, Missing> {
        let value = value.ok_or(Missing::Absent)?;
        if value.is_nan() || at.is_nan() {
            return Err(Missing::NotANumber);
        }
        if value.is_infinite() || at.is_infinite() {
            return Err(Missing::Infinite);
        }
        if value < 0.0 {
            return Err(Missing::Negative { value });
        }
        let age_s = now - at;
        if age_s > allowed_s {
            return Err(Missing::Old { age_s, allowed_s });
        }
        if age_s < -CLOCKS_DIFFER_S {
            return Err(Missing::Future { ahead_s: -age_s });
        }
        Ok(Self { value, at })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_finite_recent_values_are_readings() {
        let judge = |value, at| Reading::judge(value, at, 1000.0, 60.0);
        assert_eq!(
            judge(Some(0.0), 990.0),
            Ok(Reading {
                value: 0.0,
                at: 990.0
            })
        );
        assert_eq!(judge(None, 990.0), Err(Missing::Absent));
        assert_eq!(judge(Some(f64::NAN), 990.0), Err(Missing::NotANumber));
        assert_eq!(judge(Some(1.0), f64::NAN), Err(Missing::NotANumber));
        assert_eq!(judge(Some(f64::INFINITY), 990.0), Err(Missing::Infinite));
        assert_eq!(
            judge(Some(-0.5), 990.0),
            Err(Missing::Negative { value: -0.5 })
        );
        assert_eq!(
            judge(Some(1.0), 900.0),
            Err(Missing::Old {
                age_s: 100.0,
                allowed_s: 60.0
            })
        );
        assert_eq!(
            judge(Some(1.0), 1100.0),
            Err(Missing::Future { ahead_s: 100.0 })
        );
    }
}

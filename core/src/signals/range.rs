//! Past values of a query, for replays, in pieces that every server accepts.
//!
//! Prometheus returns at most 11,000 points a series. A plain selector's raw samples are queried
//! with their own times; any other expression is evaluated at regular steps.

use std::time::Duration;

use super::prometheus::{PrometheusQuery, series_of};
use super::series::{clock, worst};
use super::{Error, Missing, Prometheus, Reading, promql};

/// Timeout of one piece, which reads hours from disk.
const PIECE_TIMEOUT: Duration = Duration::from_secs(60);

/// Most points of a series per query; Prometheus refuses more than 11,000.
const POINTS_MAX: f64 = 10_000.0;

/// The longest range of raw samples per query, in seconds.
const RAW_MAX_S: f64 = 6.0 * 3600.0;

impl Prometheus {
    /// Returns the samples of `query` in `(from, to]` (unix seconds of Prometheus' clock), oldest
    /// first.
    ///
    /// They are raw samples for a plain selector, otherwise one every `step_s`. If several series
    /// match, the greatest of them counts. Invalid values are left out.
    pub async fn range(
        &self,
        query: &str,
        from: f64,
        to: f64,
        step_s: f64,
    ) -> Result<Vec<Reading>, Error> {
        let query = query.trim();
        let is_raw = promql::is_selector(query);
        let mut all: Vec<Reading> = Vec::new();
        for (start, end) in pieces(
            from,
            to,
            if is_raw {
                RAW_MAX_S
            } else {
                POINTS_MAX * step_s
            },
        ) {
            let part = if is_raw {
                self.raw(query, start, end).await
            } else {
                self.evaluated(query, start, end, step_s).await
            };
            match part {
                Ok(part) => all.extend(part.into_iter().filter(|r| r.at > start && r.at <= end)),
                Err(Error::Missing(_)) => {}
                Err(error) => return Err(error),
            }
        }
        if all.is_empty() {
            Err(Missing::Absent.into())
        } else {
            Ok(all)
        }
    }

    /// Returns the present by Prometheus' clock, in unix seconds.
    pub async fn clock(&self) -> Result<f64, Error> {
        let question = PrometheusQuery::Instant {
            query: "vector(time())",
            at: None,
        };
        let (_, data) = self.send(self.slow(PIECE_TIMEOUT)?, &question).await?;
        let now = series_of(&data, 0.0).into_iter().flatten().next();
        now.map(|now| now.value).ok_or(Missing::Absent.into())
    }

    async fn raw(&self, query: &str, start: f64, end: f64) -> Result<Vec<Reading>, Error> {
        // The API takes whole seconds; the caller drops what lies outside of its range.
        let at = end.ceil();
        let ranged = format!("{query}[{}s]", (at - start).ceil());
        self.past(&PrometheusQuery::Instant {
            query: &ranged,
            at: Some(at as i64),
        })
        .await
    }

    async fn evaluated(
        &self,
        query: &str,
        start: f64,
        end: f64,
        step_s: f64,
    ) -> Result<Vec<Reading>, Error> {
        // The first point is a step after the end of the piece before.
        self.past(&PrometheusQuery::Range {
            query,
            from: (start + step_s).floor() as i64,
            to: end.ceil() as i64,
            step_s,
        })
        .await
    }

    async fn past(&self, question: &PrometheusQuery<'_>) -> Result<Vec<Reading>, Error> {
        let (_, data) = self.send(self.slow(PIECE_TIMEOUT)?, question).await?;
        merged(series_of(&data, 0.0))
    }
}

/// Merges series into one as for the present ([`worst`]); before the times of the live series,
/// those that had ended count.
fn merged(mut series: Vec<Vec<Reading>>) -> Result<Vec<Reading>, Error> {
    let (mut all, mut missing) = (Vec::new(), Missing::Absent);
    while let Some(first) = clock(&series).and_then(|one| one.first()).map(|r| r.at) {
        match worst(&series) {
            Ok(earlier) => drop(all.splice(0..0, earlier)),
            Err(reason) => missing = reason,
        }
        for one in &mut series {
            one.retain(|r| r.at < first);
        }
        series.retain(|one| !one.is_empty());
    }
    if all.is_empty() {
        Err(missing.into())
    } else {
        Ok(all)
    }
}

/// Splits `(from, to]` into pieces, each at most `most_s` long.
fn pieces(from: f64, to: f64, most_s: f64) -> Vec<(f64, f64)> {
    let count = ((to - from) / most_s).ceil().max(0.0) as u64;
    let cut = |n: u64| (from + n as f64 * most_s).min(to);
    (0..count).map(|n| (cut(n), cut(n + 1))).collect()
}

#[cfg(test)]
mod tests {
    use super::{Reading, merged, pieces};

    #[test]
    fn a_series_that_took_the_place_of_another_is_read_together_with_it() {
        let one = |at: f64, value: f64| Reading { value, at };
        let old = vec![one(0.0, 1.0), one(15.0, 2.0), one(30.0, f64::NAN)];
        let (new, beside) = (
            vec![one(105.0, 0.5), one(120.0, 3.0), one(135.0, 4.0)],
            vec![one(121.0, 9.0)],
        );
        let all = merged(vec![old, new, beside]).unwrap();
        // An invalid value hides its time until its series has ended for good.
        assert_eq!(
            all,
            [
                one(0.0, 1.0),
                one(15.0, 2.0),
                one(120.0, 3.0),
                one(135.0, 9.0)
            ]
        );
        assert!(merged(vec![]).is_err());
    }

    #[test]
    fn pieces_cover_the_range_once_and_none_is_too_long() {
        assert_eq!(
            pieces(0.0, 25.0, 10.0),
            [(0.0, 10.0), (10.0, 20.0), (20.0, 25.0)]
        );
        assert_eq!(pieces(5.0, 25.0, 10.0), [(5.0, 15.0), (15.0, 25.0)]);
        assert!(pieces(5.0, 5.0, 10.0).is_empty() && pieces(5.0, 1.0, 10.0).is_empty());
    }
}

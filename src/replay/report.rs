//! The report of a replay: the recording beside the replayed result, as a range if it must be one,
//! with its uncertainty.

use super::record::{Recording, RecordingProblem};
use super::run::{self, Figures, ReplayPoint, ReplaySettings};
use super::smooth::{Model, Track};
use crate::governor::Policy;
use crate::governor::policy::{SignalKind, SignalPolicy, SignalSource};

/// Ratio of the 95th to the 5th percentile of the rate below which it hardly moved, so that
/// background and cost look the same.
const MOVED: f64 = 1.3;
/// Shares of the load that are tried if the recording does not determine our share.
const SHARES: [f64; 3] = [0.2, 0.6, 0.95];
/// Length of the means by which the rate's movement is judged, in seconds.
const WINDOW_S: f64 = 60.0;
/// Number of usual spacings above which a stretch without a sample is reported.
const GAP_SPANS: f64 = 3.5;

/// Smallest and largest error of the replayed jobs, in percent.
///
/// The tests replay recordings of known plants, and hold the errors that they find to this range.
pub const ERROR_JOBS: (f64, f64) = (-15.0, 30.0);
/// Smallest and largest error of the replayed overload, in percent; see [`ERROR_JOBS`].
pub const ERROR_OVERLOAD: (f64, f64) = (-35.0, 30.0);

/// The result of a replay.
#[derive(Clone, Debug, serde::Serialize)]
pub struct ReplayReport {
    /// Name of the throttle.
    pub throttle: String,
    /// Beginning of the replayed range, in unix seconds.
    pub from: f64,
    /// End of the replayed range, in unix seconds.
    pub to: f64,
    /// Names of the replayed signals.
    pub signals: Vec<String>,
    /// Ratio of the 95th to the 5th percentile of the recorded rate; `None` if the 5th is 0.
    pub moved: Option<f64>,
    /// Figures of the recording.
    pub recorded: Figures,
    /// Figures of the replay: one variant, or one for each share of the load that may have been
    /// ours.
    pub would_be: Vec<Variant>,
    /// Limits of the answer, in sentences.
    pub notes: Vec<String>,
}

/// The replay for one share of our work in the load.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Variant {
    /// Our share of the load at the beginning and the end of the recording; `None` if the recording
    /// determines it.
    pub share: Option<f64>,
    /// Figures of the replay.
    #[serde(flatten)]
    pub figures: Figures,
    /// Course over time.
    #[serde(skip)]
    pub course: Vec<ReplayPoint>,
}

/// Returns the signals of a policy that can be replayed: loads from Prometheus.
pub fn replayed(policy: &Policy) -> Vec<&SignalPolicy> {
    policy
        .signals
        .iter()
        .filter(|signal| {
            signal.kind == SignalKind::Load && signal.source == SignalSource::Prometheus
        })
        .collect()
}

/// Replays a recording under a policy.
pub fn replay(
    throttle: &str,
    policy: &Policy,
    settings: &ReplaySettings,
    record: &Recording,
) -> Result<ReplayReport, RecordingProblem> {
    let loads = replayed(policy);
    if loads.is_empty() {
        let reason = "has no load from Prometheus; only loads can be replayed";
        return Err(RecordingProblem::of("policy", reason));
    }
    let names: Vec<&str> = loads.iter().map(|signal| signal.name.as_str()).collect();
    let (from, to) = record.check(&names)?;
    let governed = Policy {
        signals: loads.into_iter().cloned().collect(),
        law: policy.law.clone(),
    };
    let tracks: Vec<Track> = governed
        .signals
        .iter()
        .map(|about| Track::new(record, about, &policy.law, from, to))
        .collect();
    let moved = movement(record, from, to);
    let is_certain = moved.is_none_or(|factor| factor >= MOVED);

    let shares: Vec<Option<f64>> = if is_certain {
        vec![None]
    } else {
        SHARES.map(Some).to_vec()
    };
    let mut recorded = Figures::default();
    let mut would_be = Vec::new();
    for share in shares {
        let parts: Vec<(Track, Model)> = tracks
            .iter()
            .map(|track| (track.clone(), Model::new(track, share)))
            .collect();
        let outcome = run::run(&governed, settings, record, &parts, (from, to));
        recorded = outcome.recorded;
        would_be.push(Variant {
            share,
            figures: outcome.would_be,
            course: outcome.course,
        });
    }
    let mut notes = vec![certainty(moved.filter(|_| !is_certain))];
    notes.push(
        "The replay assumes that there was always enough work: with an empty queue, fewer jobs \
         would have run."
            .to_owned(),
    );
    notes.extend(left_out(policy, &governed));
    notes.extend(tracks.iter().filter_map(gaps));
    let signals = governed
        .signals
        .iter()
        .map(|signal| signal.name.clone())
        .collect();
    Ok(ReplayReport {
        throttle: throttle.to_owned(),
        from,
        to,
        signals,
        moved,
        recorded,
        would_be,
        notes,
    })
}

/// Returns the ratio of the 95th to the 5th percentile of the rate; `None` if the 5th is 0.
fn movement(record: &Recording, from: f64, to: f64) -> Option<f64> {
    let windows = ((to - from) / WINDOW_S).floor().max(1.0) as usize;
    let start = |n: usize| from + n as f64 * WINDOW_S;
    let mut rates: Vec<f64> = (0..windows)
        .map(|n| record.mean_rate(start(n), start(n) + WINDOW_S))
        .collect();
    rates.sort_by(f64::total_cmp);
    let at = |share: f64| rates[((rates.len() - 1) as f64 * share).round() as usize];
    (at(0.05) > 0.0).then(|| at(0.95) / at(0.05))
}

fn certainty(unmoved: Option<f64>) -> String {
    let known = format!(
        "Where the true result was known, replays deviated by {} to {:+} % in jobs and by {} to \
         {:+} % in overload",
        ERROR_JOBS.0, ERROR_JOBS.1, ERROR_OVERLOAD.0, ERROR_OVERLOAD.1
    );
    match unmoved {
        None => format!("{known}."),
        Some(factor) => format!(
            "The recorded rate hardly moved (all but its extremes lie within a factor of \
             {factor:.2}), so our part of the load cannot be determined: the answer is the range \
             over shares of 20, 60 and 95 %, and the true value may be outside of it. {known}, and \
             only if the rate had moved."
        ),
    }
}

fn left_out(policy: &Policy, governed: &Policy) -> Option<String> {
    let missing = |signal: &&SignalPolicy| governed.signal(&signal.name).is_none();
    let names: Vec<&str> = policy
        .signals
        .iter()
        .filter(missing)
        .map(|signal| signal.name.as_str())
        .collect();
    (!names.is_empty()).then(|| {
        format!(
            "Omitted: {}. A recording does not show a latency, a ratio or a queue at another rate.",
            names.join(", ")
        )
    })
}

/// Returns a note about long stretches without a sample, if there are any.
fn gaps(track: &Track) -> Option<String> {
    let mut spans: Vec<f64> = track.samples.iter().map(|sample| sample.span_s).collect();
    spans.sort_by(f64::total_cmp);
    let usual = spans.get(spans.len() / 2)?;
    let long = spans
        .iter()
        .filter(|span| **span > GAP_SPANS * usual)
        .count();
    (long > 0).then(|| {
        let longest = spans.last().copied().unwrap_or_default();
        format!(
            "{} has {long} stretches without a sample (usual {usual:.0} s apart, longest \
             {longest:.0} s); there the governor had no readings in the replay either.",
            track.name
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::signals::Reading;

    const POLICY: &str = "[[signal]]\nname = \"load\"\nquery = \"load\"\nsetpoint = 2.0\n[[signal]]\nname = \"p99\"\nkind = \"latency\"\n\
                          query = \"p99\"\nsetpoint = 1.0\n";

    fn settings() -> ReplaySettings {
        ReplaySettings {
            bounds: crate::governor::Bounds {
                min: 1.0,
                max: 1000.0,
                safe_rps: 5.0,
            },
            delay_s: 5.0,
        }
    }

    #[test]
    fn a_recording_at_a_fixed_rate_is_answered_by_a_range_that_says_so() {
        let policy = Policy::parse(POLICY, "x.toml").unwrap().unwrap();
        let readings = |value: f64| {
            (0..400)
                .map(|n| Reading {
                    value,
                    at: 1e9 + f64::from(n) * 15.0,
                })
                .collect::<Vec<_>>()
        };
        let record = Recording {
            signals: [("load".to_owned(), readings(1.0))].into(),
            rate: readings(50.0),
        };

        let report = replay("reindex", &policy, &settings(), &record).unwrap();

        assert_eq!(
            report.would_be.iter().map(|v| v.share).collect::<Vec<_>>(),
            [Some(0.2), Some(0.6), Some(0.95)]
        );
        // At half of the setpoint, the remaining room is worth more jobs the smaller our share of
        // the load is.
        let jobs: Vec<f64> = report.would_be.iter().map(|v| v.figures.jobs).collect();
        assert!(
            jobs[0] > 1.5 * jobs[1] && jobs[1] > 1.1 * jobs[2] && jobs[2] > report.recorded.jobs,
            "{jobs:?}"
        );
        assert!(
            (report.recorded.jobs - 50.0 * 399.0 * 15.0).abs() < 1.0,
            "{:?}",
            report.recorded
        );
        assert!(
            report.notes[0].starts_with("The recorded rate hardly moved"),
            "{:?}",
            report.notes
        );
        assert!(
            report
                .notes
                .iter()
                .any(|note| note.starts_with("Omitted: p99.")),
            "{:?}",
            report.notes
        );
    }

    #[test]
    fn a_policy_without_a_load_cannot_be_replayed() {
        let text =
            "[[signal]]\nname = \"p99\"\nkind = \"latency\"\nquery = \"p99\"\nsetpoint = 1.0\n";
        let policy = Policy::parse(text, "x.toml").unwrap().unwrap();
        let error = replay("reindex", &policy, &settings(), &Recording::default())
            .unwrap_err()
            .to_string();
        assert!(
            error.starts_with("policy: has no load from Prometheus"),
            "{error}"
        );
    }
}

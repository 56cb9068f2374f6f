//! Reasons why signals have no new value although their sources answer, in words for people.

use std::collections::BTreeMap;

use crate::control::durations::MIN_DURATIONS;
use crate::governor::explain::seconds;
use crate::governor::law::Signal;
use crate::governor::observation::{Observation, SignalSample};
use crate::governor::policy::{FeedbackKind, Policy, SignalPolicy};
use crate::signals::FeedbackMeter;

/// The age of the newest report of the workers from which they are silent, in seconds.
const SILENT_S: f64 = 10.0;
/// The seconds by which a sample must be older than the last one that counted to show that a clock
/// was set back.
const SET_BACK_S: f64 = 10.0;

/// Returns why samples are no news to their signals, by signal: they are older than one that
/// counted, or nothing has followed the last one for too long.
pub(super) fn outdated(
    signals: &[Signal],
    policy: &Policy,
    seen: &Observation,
) -> BTreeMap<String, String> {
    let reason = |signal: &Signal| {
        let is_read =
            |sample: &&SignalSample| sample.signal == signal.name && sample.value.is_some();
        let times = seen.readings.iter().filter(is_read).map(|sample| sample.at);
        let newest = times.reduce(f64::max)?;
        let behind_s = signal.front.at? - newest;
        let stale_after_s = signal.stale_after_s(policy.signal(&signal.name)?, &policy.law);
        let reason = if behind_s > SET_BACK_S {
            let behind = seconds(behind_s);
            format!(
                "its newest sample is dated {behind} before the last one that counted: the clock of \
                 its source was set back"
            )
        } else if behind_s >= 0.0 && seen.now - signal.front.seen? > stale_after_s {
            let age = seconds(seen.now - newest);
            format!("its source answers, but the newest sample is {age} old")
        } else {
            return None;
        };
        Some((signal.name.clone(), reason))
    };
    signals.iter().filter_map(reason).collect()
}

/// Returns why signals of the work itself had no value at a tick, by signal.
///
/// The source answers, so no error tells it.
pub(super) fn reasons(
    policy: &Policy,
    meter: &FeedbackMeter,
    seen: &Observation,
) -> BTreeMap<String, String> {
    // Without work there is nothing to report.
    if seen.idle {
        return BTreeMap::new();
    }
    let reason = |about: &SignalPolicy| {
        let silent = |sample: &&SignalSample| sample.signal == about.name && sample.value.is_none();
        let sample = seen.readings.iter().find(silent)?;
        let is_reported = meter.at().is_some_and(|at| sample.at >= at);
        let reason = if is_reported {
            // The first report tells nothing of the time before it.
            meter.over(policy.law.tick_s)?;
            without_value(policy, about, about.feedback?)
        } else {
            without_report(meter, seen.now)?
        };
        Some((about.name.clone(), reason))
    };
    policy.signals.iter().filter_map(reason).collect()
}

/// Returns the reason for which a new report has no value.
fn without_value(policy: &Policy, about: &SignalPolicy, kind: FeedbackKind) -> String {
    let within = seconds((2.0 * about.lag_s).max(policy.law.tick_s));
    match kind {
        FeedbackKind::Refused | FeedbackKind::Errors => {
            format!("no attempt has ended within {within}")
        }
        FeedbackKind::Latency => format!("no attempt has succeeded within {within}"),
        FeedbackKind::LatencyP99 => format!(
            "fewer than {MIN_DURATIONS} attempts have succeeded within {within}, too few for a \
             percentile: raise lag_s, or safe_rps and min"
        ),
    }
}

/// Returns the reason for which there is no new report; `None` while one is not overdue.
fn without_report(meter: &FeedbackMeter, now: f64) -> Option<String> {
    let what = "no worker has reported how its jobs end";
    let Some(at) = meter.at() else {
        return Some(format!("{what} yet"));
    };
    let age_s = now - at;
    (age_s > SILENT_S).then(|| format!("{what} for {}", seconds(age_s)))
}

#[cfg(test)]
mod tests {
    use super::super::sources::feedback_samples;
    use super::*;
    use crate::signals::WorkerFeedback;

    const POLICY: &str = "[[signal]]\nname = \"took\"\nsource = \"feedback\"\nquery = \"latency\"\nsetpoint = 1.0\n\
                          [[signal]]\nname = \"slowest\"\nsource = \"feedback\"\nquery = \"latency_p99\"\nsetpoint = 1.0\n\
                          [[signal]]\nname = \"refusals\"\nsource = \"feedback\"\nquery = \"refused\"\nsetpoint = 0.1\n";

    /// Returns the reasons at `now`, in the order of the policy, if reports were read to `since`.
    fn told(meter: &FeedbackMeter, now: f64, since: Option<f64>) -> [Option<String>; 3] {
        let policy = Policy::parse(POLICY, "f").unwrap().unwrap();
        let seen = Observation {
            now,
            readings: feedback_samples(&policy, meter, since, f64::NEG_INFINITY),
            ..Observation::default()
        };
        let idle = Observation {
            idle: true,
            ..seen.clone()
        };
        assert!(reasons(&policy, meter, &idle).is_empty());
        let found = reasons(&policy, meter, &seen);
        ["took", "slowest", "refusals"].map(|name| found.get(name).cloned())
    }

    #[test]
    fn work_without_outcomes_says_which_are_missing_and_workers_without_reports_are_told() {
        let mut meter = FeedbackMeter::default();
        let all = |text: &str| [(); 3].map(|()| Some(text.to_owned()));
        assert_eq!(
            told(&meter, 100.0, None),
            all("no worker has reported how its jobs end yet")
        );

        // A job that never ends.
        let worker = WorkerFeedback {
            worker: 1,
            running: 1.0,
            born_s: 1000.0,
            ..WorkerFeedback::default()
        };
        meter.take_in(std::slice::from_ref(&worker), 100.0);
        assert_eq!(told(&meter, 100.0, None), [None, None, None]);
        meter.take_in(std::slice::from_ref(&worker), 105.0);
        let texts = [
            "no attempt has succeeded within 5 s",
            "fewer than 20 attempts have succeeded within 30 s, too few for a percentile: raise \
             lag_s, or safe_rps and min",
            "no attempt has ended within 5 s",
        ];
        assert_eq!(
            told(&meter, 105.0, Some(100.0)),
            texts.map(|text| Some(text.to_owned()))
        );

        // The next report is not due yet, and then it is.
        assert_eq!(told(&meter, 110.0, Some(105.0)), [None, None, None]);
        assert_eq!(
            told(&meter, 205.0, Some(105.0)),
            all("no worker has reported how its jobs end for 100 s")
        );
    }

    #[test]
    fn samples_that_are_no_news_say_why() {
        let policy = Policy::parse(POLICY, "f").unwrap().unwrap();
        let mut signal = Signal::new(&policy.signals[0], &policy.law, 0.0);
        let told = |signal: &Signal, at| {
            let sample = SignalSample {
                signal: "took".to_owned(),
                value: Some(1.0),
                at,
            };
            let seen = Observation {
                now: 1000.0,
                readings: vec![sample],
                ..Observation::default()
            };
            outdated(std::slice::from_ref(signal), &policy, &seen).remove("took")
        };
        assert_eq!(told(&signal, 400.0), None, "it is the first");
        (signal.front.at, signal.front.seen) = (Some(995.0), Some(996.0));
        assert_eq!(told(&signal, 995.0), None, "it is the same");
        assert_eq!(told(&signal, 990.0), None);
        assert_eq!(
            told(&signal, 400.0).unwrap(),
            "its newest sample is dated 10 min before the last one that counted: the clock of its \
             source was set back"
        );

        (signal.front.at, signal.front.seen) = (Some(880.0), Some(881.0));
        assert_eq!(
            told(&signal, 880.0).unwrap(),
            "its source answers, but the newest sample is 2 min old"
        );
        assert_eq!(told(&signal, 999.0), None, "it is news");
    }
}

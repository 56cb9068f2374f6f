use std::sync::Arc;

use super::*;
use crate::control::durations::Durations;
use crate::signals::{Depth, Feedback};

const POLICY: &str = r#"
[[signal]]
name = "refusals"
source = "feedback"
query = "refused"
setpoint = 0.01
trip = 0.5

[[signal]]
name = "errors"
source = "feedback"
query = "errors"
setpoint = 0.05
lag_s = 10

[[signal]]
name = "duration"
source = "feedback"
query = "latency"
setpoint = 200.0
scale = 1000.0
"#;

fn policy() -> Policy {
    Policy::parse(POLICY, "f").unwrap().unwrap()
}

/// A meter fed by one worker every second with jobs that completed (in half a second on average),
/// were refused and failed.
struct FakeWorker {
    meter: FeedbackMeter,
    counted: Feedback,
    durations: Durations,
    now: f64,
    /// The number of further jobs that complete each second without a usable duration.
    untimed: f64,
}

impl FakeWorker {
    fn new() -> Self {
        Self {
            meter: FeedbackMeter::default(),
            counted: Feedback::default(),
            durations: Durations::default(),
            now: 1000.0,
            untimed: 0.0,
        }
        .seconds(1, 0.0, 0.0, 0.0)
    }

    fn seconds(mut self, seconds: u32, completed: f64, refused: f64, failed: f64) -> Self {
        for _ in 0..seconds {
            self.now += 1.0;
            self.counted.completed += completed + self.untimed;
            self.counted.untimed += self.untimed;
            self.counted.refused += refused;
            self.counted.failed += failed;
            self.counted.busy_s += 0.5 * completed;
            // One in twenty takes two seconds.
            for nth in 0..(completed as u32) {
                self.durations
                    .note(std::time::Duration::from_millis(if nth % 20 == 19 {
                        2000
                    } else {
                        400
                    }));
            }
            let durations = self.durations.clone();
            let reported = WorkerFeedback {
                worker: 1,
                counted: self.counted,
                durations,
                running: 1.0,
                age_s: 0.0,
                born_s: 500.0,
            };
            self.meter.take_in(&[reported], self.now);
        }
        self
    }
}

fn values(samples: &[SignalSample]) -> Vec<Option<f64>> {
    samples.iter().map(|sample| sample.value).collect()
}

#[test]
fn what_is_heard_is_of_the_last_step_or_of_what_a_signal_averages_over_and_in_its_own_unit() {
    let work = FakeWorker::new()
        .seconds(15, 10.0, 0.0, 10.0)
        .seconds(5, 8.0, 2.0, 0.0);

    let heard = feedback_samples(&policy(), &work.meter, Some(1016.0), f64::NEG_INFINITY);

    assert_eq!(
        values(&heard),
        [Some(0.2), Some(150.0 / 350.0), Some(500.0)]
    );
    assert!(heard.iter().all(|sample| sample.at == 1021.0));
}

#[test]
fn nothing_new_is_a_sample_without_a_value_and_never_a_share_of_zero() {
    let work = FakeWorker::new().seconds(5, 0.0, 0.0, 0.0);

    let silent = feedback_samples(&policy(), &work.meter, Some(1001.0), f64::NEG_INFINITY);
    let again = feedback_samples(&policy(), &work.meter, Some(1006.0), f64::NEG_INFINITY);
    let never = feedback_samples(
        &policy(),
        &FeedbackMeter::default(),
        None,
        f64::NEG_INFINITY,
    );

    for samples in [silent, again, never] {
        assert_eq!(values(&samples), [None, None, None]);
    }
}

#[test]
fn where_nothing_is_at_work_nothing_is_refused_and_no_more_is_known() {
    let mut meter = FeedbackMeter::default();
    meter.take_in(&[], 1000.0);
    meter.take_in(&[], 1005.0);
    assert_eq!(
        values(&feedback_samples(
            &policy(),
            &meter,
            Some(1000.0),
            f64::NEG_INFINITY
        )),
        [Some(0.0), None, None]
    );
}

#[test]
fn the_slowest_hundredth_is_heard_once_enough_has_ended() {
    let text = "[[signal]]\nname = \"p99\"\nsource = \"feedback\"\nquery = \"latency_p99\"\nsetpoint = 1000\nscale = 1000\ntrip = 5000\n";
    let policy = Policy::parse(text, "f").unwrap().unwrap();
    assert!(policy.uses_durations());
    let many = FakeWorker::new().seconds(5, 40.0, 0.0, 0.0);
    let heard_ms = values(&feedback_samples(
        &policy,
        &many.meter,
        Some(1001.0),
        f64::NEG_INFINITY,
    ))[0]
        .unwrap();
    assert!((1600.0..=2400.0).contains(&heard_ms), "{heard_ms}");
    assert_eq!(
        fast_samples(&policy, &many.meter, f64::NEG_INFINITY)[0].value,
        Some(heard_ms)
    );
    let few = FakeWorker::new().seconds(5, 3.0, 0.0, 0.0);
    assert_eq!(
        values(&feedback_samples(
            &policy,
            &few.meter,
            Some(1001.0),
            f64::NEG_INFINITY
        )),
        [None]
    );
    assert_eq!(fast_samples(&policy, &few.meter, f64::NEG_INFINITY), []);
}

#[test]
fn what_is_discounted_is_not_among_the_slowest_and_alone_is_a_sample_without_a_value() {
    let text = "[[signal]]\nname = \"p99\"\nsource = \"feedback\"\nquery = \"latency_p99\"\nsetpoint = 1\n";
    let policy = Policy::parse(text, "f").unwrap().unwrap();
    let hear = |work: &FakeWorker| {
        values(&feedback_samples(
            &policy,
            &work.meter,
            Some(work.now - 5.0),
            work.now - 5.0,
        ))[0]
    };
    let plain = FakeWorker::new().seconds(5, 40.0, 0.0, 0.0);
    let expected = hear(&plain);
    assert!(expected.is_some());
    let mut mixed = FakeWorker::new();
    mixed.untimed = 30.0;
    assert_eq!(
        hear(&mixed.seconds(5, 40.0, 0.0, 0.0)),
        expected,
        "however long they took"
    );
    let mut alone = FakeWorker::new().seconds(5, 40.0, 0.0, 0.0);
    alone.untimed = 30.0;
    let alone = alone.seconds(5, 0.0, 0.0, 0.0);
    assert_eq!(hear(&alone), None);
    let step = alone.meter.over(5.0).unwrap().work;
    assert_eq!((step.completed, step.untimed), (150.0, 150.0));
}

#[test]
fn the_fast_path_hears_signals_that_trip_once_enough_has_ended() {
    let few = FakeWorker::new().seconds(5, 0.5, 0.5, 0.0);
    assert_eq!(fast_samples(&policy(), &few.meter, f64::NEG_INFINITY), []);

    let many = FakeWorker::new()
        .seconds(10, 10.0, 0.0, 0.0)
        .seconds(5, 1.0, 3.0, 0.0);
    let looks = fast_samples(&policy(), &many.meter, f64::NEG_INFINITY);
    assert_eq!(
        looks,
        [SignalSample {
            signal: "refusals".into(),
            value: Some(0.75),
            at: 1016.0
        }]
    );

    // Feedback from before a restart carries no information about later work.
    let restarted = FakeWorker::new()
        .seconds(10, 0.0, 10.0, 0.0)
        .seconds(3, 10.0, 0.0, 0.0);
    assert_eq!(
        fast_samples(&policy(), &restarted.meter, 1011.0)[0].value,
        Some(0.0)
    );
    let errors = FakeWorker::new()
        .seconds(10, 0.0, 0.0, 10.0)
        .seconds(5, 10.0, 0.0, 0.0);
    assert_eq!(
        feedback_samples(&policy(), &errors.meter, Some(1011.0), 1011.0)[1].value,
        Some(0.0)
    );
}

#[tokio::test]
async fn a_server_that_nobody_has_set_is_told_with_those_that_are() {
    let sources = Sources::new(Prometheus::new("http://x").unwrap())
        .with_server("east", Prometheus::new("http://y").unwrap())
        .with_database(
            "main",
            SignalDatabase::new("main", "postgres://x/y").unwrap(),
        );
    let eyes = |lines: &str| {
        let text = format!("[[signal]]\nname = \"a\"\nquery = \"q\"\nsetpoint = 1\n{lines}\n");
        sources
            .direct_sources(&Policy::parse(&text, "f").unwrap().unwrap())
            .map(|_| ())
            .map_err(|error| error.to_string())
    };
    assert_eq!(eyes("server = \"east\""), Ok(()));
    assert_eq!(eyes("source = \"postgres\"\nserver = \"main\""), Ok(()));
    let reported = eyes("server = \"west\"").unwrap_err();
    assert_eq!(
        reported,
        "prometheus \"west\" cannot be used: signal a names it as its server; the settings define \
         east"
    );
    assert!(
        eyes("source = \"postgres\"\nserver = \"east\"")
            .unwrap_err()
            .ends_with("define main")
    );
}

#[test]
fn the_fast_path_looks_at_what_can_trip_and_does_not_pass_through_prometheus() {
    let of = |lines: &str| {
        can_look(
            &Policy::parse(
                &format!("[[signal]]\nname = \"a\"\nsetpoint = 0.2\n{lines}\n"),
                "f",
            )
            .unwrap()
            .unwrap(),
        )
    };
    assert!(!of("query = \"q\""));
    assert!(of(
        "query = \"q\"\nprobe = \"http://x\"\nprobe_metric = \"a\""
    ));
    assert!(!of(
        "query = \"q\"\nprobe = \"http://x\"\nprobe_metric = \"a\"\n[governor]\nbreaker = false"
    ));
    assert!(of("source = \"http\"\nurl = \"http://x\"\nmetric = \"a\""));
    assert!(of("source = \"depth\"\nquery = \"t\""));
    assert!(!of("source = \"feedback\"\nquery = \"latency\""));
    assert!(of("source = \"feedback\"\nquery = \"latency\"\ntrip = 1"));
}

#[tokio::test]
async fn a_sample_by_a_clock_that_is_ahead_says_so_instead_of_nothing() {
    let text =
        "[[signal]]\nname = \"waiting\"\nsource = \"depth\"\nquery = \"mails\"\nsetpoint = 5000\n";
    let policy = Policy::parse(text, "f").unwrap().unwrap();
    for (ahead_s, expected) in [
        (50.0, None),
        (120.0, Some("the sample is dated 120 s in the future")),
    ] {
        let depth: DepthSource = Arc::new(move |_| {
            let depth = Depth {
                ready: 12.0,
                oldest_s: 0.0,
                at: 1000.0 + ahead_s,
            };
            Box::pin(std::future::ready(Ok(depth)))
        });
        let sources =
            Sources::new(Prometheus::new("http://127.0.0.1:9").unwrap()).with_depth(depth);
        let direct = sources.direct_sources(&policy).unwrap();
        let read = sources
            .read(&policy, &direct, 1000.0, false)
            .await
            .remove(0);
        assert_eq!(
            read.err().map(|error| error.to_string()).as_deref(),
            expected
        );
    }
}

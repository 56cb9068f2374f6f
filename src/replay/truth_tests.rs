//! The error of a replay: known plants are recorded under some other control, replayed, and
//! compared with the governor's real result on the same plant with the same noise.
//! `docs/governor.md` lists the figures.

use super::record::Recording;
use super::report::{ERROR_JOBS, ERROR_OVERLOAD, ReplayReport, replay};
use super::run::ReplaySettings;
use crate::control::ewma::smooth;
use crate::governor::RateLimit;
use crate::governor::{Bounds, ControlState, Observation, Policy, SignalSample};
use crate::signals::Reading;

const POLICY: &str = "[[signal]]\nname = \"load\"\nquery = \"load\"\nsetpoint = 2.0\nlag_s = 60\n";
const START: f64 = 1_700_000_000.0;
const DELAY_S: f64 = 20.0;
const BOUNDS: Bounds = Bounds {
    min: 0.5,
    max: 2000.0,
    safe_rps: 5.0,
};

/// Background and cost per job, in setpoints, at each second.
type Plant = fn(f64) -> (f64, f64);
type ReportCheck = fn(&ReplayReport);

/// The control of the rate during the recording.
#[derive(Clone, Copy, Debug)]
enum Control {
    Governed,
    /// A plain proportional step every 30 s in the linear domain, which overshoots and swings.
    Plain,
    /// A person who changes the rate now and then.
    ByHand,
    /// A timetable that knows nothing of the load.
    Timetable,
    Fixed(f64),
}

struct Truth {
    record: Recording,
    overload_s: f64,
    jobs: f64,
}

/// Even noise from -1 to 1, the same in every run.
struct Noise(u32);

impl Noise {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        f64::from(self.0 >> 8) / f64::from(1u32 << 23) - 1.0
    }
}

/// Plays a plant for `seconds` under a control.
fn play(plant: Plant, control: Control, seconds: u32, seed: u32) -> Truth {
    let policy = Policy::parse(POLICY, "x.toml").unwrap().unwrap();
    let mut noise = Noise(seed);
    let mut knob = if let Control::Fixed(rate) = control {
        rate
    } else {
        20.0
    };
    let mut state = ControlState::new(&policy, BOUNDS, RateLimit::new(knob), START);
    let (mut average, mut swing) = (plant(0.0).0 + plant(0.0).1 * knob, 0.0);
    let mut samples: Vec<Reading> = Vec::new();
    let mut truth = Truth {
        record: Recording::default(),
        overload_s: 0.0,
        jobs: 0.0,
    };
    for second in 1..=seconds {
        let (since, t) = (f64::from(second), START + f64::from(second));
        let (b, c) = plant(since);
        // The background swings within two minutes; the run queue is noisy within seconds.
        swing += (-swing) / 120.0 + 0.12 * (2.0f64 / 120.0).sqrt() * 1.7 * noise.next();
        let load = (b * (1.0 + swing) + c * knob).max(0.0);
        average = smooth(
            average,
            load * (1.0 + 2.0 * noise.next()).max(0.0),
            1.0,
            60.0,
        );
        truth.jobs += knob;
        if second % 15 == 7 {
            samples.push(Reading {
                value: 2.0 * average,
                at: t,
            });
        }
        truth.overload_s += samples
            .last()
            .map_or(0.0, |s| (s.value / 2.0 - 1.0).max(0.0));
        if second % 5 == 0 {
            truth.record.rate.push(Reading { value: knob, at: t });
            let visible: Vec<&Reading> = samples.iter().filter(|s| s.at + DELAY_S <= t).collect();
            let newest = visible.last().map(|s| s.value / 2.0);
            match control {
                Control::Governed => {
                    let readings = visible.iter().rev().take(3);
                    let readings = readings
                        .map(|s| SignalSample {
                            signal: "load".to_owned(),
                            value: Some(s.value),
                            at: s.at,
                        })
                        .collect();
                    let (achieved_rps, limiting_share) = (Some(knob), Some(1.0));
                    let seen = Observation {
                        now: t,
                        readings,
                        achieved_rps,
                        limiting_share,
                        ..Observation::default()
                    };
                    knob = state.tick(&policy, BOUNDS, &seen).rps;
                }
                Control::Plain if second % 30 == 0 => {
                    knob =
                        (knob + 15.0 * (1.0 - newest.unwrap_or(1.0)).max(-2.0)).clamp(2.0, 500.0);
                }
                Control::ByHand if second % 600 == 0 => {
                    let level = newest.unwrap_or(0.5);
                    knob *= if level > 1.0 {
                        0.5
                    } else if level > 0.7 {
                        0.85
                    } else {
                        1.6
                    };
                }
                Control::Timetable if second % 1200 == 0 => {
                    knob = if second % 2400 == 0 { 20.0 } else { 32.0 };
                }
                _ => {}
            }
        }
    }
    truth.record.signals.insert("load".to_owned(), samples);
    truth
}

fn step(t: f64) -> (f64, f64) {
    (0.25, if t < 1800.0 { 0.008 } else { 0.04 })
}

fn evening(t: f64) -> (f64, f64) {
    (
        if t < 3600.0 {
            0.7
        } else {
            0.7 - 0.5 * ((t - 3600.0) / 3600.0).min(1.0)
        },
        0.01,
    )
}

fn wander(t: f64) -> (f64, f64) {
    (
        0.3 + 0.1 * (t / 900.0).sin(),
        0.01 * (0.7 * (t / 1700.0).sin()).exp(),
    )
}

fn burst(t: f64) -> (f64, f64) {
    (
        if (3000.0..3900.0).contains(&t) {
            1.2
        } else {
            0.3
        },
        0.01,
    )
}

fn steady(_: f64) -> (f64, f64) {
    (0.3, 0.01)
}

const PLANTS: [(&str, Plant); 5] = [
    ("cost x5", step),
    ("evening", evening),
    ("wandering cost", wander),
    ("burst", burst),
    ("steady", steady),
];
const SECONDS: u32 = 9000;

fn replayed(
    plant: Plant,
    control: Control,
    seed: u32,
    check: ReportCheck,
) -> (ReplayReport, Truth) {
    let policy = Policy::parse(POLICY, "x.toml").unwrap().unwrap();
    let recorded = play(plant, control, SECONDS, seed);
    let report = replay(
        "x",
        &policy,
        &ReplaySettings {
            bounds: BOUNDS,
            delay_s: DELAY_S,
        },
        &recorded.record,
    )
    .unwrap();
    check(&report);
    (report, play(plant, Control::Governed, SECONDS, seed))
}

#[test]
fn where_the_rate_moved_jobs_and_overload_are_within_what_is_reported_for_them() {
    let (mut jobs, mut overload) = (Vec::new(), Vec::new());
    for (name, plant) in PLANTS {
        for control in [Control::Plain, Control::ByHand, Control::Timetable] {
            let (mut says, mut truths) = ((0.0, 0.0), (0.0, 0.0));
            for seed in 1..=3 {
                let (report, truth) = replayed(plant, control, seed, |report| {
                    assert_eq!(report.would_be[0].share, None)
                });
                let figures = &report.would_be[0].figures;
                says = (says.0 + figures.jobs, says.1 + figures.overload_s);
                truths = (truths.0 + truth.jobs, truths.1 + truth.overload_s);
            }
            let off = |says: f64, truth: f64| 100.0 * (says / truth - 1.0);
            let (j, o) = (off(says.0, truths.0), off(says.1, truths.1));
            println!(
                "| {name} | {control:?} | {:.0} / {:.0} ({j:+.0} %) | {:.0} / {:.0} ({o:+.0} %) |",
                says.0 / 3.0,
                truths.0 / 3.0,
                says.1 / 3.0,
                truths.1 / 3.0
            );
            jobs.push(j);
            overload.push(o);
        }
    }
    let spread = |all: &[f64]| {
        (
            all.iter().copied().fold(f64::MAX, f64::min),
            all.iter().copied().fold(f64::MIN, f64::max),
        )
    };
    let ((jobs_low, jobs_high), (low, high)) = (spread(&jobs), spread(&overload));
    println!("jobs {jobs_low:+.1} to {jobs_high:+.1} %, overload {low:+.1} to {high:+.1} %");
    assert!(
        jobs_low >= ERROR_JOBS.0 && jobs_high <= ERROR_JOBS.1,
        "{jobs_low} to {jobs_high}"
    );
    assert!(
        low >= ERROR_OVERLOAD.0 && high <= ERROR_OVERLOAD.1,
        "{low} to {high}"
    );
}

#[test]
fn the_recording_of_a_governor_is_given_back() {
    let (report, truth) = replayed(wander, Control::Governed, 1, |report| {
        assert_eq!(report.would_be[0].share, None)
    });
    let figures = &report.would_be[0].figures;
    assert!(
        (figures.jobs / truth.jobs - 1.0).abs() < 0.03,
        "{figures:?} and {} jobs",
        truth.jobs
    );
    assert!(
        (figures.overload_s / truth.overload_s - 1.0).abs() < 0.15,
        "{figures:?} and {} s",
        truth.overload_s
    );
    assert!(
        (report.recorded.jobs / truth.jobs - 1.0).abs() < 0.005,
        "{:?} and {} jobs",
        report.recorded,
        truth.jobs
    );
}

#[test]
fn the_recording_of_a_fixed_rate_is_answered_by_a_range_around_the_truth() {
    for seed in 1..=4 {
        let (report, truth) = replayed(steady, Control::Fixed(30.0), seed, |report| {
            assert_eq!(report.would_be.len(), 3)
        });
        let jobs: Vec<f64> = report
            .would_be
            .iter()
            .map(|variant| variant.figures.jobs)
            .collect();
        println!("{jobs:?} around {}", truth.jobs);
        assert!(
            jobs[2] < truth.jobs && truth.jobs < jobs[0],
            "{jobs:?} around {}",
            truth.jobs
        );
    }
}

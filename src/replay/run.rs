//! The governor in closed loop on a recording.
//!
//! In every second the load follows from the smoothed background and cost and from the governor's
//! own rate. It is seen through the exporter's average, at the recorded times, with the recorded
//! deviation from the model as noise. At the recorded rate this gives the recording back, sample by
//! sample.

use super::record::Recording;
use super::smooth::{Model, Track};
use crate::control::clamp_finite;
use crate::control::ewma::smooth;
use crate::governor::RateLimit;
use crate::governor::{Bounds, ControlState, Observation, Phase, Policy, SignalSample};

/// Largest factor by which the recorded deviation from the model grows or shrinks with the load, as
/// a queue's noise does.
const NOISE_FACTOR_MAX: f64 = 2.0;
/// Number of usual spacings for which a sample is valid; beyond, nothing is known.
const HOLD_SPANS: f64 = 3.0;
/// Number of points of a course that are kept for a picture.
const COURSE_POINTS: f64 = 1200.0;

/// Settings of the replayed governor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ReplaySettings {
    /// Knobs that bound the governor.
    pub bounds: Bounds,
    /// Delay from a sample's own time until the governor sees it, in seconds.
    pub delay_s: f64,
}

/// Totals of a recording or of a replay.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
pub struct Figures {
    /// Jobs let through.
    pub jobs: f64,
    /// Integral of the load above the setpoint, in setpoint seconds; of several signals the highest
    /// counts.
    pub overload_s: f64,
    /// Integral of the load above 1.2 setpoints, which leaves most of the noise out, in setpoint
    /// seconds.
    pub overload_20_s: f64,
    /// The highest sample, in setpoints.
    pub peak: f64,
    /// Trips of the breaker; `None` for a recording.
    pub trips: Option<u32>,
    /// Seconds during which the breaker held the work up; `None` for a recording.
    pub stopped_s: Option<f64>,
}

/// A moment of a course; loads are in setpoints, of the signal that is highest then.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ReplayPoint {
    /// Seconds from the beginning.
    pub t_s: f64,
    /// Recorded load.
    pub recorded: f64,
    /// Replayed load.
    pub would_be: f64,
    /// Recorded rate, in jobs per second.
    pub achieved: f64,
    /// Governor's rate, in jobs per second.
    pub knob: f64,
    /// Rate that would bring the load to the setpoint, in jobs per second; infinite if our work
    /// costs nothing.
    pub room: f64,
    /// The background.
    pub background: f64,
    /// Our part of the load at the governor's rate.
    pub ours: f64,
}

/// The outcome of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// Figures of the recording.
    pub recorded: Figures,
    /// Figures of the replay.
    pub would_be: Figures,
    /// Course of both over time.
    pub course: Vec<ReplayPoint>,
}

/// A signal as time passes.
struct Gauge<'a> {
    track: &'a Track,
    model: &'a Model,
    /// The exporter's average at the recorded rate, according to the model.
    recorded: f64,
    /// The exporter's average at the governor's rate, according to the model.
    would_be: f64,
    /// Index of the next sample.
    next: usize,
    /// Time, recorded value and replayed value of the newest sample.
    newest: Option<(f64, f64, f64)>,
    usual_s: f64,
}

impl Gauge<'_> {
    /// Advances by the second that ends at `t`, at these rates; returns the sample taken in it.
    fn second(&mut self, t: f64, recorded_rate: f64, rate: f64) -> Option<(f64, f64)> {
        let (b, c) = self.model.at(t);
        self.recorded = smooth(self.recorded, b + c * recorded_rate, 1.0, self.track.lag_s);
        self.would_be = smooth(self.would_be, b + c * rate, 1.0, self.track.lag_s);
        let mut taken = None;
        while let Some(sample) = self
            .track
            .samples
            .get(self.next)
            .filter(|sample| sample.at <= t)
        {
            let value = self.with_noise(sample.x);
            self.newest = Some((sample.at, sample.x, value));
            taken = Some((sample.at, value));
            self.next += 1;
        }
        taken
    }

    /// Returns the value that the exporter would have shown in place of `x`.
    fn with_noise(&self, x: f64) -> f64 {
        let factor = (self.would_be / self.recorded.max(1e-9)).sqrt();
        (self.would_be
            + (x - self.recorded) * clamp_finite(factor, 1.0 / NOISE_FACTOR_MAX, NOISE_FACTOR_MAX))
        .max(0.0)
    }

    /// Returns the newest sample, recorded and replayed, while it is valid.
    fn newest_loads(&self, t: f64) -> Option<(f64, f64)> {
        self.newest
            .filter(|(at, ..)| t - at <= HOLD_SPANS * self.usual_s)
            .map(|(_, recorded, would_be)| (recorded, would_be))
    }
}

/// Runs the governor of `policy`, whose signals are those of `tracks` in their order, on a
/// recording from `from` to `to`.
pub fn run(
    policy: &Policy,
    settings: &ReplaySettings,
    record: &Recording,
    tracks: &[(Track, Model)],
    (from, to): (f64, f64),
) -> Outcome {
    let bounds = settings.bounds.sound();
    let mut gauges: Vec<Gauge> = tracks
        .iter()
        .map(|(track, model)| gauge(track, model))
        .collect();
    let start = clamp_finite(
        record.mean_rate(from, from + policy.law.tick_s),
        bounds.min,
        bounds.max,
    );
    let mut state = ControlState::new(policy, bounds, RateLimit::new(start), from);
    let mut knob = start;
    let mut unseen: Vec<SignalSample> = Vec::new();
    let (mut jobs_since_tick, mut ticked) = (0.0, from);
    let mut outcome = Outcome::default();
    let (mut trips, mut stopped_s, mut was_open) = (0, 0.0, false);
    let every_s = ((to - from) / COURSE_POINTS).max(1.0).ceil();
    for second in 1..=((to - from).floor() as u64) {
        let t = from + second as f64;
        let recorded_rate = record.mean_rate(t - 1.0, t);
        outcome.recorded.jobs += recorded_rate;
        outcome.would_be.jobs += knob;
        jobs_since_tick += knob;
        for gauge in &mut gauges {
            if let Some((at, value)) = gauge.second(t, recorded_rate, knob) {
                unseen.push(SignalSample {
                    signal: gauge.track.name.clone(),
                    value: Some(value * gauge.track.setpoint),
                    at,
                });
            }
        }
        count(&mut outcome, &gauges, t);
        if second % every_s as u64 == 0 {
            outcome
                .course
                .extend(moment(&gauges, t, from, recorded_rate, knob));
        }

        let looks: Vec<SignalSample> = policy
            .signals
            .iter()
            .zip(&gauges)
            .filter_map(|(about, gauge)| look(about, gauge, t))
            .collect();
        if !looks.is_empty()
            && let Some(plan) = state.fast(policy, bounds, t, Some(knob), &looks)
        {
            knob = plan.rps;
        }
        if t - ticked >= policy.law.tick_s {
            let (seen, later) = unseen
                .into_iter()
                .partition(|sample| sample.at + settings.delay_s <= t);
            unseen = later;
            let observation = Observation {
                now: t,
                readings: seen,
                achieved_rps: Some(jobs_since_tick / (t - ticked)),
                limiting_share: Some(1.0),
                ..Observation::default()
            };
            knob = state.tick(policy, bounds, &observation).rps;
            (jobs_since_tick, ticked) = (0.0, t);
        }
        let open = state.breaker.phase == Phase::Open;
        trips += u32::from(open && !was_open);
        stopped_s += f64::from(u8::from(open));
        was_open = open;
    }
    (outcome.would_be.trips, outcome.would_be.stopped_s) = (Some(trips), Some(stopped_s));
    outcome
}

fn gauge<'a>(track: &'a Track, model: &'a Model) -> Gauge<'a> {
    let first = track.samples.first().map_or(0.0, |sample| sample.x);
    let mut spans: Vec<f64> = track.samples.iter().map(|sample| sample.span_s).collect();
    spans.sort_by(f64::total_cmp);
    let usual_s = spans.get(spans.len() / 2).copied().unwrap_or(15.0);
    Gauge {
        track,
        model,
        recorded: first,
        would_be: first,
        next: 0,
        newest: None,
        usual_s,
    }
}

/// Returns the sample that the breaker's own probe would have read, if the policy has one.
fn look(
    about: &crate::governor::policy::SignalPolicy,
    gauge: &Gauge,
    t: f64,
) -> Option<SignalSample> {
    about.probe.as_ref()?;
    let x = gauge.newest.map_or(gauge.would_be, |(at, x, _)| {
        if at == t {
            gauge.with_noise(x)
        } else {
            gauge.would_be
        }
    });
    Some(SignalSample {
        signal: about.name.clone(),
        value: Some(x * about.setpoint),
        at: t,
    })
}

fn count(outcome: &mut Outcome, gauges: &[Gauge], t: f64) {
    let Some((recorded, would_be)) = shown(gauges, t) else {
        return;
    };
    for (figures, x) in [
        (&mut outcome.recorded, recorded),
        (&mut outcome.would_be, would_be),
    ] {
        figures.overload_s += (x - 1.0).max(0.0);
        figures.overload_20_s += (x - 1.2).max(0.0);
        figures.peak = figures.peak.max(x);
    }
}

/// Returns the highest of the signals' newest samples, recorded and replayed.
fn shown(gauges: &[Gauge], t: f64) -> Option<(f64, f64)> {
    gauges
        .iter()
        .filter_map(|gauge| gauge.newest_loads(t))
        .reduce(|a, b| (a.0.max(b.0), a.1.max(b.1)))
}

fn moment(gauges: &[Gauge], t: f64, from: f64, achieved: f64, knob: f64) -> Option<ReplayPoint> {
    let (recorded, would_be) = shown(gauges, t)?;
    let model = |gauge: &Gauge| gauge.model.at(t);
    let room = gauges
        .iter()
        .map(model)
        .map(|(b, c)| (1.0 - b).max(0.0) / c.max(1e-300))
        .fold(f64::INFINITY, f64::min);
    let highest = gauges
        .iter()
        .max_by(|a, b| a.would_be.total_cmp(&b.would_be))
        .map(model);
    let (background, cost) = highest.unwrap_or_default();
    Some(ReplayPoint {
        t_s: t - from,
        recorded,
        would_be,
        achieved,
        knob,
        room,
        background,
        ours: cost * knob,
    })
}

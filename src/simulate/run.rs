//! Closes the loop between a plant and a controller, second by second.

use super::contender::Contender;
use super::controller::Controller;
use super::disturbance::Disturbance;
use super::exporter::{ExporterPage, Series};
use super::mail::MailDay;
use super::plant::{self, Machine};
use super::scenario::Scenario;
use crate::governor::RateLimit;
use crate::governor::policy::{FeedbackKind, SignalKind, SignalPolicy, SignalSource};
use crate::governor::{Actuator, Observation, SignalSample, counters::Flow};

/// Fewest jobs from which the 99th percentile is reported.
const P99_LEAST: f64 = 20.0;

/// The state of one second.
#[derive(Clone, Debug, PartialEq)]
pub struct SimulatedSecond {
    /// Time, in seconds.
    pub t: f64,
    /// The knob as the throttle obeys it: jobs per second, or jobs at once.
    pub knob: f64,
    /// Jobs that ran, per second, without those that a provider refused.
    pub achieved: f64,
    /// The greatest rate at which no signal would be above its setpoint now.
    pub oracle: f64,
    /// Published load over its setpoint, of the signal with the highest ratio.
    pub x: f64,
    /// True load of this second over its setpoint, of the signal with the highest ratio.
    pub true_x: f64,
    /// Share of the requests that a provider refused.
    pub refused: f64,
}

/// The governor's reasons at a tick, for drawing.
#[derive(Clone, Debug)]
pub struct TickRecord {
    /// Time, in seconds.
    pub t: f64,
    /// The signal or limit that decided.
    pub limiting: String,
    /// Terms of the deciding signal's controller, in nats.
    pub pid: [f64; 3],
    /// Background and own part of the load of the first signal, in setpoints, as the model
    /// estimates them.
    pub model: Option<(f64, f64)>,
}

/// The record of a whole run.
#[derive(Clone, Debug, Default)]
pub struct SimulationRecord {
    /// Every second.
    pub seconds: Vec<SimulatedSecond>,
    /// Every tick of the governor; empty for other controllers.
    pub thoughts: Vec<TickRecord>,
}

/// Runs `contender` through `scenario` on the day `disturbance`.
pub fn run(
    scenario: &Scenario,
    disturbance: &Disturbance,
    contender: Contender,
) -> SimulationRecord {
    let controller = contender.start(&scenario.policy, scenario.bounds, scenario.start_rps);
    Loop::new(scenario, disturbance, controller).run()
}

struct Loop<'a> {
    scenario: &'a Scenario,
    disturbance: &'a Disturbance,
    controller: Box<dyn Controller>,
    page: ExporterPage<'a>,
    /// Entries in the queue that the jobs fill.
    depth: f64,
    /// The last day of the account whose mails are governed.
    mail: Option<MailDay>,
    knob: f64,
    /// Time of the last write to the knob, in seconds.
    written: f64,
    was_down: bool,
    since_tick: Since,
    /// By second: the jobs that ended, and their total time if each took the 99th percentile.
    slowest: Vec<(f64, f64)>,
    record: SimulationRecord,
}

/// Totals between two ticks.
#[derive(Default)]
struct Since {
    seconds: f64,
    taken: f64,
    waited_s: f64,
    completed: f64,
    rejected: f64,
    busy_s: f64,
}

impl<'a> Loop<'a> {
    fn new(
        scenario: &'a Scenario,
        disturbance: &'a Disturbance,
        controller: Box<dyn Controller>,
    ) -> Self {
        // No jobs ran before, so the averages begin with the background.
        let page = ExporterPage::new(
            scenario,
            disturbance,
            series(&machines(scenario, disturbance, 0), 0.0),
        );
        let knob = scenario.start_rps;
        Self {
            scenario,
            disturbance,
            controller,
            page,
            depth: 0.0,
            mail: scenario.mail.as_ref().map(|mail| MailDay::new(mail, knob)),
            knob,
            written: 0.0,
            was_down: false,
            since_tick: Since::default(),
            slowest: Vec::new(),
            record: SimulationRecord::default(),
        }
    }

    fn run(mut self) -> SimulationRecord {
        let tick_s = self.scenario.policy.law.tick_s.round().max(1.0) as u64;
        for t in 1..=self.scenario.duration_s {
            self.second(t);
            let now = t as f64;
            let down = self
                .scenario
                .governor_down_s
                .iter()
                .any(|&(from, to)| now >= from && now < to);
            if !down && (self.scenario.exporter.probe || self.scenario.queue.is_some()) {
                self.look(now);
            }
            if t.is_multiple_of(tick_s) {
                if down {
                    // The governor reads nothing now; samples that became visible meanwhile are
                    // read later, with their own times.
                    self.was_down = true;
                    continue;
                }
                if std::mem::take(&mut self.was_down) {
                    self.controller.take_over(now, self.obeyed(now));
                }
                self.tick(t);
            }
        }
        self.record
    }

    /// Returns the rate that the throttle obeys: after its lease the knob counts for no more than
    /// `safe_rps`.
    fn obeyed(&self, now: f64) -> f64 {
        let law = &self.scenario.policy.law;
        let lapsed = law.actuator == Actuator::Rps && now - self.written > law.lease_s();
        if lapsed {
            self.knob.min(self.scenario.bounds.safe_rps)
        } else {
            self.knob
        }
    }

    fn second(&mut self, t: u64) {
        let (now, jobs) = (t as f64, &self.scenario.jobs);
        let machines = machines(self.scenario, self.disturbance, t as usize);
        let knob = self.obeyed(now);
        let demand = jobs.demand.at(now);
        let slots = self.scenario.policy.law.actuator == Actuator::Concurrency;
        let (at_work, base_s) = self.at_work(&machines, t as usize);
        let rate = match slots {
            false => plant::achieved(at_work, base_s, jobs.in_flight, knob.min(demand)),
            true => plant::achieved(at_work, base_s, jobs.in_flight.min(knob), demand),
        };
        let duration_s = plant::duration_s(at_work, base_s, rate);
        let quota = self
            .scenario
            .quota
            .as_ref()
            .map_or(f64::INFINITY, |quota| quota.rps.at(now));
        let done = rate.min(quota);

        let since = &mut self.since_tick;
        since.seconds += 1.0;
        // The use of the knob, in tokens or slots.
        let taken = if slots { rate * duration_s } else { rate };
        since.taken += taken;
        since.waited_s += if taken >= 0.999 * knob { 1.0 } else { 0.0 };
        since.completed += done;
        since.rejected += rate - done;
        since.busy_s += done * duration_s;
        self.slowest
            .push((done, done * plant::duration_p99_s(at_work, base_s, rate)));
        let drain = self.drain(t as usize);
        self.depth = (self.depth + done - drain).max(0.0);

        if let (Some(day), Some(account)) = (&mut self.mail, &self.scenario.mail) {
            let draws = &self.disturbance.durations;
            let draw = draws.get(t as usize).copied().unwrap_or(0.0);
            day.second(account, now, done, draw);
        }

        let real = series(&machines, rate);
        self.page.second(t, &real);
        let worst = |shown: &[Series]| {
            let over = self.scenario.policy.signals.iter().filter_map(|signal| {
                let (n, kind) = self.scenario.resource_of(&signal.query)?;
                Some(value(&shown[n], kind) / signal.setpoint)
            });
            over.fold(0.0, f64::max)
        };
        let heard = self.scenario.policy.signals.iter();
        let heard = heard.filter_map(|signal| {
            if self.scenario.fills(signal) {
                return Some(self.depth / signal.setpoint);
            }
            Some(took_s(signal, at_work, base_s, rate)? * signal.scale / signal.setpoint)
        });
        let heard = heard.fold(0.0, f64::max);
        let (read, drawn) = self.complaints_x(now);
        let x = worst(&self.page.series).max(heard).max(read);
        let true_x = worst(&real).max(heard).max(drawn);
        let possible = self.oracle(
            &machines,
            (at_work, base_s),
            now,
            demand.min(quota).min(drain),
        );
        self.controller.learn_possible(possible);
        self.record.seconds.push(SimulatedSecond {
            t: now,
            knob,
            achieved: done,
            oracle: possible,
            x,
            true_x,
            refused: if rate > 0.0 { 1.0 - done / rate } else { 0.0 },
        });
    }

    /// Returns the machines and the base time, in seconds, that make the duration of a job in the
    /// second `t`.
    fn at_work<'m>(&self, machines: &'m [Machine], t: usize) -> (&'m [Machine], f64) {
        let jobs = &self.scenario.jobs;
        jobs.answer_s
            .as_ref()
            .map_or((machines, jobs.base_s), |curve| {
                let factor = self.disturbance.answers.get(t).copied().unwrap_or(1.0);
                (&machines[..0], curve.at(t as f64) * factor)
            })
    }

    /// Returns the entries that the queue can give in the second `t`; without a queue there is no
    /// end to it.
    fn drain(&self, t: usize) -> f64 {
        self.scenario.queue.as_ref().map_or(f64::INFINITY, |queue| {
            queue.drain.at(t as f64) * self.disturbance.drains.get(t).copied().unwrap_or(1.0)
        })
    }

    /// Returns the greatest rate at which every signal is at its setpoint or below, with full
    /// knowledge and no delay; a queue stays as it is.
    fn oracle(
        &self,
        machines: &[Machine],
        (at_work, base_s): (&[Machine], f64),
        now: f64,
        most: f64,
    ) -> f64 {
        let (jobs, bounds) = (&self.scenario.jobs, self.scenario.bounds);
        let allowed = |rate: f64| {
            self.scenario.policy.signals.iter().all(|signal| {
                if let Some(account) = self.scenario.complained_of(signal) {
                    return account.lasting_share(now, rate) <= signal.setpoint;
                }
                if let Some(took_s) = took_s(signal, at_work, base_s, rate) {
                    return took_s * signal.scale <= signal.setpoint;
                }
                let Some((n, kind)) = self.scenario.resource_of(&signal.query) else {
                    return true;
                };
                let machine = machines[n];
                let value = if kind == SignalKind::Load {
                    machine.load(rate)
                } else {
                    machine.p99_s(rate)
                };
                value <= signal.setpoint
            })
        };
        let most = match self.scenario.policy.law.actuator {
            Actuator::Rps => plant::achieved(at_work, base_s, jobs.in_flight, most.min(bounds.max)),
            Actuator::Concurrency => {
                plant::achieved(at_work, base_s, jobs.in_flight.min(bounds.max), most)
            }
        };
        plant::greatest(most, allowed)
    }

    fn look(&mut self, now: f64) {
        let achieved = self
            .record
            .seconds
            .last()
            .map_or(0.0, |second| second.achieved);
        let mut looks = self.depths(now);
        if self.scenario.exporter.probe {
            looks.extend(self.samples(now, &self.page.series, Some(SignalKind::Load)));
        }
        if let Some(rps) = self.controller.look(now, achieved, &looks) {
            (self.knob, self.written) = (rps, now);
        }
    }

    fn tick(&mut self, t: u64) {
        let now = t as f64;
        let since = std::mem::take(&mut self.since_tick);
        let visible = self.page.visible(now);
        let mut readings: Vec<SignalSample> = visible
            .iter()
            .flat_map(|(at, shown)| self.samples(*at, shown, None))
            .collect();
        readings.extend(self.slowest_hundredth(now, t as usize));
        readings.extend(self.depths(now));
        readings.extend(self.complaints(now));
        let flow = Flow {
            achieved_rps: since.taken / since.seconds,
            limiting_share: since.waited_s / since.seconds,
        };
        let reported = self.scenario.jobs.durations && since.completed > 0.0;
        let draw = self
            .disturbance
            .durations
            .get(t as usize)
            .copied()
            .unwrap_or(0.0);
        let seen = Observation {
            now,
            readings,
            achieved_rps: Some(flow.achieved_rps),
            limiting_share: Some(flow.limited_by(RateLimit::new(self.knob))),
            // The mean of n exponential times has a relative error of 1 / sqrt(n).
            mean_duration_s: reported.then(|| {
                (since.busy_s / since.completed * (1.0 + draw / since.completed.max(1.0).sqrt()))
                    .max(1e-3)
            }),
            completed: since.completed,
            rejected: since.rejected,
            ..Observation::default()
        };
        self.knob = self.controller.tick(&seen);
        self.written = now;
        self.think(now);
    }

    /// Returns the samples of the queue's depth, which is read directly.
    fn depths(&self, now: f64) -> Vec<SignalSample> {
        let signals = self.scenario.policy.signals.iter();
        let of = |signal: &SignalPolicy| SignalSample {
            signal: signal.name.clone(),
            value: Some(self.depth),
            at: now,
        };
        signals
            .filter(|signal| self.scenario.fills(signal))
            .map(of)
            .collect()
    }

    /// Returns the readings of complaints, in the signals' own unit.
    fn complaints(&self, now: f64) -> Vec<SignalSample> {
        let signals = self.scenario.policy.signals.iter();
        let of = |signal: &SignalPolicy| SignalSample {
            signal: signal.name.clone(),
            value: self.mail.as_ref().map(|day| day.reading(now)),
            at: now,
        };
        signals
            .filter(|signal| signal.source == SignalSource::Complaints)
            .map(of)
            .collect()
    }

    /// Returns the share of complaints over its setpoint, as it is read and as it is.
    fn complaints_x(&self, now: f64) -> (f64, f64) {
        let mut signals = self.scenario.policy.signals.iter();
        let signal = signals.find(|signal| signal.source == SignalSource::Complaints);
        signal
            .zip(self.mail.as_ref())
            .map_or((0.0, 0.0), |(signal, day)| {
                let setpoint = signal.setpoint;
                (day.reading(now) / setpoint, day.true_share() / setpoint)
            })
    }

    /// Returns the signals' samples of a page of time `at`; with `only`, those of that kind.
    fn samples(&self, at: f64, shown: &[Series], only: Option<SignalKind>) -> Vec<SignalSample> {
        let signals = self
            .scenario
            .policy
            .signals
            .iter()
            .filter(|signal| only.is_none_or(|kind| kind == signal.kind));
        signals
            .filter_map(|signal| {
                let (n, kind) = self.scenario.resource_of(&signal.query)?;
                Some(SignalSample {
                    signal: signal.name.clone(),
                    value: Some(value(&shown[n], kind)),
                    at,
                })
            })
            .collect()
    }

    /// Returns the 99th percentile of the workers' times, over the averaging time of each signal,
    /// which is twice its lag.
    ///
    /// It is the mean of the seconds' percentiles, weighted by the jobs that ended in each, with
    /// the error of a percentile of so many jobs.
    fn slowest_hundredth(&self, now: f64, t: usize) -> Vec<SignalSample> {
        let draw = self.disturbance.durations.get(t).copied().unwrap_or(0.0);
        let of = |signal: &SignalPolicy| {
            let over_s = self
                .scenario
                .policy
                .law
                .tick_s
                .max(2.0 * signal.lag_s)
                .round()
                .max(1.0) as usize;
            let last = &self.slowest[self.slowest.len().saturating_sub(over_s)..];
            let (n, all_s) = last.iter().fold((0.0, 0.0), |sum, second| {
                (sum.0 + second.0, sum.1 + second.1)
            });
            let value = all_s / n * (1.0 + draw * plant::p99_noise(n)).max(0.1);
            let is_told = self.scenario.jobs.durations && n >= P99_LEAST;
            SignalSample {
                signal: signal.name.clone(),
                value: is_told.then_some(value * signal.scale),
                at: now,
            }
        };
        let signals = self
            .scenario
            .policy
            .signals
            .iter()
            .filter(|signal| signal.feedback == Some(FeedbackKind::LatencyP99));
        signals.map(of).collect()
    }

    fn think(&mut self, t: f64) {
        if let (Some(plan), Some(state)) = (self.controller.plan(), self.controller.state()) {
            let deciding = state.signals.iter().find(|s| {
                plan.terms
                    .get("signal")
                    .is_some_and(|name| *name == *s.name)
            });
            let pid = deciding.map_or([0.0; 3], |signal| {
                let terms = signal
                    .controller
                    .pid()
                    .map(|pid| pid.terms)
                    .unwrap_or_default();
                [terms.p, terms.i, terms.d]
            });
            let model = state.signals.first().and_then(|signal| {
                let observer = &signal.controller.pid()?.observer;
                Some((observer.b, observer.c?))
            });
            let v = plan.rps * state.work.w;
            self.record.thoughts.push(TickRecord {
                t,
                limiting: plan.limiting.clone(),
                pid,
                model: model.map(|(background, cost)| (background, cost * v)),
            });
        }
    }
}

/// Returns the duration of jobs at `rate`, in seconds, as a signal of the work's own times measures
/// it; `None` for other signals.
fn took_s(signal: &SignalPolicy, machines: &[Machine], base_s: f64, rate: f64) -> Option<f64> {
    match signal.feedback? {
        FeedbackKind::Latency => Some(plant::duration_s(machines, base_s, rate)),
        FeedbackKind::LatencyP99 => Some(plant::duration_p99_s(machines, base_s, rate)),
        FeedbackKind::Refused | FeedbackKind::Errors => None,
    }
}

fn value(series: &Series, kind: SignalKind) -> f64 {
    if kind == SignalKind::Load {
        series.load
    } else {
        series.p99_s
    }
}

fn series(machines: &[Machine], rate: f64) -> Vec<Series> {
    machines
        .iter()
        .map(|machine| Series {
            load: machine.load(rate),
            p99_s: machine.p99_s(rate),
        })
        .collect()
}

fn machines(scenario: &Scenario, disturbance: &Disturbance, t: usize) -> Vec<Machine> {
    let days = scenario.resources.iter().zip(&disturbance.days);
    days.map(|(resource, day)| Machine {
        cores: resource.cores,
        background: day.background[t],
        cost: day.cost[t],
    })
    .collect()
}

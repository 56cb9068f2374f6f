//! The pulse test on a live throttle.
//!
//! While it runs, the knob carries the mark of [`crate::governor::calibration`] and a lease of a
//! few seconds that this process renews. The resource is then protected as follows:
//!
//! - a governor leaves a marked knob alone, and its fast path stays armed: a trip stops the work,
//!   and the test finds that it has lost the knob and ends;
//! - the test itself checks, every second, the probes and every load against the levels at which
//!   the governor trips, and ends at a lower one;
//! - if this process dies or hangs the lease lapses: the throttle falls to `safe_rps`, and the
//!   governor goes on from there;
//! - a person or program that turns the knob meanwhile wins: the new rate stays, and the test ends.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::admission::admit;
use super::fit::{LoadSample as Point, Stretch, fit};
use super::knob::LeasedKnob;
use super::outcome::{CalibrationEnd, CalibrationError, CalibrationResult, Preflight};
use super::pulse::{Move, Pulse, Shape};
use crate::governor::counters::Counters;
use crate::governor::explain::Cause;
use crate::governor::policy::{SignalKind, SignalPolicy, SignalSource};
use crate::governor::sources::{probe, sample};
use crate::governor::{Actuator, Bounds, ControlState, Observation, Policy, SignalSample, Sources};
use crate::signals::{self, HttpProbe};
use crate::throttle::{self, Name, Status, Store};

/// Remaining lifetime below which the rate is written again, in milliseconds.
const RENEW_MS: i64 = 11_000;
/// Interval between looks.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(1);
/// Time for which the throttle is observed before a test.
const SURVEY: Duration = Duration::from_secs(3);
/// Longest silence of the store during a test, in seconds.
const STORE_LOST_S: f64 = 5.0;
/// Share of the time with jobs waiting for tokens, above which the throttle counts as the
/// bottleneck.
const BOTTLENECK: f64 = 0.5;
/// Averaging time of the share of time with waiting jobs, and the time from the beginning until it
/// is judged, in seconds.
const IDLE_S: f64 = 20.0;
/// Highest load at which a test may begin, in setpoints.
const BEGIN_MAX: f64 = 1.2;
/// First rate of a test, as a share of the rate in force. A governor that read the knob before it
/// carried the mark cannot overwrite it, because the text of the rate has changed.
const BEGIN_SHARE: f64 = 0.99;
/// A test of one signal of one throttle.
pub struct CalibrationSession {
    store: Arc<dyn Store>,
    sources: Sources,
    probes: Vec<(SignalPolicy, HttpProbe)>,
    name: Name,
    policy: Policy,
    signal: String,
    shape: Shape,
}

/// State carried from look to look.
struct CalibrationProgress {
    state: ControlState,
    pulse: Pulse,
    knob: LeasedKnob,
    counters: Counters,
    stretches: Vec<Stretch>,
    points: Vec<Point>,
    newest: f64,
    late_sum_s: f64,
    limited: f64,
    began: f64,
}

impl CalibrationSession {
    /// Returns a test of `signal`, or of the first load from Prometheus if none is named.
    pub fn new(
        store: Arc<dyn Store>,
        sources: Sources,
        name: Name,
        policy: Policy,
        signal: Option<&str>,
        shape: Shape,
    ) -> Result<Self, CalibrationError> {
        let can = |about: &&SignalPolicy| {
            about.kind == SignalKind::Load && about.source == SignalSource::Prometheus
        };
        let names: Vec<&str> = policy
            .signals
            .iter()
            .filter(can)
            .map(|about| about.name.as_str())
            .collect();
        let chosen = match signal {
            None => names.first().copied(),
            Some(wanted) => names.iter().copied().find(|name| *name == wanted),
        };
        let Some(chosen) = chosen else {
            let wanted =
                signal.map_or_else(|| "the policy".to_owned(), |wanted| format!("{wanted:?}"));
            let list = if names.is_empty() {
                "none".to_owned()
            } else {
                names.join(", ")
            };
            return Err(CalibrationError::State(format!(
                "{wanted} is not a load from Prometheus; allowed are: {list}"
            )));
        };
        if policy.law.actuator != Actuator::Rps {
            let what = "its governor sets concurrency, and a calibration sets rps; remove actuator \
                        from [governor] to calibrate";
            return Err(CalibrationError::State(format!("{name}: {what}")));
        }
        let signal = chosen.to_owned();
        let looks = policy
            .signals
            .iter()
            .filter_map(|about| Some((about.clone(), about.probe.as_ref()?)));
        let probes = looks.map(|(about, look)| Ok((about, probe(look)?)));
        let probes = probes.collect::<Result<_, signals::Error>>()?;
        sources.check(&policy)?;
        Ok(Self {
            store,
            sources,
            probes,
            name,
            policy,
            signal,
            shape,
        })
    }

    /// Returns the signal under test.
    pub fn signal(&self) -> &SignalPolicy {
        self.policy
            .signal(&self.signal)
            .unwrap_or(&self.policy.signals[0])
    }

    /// Observes the throttle for a few seconds, without changing anything.
    pub async fn survey(&self) -> Result<Preflight, CalibrationError> {
        let before = self.status().await?;
        admit(&before).map_err(CalibrationError::State)?;
        let about = self.signal();
        let readings = self
            .sources
            .history(about, now_s(&before))
            .await
            .map_err(|error| {
                CalibrationError::State(format!(
                    "the signal {} cannot be read: {error}",
                    about.name
                ))
            })?;
        let load = readings.last().map_or(0.0, |r| r.value * about.scale) / about.setpoint;
        if load > BEGIN_MAX {
            return Err(CalibrationError::State(format!(
                "the load {} is at {load:.2} of its setpoint; a test begins at {BEGIN_MAX} at most",
                about.name
            )));
        }
        tokio::time::sleep(SURVEY).await;
        let after = self.status().await?;
        admit(&after).map_err(CalibrationError::State)?;
        let rps = after.effective_rps.number();
        let flow = Counters::of(&after).since(&Counters::of(&before));
        if flow.is_none_or(|flow| flow.limited_by(after.effective_rps) < BOTTLENECK) {
            return Err(CalibrationError::State(format!(
                "{} is not the bottleneck: no job waits for its tokens, so a change of its rate \
                 would have no effect; enqueue jobs first",
                self.name
            )));
        }
        let bounds = (after.knobs.min, after.knobs.max);
        let pulse = Pulse::new(self.shape, rps, bounds, 0.0).map_err(CalibrationError::State)?;
        Ok(Preflight {
            rps,
            load,
            bounds,
            most_rps: pulse.most(),
            lengths_s: pulse.lengths_s(),
        })
    }

    /// Runs the test until it is over or `cancel` fires, and puts the knob back. Every step is
    /// reported to `tell`.
    pub async fn run(
        &self,
        cancel: &CancellationToken,
        tell: &mut (dyn FnMut(&str) + Send),
    ) -> Result<CalibrationResult, CalibrationError> {
        let first = self.status().await?;
        admit(&first).map_err(CalibrationError::State)?;
        let now = now_s(&first);
        let knobs = &first.knobs;
        let rps = first.effective_rps.number();
        let pulse = Pulse::new(self.shape, rps, (knobs.min, knobs.max), now)
            .map_err(CalibrationError::State)?;
        let text = first.raw.get("rps").cloned().unwrap_or_default();
        let mut watch = CalibrationProgress {
            state: ControlState::new(&self.policy, bounds(&first), first.effective_rps, now),
            pulse,
            knob: LeasedKnob {
                store: self.store.clone(),
                name: self.name.clone(),
                signal: self.signal.clone(),
                lease_s: self.policy.law.lease_s(),
                text,
                until_ms: 0,
            },
            counters: Counters::of(&first),
            stretches: vec![Stretch { until: now, rps }],
            points: Vec::new(),
            newest: now,
            late_sum_s: 0.0,
            limited: 1.0,
            began: now,
        };
        // From here on the test owns the knob, and must put it back however it ends.
        let stop = match watch.knob.write(&first, BEGIN_SHARE * rps).await {
            Err(error) => return Err(error.into()),
            Ok(()) => self.turn(&mut watch, cancel, tell).await,
        };
        let low = watch.pulse.base() / self.shape.pulse;
        let knob = watch.knob.put_back(&first, low, &stop).await;
        let n = watch.points.len().max(1) as f64;
        let index = self
            .policy
            .signals
            .iter()
            .position(|about| about.name == self.signal)
            .unwrap_or(0);
        Ok(CalibrationResult {
            fit: matches!(stop, CalibrationEnd::Whole)
                .then(|| fit(&watch.points, &watch.stretches))
                .flatten(),
            early: match stop {
                CalibrationEnd::Whole => None,
                CalibrationEnd::Interrupted => Some("interrupted".to_owned()),
                CalibrationEnd::Hindered(why)
                | CalibrationEnd::Overload(why)
                | CalibrationEnd::Lost(why) => Some(why),
            },
            knob,
            spacing_s: watch.state.signals[index].front.gap_s,
            late_s: watch.late_sum_s / n,
        })
    }

    async fn turn(
        &self,
        watch: &mut CalibrationProgress,
        cancel: &CancellationToken,
        tell: &mut (dyn FnMut(&str) + Send),
    ) -> CalibrationEnd {
        let mut pace = tokio::time::interval(SAMPLE_INTERVAL);
        pace.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut silent_s = 0.0;
        loop {
            tokio::select! {
                biased;
                () = cancel.cancelled() => return CalibrationEnd::Interrupted,
                _ = pace.tick() => {}
            }
            let status = match self.status().await {
                Ok(status) => status,
                Err(error) => {
                    silent_s += SAMPLE_INTERVAL.as_secs_f64();
                    if silent_s > STORE_LOST_S {
                        return CalibrationEnd::Hindered(error.to_string());
                    }
                    continue;
                }
            };
            silent_s = 0.0;
            if let Some(stop) = watch.knob.lost(&status) {
                return stop;
            }
            let rps = match self.look(watch, &status).await {
                Ok(Some(rps)) => {
                    tell(&format!(
                        "{rps:.3} jobs per second, load at {:.2} of its setpoint",
                        newest_x(watch)
                    ));
                    rps
                }
                Ok(None) if watch.knob.until_ms - status.at_us / 1000 > RENEW_MS => continue,
                Ok(None) => status.knobs.rps.number(),
                Err(stop) => return stop,
            };
            match watch.knob.write(&status, rps).await {
                Ok(()) | Err(throttle::Error::Lost(_)) => {}
                // The next check finds the other writer.
                Err(throttle::Error::Conflict { .. }) => {}
                Err(error) => return CalibrationEnd::Hindered(error.to_string()),
            }
        }
    }

    /// Makes one check; returns another rate if one is due, or the reason for which the test must
    /// end.
    async fn look(
        &self,
        watch: &mut CalibrationProgress,
        status: &Status,
    ) -> Result<Option<f64>, CalibrationEnd> {
        let now = now_s(status);
        let counters = Counters::of(status);
        let flow = counters.since(&watch.counters);
        let span_s = now - watch.counters.at_us as f64 / 1e6;
        watch.counters = counters;
        if let Some(flow) = flow {
            watch.stretches.push(Stretch {
                until: now,
                rps: flow.achieved_rps,
            });
            watch.limited +=
                (span_s / IDLE_S).min(1.0) * (flow.limited_by(status.knobs.rps) - watch.limited);
        }
        if watch.limited < BOTTLENECK && now - watch.began > IDLE_S {
            return Err(CalibrationEnd::Hindered(format!(
                "there is not enough work: {} is no longer the bottleneck",
                self.name
            )));
        }

        let looks = self.probe(now).await;
        let (readings, fresh) = self.read(watch, now).await;
        let achieved_rps = flow.map(|flow| flow.achieved_rps);
        let seen = Observation {
            now,
            readings,
            achieved_rps,
            ..Observation::default()
        };
        watch.state.follow(
            &self.policy,
            bounds(status),
            &seen,
            status.knobs.rps,
            Cause::followed("a calibration controls it"),
        );
        if let Some((name, height)) = watch.state.alarm(&self.policy, now) {
            return Err(CalibrationEnd::Overload(format!(
                "the load {name} is at {height:.2} of its setpoint, above its trip level"
            )));
        }
        if let Some(plan) =
            watch
                .state
                .fast(&self.policy, bounds(status), now, achieved_rps, &looks)
        {
            return Err(CalibrationEnd::Overload(format!(
                "a probe would trip the breaker: {}",
                plan.reason
            )));
        }
        let stale_after_s = self.policy.law.stale_hold_s.max(
            3.5 * watch
                .state
                .signals
                .iter()
                .fold(0.0, |most, s| s.front.gap_s.max(most)),
        );
        if now - watch.newest > stale_after_s {
            return Err(CalibrationEnd::Hindered(format!(
                "no new sample of the signal {} for {stale_after_s:.0} s",
                self.signal
            )));
        }
        match watch.pulse.next(now, &fresh) {
            Move::Stay => Ok(None),
            Move::Set(rps) => Ok(Some(rps)),
            Move::Done => Err(CalibrationEnd::Whole),
            Move::Abort(why) if newest_x(watch) > 1.0 => Err(CalibrationEnd::Overload(why)),
            Move::Abort(why) => Err(CalibrationEnd::Hindered(why)),
        }
    }

    /// Returns the samples of the probes; a probe that does not answer has none.
    async fn probe(&self, now: f64) -> Vec<SignalSample> {
        let read = |(about, probe): &(SignalPolicy, HttpProbe)| {
            let (about, probe) = (about.clone(), probe.clone());
            async move {
                let reading = probe.read(now).await.ok()?;
                Some(SignalSample {
                    at: now,
                    ..sample(&about, reading)
                })
            }
        };
        futures_util::future::join_all(self.probes.iter().map(read))
            .await
            .into_iter()
            .flatten()
            .collect()
    }

    /// Returns the samples of every load from Prometheus, and the new ones of the signal under
    /// test, in setpoints.
    async fn read(
        &self,
        watch: &mut CalibrationProgress,
        now: f64,
    ) -> (Vec<SignalSample>, Vec<Point>) {
        let loads = self.policy.signals.iter().filter(|about| {
            about.kind == SignalKind::Load && about.source == SignalSource::Prometheus
        });
        let read = async |about: &SignalPolicy| {
            (
                about.name.clone(),
                about.scale,
                self.sources.history(about, now).await,
            )
        };
        let (mut samples, mut fresh) = (Vec::new(), Vec::new());
        // A signal that cannot be read now may be readable at the next check; staleness bounds the
        // patience.
        for (name, scale, outcome) in futures_util::future::join_all(loads.map(read)).await {
            for reading in outcome.unwrap_or_default() {
                let value = reading.value * scale;
                if name == self.signal && reading.at > watch.newest {
                    watch.newest = reading.at;
                    watch.late_sum_s += (now - reading.at).max(0.0);
                    fresh.push(Point {
                        at: reading.at,
                        x: value / self.signal().setpoint,
                    });
                }
                samples.push(SignalSample {
                    signal: name.clone(),
                    value: Some(value),
                    at: reading.at,
                });
            }
        }
        watch.points.extend(&fresh);
        (samples, fresh)
    }

    async fn status(&self) -> Result<Status, throttle::Error> {
        self.store
            .status(&self.name)
            .await?
            .ok_or_else(|| throttle::Error::Unknown(self.name.clone()))
    }
}

fn newest_x(watch: &CalibrationProgress) -> f64 {
    watch.points.last().map_or(0.0, |point| point.x)
}

fn now_s(status: &Status) -> f64 {
    status.at_us as f64 / 1e6
}

fn bounds(status: &Status) -> Bounds {
    Bounds {
        min: status.knobs.min,
        max: status.knobs.max,
        safe_rps: status.knobs.safe_rps.number(),
    }
}

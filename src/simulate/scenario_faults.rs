//! The faults of a scenario: all at once, each with its key and what is allowed.

use std::collections::BTreeSet;

use super::mail::MailAccount;
use super::scenario::{Exporter, MINUTES_MAX, Resource, Scenario, Workload};
use crate::governor::policy::{FeedbackKind, SignalPolicy, SignalSource};

fn within(value: f64, low: f64, high: f64) -> bool {
    value >= low && value <= high
}

impl Scenario {
    /// Returns what is wrong with a scenario of so many minutes.
    pub(super) fn faults(&self, minutes: f64) -> Vec<String> {
        let mut faults = ScenarioFaults::default();
        faults.check_time(self, minutes);
        faults.check_knobs(self);
        faults.check_plant(self);
        for resource in &self.resources {
            faults.check_resource(resource);
        }
        faults.check_exporter(&self.exporter);
        faults.check_jobs(&self.jobs);
        faults.check_curves(self);
        for signal in &self.policy.signals {
            faults.check_signal(self, signal);
        }
        let mut faults = faults.0;
        faults.extend(self.mail.iter().flat_map(MailAccount::faults));
        faults
    }
}

/// The faults that were found so far.
#[derive(Default)]
struct ScenarioFaults(Vec<String>);

impl ScenarioFaults {
    fn check(&mut self, is_sound: bool, fault: String) {
        if !is_sound {
            self.0.push(fault);
        }
    }

    fn check_time(&mut self, scenario: &Scenario, minutes: f64) {
        self.check(
            within(minutes, 1.0, MINUTES_MAX),
            format!("scenario.minutes: {minutes} is not allowed; use 1 to {MINUTES_MAX}"),
        );
        self.check(
            scenario
                .step_s
                .is_none_or(|s| within(s, 0.0, minutes * 60.0)),
            "scenario.step_minute: is not within the scenario; use 0 to its minutes".to_owned(),
        );
    }

    fn check_knobs(&mut self, scenario: &Scenario) {
        let (rps, min, max) = (scenario.start_rps, scenario.bounds.min, scenario.bounds.max);
        self.check(
            rps > 0.0 && rps.is_finite(),
            format!("knobs.rps: {rps} is not allowed; use a number above 0"),
        );
        self.check(
            max >= rps,
            format!("knobs.max: {max} is not allowed; use at least knobs.rps"),
        );
        self.check(
            min > 0.0 && min <= max,
            format!("knobs.min: {min} is not allowed; use a number above 0, up to max"),
        );
    }

    fn check_plant(&mut self, scenario: &Scenario) {
        self.check(
            !scenario.resources.is_empty()
                || scenario.quota.is_some()
                || scenario.queue.is_some()
                || scenario.mail.is_some(),
            "resource: is missing; write at least one [[resource]], a [quota], a [queue] or [mail]"
                .to_owned(),
        );
        let names = scenario.resources.iter();
        let names: BTreeSet<&str> = names.map(|resource| resource.name.as_str()).collect();
        self.check(
            names.len() == scenario.resources.len(),
            "resource.name: is duplicated; give each resource its own name".to_owned(),
        );
    }

    fn check_resource(&mut self, resource: &Resource) {
        let name = &resource.name;
        self.check(
            within(resource.cores, 0.1, 1e6),
            format!(
                "resource.cores: {} of {name} is not allowed; use 0.1 to 1000000",
                resource.cores
            ),
        );
        self.check(
            within(resource.cost, 1e-9, 1e6),
            format!(
                "resource.cost: {} of {name} is not allowed; use 1e-9 to 1000000",
                resource.cost
            ),
        );
        for (key, value, high) in [
            ("cost_walk", resource.cost_walk, 10.0),
            ("noise", resource.noise, 2.0),
            ("bursts_per_hour", resource.bursts_per_hour, 3600.0),
            ("burst", resource.burst, 1e6),
        ] {
            self.check(
                within(value, 0.0, high),
                format!("resource.{key}: {value} of {name} is not allowed; use 0 to {high}"),
            );
        }
        for (key, value) in [("noise_s", resource.noise_s), ("burst_s", resource.burst_s)] {
            self.check(
                within(value, 1.0, 86400.0),
                format!("resource.{key}: {value} of {name} is not allowed; use 1 to 86400"),
            );
        }
        for (key, fault) in [
            ("background", resource.background.fault(0.0)),
            ("cost_factor", resource.cost_factor.fault(1e-9)),
        ] {
            self.check(
                fault.is_none(),
                format!("resource.{key}: of {name} {}", fault.unwrap_or_default()),
            );
        }
    }

    fn check_exporter(&mut self, exporter: &Exporter) {
        for (key, value, low, high) in [
            ("average_s", exporter.average_s, 0.0, 3600.0),
            ("noise", exporter.noise, 0.0, 100.0),
            ("scrape_s", exporter.scrape_s, 1.0, 3600.0),
            ("delay_s", exporter.delay_s.0, 0.0, 3600.0),
            ("delay_s", exporter.delay_s.1, exporter.delay_s.0, 3600.0),
            ("lost", exporter.lost, 0.0, 1.0),
        ] {
            self.check(
                within(value, low, high),
                format!("exporter.{key}: {value} is not allowed; use {low} to {high}"),
            );
        }
    }

    fn check_jobs(&mut self, jobs: &Workload) {
        for (key, value, low, high) in [
            ("base_s", jobs.base_s, 0.0, 3600.0),
            ("in_flight", jobs.in_flight, 1.0, 1e6),
            ("answer_walk", jobs.answer_walk, 0.0, 10.0),
        ] {
            self.check(
                within(value, low, high),
                format!("jobs.{key}: {value} is not allowed; use {low} to {high}"),
            );
        }
    }

    /// Checks the queue and the curves that are not a resource's.
    fn check_curves(&mut self, scenario: &Scenario) {
        let (jobs, quota, queue) = (&scenario.jobs, &scenario.quota, &scenario.queue);
        let noise = queue.as_ref().map_or(0.0, |queue| queue.noise);
        self.check(
            within(noise, 0.0, 2.0),
            format!("queue.noise: {noise} is not allowed; use 0 to 2"),
        );
        let answer_s = jobs.answer_s.as_ref();
        for (key, fault) in [
            ("jobs.demand", jobs.demand.fault(0.0)),
            (
                "jobs.answer_s",
                answer_s.and_then(|curve| curve.fault(1e-6)),
            ),
            (
                "quota.rps",
                quota.as_ref().and_then(|quota| quota.rps.fault(1e-6)),
            ),
            (
                "queue.drain",
                queue.as_ref().and_then(|queue| queue.drain.fault(1e-6)),
            ),
        ] {
            self.check(
                fault.is_none(),
                format!("{key}: {}", fault.unwrap_or_default()),
            );
        }
    }

    /// Checks that the plant has what the signal measures.
    fn check_signal(&mut self, scenario: &Scenario, signal: &SignalPolicy) {
        let name = &signal.name;
        match signal.source {
            SignalSource::Prometheus => self.check(
                scenario
                    .resource_of(&signal.query)
                    .is_some_and(|(_, kind)| kind == signal.kind),
                format!(
                    "signal.query: {:?} of {name} is not a series of this plant for its kind; \
                     use \"RESOURCE:load\" (kind load) or \"RESOURCE:p99\" (kind latency)",
                    signal.query
                ),
            ),
            SignalSource::Feedback => self.check(
                scenario.quota.is_some()
                    || matches!(
                        signal.feedback,
                        Some(FeedbackKind::Latency | FeedbackKind::LatencyP99)
                    ),
                format!("signal.source: {name} needs a [quota], because nothing else refuses"),
            ),
            SignalSource::Depth => self.check(
                scenario.fills(signal),
                format!(
                    "signal.query: {:?} of {name} is not the name of this plant's [queue]",
                    signal.query
                ),
            ),
            SignalSource::Complaints => self.check(
                scenario.mail.is_some(),
                format!("signal.source: {name} needs a table [mail], about which to complain"),
            ),
            _ => self.check(
                false,
                format!(
                    "signal.source: of {name} is not simulated; use \"prometheus\", \"depth\", \
                     \"complaints\" or \"feedback\""
                ),
            ),
        }
    }
}

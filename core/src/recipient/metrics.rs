//! Metrics of the gates.

use std::sync::LazyLock;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use super::digest::Arrival;
use super::gate::MessageGate;
use super::gates::MessagePlan;

/// The bounds of the histogram of errors, in seconds.
const ERRORS_S: [f64; 10] = [0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 7200.0];

/// Counts for all gates of the process, because profiles are read where no gates are at hand.
static UNKNOWN_ZONES: LazyLock<Counter> = LazyLock::new(Counter::default);

/// Counts a profile that was read whose time zone is unknown here.
pub fn count_unknown_zone() {
    UNKNOWN_ZONES.inc();
}

/// Counters of this process. Cheap to clone.
#[derive(Clone, Debug)]
pub struct GateMetrics {
    findings: Family<GateLabels, Counter>,
    plan_error: Histogram,
    closed: Counter,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct GateLabels {
    gate: &'static str,
    finding: &'static str,
}

impl Default for GateMetrics {
    fn default() -> Self {
        Self {
            findings: Family::default(),
            plan_error: Histogram::new(ERRORS_S),
            closed: Counter::default(),
        }
    }
}

impl GateMetrics {
    /// Registers the counters.
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "flyball_gate_findings",
            "Messages that a gate held, collected or ended, and those that passed all, by finding",
            self.findings.clone(),
        );
        registry.register(
            "flyball_plan_error_seconds",
            "Time from the first planned time of a held message to the time at which it passed all gates",
            self.plan_error.clone(),
        );
        registry.register(
            "flyball_digests_closed",
            "Digests that were closed",
            self.closed.clone(),
        );
        registry.register(
            "flyball_unknown_zones",
            "Time zones of profiles that were read and are not in the time zone database",
            UNKNOWN_ZONES.clone(),
        );
    }

    /// Counts the plan of a message.
    pub fn note(&self, plan: &MessagePlan) {
        let (gate, finding) = match plan {
            MessagePlan::Send
            | MessagePlan::Collected {
                arrival: Arrival::Leads(_),
                ..
            } => (MessageGate::Pool, "passed"),
            MessagePlan::Held { holds, .. } => {
                let gate = holds.last().map_or(MessageGate::Pool, |hold| hold.gate);
                (gate, "held")
            }
            MessagePlan::Collected { .. } => (MessageGate::Digest, "collected"),
            MessagePlan::Ended { gate, reason, .. } => (*gate, reason.as_str()),
            MessagePlan::Refused { .. } => (MessageGate::Caps, "refused"),
        };
        let labels = GateLabels {
            gate: gate.as_str(),
            finding,
        };
        self.findings.get_or_create(&labels).inc();
    }

    /// Notes by how many seconds a held message was late.
    pub fn late_by(&self, seconds: f64) {
        self.plan_error.observe(seconds.max(0.0));
    }

    /// Counts closed digests.
    pub fn closed(&self, digests: u64) {
        self.closed.inc_by(digests);
    }
}

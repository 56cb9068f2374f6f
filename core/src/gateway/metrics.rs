//! Metrics of the gateway.

use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use super::close::CloseReason;

/// The bounds of the histogram of acknowledgements, in seconds.
const ACKS_S: [f64; 9] = [0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0];

/// The reasons for which connections are refused before they are opened.
const REFUSALS: [&str; 8] = [
    "credential",
    "forbidden",
    "tenant",
    "full",
    "streams",
    "handshakes",
    "pending",
    "draining",
];

/// Metrics of this process. Cheap to clone.
#[derive(Clone, Debug)]
pub struct GatewayMetrics {
    connections: Gauge,
    subscriptions: Gauge,
    refused: Family<RefusalLabels, Counter>,
    closed: Family<CloseLabels, Counter>,
    published: Counter,
    collected: Counter,
    oldest_publication: Gauge<f64, AtomicU64>,
    delivered: Counter,
    warnings: Counter,
    lagged: Counter,
    dropped: Counter,
    acknowledged: Histogram,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RefusalLabels {
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CloseLabels {
    reason: &'static str,
}

impl Default for GatewayMetrics {
    fn default() -> Self {
        let metrics = Self {
            connections: Gauge::default(),
            subscriptions: Gauge::default(),
            refused: Family::default(),
            closed: Family::default(),
            published: Counter::default(),
            collected: Counter::default(),
            oldest_publication: Gauge::default(),
            delivered: Counter::default(),
            warnings: Counter::default(),
            lagged: Counter::default(),
            dropped: Counter::default(),
            acknowledged: Histogram::new(ACKS_S),
        };
        for reason in CloseReason::ALL {
            let reason = reason.as_str();
            drop(metrics.closed.get_or_create(&CloseLabels { reason }));
        }
        for reason in REFUSALS {
            drop(metrics.refused.get_or_create(&RefusalLabels { reason }));
        }
        metrics
    }
}

impl GatewayMetrics {
    /// Registers the metrics.
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "flyball_gateway_connections",
            "Open connections of the gateway in this process",
            self.connections.clone(),
        );
        registry.register(
            "flyball_gateway_subscriptions",
            "Subscriptions of the open connections in this process",
            self.subscriptions.clone(),
        );
        registry.register(
            "flyball_gateway_refused",
            "Connections that were refused before they were opened, by reason",
            self.refused.clone(),
        );
        registry.register(
            "flyball_gateway_closed",
            "Connections that the gateway closed, by reason",
            self.closed.clone(),
        );
        registry.register(
            "flyball_gateway_published",
            "Messages that clients and the HTTP API published through this process",
            self.published.clone(),
        );
        registry.register(
            "flyball_gateway_collected",
            "Messages that this process moved into the history of their channels",
            self.collected.clone(),
        );
        registry.register(
            "flyball_gateway_oldest_publication_seconds",
            "Age of the oldest message of a channel that no collector has moved yet",
            self.oldest_publication.clone(),
        );
        registry.register(
            "flyball_gateway_delivered",
            "Messages that this process wrote to connections",
            self.delivered.clone(),
        );
        registry.register(
            "flyball_gateway_warnings",
            "Warnings to connections that messages of their tenant wait",
            self.warnings.clone(),
        );
        registry.register(
            "flyball_gateway_lagged",
            "Readers that fell behind and were fed from the history",
            self.lagged.clone(),
        );
        registry.register(
            "flyball_gateway_dropped",
            "Messages of channels without history that slow readers missed",
            self.dropped.clone(),
        );
        registry.register(
            "flyball_gateway_acknowledged_seconds",
            "Time from the delivery of a message to its acknowledgement by the client",
            self.acknowledged.clone(),
        );
    }

    /// Notes the age of the oldest message that no collector has moved yet, in seconds.
    pub fn oldest_publication(&self, age_s: f64) {
        self.oldest_publication.set(age_s);
    }

    /// Counts a connection that was opened.
    pub fn opened(&self) {
        self.connections.inc();
    }

    /// Counts a connection that has gone, with its subscriptions, and the reason if the gateway
    /// closed it.
    pub fn ended(&self, subscriptions: usize, reason: Option<CloseReason>) {
        self.connections.dec();
        self.subscriptions.dec_by(subscriptions as i64);
        if let Some(reason) = reason {
            let reason = reason.as_str();
            self.closed.get_or_create(&CloseLabels { reason }).inc();
        }
    }

    /// Counts a connection that was refused.
    pub fn refused(&self, reason: &'static str) {
        self.refused.get_or_create(&RefusalLabels { reason }).inc();
    }

    /// Counts subscriptions that begin (positive) or end.
    pub fn subscribed(&self, change: i64) {
        self.subscriptions.inc_by(change);
    }

    pub fn published(&self, messages: u64) {
        self.published.inc_by(messages);
    }

    pub fn collected(&self, messages: u64) {
        self.collected.inc_by(messages);
    }

    pub fn delivered(&self, messages: u64) {
        self.delivered.inc_by(messages);
    }

    pub fn warned(&self, connections: u64) {
        self.warnings.inc_by(connections);
    }

    pub fn lagged(&self) {
        self.lagged.inc();
    }

    pub fn dropped(&self, messages: u64) {
        self.dropped.inc_by(messages);
    }

    pub fn acknowledged(&self, seconds: f64) {
        self.acknowledged.observe(seconds);
    }

    /// Returns the number of open connections.
    pub fn open(&self) -> i64 {
        self.connections.get()
    }
}

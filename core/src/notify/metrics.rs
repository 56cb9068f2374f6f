//! Counters of messages and of providers' events.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use super::DeliveryState;
use crate::providers::{Channel, EventKind};

/// Counters of this process. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct NotifyMetrics {
    notifications: Family<MessageLabels, Counter>,
    events: Family<EventLabels, Counter>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct MessageLabels {
    channel: &'static str,
    pool: String,
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EventLabels {
    pool: String,
    event_type: &'static str,
}

impl NotifyMetrics {
    /// Registers the counters.
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "flyball_notifications",
            "Message attempts by outcome: the states except queued",
            self.notifications.clone(),
        );
        registry.register(
            "flyball_provider_events",
            "New provider events received, by what happened",
            self.events.clone(),
        );
    }

    /// Counts the outcome of attempts at a message.
    pub(super) fn note(&self, channel: Channel, pool: &str, state: DeliveryState) {
        if state != DeliveryState::Queued {
            let labels = MessageLabels {
                channel: channel.as_str(),
                pool: pool.to_owned(),
                outcome: state.as_str(),
            };
            self.notifications.get_or_create(&labels).inc();
        }
    }

    /// Counts new events.
    pub(super) fn count_events(&self, pool: &str, event_type: EventKind, events: u64) {
        let labels = EventLabels {
            pool: pool.to_owned(),
            event_type: event_type.as_str(),
        };
        self.events.get_or_create(&labels).inc_by(events);
    }
}

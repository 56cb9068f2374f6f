//! The limits of the gateway, from the settings.

use std::time::Duration;

use super::descriptors;
use crate::config::Settings;
use crate::gateway::limits::{ChannelHistory, GatewayLimits};

/// The part of the connections to the HTTP API that may be streams of events. One address may have
/// half of those connections; where it is a proxy, its requests need the rest of them.
const STREAMS_PART: usize = 4;

/// The files that the process needs besides connections.
const OTHER_FILES: usize = 512;

/// Returns the limits; `files` is the number of files that the process may open, of which those that
/// are left beside connections to the HTTP API may be connections of the gateway.
pub(super) fn limits(settings: &Settings, files: u64) -> GatewayLimits {
    let mut histories: Vec<(String, ChannelHistory)> = settings
        .channels
        .iter()
        .map(|(pattern, set)| {
            let history = ChannelHistory {
                kept_s: set.history_s.unwrap_or(ChannelHistory::USUAL.kept_s),
                kept_max: set.history_max.unwrap_or(ChannelHistory::USUAL.kept_max),
            };
            (pattern.clone(), history)
        })
        .collect();
    // The longest pattern that fits holds.
    histories.sort_by_key(|(pattern, _)| std::cmp::Reverse(pattern.len()));
    let http_connections = descriptors::connections(settings.http_connections, files);
    let files = usize::try_from(files).unwrap_or(usize::MAX);
    let others = http_connections + OTHER_FILES;
    let places = files.saturating_sub(others).max(files / 8);
    GatewayLimits {
        per_second: settings.ws_messages_per_second,
        connections: settings.ws_connections_per_tenant,
        node_connections: settings.ws_connections.min(places),
        node_streams: (http_connections / STREAMS_PART).max(1),
        handshakes_per_s: settings.ws_handshakes_per_s,
        drain: Duration::from_secs_f64(settings.ws_drain_s),
        origins: settings.ws_origins.clone(),
        histories,
    }
}

//! Profiles as answers show them, with their addresses or with masked ones.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::recipient::postgres::{StoredDefaults, StoredRecipient};

/// A recipient with its profile.
#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = Recipient)]
pub struct RecipientView {
    /// The id by which messages name the recipient.
    #[schema(example = "user-7")]
    id: String,
    /// The address on each channel; masked if `masked` is true.
    addresses: BTreeMap<String, String>,
    /// The time zone.
    time_zone: Option<String>,
    /// The time zone of the device, which counts first for pushes.
    device_time_zone: Option<String>,
    /// The quiet hours on each channel.
    #[schema(value_type = Object)]
    quiet_hours: Map<String, Value>,
    /// The wanted and unwanted messages.
    #[schema(value_type = Object)]
    preferences: Map<String, Value>,
    /// True if the addresses are masked, because the token lacks `notify:send`.
    masked: bool,
    /// The time of the last change.
    updated_at: Timestamp,
}

/// A recipient in a list.
#[derive(Serialize, utoipa::ToSchema)]
pub struct RecipientSummary {
    /// The id by which messages name the recipient.
    #[schema(example = "user-7")]
    id: String,
    /// The masked address on each channel.
    addresses: BTreeMap<String, String>,
    /// The time zone.
    time_zone: Option<String>,
    /// The time of the last change.
    updated_at: Timestamp,
}

/// The defaults of a tenant, which hold unless the profile of a recipient says otherwise.
#[derive(Serialize, utoipa::ToSchema)]
pub struct RecipientDefaults {
    /// The time zone of recipients without one.
    time_zone: Option<String>,
    /// The quiet hours on each channel.
    #[schema(value_type = Object)]
    quiet_hours: Map<String, Value>,
    /// The wanted and unwanted messages.
    #[schema(value_type = Object)]
    preferences: Map<String, Value>,
    /// The time of the last change; `null` if they were never set.
    updated_at: Option<Timestamp>,
}

impl RecipientView {
    pub fn of(stored: StoredRecipient, masked: bool) -> Self {
        Self {
            addresses: stored.shown_addresses(masked),
            time_zone: text(&stored.profile, "time_zone"),
            device_time_zone: text(&stored.profile, "device_time_zone"),
            quiet_hours: part(&stored.profile, "quiet_hours"),
            preferences: part(&stored.profile, "preferences"),
            masked,
            id: stored.id,
            updated_at: stored.updated_at,
        }
    }
}

impl From<StoredRecipient> for RecipientSummary {
    fn from(stored: StoredRecipient) -> Self {
        Self {
            addresses: stored.shown_addresses(true),
            time_zone: text(&stored.profile, "time_zone"),
            id: stored.id,
            updated_at: stored.updated_at,
        }
    }
}

impl From<StoredDefaults> for RecipientDefaults {
    fn from(stored: StoredDefaults) -> Self {
        Self {
            time_zone: text(&stored.profile, "time_zone"),
            quiet_hours: part(&stored.profile, "quiet_hours"),
            preferences: part(&stored.profile, "preferences"),
            updated_at: stored.updated_at,
        }
    }
}

fn text(profile: &Value, field: &str) -> Option<String> {
    profile.get(field)?.as_str().map(str::to_owned)
}

fn part(profile: &Value, field: &str) -> Map<String, Value> {
    let part = profile.get(field).and_then(Value::as_object);
    part.cloned().unwrap_or_default()
}

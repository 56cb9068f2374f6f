//! Shapes of settings: the type and the range of each key.

use serde_json::Value;

use super::jwt::{self, JWT_KEYS};
use super::reindex::{SINK_KEYS, SOURCE_KEYS};
use super::servers::{POSTGRES_KEYS, PROMETHEUS_KEYS};
use super::settings::{API_TOKEN_KEYS, CHANNEL_KEYS, KEYS, KIND_KEYS};
use crate::input::wording::{any_of, clipped};
use crate::input::{Reader, pointer};

/// Settings that are tables of tables.
const TABLES: [&str; 9] = [
    "kinds",
    "api_tokens",
    "jwt",
    "api_limits",
    "prometheus",
    "postgres",
    "reindex",
    "channels",
    "pools",
];

/// The values that a key may have.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum SettingType {
    Text,
    Word(&'static [&'static str]),
    /// A whole number in a closed range.
    Whole(i64, i64),
    /// A number in a closed range.
    Number(f64, f64),
    Flag,
    Texts,
    /// A table of texts.
    NamedTexts,
    /// A text or several.
    Columns,
}

impl SettingType {
    /// Describes the values, completing "must be …".
    pub(super) fn description(self) -> String {
        match self {
            Self::Text => "a text".to_owned(),
            Self::Word(words) => any_of(words),
            Self::Whole(low, high) => format!("a whole number from {low} to {high}"),
            Self::Number(low, high) => format!("a number from {low} to {high}"),
            Self::Flag => "true or false".to_owned(),
            Self::Texts => "a list of texts".to_owned(),
            Self::NamedTexts => "a table of texts".to_owned(),
            Self::Columns => "a text or a list of texts".to_owned(),
        }
    }

    pub(super) fn accepts(self, value: &Value) -> bool {
        let are_texts = |value: &Value| {
            let items = value.as_array();
            items.is_some_and(|items| items.iter().all(Value::is_string))
        };
        match self {
            Self::Text => value.is_string(),
            Self::Word(words) => value.as_str().is_some_and(|text| words.contains(&text)),
            Self::Whole(low, high) => value
                .as_i64()
                .is_some_and(|number| (low..=high).contains(&number)),
            Self::Number(low, high) => value
                .as_f64()
                .is_some_and(|number| (low..=high).contains(&number)),
            Self::Flag => value.is_boolean(),
            Self::Texts => are_texts(value),
            Self::NamedTexts => value
                .as_object()
                .is_some_and(|texts| texts.values().all(Value::is_string)),
            Self::Columns => value.is_string() || are_texts(value),
        }
    }

    /// Parses the text of an environment variable.
    pub(super) fn parse(self, text: &str) -> Option<toml::Value> {
        let value: toml::Value = match self {
            Self::Flag => match text {
                "1" | "true" | "yes" | "on" => true.into(),
                "0" | "false" | "no" | "off" => false.into(),
                _ => return None,
            },
            Self::Whole(..) => text.parse::<i64>().ok()?.into(),
            Self::Number(..) => text.parse::<f64>().ok()?.into(),
            Self::Texts => {
                let entries = text.split(',').map(str::trim);
                let entries = entries.filter(|entry| !entry.is_empty());
                let entries: Vec<toml::Value> = entries.map(toml::Value::from).collect();
                // A list that names nothing would mean all.
                return (!entries.is_empty()).then(|| entries.into());
            }
            _ => text.into(),
        };
        let json = match &value {
            toml::Value::Integer(number) => Value::from(*number),
            toml::Value::Float(number) => Value::from(*number),
            _ => Value::from(text),
        };
        (self == Self::Flag || self.accepts(&json)).then_some(value)
    }
}

/// Returns the shape of a setting outside of the tables.
pub(super) fn of_setting(key: &str) -> SettingType {
    match key {
        "database_connections" => SettingType::Whole(2, 500),
        "database_pooler" => SettingType::Word(&["none", "transaction"]),
        "database_read_lag_max_s" => SettingType::Number(1.0, 3600.0),
        "redis_timeout_ms" => SettingType::Whole(5, 10_000),
        "token_lease_ms" => SettingType::Whole(0, 250),
        "throttles_created_max" => SettingType::Whole(0, 100_000),
        "tenant_messages_per_minute"
        | "module_messages_per_minute"
        | "critical_messages_per_minute" => SettingType::Whole(1, 1_000_000),
        "tenant_queue_max" => SettingType::Whole(1, 10_000_000),
        "ws_messages_per_second" | "ws_connections_per_tenant" => SettingType::Whole(1, 1_000_000),
        "ws_connections" => SettingType::Whole(0, 1_000_000),
        "ws_handshakes_per_s" => SettingType::Whole(1, 100_000),
        "ws_drain_s" => SettingType::Number(0.0, 3600.0),
        "implicit_idempotency" => SettingType::Word(&["queued", "off"]),
        "http_connections" => SettingType::Whole(16, 100_000),
        "concurrency" => SettingType::Whole(1, 10_000),
        "worker_ttl_s" => SettingType::Number(3.0, 3600.0),
        "grace_s" => SettingType::Number(0.0, 3600.0),
        "retention_days" | "inbox_days" => SettingType::Whole(1, 3650),
        "dead_retention_days" | "dead_message_days" => SettingType::Whole(0, 3650),
        "allow_private_urls" | "allow_reindex_queries" | "settings_may_differ" => SettingType::Flag,
        "allow_urls" | "key_metrics" | "ws_origins" | "serve_throttles" | "serve_kinds"
        | "serve_pools" => SettingType::Texts,
        "log_format" => SettingType::Word(&["text", "json"]),
        _ => SettingType::Text,
    }
}

/// Checks the names and the shapes of all keys of a file of settings; the pools have a reader of
/// their own.
pub(super) fn check_file(fields: &mut Reader<'_>) {
    let keys: Vec<&str> = KEYS.iter().map(|(key, _)| *key).collect();
    fields.only(&[&keys[..], &TABLES[..]].concat());
    check(fields, &keys, of_setting);
    let kind_keys: Vec<&str> = KIND_KEYS.iter().map(|(key, ..)| *key).collect();
    let kind_keys = [&kind_keys[..], &["public"]].concat();
    each(fields, "kinds", &kind_keys, &[], of_kind);
    each(
        fields,
        "api_tokens",
        &API_TOKEN_KEYS,
        &[],
        |key| match key {
            "scopes" | "kinds" | "throttles" => SettingType::Texts,
            _ => SettingType::Text,
        },
    );
    if fields.get("jwt").is_some()
        && let Some(mut table) = fields.part("jwt", &JWT_KEYS)
    {
        check(&mut table, &JWT_KEYS, of_jwt);
        for key in jwt::REQUIRED {
            if table.get(key).is_none() {
                table.missing(key, &of_jwt(key).description());
            }
        }
    }
    each(
        fields,
        "prometheus",
        &PROMETHEUS_KEYS,
        &["url"],
        |key| match key {
            "headers" | "headers_env" => SettingType::NamedTexts,
            _ => SettingType::Text,
        },
    );
    each(fields, "channels", &CHANNEL_KEYS, &[], |key| match key {
        "history_s" => SettingType::Whole(1, 31 * 86_400),
        _ => SettingType::Whole(0, 100_000),
    });
    each(fields, "postgres", &POSTGRES_KEYS, &[], |_| {
        SettingType::Text
    });
    if fields.get("reindex").is_some()
        && let Some(mut reindex) = fields.part("reindex", &["sources", "sinks"])
    {
        each(
            &mut reindex,
            "sources",
            &SOURCE_KEYS,
            &[],
            |key| match key {
                "type" => SettingType::Word(&["postgres", "mongodb"]),
                _ => of_reindex(key),
            },
        );
        each(&mut reindex, "sinks", &SINK_KEYS, &["type"], of_reindex);
    }
    let is_list = |value: &Value| {
        let items = value.as_array();
        items.is_some_and(|items| items.iter().all(Value::is_object))
    };
    if fields
        .get("api_limits")
        .is_some_and(|value| !is_list(value))
    {
        fields.wrong("api_limits", "must be tables: [[api_limits]]");
    }
    let pools = fields.get("pools").and_then(Value::as_object);
    let no_tables = pools.into_iter().flatten();
    let no_tables: Vec<String> = no_tables
        .filter(|(_, pool)| !pool.is_object())
        .map(|(name, _)| pointer("/pools", name))
        .collect();
    for pool in no_tables {
        fields.wrong_at(&pool, "must be a table: [pools.<name>]");
    }
}

fn of_jwt(key: &str) -> SettingType {
    match key {
        "audience" | "algorithms" | "kinds" | "throttles" => SettingType::Texts,
        "all_tenants" => SettingType::Flag,
        "leeway_s" => SettingType::Number(0.0, 300.0),
        _ => SettingType::Text,
    }
}

fn of_kind(key: &str) -> SettingType {
    match KIND_KEYS.iter().find(|(known, ..)| *known == key) {
        Some(("max_attempts", low, high, _)) => SettingType::Whole(*low as i64, *high as i64),
        Some((_, low, high, _)) => SettingType::Number(*low, *high),
        None => SettingType::Flag,
    }
}

fn of_reindex(key: &str) -> SettingType {
    match key {
        "type" => SettingType::Word(&["elastic", "postgres"]),
        "tables" | "collections" | "indexes" | "pipelines" | "aliases" => SettingType::Texts,
        "statements" => SettingType::NamedTexts,
        "key" => SettingType::Columns,
        "statement_timeout_s" => SettingType::Number(0.1, 3600.0),
        _ => SettingType::Text,
    }
}

/// Checks each table of a table of tables.
fn each(
    fields: &mut Reader<'_>,
    table: &str,
    keys: &[&str],
    required: &[&str],
    shape: impl Fn(&str) -> SettingType,
) {
    if fields.get(table).is_none() {
        return;
    }
    let Some(mut tables) = fields.part(table, &[]) else {
        return;
    };
    let names: Vec<String> = tables.names().map(str::to_owned).collect();
    for name in names {
        let Some(mut one) = tables.part(&name, keys) else {
            continue;
        };
        check(&mut one, keys, &shape);
        for key in required {
            if one.get(key).is_none() {
                one.missing(key, &shape(key).description());
            }
        }
    }
}

fn check(fields: &mut Reader<'_>, keys: &[&str], shape: impl Fn(&str) -> SettingType) {
    for key in keys {
        let shape = shape(key);
        let Some(value) = fields
            .get(key)
            .filter(|value| !shape.accepts(value))
            .cloned()
        else {
            continue;
        };
        let mut pairs = value.as_object().into_iter().flatten();
        let no_text = pairs.find(|(_, item)| !item.is_string());
        // A text may be a secret by mistake, so it is not shown.
        match (shape, no_text) {
            (SettingType::Text, _) => fields.wrong(key, "must be a text"),
            (SettingType::NamedTexts, Some((name, _))) => {
                let name = clipped(name);
                fields.wrong(
                    key,
                    format!("must be a table of texts, which {name:?} is not"),
                );
            }
            (SettingType::Texts | SettingType::Columns, _) => {
                fields.refuse_items(key, &shape.description(), &value, Value::is_string);
            }
            _ => fields.refuse(key, &shape.description(), &value),
        }
    }
}

//! The settings as data: their types, their keys and the words among their values.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::jwt::JwtSettings;
use super::origin::SettingsOrigin;
use super::reindex::ReindexSettings;
use super::servers::{DatabaseServer, PrometheusServer};

/// Key and environment variable of every setting.
pub const KEYS: &[(&str, &str)] = &[
    ("database_url", "DATABASE_URL"),
    ("database_connections", "FLYBALL_DATABASE_CONNECTIONS"),
    ("database_pooler", "DATABASE_POOLER"),
    ("database_direct_url", "DATABASE_DIRECT_URL"),
    ("database_read_url", "DATABASE_READ_URL"),
    ("database_read_lag_max_s", "FLYBALL_DATABASE_READ_LAG_MAX_S"),
    ("redis_url", "REDIS_URL"),
    ("redis_prefix", "FLYBALL_REDIS_PREFIX"),
    ("redis_timeout_ms", "FLYBALL_REDIS_TIMEOUT_MS"),
    ("token_lease_ms", "FLYBALL_TOKEN_LEASE_MS"),
    ("throttles_created_max", "FLYBALL_THROTTLES_CREATED_MAX"),
    ("tenant_messages_per_minute", "NOTIFY_RATE_LIMIT_PER_TENANT"),
    ("module_messages_per_minute", "NOTIFY_RATE_LIMIT_PER_MODULE"),
    (
        "critical_messages_per_minute",
        "FLYBALL_CRITICAL_MESSAGES_PER_MINUTE",
    ),
    ("tenant_queue_max", "NOTIFY_RABBITMQ_MAX_QUEUE_LENGTH"),
    ("ws_messages_per_second", "NOTIFY_WS_RATE_PER_TENANT"),
    (
        "ws_connections_per_tenant",
        "NOTIFY_WS_MAX_CONNECTIONS_PER_TENANT",
    ),
    ("ws_connections", "FLYBALL_WS_CONNECTIONS"),
    ("ws_handshakes_per_s", "FLYBALL_WS_HANDSHAKES_PER_S"),
    ("ws_drain_s", "FLYBALL_WS_DRAIN_S"),
    ("ws_origins", "FLYBALL_WS_ORIGINS"),
    ("implicit_idempotency", "FLYBALL_IMPLICIT_IDEMPOTENCY"),
    ("problem_types", "FLYBALL_PROBLEM_TYPES"),
    ("prometheus_url", "PROMETHEUS_URL"),
    ("listen", "FLYBALL_LISTEN"),
    ("metrics_listen", "FLYBALL_METRICS_LISTEN"),
    ("public_url", "FLYBALL_PUBLIC_URL"),
    ("http_connections", "FLYBALL_HTTP_CONNECTIONS"),
    ("api_token", "FLYBALL_API_TOKEN"),
    ("knobs_dir", "FLYBALL_KNOBS_DIR"),
    ("recipients_file", "FLYBALL_RECIPIENTS_FILE"),
    ("concurrency", "FLYBALL_CONCURRENCY"),
    ("worker_ttl_s", "FLYBALL_WORKER_TTL_S"),
    ("grace_s", "FLYBALL_GRACE_S"),
    ("serve_throttles", "FLYBALL_SERVE_THROTTLES"),
    ("serve_kinds", "FLYBALL_SERVE_KINDS"),
    ("serve_pools", "FLYBALL_SERVE_POOLS"),
    ("settings_may_differ", "FLYBALL_SETTINGS_MAY_DIFFER"),
    ("retention_days", "FLYBALL_RETENTION_DAYS"),
    ("dead_retention_days", "FLYBALL_DEAD_RETENTION_DAYS"),
    ("dead_message_days", "FLYBALL_DEAD_MESSAGE_DAYS"),
    ("inbox_days", "FLYBALL_INBOX_DAYS"),
    ("allow_private_urls", "FLYBALL_ALLOW_PRIVATE_URLS"),
    ("allow_urls", "FLYBALL_ALLOW_URLS"),
    ("key_metrics", "FLYBALL_KEY_METRICS"),
    ("allow_reindex_queries", "FLYBALL_ALLOW_REINDEX_QUERIES"),
    ("log", "FLYBALL_LOG"),
    ("log_format", "FLYBALL_LOG_FORMAT"),
];

/// The settings of one process. `default.toml` describes each of them.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(
    missing_docs,
    reason = "the default file is the reference; saying it twice would let the two drift apart"
)]
pub struct Settings {
    pub database_url: String,
    pub database_connections: u32,
    pub database_pooler: DatabasePooler,
    pub database_direct_url: String,
    pub database_read_url: String,
    pub database_read_lag_max_s: f64,
    pub redis_url: String,
    pub redis_prefix: String,
    pub redis_timeout_ms: u32,
    pub token_lease_ms: u32,
    pub throttles_created_max: usize,
    pub tenant_messages_per_minute: u32,
    pub module_messages_per_minute: u32,
    pub critical_messages_per_minute: u32,
    pub tenant_queue_max: u32,
    pub ws_messages_per_second: u32,
    pub ws_connections_per_tenant: u32,
    pub ws_connections: usize,
    pub ws_handshakes_per_s: u32,
    pub ws_drain_s: f64,
    pub ws_origins: Vec<String>,
    pub implicit_idempotency: ImplicitIdempotency,
    pub problem_types: String,
    pub prometheus_url: String,
    pub listen: String,
    pub metrics_listen: String,
    pub public_url: String,
    pub http_connections: usize,
    pub api_token: String,
    pub knobs_dir: String,
    pub recipients_file: String,
    pub concurrency: usize,
    pub worker_ttl_s: f64,
    pub grace_s: f64,
    pub serve_throttles: Vec<String>,
    pub serve_kinds: Vec<String>,
    pub serve_pools: Vec<String>,
    pub settings_may_differ: bool,
    pub retention_days: u32,
    pub dead_retention_days: u32,
    pub dead_message_days: u32,
    pub inbox_days: u32,
    pub allow_private_urls: bool,
    pub allow_urls: Vec<String>,
    pub key_metrics: Vec<String>,
    pub allow_reindex_queries: bool,
    pub log: String,
    pub log_format: LogFormat,
    #[serde(default)]
    pub kinds: BTreeMap<String, KindSettings>,
    #[serde(default)]
    pub api_tokens: BTreeMap<String, ApiToken>,
    pub jwt: Option<JwtSettings>,
    #[serde(default)]
    pub api_limits: Vec<toml::Table>,
    #[serde(default)]
    pub prometheus: BTreeMap<String, PrometheusServer>,
    #[serde(default)]
    pub postgres: BTreeMap<String, DatabaseServer>,
    #[serde(default)]
    pub reindex: ReindexSettings,
    #[serde(default)]
    pub channels: BTreeMap<String, ChannelSettings>,
    #[serde(default)]
    pub pools: BTreeMap<String, toml::Table>,
    /// The places of all keys, for messages.
    #[serde(skip)]
    pub origin: SettingsOrigin,
}

/// The connection pooler between the process and Postgres.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DatabasePooler {
    /// No pooler, or one in session mode.
    None,
    /// A pooler in transaction mode.
    Transaction,
}

/// The treatment of a message that repeats a waiting one without an idempotency key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ImplicitIdempotency {
    /// While a message waits for its tenant's limits, the same body of the same module is that
    /// message.
    Queued,
    /// Every request without a key is a message of its own.
    Off,
}

/// The settings of one kind, as `[kinds.<name>]` of the settings file; an absent key leaves the
/// handler's own value in force.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KindSettings {
    /// Longest time of an attempt, in seconds.
    pub timeout_s: Option<f64>,
    /// Attempts after which a job is dead, even if the job allows more.
    pub max_attempts: Option<i32>,
    /// Longest wait after a first failure, in seconds.
    pub retry_base_s: Option<f64>,
    /// The factor by which the wait grows with each further failure.
    pub retry_factor: Option<f64>,
    /// Longest wait of all, in seconds.
    pub retry_max_s: Option<f64>,
    /// Retention of its finished jobs, in seconds from their ends.
    pub retention_s: Option<f64>,
    /// Retention of its dead letters, in seconds from their deaths.
    pub dead_retention_s: Option<f64>,
    /// True if every SQL role and every token that may enqueue may enqueue this kind.
    pub public: Option<bool>,
}

/// The history of the channels of a pattern, as `[channels."<pattern>"]` of the settings file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChannelSettings {
    /// The time for which messages are kept, in seconds; 300 if absent.
    pub history_s: Option<i32>,
    /// The number of messages that are kept; 1000 if absent. With 0 there is no
    /// history, and messages have no offsets.
    pub history_max: Option<i32>,
}

/// Keys of `[channels."<pattern>"]`.
pub const CHANNEL_KEYS: [&str; 2] = ["history_s", "history_max"];

/// One more token of the API, as `[api_tokens.<name>]` of the settings file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ApiToken {
    /// The tenant to which it is bound; tokens of one tenant share the tenant's limits. Absent or
    /// `*` for a token of operators, which sees all tenants.
    pub tenant: Option<String>,
    /// The module of the tenant in whose name it acts; the token's name if absent.
    pub module: Option<String>,
    /// The environment variable that holds the token.
    pub secret_env: Option<String>,
    /// The file that holds the token.
    pub secret_file: Option<String>,
    /// The scopes of the token, from [`SCOPES`]; [`DEFAULT_SCOPES`] if absent.
    pub scopes: Option<Vec<String>>,
    /// The kinds that it may enqueue; the public kinds if absent.
    pub kinds: Option<Vec<String>>,
    /// The throttles that it may give work to and take tokens from; `mail:*` stands for all that
    /// begin so. All throttles if absent.
    pub throttles: Option<Vec<String>>,
}

/// Keys of `[api_tokens.<name>]`.
pub const API_TOKEN_KEYS: [&str; 7] = [
    "tenant",
    "module",
    "secret_env",
    "secret_file",
    "scopes",
    "kinds",
    "throttles",
];

/// The scopes of tokens.
pub const SCOPES: [&str; 13] = [
    "jobs:enqueue",
    "jobs:read",
    "jobs:work",
    "notify:send",
    "notify:critical",
    "notify:read",
    "channels:subscribe",
    "channels:publish",
    "throttles:acquire",
    "metrics:read",
    "ops:read",
    "ops:write",
    "admin",
];

/// The scopes of a token without `scopes`.
pub const DEFAULT_SCOPES: [&str; 1] = ["jobs:enqueue"];

/// The name of the token of `api_token` in messages and in the audit log; no other token has this
/// name.
pub const ADMIN: &str = "admin";

/// Keys of `[kinds.<name>]` with their least and greatest values, and the range as error messages
/// show it.
pub const KIND_KEYS: &[(&str, f64, f64, &str)] = &[
    ("timeout_s", 0.001, 604_800.0, "0.001 to 604800"),
    ("max_attempts", 1.0, 1000.0, "1 to 1000"),
    ("retry_base_s", 0.001, 604_800.0, "0.001 to 604800"),
    ("retry_factor", 1.0, 100.0, "1 to 100"),
    ("retry_max_s", 0.001, 604_800.0, "0.001 to 604800"),
    ("retention_s", 3600.0, 315_360_000.0, "3600 to 315360000"),
    (
        "dead_retention_s",
        3600.0,
        315_360_000.0,
        "3600 to 315360000",
    ),
];

/// The format of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// Lines for people.
    Text,
    /// One JSON object per line.
    Json,
}

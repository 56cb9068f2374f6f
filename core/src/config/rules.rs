//! Rules of settings that their types and ranges cannot express.

use super::patterns::is_throttle;
use super::settings::{ADMIN, KIND_KEYS, SCOPES, Settings};
use super::shape;
use crate::input::patterns::{TENANT, allows, is_channel_pattern, is_tenant_name};
use crate::input::wording::{any_of, must_be};
use crate::input::{Issue, pointer};

/// The allowed beginnings of the URL of Redis.
const REDIS_SCHEMES: &[&str] = &[
    "redis://",
    "rediss://",
    "redis+unix://",
    "unix://",
    "redis+cluster://",
    "rediss+cluster://",
];

/// The levels of the log.
const LOG_LEVELS: [&str; 6] = ["error", "warn", "info", "debug", "trace", "off"];

/// The longest name of a token, and of a module, in bytes.
const TOKEN_NAME_BYTES_MAX: usize = 64;

/// Returns every problem with settings.
pub(super) fn problems(settings: &Settings) -> Vec<Issue> {
    let mut issues = numbers(settings);
    let mut require = |is_fit: bool, key: &str, message: &str| {
        if !is_fit {
            issues.push(Issue::new(pointer("", key), message));
        }
    };
    let token = &settings.api_token;
    require(
        token.is_empty() || token.len() >= 16,
        "api_token",
        "must have at least 16 characters, or be empty for none",
    );
    // A header cannot carry anything else, so no client could ever log in.
    require(
        token.bytes().all(|byte| byte.is_ascii_graphic()),
        "api_token",
        "must be visible ASCII characters without spaces or line ends",
    );
    require(
        !settings.listen.is_empty(),
        "listen",
        "must be host:port, for instance 127.0.0.1:8080",
    );
    let is_http = |url: &str| url.starts_with("http://") || url.starts_with("https://");
    let public = &settings.public_url;
    require(
        public.is_empty() || is_http(public) && !public.contains(['?', '#', ' ']),
        "public_url",
        "must be a URL that begins with http:// or https://, without a query, or empty for none",
    );
    let types = &settings.problem_types;
    require(
        is_http(types) && types.ends_with('/') && !types.contains(['?', '#', ' ']),
        "problem_types",
        "must be a URL that begins with http:// or https:// and ends with /",
    );
    let is_postgres =
        |url: &str| url.starts_with("postgres://") || url.starts_with("postgresql://");
    require(
        is_postgres(&settings.database_url),
        "database_url",
        "must be a URL like postgres://user@host/database",
    );
    let direct = &settings.database_direct_url;
    require(
        direct.is_empty() || is_postgres(direct),
        "database_direct_url",
        "must be a URL like postgres://user@host/database, or empty for none",
    );
    let read = &settings.database_read_url;
    require(
        read.is_empty() || is_postgres(read),
        "database_read_url",
        "must be a URL like postgres://user@replica/database, or empty for none",
    );
    let is_redis = |url: &str| REDIS_SCHEMES.iter().any(|scheme| url.starts_with(scheme));
    require(
        is_redis(&settings.redis_url),
        "redis_url",
        "must be a URL that begins with redis://, rediss://, redis+unix://, redis+cluster:// or rediss+cluster://",
    );
    require(
        is_http(&settings.prometheus_url),
        "prometheus_url",
        "must be a URL that begins with http:// or https://",
    );
    for origin in &settings.ws_origins {
        require(
            is_http(origin) && is_origin(origin),
            "ws_origins",
            "must be origins as browsers send them, such as https://app.example.com: in lower case, without a path, a usual port or *",
        );
    }
    log(settings, &mut issues);
    named(settings, &mut issues);
    tokens(settings, &mut issues);
    if let Some(jwt) = &settings.jwt {
        jwt.check(&mut issues);
    }
    tables(settings, &mut issues);
    issues.extend(
        super::api_limits::read(&settings.api_limits)
            .err()
            .into_iter()
            .flatten(),
    );
    #[cfg(feature = "notifications")]
    issues.extend(
        super::pools::read(&settings.pools, None)
            .err()
            .into_iter()
            .flatten(),
    );
    issues
}

/// Returns true for an origin that a browser can send, because it is compared as a text.
fn is_origin(text: &str) -> bool {
    let sent = url::Url::parse(text).map(|url| url.origin().ascii_serialization());
    sent.is_ok_and(|sent| sent == text) && !text.contains('*')
}

/// Returns the numbers out of their ranges, which a program may have set.
fn numbers(settings: &Settings) -> Vec<Issue> {
    let numbers = [
        (
            "database_connections",
            f64::from(settings.database_connections),
        ),
        ("database_read_lag_max_s", settings.database_read_lag_max_s),
        ("concurrency", settings.concurrency as f64),
        ("http_connections", settings.http_connections as f64),
        ("redis_timeout_ms", f64::from(settings.redis_timeout_ms)),
        ("token_lease_ms", f64::from(settings.token_lease_ms)),
        (
            "throttles_created_max",
            settings.throttles_created_max as f64,
        ),
        (
            "tenant_messages_per_minute",
            f64::from(settings.tenant_messages_per_minute),
        ),
        (
            "module_messages_per_minute",
            f64::from(settings.module_messages_per_minute),
        ),
        (
            "critical_messages_per_minute",
            f64::from(settings.critical_messages_per_minute),
        ),
        ("tenant_queue_max", f64::from(settings.tenant_queue_max)),
        (
            "ws_messages_per_second",
            f64::from(settings.ws_messages_per_second),
        ),
        (
            "ws_connections_per_tenant",
            f64::from(settings.ws_connections_per_tenant),
        ),
        ("ws_connections", settings.ws_connections as f64),
        (
            "ws_handshakes_per_s",
            f64::from(settings.ws_handshakes_per_s),
        ),
        ("ws_drain_s", settings.ws_drain_s),
        ("worker_ttl_s", settings.worker_ttl_s),
        ("grace_s", settings.grace_s),
        ("retention_days", f64::from(settings.retention_days)),
        (
            "dead_retention_days",
            f64::from(settings.dead_retention_days),
        ),
        ("dead_message_days", f64::from(settings.dead_message_days)),
        ("inbox_days", f64::from(settings.inbox_days)),
    ];
    let mut issues = Vec::new();
    for (key, number) in numbers {
        let shape = shape::of_setting(key);
        let (low, high) = match shape {
            shape::SettingType::Whole(low, high) => (low as f64, high as f64),
            shape::SettingType::Number(low, high) => (low, high),
            _ => continue,
        };
        if !(low..=high).contains(&number) {
            let message = format!("must be {}, not {number}", shape.description());
            issues.push(Issue::new(pointer("", key), message));
        }
    }
    for (kind, set) in &settings.kinds {
        let numbers = [
            set.timeout_s,
            set.max_attempts.map(f64::from),
            set.retry_base_s,
            set.retry_factor,
            set.retry_max_s,
            set.retention_s,
            set.dead_retention_s,
        ];
        for ((key, low, high, allowed), number) in KIND_KEYS.iter().zip(numbers) {
            if let Some(number) = number.filter(|number| !(*low..=*high).contains(number)) {
                let message = format!("must be a number from {allowed}, not {number}");
                issues.push(Issue::new(pointer(&pointer("/kinds", kind), key), message));
            }
        }
        // The longest wait of all would silently take the place of the first one.
        if let (Some(base), Some(max)) = (set.retry_base_s, set.retry_max_s)
            && base > max
        {
            let message = format!("must be at most retry_max_s ({max}), not {base}");
            let at = pointer(&pointer("/kinds", kind), "retry_base_s");
            issues.push(Issue::new(at, message));
        }
    }
    issues
}

/// Refuses a word that is no level: as a filter it would be a target, and silence all others. A
/// filter of spans or fields would be the target of nothing.
fn log(settings: &Settings, issues: &mut Vec<Issue>) {
    let is_target = |name: &str| !name.is_empty() && !name.contains(['[', '{']);
    let is_filter = |part: &str| match part.split_once('=') {
        Some((target, _)) => is_target(target),
        None => part.is_empty(),
    };
    let is_level = |part: &str| LOG_LEVELS.iter().any(|one| one.eq_ignore_ascii_case(part));
    let mut parts = settings.log.split(',').map(str::trim);
    if let Some(word) = parts.find(|part| !is_filter(part) && !is_level(part)) {
        let allowed = format!(
            "{}, or a filter such as flyball=debug,sqlx=warn",
            LOG_LEVELS.join(", ")
        );
        issues.push(Issue::new(
            pointer("", "log"),
            must_be(&allowed, &word.into()),
        ));
    }
}

/// Refuses lists of throttles and pools that can stand for nothing.
fn named(settings: &Settings, issues: &mut Vec<Issue>) {
    for (key, patterns) in [
        ("serve_throttles", &settings.serve_throttles),
        ("key_metrics", &settings.key_metrics),
    ] {
        for pattern in patterns.iter().filter(|pattern| !is_throttle(pattern)) {
            let allowed = "names of throttles, or their beginnings with a * behind";
            let message = must_be(allowed, &pattern.as_str().into());
            issues.push(Issue::new(pointer("", key), message));
        }
    }
    // A pattern for nothing is a slip that would leave jobs waiting.
    let named = settings.pools.keys().map(String::as_str);
    // The pool of the inbox is built in.
    let pool_names: Vec<&str> = named.chain(["inapp"]).collect();
    let pools = settings.serve_pools.iter().filter(|pattern| {
        let patterns = [(*pattern).clone()];
        !pool_names.iter().any(|pool| allows(&patterns, pool))
    });
    for pattern in pools {
        let allowed = format!("{}, or a beginning with a * behind", any_of(&pool_names));
        let message = must_be(&allowed, &pattern.as_str().into());
        issues.push(Issue::new(pointer("", "serve_pools"), message));
    }
}

fn tokens(settings: &Settings, issues: &mut Vec<Issue>) {
    let is_tenant = |tenant: &str| tenant == "*" || is_tenant_name(tenant);
    let is_module = |module: &str| {
        (1..=TOKEN_NAME_BYTES_MAX).contains(&module.len()) && !module.contains(char::is_control)
    };
    for (name, token) in &settings.api_tokens {
        let at = pointer("/api_tokens", name);
        let mut refuse = |key: &str, allowed: &str, found: &str| {
            issues.push(Issue::new(
                pointer(&at, key),
                must_be(allowed, &found.into()),
            ));
        };
        if let Some(tenant) = token.tenant.as_ref().filter(|tenant| !is_tenant(tenant)) {
            let allowed = format!("{TENANT}, or * for all tenants");
            refuse("tenant", &allowed, tenant);
        }
        if let Some(module) = token.module.as_ref().filter(|module| !is_module(module)) {
            let allowed = "1 to 64 bytes without control characters";
            refuse("module", allowed, module);
        }
        let scopes = token.scopes.iter().flatten();
        for scope in scopes.filter(|scope| !SCOPES.contains(&scope.as_str())) {
            refuse("scopes", &any_of(&SCOPES), scope);
        }
        let throttles = token.throttles.iter().flatten();
        for throttle in throttles.filter(|throttle| !is_throttle(throttle)) {
            let allowed = "names of throttles, or their beginnings with a * behind";
            refuse("throttles", allowed, throttle);
        }
        if name == ADMIN
            || name.is_empty()
            || name.len() > TOKEN_NAME_BYTES_MAX
            || name.contains(char::is_control)
        {
            let message = "must have a name of 1 to 64 bytes other than admin, which is the token of FLYBALL_API_TOKEN";
            issues.push(Issue::new(at, message));
        }
    }
}

fn tables(settings: &Settings, issues: &mut Vec<Issue>) {
    for (name, server) in &settings.prometheus {
        server.check(&pointer("/prometheus", name), issues);
    }
    for (name, server) in &settings.postgres {
        server.check(&pointer("/postgres", name), issues);
    }
    for (name, source) in &settings.reindex.sources {
        source.check(&pointer("/reindex/sources", name), issues);
    }
    for (name, sink) in &settings.reindex.sinks {
        sink.check(&pointer("/reindex/sinks", name), issues);
    }
    let patterns = settings.channels.keys();
    for pattern in patterns.filter(|pattern| !is_channel_pattern(pattern)) {
        let allowed = "the name of a channel (1 to 128 letters, digits or any of . _ / { } @ = + ~ -), or the \
                       beginning of names with a * behind";
        let message = must_be(allowed, &pattern.as_str().into());
        issues.push(Issue::new(pointer("/channels", pattern), message));
    }
}

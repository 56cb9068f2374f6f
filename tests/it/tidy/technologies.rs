//! A technology appears only in its own files: each dependency with the files that may use it.

use std::collections::BTreeSet;
use std::path::Path;

use super::modules::Modules;
use super::scanner::NamedPath;
use super::sources::{is_at, sources};

/// Libraries, each with the files and folders that may use it.
const TECHNOLOGIES: &[(&str, &[&str])] = &[
    (
        "arc_swap",
        &[
            "api/",
            "providers/pool/",
            "recipient/live_rules.rs",
            "throttle/redis/",
        ],
    ),
    ("aws_credential_types", &["providers/ses.rs"]),
    (
        "aws_lc_rs",
        &[
            "api/",
            "notify/",
            "outbound/signature.rs",
            "providers/apns/",
            "providers/events/",
            "recipient/address.rs",
        ],
    ),
    ("aws_sigv4", &["providers/ses.rs"]),
    ("axum", &["api/"]),
    (
        "base64",
        &[
            "jobs/secret.rs",
            "outbound/",
            "providers/",
            "reindex/source/mongodb/conversion.rs",
            "signals/server.rs",
        ],
    ),
    ("bson", &["**/mongodb"]),
    ("chacha20poly1305", &["jobs/secret.rs"]),
    ("clap", &["cli/"]),
    ("comfy_table", &["cli/output.rs"]),
    ("flyball_core", &["lib.rs"]),
    ("foldhash", &["runner/ids.rs"]),
    ("der", &["providers/events/"]),
    ("h2", &["providers/apns/connections.rs"]),
    ("http", &["outbound/hyper.rs", "providers/apns/"]),
    ("http_body_util", &["outbound/hyper.rs", "providers/apns/"]),
    (
        "httpdate",
        &["outbound/retry_after.rs", "signals/server.rs"],
    ),
    (
        "hyper",
        &["api/", "outbound/hyper.rs", "providers/apns/connections.rs"],
    ),
    (
        "hyper_rustls",
        &["outbound/hyper.rs", "providers/apns/connections.rs"],
    ),
    (
        "hyper_util",
        &["api/", "outbound/hyper.rs", "providers/apns/connections.rs"],
    ),
    ("indicatif", &["cli/"]),
    (
        "jiff_sqlx",
        &["**/postgres", "api/", "jobs/", "notify/alarm_postgres.rs"],
    ),
    (
        "jsonwebtoken",
        &[
            "api/http/jwt/",
            "providers/apns/token.rs",
            "providers/oauth.rs",
        ],
    ),
    ("lettre", &["providers/smtp/"]),
    ("mime_guess", &["api/"]),
    ("minijinja", &["outbound/template.rs", "outbound/template/"]),
    ("mongodb", &["**/mongodb"]),
    (
        "percent_encoding",
        &[
            "api/",
            "outbound/credentials.rs",
            "throttle/api_limit.rs",
            "trace/otlp/settings.rs",
        ],
    ),
    ("pid", &["control/", "simulate/bare_pid.rs"]),
    (
        "plotters",
        &["plot.rs", "replay/plot.rs", "simulate/plot.rs"],
    ),
    (
        "prometheus_client",
        &[
            "api/",
            "app.rs",
            "app/",
            "gateway/metrics.rs",
            "notify/metrics.rs",
            "providers/metrics.rs",
            "recipient/metrics.rs",
            "runner/metrics.rs",
            "runner/remote/metrics.rs",
            "runner/throttle_metrics.rs",
            "runner/runs.rs",
            "throttle/leased.rs",
            "trace/otlp/export.rs",
        ],
    ),
    ("prometheus_http_query", &["signals/"]),
    ("prost", &["trace/otlp/message.rs"]),
    ("redis", &["**/redis"]),
    (
        "reqwest",
        &[
            "outbound/reqwest.rs",
            "reindex/connect.rs",
            "reindex/sink/elastic.rs",
            "signals/",
            "trace/otlp/export.rs",
        ],
    ),
    ("rust_embed", &["api/"]),
    (
        "rustix",
        &[
            "app/descriptors.rs",
            "outbound/descriptors.rs",
            "runner/shared.rs",
            "stack/",
        ],
    ),
    (
        "rustls",
        &[
            "outbound/hyper.rs",
            "providers/apns/connections.rs",
            "providers/events/certificate.rs",
            "providers/events/chain.rs",
        ],
    ),
    ("rustls_platform_verifier", &["providers/events/chain.rs"]),
    ("serde_path_to_error", &["jobs/typed.rs"]),
    (
        "sqlx",
        &[
            "**/postgres",
            "jobs/record.rs",
            "notify/alarm_postgres.rs",
            "signals/complaints_postgres.rs",
            "testing/queue.rs",
        ],
    ),
    ("sqlx_postgres", &["postgres/mod.rs"]),
    (
        "toml",
        &[
            "calibrate/edit.rs",
            "cli/simulate.rs",
            "config.rs",
            "config/",
            "governor/policy/parse.rs",
            "input/toml.rs",
            "simulate/scenario.rs",
            "throttle/file.rs",
        ],
    ),
    ("sha2", &["gateway/tenant_mark.rs", "jobs/secret.rs"]),
    ("strsim", &["input/"]),
    ("tower_http", &["api/"]),
    (
        "tower_service",
        &["api/", "outbound/hyper.rs", "providers/apns/connections.rs"],
    ),
    ("tracing_subscriber", &["app/logging.rs"]),
    ("tungstenite", &["api/gateway/session.rs"]),
    (
        "utoipa",
        &[
            "admission/",
            "api/",
            "cron/",
            "governor/decision.rs",
            "governor/explain/view.rs",
            "governor/law/quota_controller.rs",
            "inbox/message.rs",
            "jobs/",
            "notify/",
            "providers/",
            "recipient/",
        ],
    ),
    ("utoipa_axum", &["api/"]),
];

/// Libraries that every file may use.
const EVERYWHERE: &[&str] = &[
    "anyhow",
    "bytes",
    "futures_util",
    "jiff",
    "parking_lot",
    "rand",
    "serde",
    "serde_json",
    "strum",
    "thiserror",
    "tokio",
    "tokio_util",
    "tracing",
    "url",
];

#[test]
fn a_technology_appears_in_its_own_files_only() {
    let mut wrong = Vec::new();
    let sources = sources();
    let modules = Modules::of(&sources);
    for source in &sources {
        let foreign = |path: &&NamedPath| modules.absolute(source, path).is_none();
        for path in source.paths.iter().filter(foreign) {
            let library = path.segments[0].as_str();
            let places = TECHNOLOGIES.iter().find(|(name, _)| *name == library);
            if let Some((_, places)) = places
                && !places.iter().any(|place| is_at(&source.path, place))
            {
                wrong.push(format!("{} names {library}", source.path));
            }
        }
    }
    wrong.dedup();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Returns the libraries that a manifest lists.
fn dependencies(manifest: &str) -> Vec<String> {
    let path = Path::new(crate::support::ROOT).join(manifest);
    let text = std::fs::read_to_string(path).unwrap();
    let (_, after) = text.split_once("\n[dependencies]\n").unwrap();
    after
        .lines()
        .take_while(|line| !line.starts_with('['))
        .filter_map(|line| line.split(['=', '.', ' ']).next())
        .filter(|name| name.starts_with(|c: char| c.is_ascii_lowercase()))
        .map(|name| name.replace('-', "_"))
        .collect()
}

#[test]
fn each_dependency_has_its_place() {
    let names: BTreeSet<String> = ["Cargo.toml", "core/Cargo.toml"]
        .into_iter()
        .flat_map(dependencies)
        .collect();
    assert!(names.contains("sqlx") && names.len() > 30, "{names:?}");
    let placed: BTreeSet<String> = TECHNOLOGIES
        .iter()
        .map(|(name, _)| *name)
        .chain(EVERYWHERE.iter().copied())
        .map(str::to_owned)
        .collect();
    let difference: Vec<_> = names.symmetric_difference(&placed).collect();
    assert!(difference.is_empty(), "{difference:?}");
}
